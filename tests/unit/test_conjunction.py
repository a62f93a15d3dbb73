"""At least m of n parts hold: the formula on paper, and its error rates in simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from salrun.errors import SalrunError
from salrun.stats.conjunction import (
    LEVEL,
    decide,
    needed,
    over_images,
    over_replicates,
    partial_conjunction,
    replicates_to_decide,
    within,
)

TRIALS = 20_000


def test_quantifiers() -> None:
    assert [needed("every", 5), needed("most", 5), needed("most", 4), needed("some", 5)] == [5, 3, 3, 1]
    assert needed("average", 1) == 1
    assert needed(13, 15) == 13 and needed(13, 12) == 12
    with pytest.raises(SalrunError, match="an average is one part, got 2"):
        needed("average", 2)


def test_one_part_is_students_t() -> None:
    values = np.array([0.1, 0.3, 0.2, 0.25])
    parts = over_replicates(values[:, None])
    one_sided = stats.ttest_1samp(values, 0, alternative="greater").pvalue
    assert parts.holding[0] == pytest.approx(one_sided) and parts.failing[0] == pytest.approx(1 - one_sided)
    low, high = stats.t.interval(0.95, 3, values.mean(), stats.sem(values))
    assert (parts.low[0], parts.high[0]) == (pytest.approx(low), pytest.approx(high))


def test_the_formula_by_hand() -> None:
    p = [0.001, 0.2, 0.01]
    assert partial_conjunction(p, 3) == pytest.approx(0.2)  # every: the largest
    assert partial_conjunction(p, 1) == pytest.approx(0.003)  # some: Bonferroni of the smallest
    assert partial_conjunction(p, 2) == pytest.approx(2 * 0.01)
    with pytest.raises(SalrunError):
        partial_conjunction(p, 4)


def test_images_of_one_model_bound_the_error_from_below() -> None:
    same = np.full((5, 1), 0.1)  # five models that agree to the last bit
    assert decide(over_replicates(same), 1) == "yes"
    assert decide(over_replicates(same, image_error=0.5), 1) == "uncertain"
    assert decide(over_replicates(0 * same), 1) == "uncertain"


def test_answers() -> None:
    rng = np.random.default_rng(0)
    spread = 0.01 * rng.normal(size=(5, 4))
    assert decide(over_replicates(spread + 0.5), 4) == "yes"
    assert decide(over_replicates(spread + np.array([0.5, 0.5, 0.5, -0.5])), 4) == "no"  # one fails
    assert decide(over_replicates(spread + np.array([0.5, 0.5, 0.5, -0.5])), 3) == "yes"
    assert decide(over_replicates(spread + np.array([0.5, -0.5, -0.5, -0.5])), 2) == "no"
    assert decide(over_replicates(spread - 0.5), 1) == "no"
    assert decide(over_replicates(spread), 3) == "uncertain"


def p_values(trials: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of (trials, k, n) differences the parts' p-values (trials, n), above and below 0."""
    count, k, n = trials.shape
    parts = over_replicates(trials.transpose(1, 0, 2).reshape(k, count * n))
    return parts.holding.reshape(count, n), parts.failing.reshape(count, n)


@pytest.mark.parametrize("k", [3, 5])
@pytest.mark.parametrize("n", [1, 5, 15])
@pytest.mark.parametrize("kind", ["every", "most", "some"])
@pytest.mark.parametrize("shared", [0.0, 0.9], ids=["independent", "dependent"])
def test_either_wrong_answer_is_rare(k: int, n: int, kind: str, shared: float) -> None:
    """At the worst truths on either side of the statement: m - 1 parts clearly hold, the rest are just not > 0.

    A part at 0 makes neither answer right: a yes is wrong where at most m - 1 parts are > 0, a no where at least m are
    not < 0.
    """
    m = needed(kind, n)  # type: ignore[arg-type]
    rng = np.random.default_rng([k, n, m, int(10 * shared)])
    noise = np.sqrt(1 - shared) * rng.normal(size=(TRIALS, k, n)) + np.sqrt(shared) * rng.normal(size=(TRIALS, k, 1))
    false = np.where(np.arange(n) < m - 1, 50.0, 0.0)  # a yes is wrong
    true = np.where(np.arange(n) < n - m, -50.0, 0.0)  # a no is wrong
    above, _ = p_values(noise + false)
    _, below = p_values(noise + true)
    yes = np.mean(partial_conjunction(above, m) <= LEVEL)
    no = np.mean(partial_conjunction(below, n - m + 1) <= LEVEL)
    slack = 3 * np.sqrt(LEVEL * (1 - LEVEL) / TRIALS)
    assert yes <= LEVEL + slack and no <= LEVEL + slack
    if n == 1:
        assert yes >= LEVEL - slack  # and the level is used up where nothing is corrected for


