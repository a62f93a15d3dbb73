"""Krippendorff's alpha, correlations and the `reliability` tool."""

import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from salrun.cli import main as cli
from salrun.errors import SalrunError
from salrun.report.reliability import reliability, reliability_report
from salrun.results.scored import Scored, read_runs
from salrun.results.tables import directions_of
from salrun.stats.bootstrap import resamples
from salrun.stats.ranks import kendall_w
from salrun.stats.reliability import (
    RULE,
    agreement,
    alpha,
    alpha_draws,
    alpha_of_counts,
    alpha_verdict,
    inter_method,
    internal_consistency,
    mean_pairwise,
    rankings,
    spearman_draws,
    wide,
)
from salrun.store.files import shown
from tests.fake_run import save_run
from tests.toys import rng

NAN = np.nan
# Krippendorff's own example (2011): four raters, twelve units, values missing.
TEXTBOOK = np.array(
    [
        [1, 2, 3, 3, 2, 1, 4, 1, 2, NAN, NAN, NAN],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, NAN, 3],
        [NAN, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, NAN],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, NAN],
    ]
)


def untidy(images, methods, seed=0, ties=5, missing=0.15):
    """Scores with ties and holes."""
    scores = rng(seed).integers(0, ties, size=(images, methods)).astype(float)
    scores[rng(seed + 1).random(scores.shape) < missing] = NAN
    return scores


def counts_of(ranks):
    values = np.unique(ranks[~np.isnan(ranks)])
    return (ranks[:, :, None] == values).sum(axis=0)


def test_rankings_put_the_highest_first_share_ties_and_keep_holes():
    scores = np.array([[3.0, 1.0, 2.0], [5.0, 5.0, 0.0], [NAN, 1.0, 4.0], [NAN, NAN, 7.0]])
    expected = [[1, 3, 2], [1.5, 1.5, 3], [NAN, 2, 1], [NAN, NAN, NAN]]
    np.testing.assert_array_equal(rankings(scores), expected)


def test_rankings_equal_scipy_row_by_row():
    scores = untidy(200, 6)
    for row, ranked in zip(scores, rankings(scores), strict=True):
        known = ~np.isnan(row)
        if known.sum() >= 2:
            np.testing.assert_array_equal(ranked[known], stats.rankdata(-row[known]))


def test_textbook_alpha():
    assert alpha(TEXTBOOK) == pytest.approx(0.815, abs=5e-4)
    assert float(alpha_of_counts(counts_of(TEXTBOOK))) == pytest.approx(alpha(TEXTBOOK), abs=1e-14)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 40), st.integers(2, 7), st.integers(2, 6), st.floats(0, 0.5), st.integers(0, 10_000))
def test_count_form_equals_the_package(images, methods, ties, missing, seed):
    ranks = rankings(untidy(images, methods, seed, ties, missing))
    if np.isnan(ranks).all():
        return
    np.testing.assert_allclose(alpha_of_counts(counts_of(ranks)), alpha(ranks), atol=1e-12)


def test_without_ties_alpha_is_a_function_of_kendalls_w():
    images, methods = 50, 5
    ranks = rankings(rng().normal(size=(images, methods)) + np.arange(methods) / 3)
    expected = 1 - (1 - kendall_w(ranks)) * (images * methods - 1) / (methods * (images - 1))
    assert alpha(ranks) == pytest.approx(expected, abs=1e-14)


def test_images_are_the_raters():
    ranks = rankings(rng().normal(size=(30, 4)) + np.arange(4))
    assert alpha(ranks) != pytest.approx(alpha(ranks.T), abs=0.05)


def test_alpha_of_agreement_of_chance_and_of_nothing():
    assert alpha(np.tile([1.0, 2.0, 3.0], (20, 1))) == 1.0
    assert abs(alpha(rankings(rng().normal(size=(5_000, 5))))) < 0.005
    assert np.isnan(alpha(np.full((20, 3), 2.0)))
    assert np.isnan(alpha(np.full((20, 3), NAN)))
    assert np.isnan(alpha_of_counts(np.array([[20.0], [20.0]])))


