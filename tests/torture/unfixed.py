"""Does a test fail where a fix is taken out again? Each fix of the campaign's findings is, in a copy of the code.

    python -m tests.torture.unfixed                  # all of them, some minutes
    python -m tests.torture.unfixed --only 3 9       # those of some items
    python -m tests.torture.unfixed --missing        # those that docs/results/fixes.md does not have
    python -m tests.torture.unfixed --record         # and docs/results/fixes.md has their rows

The items are those of docs/results/fixes.md. A test that passes without its fix, or a fix whose text is not found any
more, is a fault.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.conftest import ROOT

PAGE = ROOT / "docs" / "results" / "fixes.md"
BEGIN, END = "<!-- fixes:begin -->", "<!-- fixes:end -->"
HEAD = "| item | case | without the fix | test | it fails |\n|--:|---|---|---|---|"
LONG = 300.0  # seconds
COPIED = ("salrun", "tests", "conf", "hydra_plugins", "scripts", "docs", "pyproject.toml", "README.md")


@dataclass(frozen=True)
class Fix:
    """A fix, and how it is taken out: `old` of a file becomes `new`."""

    item: int
    case: str
    file: str
    old: str
    new: str
    how: str  # in words
    test: str
    endless: bool = False  # without it the test does not end

    @contextmanager
    def taken_out(self, folder: Path) -> Iterator[None]:
        """Without it, for a while."""
        path = folder / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise LookupError(f"{self.case}: {text.count(self.old)} places in {self.file} have {self.old!r}")
        without = text.replace(self.old, self.new)
        compile(without, self.file, "exec")  # else any test fails
        path.write_text(without, encoding="utf-8")
        yield
        path.write_text(text, encoding="utf-8")

    def row(self, failed: str) -> str:
        return f"| {self.item} | {self.case} | {self.how} | `{self.test.removeprefix('unit/')}` | {failed} |"


def fixes() -> list[Fix]:
    return [Fix(**entry) for entry in yaml.safe_load((Path(__file__).with_name("fixes.yaml")).read_text("utf-8"))]


def outcome(fix: Fix, folder: Path) -> tuple[bool, str]:
    """Whether its test failed, or did not end where that is what the fix is for; and what pytest says of it."""
    env = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "SALRUN_CACHE": str(folder / "store")}
    words = [sys.executable, "-m", "pytest", "-qx", "-rf", "--tb=no", "-n", "0", "-p", "no:cacheprovider"]
    words += shlex.split(f"tests/{fix.test}")
    try:
        done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=LONG)
    except subprocess.TimeoutExpired:
        return fix.endless, f"not done after {LONG:.0f} s"
    lines = done.stdout.splitlines()
    told = next((line for line in lines if line.startswith("FAILED")), lines[-1] if lines else done.stderr[-300:])
    ended = "KeyboardInterrupt" in done.stdout  # which ends pytest itself
    return done.returncode == 1 or ended, told.partition("::")[2] or told


def copied(folder: Path) -> Path:
    for name in COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, folder / name)
    return folder


def recorded() -> tuple[str, dict[str, str], str]:
    """What the page says before its table; the rows by their case; what it says after."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    known, _, after = rest.partition(END)
    return before, {line.split(" | ")[1]: line for line in known.splitlines()[3:]}, after


def record(rows: dict[str, str]) -> None:
    """Write the rows into the page, beside those of the other fixes that there are."""
    before, known, after = recorded()
    order = [fix.case for fix in sorted(fixes(), key=lambda fix: fix.item)]
    table = [row for case in order if (row := rows.get(case, known.get(case, "")))]
    PAGE.write_text("\n".join([f"{before}{BEGIN}", HEAD, *table, f"{END}{after}"]), encoding="utf-8")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", type=int, metavar="ITEM", help="of these items")
    parser.add_argument("--missing", action="store_true", help="that docs/results/fixes.md does not have")
    parser.add_argument("--record", action="store_true", help="write docs/results/fixes.md")
    given = parser.parse_args(argv)
    known = recorded()[1] if given.missing else {}
    chosen = [fix for fix in fixes() if fix.case not in known and (given.only is None or fix.item in given.only)]
    rows = {}
    with tempfile.TemporaryDirectory(prefix="salrun-unfixed-") as place:
        folder = copied(Path(place))
        for fix in chosen:
            with fix.taken_out(folder):
                failed, last = outcome(fix, folder)
            rows[fix.case] = fix.row("yes" if failed else "NO")
            print(f"{'fails' if failed else 'NO'}: {fix.item} {fix.case}: {last}", flush=True)
    wrong = sum(row.endswith("NO |") for row in rows.values())
    print(f"{len(rows)} fixes taken out, {wrong} without a test that fails")
    if given.record:
        record(rows)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
