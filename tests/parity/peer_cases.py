"""Where other toolkits answer differently: reproductions of a few lines, one function each.

A function returns (or raises) what the peer answers; its docstring says what is wrong with that; `case` records the
answer and the test that shows ours. tests/parity/test_peer_cases.py runs them all, scripts/make_reference.py prints
them in docs/peers.md. Versions: `SEEN_WITH`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

SEEN_WITH = {"quantus": "0.6.0", "captum": "0.9.0", "shap": "0.51.0", "zennit": "0.5.1", "grad-cam": "1.5.7"}
SEEN_WITH |= {"lxt": "2.1"}
SEEN_WITH |= {"pnpxai": "0.1.4"}


@dataclass(frozen=True)
class Case:
    """`peer`: its name on the package index; `answer`: repr of what comes out, or the exception's class."""

    peer: str
    answer: str
    ours: str
    run: Callable[[], Any]


CASES: dict[str, Case] = {}


def case(peer: str, answer: str, ours: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Register a reproduction; `ours` is `<file under tests/>::<test>`."""

    def register(run: Callable[[], Any]) -> Callable[[], Any]:
        CASES[run.__name__] = Case(peer, answer, ours, run)
        return run

    return register


# Quantus --------------------------------------------------------------------------------------------------------------


@case(
    "quantus",
    "(16.0, 0.0)",
    "parity/test_metrics_parity.py::test_quantus_batch_mates_change_the_score_and_ours_do_not",
)
def quantus_effective_complexity_depends_on_batch_mates() -> tuple[float, float]:
    """The default normalisation divides by the maximum over the whole batch: the same map scores 16, then 0."""
    import quantus

    metric, x, large = quantus.EffectiveComplexity(), np.zeros((2, 1, 4, 4)), np.linspace(1, 2, 16).reshape(1, 1, 4, 4)
    small = 1e-6 * large
    alone = metric(model=None, x_batch=x[:1], y_batch=np.zeros(1), a_batch=small.copy())
    beside = metric(model=None, x_batch=x, y_batch=np.zeros(2), a_batch=np.concatenate([small, large]))
    return float(alone[0]), float(beside[0])


@case(
    "quantus",
    "[False, False, False, False, False, False]",
    "parity/test_metrics_parity.py::test_quantus_completeness_is_never_true_and_ours_is",
)
def quantus_completeness_is_never_true() -> list[bool]:
    """w x on a linear model without bias sums to f(x) - f(0) exactly; normalised by its maximum first, it cannot."""
    import quantus

    model, x = nn.Sequential(nn.Flatten(), nn.Linear(16, 2, bias=False)), np.random.default_rng(0).random((6, 1, 4, 4))
    nn.init.constant_(model[1].weight, 0.5)
    x[:, 0, 0, 0] = 0.0  # "black" is the image's minimum: make it black
    batch = {"x_batch": x, "y_batch": np.zeros(6, int), "a_batch": 0.5 * x}
    return [bool(score) for score in quantus.Completeness()(model=model.eval(), **batch)]


@case(
    "quantus",
    "[[True, True, True], [True, True, True]]",
    "parity/test_perturbation_parity.py::test_quantus_monotonicity_never_inserts_the_image",
)
def quantus_monotonicity_is_always_true() -> list[list[bool]]:
    """It writes the baseline over the baseline and never inserts the image: a map and its reverse are both monotone."""
    import quantus

    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2)).eval()
    x = np.random.default_rng(0).random((3, 1, 4, 4), np.float32)
    batch = {"model": model, "x_batch": x, "y_batch": np.zeros(3, int)}
    scores = [quantus.Monotonicity(features_in_step=4)(**batch, a_batch=a.copy()) for a in (x, 1 - x)]
    return [[bool(s) for s in each] for each in scores]


@case("quantus", "ValueError", "unit/test_perturbation.py::test_equals_its_slow_twin")
def quantus_monotonicity_correlation_stops_on_improbable_classes() -> list[float]:
    """One image of the batch with p < 1e-5, another without: the factor 1 / p^2 gets a shape that does not fit."""
    import quantus

    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2, bias=False)).eval()
    model[1].weight.data = torch.tensor([[1.0] * 4, [-1.0] * 4])
    x = np.array([[1.0, 2, 3, 4], [-1, -2, -3, -4]], np.float32).reshape(2, 1, 2, 2)
    metric = quantus.MonotonicityCorrelation(nr_samples=2)
    return metric(model=model, x_batch=x, y_batch=np.zeros(2, int), a_batch=np.abs(x), softmax=True)


@case(
    "quantus", "(24.0, 1.0)", "parity/test_metrics_parity.py::test_quantus_complexity_changes_its_input_and_ours_do_not"
)
def quantus_complexity_changes_its_input() -> tuple[float, float]:
    """Without abs and normalise the caller's own array is divided by its sum: 24 before the call, 1 after."""
    import quantus

    a = np.linspace(1, 2, 16).reshape(1, 1, 4, 4)
    before = float(a.sum())
    metric = quantus.Complexity(abs=False, normalise=False)
    metric(model=None, x_batch=np.zeros((1, 1, 4, 4)), y_batch=np.zeros(1), a_batch=a)
    return round(before, 9), round(float(a.sum()), 9)


@case("quantus", "nan", "parity/test_metrics_parity.py::test_zero_maps_are_flagged_where_peers_are_silent")
def quantus_complexity_of_a_zero_map() -> float:
    """Refused alone (an assertion), but 0 / 0 without a word beside another map: NaN, which then sits in the mean."""
    import quantus

    x, a = np.zeros((2, 1, 4, 4)), np.linspace(0, 1, 32).reshape(2, 1, 4, 4)
    a[0] = 0
    return float(quantus.Complexity()(model=None, x_batch=x, y_batch=np.zeros(2), a_batch=a)[0])


@case("quantus", "(16, 48)", "parity/test_perturbation_parity.py::test_pixel_flipping")
def quantus_pixel_flipping_flips_no_pixels() -> tuple[int, int]:
    """Since 0.6 a step flips one channel of one pixel: 48 steps for 16 pixels, the untouched image not among them."""
    import quantus

    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 2)).eval()
    x = np.random.default_rng(0).random((1, 3, 4, 4), np.float32)
    batch = {"x_batch": x, "y_batch": np.zeros(1, int), "a_batch": x[:, :1].copy()}
    return x[0, 0].size, len(quantus.PixelFlipping()(model=model, **batch)[0])


