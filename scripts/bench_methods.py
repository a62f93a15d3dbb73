"""Images per second of every method, against its floor and against the fastest peer at equal work.

The floor is the time of what the method cannot avoid, at the same batch size, eager, in float32, taken in the same run:
forward and backward passes of the network, the further passes through its layers that a rule asks for, drawing noise.
All contestants of a row take turns, `--repeats` times or `--seconds` long; medians and quartiles are reported. Rows of
the table in `--out` that are not measured again stay there.

    python scripts/bench_methods.py --out docs/results/bench              # up to 18 minutes on two idle cores
    python scripts/bench_methods.py --out docs/results/bench --missing    # go on where it stopped
    python scripts/bench_methods.py --out docs/results/bench --models resnet50_224 --methods lime iba
    python scripts/bench_methods.py --out outputs/bench --quick --methods gradient rise
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_common import (
    ABOUT,
    Job,
    Limits,
    Rows,
    finish,
    machine,
    measured,
    parser,
    read_rows,
    said,
    start,
    told,
    write_rows,
)
from torch import Tensor, nn

from salrun.config.parts import method_part
from salrun.methods.iba import fit_feature_stats, go_on
from salrun.methods.layers import layer_output
from salrun.models.classifier import Classifier, pick
from salrun.models.inference import folded_copy, inference_copy
from salrun.models.layers import blocks_of, find_layers
from salrun.rng import Draws, generator
from salrun.types import PRIMARY, Fitted, Method

CONF = Path(__file__).resolve().parents[1] / "conf" / "methods"
FAMILIES = {  # by the module that a method is in
    "gradient": "gradient", "guided": "gradient", "lrp": "relevance", "deep_taylor": "relevance",
    "deeplift": "relevance", "cam": "CAM", "rise": "masks", "lime": "masks", "iba": "masks",
    "full_grad": "gradient", "occlusion": "masks", "kernel_shap": "masks", "transformer": "attention",
    "attn_lrp": "relevance",
}  # fmt: skip
ATTENTION = ("attention_rollout", "attention_last", "transformer_relevance", "legrad")
RULES = (
    "gradient",
    "input_x_gradient",
    "integrated_gradients",
    "lrp_z",
    "lrp_epsilon",
    "deeplift_rescale",
    "deep_shap",
)
ON_TOKENS = (
    *ATTENTION,
    *RULES,
    "attn_lrp",
    "grad_cam",
    "grad_cam_pp",
    "layer_cam",
)  # what is measured on a transformer
LARGER = {"cuda": 8}  # batches: a small one would measure how fast kernels are started


@dataclass
class Case:
    """A network, a batch for it, and how much work the sampling methods do on it (`images`: on the first so many)."""

    name: str
    model: Classifier
    x: Tensor
    target: Tensor
    fitted: Fitted
    rng: Draws
    work: dict[str, dict[str, Any]]
    compile: str = "on"  # the forward-only copies
    only: tuple[str, ...] = ()  # methods that are measured on it; none named: all but those that read attention
    copies: dict[str, Classifier] = field(default_factory=dict)

    @property
    def batch(self) -> int:
        return len(self.x)

    def takes(self, name: str) -> bool:
        return name in self.only if self.only else name not in ATTENTION

    @property
    def point(self) -> Tensor:
        return self.model.normalise(self.x)

    def first(self, n: int) -> Case:
        """The same with the first images alone; passes are as large as before."""
        return replace(self, x=self.x[:n], target=self.target[:n], rng=self.rng[:n])

    @property
    def chunk(self) -> int:
        """Images in a pass, of all contestants."""
        return self.fitted.chunk or self.batch

    def exact(self, method: Method) -> Classifier:
        """What a run gives the method: a copy that proved to be the same, where the method takes one."""
        if method.forward_only:
            return self._copy("forward", lambda x: inference_copy(self.model, x, self.compile, self.chunk))
        if method.layout_free:
            layers = dict(self.model.module.named_modules())
            return self._copy("whole", lambda x: folded_copy(self.model, x[:2], layers))
        return self._copy("folded", lambda x: folded_copy(self.model, x[:2])) if method.foldable else self.model

    def fast(self, method: Method) -> Classifier | None:
        """The copy in half precision that a run with `numerics=fast` or `fast_gradients` gives the method, if any."""
        copied: Any = None
        if method.forward_only:
            copied = self._copy(
                "fast", lambda x: inference_copy(self.model, x, self.compile, self.chunk, numerics="fast")
            )
        elif method.averages_passes:
            copied = self._copy(
                "fast gradients", lambda x: inference_copy(self.model, x, "off", numerics="fast", gradients=True)
            )
        return copied if copied is not None and copied.reduced else None

    def _copy(self, kind: str, make: Callable[[Tensor], Classifier]) -> Classifier:
        if kind not in self.copies:
            self.copies[kind] = make(self.x[:4])
        return self.copies[kind]


# -- the networks ------------------------------------------------------------------------------------------------------


def make_case(
    name: str, module: nn.Module, size: int, classes: int, layers: dict[str, str], batch: int, work: dict, device: str
) -> Case:
    batch *= LARGER.get(torch.device(device).type, 1)
    draw = generator(0, f"bench/{name}")
    model = Classifier(module.eval(), (0.5,) * 3, (0.25,) * 3, layers, name).to(device)
    x = torch.rand(batch, 3, size, size, generator=draw).to(device)
    target = torch.randint(classes, (batch,), generator=draw).to(device)
    mask = torch.zeros(batch, size, size, dtype=torch.bool, device=device)
    mask[:, : size // 2] = True
    fitted = Fitted(
        background=x[:4],
        feature_stats=fit_feature_stats(model, "iba", [x]),
        masks={"object": mask},
        roles={"object": torch.full((batch,), PRIMARY, device=device)},
        chunk=batch,
    )
    return Case(name, model, x, target, fitted, Draws.of(0, [str(i) for i in range(batch)], device), work)


def full_cases(device: str) -> Iterator[Case]:
    from torchvision.models import VisionTransformer, resnet50

    from salrun.models.architectures import TomsettCNN, smerf_cnn

    small = {
        "smoothgrad": {"images": 8, "n_samples": 16},
        "vargrad": {"images": 8, "n_samples": 16},
        "expected_gradients": {"images": 8, "n_samples": 16},
        "occlusion": {"images": 4},
        "kernel_shap": {"images": 2, "n_samples": 400, "cells": 4},
        "integrated_gradients": {"images": 8, "steps": 16},
        "rise": {"images": 4, "n_masks": 400},
        "lime": {"images": 2, "n_samples": 1000},
        "score_cam": {"images": 8},
        "iba": {"images": 8},
    }
    large = {
        "smoothgrad": {"images": 2, "n_samples": 4},
        "vargrad": {"images": 2, "n_samples": 4},
        "expected_gradients": {"images": 2, "n_samples": 4},
        "occlusion": {"images": 1, "window": 56, "stride": 28},
        "kernel_shap": {"images": 1, "n_samples": 48, "cells": 4},
        "integrated_gradients": {"images": 2, "steps": 4},
        "rise": {"images": 2, "n_masks": 16},
        "lime": {"images": 1, "n_samples": 128},
        "score_cam": {"images": 1, "layer": "relu"},  # 64 channels instead of 2048
        "iba": {"images": 2, "steps": 3},
    }
    torch.manual_seed(0)
    yield make_case("smerf_complex", smerf_cnn("complex"), 64, 2, {"cam": "relu4", "iba": "relu2"}, 32, small, device)
    layers = {"cam": "block3.relu2", "iba": "block2.relu2"}
    yield make_case("tomsett_cifar10", TomsettCNN(), 32, 10, layers, 32, small, device)
    yield make_case("resnet50_224", resnet50(), 224, 1000, {"cam": "layer4", "iba": "layer2"}, 4, large, device)
    vit = VisionTransformer(224, 16, 12, 3, 192, 768)  # ViT-Tiny
    nn.init.normal_(vit.heads.head.weight, std=0.02)  # torchvision's is zero, and so would be every gradient
    yield replace(make_case("vit_tiny_224", vit, 224, 1000, find_layers(vit), 16, large, device), only=ON_TOKENS)


def quick_cases(device: str) -> Iterator[Case]:
    work = {
        "smoothgrad": {"n_samples": 2},
        "vargrad": {"n_samples": 2},
        "expected_gradients": {"n_samples": 2},
        "occlusion": {"window": 8, "stride": 4},
        "kernel_shap": {"n_samples": 14, "cells": 2},
        "integrated_gradients": {"steps": 2},
        "rise": {"n_masks": 4},
        "lime": {"n_samples": 4},
        "iba": {"steps": 2, "copies": 2},
    }
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 12 * 12, 3)
    )
    yield replace(make_case("tiny", module, 16, 3, {"cam": "3", "iba": "1"}, 2, work, device), compile="off")
    from torchvision.models import VisionTransformer

    vit = VisionTransformer(16, 4, 2, 2, 8, 8, num_classes=3)
    nn.init.normal_(vit.heads.head.weight)
    yield replace(make_case("tiny_vit", vit, 16, 3, find_layers(vit), 2, work, device), compile="off", only=ATTENTION)


# -- what a method cannot avoid ----------------------------------------------------------------------------------------


def forward(case: Case) -> Job:
    point = case.point

    @torch.no_grad()
    def run() -> None:
        case.model.module(point)

    return run


def forward_with_weights(case: Case) -> Job:
    """Forward, every `nn.MultiheadAttention` asked for the weights of its heads."""
    point = case.point
    asked = {"need_weights": True, "average_attn_weights": False}
    layers = [m for m in case.model.module.modules() if isinstance(m, nn.MultiheadAttention)]

    @torch.no_grad()
    def run() -> None:
        hooks = [m.register_forward_pre_hook(lambda m, a, k: (a, k | asked), with_kwargs=True) for m in layers]
        case.model.module(point)
        for hook in hooks:
            hook.remove()

    return run


def forward_backward(case: Case) -> Job:
    point = case.point

    def run() -> None:
        leaf = point.detach().requires_grad_(True)
        torch.autograd.grad(pick(case.model.module(leaf), case.target).sum(), leaf)

    return run


def to_layer(case: Case) -> Job:
    """Forward, and backward to the CAM layer."""
    point, layer = case.point, case.model.layer("cam")

    def run() -> None:
        kept: list[Tensor] = []
        handle = layer.register_forward_hook(lambda module, inputs, output: kept.append(output))
        logits = case.model.module(point.detach().requires_grad_(True))
        handle.remove()
        torch.autograd.grad(pick(logits, case.target).sum(), kept)

    return run


def stem(case: Case) -> Job:
    """Forward up to the IBA layer."""

    return lambda: layer_output(case.model, case.x, "iba")


def tail(case: Case) -> Job:
    """Forward and backward behind the IBA layer."""
    r = layer_output(case.model, case.x, "iba")

    def run() -> None:
        leaf = r.clone().requires_grad_(True)
        logits = go_on(case.model, "iba", case.point[:1], leaf)
        torch.autograd.grad(pick(logits, case.target).sum(), leaf)

    return run


def noise(case: Case) -> Job:
    """A normal number for each neuron of the IBA layer, by torch's own generator."""
    draw, shape = generator(0, "bench/noise", case.x.device), layer_output(case.model, case.x, "iba").shape
    return lambda: torch.randn(shape, generator=draw, device=case.x.device)


