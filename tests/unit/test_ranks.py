"""Paired comparisons, Holm's correction and stability of rankings."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from salrun.errors import SalrunError
from salrun.stats.ranks import compare_methods, holm, kendall_w, rank_stability, rank_table, sign_flip, wilcoxon
from tests.toys import rng


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]).tolist() == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]).tolist() == [1.0, 1.0]
    np.testing.assert_allclose(holm([0.02, np.nan, 0.01]), [0.02, np.nan, 0.02])


def test_sign_flip_equals_the_enumeration_of_all_signs():
    d = np.array([0.7, 0.2, -0.1, 0.9, 0.4, 0.05, -0.3, 0.6])
    sums = np.abs([np.dot(s, d) for s in product([-1, 1], repeat=len(d))])
    exact = (sums >= abs(d.sum()) - 1e-12).mean()
    assert sign_flip(d[:, None], rng(), 40_000)[0] == pytest.approx(exact, abs=0.005)


def test_equal_methods_are_not_different():
    nothing = np.zeros((20, 1))
    assert sign_flip(nothing, rng(), 100)[0] == 1.0
    assert wilcoxon(nothing)[0] == 1.0
    assert np.isnan(wilcoxon(np.full((5, 1), np.nan))[0])
    assert np.isnan(sign_flip(np.full((5, 1), np.nan), rng(), 50)[0])


def test_missing_images_are_left_out():
    d = rng().normal(0.3, 1, size=50)
    holed = np.r_[d, [np.nan] * 10][:, None]
    assert wilcoxon(holed)[0] == stats.wilcoxon(d).pvalue


@pytest.mark.parametrize("test", ["wilcoxon", "sign_flip"])
def test_comparison_finds_the_difference_that_is_there(test):
    scores = pd.DataFrame(rng().normal(size=(300, 3)), columns=list("abc"))
    scores["c"] += 0.5
    table = compare_methods(scores, rng(1), test, draws=2_000).set_index(["first", "second"])
    assert not table.loc[("a", "b"), "significant"]
    assert table.loc[("a", "c"), "significant"]
    assert table.loc[("a", "c"), "difference"] == pytest.approx((scores["a"] - scores["c"]).mean())
    assert table.loc[("a", "c"), "ci_high"] < 0
    assert table.loc[("a", "c"), "preferred"] == pytest.approx((scores["a"] > scores["c"]).mean())
    assert (table["p_holm"] >= table["p"]).all()


def test_holm_keeps_the_familywise_error():
    false = 0
    for seed in range(60):
        null = pd.DataFrame(rng(seed).normal(size=(40, 4)), columns=list("abcd"))
        false += compare_methods(null, rng(), draws=10)["significant"].any()
    assert false <= 8  # 3 expected


def test_rank_table_lists_best_first_and_its_ties():
    scores = pd.DataFrame(rng().normal([0, 2, 0], size=(200, 3)), columns=list("abc"))
    table = rank_table(scores, compare_methods(scores, rng(), draws=200), rng())
    assert table["method"].iloc[0] == "b"
    assert table["not_different_from"].iloc[0] == ""
    assert set(table["not_different_from"].iloc[1:]) == {"a", "c"}
    assert table["mean_rank"].sum() == pytest.approx(6)


def test_kendalls_w_and_friedman_agree():
    ranks = np.array([[1, 2, 3, 4], [2, 1, 3, 4], [1, 3, 2, 4], [1.5, 1.5, 3, 4]])
    friedman = stats.friedmanchisquare(*ranks.T).statistic
    assert kendall_w(ranks) == pytest.approx(friedman / (4 * 3))
    assert kendall_w(np.tile([1.0, 2.0, 3.0], (5, 1))) == 1.0
    assert kendall_w([[1, 2, 3], [3, 2, 1]]) == 0.0
    assert np.isnan(kendall_w(np.full((3, 3), 2.0)))


def test_stability_over_seeds():
    means = pd.DataFrame({"a": [3.0, 3, 1], "b": [2.0, 2, 3], "c": [1.0, 1, 2]}, index=[0, 1, 2])
    methods, overall = rank_stability(means)
    assert methods["method"].tolist() == ["a", "b", "c"]
    assert methods.set_index("method").loc["a", ["best_rank", "worst_rank"]].tolist() == [1, 3]
    assert overall["same_best"] == pytest.approx(2 / 3)
    assert overall["spearman"] == pytest.approx((1 - 0.5 - 0.5) / 3)


def test_errors_are_sentences():
    with pytest.raises(SalrunError, match="two seeds, got 1"):
        rank_stability(pd.DataFrame({"a": [1.0], "b": [2.0]}))
    with pytest.raises(SalrunError, match="did you mean wilcoxon"):
        compare_methods(pd.DataFrame({"a": [1.0], "b": [2.0]}), rng(), "wilcoxn")
    with pytest.raises(SalrunError, match="two methods"):
        compare_methods(pd.DataFrame({"a": [1.0]}), rng())