def test_more_replicates_decide_what_is_there() -> None:
    values = np.array([[0.5], [-0.3], [0.4]])
    k = replicates_to_decide(values, 1)
    assert k is not None and k > 3
    sure = stats.t.sf(values.mean() / (values.std(ddof=1) / np.sqrt(k)), k - 1)
    before = stats.t.sf(values.mean() / (values.std(ddof=1) / np.sqrt(k - 1)), k - 2)
    assert sure <= LEVEL < before
    assert replicates_to_decide(np.array([[0.1], [-0.1], [0.0]]), 1) is None


def test_one_model_decides_by_its_images() -> None:
    draws = np.random.default_rng(2).normal([0.5, 0.0], 0.1, size=(2000, 2))
    parts = over_images([0.5, 0.0], draws)
    assert decide(parts, 1) == "yes" and decide(parts, 2) == "uncertain"
    assert parts.low[0] == pytest.approx(0.5 - 1.96 * 0.1, abs=0.02) and parts.holding[0] == pytest.approx(
        stats.norm.sf(5), rel=0.5
    )


def test_few_draws_do_not_make_sure() -> None:
    """None of fifty draws is below 0, and the tail of their spread says how unlikely one is."""
    draws = np.random.default_rng(3).normal(0.3, 0.1, size=(50, 1))
    p = over_images([0.3], draws).holding[0]
    assert (draws > 0).all() and stats.norm.sf(4) < p < stats.norm.sf(2.4)
    skewed = np.array([0.3] * 90 + [-0.01] * 10)[:, None]  # a tenth of the draws fails, whatever their spread
    assert over_images([0.3], skewed).holding[0] == pytest.approx(0.1)


def test_equality_within_a_bound() -> None:
    spread = np.linspace(-0.01, 0.01, 5)[:, None]
    values = np.hstack([spread, spread + 0.5, spread + 0.1, spread - 0.5])
    answers = []
    for part in values.T[:, :, None]:
        parts = over_replicates(part, bound=0.1)
        answers.append(decide(parts, 1))
        assert within(parts.low, parts.high, 0.1) == answers[-1:]  # the 95% interval decides
    assert answers == ["yes", "no", "uncertain", "no"]
    assert decide(over_replicates(values, bound=0.1), 1) == "yes"
    assert decide(over_replicates(values, bound=0.1), 3) == "no"
    of_images = np.random.default_rng(5).normal([0.0, 0.5], 0.01, size=(500, 2))
    parts = over_images([0.0, 0.5], of_images, bound=0.1)
    assert decide(parts, 1) == "yes" and decide(parts, 2) == "no"


@pytest.mark.parametrize("side", [-1, 1])
def test_wrong_answers_about_equality_are_rare(side: int) -> None:
    """At the edge of the bound neither inside nor outside is true."""
    trials = np.random.default_rng(7 + side).normal(side * 2.0, 1.0, size=(5, TRIALS))
    parts = over_replicates(trials, bound=2.0)
    slack = 3 * np.sqrt(LEVEL * (1 - LEVEL) / TRIALS)
    assert np.mean(parts.holding <= LEVEL) <= LEVEL + slack and np.mean(parts.failing <= LEVEL) <= LEVEL + slack
