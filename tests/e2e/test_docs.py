"""The commands of README.md and docs/*.md work as written, at smoke scale: each page in a folder of its own.

A ```python or ```yaml block is a file where its first line is a comment naming one, or the text before it says "Save it
as `path`". Every line of a ```bash block that starts with `salrun` or `SALRUN_PLUGINS=` is run by bash, in order; then
the other Python blocks of the pages in SNIPPETS, as a notebook would.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from salrun.results.claims import headline
from salrun.results.run import Run
from tests import fake_data
from tests.conftest import ROOT, Once, command_env

PAGES = ("README.md", *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")))
SKIPPED = {
    "salrun +experiment=smerf_complex_cr2": "19 methods: half a minute even at smoke scale; test_wheel.py has its like",
    "salrun +experiment=smerf_complex_cr2 scale=laptop": "the same at smoke scale",
    "salrun -m +experiment=smerf_simple_fr,smerf_simple_nr seed=0,1,2": "six jobs, four of which train a model",
}
FAKE = "dataset.verify=false dataset.validation=20 dataset.n_explained=2 model.training=none"  # of tests/fake_data.py
NO_WEIGHTS = "model.weights=null dataset.reserved=4 dataset.n_explained=1 dataset.size=64 dataset.short_side=64"
PAIRS = "dataset.group1=[acorn,banana] dataset.group2=[wok,baboon] dataset.n_explained=2 dataset.test_pairs=4"
RESNET18 = "model.arch.name=resnet18 model.arch.variant=null model.arch.weights=null model.arch.classes=2"
REDUCED = "dataset.n_per_bucket=1 metrics.insertion.step=1024 metrics.deletion.step=1024"
DEAR = ("smoothgrad", "integrated_gradients", "deep_shap", "deeplift_reveal_cancel", "lrp_a_flat", "lrp_b_flat", "edge")
DECIDED = """'dataset.groups=["5","6","11","12"]' curve_step=1024"""  # buckets of both models that a metric is tried on
SMALLER = {  # instead of a minute of training, and without real data and weights
    "reasoning=box2_or_b": "model.training=none dataset.n_per_bucket=1",
    "=tomsett_cifar10": FAKE,
    "name=smerf_reliability": " ".join([REDUCED, *(f"'~methods.{m}'" for m in DEAR)]),
    "salrun court top_share.py": DECIDED,
    "=yona_mnist": f"{FAKE} others.digits.dataset.verify=false others.digits.recipe.training=none",
    "=yona_mnist_halves": "others.digits.dataset.validation=20",
    "=yona_tinyimagenet_pairs": f"{PAIRS} {RESNET18} model.training=none",
    "dataset=cifar10": FAKE,
    "dataset=imagenet": NO_WEIGHTS,
    "model=resnet50_v1": NO_WEIGHTS,
}
COMMANDS = {  # run on each page; a new command must be counted here
    "README.md": 5,
    "docs/add_a_dataset.md": 1,
    "docs/add_a_method.md": 2,
    "docs/add_a_metric.md": 3,
    "docs/add_a_model.md": 3,
    "docs/compare.md": 3,
    "docs/reasoning.md": 2,
    "docs/scale.md": 3,
    "docs/tables.md": 2,
    "docs/tomsett.md": 4,
    "docs/tracking.md": 1,
    "docs/yona.md": 4,
    "docs/zhang.md": 2,
}
SNIPPETS = {"docs/coming_from.md": 1, "docs/compare.md": 2, "docs/notebook.md": 5, "docs/tables.md": 2}


@dataclass
class Page:
    """What a page asks its reader to save, to type and, where it is no file, to try in Python."""

    files: dict[str, str] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    snippets: list[str] = field(default_factory=list)


def read(text: str) -> Page:
    page = Page()
    for before, language, body in re.findall(r"(?:^|\n)([^\n]*)\n*```(\w+)\n(.*?)```", text, re.DOTALL):
        named = re.match(r"# ([\w./-]+\.(?:py|yaml))\n", body) or re.search(r"Save it\s+as `([^`]+)`", before)
        if language in ("python", "yaml") and named:
            page.files[named[1]] = body
        elif language == "python":
            page.snippets.append(body)
        elif language == "bash":
            page.commands += [c for line in body.splitlines() for c in commands(line)]
    return page


def commands(line: str) -> list[str]:
    """The commands of a line, without its comment."""
    return [
        c for c in re.sub(r"\s+#.*", "", line).split("; ") if c.startswith(("salrun", "SALRUN_PLUGINS=", "python my"))
    ]


def small(command: str) -> str:
    """The same run at smoke scale on the CPU, without figures, claims and report; most other verbs as they are."""
    if "dataset=" in command or "+experiment=" in command:
        command = re.sub(r"\bscale=\w+", "", command) + " scale=smoke device=cpu paper=null report=false"
    return " ".join([command, *(words for key, words in SMALLER.items() if key in command)])


@pytest.fixture(scope="session")
def store(once: Once) -> Path:
    return once("docs", lambda folder: None)


def test_every_command_is_known() -> None:
    pages = {name: read((ROOT / name).read_text(encoding="utf-8")) for name in PAGES}
    run = {name: [c for c in page.commands if c not in SKIPPED] for name, page in pages.items()}
    assert {name: len(some) for name, some in run.items() if some} == COMMANDS
    every = [c for page in pages.values() for c in page.commands]
    assert [c for c in SKIPPED if c not in every] == []
    assert all(any(key in c for c in every) for key in SMALLER)


def test_the_pages_show_the_results_that_are_kept() -> None:
    check = [sys.executable, str(ROOT / "scripts" / "make_docs.py"), "--check"]
    result = subprocess.run(check, capture_output=True, text=True)
    assert result.returncode == 0, f"run python scripts/make_docs.py: {result.stdout}{result.stderr}"


@pytest.mark.parametrize("campaign", ["smerf", "tomsett", "yona", "zhang_resnet50"])
def test_the_readme_counts_what_the_verdicts_count(campaign: str) -> None:
    said = headline(Run(ROOT / "docs" / "results" / campaign).claims)
    counted = re.search(r"\d+ hold, \d+ fail, \d+ uncertain", said)
    link = f"docs/{campaign.partition('_')[0]}.md)"
    row = next(line for line in (ROOT / "README.md").read_text().splitlines() if link in line)
    assert counted is not None and counted[0] in row


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 130


def test_every_make_target_is_there() -> None:
    """And make would do something for it."""
    words = " ".join((ROOT / name).read_text(encoding="utf-8") for name in PAGES)
    found = {target for line in re.findall(r"(?m)(?:`|^)make ([\w -]+)", words) for target in line.split()}
    targets = sorted(t for t in found if not t.endswith("-"))  # make train-<name>
    assert len(targets) >= 10
    for target in targets:
        result = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True)
        assert result.returncode == 0 and result.stdout.strip(), f"make {target}: {result.stderr}"


@pytest.fixture(scope="session")
def data(once: Once) -> Path:
    return once("data", fake_data.write_all)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*COMMANDS, *SNIPPETS}))
def test_page(name: str, warm: Path, store: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = read((ROOT / name).read_text(encoding="utf-8"))
    for path, body in page.files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(body, encoding="utf-8")
    env = command_env(store, SALRUN_DATA=str(data))
    env["PATH"] = os.pathsep.join([str(warm.parent), str(Path(sys.executable).parent), env["PATH"]])
    commands = [c for c in page.commands if c not in SKIPPED]
    assert len(commands) == COMMANDS.get(name, 0)
    for command in dict.fromkeys(map(small, commands)):  # two scales of an experiment are one smoke run
        result = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=900
        )
        assert result.returncode == 0, f"{command}\n{result.stdout[-2000:]}\n{result.stderr[-2000:]}"
    if name in SNIPPETS:
        assert len(page.snippets) == SNIPPETS[name]
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("SALRUN_CACHE", env["SALRUN_CACHE"])
        monkeypatch.setenv("MPLBACKEND", "Agg")
        try_python(page.snippets, name)


def try_python(snippets: list[str], name: str) -> None:
    """Run them one after the other, as a notebook does; one that needs DuckDB only where that is."""
    namespace: dict[str, object] = {}
    for snippet in snippets:
        if "import duckdb" not in snippet or importlib.util.find_spec("duckdb") is not None:
            exec(compile(snippet, name, "exec"), namespace)