def test_a_method_ranked_by_one_image_is_no_evidence():
    ranks = np.array([[1, 2, 3], [1, 2, NAN], [2, 1, NAN], [1, 2, NAN]])
    assert float(alpha_of_counts(counts_of(ranks))) == pytest.approx(alpha(ranks), abs=1e-14)
    assert np.isnan(alpha(np.array([[1.0, 2.0], [NAN, NAN]])))


def alpha_of_different_images(ranks, counts):
    """Krippendorff's alpha of a resample by its definition, over pairs of ratings by different images, in loops."""
    rater = np.repeat(np.arange(len(ranks)), counts)
    drawn = ranks[rater]

    def pairs(unit):
        of = [(r, v) for r, v in zip(rater, drawn[:, unit], strict=True) if not np.isnan(v)]
        return [(a, b) for i, a in of for j, b in of if i != j], len(of)

    units = [u for u in range(ranks.shape[1]) if pairs(u)[0]]
    values, n_v = np.unique(drawn[:, units][~np.isnan(drawn[:, units])], return_counts=True)
    middle = dict(zip(values, np.cumsum(n_v) - n_v / 2, strict=True))
    observed = total = 0.0
    for u in units:
        found, n_u = pairs(u)
        observed += n_u * np.mean([(middle[a] - middle[b]) ** 2 for a, b in found])
        total += n_u
    ratings = [(r, u, drawn[k, u]) for k, r in enumerate(rater) for u in units if not np.isnan(drawn[k, u])]
    expected = [(middle[a] - middle[b]) ** 2 for i, u, a in ratings for j, w, b in ratings if (i, u) != (j, w)]
    return 1 - observed / total / np.mean(expected)


def test_each_draw_is_alpha_over_pairs_of_different_images():
    first, second = rankings(untidy(9, 5, 1)), rankings(untidy(9, 4, 2, ties=100, missing=0.0))
    draws = alpha_draws([first, second], rng(3), 12)
    for (_, counts), drawn in zip(_one_by_one(9, 12, 3), draws, strict=True):
        for ranks, value in zip((first, second), drawn, strict=True):
            assert value == pytest.approx(alpha_of_different_images(ranks, counts), abs=1e-12)
    once = np.ones(9, dtype=int)
    assert alpha_of_different_images(first, once) == pytest.approx(alpha(first), abs=1e-12)


def test_images_that_are_split_evenly_have_alpha_inside_its_interval():
    """Twelve images, five methods, six of them swap the last two: counting an image's pairs with itself, no draw was
    below alpha."""
    ranks = np.tile([1.0, 2.0, 3.0, 4.0, 5.0], (12, 1))
    ranks[:6, 3:] = [5.0, 4.0]
    drawn = alpha_draws([ranks], rng(), 4_000)[:, 0]
    assert (drawn < alpha(ranks)).mean() > 0.2
    assert drawn.mean() == pytest.approx(alpha(ranks), abs=1e-3)  # it was 4.5e-3 too high


def test_the_interval_of_chance_does_not_lie_above_zero():
    """Rankings at random have alpha 0; with pairs of an image and itself one 95% interval in nine lay above it."""
    above = 0
    for trial in range(200):
        ranks = rankings(rng(trial).normal(size=(12, 5)))
        above += np.quantile(alpha_draws([ranks], rng(trial), 300), 0.025) > 0
    assert above <= 12  # 2.5% would be 5


def _one_by_one(n, draws, seed):
    for block, counts in resamples(n, draws, rng(seed)):
        yield from zip(range(block.start, block.stop), counts, strict=True)


def test_the_bootstrap_interval_contains_alpha():
    ranks = rankings(rng().normal(size=(500, 5)) + np.arange(5) / 2)
    low, high = np.quantile(alpha_draws([ranks], rng(1), 2_000), [0.0005, 0.9995])
    assert low < alpha(ranks) < high
    assert high - low < 0.15


def test_ten_thousand_bootstraps_of_ten_thousand_images_are_quick():
    ranks = rankings(rng().normal(size=(10_000, 5)))
    start = time.process_time()
    draws = alpha_draws([ranks], rng(1), 10_000)
    assert draws.shape == (10_000, 1)
    assert time.process_time() - start < 5


