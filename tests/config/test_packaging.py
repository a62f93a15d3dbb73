"""What is installed: dependencies are declared, and pinned to the versions they were tested in."""

from __future__ import annotations

import re
import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import ROOT


def test_every_dependency_has_a_tested_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", pin)] == []  # no hosts, no paths
    versions = dict(pin.split("==") for pin in pins)
    assert len(versions) == len(pins) and list(versions) == sorted(versions)
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    for requirement in (Requirement(text) for group in groups for text in group):
        version = versions[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement}: {version} was tested"


def test_make_installs_the_tested_versions() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    installs = [line for line in makefile.splitlines() if "pip install" in line and "--upgrade pip" not in line]
    assert len(installs) == 1 and "--constraint constraints.txt" in installs[0]
    assert makefile.count("$(INSTALL) ") == 4
