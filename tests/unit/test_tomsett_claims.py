"""Claims of Tomsett et al. 2020: on the paper's own tables, and on runs whose truth is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from salrun.papers.claims import Evidence, claims_of
from salrun.papers.evidence import published
from salrun.papers.tomsett.claims import claims
from salrun.papers.tomsett.evidence import METHODS, TomsettEvidence, published_evidence, read
from salrun.papers.verdicts import Verdicts, judge
from tests.tomsett_run import TURNED, made_run, run_scores

CLAIMS = [  # quantifier, parts, bound, counted, and what the paper's Tables 1 and 2 say ("" where it has words alone)
    ("T1", "every", 44, 0, True, "yes"),
    ("T2", "every", 22, 0, True, "no"),
    ("T2a", "every", 12, 0, False, "uncertain"),  # F, random: .10 and .09 may be equal
    ("T3", "every", 12, 0, True, "no"),
    ("T3a", "every", 6, 0, False, "yes"),
    ("T4", "every", 4, 0, True, "yes"),
    ("T4a", "every", 10, 0, False, "yes"),
    ("T5", "every", 32, 0, True, "uncertain"),  # four steps of MoRF with random perturbation are .01
    ("T6", "every", 2, 0, True, ""),
    ("T7", "some", 10, 0, True, ""),
    ("T8", "every", 10, 0, True, ""),
    ("T9", "every", 10, 0.2, True, ""),
    ("T9b", "every", 8, 0, True, ""),
    ("T10", "every", 5, 0.4, True, "yes"),
    ("T10b", "every", 5, 0, True, "yes"),
    ("T11", "average", 1, 0, True, "yes"),
    ("T12", "every", 3, 0, True, "no"),
    ("T12a", "every", 3, 0, False, "yes"),
    ("T13", "every", 4, 0, True, ""),
    ("T14", "every", 2, 0, True, ""),
    ("T15", "every", 20, 0, False, ""),
    ("T15a", "every", 4, 0, False, ""),
    ("T16", "every", 2, 0, True, ""),
    ("T16b", "average", 1, 0, True, ""),
    ("T17", "every", 4, 0, True, ""),
    ("T18", "average", 1, 0.02, True, ""),
    ("T19", "every", 8, 0, True, ""),
    ("T20", "every", 4, 0, True, ""),
    ("T21", "every", 6, 0, True, ""),
    ("T22", "average", 1, 0, True, ""),
    ("T23", "every", 4, 0, True, ""),
    ("T24", "every", 3, 0, True, "yes"),
    ("T25", "every", 4, 0, True, ""),
    ("T26", "every", 6, 0, True, ""),
]
BY_ID = {c.id: c for c in claims_of("tomsett")}


# -- the paper's own tables --------------------------------------------------------------------------------------------


def test_the_claims_and_what_the_published_tables_say_of_them() -> None:
    found = judge(BY_ID.values(), {0: Evidence()}, published_evidence()).claims.set_index("id")["published_holds"]
    assert [(c.id, c.quantifier, c.bound, not c.apart, found[c.id]) for c in BY_ID.values()] == [
        (name, quantifier, *others) for name, quantifier, _, *others in CLAIMS
    ]
    assert [c.id for c in BY_ID.values() if c.text] == [name for name, *_, said in CLAIMS if not said]


def test_printed_numbers_equal_themselves() -> None:
    paper = published_evidence()
    agrees = judge(BY_ID.values(), {0: paper}, paper).claims.set_index("id")["agrees"].fillna("")
    numbers = {name: said.split(" (")[0] for name, said in agrees.items() if said}
    assert numbers == {
        **{"T1": "44 of 44", "T2": "44 of 44", "T2a": "24 of 24", "T3": "24 of 24", "T3a": "12 of 12", "T4": "8 of 8"},
        **{"T4a": "20 of 20", "T5": "40 of 40", "T10": "5 of 5", "T10b": "5 of 5", "T11": "5 of 5"},
        **{"T12": "20 of 20", "T12a": "20 of 20", "T24": "5 of 5"},
    }


def parts_on_published(name: str) -> pd.Series:
    return BY_ID[name].measure(published_evidence()).iloc[0]


def test_the_rows_of_table_1_behind_each_truth() -> None:
    edge = parts_on_published("T2").round(10)
    false = {("LeRF", 20, "mean"), *(("LeRF", n, "random_rgb") for n in (20, 40, 60, 80))}
    assert {k for k, v in edge.items() if v < 0} == false
    assert {k for k, v in edge.items() if v == 0} == {("LeRF", 40, "mean"), ("LeRF", 100, "random_rgb")}
    random = parts_on_published("T3")
    assert {k for k, v in random.items() if v <= 0} == {("F", 0, "without")}
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


# -- runs whose truth is known -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def as_the_paper(tmp_path_factory: pytest.TempPathFactory) -> TomsettEvidence:
    return read(made_run(tmp_path_factory.mktemp("tomsett"), run_scores(500)), 400)


def holding(verdicts: Verdicts) -> dict[str, str]:
    return dict(verdicts.claims.set_index("id")["holds"].str.removesuffix(" (one model)"))


def test_claims_follow_the_made_up_truth(as_the_paper: TomsettEvidence) -> None:
    """Alphas are higher than the paper's (T1), or too near for 500 images."""
    found = claims(as_the_paper)
    others = {"T1": "no", **dict.fromkeys(("T2", "T2a", "T3", "T12", "T15"), "uncertain"), "T15a": "no"}
    assert holding(found) == {**dict.fromkeys(BY_ID, "yes"), **others}
    rows = found.claims.set_index("id")
    assert rows["parts"].to_dict() == {name: parts for name, _, parts, *_ in CLAIMS}
    assert "interval over 500 images of one model" in rows.loc["T5", "reason"]
    assert "interval over 125 images" in rows.loc["T13", "reason"]  # those of low confidence
    assert "interval over 50 images" in rows.loc["T16", "reason"]  # frogs
    assert (rows.loc[rows["agrees"].fillna("") != "", "agrees"].index[-3:] == ["T20", "T23", "T24"]).all()
    numbers = found.parts[(found.parts["kind"] == "number") & found.parts["id"].isin(["T20", "T23"])]
    assert numbers["published"].tolist() == [0.67, 0.18, 0.13]


