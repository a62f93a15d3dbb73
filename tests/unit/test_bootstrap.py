"""The percentile bootstrap against loops, normal theory and its own promises."""

import numpy as np
import pytest

from salrun.errors import SalrunError
from salrun.stats import bootstrap
from salrun.stats.bootstrap import mean_draws, mean_interval, percentile_error, percentile_interval, resamples
from tests.toys import rng


def all_counts(n, draws, seed=0):
    return np.concatenate([counts for _, counts in resamples(n, draws, rng(seed))])


def test_every_resample_draws_n_images():
    counts = all_counts(17, 100)
    assert counts.shape == (100, 17)
    assert (counts.sum(axis=1) == 17).all()
    assert counts.max() > 1  # with replacement
    assert np.abs(counts.mean(axis=0) - 1).max() < 0.4


def test_resamples_do_not_depend_on_the_block_size(monkeypatch):
    known = all_counts(31, 50)
    monkeypatch.setattr(bootstrap, "_BLOCK", 100)
    assert (all_counts(31, 50) == known).all()


def test_means_equal_a_loop_over_resamples_with_missing_scores():
    values = rng(1).normal(size=(25, 3))
    values[rng(2).random(values.shape) < 0.3] = np.nan
    draws = mean_draws(values, rng(3), 40)
    for counts, drawn in zip(all_counts(25, 40, 3), draws, strict=True):
        assert drawn == pytest.approx(np.nanmean(np.repeat(values, counts, axis=0), axis=0), abs=1e-14)


def test_columns_share_their_resamples():
    a, b = rng(1).normal(size=(2, 50))
    draws = mean_draws(np.stack([a, b, a - b], axis=1), rng(), 200)
    assert draws[:, 0] - draws[:, 1] == pytest.approx(draws[:, 2], abs=1e-14)


def test_a_missing_score_is_not_zero_unless_asked():
    values = np.array([1.0, np.nan, 3.0, np.nan])
    missing = mean_interval(values, rng())
    assert missing.mean[0] == 2.0
    assert missing.n[0] == 2
    assert missing.low[0] >= 1.0
    zero = mean_interval(values, rng(), nan_to_zero=True)
    assert zero.mean[0] == 1.0
    assert zero.n[0] == 4


def test_nothing_and_one_score_have_no_interval():
    interval = mean_interval(np.array([[np.nan, 5.0], [np.nan, np.nan]]), rng(), draws=50)
    assert np.isnan(interval.mean[0])
    assert interval.mean[1] == 5.0
    assert np.isnan([*interval.low, *interval.high]).all()
    assert np.isnan(mean_interval(np.empty((0, 2)), rng(), draws=10).mean).all()


def test_width_is_that_of_normal_theory():
    values = rng(5).normal(2.0, 3.0, size=2_000)
    interval = mean_interval(values, rng())
    expected = 1.96 * values.std() / np.sqrt(len(values))
    assert interval.high[0] - interval.mean[0] == pytest.approx(expected, rel=0.05)
    assert interval.mean[0] - interval.low[0] == pytest.approx(expected, rel=0.05)


def test_the_interval_covers_the_truth_as_often_as_it_says():
    samples = rng(6).exponential(1.0, size=(60, 400))
    interval = mean_interval(samples, rng(7), level=0.9, draws=1_000)
    covered = ((interval.low <= 1.0) & (interval.high >= 1.0)).mean()
    assert 0.84 < covered < 0.93  # a little below 0.9: the bootstrap of a skewed mean


def test_same_seed_same_numbers_other_seed_others():
    values = rng(1).normal(size=(30, 2))
    assert (mean_draws(values, rng(4), 20) == mean_draws(values, rng(4), 20)).all()
    assert (mean_draws(values, rng(4), 20) != mean_draws(values, rng(5), 20)).any()


def test_global_random_state_is_left_alone():
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    mean_interval(np.arange(5.0), rng(), draws=10)
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002


def test_monte_carlo_error_is_the_spread_of_the_ends():
    normal = rng(8).normal(size=(300, 4_000))
    _, high = percentile_interval(normal.T, 0.95)
    assert percentile_error(normal.T, 0.95).mean() == pytest.approx(high.std(), rel=0.35)


@pytest.mark.parametrize("level", [0.0, 1.0, 95.0])
def test_an_impossible_level_is_named(level):
    with pytest.raises(SalrunError, match=f"got {level}"):
        percentile_interval(np.zeros((3, 1)), level)


def test_undefined_draws_are_left_out_column_by_column():
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(501, 7))
    draws[rng.random(draws.shape) < [0, 0.1, 0.5, 0.9, 0.99, 1, 0]] = np.nan
    low, high = percentile_interval(draws, 0.9)
    expected = np.full((2, 7), np.nan)
    some = ~np.isnan(draws).all(axis=0)
    expected[:, some] = np.nanquantile(draws[:, some], [(1 - 0.9) / 2, (1 + 0.9) / 2], axis=0)
    np.testing.assert_array_equal([low, high], expected)
    np.testing.assert_array_equal(percentile_interval(draws[:, 2], 0.9), expected[:, 2])
