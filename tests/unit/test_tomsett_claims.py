"""Claims of Tomsett et al. 2020: on the paper's own tables, and on runs whose truth is known."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from salrun.papers.claims import claims_of, evaluate_claims, measure
from salrun.papers.evidence import published
from salrun.papers.tomsett.claims import claims
from salrun.papers.tomsett.evidence import METHODS, published_evidence, read
from tests.tomsett_run import made_run, run_scores

PUBLISHED = {  # on the paper's own Tables 1 and 2
    **{"T1": "yes", "T2": "no", "T2a": "yes", "T3": "no", "T3a": "yes", "T4": "yes", "T4a": "yes", "T5": "yes"},
    **{"T10": "yes", "T11": "yes", "T12": "no", "T12a": "yes"},
}
TEXT = ["T6", "T7", "T8", "T9", "T13", "T14", "T15", "T15a", "T16"]
BY_ID = {c.id: c for c in claims_of("tomsett")}


def test_all_sixteen_claims_are_there() -> None:
    assert set(BY_ID) == {*PUBLISHED, *TEXT}
    assert {f"T{i}" for i in range(1, 17)} <= set(BY_ID)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_tables_give_the_published_truth(name: str) -> None:
    assert measure(BY_ID[name], [published_evidence()]).holds == PUBLISHED[name]


@pytest.mark.parametrize("name", TEXT)
def test_what_is_only_said_has_no_table(name: str) -> None:
    assert BY_ID[name].text
    row = evaluate_claims([BY_ID[name]], published_evidence(), published_evidence()).iloc[0]
    assert row["published"] == "text"
    assert row["verdict"] == "not testable here"


def parts_on_published(name: str) -> pd.Series:
    return BY_ID[name].measure(published_evidence()).iloc[0]


def test_the_rows_of_table_1_behind_each_truth() -> None:
    edge = parts_on_published("T2").round(10)
    false = {("LeRF", 20, "mean"), *(("LeRF", n, "random_rgb") for n in (20, 40, 60, 80))}
    assert {k for k, v in edge.items() if v < 0} == false
    assert {k for k, v in edge.items() if v == 0} == {("LeRF", 40, "mean"), ("LeRF", 100, "random_rgb")}
    assert len(edge) == 22
    random = parts_on_published("T3")
    assert {k for k, v in random.items() if v <= 0} == {("F", 0, "without")}
    assert len(parts_on_published("T5")) == 32  # eight series, four steps
    assert 0.65 - parts_on_published("T1").min() == pytest.approx(0.48)


def test_the_ranges_of_table_2() -> None:
    consistency = published("tomsett", "consistency").groupby("pair")["spearman"]
    ranges = (consistency.max() - consistency.min()).round(2)
    assert ranges.to_dict() == {
        "F vs LeRF": 0.13,
        "F vs MoRF": 0.34,
        "MoRF random vs MoRF mean": 0.20,
        "MoRF vs LeRF": 0.66,
    }


def verdicts(folder: Path, scores: pd.DataFrame, draws: int = 600) -> pd.DataFrame:
    return claims(read(made_run(folder, scores), draws)).set_index("id")


def test_claims_follow_the_made_up_truth(tmp_path: Path) -> None:
    rows = verdicts(tmp_path, run_scores())
    assert rows.index.tolist() == list(BY_ID)
    assert rows.loc["T1", "verdict"] == "reproduced"
    assert rows.loc["T6", "holds"] == "yes"  # AOPC grows with the method's number: best in MoRF, worst in LeRF
    assert rows.loc["T13", "holds"] == "yes"
    assert rows.loc["T14", "holds"] == "yes"
    assert rows.loc["T15", "verdict"] == "not testable here"  # 200 images
    assert "needs 400 images: with 200" in rows.loc["T15", "reason"]
    assert "CI over 200 images of one model" in rows.loc["T1", "reason"]
    assert rows["verdict"].isin(["reproduced", "not reproduced", "uncertain", "not testable here"]).all()


def test_claims_fail_where_the_truth_is_turned_round(tmp_path: Path) -> None:
    rows = verdicts(tmp_path, run_scores(lerf_excess=-0.1, unsure_excess=0.1, edge_gain=-0.1))
    assert rows.loc["T13", "holds"] == "no"
    assert "better_if_unsure" in rows.loc["T13", "reason"]
    assert rows.loc["T14", "verdict"] == "not reproduced"


def test_three_seeds_are_an_interval_over_seeds(tmp_path: Path) -> None:
    rows = verdicts(tmp_path, pd.concat([run_scores(100, seed) for seed in range(3)]), draws=50)
    assert rows["reason"].drop("T15").str.contains("CI over 3 seeds").all()


def test_a_run_without_edge_or_random_orders_says_what_it_lacks(tmp_path: Path) -> None:
    scores = run_scores(100, methods=METHODS[:-1])
    maps_alone = [f"{p}_L{n}" for p in ("mean", "random_rgb") for n in (20, 40, 60, 80, 100)]
    rows = verdicts(tmp_path, scores[scores["score"].isin([*maps_alone, "mean", "random_rgb"])], draws=50)
    assert rows.loc["T2", "reason"] == "needs edge with"
    assert "edge" in rows.loc["T9", "reason"]
    assert rows.loc["T13", "reason"] == "needs the table 'excess'"
    assert rows.loc["T5", "verdict"] != "not testable here"
