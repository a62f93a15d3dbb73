"""Our statistics beside scipy's and the krippendorff package's."""

import time

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from salrun.stats.bootstrap import mean_interval, percentile_interval
from salrun.stats.ranks import compare_methods, sign_flip, wilcoxon
from salrun.stats.reliability import alpha_draws, alpha_of_counts, inter_method, rankings, spearman_draws
from tests.toys import rng

krippendorff = pytest.importorskip("krippendorff")


@pytest.mark.parametrize("missing", [0.0, 0.2])
@pytest.mark.parametrize("ties", [3, 1_000])
def test_alpha_of_counts_is_the_packages_value_counts_form(ties, missing):
    scores = rng(ties).integers(0, ties, size=(500, 5)).astype(float)
    scores[rng(1).random(scores.shape) < missing] = np.nan
    ranks = rankings(scores)
    values = np.unique(ranks[~np.isnan(ranks)])
    counts = (ranks[:, :, None] == values).sum(axis=0)
    expected = krippendorff.alpha(value_counts=counts, value_domain=values, level_of_measurement="ordinal")
    assert float(alpha_of_counts(counts)) == pytest.approx(expected, abs=1e-13)


def test_alpha_interval_is_scipys_percentile_bootstrap():
    ranks = rankings(rng().normal(size=(60, 4)) + np.arange(4) / 2)

    def one(index):
        return krippendorff.alpha(reliability_data=ranks[index], level_of_measurement="ordinal")

    theirs = stats.bootstrap(
        (np.arange(60),), one, vectorized=False, n_resamples=1_500, method="percentile", rng=rng(1)
    ).confidence_interval
    low, high = percentile_interval(alpha_draws([ranks], rng(2), 10_000))
    assert low[0] == pytest.approx(theirs.low, abs=0.02)
    assert high[0] == pytest.approx(theirs.high, abs=0.02)


def test_mean_interval_is_scipys_percentile_bootstrap():
    values = rng(3).exponential(size=200)
    theirs = stats.bootstrap((values,), np.mean, method="percentile", rng=rng(4)).confidence_interval
    ours = mean_interval(values, rng(5))
    assert ours.low[0] == pytest.approx(theirs.low, abs=0.01)
    assert ours.high[0] == pytest.approx(theirs.high, abs=0.01)


def test_spearman_interval_is_scipys_percentile_bootstrap():
    x = rng(6).normal(size=80)
    y = x + rng(7).normal(size=80)
    theirs = stats.bootstrap(
        (x, y),
        lambda a, b: stats.spearmanr(a, b).statistic,
        paired=True,
        vectorized=False,
        n_resamples=1_500,
        method="percentile",
        rng=rng(8),
    ).confidence_interval
    low, high = percentile_interval(spearman_draws(x[:, None], y[:, None], rng(9), 10_000))
    assert low[0] == pytest.approx(theirs.low, abs=0.025)
    assert high[0] == pytest.approx(theirs.high, abs=0.025)


def test_sign_flip_is_scipys_permutation_test():
    first, second = rng(10).normal(0.3, 1, size=40), rng(11).normal(size=40)
    theirs = stats.permutation_test(
        (first, second),
        lambda a, b, axis: np.mean(a - b, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=20_000,
        rng=rng(12),
    ).pvalue
    assert sign_flip((first - second)[:, None], rng(13), 20_000)[0] == pytest.approx(theirs, abs=0.012)


@pytest.mark.parametrize("n", [1, 2, 5, 9, 14])
def test_wilcoxon_of_few_images_is_scipys_and_quick(n):
    for seed in range(6):
        few = rng(seed)
        for d in (few.normal(size=n), few.integers(-2, 3, n) / 2, few.integers(1, 4, n) * 1.0):
            expected = stats.wilcoxon(d).pvalue if d.any() else 1.0
            assert wilcoxon(d[:, None])[0] == pytest.approx(expected, rel=1e-12)
    begin = time.process_time()
    wilcoxon(rng(0).integers(-2, 3, size=(13, 100)))  # scipy: a second each
    assert time.process_time() - begin < 2


def test_correlations_and_wilcoxon_are_scipys():
    scores = pd.DataFrame(rng(14).integers(0, 9, size=(100, 3)).astype(float), columns=list("abc"))
    np.testing.assert_allclose(inter_method(scores), stats.spearmanr(scores).statistic, atol=1e-12)
    table = compare_methods(scores, rng(), draws=10)
    for a, b, p in table[["first", "second", "p"]].itertuples(index=False):
        assert p == pytest.approx(stats.wilcoxon(scores[a], scores[b]).pvalue, rel=1e-12)