def test_spearman_draws_equal_spearman_of_the_resample():
    first, second = untidy(60, 3, 1, ties=8, missing=0.1), rng(2).normal(size=(60, 3))
    draws = spearman_draws(first, second, rng(3), 25)
    for (_, counts), drawn in zip(_one_by_one(60, 25, 3), draws, strict=True):
        for x, y, rho in zip(first.T, second.T, drawn, strict=True):
            both = np.repeat(np.stack([x, y]), counts, axis=1)
            both = both[:, ~np.isnan(both).any(axis=0)]
            assert rho == pytest.approx(stats.spearmanr(*both).statistic, abs=1e-12)


def test_spearman_draws_of_a_constant_are_undefined():
    assert np.isnan(spearman_draws(np.ones((9, 1)), np.arange(9.0)[:, None], rng(), 5)).all()


def test_inter_method_is_pairwise_complete():
    scores = pd.DataFrame({"a": [1, 2, 3, 4, NAN], "b": [1, 2, 3, 4, 0], "c": [4, 3, 2, 1, 9.0]})
    matrix = inter_method(scores)
    assert matrix.loc["a", "b"] == pytest.approx(1.0)
    assert matrix.loc["a", "c"] == pytest.approx(-1.0)
    assert matrix.loc["b", "c"] == pytest.approx(stats.spearmanr(scores["b"], scores["c"]).statistic)
    expected = (matrix.loc["a", "b"] + matrix.loc["a", "c"] + matrix.loc["b", "c"]) / 3
    assert mean_pairwise(matrix) == pytest.approx(expected)


def test_internal_consistency_turns_lower_is_better_round():
    up = pd.DataFrame({"m": [1.0, 2.0, 3.0, 4.0]})
    table = internal_consistency({"good": (up, "higher"), "bad": (-up, "lower"), "also": (-up, "lower")})
    assert table["raw"].tolist() == pytest.approx([-1, -1, 1])
    assert table["aligned"].tolist() == pytest.approx([1, 1, 1])


def test_agreement_of_rankings():
    ranks = pd.DataFrame(rankings(rng().normal(size=(20, 4))), columns=list("abcd"))
    assert agreement(ranks, ranks) == pytest.approx((1.0, 1.0))
    assert agreement(ranks, 5 - ranks) == pytest.approx((-1.0, -1.0))


@pytest.mark.filterwarnings("error")
def test_agreement_with_a_metric_that_is_undecided_is_undefined():
    ranks = pd.DataFrame(rankings(rng().normal(size=(20, 4))), columns=list("abcd"))
    assert np.isnan(agreement(ranks, ranks * 0 + 2.5)).all()


def table(values, metric="aopc_morf", mode="", score="mean_L20", view="sum", seed=0, views=None, groups="ab"):
    """A score table from images x methods."""
    rows = []
    for i, row in enumerate(values):
        for method, value in zip("pqrs", row, strict=False):
            of = view if views is None else views[method]
            rows.append(("e", "d", "m", seed, groups[i % 2], f"{i:03d}", method, metric, mode, score, of, value))
    columns = "experiment dataset model seed group image_id method metric mode score view value"
    return pd.DataFrame(rows, columns=columns.split())


def scored(scores, direction="higher", confidence=1.0):
    images = scores[["experiment", "dataset", "model", "seed", "image_id", "group"]].drop_duplicates()
    named = scores[["metric", "mode", "score"]].drop_duplicates().itertuples(index=False, name=None)
    return Scored(scores, images.assign(confidence=confidence), {name: direction for name in named})


def test_a_series_joins_methods_of_different_views():
    views = {"p": "sum", "q": "abs", "r": "sum", "s": "sum"}
    ((keys, matrix),) = wide(table(rng().random((5, 4)), score="mean", views=views))
    assert (keys["score"], keys["view"]) == ("mean", "")
    assert matrix.shape == (5, 4)
    assert matrix.notna().all(axis=None)


def test_two_views_of_one_method_are_two_series():
    values = rng().random((5, 4))
    both = pd.concat([table(values, view="sum"), table(-values, view="abs")], ignore_index=True)
    found = {keys["view"]: matrix for keys, matrix in wide(both)}
    assert sorted(found) == ["abs", "sum"]
    assert (found["abs"].to_numpy() == -found["sum"].to_numpy()).all()


