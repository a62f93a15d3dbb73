"""The pages of the court: tables, hypotheses and cards of committed runs."""

from __future__ import annotations

import pandas as pd
import pytest

from salrun.papers.court_pages import by_model, write_pages
from salrun.papers.court_statements import STATEMENTS
from salrun.papers.hypotheses import answers
from tests.unit.test_court import court_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return [court_run(folder / str(seed), n=6, seed=seed, fingerprint=str(seed)) for seed in range(3)]


def test_pages_say_what_the_runs_say(runs, tmp_path):
    write_pages(runs, tmp_path, {"right": "nothing"})
    card = (tmp_path / "court_cards.md").read_text().split("## right")[1].split("##")[0]
    assert (
        "**Assumes**: nothing." in card and "agreement 1.00 [1.00, 1.00]" in card and "right about noise 1.00" in card
    )
    assert "best default (1.00); not odd" in card and "7 forward passes" in card
    assert "| right | 1.00 [1.00, 1.00] |" in (tmp_path / "court_table.md").read_text()
    assert "**do not use**: constant_lover, upside_down" in (tmp_path / "court_advice.md").read_text()
    assert "| constant_lover | 1.00 |" in (tmp_path / "court_fooled.md").read_text()
    assert "right | default 1.00, odd" in (tmp_path / "court_settings.md").read_text()
    assert len(pd.read_csv(tmp_path / "court_statements.csv")) == 0  # the data set is none that they are about
    assert (tmp_path / "court_reliability.png").is_file() and not list(tmp_path.glob("*.parquet"))


def test_each_model_speaks_by_itself(runs):
    (models,) = by_model(runs).values()
    assert len(models) == 3 and all(tables["court"]["models"].max() == 1 for tables in models)


def test_every_hypothesis_can_be_asked_of_tables_without_its_metrics(runs):
    (models,) = by_model(runs).values()
    said = answers(STATEMENTS, {"grid_cifar10": models, "textbox": models, "watermark_imagenet": models}).set_index(
        ["id", "data"]
    )["answer"]
    assert set(said.index.get_level_values(0)) == {s.id for s in STATEMENTS}
    assert said["W1", "watermark_imagenet"] == said["P3", "grid_cifar10"] == "not tested"
    assert said["C1", "textbox"] == "not tested" and said["C2", "textbox"] in ("no", "uncertain")
    assert said["C6", "textbox"] == "yes"  # upside_down ranks the methods alike on every image


def test_pixel_flipping_is_compared_with_faithfulness_on_logits_where_both_were_asked_so():
    """P3: .8 - .5 on probabilities, .4 - .6 on logits; where a probability says nothing it is not asked."""
    (p3,) = [statement for statement in STATEMENTS if statement.id == "P3"]
    rows = [("pixel_flipping", "default", 0.8), ("faithfulness", "default", 0.5)]
    logits = [("pixel_flipping", "logit", 0.4), ("faithfulness", "logit", 0.6)]

    scores = {"pixel_flipping": "", "faithfulness": "mean"}
    court = pd.DataFrame([{"metric": m, "ladder": "oracle", "default": True, "score": s} for m, s in scores.items()])

    def difference(lines):
        about = [{"metric": m, "mode": mode, "score": scores[m], "mc": mc, "mc_error": 0.03} for m, mode, mc in lines]
        other = {"metric": "faithfulness", "mode": "logit", "score": "blur", "mc": 9.0, "mc_error": 0.03}
        return list(p3.parts({"court": court, "consistency": pd.DataFrame([other, *about])}))

    assert difference(rows) == [("pixel_flipping - faithfulness", pytest.approx(0.3), pytest.approx(0.03 * 2**0.5))]
    assert difference(rows + logits)[0][1] == pytest.approx(-0.2)
    assert difference([rows[0], ("faithfulness", "default", float("nan"))]) == []


def test_the_watermarks_own_hypotheses_have_a_known_answer():
    asked = {statement.id: statement for statement in STATEMENTS}
    key = {"ladder": "oracle", "metric": "deletion", "mode": "default", "score": "", "low": 0.1, "high": 0.3}
    court = pd.DataFrame([{**key, "default": True, "agreement": 0.2}])
    fooled = pd.DataFrame([{**key, "by": by, "mean": mean} for by, mean in (("inverse", 0.0), ("random", 0.6))])
    tables = {"court": court, "fooled": fooled}
    assert [(name, d) for name, d, _ in asked["W1"].parts(tables)] == [
        ("deletion against inverse", 0.5),
        ("deletion against random", pytest.approx(-0.1)),
    ]
    assert [(name, d) for name, d, _ in asked["W2"].parts(tables)] == [("deletion", pytest.approx(0.13))]
