"""Folders are floors: imports go down, packages side by side are strangers; the public interface is documented."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path
from typing import get_type_hints

import pytest

import salrun
from salrun import api, errors, types
from tests.conftest import ROOT

PACKAGE = ROOT / "salrun"
FLOORS = (  # a module imports from its own floor and from those above it in this list, which is CONTRIBUTING.md's
    {"console", "surroundings", "errors", "progress", "ranges", "types", "rng", "views"},
    {"store"},
    {"stats"},  # arithmetic on arrays and frames
    {"results"},
    {"datasets", "models", "methods", "metrics"},
    {"config"},
    {"papers", "report", "conformance", "tracking"},
    {"pipeline"},
    {"sweep", "api", "inputs"},
    {"cli", "__main__"},
)
MAY_KNOW = {  # what a package may know beside itself
    "datasets": {"errors", "ranges", "types", "rng"},
    "models": {"errors", "ranges", "types", "rng", "store"},
    "methods": {"errors", "progress", "ranges", "types", "rng", "models.classifier", "models.layers"},
    "metrics": {
        *("errors", "progress", "ranges", "types", "rng", "views", "models.classifier"),
        *("methods.chunking", "methods.superpixels"),
    },
    "papers": {"errors", "store.files", "config.catalogue", "stats", "results", "views", "metrics"},
    "report": {"errors", "store.files", "stats", "results"},
}
EXCUSED = {("datasets.download", "models.pretrained"): "downloads weights too, and checks them as they are read"}
LIBRARIES = {  # what a package may not import at all
    "datasets": {"hydra", "omegaconf", "pandas"},
    "models": {"hydra", "omegaconf", "pandas"},
    "methods": {"hydra", "omegaconf", "pandas", "pathlib", "os", "io", "json", "safetensors", "matplotlib"},
    "metrics": {"hydra", "omegaconf", "pandas", "pathlib", "os", "io", "json", "safetensors", "matplotlib"},
    "stats": {"hydra", "omegaconf", "torch"},
    "papers": {"hydra"},
    "report": {"hydra", "torch"},
}


def modules() -> dict[str, Path]:
    """Module name without `salrun.` -> file."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(p for p in parts if p != "__init__")] = path
    return found


MODULES = modules()


def imported(path: Path, at_once: bool = False) -> set[str]:
    """Full names of what a file imports, for types only left out; `at_once`: when it is itself imported."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    left_out: set[ast.AST] = set()
    for node in ast.walk(tree):
        typing_only = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if typing_only or (at_once and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            left_out.update(ast.walk(node))
    found: set[str] = set()
    for node in ast.walk(tree):
        if node in left_out:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner.removeprefix("salrun.") in MODULES else str(node.module))
    return found


def own(path: Path, at_once: bool = False) -> set[str]:
    """The salrun modules among them."""
    names = {name.removeprefix("salrun.") for name in imported(path, at_once) if name.startswith("salrun.")}
    return names & set(MODULES)


def within(module: str, names: set[str]) -> bool:
    """Whether the module, or a package it is in, is one of the names."""
    parts = module.split(".")
    return any(".".join(parts[:n]) in names for n in range(1, len(parts) + 1))


def floor(module: str) -> int:
    """The floor of the longest name that fits."""
    parts = module.split(".")
    for n in range(len(parts), 0, -1):
        for number, names in enumerate(FLOORS):
            if ".".join(parts[:n]) in names:
                return number
    raise AssertionError(f"salrun/{module} has no floor: which one is it on?")


def test_every_module_has_a_floor_and_every_name_a_module() -> None:
    assert [floor(module) for module in MODULES if module]
    assert {name for names in FLOORS for name in names} <= set(MODULES)


def test_imports_go_down() -> None:
    upward = [
        f"{module} imports {name}"
        for module, path in MODULES.items()
        if module
        for name in own(path)
        if floor(name) > floor(module)
    ]
    assert upward == []


def test_packages_know_only_what_they_may() -> None:
    strange = [
        (module, name)
        for module, path in MODULES.items()
        for package, known in MAY_KNOW.items()
        if within(module, {package})
        for name in own(path)
        if not within(name, {package, *known})
    ]
    assert sorted(strange) == sorted(EXCUSED)


def test_packages_do_not_touch_what_is_not_theirs() -> None:
    strange = [
        f"{module} imports {name}"
        for module, path in MODULES.items()
        for package, forbidden in LIBRARIES.items()
        if within(module, {package}) and module != "methods.file"  # whose business is files
        for name in imported(path)
        if name.split(".")[0] in forbidden
    ]
    assert strange == []
    quiet = {module: path for module, path in MODULES.items() if within(module, {"methods", "metrics"})}
    opening = [module for module, path in quiet.items() if re.search(r"\bopen\(", path.read_text(encoding="utf-8"))]
    assert opening == []


def test_nothing_imports_in_a_circle() -> None:
    graph = {module: own(path, at_once=True) - {module} for module, path in MODULES.items() if module}
    assert len(list(TopologicalSorter(graph).static_order())) == len(graph)  # raises CycleError with the circle


def test_the_check_can_fail(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(
        "from salrun.pipeline.cell import run\ndef f():\n    from salrun.pipeline import stages\n"
    )
    assert own(tmp_path / "bad.py") == {"pipeline.cell", "pipeline.stages"}
    assert own(tmp_path / "bad.py", at_once=True) == {"pipeline.cell"}
    assert floor("pipeline.cell") > floor("metrics.aopc") > floor("types") and floor("report") > floor("stats.ranks")
    with pytest.raises(AssertionError, match="no floor"):
        floor("attic")


# -- the public interface ----------------------------------------------------------------------------------------------

PUBLIC = {f"salrun.{name}": getattr(salrun, name) for name in salrun.__all__}
PUBLIC |= {
    f"{module.__name__}.{name}": thing
    for module in (api, types, errors)
    for name, thing in vars(module).items()
    if not name.startswith("_") and getattr(thing, "__module__", None) == module.__name__ and callable(thing)
}


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_documented_and_typed(name: str) -> None:
    thing = PUBLIC[name]
    assert inspect.getdoc(thing), f"{name} has no docstring"
    functions = [thing] if inspect.isfunction(thing) else []
    if inspect.isclass(thing):
        functions = [f for n, f in vars(thing).items() if inspect.isfunction(f) and (n == "__call__" or n[0] != "_")]
    functions = [f for f in functions if f.__name__ != "<lambda>"]  # a field's default
    for function in functions:
        signature = inspect.signature(function)
        bare = [p.name for p in signature.parameters.values() if p.annotation is p.empty and p.name != "self"]
        assert bare == [] and signature.return_annotation is not signature.empty, f"{name}: {function.__qualname__}"


def test_the_public_functions_have_types_that_exist() -> None:
    assert len(PUBLIC) >= 20
    for name in salrun.__all__:
        assert get_type_hints(getattr(salrun, name))
    assert (PACKAGE / "py.typed").exists()


def test_a_run_imports_no_library_before_it_needs_it() -> None:
    """scipy.stats alone takes as long as all that a warm run computes."""
    heavy = {"scipy.stats", "scipy.ndimage", "matplotlib", "torchvision", "triton", "captum"}
    code = f"import sys, salrun.pipeline.cell, salrun.report.page; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == salrun.__version__ == "0.2.0"
    assert re.search(r"^version: \"?0\.2\.0\"?$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert re.search(r"^## 0\.2\.0", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