@case("quantus", "{'black': -2.1, 'white': 2.6}", "unit/test_perturbation.py::test_equals_its_slow_twin")
def quantus_black_is_the_darkest_value() -> dict[str, float]:
    """Its "black" and "white" are the image's own least and greatest value, whatever black is for the model."""
    import quantus

    x = np.array([[[-2.1, 0.0], [1.0, 2.6]]])
    value = quantus.helpers.utils.get_baseline_value
    return {name: float(value(name, x, (1,))[0]) for name in ("black", "white")}


@case("quantus", "[1.0, 1.0]", "unit/test_robustness.py::test_constant_explanation_does_not_move")
def quantus_sensitivity_of_a_map_that_never_moves() -> list[float]:
    """`quantus.explain` without a method is the gradient: any map is compared with gradients of the neighbours."""
    import quantus

    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    x, fake_cam = np.random.default_rng(0).random((2, 1, 8, 8), np.float32), np.ones((2, 1, 8, 8), np.float32)
    fake_cam[..., 0, 0] = 0
    batch = {"x_batch": x, "y_batch": np.zeros(2, int), "a_batch": fake_cam, "explain_func": quantus.explain}
    return [round(float(s), 2) for s in quantus.MaxSensitivity(nr_samples=3)(model=model, **batch)]