def test_claims_fail_where_the_truth_is_turned_round(tmp_path: Path) -> None:
    found = claims(read(made_run(tmp_path, run_scores(500, world=TURNED)), 400))
    unturned = {"T1", "T5", "T6", "T7", "T10", "T15", "T22", "T24", "T16b"}
    assert {name for name, holds in holding(found).items() if holds != "no"} == unturned
    assert "better_if_unsure" in found.claims.set_index("id").loc["T13", "reason"]


BACKWARDS = dict(zip((20, 40, 60, 80, 100), (100, 80, 60, 40, 20), strict=True))


@pytest.mark.parametrize(
    ("name", "table", "change", "before", "after"),
    [
        ("T1", "alpha", lambda t: t - 0.3, "no", "yes"),
        ("T5", "alpha", lambda t: t.rename(columns=BACKWARDS, level="steps"), "yes", "no"),
        ("T6", "excess", lambda t: t.mul([-1 if c[1] == "LeRF" else 1 for c in t]), "yes", "no"),
        ("T10", "consistency", lambda t: t + 0.9, "yes", "no"),
        ("T16b", "mean", lambda t: -t, "yes", "no"),
        ("T22", "alpha", lambda t: 0 * t, "yes", "no"),
        ("T24", "consistency", lambda t: -t, "yes", "no"),
    ],
)
def test_other_tables_other_answers(
    as_the_paper: TomsettEvidence,
    name: str,
    table: str,
    change: Callable[[pd.DataFrame], pd.DataFrame],
    before: str,
    after: str,
) -> None:
    e = as_the_paper.draws[0]
    changed = replace(e, tables={**e.tables, table: change(e[table])})
    answers = [holding(judge([BY_ID[name]], {0: of}, published_evidence()))[name] for of in (e, changed)]
    assert answers == [before, after]


