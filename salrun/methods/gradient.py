"""Gradients of the target logit with respect to the image, plain, times the input, and averaged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from salrun.errors import SalrunError
from salrun.methods.chunking import references_of, run_grid, shared_pass
from salrun.models.classifier import Baseline, Classifier, Space, check_targets, not_a_number, pick
from salrun.ranges import Above, AtLeast
from salrun.rng import Draws
from salrun.types import Fitted, Method

Rule = Literal["gauss_legendre", "riemann_left", "riemann_middle", "trapezoid"]


def gradient_at(model: Classifier, point: Tensor, target: Tensor, space: Space) -> Tensor:
    """d logit[target] / d point, for points of `space`."""
    with torch.enable_grad():
        point = point.detach().requires_grad_(True)
        score = pick(model.head(point, space), target)
        return not_a_number(torch.autograd.grad(score.sum(), point)[0], score)


@dataclass
class Gradient(Method):
    """dy_c/dx, signed.

    Simonyan, Vedaldi, Zisserman 2014 ("vanilla backprop", VBP). In the network's own input space by default; the raw
    gradient is that divided by the channel's standard deviation.
    """

    space: Literal["norm", "raw"] = "norm"

    paper_name: ClassVar[str] = "Gradient"
    source: ClassVar[str] = "Simonyan et al. 2014, arXiv:1312.6034"
    foldable = True

    def __call__(self, model: Classifier, x: Tensor, target: Tensor, rng: Draws, fitted: Fitted) -> Tensor:
        return shared_pass(model, x, target, fitted, space=self.space).input_gradient


@dataclass
class Sensitivity(Method):
    """max over channels of |dy_c/dx|.

    Simonyan et al. 2014; the "sensitivity" of Tomsett et al. 2020.
    """

    space: Literal["norm", "raw"] = "norm"

    signed: ClassVar[bool] = False
    paper_name: ClassVar[str] = "Sensitivity"
    source: ClassVar[str] = "Simonyan et al. 2014, arXiv:1312.6034"
    foldable = True

    def __call__(self, model: Classifier, x: Tensor, target: Tensor, rng: Draws, fitted: Fitted) -> Tensor:
        gradient = shared_pass(model, x, target, fitted, space=self.space).input_gradient
        return gradient.abs().amax(1, keepdim=True)


@dataclass
class InputXGradient(Method):
    """(x - x0) * dy_c/dx, with x in the space of the derivative, x0 the baseline.

    Shrikumar et al. 2016 ("grad*input", I*G). Sums to y_c where x0 is 0 and the network bias-free and piecewise linear.
    Of other baselines it is the one-step approximation of Integrated Gradients.
    """

    space: Literal["norm", "raw"] = "norm"
    baseline: Baseline = "zeros"

    paper_name: ClassVar[str] = "Input*Gradient"
    source: ClassVar[str] = "Shrikumar et al. 2016, arXiv:1605.01713"
    foldable = True

    @torch.no_grad()
    def __call__(self, model: Classifier, x: Tensor, target: Tensor, rng: Draws, fitted: Fitted) -> Tensor:
        gradient = shared_pass(model, x, target, fitted, space=self.space).input_gradient
        return (model.enter(x, self.space) - model.baseline(x, self.baseline, self.space)) * gradient


def over_noise(
    method: SmoothGrad | VarGrad,
    model: Classifier,
    x: Tensor,
    target: Tensor,
    rng: Draws,
    fitted: Fitted,
    take: Callable[[slice, slice, Tensor], None],
) -> None:
    """take(images, samples, g), g (B, n, C, H, W) the gradients at x + sigma e_k, e_k ~ N(0, 1), some at a time."""
    check_targets(x, target)
    point = model.enter(x, method.space)
    scale = torch.full_like(point[:, :1, :1, :1], method.sigma)
    if method.relative:
        scale = scale * (point.amax((1, 2, 3), keepdim=True) - point.amin((1, 2, 3), keepdim=True))

    def step(images: slice, samples: slice) -> None:
        n, size = samples.stop - samples.start, point[0].numel()
        noise = rng[images].normal("smoothgrad", (n, *point.shape[1:]), start=samples.start * size).to(point.dtype)
        noisy = point[images, None] + scale[images, None] * noise
        gradient = gradient_at(model, noisy.flatten(0, 1), target[images].repeat_interleave(n), method.space)
        take(images, samples, gradient.unflatten(0, (-1, n)))

    run_grid(step, len(x), method.n_samples, fitted.chunk)


@dataclass
class SmoothGrad(Method):
    """mean_k g(x + sigma e_k), e_k ~ N(0, 1), g = dy_c/dx; with `squared`, mean_k g(x + sigma e_k)^2.

    Smilkov et al. 2017; the squared form is SmoothGrad-squared of Hooker et al. 2019, which iNNvestigate computes under
    the name SmoothGrad. `relative`: sigma is a share of the image's own range max - min, as in the paper.
    """

    n_samples: Annotated[int, AtLeast(1)] = 50
    sigma: Annotated[float, AtLeast(0)] = 0.15
    relative: bool = True
    squared: bool = False
    space: Literal["norm", "raw"] = "norm"

    paper_name: ClassVar[str] = "SmoothGrad"
    source: ClassVar[str] = "Smilkov et al. 2017, arXiv:1706.03825"
    foldable = True
    averages_passes: ClassVar[bool] = True

    def passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return 3.0 * self.n_samples

    @torch.no_grad()
    def __call__(self, model: Classifier, x: Tensor, target: Tensor, rng: Draws, fitted: Fitted) -> Tensor:
        total = torch.zeros_like(x)

        def take(images: slice, samples: slice, gradient: Tensor) -> None:
            total[images] += (gradient.square() if self.squared else gradient).sum(1)

        over_noise(self, model, x, target, rng, fitted, take)
        return total / self.n_samples


@dataclass
class VarGrad(Method):
    """var_k g(x + sigma e_k) = mean_k (g_k - mean_k g_k)^2, e_k ~ N(0, 1), g = dy_c/dx; the draws are SmoothGrad's.

    Adebayo et al. 2018, "Local Explanation Methods for Deep Neural Networks Lack Sensitivity to Parameter Values".
    `relative`: sigma is a share of the image's own range max - min.
    """

    n_samples: Annotated[int, AtLeast(2)] = 50
    sigma: Annotated[float, Above(0)] = 0.15
    relative: bool = True
    space: Literal["norm", "raw"] = "norm"

    signed: ClassVar[bool] = False
    paper_name: ClassVar[str] = "VarGrad"
    source: ClassVar[str] = "Adebayo et al. 2018, arXiv:1810.03307"
    foldable = True

    def passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return 3.0 * self.n_samples

    @torch.no_grad()
    def __call__(self, model: Classifier, x: Tensor, target: Tensor, rng: Draws, fitted: Fitted) -> Tensor:
        mean, squares = torch.zeros_like(x), torch.zeros_like(x)

        def take(images: slice, samples: slice, gradient: Tensor) -> None:
            """Chan's form of Welford's update: nothing cancels."""
            before, after = samples.start, samples.stop
            here = gradient.mean(1)
            shift = here - mean[images]
            squares[images] += (gradient - here.unsqueeze(1)).square().sum(1)
            squares[images] += shift.square() * (before * (after - before) / after)
            mean[images] += shift * ((after - before) / after)

        over_noise(self, model, x, target, rng, fitted, take)
        return squares / self.n_samples


@dataclass
class ExpectedGradients(Method):
    """mean_k (x - r_k) g(r_k + a_k (x - r_k)), r_k a random background image, a_k ~ U(0, 1), g = dy_c/dx.

    Erion et al. 2021; GradientSHAP of shap and Captum. On average over draws it sums to y_c(x) - mean_r y_c(r).
    """

    n_samples: Annotated[int, AtLeast(1)] = 50
    space: Literal["norm", "raw"] = "norm"

    needs: ClassVar[frozenset[str]] = frozenset({"background"})
    paper_name: ClassVar[str] = "Expected Gradients"
    source: ClassVar[str] = "Erion et al. 2021, arXiv:1906.10670"
    foldable = True
    averages_passes: ClassVar[bool] = True

    def passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return 3.0 * self.n_samples

    @torch.no_grad()
    def __call__(self, model: Classifier, x: Tensor, target: Tensor, rng: Draws, fitted: Fitted) -> Tensor:
        check_targets(x, target)
        references = model.enter(references_of(fitted, x, "expected_gradients"), self.space)
        point = model.enter(x, self.space)
        total = torch.zeros_like(point)

        def step(images: slice, part: slice) -> None:
            n = part.stop - part.start
            chosen = rng[images].integer(len(references), "expected_gradients/reference", n, part.start)
            share = rng[images].uniform("expected_gradients/place", n, part.start).to(point)
            difference = point[images, None] - references[chosen]
            on_path = references[chosen] + share.view(*share.shape, 1, 1, 1) * difference
            gradient = gradient_at(model, on_path.flatten(0, 1), target[images].repeat_interleave(n), self.space)
            total[images] += (gradient.view_as(difference) * difference).sum(1)

        run_grid(step, len(x), self.n_samples, fitted.chunk)
        return total / self.n_samples


def quadrature(rule: Rule, steps: int) -> tuple[list[float], list[float]]:
    """Nodes and weights of `rule` on [0, 1]; the weights sum to 1."""
    if rule == "gauss_legendre":
        nodes, weights = np.polynomial.legendre.leggauss(steps)
        return list((1 + nodes) / 2), list(weights / 2)
    if rule == "trapezoid":
        width = 1 / (steps - 1)
        ends = (0, steps - 1)
        return [k * width for k in range(steps)], [width / 2 if k in ends else width for k in range(steps)]
    offset = 0.5 if rule == "riemann_middle" else 0.0
    return [(k + offset) / steps for k in range(steps)], [1 / steps] * steps


@dataclass
class IntegratedGradients(Method):
    """(x - x0) * integral over a in [0, 1] of g(x0 + a (x - x0)), g = dy_c/dx, x0 the baseline.

    Sundararajan, Taly, Yan 2017. Sums to y_c(x) - y_c(x0) up to the error of the rule (`completeness_error`).
    `path: inn108` is what iNNvestigate 1.0.8 integrates: from x on to x + (x - x0).
    """

    steps: Annotated[int, AtLeast(1)] = 50
    rule: Literal["gauss_legendre", "riemann_left", "riemann_middle", "trapezoid"] = "gauss_legendre"
    baseline: Baseline = "zeros"
    path: Literal["straight", "inn108"] = "straight"
    space: Literal["norm", "raw"] = "norm"

    paper_name: ClassVar[str] = "Integrated Gradients"
    source: ClassVar[str] = "Sundararajan et al. 2017, arXiv:1703.01365"
    foldable = True
    averages_passes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rule == "trapezoid" and self.steps < 2:
            raise SalrunError(f"steps of integrated_gradients must be at least 2 (trapezoid), got {self.steps}")

    def passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return 3.0 * self.steps

    @torch.no_grad()
    def __call__(self, model: Classifier, x: Tensor, target: Tensor, rng: Draws, fitted: Fitted) -> Tensor:
        check_targets(x, target)
        point, reference = model.enter(x, self.space), model.baseline(x, self.baseline, self.space)
        difference = point - reference
        start = point if self.path == "inn108" else reference
        nodes, weights = (
            torch.tensor(values, dtype=x.dtype, device=x.device).view(-1, 1, 1, 1)
            for values in quadrature(self.rule, self.steps)
        )
        total = torch.zeros_like(point)

        def step(images: slice, part: slice) -> None:
            n = part.stop - part.start
            on_path = start[images, None] + nodes[part] * difference[images, None]
            gradient = gradient_at(model, on_path.flatten(0, 1), target[images].repeat_interleave(n), self.space)
            total[images] += (weights[part] * gradient.unflatten(0, (-1, n))).sum(1)

        run_grid(step, len(x), self.steps, fitted.chunk)
        return difference * total

    def completeness_error(self, model: Classifier, x: Tensor, target: Tensor, attribution: Tensor) -> Tensor:
        """|sum(attribution) - (y_c(x) - y_c(x0))| relative to |y_c(x) - y_c(x0)|, (B,): above 0.01 raise `steps`."""
        with torch.no_grad():
            above = pick(model.forward(x), target)
            below = pick(model.head(model.baseline(x, self.baseline, self.space), self.space), target)
        gained = above - below
        return (attribution.sum((1, 2, 3)) - gained).abs() / gained.abs()