@case(
    "quantus",
    "(0.64, 0.46)",
    "parity/test_perturbation_parity.py::test_quantus_mprt_average_counts_the_map_with_itself",
)
def quantus_mprt_average_counts_the_map_with_itself() -> tuple[float, float]:
    """The average over randomised layers includes the correlation 1 of the original map with itself."""
    import quantus

    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    images = {"x_batch": np.random.default_rng(0).random((2, 1, 4, 4), np.float32), "y_batch": np.zeros(2, int)}
    how = {"model": model, "explain_func": quantus.explain, "explain_func_kwargs": {"method": "Gradient"}}
    average, layers = (quantus.MPRT(return_average_correlation=flag)(**images, **how) for flag in (True, False))
    return tuple(round(float(np.mean(v)), 2) for v in (average, [v for k, v in layers.items() if k != "original"]))


@case(
    "quantus",
    "['first', 'last']",
    "parity/test_perturbation_parity.py::test_quantus_randomises_in_registration_order",
)
def quantus_randomises_in_registration_order() -> list[str]:
    """Its "top_down" is the order of `__init__` backwards, not of execution: here it starts at the image."""
    import quantus

    net = nn.ModuleDict({"last": nn.Linear(6, 3), "first": nn.Linear(64, 6)})  # forward: last(first(x))
    model = quantus.helpers.model.pytorch_model.PyTorchModel(net)
    return [name for name, _ in model.get_random_layer_generator("top_down", seed=0)]


@case("quantus", "IndexError", "unit/test_road.py::test_equals_its_slow_twin")
def quantus_road_reads_no_colour_images() -> dict:
    """It numbers channel elements and looks them up among pixels; and it knows no order but most relevant first."""
    import quantus

    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 2)).eval()
    x = np.random.default_rng(0).random((2, 3, 4, 4), np.float32)
    batch = {"x_batch": x, "y_batch": np.zeros(2, int), "a_batch": x[:, :1].copy()}
    return quantus.ROAD(percentages=[50])(model=model, **batch)


@case("quantus", "AssertionError", "unit/test_removal.py::test_equals_its_slow_twin")
def quantus_irof_reads_no_colour_images() -> list[float]:
    """The mask of a segment has one channel, which it compares with the image's three."""
    import quantus

    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 2)).eval()
    x = np.random.default_rng(0).random((2, 3, 4, 4), np.float32)
    batch = {"x_batch": x, "y_batch": np.zeros(2, int), "a_batch": x.copy()}
    return quantus.IROF()(model=model, **batch)


@case("quantus", "ValueError", "unit/test_removal.py::test_equals_its_slow_twin")
def quantus_sensitivity_n_correlates_over_images() -> list[float]:
    """Ancona's correlation is over random sets of pixels of one image; here sets are by relevance, and pairs images."""
    import quantus

    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2)).eval()
    x = np.random.default_rng(0).random((1, 1, 4, 4), np.float32)
    batch = {"x_batch": x, "y_batch": np.zeros(1, int), "a_batch": x.copy()}
    return quantus.SensitivityN(features_in_step=4)(model=model, **batch)


@case("quantus", "True", "unit/test_removal.py::test_equals_its_slow_twin")
def quantus_infidelity_draws_nothing() -> bool:
    """Its "samples" are one sweep of black patches over the image, again and again: 1 sample and 5 are the same."""
    import quantus

    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2)).eval()
    x = np.random.default_rng(0).random((2, 1, 4, 4), np.float32)
    batch = {"model": model, "x_batch": x, "y_batch": np.zeros(2, int)}
    metrics = [quantus.Infidelity(perturb_patch_sizes=[2], n_perturb_samples=n) for n in (1, 5)]
    return np.allclose(*(metric(**batch, a_batch=x.copy()) for metric in metrics))


