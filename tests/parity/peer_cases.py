"""Where other toolkits answer differently: five-line reproductions, one function each, run by test_metrics_parity.py.

Each returns what the peer says; its docstring says what is wrong with it. Seen with quantus 0.6.0 and captum 0.9.0.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn


def quantus_effective_complexity_depends_on_batch_mates() -> tuple[float, float]:
    """The default normalisation divides by the maximum over the whole batch: the same map scores 16, then 0."""
    import quantus

    metric = quantus.EffectiveComplexity(disable_warnings=True)
    x, large = np.zeros((2, 1, 4, 4)), np.linspace(1, 2, 16).reshape(1, 1, 4, 4)
    small = 1e-6 * large
    alone = metric(model=None, x_batch=x[:1], y_batch=np.zeros(1), a_batch=small.copy())
    beside = metric(model=None, x_batch=x, y_batch=np.zeros(2), a_batch=np.concatenate([small, large]))
    return float(alone[0]), float(beside[0])


def quantus_completeness_is_never_true() -> list[bool]:
    """w x on a linear model without bias sums to f(x) - f(0) exactly; normalised by its maximum first, it cannot."""
    import quantus

    model, x = nn.Sequential(nn.Flatten(), nn.Linear(16, 2, bias=False)), np.random.default_rng(0).random((6, 1, 4, 4))
    nn.init.constant_(model[1].weight, 0.5)
    x[:, 0, 0, 0] = 0.0  # "black" is the image's minimum: make it black
    scores = quantus.Completeness(disable_warnings=True)(
        model=model.eval(), x_batch=x, y_batch=np.zeros(6, int), a_batch=0.5 * x
    )
    return [bool(score) for score in scores]


def quantus_complexity_changes_its_input() -> tuple[float, float]:
    """Without abs and normalise the caller's own array is divided by its sum: 24 before the call, 1 after."""
    import quantus

    a = np.linspace(1, 2, 16).reshape(1, 1, 4, 4)
    before = float(a.sum())
    quantus.Complexity(abs=False, normalise=False, disable_warnings=True)(
        model=None, x_batch=np.zeros((1, 1, 4, 4)), y_batch=np.zeros(1), a_batch=a
    )
    return before, float(a.sum())


def quantus_complexity_of_a_zero_map() -> float:
    """Refused alone (an assertion), but 0 / 0 without a word beside another map: NaN, which then sits in the mean."""
    import quantus

    x, a = np.zeros((2, 1, 4, 4)), np.linspace(0, 1, 32).reshape(2, 1, 4, 4)
    a[0] = 0
    with np.errstate(invalid="ignore"):
        return float(
            quantus.Complexity(disable_warnings=True)(model=None, x_batch=x, y_batch=np.zeros(2), a_batch=a)[0]
        )


def captum_sensitivity_of_a_zero_map() -> float:
    """A zero map has no relative change; captum divides by 1: an absolute number among relative ones."""
    from captum.metrics import sensitivity_max

    moved = torch.ones(1, 1, 2, 2)
    seen: list[int] = []

    def explain(inputs):
        seen.append(1)
        return (torch.zeros(1, 1, 2, 2),) if len(seen) == 1 else moved.expand(len(inputs[0]), -1, -1, -1)

    return float(sensitivity_max(explain, torch.zeros(1, 1, 2, 2), n_perturb_samples=3)[0])
