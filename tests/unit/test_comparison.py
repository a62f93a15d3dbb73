"""Comparisons with known answers: ranks, groups, the random control, agreement, doubts; and what is read of runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from salrun.errors import SalrunError
from salrun.results.comparison import compare, compare_runs, experiment_matrix, write_comparison
from salrun.results.run import Run
from salrun.results.tables import KEY
from salrun.results.trust import doubts, doubts_about, highest_by_chance
from salrun.stats.comparison import fewest_images, groups_of, metric_agreement, rank_methods
from salrun.stats.ranks import holm
from tests.fake_run import make_run, save_run

N = 40


def scores(**means: float) -> pd.DataFrame:
    """Images x methods: a common part per image, the method's mean, and a little of its own."""
    rng = np.random.default_rng(1)
    image = rng.normal(0, 1, N)  # large, so that only paired differences tell the methods apart
    return pd.DataFrame({m: image + mean + rng.normal(0, 0.1, N) for m, mean in means.items()})


def test_methods_are_ranked_and_told_apart_by_paired_differences() -> None:
    ranking = rank_methods(scores(a=0.0, b=1.0, c=1.001, random=0.0), "higher", ["random"])
    assert [s.method for s in ranking.methods] == ["c", "b", "a"] or ranking.methods[2].method == "a"
    assert [s.rank for s in ranking.methods] == [1, 2, 3]
    assert {*ranking.best} == {"b", "c"} and ranking.groups[1] == ("a",)
    assert [s.method for s in ranking.controls] == ["random"] and np.isnan(ranking["random"].rank)
    assert (
        ranking["b"].gain.verdict == "better"
        and ranking["a"].gain.verdict == "alike"
        and ranking["random"].gain.verdict == ""
    )
    assert ranking["b"].gain.mean == pytest.approx(1.0, abs=0.1)
    assert ranking["b"].gain.low < 1.0 < ranking["b"].gain.high
    assert ranking["b"].high - ranking["b"].low > 5 * (ranking["b"].gain.high - ranking["b"].gain.low)


def test_less_is_better_turns_everything_but_the_means_round() -> None:
    table = scores(a=0.0, b=1.0, random=0.5)
    up, down = (rank_methods(table, way, ["random"]) for way in ("higher", "lower"))
    assert [s.method for s in up.methods] == ["b", "a"] and [s.method for s in down.methods] == ["a", "b"]
    assert (up["a"].gain.verdict, up["b"].gain.verdict) == ("worse", "better")
    assert (down["a"].gain.verdict, down["b"].gain.verdict) == ("better", "worse")
    assert up["a"].mean == down["a"].mean and up["a"].gain.mean == pytest.approx(-down["a"].gain.mean)


def test_holm_is_over_the_methods_and_controls_have_their_own() -> None:
    """Ten images that all prefer the method: p = 2 / 2^10 each, times the number of tests."""
    gains = np.arange(1.0, 11.0)
    table = pd.DataFrame({"a": gains, "b": gains + 0.5, "c": gains, "edge": gains, "random": 0.0})
    ranking = rank_methods(table, "higher", ["edge", "random"])
    for method, tests in {"a": 3, "edge": 1}.items():
        assert ranking[method].gain.p_holm == pytest.approx(tests * 2 / 2**10, rel=0.3)
    assert ranking["a"].rank == ranking["c"].rank == 2.5  # equal means share


def test_equal_scores_are_alike() -> None:
    table = pd.DataFrame({"a": np.arange(9.0), "b": np.arange(9.0), "random": np.arange(9.0)})
    ranking = rank_methods(table, "higher", ["random"])
    assert ranking.groups == (("a", "b"),) and {s.gain.verdict for s in ranking.methods} == {"alike"}
    assert ranking["a"].gain.p_holm == 1


def test_differences_are_over_common_images_and_missing_scores_are_not_zero() -> None:
    table = scores(a=1.0, random=0.0)
    table.loc[:29, "a"] = np.nan
    a = rank_methods(table, "higher", ["random"])["a"]
    assert a.n == 10 and a.gain.mean == pytest.approx((table["a"] - table["random"]).dropna().mean())
    assert a.mean == pytest.approx(table["a"].mean())
    nothing = rank_methods(table.assign(a=np.nan, b=1.0), "higher", ["random"])
    assert [s.method for s in nothing.methods] == ["b"] and nothing.groups == (("b",),)


def test_groups_are_runs_of_neighbours() -> None:
    different = {frozenset(p) for p in ("ac", "ad", "bd")}
    assert groups_of("abcd", different) == (("a", "b"), ("b", "c"), ("c", "d"))
    assert groups_of("abc", set()) == (("a", "b", "c"),)
    assert groups_of("abc", {frozenset("ab"), frozenset("bc")}) == (("a",), ("b",), ("c",))


