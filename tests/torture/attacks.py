"""Attacks with plug-ins, pictures, folders, leases and names: each must end in one line that names the culprit.

They belong to `python -m tests.torture.trials`, which says how to run one.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from salrun.sweep.jobs import job_in
from tests import fake_data, spoilers
from tests.odd_parts import HEAD, MAPS, METHOD, METRIC, MODULES, RAISING, SCORES, SILENCING
from tests.torture.trials import SHIPPED, Finding, Life, Payload, Trial, finding, reference, refused, run_of, tables

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
        faults.append(refused(life, f"'{name}' changes", f"'{name}' replaces"))
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


NET = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(4, 2)
    def forward(self, x):
        return self.head(self.conv(x).relu().mean((2, 3)))
"""
OWN = [
    *("model=own", "model.arch._target_=mynet.Net", "dataset=folder", "device=cpu"),
    *("dataset.root=pictures", "dataset.size=16", "dataset.short_side=16", "methods=[gradient]", "report=false"),
    "metrics=[sparseness]",
]


def own_home(folder: Path) -> Path:
    """A folder with a network and pictures of a user's own."""
    for kind, colour in {"blue": (40, 60, 200), "red": (200, 60, 40)}.items():
        (folder / "pictures" / kind).mkdir(parents=True, exist_ok=True)
        for k in range(2):
            Image.new("RGB", (20, 18 + k), colour).save(folder / "pictures" / kind / f"{k}.png")
    (folder / "mynet.py").write_text(NET)
    return folder


def pictures(folder: Path, n: int) -> Iterator[Finding]:
    """Pictures that are deep, cut, empty, huge, transparent, folders, pipes or links to nothing; none makes it wait."""
    home, faults = own_home(folder / "home"), []
    bad = home / "pictures" / "blue" / "bad.png"
    for kind in [*fake_data.BAD_PICTURES][:n]:
        fake_data.write_bad_picture(bad, kind)
        fault = refused(Life(OWN, home), "blue/bad.png")
        faults.append(f"{kind}: {fault}" if fault else "")
        bad.rmdir() if bad.is_dir() else bad.unlink()
    for k in range(2):
        Image.fromarray(np.full((18, 20), 20000 + k, dtype=np.uint16)).save(home / "pictures" / "blue" / f"deep{k}.png")
    life = Life(OWN, home)
    faults.append("" if life.end() == 0 else life.last_line)
    yield finding("pictures that cannot be read right", faults, "each named in one line; 16 bits are scaled")


def unreported(folder: Path, n: int, seed: int = 8) -> Iterator[Finding]:
    """Killed while the report is written, a run is not done; one that lost its report is done again by its sweep."""
    home, faults, dice = folder / "home", [], random.Random(seed)
    words = [w for w in PLAIN if not w.startswith("report")]
    reference(home, words)
    seconds = json.loads((run_of(home) / "run.json").read_text())["timings"]["report"]
    killed = 0
    for number in range(n):
        out = home / f"run-{number}"
        killed += (
            Life([*words, f"hydra.run.dir={out}"], home).kill_in("report", dice.random() * 1.2 * seconds) is not None
        )
        state, page = job_in(out).state, out / "report.html"
        whole = page.exists() and page.read_text().rstrip().endswith("</html>")
        faults.append("done without a report" if state == "done" and not whole else "")
    sweep = [*words, "-m", "seed=0,1", f"hydra.sweep.dir={home / 'sweep'}"]
    for lost in ("", "0/report.html", "1/tables/scores.parquet"):
        (home / "sweep" / lost).unlink() if lost else None
        life = Life(sweep, home)
        whole = life.end() == 0 and (not lost or (home / "sweep" / lost).exists())
        faults.append("" if whole else f"{lost}: {life.last_line}")
    yield finding("killed while the report is written", faults, f"{killed} kills; done means that all is there")


