"""scripts/make_docs.py: pages show what is kept in docs/results, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from salrun import papers
from salrun.papers import style
from salrun.papers.transformers import judged
from salrun.results.court import judge
from salrun.results.run import Run
from salrun.results.scored import read_runs
from salrun.results.tables import SUMMARY, write_csv
from salrun.sweep import collect
from salrun.sweep.collect import collect_runs
from tests.conftest import ROOT
from tests.smerf_runs import made_up, paper_like, write_run
from tests.toys import script


def only_numbers(fig: object, data: pd.DataFrame, stem: Path) -> None:
    """Instead of `style.save`: of these figures the pages show no picture."""
    write_csv(stem.with_name(f"{stem.name}.csv"), data)


def test_docs_blocks_are_filled_from_kept_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docs = script("make_docs")
    monkeypatch.setattr(style, "save", only_numbers)
    world = made_up(("simple_fr", "simple_nr"), n=2, value=paper_like)
    run = write_run(tmp_path / "run", world, ["collect", "x"], scale="paper", deviations=["d"]).path
    assert papers.conclude("smerf", Run(run))[1] == []
    page = tmp_path / "smerf.md"
    blocks = ("provenance smerf", "verdict smerf", "claims smerf fig6a", "claims smerf", "readings smerf")
    blocks += ("pools smerf pafl code", "items smerf smerf", "claims other")
    page.write_text("Words.\n" + "".join(f"<!-- results: {b} -->\nSTALE\n<!-- /results -->\n" for b in blocks))
    assert docs.main(["keep", str(run), "smerf"], docs=tmp_path) == 0
    text = page.read_text()
    assert "STALE" not in text
    assert "`salrun collect x`" in text
    assert "- d" in text
    assert "| fig6a.T1 |" in text
    some, every = (text.split(f"claims smerf{only} -->")[1].split("<!-- /results")[0] for only in (" fig6a", ""))
    assert "fig17" not in some and "| fig17.T1 |" in every
    assert "on this model: " in every and "Not tested: " in every and "On this model: " in text
    assert "statements come out the same in both readings of the metrics" in text
    assert "| Figure 6b | PAFL and SAFL by number of objects |" in text and "| 1 | measured (smerf) |" in text
    assert "| Figure 9 |" in text and "| not measured |" in text
    assert "| lrp_epsilon |" in text
    assert "docs/results/other is empty" in text
    facts = json.loads((tmp_path / "results" / "smerf" / "run.json").read_text())
    assert facts["scale"] == "paper" and "host" not in facts
    assert docs.main(["--check"], docs=tmp_path) == 0
    page.write_text(text.replace("| fig6a.T1 |", "| x |"))
    assert docs.main(["--check"], docs=tmp_path) == 1


def test_verdicts_are_made_of_kept_tables_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr("salrun.papers.smerf.evidence.read.__defaults__", (500,))  # both ways draw the same
    docs = script("make_docs")
    plain, pictures = style.save, ("smerf_figure6a", "smerf_figure19")  # one that a page shows, one that none does
    monkeypatch.setattr(style, "save", lambda *given: (plain if given[2].name in pictures else only_numbers)(*given))
    (tmp_path / "smerf.md").write_text("![6](results/smerf/smerf_figure6a.png)\n")
    for seed in (0, 1):
        world = made_up(("simple_fr", "simple_nr"), seed=seed, n=2, value=paper_like)
        facts = {"seed": seed, "device": "cpu", "threads": 1, "timings": {"maps": 1800.0}}
        run = write_run(tmp_path / f"run{seed}", world, ["x"], scale="paper", **facts).path
        assert docs.main(["evidence", str(run), f"smerf/simple-{seed}"], docs=tmp_path) == 0
    folder = tmp_path / "results" / "smerf"
    assert docs.main(["judge"], docs=tmp_path) == 0
    assert (folder / "smerf_figure6a.png").is_file() and not (folder / "smerf_figure19.png").exists()
    assert (folder / "smerf_figure19.csv").is_file() and not (folder / "run.json").exists()
    assert set(pd.read_csv(folder / "summary.csv")["group"]) == {"(all)"}
    whole = tmp_path / "whole"
    assert collect_runs([tmp_path / "run0", tmp_path / "run1"], whole, drawn=False) == 0
    same_verdicts(folder / "claims.csv", whole / "claims.csv")
    overview = (tmp_path / "results" / "README.md").read_text()
    assert "| [smerf](smerf/) | 2 of " in overview and "| [smerf/simple-1](smerf/simple-1/) | `salrun x` |" in overview
    assert " | 2 | " in overview and " | 1.00 | " in overview
    assert docs.main(["--check"], docs=tmp_path) == 0
    (tmp_path / "results" / "README.md").write_text("")
    assert docs.main(["--check"], docs=tmp_path) == 1
    assert "out of date: README.md" in capsys.readouterr().out


def same_verdicts(left: Path, right: Path) -> None:
    """Two claims.csv say the same, numbers to five digits."""
    tables = [pd.read_csv(path, keep_default_na=False, dtype=str).set_index("id") for path in (left, right)]
    columns = ["sentence", "predicate", "quantifier", "holds", "k", "counted", "published_holds", "agrees"]
    pd.testing.assert_frame_equal(*(table[columns] for table in tables))
    numbers = [pd.to_numeric(table["measured"]).astype(float) for table in tables]
    pd.testing.assert_series_equal(*numbers, rtol=1e-5)


COMMITTED = script("make_docs").campaigns(ROOT / "docs" / "results")


@pytest.mark.parametrize("folder", COMMITTED, ids=lambda path: path.name)
def test_committed_verdicts_are_what_committed_tables_give(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "compare_runs", lambda *_, **__: [])  # half of the time, and no part of a verdict
    monkeypatch.setattr("salrun.results.tables.summarise", lambda scores, _: pd.DataFrame(columns=SUMMARY))  # the same
    if folder.name in ("court", "court_vit"):
        tables = judge(read_runs([path.parent for path in sorted(folder.glob("*/run.json"))]))
        write_csv(tmp_path / "court.csv", tables["court"])
        committed, again = (pd.read_csv(at / "court.csv") for at in (folder, tmp_path))
        return pd.testing.assert_frame_equal(committed, again, rtol=1e-6)
    if folder.name == "transformers":
        write_csv(tmp_path / "statements.csv", judged(*script("make_docs").transformers(folder))[1])
        assert (tmp_path / "statements.csv").read_text() == (folder / "transformers_statements.csv").read_text()
        return None
    assert collect_runs([folder], tmp_path / "again", drawn=False) == 0
    if (folder / "claims.csv").is_file():
        same_verdicts(folder / "claims.csv", tmp_path / "again" / "claims.csv")
    assert (folder / "summary.csv").is_file()