def test_the_tool_reports_every_table(tmp_path):
    truth = rng().normal(size=(60, 4)) + np.arange(4)
    noise = rng(1).normal(size=(60, 4))
    noise[3, 2] = NAN
    scores = pd.concat(
        [
            table(truth, "pafl", "code", ""),
            table(-truth, "deletion", "", ""),
            table(noise, "insertion", "", ""),
            table(np.repeat(truth[:, :1], 4, axis=1), "aopc_morf", "", "mean_L20_random"),
        ],
        ignore_index=True,
    )
    sure = pd.DataFrame({"image_id": [f"{i:03d}" for i in range(60)], "confidence": np.linspace(0.5, 1, 60)})
    for seed in (0, 1):
        save_run(tmp_path / str(seed), scores.assign(seed=seed), {"deletion": "lower"}, sure)
    text = reliability_report([tmp_path / "0", tmp_path / "1"], tmp_path / "out", draws=300)
    names = {"agreement", "comparisons", "consistency", "groups", "inter_method", "ranks", "reliability", "seeds"}
    assert {p.stem for p in (tmp_path / "out").glob("*.csv")} == names
    made = {name: pd.read_csv(tmp_path / "out" / f"{name}.csv") for name in names}

    found = made["reliability"].query("seed == 0").set_index("metric")
    assert sorted(found.index) == ["deletion", "insertion", "pafl"]  # a baseline shared by all methods is no judge
    assert found.loc["pafl", "alpha"] == pytest.approx(alpha(rankings(truth)))
    assert found.loc["deletion", "alpha"] == pytest.approx(found.loc["pafl", "alpha"])
    assert found.loc["deletion", "best"] == "s"
    assert found.loc["insertion", "n_missing"] == 1
    assert found.loc["insertion", "verdict"] == "unreliable"

    agreed = made["agreement"].query("seed == 0").set_index("metric")
    assert agreed.loc["deletion", "within_images"] == pytest.approx(1.0)
    assert abs(agreed.loc["insertion", "within_images"]) < 0.4
    subsets = made["groups"].query("seed == 0 and metric == 'pafl' and method == 'p'").set_index("subset")
    assert subsets.loc["low confidence", "images"] == 36
    assert subsets.loc["group a", "images"] == 30
    assert subsets.loc["group a", "aligned_mean"] == pytest.approx(truth[::2, 0].mean())
    assert (made["seeds"].query("series == 'pafl code'")["kendall_w"] == 1.0).all()
    assert "unreliable" in text
    assert "ground truth" in text


def test_missing_scores_become_zero_only_when_asked():
    values = rng().normal(size=(30, 3)) + 5
    values[:10, 0] = NAN
    kept = reliability(scored(table(values)), draws=50)["reliability"]
    zeroed = reliability(scored(table(values)), draws=50, nan_to_zero=True)["reliability"]
    assert kept["n_missing"].item() == 10
    assert kept["alpha"].item() == pytest.approx(alpha(rankings(values)))
    assert zeroed["alpha"].item() == pytest.approx(alpha(rankings(np.nan_to_num(values))))
    assert kept["alpha"].item() != zeroed["alpha"].item()


def test_errors_are_sentences(tmp_path):
    with pytest.raises(SalrunError, match=r"no tables/scores\.parquet"):
        read_runs([tmp_path])
    with pytest.raises(SalrunError, match="at least one run"):
        read_runs([])
    with pytest.raises(SalrunError, match="two methods"):
        reliability_report([save_run(tmp_path / "run", table(np.ones((3, 1))))], tmp_path / "out")


def test_a_score_or_mode_that_points_the_other_way_is_turned():
    """`complete` of completeness, and one metric on primary and on secondary objects."""
    metrics = [
        {"metric": "completeness", "mode": "a", "direction": "lower", "turned": ["complete"]},
        {"metric": "pointing_game", "mode": "primary", "direction": "higher"},
        {"metric": "pointing_game", "mode": "secondary", "direction": "lower"},
    ]
    values = np.tile([1.0, 2.0, 3.0], (20, 1)) + np.linspace(0, 0.1, 20)[:, None]
    named = [("completeness", "a", "residual"), ("completeness", "a", "complete")]
    named += [("pointing_game", "primary", ""), ("pointing_game", "secondary", "")]
    scores = pd.concat([table(values, *name) for name in named])
    given = replace(scored(scores), directions=directions_of(metrics, scores))
    made = reliability(given, draws=20)["reliability"].set_index(["metric", "mode", "score"])["best"]
    assert [made[name] for name in named] == ["p", "r", "r", "p"]