def odd_parts(folder: Path, n: int) -> Iterator[Finding]:
    """Methods, metrics, modules and networks that raise, exit or return something odd; `salrun check` too."""
    home, faults = own_home(folder / "home"), []
    plugin = home / "odd.py"
    kinds = [("methods=[odd_method]", METHOD, case) for case in (*RAISING.values(), *MAPS.values())]
    kinds += [("metrics=[odd_metric]", METRIC, case) for case in (*RAISING.values(), *SCORES.values())]
    kinds += [("methods=[odd_method]", METHOD, case) for case in SILENCING.values()]
    kinds += [("methods=[gradient]", "{body}", case) for case in MODULES.values()]
    kinds += [("", NET.replace("return", "{body}\n        return"), case) for case in RAISING.values()]
    for word, source, (body, told) in kinds if n >= len(kinds) else kinds[:: len(kinds) // n]:
        network = word == ""
        (home / "mynet.py" if network else plugin).write_text(HEAD * network + source.replace("{body}", body))
        env = {} if network else {"SALRUN_PLUGINS": str(plugin)}
        fault = refused(Life([*OWN, *filter(None, [word])], home, env=env), told, "'own' does not take")
        faults.append(f"{word or 'network'} {body}: {fault}" if fault else "")
        (home / "mynet.py").write_text(NET)
    plugin.write_text(METHOD.replace("{body}", "sys.exit(0)"))
    faults.append("" if Life(["check", str(plugin)], home).end() == 1 else "check: sys.exit(0) passes")
    yield finding("users' code that raises, exits or returns odd things", faults, "one line each that names it")


def odd_folders(folder: Path, n: int) -> Iterator[Finding]:
    """Sweeps below folders with letters that mean something to Hydra, the shell or YAML."""
    names = ["ü, it's (a=b) [c] {d} #e", "ü", "it's", "a(b", "a,b", "a=b", "a[b", "a{b", "a#b", "a b", "a\\b", "${a}"]
    words = [*SMALL, "methods=[edge]", "metrics=[pafl]", "report=false", "-m", "seed=0,1"]
    faults = []
    for name in names[:n]:
        life = Life(words, folder / name / "home", env={"SALRUN_CACHE": str(folder / "store")})
        there = len(list((folder / name).rglob("[01]/run.json"))) if life.end() == 0 else 0
        faults.append("" if there == 2 else f"{name}: {life.last_line}")
    yield finding("sweeps below odd folders", faults, "two jobs done in each")


def leases(folder: Path, n: int) -> Iterator[Finding]:
    """Leases of a sweep that are days old, empty, of another host or garbage; a pid that was reused."""
    words = [*SMALL, "methods=[edge]", "metrics=[pafl]", "report=false"]
    faults, days = [], 3 * 86400
    contents = [b"", b"[]", b"{", b"\xff", b'{"pid": "x"}', b'{"host": "elsewhere", "pid": 1}', b"3", b'{"pid": -1}']
    for number, content in enumerate(contents[:n]):
        home = folder / str(number)
        sweep = home / "sweep"
        sweep.mkdir(parents=True)
        (sweep / ".lease").write_bytes(content)
        os.utime(sweep / ".lease", (time.time() - days,) * 2)
        life = Life([*words, "-m", "seed=0,1", f"hydra.sweep.dir={sweep}"], home)
        faults.append("" if life.end(300) == 0 else f"{content!r}: {life.last_line}")
        facts = json.loads((sweep / "0" / "run.json").read_text())
        facts |= {"status": "running", "pid": os.getpid(), "process": "1 of another boot"}
        (sweep / "0" / "run.json").write_text(json.dumps(facts))
        life = Life(["status", str(sweep)], home)
        told = life.end() == 0 and "1 done, 1 failed" in life.said
        faults.append("" if told else f"a reused pid: {life.last_line}")
    yield finding("stale and garbled leases, a reused pid", faults, "taken over; status says failed")


def accidents(folder: Path, n: int) -> Iterator[Finding]:
    """Pickles to run again, a torch.py, links in place of logs, names that lead elsewhere, files to overwrite."""
    home, faults = folder / "home", []
    expected = reference(home, PLAIN)
    run, mine, proof = run_of(home), home / "mine.txt", home / "pwned"
    mine.write_text("mine")
    (home / "x.pickle").write_bytes(pickle.dumps(Payload(proof)))
    faults.append(refused(Life([*PLAIN, "--experimental-rerun", "x.pickle"], home), "salrun"))
    for name in ("../../x", "a/b", ".."):
        faults.append(refused(Life([*PLAIN, f"name={name}"], home), name))
    (home / "linked").mkdir()
    (home / "linked" / "run.log").symlink_to(mine)
    faults.append(refused(Life([*PLAIN, "hydra.run.dir=linked"], home), "run.log"))
    for out in (run, run.parent):
        faults.append(refused(Life(["collect", str(run), "-o", str(out)], home), str(out)))
    for out in (run / "run.json", mine):
        faults.append(refused(Life(["report", str(run), "-o", str(out)], home), str(out)))
    for name in ("torch", "numpy", "omegaconf"):
        (home / f"{name}.py").write_text(f"open({str(proof)!r}, 'w')\n")
    life = Life([*PLAIN, "-m", "seed=0,1"], home)
    faults.append("" if life.end() == 0 else f"a torch.py: {life.last_line}")
    faults.append("" if mine.read_text() == "mine" and tables(home) == expected else "a file was overwritten")
    faults.append("code of others was run" if proof.exists() else "")
    yield finding("execution and overwriting by accident", faults, "refused, or not followed")


ATTACKS = {
    "spoiling": Trial(spoiling, 99, 3),
    "clearing": Trial(clearing, 1, 1),
    "pictures": Trial(pictures, 99, 3),
    "odd_parts": Trial(odd_parts, 999, 4),
    "odd_folders": Trial(odd_folders, 99, 1),
    "leases": Trial(leases, 99, 1),
    "accidents": Trial(accidents, 1, 1),
    "unreported": Trial(unreported, 40, 2),
}
