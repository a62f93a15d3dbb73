"""Claims of Yona & Greenfeld 2021, and the table of sanity checks, on runs whose truth is known."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from salrun.papers.claims import claims_of
from salrun.papers.yona.claims import claims
from salrun.papers.yona.evidence import PAIRS, read
from salrun.papers.yona.tables import tables
from tests.yona_run import IMAGES, Made, halves, made_run, pairs, sanity, shapes

CLAIMS = [  # quantifier, parts, bound, unit, counted, population
    ("Y1", "average", 1, 0.1, "similarity", True, "models"),
    ("Y1a", "every", 3, 0.1, "similarity", False, "models"),
    ("Y2", "average", 1, 0, "similarity", True, "models"),
    ("Y2a", "every", 3, 0, "similarity", False, "models"),
    ("Y2b", "every", 2, 0, "mass", False, "models"),
    ("Y3", "every", 6, 0, "mass", True, "models"),
    ("Y4", "every", 8, 0, "mass", True, "images"),
    ("Y4a", "every", 4, 0, "mass", False, "images"),
    ("Y4b", "every", 4, 0, "mass", True, "images"),
    ("Y5.halves", "every", 1, 0, "similarity", True, "models"),
    ("Y5.shapes", "every", 3, 0, "mass", True, "models"),
    ("Y5.pairs", "every", 2, 0, "mass", True, "images"),
]


def verdicts(folder: Path, *parts: Made) -> pd.DataFrame:
    return claims(read(made_run(folder, *parts), draws=300)).claims.set_index("id")


def answers(rows: pd.DataFrame) -> pd.Series:
    return rows["holds"].str.split(" ").str[0]


def test_the_claims_are_shown_in_pictures_only_and_hold_in_a_run_as_the_paper_has_it(tmp_path: Path) -> None:
    rows = verdicts(tmp_path, halves(), shapes(), pairs())
    said = [
        (c.id, c.quantifier, rows.loc[c.id, "parts"], c.bound, c.unit, not c.apart, c.population)
        for c in claims_of("yona")
    ]
    assert said == CLAIMS
    assert all(c.text for c in claims_of("yona"))
    assert (rows["published_holds"] == "").all()
    assert (answers(rows) == "yes").all(), rows
    assert rows["measured"].to_dict() == pytest.approx(
        {
            **{"Y1": 0.0, "Y1a": 0.0, "Y2": 0.3, "Y2a": 0.3, "Y2b": 0.2},
            **{"Y3": 0.4, "Y4": 0.1, "Y4a": rows.loc["Y4a", "measured"], "Y4b": 0.25},
            **dict.fromkeys(("Y5.halves", "Y5.shapes", "Y5.pairs"), 0.05),
        },
        abs=1e-9,
    )
    assert rows.loc["Y4a", "measured"] == pytest.approx(0.1, abs=0.01)
    assert rows.loc["Y1", "holds"] == "yes (one model)" and rows.loc["Y4", "holds"] == "yes (images seen before)"
    assert f"{IMAGES} images of one model" in rows.loc["Y1", "reason"]


@pytest.mark.parametrize(
    ("broken", "ids"),
    [
        ([halves(on_t=0.7), shapes(), pairs()], {"Y1", "Y1a"}),
        ([halves(between=1.05), shapes(), pairs()], {"Y1", "Y1a"}),
        ([halves(aware=0.85, vbp=0.85), shapes(), pairs()], {"Y2", "Y2a"}),
        ([halves(mass=0.55), shapes(), pairs()], {"Y2b"}),
        ([halves(vbp=0.4), shapes(), pairs()], {"Y5.halves"}),
        ([halves(), shapes(gbp=0.1), pairs()], {"Y3", "Y5.shapes"}),
        ([halves(), shapes(vbp=0.1), pairs()], {"Y3"}),
        ([halves(), shapes(gbp=0.5), pairs()], {"Y5.shapes"}),
        ([halves(), shapes(), pairs(random=0.7)], {"Y4", "Y4a"}),
        ([halves(), shapes(), pairs(pretrained=0.3)], {"Y4", "Y4a"}),
        ([halves(), shapes(), pairs(finetuned=0.5, vbp=0.5)], {"Y4b"}),
        ([halves(), shapes(), pairs(vbp=0.9)], {"Y5.pairs"}),
    ],
)
def test_what_is_broken_is_found(broken: list[Made], ids: set[str], tmp_path: Path) -> None:
    rows = verdicts(tmp_path, *broken)
    assert set(rows.index[answers(rows) == "no"]) == ids, rows[["measured", "holds", "reason"]]
    assert (answers(rows).drop(list(ids)) == "yes").all()


def test_maps_on_one_side_of_each_pair_are_even_on_average_alone(tmp_path: Path) -> None:
    """The side of the half that decides is random: a network that looks left puts one half of its mass on each."""
    made = pairs()
    scores = made.scores
    of_random = scores["model"].str.startswith("random") & (scores["metric"] == "mass_share") & (scores["score"] == "")
    left = scores["image_id"].str[-1].astype(int) % 2 == 0
    scores.loc[of_random, "value"] = left[of_random] * 0.8 + 0.1
    rows = claims(read(made_run(tmp_path, made, scores=scores), draws=300)).claims.set_index("id")
    assert answers(rows)[["Y4", "Y4a"]].tolist() == ["yes", "no"]
    assert rows.loc["Y4a", "measured"] == pytest.approx(0.1 - 0.35)


def test_a_part_of_the_experiments_tests_its_part_of_the_claims(tmp_path: Path) -> None:
    rows = verdicts(tmp_path, shapes())
    assert set(rows.index[rows["holds"] != "not tested"]) == {"Y3", "Y5.shapes"}
    assert rows.loc["Y1", "reason"] == "needs experiment yona_mnist_halves"
    guided = shapes()
    guided.rows = [row for row in guided.rows if row["method"] == "guided_backprop"]
    lacking = verdicts(tmp_path / "guided", guided)
    assert lacking.loc["Y3", "reason"] == "needs method gradient"


# -- replicates --------------------------------------------------------------------------------------------------------


def test_three_models_with_their_own_images_speak_about_the_sentences(tmp_path: Path) -> None:
    e = read(made_run(tmp_path, *(halves(seed=s, explained=s) for s in (1, 2, 3))), draws=300)
    assert {seed: of.images for seed, of in e.draws.items()} == {1: 1, 2: 2, 3: 3}
    assert {len(of["mean"]) - 1 for of in e.draws.values()} == {200}
    rows = claims(e).claims.set_index("id")
    assert rows.loc[["Y1", "Y2", "Y5.halves"], "holds"].tolist() == ["yes"] * 3
    assert (rows.loc[["Y1", "Y2"], "k"] == 3).all()


def test_experiments_with_different_images_are_told_apart(tmp_path: Path) -> None:
    e = read(made_run(tmp_path, halves(explained=4), shapes(explained=2)), draws=20)
    assert e.draws[0].images == (2, 4)
    assert read(made_run(tmp_path / "old", halves()), draws=20).draws[0].images is None


def test_fresh_pairs_are_those_that_replicate_0_does_not_explain(tmp_path: Path) -> None:
    first, second = pairs(explained=0), pairs(seed=1, explained=1)
    scores = second.scores
    later = {name: f"test-{int(name[-5:]) + 50:05d}" for name in scores["image_id"].unique()}
    scores = pd.concat([first.scores, scores.assign(image_id=scores["image_id"].map(later))])
    e = read(made_run(tmp_path, first, second, scores=scores), draws=300)
    assert [of.fresh for of in e.draws.values()] == [False, True]
    assert [of.basis(PAIRS).images for of in e.draws.values()] == [IMAGES, 50]  # 10 of 60 were seen
    alone = read(made_run(tmp_path / "alone", second), draws=300)
    assert alone.draws[1].basis(PAIRS).images == IMAGES
    rows = claims(alone).claims.set_index("id")
    assert rows.loc[["Y4", "Y4b", "Y5.pairs"], "holds"].tolist() == ["yes"] * 3
    assert not read(made_run(tmp_path / "unknown", pairs(seed=1)), draws=20).draws[1].fresh


def test_pairs_of_other_pictures_are_another_reading(tmp_path: Path) -> None:
    rows = verdicts(tmp_path, halves(), pairs(kind="cifar10"))
    assert rows.loc["Y4b", "counted"] == "another reading of the paper: pairs of cifar10"
    assert rows.loc["Y2", "counted"] == "yes"


def test_twenty_copies_and_ten_cascades_are_averaged(tmp_path: Path) -> None:
    e = read(made_run(tmp_path, halves(copies=20, cascades=10)), draws=100)
    assert (answers(claims(e).claims.set_index("id"))[["Y1", "Y2"]] == "yes").all()
    means = e.means(0).query("quantity == 'spearman' and method == 'guided_backprop'")
    copies = means.set_index(["model", "against"])["copies"]
    assert copies["halves", "random"] == copies["random", "random"] == copies["digits_random", "random"] == 20
    assert copies["halves", "top_3"] == copies["digits", "top_1"] == 10
    row = tables(e)["argument"].set_index(["method", "measure"]).loc[("guided_backprop", "spearman")]
    assert [row[f"last_layers_{k}_t~"] for k in range(1, 5)] == pytest.approx([0.8, 0.7, 0.6, 0.5])
    lost = tables(e)["effects"].set_index(["effect", "method"])["value"]
    assert lost["halves: similarity of maps lost by training on t~", "gradient"] == pytest.approx(0.4)


# -- sanity checks -----------------------------------------------------------------------------------------------------

TRUTH = {"gradient": (0.2, 0.4), "edge": (1.0, 0.1), "unsure": (0.7, 0.1005)}


def test_sanity_checks_sort_the_methods_in_a_table_and_test_no_claim(tmp_path: Path) -> None:
    e = read(made_run(tmp_path, sanity(TRUTH)), draws=200)
    rows = claims(e).claims
    assert rows["id"].tolist() == [name for name, *_ in CLAIMS]
    assert (rows["holds"] == "not tested").all()
    table = tables(e)["sensitivity"].set_index(["method", "test"])
    found = table.loc[(slice(None), ["weights", "task"]), "verdict"]
    assert found.to_dict() == {
        ("gradient", "weights"): "sensitive",
        ("gradient", "task"): "sensitive",
        ("edge", "weights"): "insensitive",
        ("edge", "task"): "insensitive",
        ("unsure", "weights"): "uncertain",
        ("unsure", "task"): "sensitive",  # the noise is the same with both models: a paired difference is exact
    }
    assert table.loc[("gradient", "task"), ["value", "margin"]].tolist() == pytest.approx([0.4, 0.3])
    assert set(table.loc["edge"].index) == {"weights", "cascading_50", "independent_100", "task"}
    assert table.loc[("gradient", "cascading_50"), "verdict"] == "insensitive"


def test_sanity_checks_beside_the_papers_experiments_change_no_claim(tmp_path: Path) -> None:
    alone = verdicts(tmp_path / "alone", shapes())
    beside = verdicts(tmp_path / "beside", shapes(), sanity({"gradient": (0.2, 0.4)}, kind="mnist_shapes"))
    pd.testing.assert_frame_equal(alone, beside)
