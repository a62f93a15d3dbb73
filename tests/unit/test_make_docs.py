"""scripts/make_docs.py: pages show what is kept in docs/results, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

from salrun import papers
from salrun.results.run import Run
from tests.smerf_runs import made_up, paper_like, write_run
from tests.toys import script


def test_docs_blocks_are_filled_from_kept_results(tmp_path: Path) -> None:
    docs = script("make_docs")
    methods = ("gradient", "lrp_epsilon")
    world = made_up(("simple_fr", "complex_cr2"), n=2, value=paper_like, methods=methods)
    run = write_run(tmp_path / "run", world, ["collect", "x"], scale="paper", deviations=["d"]).path
    assert papers.conclude("smerf", Run(run))[1] == []
    page = tmp_path / "smerf.md"
    blocks = ("provenance smerf", "claims smerf fig6a", "readings smerf", "pools smerf pafl code", "claims other")
    page.write_text("Words.\n" + "".join(f"<!-- results: {b} -->\nSTALE\n<!-- /results -->\n" for b in blocks))
    assert docs.main(["keep", str(run), "smerf"], docs=tmp_path) == 0
    text = page.read_text()
    assert "STALE" not in text
    assert "`salrun collect x`" in text
    assert "- d" in text
    assert "| fig6a.T1 |" in text
    assert "fig8a" not in text.split("claims smerf fig6a -->")[1].split("<!-- /results")[0]
    assert "claims come out the same under both readings" in text
    assert "| lrp_epsilon |" in text
    assert "docs/results/other is empty" in text
    facts = json.loads((tmp_path / "results" / "smerf" / "run.json").read_text())
    assert facts["scale"] == "paper" and "host" not in facts
    assert docs.main(["--check"], docs=tmp_path) == 0
    page.write_text(text.replace("| fig6a.T1 |", "| x |"))
    assert docs.main(["--check"], docs=tmp_path) == 1