@case("quantus", "(0.0, 1.0)", "unit/test_stability.py::test_sufficiency_twin")
def quantus_sufficiency_depends_on_batch_mates() -> tuple[float, float]:
    """An image alone has no like: 0, the worst; beside images of its class that have its map it has 1."""
    import quantus

    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2)).eval()
    x = np.random.default_rng(0).random((1, 1, 4, 4), np.float32).repeat(3, 0)
    maps = np.stack([x[0], x[0], 1 - x[0]])
    batches = ({"x_batch": x[:n], "y_batch": np.zeros(n, int), "a_batch": maps[:n].copy()} for n in (1, 3))
    return tuple(float(quantus.Sufficiency()(model=model, **batch)[0]) for batch in batches)


@case("quantus", "[nan]", "unit/test_stability.py::test_relative_stability_twin")
def quantus_relative_stability_is_lost_with_one_neighbour() -> list[float]:
    """The maximum is over neighbours of the image's class; one of 200 that changes it makes the maximum NaN."""
    import quantus

    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2, bias=False)).eval()
    model[1].weight.data = torch.linspace(-1, 1.1, 16) * torch.tensor([[1.0], [-1.0]])
    x = np.linspace(0.05, 0.06, 16, dtype=np.float32).reshape(1, 1, 4, 4)  # near the border of the two classes
    how = {"explain_func": quantus.explain, "explain_func_kwargs": {"method": "Gradient"}}
    batch = {"x_batch": x, "y_batch": np.zeros(1, int)}
    return [float(s) for s in quantus.RelativeInputStability(nr_samples=200)(model=model, **batch, **how)]


# Captum ---------------------------------------------------------------------------------------------------------------


@case("captum", "2.0", "parity/test_metrics_parity.py::test_zero_maps_are_flagged_where_peers_are_silent")
def captum_sensitivity_of_a_zero_map() -> float:
    """A zero map has no relative change; captum divides by 1: an absolute number among relative ones."""
    from captum.metrics import sensitivity_max

    maps = iter([torch.zeros(1, 1, 2, 2)])
    explain = lambda inputs: (next(maps, torch.ones_like(inputs[0])),)  # the image's own map, then others
    return float(sensitivity_max(explain, torch.zeros(1, 1, 2, 2), n_perturb_samples=3)[0])


@case("captum", "(1.0, 2.0)", "parity/test_backward_parity.py::test_captum_deeplift_errs_on_max_pooling")
def captum_deeplift_errs_on_max_pooling() -> tuple[float, float]:
    """The output gains 1, the contributions sum to 2. Where pooling windows overlap (AlexNet, ResNet) it refuses."""
    from captum.attr import DeepLift

    net = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    x, reference = torch.tensor([[[[-2.0, 2], [-1, 0]]]]), torch.tensor([[[[1.0, -2], [-3, -1]]]])
    contributions = DeepLift(net).attribute(x, reference, target=0)
    return (net(x) - net(reference)).item(), contributions.sum().item()


@case("captum", "(0.84, 1.08)", "parity/test_attention_parity.py::test_captum_on_a_transformer")
def captum_deeplift_takes_gelu_for_linear() -> tuple[float, float]:
    """The output gains 0.84, the contribution is 1.08: GELU (SiLU, a layer norm, attention) keeps its gradient."""
    from captum.attr import DeepLift

    net, x = nn.Sequential(nn.GELU(), nn.Flatten()), torch.ones(1, 1)
    contribution = DeepLift(net).attribute(x, torch.zeros(1, 1), target=0)
    return round(net(x).item(), 2), round(contribution.item(), 2)


@case("captum", "RuntimeError", "parity/test_backward_parity.py::test_captum_deeplift_errs_on_a_reused_relu")
def captum_deeplift_refuses_a_reused_relu() -> float:
    """One ReLU module at two places, as in every ResNet of torchvision: hooks cannot tell the places apart."""
    from captum.attr import DeepLift

    relu = nn.ReLU()
    net = nn.Sequential(nn.Linear(2, 2), relu, nn.Linear(2, 2), relu, nn.Linear(2, 1))
    return DeepLift(net).attribute(torch.ones(1, 2), torch.zeros(1, 2), target=0).sum().item()


