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


def clearing(folder: Path, n: int) -> Iterator[Finding]:
    """`salrun cache clear` in a project's folder, with an empty SALRUN_CACHE, and where nothing can be removed."""
    project, faults = folder / "project", []
    mine = [project / name for name in ("model/net.py", "maps/a.safetensors", "scores/ab/x.csv", "planes/b.png")]
    for path in mine:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    nobody = folder / "nobody"
    for cache, home in (("", nobody), (str(project), folder), (".", project)):
        life = Life(["cache", "clear"], project, env={"SALRUN_CACHE": cache, "HOME": str(home)})
        faults.append("" if life.end() == 0 and "removed 0 files" in life.said else life.last_line)
    life = Life(PLAIN, project, env={"SALRUN_CACHE": str(project)})
    faults.append("" if life.end() == 0 else life.last_line)
    entries = [path for path in project.rglob("*.safetensors") if len(path.stem) == 64]
    stuck = next(path for path in entries if path.parts[-3] == "maps")
    stuck.rename(folder / "aside")
    stuck.mkdir()  # a folder cannot be unlinked, not even by root
    faults.append(refused(Life(["cache", "clear"], project, env={"SALRUN_CACHE": str(project)}), stuck.name))
    stuck.rmdir()
    life = Life(["cache", "clear"], project, env={"SALRUN_CACHE": str(project)})
    faults.append("" if life.end() == 0 and not any(path.exists() for path in entries) else life.last_line)
    faults += ["" if path.is_file() else f"{path.name} is gone" for path in mine]
    yield finding("cache clear in a project's folder", faults, "only entries were removed; what cannot be is named")


ATTACKS = {
    "spoiling": Trial(spoiling, 99, 3),
    "clearing": Trial(clearing, 1, 1),
}
