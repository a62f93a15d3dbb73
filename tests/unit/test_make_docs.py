"""scripts/make_docs.py: pages show what is kept in docs/results, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from salrun import papers
from salrun.results.run import Run
from tests.conftest import ROOT
from tests.smerf_runs import made_up, paper_like, write_run
from tests.toys import script


def test_docs_blocks_are_filled_from_kept_results(tmp_path: Path) -> None:
    docs = script("make_docs")
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


def test_verdicts_are_made_of_kept_tables_alone(tmp_path: Path) -> None:
    docs = script("make_docs")
    run = write_run(tmp_path / "run", made_up(("simple_fr",), n=2, value=paper_like), ["x"], scale="paper").path
    papers.conclude("smerf", Run(run))
    assert docs.main(["evidence", str(run), "smerf"], docs=tmp_path) == 0
    folder = tmp_path / "results" / "verdicts" / "smerf"
    assert not (folder / "tables" / "summary.parquet").exists() and "host" not in json.loads(
        (folder / "run.json").read_text()
    )
    assert docs.main(["judge"], docs=tmp_path) == 0
    for name in ("claims.csv", "claim_parts.csv"):
        assert (folder / name).read_bytes() == (run / name).read_bytes()


COMMITTED = sorted((ROOT / "docs" / "results" / "verdicts").glob("*/run.json"))


@pytest.mark.parametrize("facts", COMMITTED, ids=lambda path: path.parent.name)
def test_committed_verdicts_are_what_their_tables_give(facts: Path) -> None:
    again = script("make_docs").judged(facts.parent).claims.set_index("id")
    committed = pd.read_csv(facts.parent / "claims.csv", keep_default_na=False, dtype=str).set_index("id")
    columns = ["sentence", "predicate", "quantifier", "holds", "counted", "published_holds", "agrees"]
    pd.testing.assert_frame_equal(again[columns].fillna("").astype(str), committed[columns])
    numbers = [pd.to_numeric(table["measured"]).astype(float) for table in (again, committed)]
    pd.testing.assert_series_equal(*numbers, rtol=1e-9)