@case("captum", "(0.0, -1.0)", "parity/test_backward_parity.py::test_captum_guided_backprop_misses_functional_relus")
def captum_guided_backprop_misses_functional_relus() -> tuple[float, float]:
    """f(x) = -relu(x) at 1: no positive signal, so 0. Hooks see `nn.ReLU` only; written as a function it gives -1."""
    from captum.attr import GuidedBackprop

    functional = nn.Linear(1, 1)
    functional.forward = lambda x: -torch.relu(x)
    module = nn.Sequential(nn.ReLU(), nn.Linear(1, 1, bias=False))
    module[1].weight.data.fill_(-1)
    x = [torch.ones(1, 1, requires_grad=True) for _ in range(2)]
    return tuple(GuidedBackprop(f).attribute(z, target=0).item() + 0.0 for f, z in zip((module, functional), x))


@case("captum", "(-1.0, 0.0)", "parity/test_peer_cases.py::test_ours_leaves_the_image_as_found")
def captum_guided_backprop_leaves_a_hook_on_the_image() -> tuple[float, float]:
    """f(x) = -relu(x) at 1 has the gradient -1; after guided backprop of the same tensor, the plain gradient is 0."""
    from captum.attr import GuidedBackprop

    net, x = nn.Sequential(nn.ReLU(), nn.Linear(1, 1, bias=False)), torch.ones(1, 1, requires_grad=True)
    net[1].weight.data.fill_(-1)
    (before,) = torch.autograd.grad(net(x).sum(), x)
    GuidedBackprop(net).attribute(x, target=0)
    return before.item(), torch.autograd.grad(net(x).sum(), x)[0].item() + 0.0


@case("captum", "(4.0, 3.6)", "parity/test_gradient_cam_parity.py::test_captums_trapezoid_is_low")
def captum_trapezoid_is_low() -> tuple[float, float]:
    """Integrated gradients of f(x) = sum x sum to f; the weights of 10 trapezoid steps sum to 0.9."""
    from captum.attr import IntegratedGradients

    x = torch.ones(1, 4)
    peer = IntegratedGradients(lambda z: z.sum(1))
    return x.sum().item(), round(peer.attribute(x, n_steps=10, method="riemann_trapezoid").sum().item(), 6)


# shap -----------------------------------------------------------------------------------------------------------------


@case("shap", "(2.0, 1.0)", "parity/test_backward_parity.py::test_shap_errs_on_overlapping_max_pooling")
def shap_errs_on_overlapping_max_pooling() -> tuple[float, float]:
    """Two windows share their winner, the output gains 2; unpooling overwrites one share, the values sum to 1."""
    import shap

    net = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2, stride=1), nn.Flatten(), nn.Linear(2, 1, bias=False))
    net[3].weight.data.fill_(1)
    x, reference = torch.tensor([[[[0.0, 1, 0], [0, 0, 0]]]]), torch.zeros(1, 1, 2, 3)
    values = shap.DeepExplainer(net, reference).shap_values(x, check_additivity=False)
    return (net(x) - net(reference)).item(), float(np.sum(values))


# zennit ---------------------------------------------------------------------------------------------------------------


@case("zennit", "(0.995, 0.9901)", "parity/test_backward_parity.py::test_zennit_resnet18")
def zennit_canonizer_changes_the_output() -> tuple[float, float]:
    """A folded batch norm still divides by sqrt(1 + eps): the output changes (eps is 0.01 here, 1e-5 by default)."""
    from zennit.canonizers import SequentialMergeBatchNorm

    net = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False), nn.BatchNorm2d(1, eps=0.01)).eval()
    net[0].weight.data.fill_(1)
    before = net(torch.ones(1, 1, 1, 1)).item()
    SequentialMergeBatchNorm().apply(net)
    return round(before, 4), round(net(torch.ones(1, 1, 1, 1)).item(), 4)


