"""One trial, short: `python -m tests.torture.brief FOLDER NAME` prints a line of tabs for each of its findings."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.torture.attacks import ATTACKS
from tests.torture.trials import TRIALS
from tests.warm import import_all

if __name__ == "__main__":
    import_all()
    folder, name = sys.argv[1:]
    trial = (TRIALS | ATTACKS)[name]
    for found in trial.run(Path(folder), trial.brief):
        print(found.tried, found.failed, found.trial, found.detail, sep="\t", flush=True)