def test_the_false_decisions_against_random_stay_below_five_in_a_hundred() -> None:
    """Five methods that are as good as random, many times: Holm keeps the share of runs with any verdict below .05."""
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(60):
        table = pd.DataFrame(rng.normal(size=(20, 6)), columns=[*"abcde", "random"])
        wrong += any(s.gain.verdict != "alike" for s in rank_methods(table, "higher", ["random"]).methods)
    assert wrong <= 7  # 60 x .05 = 3; 8 or more has a probability of .01


def test_few_images_cannot_tell() -> None:
    for tests in (1, 3, 15):
        n = fewest_images(tests)
        assert holm([2.0 ** (1 - n)] * tests)[0] <= 0.05 < holm([2.0 ** (2 - n)] * tests)[0]


def test_metrics_agree_or_do_not() -> None:
    one = pd.DataFrame(np.arange(3.0) + np.zeros((8, 1)), columns=[*"abc"])
    table = metric_agreement({"x": (one, "higher"), "y": (one, "lower"), "z": (-one, "lower")})
    assert table["on_average"].tolist() == [-1, 1, -1] and table["within_images"].tolist() == [-1, 1, -1]
    two = metric_agreement({"x": (one[["a", "b"]], "higher"), "y": (one[["a", "b"]], "lower")})
    assert two["on_average"].isna().all()


# -- runs --------------------------------------------------------------------------------------------------------------