def test_an_order_of_methods_that_never_turns_refutes_t7(as_the_paper: TomsettEvidence) -> None:
    e = as_the_paper.draws[0]
    excess = e["excess"].drop(columns="deep_taylor", level="method")
    as_deep_taylor = excess.xs("sensitivity", axis=1, level="method") + 0.03
    as_deep_taylor.columns = pd.MultiIndex.from_tuples([(*c, "deep_taylor") for c in as_deep_taylor])
    excess = pd.concat([excess, as_deep_taylor], axis=1).rename_axis(columns=e["excess"].columns.names)
    mean = excess.xs("mean", axis=1, level="perturbation", drop_level=False)
    excess = pd.concat([mean, mean.rename(columns={"mean": "random_rgb"}, level="perturbation")], axis=1)
    assert holding(judge([BY_ID["T7"]], {0: replace(e, tables={"excess": excess})}))["T7"] == "no"


# -- seeds, and what is lacking ----------------------------------------------------------------------------------------


def test_three_models_with_their_own_images_speak_about_the_sentences(tmp_path: Path) -> None:
    scores = pd.concat([run_scores(60, seed) for seed in (1, 2, 3)])
    seeds = scores[["cell", "experiment", "dataset", "model", "seed", "scale"]].drop_duplicates()
    cells = seeds.assign(role="model", source="shipped", **{"dataset.explained_seed": seeds["seed"] + 4})
    e = read(made_run(tmp_path, scores, cells=cells), 300)
    assert {seed: of.images for seed, of in e.draws.items()} == {1: 5, 2: 6, 3: 7}
    assert {name: len(t) - 1 for name, t in e.draws[1].tables.items()} == {
        "alpha": 300,  # of Table 1's 99.9% intervals
        **dict.fromkeys(("mean", "excess", "std", "consistency", "inter_method"), 200),
    }
    rows = claims(e).claims.set_index("id").drop("T15")  # has too few images
    assert rows["reason"].str.contains("interval over 3 models").all()
    assert (rows["k"] == 3).all()
    assert rows.loc["T19", "holds"] == "yes"
    assert rows.loc["T12a", "holds"] == "yes"


def test_a_run_without_edge_or_random_orders_says_what_it_lacks(tmp_path: Path) -> None:
    scores = run_scores(100, methods=METHODS[:-1])
    maps_alone = [f"{p}_L{n}" for p in ("mean", "random_rgb") for n in (20, 40, 60, 80, 100)]
    run = made_run(tmp_path, scores[scores["score"].isin([*maps_alone, "mean", "random_rgb"])])
    rows = claims(read(run, draws=50)).claims.set_index("id")
    assert list(rows.index[rows["holds"] != "not tested"]) == ["T20", "T23"]  # without edge detection, as in print
    assert rows.loc["T2", "reason"] == "needs edge with"
    assert rows.loc["T9", "reason"] == "needs method edge"
    assert rows.loc["T13", "reason"] == "needs the table 'excess'"


def test_a_cell_that_was_not_run_makes_its_claims_not_tested(as_the_paper: TomsettEvidence) -> None:
    e = as_the_paper.draws[0]
    lacking = e["alpha"].drop(columns=[("LeRF", 60, "mean", "with")])
    found = judge(BY_ID.values(), {0: replace(e, tables={**e.tables, "alpha": lacking})}, published_evidence()).claims
    untested = found[found["holds"] == "not tested"].set_index("id")["reason"]
    assert set(untested.index) == {"T1", "T2", "T4a", "T5"}
    assert untested["T1"] == "needs every metric with every steps with every perturbation with every edge"


def test_reliability_over_other_methods_is_another_reading(tmp_path: Path) -> None:
    scores = run_scores(100)
    more = scores[scores["method"] == "edge"].assign(method="noise")
    rows = claims(read(made_run(tmp_path, pd.concat([scores, more])), draws=50)).claims.set_index("id")
    other = rows.index[rows["counted"].str.startswith("another reading of the paper: over the methods sensitivity")]
    assert {"T1", "T5", "T20", "T23"} <= set(other)
    assert not {"T8", "T10", "T17"} & set(other)  # these are about the five alone
