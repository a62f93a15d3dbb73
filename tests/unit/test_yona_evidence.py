"""Runs of Yona & Greenfeld 2021, read by the facts of their models: means, copies, seeds, what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from salrun.errors import SalrunError
from salrun.papers.yona.evidence import (
    FACTS,
    GBP,
    HALVES,
    LEVELS,
    PAIRS,
    SANITY,
    SHAPES,
    SIMILARITIES,
    experiment_of,
    mean_of,
    named,
    read,
)
from salrun.papers.yona.tables import tables
from tests.yona_run import IMAGES, METHODS, Made, halves, made_run, pairs, sanity, shapes

NOTHING = {**dict.fromkeys(FACTS), "role": "other"}


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        ({"role": "model"}, "trained"),
        ({}, "other"),
        ({"model.task.kind": "mnist"}, "digits"),
        ({"model.randomised": "untrained"}, "random"),
        ({"model.randomised": "untrained", "model.starts_from": "w.pth"}, "pretrained"),
        ({"model.randomised": "all", "model.starts_from": "w.pth"}, "random"),
        ({"model.randomised": "untrained", "model.task.kind": "mnist"}, "digits_random"),
        ({"model.randomised": "cascading", "model.top": 3.0, "model.task.kind": "mnist"}, "digits_top_3"),
        ({"model.randomised": "cascading", "model.share": 0.55}, "cascading_55"),
        ({"model.randomised": "independent", "model.share": 1.0}, "independent_100"),
        ({"model.randomised": "independent", "model.top": 2.0}, "independent_top_2"),
    ],
)
def test_models_are_called_by_their_facts(facts: dict, name: str) -> None:
    assert named({**NOTHING, **facts}, "trained")["name"] == name


@pytest.mark.parametrize(
    ("kind", "modes", "experiment"),
    [
        ("mnist_halves", ["untrained", "cascading", None], HALVES),
        ("mnist_shapes", ["untrained", None], SHAPES),
        ("mnist_shapes", ["all", "cascading", None], SANITY),
        ("mnist_shapes", [None], SHAPES),
        ("cifar10_pairs", ["untrained"], PAIRS),
        ("imagenet", ["untrained"], SANITY),
        (np.nan, ["all"], SANITY),
    ],
)
def test_an_experiment_is_what_its_data_and_models_make(kind: str, modes: list, experiment: str) -> None:
    assert experiment_of(pd.DataFrame({"dataset.kind": kind, "model.randomised": modes})) == experiment


def test_a_battery_of_any_name_is_read_like_ours(tmp_path: Path) -> None:
    truth = {"gradient": (0.2, 0.4)}
    theirs = sanity(truth, {"random": "noise", "cascading_50": "upper half", "independent_100": "x"}, experiment="mine")
    first = tables(read(made_run(tmp_path / "ours", sanity(truth)), draws=50))
    second = tables(read(made_run(tmp_path / "theirs", theirs), draws=50))
    pd.testing.assert_frame_equal(first["sensitivity"], second["sensitivity"])
    assert set(second["similarity"]["experiment"]) == {"mine"}
    assert set(first["similarity"]["against"]) == set(second["similarity"]["against"])


def test_means_say_how_far_the_untrained_copies_are_apart(tmp_path: Path) -> None:
    means = read(made_run(tmp_path, halves()), draws=50).means(0).set_index(LEVELS)
    row = means.loc[(HALVES, "spearman", GBP, "halves", "random")]
    assert (row["copies"], row["images"]) == (3, IMAGES)
    assert [row["lowest_copy"], row["highest_copy"]] == pytest.approx([0.49, 0.51])
    causal = means.loc[(HALVES, "lambda_unit", GBP, "all tasks")]
    assert causal["value"].round(6).to_dict() == {"nothing": 0.3, "trained": 0.8}
    assert set(means.loc[(HALVES, "spearman", GBP, "digits_random")].index) == {"random"}


def test_what_fine_tuning_changed_is_told_from_training(tmp_path: Path) -> None:
    causal = tables(read(made_run(tmp_path, pairs()), draws=50))["causal"]
    assert set(causal["against"]) == {"pretrained"}
    assert causal["value"].to_numpy() == pytest.approx([0.4] * len(METHODS))


def test_missing_scores_are_left_out_not_counted(tmp_path: Path) -> None:
    made = shapes()
    scores = made.scores
    missing = scores["image_id"] < "test-00030"
    expected = scores[~missing & (scores["model"] == "mnist_cnn") & (scores["mode"] == "primary")]
    expected = expected[(expected["method"] == GBP) & (expected["score"] == "")]
    scores.loc[missing, "value"] = np.nan
    e = read(made_run(tmp_path, made, scores=scores), draws=50)
    value = mean_of(e.draws[0], SHAPES, "mass", GBP, "shapes", "primary").iloc[0]
    assert value == pytest.approx(expected["value"].mean())
    table = tables(e)["mass"]
    assert (table["images"] == 30).all()
    assert table["times_chance"].to_numpy() == pytest.approx((table["value"] / table["chance"]).to_numpy())


def test_seeds_are_read_apart(tmp_path: Path) -> None:
    e = read(made_run(tmp_path, halves(), halves(on_t=0.8, seed=1)), draws=20)
    assert list(e.draws) == [0, 1]
    assert mean_of(e.draws[1], HALVES, "spearman", GBP, "digits", "random").iloc[0] == pytest.approx(0.8)
    assert set(tables(e)["similarity"]["seed"]) == {0, 1}


def test_scores_of_other_metrics_are_refused_in_a_sentence(tmp_path: Path) -> None:
    made = halves()
    with pytest.raises(SalrunError, match="hold none of yona_mnist_halves"):
        read(made_run(tmp_path, made, scores=made.scores[:5].assign(metric="insertion")))


def test_two_models_of_one_experiment_are_refused(tmp_path: Path) -> None:
    other = Made(HALVES, "mnist_halves", "another")
    other.mass("model", GBP, 0.5)
    with pytest.raises(SalrunError, match="one model and its others are expected, got another, mnist_cnn"):
        read(made_run(tmp_path, other, halves()))


def test_two_models_with_the_same_facts_are_refused(tmp_path: Path) -> None:
    made = halves()
    made.model("letters", **{"model.task.kind": "letters"})
    with pytest.raises(SalrunError, match="models with different facts are expected, got digits, letters"):
        read(made_run(tmp_path, made))


def test_two_views_of_one_score_are_refused(tmp_path: Path) -> None:
    made = halves()
    both = pd.concat([made.scores, made.scores.assign(view="max_abs")])
    with pytest.raises(SalrunError, match="one view at a time"):
        read(made_run(tmp_path, made, scores=both))


def test_one_mode_with_two_meanings_is_refused(tmp_path: Path) -> None:
    made = halves()
    made.metrics["mass_share", "again"] = {**made.metrics["mass_share", "primary"], "options": {"role": "secondary"}}
    with pytest.raises(SalrunError, match="what mass_share primary compares differs between the runs"):
        read(made_run(tmp_path, made))


def test_options_of_runs_with_other_models_say_nothing_here(tmp_path: Path) -> None:
    made = pairs()
    foreign = {**made.metrics["causal_quantity", next(m for n, m in made.metrics if n == "causal_quantity")]}
    foreign["options"] = {"of": "model", "tasks": {"model": 1.0}, "untrained": {"model": "not here"}}
    made.metrics["causal_quantity", "foreign"] = foreign
    assert len(tables(read(made_run(tmp_path, made), draws=20))["causal"]) == len(METHODS)


def test_the_argument_is_one_table(tmp_path: Path) -> None:
    table = tables(read(made_run(tmp_path, halves()), draws=200))["argument"].set_index(["method", "measure"])
    assert len(table) == 2 * len(SIMILARITIES)
    row = table.loc[(GBP, "spearman")]
    assert (row["test_t"], row["test_t~"]) == ("fails", "passes")
    assert row["value_t"] == pytest.approx(0.9)
    assert row["value_t~"] == pytest.approx(0.5)
    assert row["value_t_minus_t~"] == pytest.approx(0.4)
    assert row["between_untrained_t"] == pytest.approx(0.9)
    assert [row[f"last_layers_{k}_t~"] for k in range(1, 5)] == pytest.approx([0.8, 0.7, 0.6, 0.5])
    assert [row["mass_halves"], row["mass_digits"], row["mass_random"], row["mass_chance"]] == pytest.approx(
        [0.8, 0.55, 0.5, 0.5]
    )
    assert row["ci_low_t"] < row["value_t"] < row["ci_high_t"]
    assert [row["value_moved_t"], row["value_moved_t~"]] == pytest.approx([0.05, 0.3])
    assert (row["test_moved_t"], row["test_moved_t~"]) == ("fails", "passes")