def inner_layers(case: Case) -> list[tuple[nn.Module, Tensor, Tensor]]:
    """The kernel layers but the first, each with its input and its output."""
    calls: list[tuple[nn.Module, Tensor, Tensor]] = []
    layers = [m for m in case.model.module.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    handles = [m.register_forward_hook(lambda m, u, z: calls.append((m, u[0].clone(), z.clone()))) for m in layers]
    with torch.no_grad():
        case.model.module(case.point)
    for handle in handles:
        handle.remove()
    return calls[1:]


def layers(case: Case) -> Job:
    """Once more forward through every kernel layer but the first."""
    calls = inner_layers(case)

    @torch.no_grad()
    def run() -> None:
        for layer, u, _ in calls:
            layer(u)

    return run


def layers_back(case: Case) -> Job:
    """Once more backward through every kernel layer but the first."""
    calls = inner_layers(case)

    def run() -> None:
        for layer, u, z in calls:
            if isinstance(layer, nn.Conv2d):
                shape = layer.stride, layer.padding, layer.dilation, False, [0, 0], layer.groups
                torch.ops.aten.convolution_backward(z, u, layer.weight, None, *shape, [True, False, False])
            elif isinstance(layer, nn.Linear):
                z @ layer.weight.detach()

    return run


PASSES = {
    "forward": forward,
    "forward with weights": forward_with_weights,
    "forward+backward": forward_backward,
    "to layer": to_layer,
    "layers": layers,
    "layers back": layers_back,
    "stem": stem,
    "tail": tail,
    "noise": noise,
}


def floor(name: str, method: Any, case: Case) -> dict[str, float]:
    """Passes per image, by kind; empty for methods that need no network."""
    match name:
        case "edge" | "random" | "oracle" | "all_lit" | "fake_cam":
            return {}
        case "eigen_cam":
            return {"forward": 1}
        case "attention_rollout" | "attention_last":
            return {"forward with weights": 1}
        case "occlusion" | "kernel_shap":
            return {"forward": method.passes(case.model, tuple(case.x.shape[1:]))}
        case "guided_grad_cam":
            return {"forward+backward": 1, "to layer": 1}
        case "smoothgrad" | "vargrad" | "expected_gradients":
            return {"forward+backward": method.n_samples}
        case "integrated_gradients":
            return {"forward+backward": method.steps}
        case "rise":
            return {"forward": method.n_masks}
        case "lime":
            return {"forward": method.n_samples}
        case "score_cam":
            return {"forward": method.passes(case.model, tuple(case.x.shape[1:]))}
        case "iba":
            draws = (method.steps - 1) * method.copies
            return {"stem": 1, "tail": draws, "noise": draws}
        case "grad_cam" | "grad_cam_pp" | "layer_cam" | "xgrad_cam":
            return {"to layer": 1}
        case "deep_taylor" | "lrp_a_flat":  # the positive part of a layer's sum
            return {"forward+backward": 1, "layers": 1}
        case "lrp_b_flat":  # the positive and the negative part, each handed down on its own
            return {"forward+backward": 1, "layers": 2, "layers back": 1}
        case "deeplift_reveal_cancel":  # the same, but the negative part is what the positive one leaves of the sum
            return {"forward+backward": 1, "layers": 1, "layers back": 1}
        case "deep_shap":
            return {"forward+backward": len(case.fitted.background if case.fitted.background is not None else ())}
    return {"forward+backward": 1}


# -- peers -------------------------------------------------------------------------------------------------------------


def by_captum(name: str, **options: Any) -> Callable[[Case, Any], Job]:
    def build(case: Case, method: Any) -> Job:
        attribution = getattr(importlib.import_module("captum.attr"), name)(case.model.module)
        return lambda: attribution.attribute(case.point, target=case.target, **options)

    return build


def captum_noise_tunnel(case: Case, method: Any) -> Job:
    attr = importlib.import_module("captum.attr")
    tunnel = attr.NoiseTunnel(attr.Saliency(case.model.module))
    kind = "vargrad" if type(method).__name__ == "VarGrad" else "smoothgrad"
    return lambda: tunnel.attribute(
        case.point, nt_type=kind, nt_samples=method.n_samples, nt_samples_batch_size=max(1, case.chunk // case.batch),
        stdevs=0.1, target=case.target, abs=False,
    )  # fmt: skip


def captum_gradient_shap(case: Case, method: Any) -> Job:
    background = case.model.normalise(case.fitted.background)
    return by_captum("GradientShap", baselines=background, n_samples=method.n_samples)(case, method)


def captum_guided_grad_cam(case: Case, method: Any) -> Job:
    cam = importlib.import_module("captum.attr").GuidedGradCam(case.model.module, case.model.layer(method.layer))
    return lambda: cam.attribute(case.point, target=case.target, interpolate_mode="bilinear")


def captum_occlusion(case: Case, method: Any) -> Job:
    first, second = method.sides(case.x)[0][:2]
    window, stride = int(first.sum()), int(second.argmax())
    at_once = max(1, case.chunk // case.batch)
    channels = case.x.shape[1]
    options = {"sliding_window_shapes": (channels, window, window), "strides": (channels, stride, stride)}
    return by_captum("Occlusion", perturbations_per_eval=at_once, **options)(case, method)


def captum_kernel_shap(case: Case, method: Any) -> Job:
    """Image by image, as it asks for; each batch of its own is as large as ours."""
    superpixels = importlib.import_module("salrun.methods.superpixels")
    attribution = importlib.import_module("captum.attr").KernelShap(case.model.module)
    parts = superpixels.grid(case.x, method.cells).view(-1, 1, *case.x.shape[2:])
    hidden = case.model.normalise(superpixels.switched_off(case.x, parts.flatten(1), "mean", 0.0))

    def run() -> None:
        for b in range(case.batch):
            attribution.attribute(
                case.point[b : b + 1], hidden[b : b + 1], case.target[b : b + 1], feature_mask=parts[b : b + 1],
                n_samples=method.n_samples, perturbations_per_eval=case.chunk,
            )  # fmt: skip

    return run


def captum_integrated_gradients(case: Case, method: Any) -> Job:
    return by_captum("IntegratedGradients", n_steps=method.steps, internal_batch_size=case.chunk)(case, method)


def captum_deep_lift_shap(case: Case, method: Any) -> Job:
    background = case.model.normalise(case.fitted.background)
    return by_captum("DeepLiftShap", baselines=background)(case, method)


def captum_grad_cam(case: Case, method: Any) -> Job:
    attr = importlib.import_module("captum.attr")
    cam = attr.LayerGradCam(case.model.module, case.model.layer(method.layer))
    return lambda: attr.LayerAttribution.interpolate(
        cam.attribute(case.point, target=case.target, relu_attributions=True), tuple(case.x.shape[2:]), "bilinear"
    )


def by_grad_cam(name: str) -> Callable[[Case, Any], Job]:
    def build(case: Case, method: Any) -> Job:
        package = importlib.import_module("pytorch_grad_cam")
        output = importlib.import_module("pytorch_grad_cam.utils.model_targets").ClassifierOutputTarget
        layers = [case.model.layer(method.layer)] if hasattr(method, "layer") else []
        cam = getattr(package, name)(model=case.model.module, target_layers=layers)
        cam.batch_size = case.chunk
        targets = [output(c) for c in case.target.tolist()]
        return lambda: cam(input_tensor=case.point, targets=targets)

    return build


def by_torch_cam(name: str, **options: str) -> Callable[[Case, Any], Job]:
    """`options`: its arguments, by what the case calls them."""

    def build(case: Case, method: Any) -> Job:
        package = importlib.import_module("torchcam.methods")
        arguments = {argument: getattr(case, ours) for argument, ours in options.items()}
        shape = tuple(case.x.shape[1:])
        classes = case.target.tolist()

        def run() -> None:
            with getattr(package, name)(case.model.module, case.model.layer(method.layer), **arguments) as extractor:
                (cam,) = extractor(classes, case.model.module(case.point.requires_grad_(True)))
            nn.functional.interpolate(cam[:, None], shape[1:], mode="bilinear")

        return run

    return build


def torch_cam_legrad(case: Case, method: Any) -> Job:
    package = importlib.import_module("torchcam.methods")
    blocks, classes = [case.model.module.get_submodule(b) for b in blocks_of(case.model.module)], case.target.tolist()

    def run() -> None:
        with package.LeGrad(case.model.module, blocks) as extractor:
            (cam,) = extractor(classes, case.model.module(case.point.requires_grad_(True)), normalized=False)
        nn.functional.interpolate(cam[:, None], case.x.shape[2:], mode="bilinear")

    return run


def pnpxai_rollout(case: Case, method: Any) -> Job:
    """Its order of the layers is another (docs/peers.md); the work is the same, but for the whole product."""
    explainers = importlib.import_module("pnpxai.explainers")
    explainer = explainers.AttentionRollout(case.model.module, head_fusion_method="mean", discard_ratio=0.0)
    return lambda: explainer.attribute(case.point, case.target)


def lxt_vit(case: Case, method: Any) -> Job:
    """What lxt makes of torchvision's ViT (queries and keys get nothing), its patches of torch taken back each time."""
    patches = importlib.import_module("lxt.efficient.models.vit_torch").cp_LRP

    def run() -> None:
        before = {kind: kind.forward for kind in patches}
        try:
            for kind, patch in patches.items():
                patch(kind)
            leaf = case.point.requires_grad_(True)
            leaf.detach() * torch.autograd.grad(pick(case.model.module(leaf), case.target).sum(), leaf)[0]
        finally:
            for kind, forward in before.items():
                kind.forward = forward

    return run


def by_zennit(conv: str, options: dict[str, float], dense: str = "", first: str = "") -> Callable[[Case, Any], Job]:
    """The rule for convolutions, and where they differ those for dense layers and the first layer."""

    def build(case: Case, method: Any) -> Job:
        rules, types = importlib.import_module("zennit.rules"), importlib.import_module("zennit.types")
        composites = importlib.import_module("zennit.composites")
        layers = [
            (types.Convolution, getattr(rules, conv)(**options)),
            (types.Linear, getattr(rules, dense)() if dense else getattr(rules, conv)(**options)),
            (types.Activation, rules.Pass()),
        ]
        composite = composites.LayerMapComposite(layers)
        if first:
            composite = composites.SpecialFirstLayerMapComposite(layers, [(types.Linear, getattr(rules, first)())])
        attributor = importlib.import_module("zennit.attribution").Gradient(case.model.module, composite)
        with torch.no_grad():
            logits = case.model(case.x)
        start = nn.functional.one_hot(case.target, logits.shape[1]) * logits

        def run() -> None:
            with attributor:
                attributor(case.point.requires_grad_(True), start)

        return run

    return build


def shap_deep(case: Case, method: Any) -> Job:
    """One class of each image, as we do; the most probable one: shap lets the class be named by rank only."""
    shap = importlib.import_module("shap")
    explainer = shap.DeepExplainer(case.model.module, case.model.normalise(case.fitted.background))
    return lambda: explainer.shap_values(case.point, ranked_outputs=1, check_additivity=False)


def shap_gradient(case: Case, method: Any) -> Job:
    """As many gradients as IG has steps, at random places of the same path."""
    shap = importlib.import_module("shap")
    explainer = shap.GradientExplainer(case.model.module, torch.zeros_like(case.point[:1]), batch_size=case.chunk)
    return lambda: explainer.shap_values(case.point, nsamples=method.steps, ranked_outputs=1)


def lime_package(case: Case, method: Any) -> Job:
    explainer_class = importlib.import_module("lime.lime_image").LimeImageExplainer

    @torch.no_grad()
    def probabilities(batch: np.ndarray) -> np.ndarray:
        x = torch.from_numpy(batch).permute(0, 3, 1, 2).to(case.x)
        return case.model(x).softmax(1).cpu().numpy()

    def run() -> None:
        explainer = explainer_class(random_state=0)
        for image, target in zip(case.x.permute(0, 2, 3, 1).cpu().numpy(), case.target.tolist(), strict=True):
            explainer.explain_instance(
                image, probabilities, labels=(target,), top_labels=None,
                num_samples=method.n_samples, batch_size=case.chunk,
            )  # fmt: skip

    return run


PEERS: dict[str, dict[str, Callable[[Case, Any], Job]]] = {
    "gradient": {"captum": by_captum("Saliency", abs=False)},
    "sensitivity": {"captum": by_captum("Saliency")},
    "input_x_gradient": {"captum": by_captum("InputXGradient")},
    "smoothgrad": {"captum": captum_noise_tunnel},
    "vargrad": {"captum": captum_noise_tunnel},
    "expected_gradients": {"captum": captum_gradient_shap},
    "guided_grad_cam": {"captum": captum_guided_grad_cam},
    "full_grad": {"grad-cam": by_grad_cam("FullGrad")},
    "occlusion": {"captum": captum_occlusion},
    "kernel_shap": {"captum": captum_kernel_shap},
    "integrated_gradients": {"captum": captum_integrated_gradients, "shap": shap_gradient},
    "deconvnet": {"captum": by_captum("Deconvolution")},
    "guided_backprop": {"captum": by_captum("GuidedBackprop")},
    "lrp_z": {"zennit": by_zennit("Epsilon", {"epsilon": 1e-9})},
    "lrp_epsilon": {"captum": by_captum("LRP"), "zennit": by_zennit("Epsilon", {})},
    "lrp_a_flat": {"zennit": by_zennit("AlphaBeta", {"alpha": 1, "beta": 0}, "Epsilon", "Flat")},
    "lrp_b_flat": {"zennit": by_zennit("AlphaBeta", {"alpha": 2, "beta": 1}, "Epsilon", "Flat")},
    "deep_taylor": {"zennit": by_zennit("ZPlus", {})},
    "attn_lrp": {"lxt": lxt_vit},
    "deeplift_rescale": {"captum": by_captum("DeepLift")},
    "deep_shap": {"captum": captum_deep_lift_shap, "shap": shap_deep},
    "grad_cam": {"captum": captum_grad_cam, "grad-cam": by_grad_cam("GradCAM"), "torch-cam": by_torch_cam("GradCAM")},
    "grad_cam_pp": {"grad-cam": by_grad_cam("GradCAMPlusPlus"), "torch-cam": by_torch_cam("GradCAMpp")},
    "layer_cam": {"grad-cam": by_grad_cam("LayerCAM"), "torch-cam": by_torch_cam("LayerCAM")},
    "xgrad_cam": {"grad-cam": by_grad_cam("XGradCAM"), "torch-cam": by_torch_cam("XGradCAM")},
    "eigen_cam": {"grad-cam": by_grad_cam("EigenCAM")},
    "score_cam": {"grad-cam": by_grad_cam("ScoreCAM"), "torch-cam": by_torch_cam("ScoreCAM", batch_size="chunk")},
    "lime": {"lime": lime_package},
    "attention_rollout": {"pnpxai": pnpxai_rollout},
    "legrad": {"torch-cam": torch_cam_legrad},
}


# -- measuring ---------------------------------------------------------------------------------------------------------


def load_method(name: str, work: dict[str, Any]) -> Method:
    """The method as its configuration file has it, at the paper's scale."""
    return method_part(name, work).method


def contestants(name: str, method: Method, case: Case) -> tuple[dict[str, Job], dict[str, str]]:
    """`exact` and `fast`: the networks a run explains; each peer on a network of its own: its hooks slow no other."""

    def ours(model: Classifier) -> Job:
        def run() -> None:
            method(model, case.x, case.target, case.rng, case.fitted)
            model.forget()

        return run

    jobs, faults = {"exact": ours(case.exact(method))}, {}
    fast = case.fast(method)
    if fast is not None:
        jobs["fast"] = ours(fast)
    for peer, build in PEERS.get(name, {}).items():
        try:
            jobs[peer] = build(replace(case, model=deepcopy(case.model)), method)
        except Exception as fault:
            faults[peer] = said(fault)
    return jobs, faults


def measure(name: str, case: Case, limits: Limits) -> dict[str, Any]:
    """One row of the table."""
    work = dict(case.work.get(name, {}))
    few = case.first(work.pop("images", case.batch))
    method = load_method(name, work)
    passes = floor(name, method, few)
    jobs, faults = contestants(name, method, few)
    head = {
        "model": case.name,
        "family": FAMILIES.get(type(method).__module__.rpartition(".")[2], "baseline") if passes else "baseline",
        "method": name,
        "work": " ".join(f"{k}={v}" for k, v in work.items()),
        "batch": case.batch,
    }
    least = {kind: count * few.batch / case.batch for kind, count in passes.items()}
    jobs = {**{kind: PASSES[kind](case) for kind in passes}, **jobs}
    return measured(head, few.batch, least, jobs, list(PEERS.get(name, {})), limits, faults)


# -- the report --------------------------------------------------------------------------------------------------------


def write(rows: Rows, facts: dict[str, str], out: Path) -> None:
    title = [
        "# Speed of the methods",
        "",
        "Images per second: the median of the rounds [quartiles]; all contestants of a row take turns. `floor`: what",
        "a method cannot avoid, eager, in float32, timed in the same rounds: forward and backward passes, the further",
        "passes through the layers that a rule asks for (alpha-beta rules and Deep Taylor: the parts of each sum;",
        "RevealCancel: one there and one back), and for IBA the noise. `exact`: on the copies of the network that a",
        "run makes, in float32: batch norms folded, channels last, for LIME, RISE and Score-CAM compiled. `fast`:",
        "`numerics=fast` (those three in half precision) or `fast_gradients` (IG, SmoothGrad); every run measures what",
        "that does to its maps. `peer`: the fastest at equal work, each on a network of its own; the others under",
        "`slower_peers`. The images are explained in passes of `batch` (methods.csv), by all. Of rollout and the last",
        "attention the floor is a forward pass of torchvision's ViT that is asked for its weights.",
        *ABOUT,
    ]
    write_rows(out / "methods", title, list(rows.values()), ("model", "family", "method"), facts)


def main(argv: list[str] | None = None) -> int:
    names = sorted(path.stem for path in CONF.glob("*.yaml") if path.stem not in ("captum", "file"))
    given = parser(__doc__, 15.0)
    given.add_argument("--methods", nargs="+", choices=names, default=names, metavar="NAME")
    given.add_argument(
        "--models", nargs="+", metavar="NAME", help="of smerf_complex, tomsett_cifar10, resnet50_224, vit_tiny_224"
    )
    options = given.parse_args(argv)
    limits, watch = start(options)
    facts = machine(limits.device)
    known = read_rows(options.out / "methods", "method")
    left, broken = [], []
    for case in (quick_cases if options.quick else full_cases)(limits.device):
        if options.models and case.name not in options.models:
            continue
        for name in filter(case.takes, options.methods):
            if options.missing and known.get((case.name, name), {}).get("exact"):
                continue
            if limits.over():
                left.append(f"{case.name} {name}")
                continue
            row = known[case.name, name] = measure(name, case, limits)
            print(told(row), flush=True)
            if row["exact"] is None:
                broken.append(f"{name} failed on {case.name}: {row['note']}")
            write(known, facts | watch.facts(), options.out)
    return finish(watch, left, broken)


if __name__ == "__main__":
    sys.exit(main())
