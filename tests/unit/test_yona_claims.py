"""Claims of Yona & Greenfeld 2021, and verdicts of sanity checks, on runs whose truth is known."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from salrun.papers.claims import claims_of
from salrun.papers.yona.claims import claims
from salrun.papers.yona.evidence import read
from salrun.papers.yona.tables import tables
from tests.yona_run import Made, halves, made_run, pairs, sanity, shapes


def verdicts(folder: Path, *parts: Made) -> pd.DataFrame:
    return claims(read(made_run(folder, *parts), draws=300)).set_index("id")


def test_the_five_claims_are_there_and_shown_in_pictures_only() -> None:
    by_id = {c.id: c for c in claims_of("yona")}
    assert set(by_id) == {"Y1", "Y1a", "Y2", "Y2a", "Y2b", "Y3", "Y4", "Y5"}
    assert all(c.text for c in by_id.values())


def test_a_run_as_the_paper_has_it_reproduces_every_claim(tmp_path: Path) -> None:
    rows = verdicts(tmp_path, halves(), shapes(), pairs())
    assert (rows["verdict"] == "reproduced").all(), rows
    assert rows.loc["Y1", "measured"] == pytest.approx(0.2)
    assert rows.loc["Y1a", "measured"] == pytest.approx(0.1)
    assert rows.loc["Y2", "measured"] == pytest.approx(0.3)
    assert rows.loc["Y2b", "measured"] == pytest.approx(0.2)
    assert rows.loc["Y3", "measured"] == pytest.approx(0.4)  # the digit model's gain over an untrained one
    assert rows.loc["Y4", "measured"] == pytest.approx(0.05)  # how near one half the random model is
    assert rows.loc["Y5", "measured"] == pytest.approx(0.05)
    assert "60 images of one model" in rows.loc["Y1", "reason"]


@pytest.mark.parametrize(
    ("broken", "ids"),
    [
        ([halves(on_t=0.6, aware=0.2, between=0.6), shapes(), pairs()], {"Y1"}),
        ([halves(between=1.05), shapes(), pairs()], {"Y1a"}),
        ([halves(aware=0.85), shapes(), pairs()], {"Y2", "Y2a"}),
        ([halves(mass=0.55), shapes(), pairs()], {"Y2b"}),
        ([halves(), shapes(gbp=0.1), pairs()], {"Y3", "Y5"}),
        ([halves(), shapes(vbp=0.1), pairs()], {"Y3"}),
        ([halves(), shapes(), pairs(random=0.6)], {"Y4"}),
        ([halves(), shapes(), pairs(finetuned=0.5)], {"Y4"}),
        ([halves(), shapes(gbp=0.5), pairs()], {"Y5"}),
    ],
)
def test_what_is_broken_is_found(broken: list[Made], ids: set[str], tmp_path: Path) -> None:
    rows = verdicts(tmp_path, *broken)
    assert set(rows.index[rows["verdict"] == "not reproduced"]) == ids, rows[["measured", "verdict", "reason"]]


def test_a_part_of_the_experiments_tests_its_part_of_the_claims(tmp_path: Path) -> None:
    rows = verdicts(tmp_path, shapes())
    assert rows["verdict"].to_dict() == {
        **dict.fromkeys(("Y1", "Y1a", "Y2", "Y2a", "Y2b", "Y4"), "not testable here"),
        **dict.fromkeys(("Y3", "Y5"), "reproduced"),
    }
    assert rows.loc["Y1", "reason"] == "needs experiment yona_mnist_halves"


TRUTH = {"gradient": (0.2, 0.4), "edge": (1.0, 0.1), "unsure": (0.7, 0.1005)}


def test_sanity_checks_sort_the_methods(tmp_path: Path) -> None:
    run = made_run(tmp_path, sanity(TRUTH))
    e = read(run, draws=200)
    rows = claims(e).set_index("id")
    assert rows["verdict"].to_dict() == {
        "gradient/weights": "sensitive",
        "gradient/task": "sensitive",
        "edge/weights": "insensitive",
        "edge/task": "insensitive",
        "unsure/weights": "uncertain",
        "unsure/task": "sensitive",  # the noise is the same with both models: a paired difference is exact
    }
    assert "0.20 [0." in rows.loc["gradient/weights", "statement"]
    assert "by training +0.30 [+0.30, +0.30]" in rows.loc["gradient/task", "statement"]
    assert rows.loc["edge/task", "reason"] == "CI over 60 images of one model"
    table = tables(e)["sensitivity"].set_index(["method", "test"])
    assert set(table.loc["edge"].index) == {"weights", "cascading_50", "independent_100", "task"}
    assert table.loc[("gradient", "cascading_50"), "verdict"] == "insensitive"


def test_claims_and_sanity_checks_stand_side_by_side(tmp_path: Path) -> None:
    rows = verdicts(tmp_path, shapes(), sanity({"gradient": (0.2, 0.4)}, kind="mnist_shapes"))
    assert {"Y3", "gradient/weights"} <= set(rows.index)
    assert len(rows) == len(claims_of("yona")) + 2