# pytorch-grad-cam -----------------------------------------------------------------------------------------------------


@case("grad-cam", "[1.0, 0.0]", "conformance/test_methods.py::test_method")
def grad_cam_drops_images_without_a_target() -> list[float]:
    """Two images and one target: targets and images are zipped, so the second map is silently empty."""
    from pytorch_grad_cam import GradCAM
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)).eval()
    maps = GradCAM(net, [net[1]])(torch.rand(2, 1, 6, 6), [ClassifierOutputTarget(0)])
    return [round(float(m.max()), 3) for m in maps]


@case("grad-cam", "0.25", "unit/test_cam.py::test_grad_cam_pp_does_not_know_its_batch")
def grad_cam_pp_depends_on_the_scale_of_the_score() -> float:
    """1e-6 beside squared gradients of that size: divide the score by 64 and the [0, 1] map moves by 0.25."""
    from pytorch_grad_cam import GradCAMPlusPlus

    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 2)).eval()
    x = torch.rand(1, 1, 8, 8)
    plain, scaled = (GradCAMPlusPlus(net, [net[1]])(x, [lambda y, by=by: y[0] / by])[0] for by in (1, 64))
    return round(float(abs(plain - scaled).max()), 2)


@case("grad-cam", "((6, 6, 1), ReLU())", "conformance/test_methods.py::test_method")
def grad_cam_guided_backprop_explains_one_image_and_changes_the_model() -> tuple[tuple[int, ...], nn.Module]:
    """Three images go in, one map comes out; and the network's `ReLU(inplace=True)` is left as another module."""
    from pytorch_grad_cam import GuidedBackpropReLUModel

    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, 2)).eval()
    gradient = GuidedBackpropReLUModel(net, "cpu")(torch.rand(3, 1, 6, 6), target_category=0)
    return gradient.shape, net[1]


# lxt ------------------------------------------------------------------------------------------------------------------


@case("lxt", "([0.88, -2.64], [0.88, 0.0])", "parity/test_attention_parity.py::test_lxt_explicit")
def lxt_softmax_knows_the_last_axis_alone() -> tuple[list[float], list[float]]:
    """A softmax over a column has another relevance than one over the same numbers in a row: R is summed along rows."""
    from lxt.explicit.functional import softmax

    x, r = torch.tensor([[1.0, 3.0]]), torch.tensor([[1.0, 0.0]])
    row, column = x.clone().requires_grad_(True), x.T.clone().requires_grad_(True)
    by_row = torch.autograd.grad(softmax(row, 1), row, r)[0]
    by_column = torch.autograd.grad(softmax(column, 0), column, r.T)[0]
    return [round(v.item(), 2) for v in by_row.flatten()], [round(v.item(), 2) for v in by_column.flatten()]


# pnpxai ---------------------------------------------------------------------------------------------------------------


@case("pnpxai", "[0.5, 0.5, 0.0]", "unit/test_transformer.py::test_rollout_slow_twin")
def pnpxai_rollout_multiplies_the_layers_backwards() -> list[float]:
    """Token 1 took from token 2 before the class token (0) took from 1: rollout gives 2 a quarter, here 0."""
    from pnpxai.explainers import AttentionRollout

    before = torch.tensor([[1.0, 0, 0], [0, 0, 1], [0, 0, 1]])
    after = torch.tensor([[0.0, 1, 0], [0, 1, 0], [0, 0, 1]])
    peer = AttentionRollout(nn.Linear(1, 1), head_fusion_method="mean", discard_ratio=0.0)
    return peer.rollout((before[None, None], after[None, None]))[0, 0].tolist()
