"""Zhang's claims: the published tables give the published truth; made-up runs give made-up verdicts."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from salrun import papers
from salrun.papers.claims import _CLAIMS, claim, claims_of, evaluate_claims, measure
from salrun.papers.zhang import claims
from salrun.papers.zhang.evidence import by_method, published_evidence, read
from salrun.papers.zhang.names import CLOSE, FIDELITY, MASKED, REAL, ROBUSTNESS
from tests import zhang_runs as runs

BY_ID = {c.id: c for c in claims_of("zhang")}
PUBLISHED = {  # on the paper's own Tables 1 to 4, as printed
    **{"D1": "yes", "D2": "no", "D2a": "yes", "D3": "yes", "D3a": "yes", "D3b": "no", "D4": "yes", "D4a": "no"},
    **{"D6": "no", "D6a": "yes", "D7": "yes", "D11": "yes", "D12": "yes", "D13": "no", "D13a": "yes", "D14": "yes"},
    **{"D15": "yes", "D15a": "no", "D16": "no", "D16a": "yes"},
}
TEXT = ["D5", "D8", "D8a", "D9", "D10"]


# -- the paper's own tables -------------------------------------------------------------------------------------------


def test_all_claims_are_there():
    assert set(BY_ID) == {*PUBLISHED, *TEXT}
    assert {*(f"D{i}" for i in range(1, 17)), "D3b"} <= set(BY_ID)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_tables_give_the_published_truth(name):
    assert measure(BY_ID[name], [published_evidence()]).holds == PUBLISHED[name]


@pytest.mark.parametrize("name", TEXT)
def test_what_is_only_said_has_no_table(name):
    row = evaluate_claims([BY_ID[name]], published_evidence(), published_evidence()).iloc[0]
    assert row["published"] == "text"
    assert row["verdict"] == "not testable here"


def test_corrected_misprints_turn_d12_and_d13():
    corrected = published_evidence(corrected=True)
    turned = {name for name in PUBLISHED if measure(BY_ID[name], [corrected]).holds != PUBLISHED[name]}
    assert turned == {"D12", "D13"}


def failing(name):
    return {k for k, v in BY_ID[name].measure(published_evidence()).iloc[0].items() if v <= 0}


def test_what_fails_on_the_published_tables():
    assert failing("D2") == {"Db"}
    assert failing("D3b") == {"iba"}
    assert failing("D13") == {"Db rises, crop grad_cam"}
    assert failing("D16") == {"MS_is_0 fake_cam"}
    worse = pd.Series([name.split()[0] for name in failing("D6")]).value_counts().to_dict()
    assert worse == {"I": 10, "AG": 5, "ADb": 1}


def test_ranks_of_table_1():
    table = published_evidence()["fidelity"]
    fake = {m: claims.ranks(table, m)["fake_cam"].item() for m in FIDELITY}
    assert fake == {"AI": 2, "ADb": 1, "AG": 7, "I": 7, "Db": 10, "Mono": 2}
    ranks = claims.mean_ranks(table).iloc[0].round(2)
    assert ranks[["score_cam", "grad_cam", "grad_cam_pp", "iba", "fake_cam"]].tolist() == [2.5, 2.83, 3.33, 4.67, 4.83]


def test_spreads_and_outliers_of_the_published_tables():
    e = published_evidence()
    close = {m: by_method(e["fidelity"], m, CLOSE).iloc[0] for m in MASKED}
    spread = {m: round(v.max() - v.min(), 1) for m, v in close.items()}
    assert spread == {"AI": 13.2, "ADb": 7.0, "AG": 7.8, "I": 1.8, "Db": 6.4}
    outside = {m: claims.outliers(by_method(e["robustness"], m)).iloc[0] for m in ROBUSTNESS}
    assert {m: set(o[o].index) for m, o in outside.items()} == {
        "MS": {"guided_backprop"},
        "AS": {"fake_cam", "guided_backprop"},
        "Sparseness": {"fake_cam", "lime"},
        "Complexity": {"fake_cam", "lime"},
        "EC": {"grad_cam", "lime"},
    }
    ranges = {m: round(claims.spread(e["transforms"], m)[REAL].mean(axis=1).item(), 1) for m in MASKED}
    assert ranges == {"AI": 30.3, "ADb": 27.2, "AG": 6.3, "I": 40.2, "Db": 12.0}


# -- made-up runs -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scores():
    return runs.published_as_run()


def verdicts_on(scores, draws=50, curves=False):
    return claims.claims(read(runs.in_memory(scores, curves), draws)).set_index("id")


@pytest.fixture(scope="module")
def verdicts(scores):
    return verdicts_on(scores, draws=300, curves=True)


def test_verdicts_on_a_run_that_equals_the_paper(verdicts):
    assert verdicts.loc["D5", "holds"] == "no"  # IG is complete on half of the images
    assert "integrated_gradients" in verdicts.loc["D5", "reason"]
    assert verdicts.loc["D16", "holds"] == "yes"
    assert "the paper's own tables contradict it" in verdicts.loc["D16", "reason"]
    same = [k for k in PUBLISHED if k not in ("D12", "D13", "D16")]
    assert verdicts.loc[same, "verdict"].eq("reproduced").all(), verdicts.loc[same, ["holds", "reason"]]
    assert verdicts.loc["D12", "verdict"] == "not reproduced"  # no column swap here
    assert verdicts.loc["D13", "verdict"] == "not reproduced"
    assert verdicts["verdict"].isin(["reproduced", "not reproduced", "uncertain", "not testable here"]).all()
    assert "CI over 30 images of one model" in verdicts.loc["D2", "reason"]


def test_every_claim_reads_a_table_that_runs_give(verdicts):
    assert (verdicts["verdict"] != "not testable here").all()


def test_verdicts_turn_with_the_numbers(scores):
    masked = (scores["method"] == "fake_cam") & scores["metric"].isin(["average_increase", "monotonicity"])
    found = verdicts_on(scores.assign(value=scores["value"].where(~masked, -scores["value"])), draws=100)
    assert found.loc["D1", "holds"] == "no"
    assert found.loc["D1", "verdict"] == "not reproduced"


def test_a_run_of_one_experiment_says_what_it_lacks(scores):
    found = verdicts_on(scores[scores["experiment"] == runs.ROBUSTNESS])
    assert found.loc["D1", "reason"] == "needs the table 'fidelity'"
    assert found.loc["D7", "reason"] == "needs the table 'targets'"
    assert found.loc["D11", "verdict"] != "not testable here"
    few = scores[(scores["experiment"] == runs.FIDELITY) & (scores["method"] != "lime")]
    assert verdicts_on(few).loc["D2", "reason"] == "needs method lime"


def test_tables_of_few_images_leave_the_others_verdicts_alone(scores):
    few = ~scores["experiment"].eq(runs.TRANSFORMS) | scores["source_id"].str.contains(r"n0/00[0-3]")
    found = verdicts_on(scores[few])
    assert found.loc["D14", "verdict"] == "uncertain"
    assert "CI over 4 images" in found.loc["D14", "reason"]
    assert found.loc["D2", "verdict"] == "reproduced"
    assert "CI over 30 images" in found.loc["D2", "reason"]


def test_a_few_images_decide_nothing(scores):
    found = verdicts_on(scores[scores["source_id"].str.contains(r"n0/00[0-3]")], curves=True)
    assert set(found["verdict"]) == {"uncertain", "not testable here"}


def test_a_claim_of_a_new_number_leaves_the_others_alone(scores, verdicts, monkeypatch):
    monkeypatch.setitem(_CLAIMS, "zhang", dict(_CLAIMS["zhang"]))
    claim("E17", "zhang", "a claim of a later reader", reads="robustness", text=True)(
        lambda e: by_method(e["robustness"], "MS", ["rise"])
    )
    found = verdicts_on(scores[scores["experiment"] == runs.ROBUSTNESS])
    assert found.index.tolist() == [*verdicts.index, "E17"]
    assert found.loc["E17", "verdict"] == "reproduced"
    assert "CI over 30 images of one model" in found.loc["E17", "reason"]


PARTS = {  # what a run may lack
    "one metric": lambda s: s[s["metric"] == "sparseness"],
    "one method": lambda s: s[s["method"] == "rise"],
    "a stranger's metric": lambda s: s.assign(metric="pointing_game", mode=s["metric"] + s["mode"]),
    "a stranger's method": lambda s: s[s["method"] == "rise"].assign(method="occlusion"),
    "no insertion and deletion": lambda s: s[~s["metric"].isin(["insertion", "deletion"])],
    "all values missing": lambda s: s.assign(value=np.nan),
    "clean images only": lambda s: s[(s["experiment"] == runs.TRANSFORMS) & (s["transform"] == "clean")],
    "all methods in Table 1 alone": lambda s: s[
        s["experiment"].eq(runs.FIDELITY) | s["method"].isin(["fake_cam", "gradient", "grad_cam"])
    ],
    "one image": lambda s: s[s["source_id"] == "n0/004"],
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_whatever_a_run_lacks_every_claim_has_a_verdict(part, scores, tmp_path, monkeypatch):
    monkeypatch.setattr("salrun.papers.zhang.evidence.read.__defaults__", (20,))
    run = runs.in_memory(part(scores), curves=True)
    run.path = tmp_path
    found, problems = papers.conclude("zhang", run)
    assert problems == []
    assert found["id"].tolist() == list(BY_ID)
    assert set(found["verdict"]) <= {"uncertain", "not testable here", "reproduced", "not reproduced"}
    assert (found.loc[found["verdict"] == "not testable here", "reason"] != "").all()


def test_without_any_score_no_claim_is_testable(scores):
    nothing = runs.in_memory(scores[scores["metric"] == "none"], cells=runs.cells_of(scores))
    assert set(claims.claims(read(nothing, draws=5))["verdict"]) == {"not testable here"}
