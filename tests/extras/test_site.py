"""`make docs`: the site builds strictly and offline, has a page per method and metric, and fetches nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from salrun.config.catalogue import names
from tests.conftest import ROOT, Once

for package in ("mkdocs", "material", "mkdocstrings"):
    pytest.importorskip(package, reason=f"{package} is not installed: pip install 'salrun[docs]' (make test-extras)")

NO_NETWORK = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def site(once: Once) -> Path:
    def build(folder: Path) -> None:
        words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder / "site")]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "HTTP_PROXY": NO_NETWORK, "HTTPS_PROXY": NO_NETWORK}
        done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]

    return once("site", build) / "site"


def test_there_is_a_page_per_method_metric_paper_and_task(site: Path) -> None:
    for group in ("methods", "metrics"):
        known = {name for name in names(group) if "/" not in name}
        assert {path.stem for path in (site / group).glob("*.html")} == known
    for page in ("index", "smerf", "tomsett", "yona", "zhang", "add_a_method", "leaderboard", "slurm", "CONTRIBUTING"):
        assert (site / f"{page}.html").is_file(), page


def test_it_can_be_searched_and_is_dark_at_night(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())
    assert any("RISE" in entry["text"] and entry["location"].startswith("methods/rise.html") for entry in index["docs"])
    assert 'data-md-color-scheme="slate"' in (site / "index.html").read_text()


def test_the_reference_has_the_docstrings(site: Path) -> None:
    text = (site / "api.html").read_text()
    assert all(f'id="salrun.api.{name}"' in text for name in ("explain", "evaluate", "compare", "show"))


def test_no_page_asks_another_machine_for_anything(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 100
    elsewhere = re.compile(r"<(?:link|script|img|iframe)[^>]+(?:href|src)=\"?((?:https?:)?//[^\">\s]+)")
    for page in pages:
        assert elsewhere.findall(page.read_text()) == [], page


def test_the_schemas_are_a_click_away(site: Path) -> None:
    for name in ("run", "scores", "cells", "claims"):
        path = f"schemas/{name}.schema.json"
        assert f'href="{path}"' in (site / "tables.html").read_text()
        assert (site / path).read_bytes() == (ROOT / "salrun" / "results" / path).read_bytes()


def test_the_notebook_is_a_page_with_its_pictures(site: Path) -> None:
    assert (site / "walkthrough.html").read_text().count("data:image/png;base64,") >= 3


def test_a_broken_link_fails(tmp_path: Path) -> None:
    config = (ROOT / "mkdocs.yml").read_text().split("nav:")[0]
    config = re.sub(r"hooks: .*\n|site_dir: .*\n", "", config).replace("docs_dir: docs", "docs_dir: pages")
    (tmp_path / "mkdocs.yml").write_text(config)
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "index.md").write_text("[nowhere](nowhere.md) and [no anchor](#nothing)\n")
    done = subprocess.run([sys.executable, "-m", "mkdocs", "build"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0 and "nowhere.md" in done.stderr and "#nothing" in done.stderr
