"""Conclusions kept in the store: made where something they are made from changed, else the same bytes come back."""

from pathlib import Path

import pandas as pd
import pytest

from salrun import papers
from salrun.papers.smerf import figures
from salrun.pipeline import conclusions
from salrun.results.run import Run
from salrun.store.entries import Store
from tests.smerf_runs import made_up, paper_like, write_run


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each time that figures are drawn; two of the plots are enough."""
    times: list[str] = []

    def few(evidence, plots=figures.figures):
        times.append("drawn")
        return {name: draw for name, draw in plots(evidence).items() if name in ("figure6a", "figure14")}

    monkeypatch.setattr(figures, "figures", few)
    return times


def conclude(folder: Path, store: Store | None, value=paper_like) -> dict[str, bytes]:
    """All that a made-up run concludes, as bytes; each time in a folder where an earlier run left something."""
    run = write_run(folder, made_up(("simple_fr",), value=value))
    (folder / "tables" / "smerf_left_over.csv").write_text("by another run")
    claims, problems = conclusions.conclude_once(store, "smerf", run) if store else papers.conclude("smerf", run)
    assert problems == [] and len(claims) and claims.equals(Run(folder).claims)
    if store is None:
        (folder / "tables" / "smerf_left_over.csv").unlink()  # `papers.conclude` alone takes nothing away
    return {name: path.read_bytes() for name, path in conclusions.concluded("smerf", folder).items()}


def test_unchanged_numbers_are_not_drawn_again(tmp_path, store, asked):
    alone = conclude(tmp_path / "alone", None)
    first, again = (conclude(tmp_path / name, store) for name in ("first", "again"))
    assert len(asked) == 2
    assert {"claims.csv", "claim_parts.csv", "tables/smerf_pools.csv", "figures/smerf_figure6a.png"} <= {*alone}
    assert alone == first == again


def test_a_changed_number_is_drawn(tmp_path, store, asked):
    first = conclude(tmp_path / "first", store)
    other = conclude(tmp_path / "other", store, value=lambda *which: 0.9 * paper_like(*which))
    assert len(asked) == 2
    assert other["figures/smerf_figure6a.csv"] != first["figures/smerf_figure6a.csv"]
    assert other["figures/smerf_figure6a.png"] != first["figures/smerf_figure6a.png"]


def test_a_damaged_entry_is_drawn_anew(tmp_path, store, asked):
    first = conclude(tmp_path / "first", store)
    (entry,) = store.root.rglob("*.safetensors")
    entry.write_bytes(entry.read_bytes()[:-1] + b"?")
    assert conclude(tmp_path / "again", store) == first
    assert len(asked) == 2 and store.has("conclusions", entry.stem)


@pytest.mark.parametrize("what", ["code", "library", "fact", "map", "style", "published"])
def test_whatever_a_conclusion_is_made_from_is_in_its_key(tmp_path, monkeypatch, what):
    run = write_run(tmp_path / "run", made_up(("simple_fr",)))
    before = conclusions.key_of_conclusions("smerf", run)
    assert conclusions.key_of_conclusions("smerf", Run(run.path)) == before
    if what == "code":
        monkeypatch.setattr(conclusions, "source_of_module", lambda module: "other")
    elif what == "library":
        monkeypatch.setattr(conclusions, "version", lambda name: "0")
    elif what == "fact":
        run.facts["metrics"] = ["another"]
    elif what == "map":
        (run.path / "maps").mkdir()
        (run.path / "maps" / "gradient.safetensors").write_bytes(b"a plane")
    elif what == "style":
        (tmp_path / "matplotlibrc").write_text("font.size: 20")
        monkeypatch.setenv("MATPLOTLIBRC", str(tmp_path))
    else:
        (tmp_path / "smerf").mkdir()
        pd.DataFrame({"value": [0.5]}).to_csv(tmp_path / "smerf" / "published.csv")
        monkeypatch.setattr(papers, "__file__", str(tmp_path / "__init__.py"))
    assert conclusions.key_of_conclusions("smerf", run) != before


def test_a_figure_that_fails_leaves_no_entry(tmp_path, store, monkeypatch):
    def broken(evidence):
        raise ValueError("no ink")

    monkeypatch.setattr(figures, "figures", broken)
    run = write_run(tmp_path / "run", made_up(("simple_fr",)))
    _, problems = conclusions.conclude_once(store, "smerf", run)
    assert "no ink" in problems[0] and not store.root.exists()