def test_a_run_is_compared(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", n_images=60, methods=["gradient", "grad_cam", "lime", "random", "edge"])
    (answer,) = compare(run)
    assert {*answer.methods} == {"gradient", "grad_cam", "lime"} and {*answer.controls} == {"random", "edge"}
    assert [j.metric for j in answer.shown] == ["pafl", "safl", "piou", "insertion", "deletion"]  # none has no order
    assert answer.images == 60 and answer.models == 1 and answer.has_random
    ranks = [{s.method: s.rank for s in j.ranking.methods} for j in answer.shown]
    assert answer.mean_ranks["lime"] == pytest.approx(np.mean([r["lime"] for r in ranks]))
    assert list(answer.mean_ranks.values()) == sorted(answer.mean_ranks.values())
    assert answer["pafl"] is answer.metrics[0] and len(answer.agreement) == 10
    frame = answer.frame()
    summary = pd.read_csv(run / "tables" / "summary.csv")
    told = summary[(summary["group"] == "(all)") & (summary["metric"] == "piou")].set_index("method")
    ours = frame[frame["metric"] == "piou"].set_index("method")
    for column in ("mean", "ci_low", "ci_high", "n"):  # the same numbers as the run's summary
        np.testing.assert_allclose(ours[column], told.loc[ours.index, column], rtol=1e-8)
    with pytest.raises(SalrunError, match="unknown metric 'pafll'; did you mean pafl code"):
        _ = answer["pafll"]


def seeds_and_experiments() -> pd.DataFrame:
    """Two experiments, the first with two seeds: a beats b in the first, b beats a in the second."""
    rows = []
    for experiment, seed, lead in (("one", 0, 1.0), ("one", 1, 1.0), ("two", 0, -1.0)):
        table = scores(a=lead, b=0.0, random=-2.0)
        long = table.rename_axis("image_id").reset_index().melt("image_id", var_name="method")
        named = {"experiment": experiment, "dataset": "d", "model": experiment, "seed": seed, "scale": "smoke"}
        rows.append(long.assign(**named, group="g", metric="m", image_id=long["image_id"].astype(str)))
    return pd.concat(rows, ignore_index=True)


def test_seeds_are_joined_and_experiments_are_a_matrix(tmp_path: Path) -> None:
    run = save_run(tmp_path / "run", seeds_and_experiments(), controls=["random"])
    one, two = compare(run)
    assert (one.images, one.models, two.images, two.models) == (2 * N, 2, N, 1)
    assert one.methods == ("a", "b") and two.methods == ("b", "a")
    assert one.title == "one on d"  # of no paper: its data and model
    assert one["m"].ranking["a"].gain.mean == pytest.approx(3, abs=0.1)
    matrix = experiment_matrix([one, two])
    assert matrix.loc["mean"].to_dict() == {"a": 1.5, "b": 1.5} and matrix.loc["two on d", "b"] == 1
    twins = save_run(tmp_path / "twins", seeds_and_experiments().assign(model="net"), controls=["random"])
    assert [c.title for c in compare(twins)] == ["net on d, experiment=one", "net on d, experiment=two"]


def test_runs_made_before_the_numerics_were_told_are_joined(tmp_path: Path) -> None:
    both = seeds_and_experiments().query("experiment == 'one'")
    told = {"precision": "float32", "numerics": "exact"}
    runs = []
    for seed, facts in ((0, {}), (1, told)):
        rows = both[both["seed"] == seed].assign(cell=f"c{seed}")
        cells = rows[KEY].drop_duplicates().assign(role="model", source="shipped", **facts)
        runs.append(save_run(tmp_path / str(seed), rows, cells=cells, controls=["random"]))
    (joined,) = compare(*runs)
    assert joined.models == 2 and joined.title == "one on d"


def test_notes_say_what_a_reader_must_know(tmp_path: Path) -> None:
    table = seeds_and_experiments()
    table = table[(table["experiment"] == "two") & (table["method"] != "random") & (table["image_id"].str.len() == 1)]
    views = table["method"].map({"a": "sum", "b": "max_abs"})
    (answer,) = compare(save_run(tmp_path / "run", table.assign(view=views)))
    assert answer.notes == [
        "no `random` control in this run: nothing says what a random map would score",
        "each method is read through its own view, by view=method: max_abs, sum (column view)",
    ]
    assert {s.gain.verdict for s in answer["m"].ranking.methods} == {""}
    few = table[table["image_id"].isin([*"012"])].assign(view="sum")
    (answer,) = compare(save_run(tmp_path / "few", few))
    assert answer.notes[1] == "3 images cannot tell 2 methods from random: it takes 7"


def test_what_has_no_score_is_named_and_controls_alone_are_no_comparison(tmp_path: Path) -> None:
    table = seeds_and_experiments().query("experiment == 'two'")
    gone = table.assign(value=table["value"].where(table["method"] != "b"))
    (answer,) = compare(save_run(tmp_path / "run", gone, controls=["random"]))
    assert answer.unscored == ("b",) and answer.notes == ["no score is defined of b"]
    assert answer.sentence == "a is the only method; better than a random map, of 1: 1 under m"
    alone = save_run(tmp_path / "alone", table[table["method"] == "random"], controls=["random"])
    with pytest.raises(SalrunError, match="nothing to compare"):
        compare(alone)
    assert compare_runs([Run(alone)], none=True) == []


def test_sentences_name_the_leaders(tmp_path: Path) -> None:
    one, _ = compare(save_run(tmp_path / "run", seeds_and_experiments(), controls=["random"]))
    assert one.sentence == "a is best under m; better than a random map, of 2: 2 under m"
    table = seeds_and_experiments().query("experiment == 'two'")
    other = table.assign(metric="n", value=-table["value"])
    both = save_run(tmp_path / "both", pd.concat([table, other]), controls=["random"])
    (answer,) = compare(both)
    assert answer.sentence.startswith("no method leads under m and n; a does under n; better than a random map, of 2: ")
    counts = {m: sum(s.gain.verdict == "better" for s in answer[m].ranking.methods) for m in ("m", "n")}
    assert counts["m"] != counts["n"]
    assert answer.sentence.endswith(f"of 2: {counts['m']} under m, {counts['n']} under n")
    twin = table.query("method != 'a'")
    twins = pd.concat([twin, twin.query("method == 'b'").assign(method="a")])
    (alike,) = compare(save_run(tmp_path / "alike", twins, controls=["random"]))
    assert alike.sentence.startswith(
        "the 2 methods cannot be told apart under m; better than a random map, of 2: 2 under m"
    )


def test_a_collected_run_remembers_the_doubts(tmp_path: Path) -> None:
    accuracies = pd.DataFrame([{"cell": "c", "in_doubt": "of 9 images only", "what": "accuracy", "group": "(all)"}])
    table = seeds_and_experiments().query("experiment == 'two'").assign(cell="c")
    run = save_run(tmp_path / "run", table, accuracies=accuracies, controls=["random"])
    assert doubts_about(Run(run)) == ["of 9 images only"]


def test_the_tables_are_equal_byte_by_byte(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", n_images=30, methods=["gradient", "lime", "random"])
    for name in ("one", "two"):
        write_comparison(compare(run), tmp_path / name)
    for name in ("methods.csv", "pairs.csv", "agreement.csv"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_doubts_about_a_model() -> None:
    good = {"accuracy": 0.99, "n": 1000, "classes": 10, "gate": {"accuracy": 0.9}, "passed": True}
    assert doubts(good) == []
    assert doubts({**good, "accuracy": 0.11}) == ["accuracy 0.11 is chance level (10 classes)"]
    assert doubts({**good, "n": 49}) == ["its accuracy is of 49 images only"]
    assert doubts({**good, "gate": {}}) == ["no accuracy was asked for (model.gate)"]
    assert doubts({**good, "passed": False, "reason": "accuracy .8 < .9"}) == ["accuracy .8 < .9"]
    seen = pd.DataFrame({"image_id": [*"abc"], "label": [0, 1, 2], "prediction": 1})
    assert doubts(good, seen) == ["it predicts one class for all 3 images"]
    assert doubts(good, seen.assign(label=1)) == []
    assert highest_by_chance(100, 2) == pytest.approx(0.598)