def test_a_baseline_with_holes_is_no_judge_either():
    values = np.repeat(rng().random((20, 1)), 3, axis=1)
    values[4, 1] = NAN  # of a broken map
    assert "reliability" not in reliability(scored(table(values)), draws=20)


def test_seeds_that_share_no_two_methods_say_nothing_of_stability():
    values = rng().normal(size=(2, 20, 3))
    values[0, :, :2] = values[1, :, 2] = NAN
    values[0, :5, 0] = 1.0
    scores = pd.concat([table(v).assign(seed=seed) for seed, v in enumerate(values)])
    made = reliability(scored(scores), draws=20)
    assert "seeds" not in made
    assert len(made["reliability"]) == 2


def test_settings_of_the_verb(tmp_path, capsys):
    values = rng().normal(size=(30, 3)) + 5
    values[:10, 0] = NAN
    save_run(tmp_path, table(values))
    words = ["reliability", str(tmp_path)]
    assert cli.run([*words, "draws=20", "test=sign_flip", "nan_to_zero=true"]) == 0
    zeroed = pd.read_csv(tmp_path / "reliability" / "reliability.csv")
    assert zeroed["alpha"].item() == pytest.approx(alpha(rankings(np.nan_to_num(values))))
    for wrong in ("draws=0", "draws=x", "test=t", "nan_to_zero=1", "seeds=2", "draw=2"):
        assert cli.run([*words, wrong]) == 2
        assert wrong.partition("=")[0] in capsys.readouterr().err


def test_a_run_says_which_way_its_metrics_point(tmp_path):
    """A metric's direction lives in the metric; the run's summary repeats it."""
    scores = table(np.tile([1.0, 2.0, 3.0], (20, 1)) + np.linspace(0, 0.1, 20)[:, None]).assign(metric="mine")
    best = []
    for direction in ("higher", "lower"):
        run = save_run(tmp_path / direction, scores, {"mine": direction})
        reliability_report([run], tmp_path / "out", draws=20)
        best.append(pd.read_csv(tmp_path / "out" / "reliability.csv")["best"].item())
    assert best == ["r", "p"]


def test_controls_have_no_part_in_the_ranking(tmp_path, capsys):
    """The last column is best everywhere and a control: never `best`, and alpha is what it is without it."""
    values = rng().normal(size=(40, 4)) + np.array([0, 0.5, 1, 9])
    run = save_run(tmp_path, table(values), controls=["s"], methods={name: {"options": {}} for name in "pqrs"})
    assert cli.run(["reliability", str(run), "draws=200"]) == 0
    told = capsys.readouterr().out
    made = pd.read_csv(tmp_path / "reliability" / "reliability.csv").iloc[0]
    assert (made["best"], made["methods"], made["pairs"]) == ("r", 3, 3)
    assert made["alpha"] == pytest.approx(alpha(rankings(values[:, :3])))
    assert made["alpha_with_controls"] == pytest.approx(alpha(rankings(values)))
    assert "Controls have no part in it (s)" in told
    assert told.rstrip().endswith(f"tables:  {shown(tmp_path / 'reliability')}")


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [((0.8, 0.9), "reliable"), ((0.7, 0.95), "tentative"), ((0.5, 0.9), "undecided"), ((0.5, 0.66), "unreliable")],
)
def test_the_verdict_is_the_rule_that_is_printed(interval, verdict, tmp_path):
    assert alpha_verdict(0.75, *interval) == verdict
    assert alpha_verdict(NAN, NAN, NAN) == "undefined"
    text = reliability_report([save_run(tmp_path, table(rng().normal(size=(12, 3))))], tmp_path / "out", draws=50)
    assert f"{verdict} = {RULE[verdict]}" in text
    assert "99.9% interval over images" in text
