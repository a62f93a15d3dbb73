"""Attacks with plug-ins, pictures, folders, leases and names: each must end in one line that names the culprit.

They belong to `python -m tests.torture.trials`, which says how to run one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests import spoilers
from tests.torture.trials import SHIPPED, Finding, Life, Trial, finding, reference, refused, tables

SMALL = [w for w in SHIPPED if not w.startswith(("methods", "metrics", "fit_images"))]
PLAIN = [*SMALL, "methods=[gradient]", "metrics=[insertion]", "metrics.insertion.step=1024", "report=false"]


def spoiling(folder: Path, n: int) -> Iterator[Finding]:
    """Plug-ins that change images, targets, weights, layers, modes, hooks or maps: refused, and the store is sound."""
    expected, faults = reference(folder / "clean", PLAIN), []
    kinds = [("methods", name) for name in spoilers.METHODS] + [("metrics", name) for name in spoilers.METRICS]
    home = folder / "spoilt"
    for group, name in kinds[:n]:
        chosen = f"methods=[{name},gradient]" if group == "methods" else "methods=[gradient]"
        scored = f"metrics=[{name},insertion]" if group == "metrics" else "metrics=[insertion]"
        life = Life([*PLAIN, chosen, scored], home, env={"SALRUN_PLUGINS": spoilers.__file__})
        faults.append(refused(life, f"'{name}' changes"))
    after = Life(PLAIN, home)
    faults.append("" if after.end() == 0 and tables(home) == expected else "later runs have other numbers")
    yield finding("plug-ins that spoil what they are lent", faults, "each named; a later run has the same numbers")


ATTACKS = {
    "spoiling": Trial(spoiling, 99, 3),
}
