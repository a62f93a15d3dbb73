"""The same engine without Hydra, files or configs: `explain` and `evaluate` for any `nn.Module` that gives logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from salrun.config.catalogue import load_plugins, names
from salrun.config.parts import MetricPart, method_part, metric_parts
from salrun.errors import SalrunError, unknown
from salrun.methods.chunking import FREE_CHUNK, halving
from salrun.methods.iba import fit_feature_stats
from salrun.metrics.common import settled
from salrun.metrics.perturbation import batch_size
from salrun.models.classifier import Classifier
from salrun.models.layers import find_layers
from salrun.results.comparison import Comparison
from salrun.results.comparison import compare as _compare
from salrun.rng import Draws
from salrun.types import FLAGS, Fitted, Method, Metric, Scene, Score
from salrun.views import VIEWS, NamedView

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Scores:
    """`values` and `flags` (names) per image; `curve` where the metric has one; `variants` where there are several.

    Variants are named by the mode of the metric's config, by the score it gives, or by both, `mode/score`; `values` are
    the first one's.
    """

    values: Tensor
    flags: list[str]
    curve: Tensor | None = None
    variants: Mapping[str, Scores] | None = None


def compare(*runs: Path | str) -> list[Comparison]:
    """The comparison of the methods of finished runs (their folders), as `salrun compare` prints it.

    One per experiment, data set, model and setting; runs that differ in their seed are joined. `.sentence`, `.frame()`,
    `.pairs()` and `.agreement` are what the tables hold.
    """
    return _compare(*runs)


def list_methods() -> dict[str, str]:
    """Method names and what they are."""
    load_plugins()
    return {n: about for n, about in names("methods").items() if "/" not in n}


def list_metrics() -> dict[str, str]:
    """Metric names and what they are."""
    load_plugins()
    return {n: about for n, about in names("metrics").items() if "/" not in n}


def _ordinary(function: Callable[P, R]) -> Callable[P, R]:
    """The function outside torch.inference_mode(), where no gradient can be taken, on copies of what was made in it."""

    @wraps(function)
    def outside(*args: P.args, **kwargs: P.kwargs) -> R:
        if not torch.is_inference_mode_enabled():
            return function(*args, **kwargs)
        with torch.inference_mode(False):
            copied: Any = tree_map_only(Tensor, lambda t: t.clone() if t.is_inference() else t, (args, kwargs))
            return function(*copied[0], **copied[1])

    return outside


@_ordinary
def explain(
    model: nn.Module,
    images: Tensor,
    targets: Tensor | Sequence[int] | int | None = None,
    method: str | Method = "gradient",
    *,
    masks: Mapping[str, Tensor] | None = None,
    roles: Mapping[str, Tensor] | None = None,
    background: Tensor | None = None,
    layer: str | None = None,
    seed: int = 0,
    ids: Sequence[str] | None = None,
    chunk: int | None = None,
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
    **options: Any,
) -> Tensor:
    """Raw attributions (B, C, H, W) or (B, 1, H, W) of `method` for class `targets[b]` of image b (default: predicted).

    `options` are the method's config keys. `mean` and `std` normalise the images in front of the module (default: the
    images are given as the module wants them). The module is left as found.
    """
    part = method_part(method, options).method
    with _borrowed(model, mean, std, layer, images) as classifier, _blamed(classifier, images, targets):
        target = _targets(classifier, images, targets)
        fitted = _fitted(part, classifier, background, layer, masks, roles, chunk)
        draws = _draws(seed, ids, images)

        def raw(size: int | None) -> Tensor:
            return part(classifier, images, target, draws, replace(fitted, chunk=size))

        return halving(raw, chunk, max(len(images), FREE_CHUNK), type(part).__name__).detach()


@_ordinary
def evaluate(
    model: nn.Module,
    images: Tensor,
    targets: Tensor | Sequence[int] | int | None,
    maps: Tensor,
    metric: str | Metric = "insertion",
    *,
    view: str | None = None,
    masks: Mapping[str, Tensor] | None = None,
    roles: Mapping[str, Tensor] | None = None,
    background: Tensor | None = None,
    layer: str | None = None,
    method: str | Method | None = None,
    other_maps: Mapping[str, Tensor] | None = None,
    seed: int = 0,
    ids: Sequence[str] | None = None,
    chunk: int | None = None,
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
    **options: Any,
) -> Scores:
    """The score of `maps` (raw attributions) under `metric`, one value and flag per image.

    `view` reduces maps to planes (default: the metric's own); `method` is needed by metrics that explain again;
    `options` are the metric's config keys.
    """
    parts = metric_parts(metric, options if view is None else {**options, "view": view})
    if maps.shape[0] != images.shape[0] or maps.shape[2:] != images.shape[2:]:
        raise SalrunError(f"maps of shape {tuple(maps.shape)} do not fit images {tuple(images.shape)}")
    needs = parts[0].metric.needs
    if "explain" in needs and method is None:
        raise SalrunError(f"metric '{metric}' explains again: give method=<the method that made the maps>")
    if "masks" in needs and not masks:
        raise SalrunError(f"metric '{metric}' needs masks={{name: (B, H, W) bool}} and roles={{name: (B,)}}")
    with _borrowed(model, mean, std, layer, images) as classifier, _blamed(classifier, images, targets):
        target = _targets(classifier, images, targets)
        draws = _draws(seed, ids, images)
        scene = Scene(classifier, images, target, target, draws, masks or {}, roles or {}, chunk=chunk)
        again: Callable[[Tensor], Tensor] | None = None
        if method is not None:
            explainer = method_part(method).method
            fitted = _fitted(explainer, classifier, background, layer, masks, roles, chunk)
            again = lambda x: explainer(classifier, x, target, draws, fitted)  # noqa: E731
        variants: dict[str, Scores] = {}
        for part in parts:
            variants |= _variants(part, maps, scene, again, other_maps or {})
    first = next(iter(variants.values()))
    return first if list(variants) == [""] else replace(first, variants=variants)


# -- inside ------------------------------------------------------------------------------------------------------------


def _variants(
    part: MetricPart,
    maps: Tensor,
    scene: Scene,
    again: Callable[[Tensor], Tensor] | None,
    other_maps: Mapping[str, Tensor],
) -> dict[str, Scores]:
    """The scores of one mode of a metric, by mode and name."""
    seen = _seen_through(part)

    def other(name: str) -> Tensor:
        if name not in other_maps:
            raise unknown("map", name, other_maps, "other_maps")
        return seen(other_maps[name])

    explain_again = None if again is None else lambda x: seen(again(x))
    scene, plane = replace(scene, explain=explain_again, other_map=other), seen(maps)

    def measured(size: int | None) -> Score | dict[str, Score]:
        return part.metric(plane, replace(scene, chunk=size))

    result = halving(measured, scene.chunk, batch_size(scene.x, None), type(part.metric).__name__)
    named = result if isinstance(result, dict) else {"": result}
    return {"/".join(filter(None, [part.mode, name])): _scores(score, maps) for name, score in named.items()}


def _seen_through(part: MetricPart) -> Callable[[Tensor], Tensor]:
    """What makes of raw maps what a metric reads; without a method of the run's, "method" is the absolute maximum."""
    if part.view is None:
        return lambda raw: raw
    return part.view if isinstance(part.view, NamedView) else VIEWS["max_abs"]


def _scores(score: Score, maps: Tensor) -> Scores:
    final = settled(score, maps)
    return Scores(final.value, [FLAGS[f] for f in final.flag.tolist()], final.curve)


def _draws(seed: int, ids: Sequence[str] | None, images: Tensor) -> Draws:
    """Images are named by position unless `ids` says how: give ids to get the same noise in another batch."""
    return Draws.of(seed, ids if ids is not None else [str(i) for i in range(len(images))], images.device)


def _targets(model: Classifier, images: Tensor, targets: Tensor | Sequence[int] | int | None) -> Tensor:
    if images.dim() != 4:
        raise SalrunError(f"images must be (B, C, H, W), got {tuple(images.shape)}")
    if targets is None:
        with torch.no_grad():
            return model(images).argmax(1)
    if isinstance(targets, int):
        targets = [targets] * len(images)
    target = torch.as_tensor(targets, device=images.device)
    if target.is_floating_point():
        raise SalrunError(f"targets are numbers of classes, got {target.dtype}")
    target = target.to(torch.int64)
    if target.shape != (len(images),):
        raise SalrunError(f"{len(images)} images need {len(images)} targets, got {tuple(target.shape)}")
    return target


def _fitted(
    part: Method,
    model: Classifier,
    background: Tensor | None,
    layer: str | None,
    masks: Mapping[str, Tensor] | None,
    roles: Mapping[str, Tensor] | None,
    chunk: int | None,
) -> Fitted:
    name = type(part).__name__
    stats = None
    if "background" in part.needs and background is None:
        raise SalrunError(f"{name} compares with reference images: give background=(R, C, H, W)")
    if "feature_stats" in part.needs:
        if background is None:
            raise SalrunError(f"{name} needs feature statistics: give background=<some hundred training images>")
        chosen = layer or str(getattr(part, "layer", "iba"))
        stats = fit_feature_stats(model, chosen, background.split(50))
    if "masks" in part.needs and not masks:
        raise SalrunError(f"{name} needs masks={{name: (B, H, W) bool}} and roles={{name: (B,)}}")
    return Fitted(background, stats, layer, masks or {}, roles or {}, chunk)


@contextmanager
def _borrowed(
    model: nn.Module, mean: Sequence[float], std: Sequence[float], layer: str | None, images: Tensor
) -> Iterator[Classifier]:
    """The module in eval mode with frozen weights, as a Classifier; modes and flags restored whatever happens."""
    modes = {m: m.training for m in model.modules()}
    frozen = {p: p.requires_grad for p in model.parameters()}
    if isinstance(model, Classifier):
        classifier = model
    else:
        classifier = Classifier(model, mean, std, find_layers(model), type(model).__name__).to(images.device)
    layers = classifier.layers
    if layer is not None:
        classifier.layer(layer)
        classifier.layers = {**layers, "cam": layer, "iba": layer}
    try:
        model.eval()
        for parameter in frozen:
            parameter.requires_grad_(False)
        yield classifier
    finally:
        for module, mode in modes.items():
            module.training = mode
        for parameter, flag in frozen.items():
            parameter.requires_grad_(flag)
        classifier.layers = layers
        classifier.forget()


@contextmanager
def _blamed(model: Classifier, images: Tensor, targets: Tensor | Sequence[int] | int | None) -> Iterator[None]:
    """What torch says of images and targets that do not fit the module, in words for the caller."""
    if not images.is_floating_point():
        raise SalrunError(f"images must be floats, got {images.dtype}: images.float() / 255, say")
    try:
        yield
    except (RuntimeError, IndexError) as fault:
        weights = {p.dtype for p in model.parameters() if p.is_floating_point()}
        if weights and images.dtype not in weights:
            wanted = ", ".join(sorted(map(str, weights)))
            raise SalrunError(f"images are {images.dtype}, the model's weights {wanted}: {fault}") from fault
        asked = torch.as_tensor([] if targets is None else targets).flatten().tolist()
        with suppress(RuntimeError), torch.no_grad():
            classes = model(images[:1]).shape[-1]
            if any(not 0 <= c < classes for c in asked):
                raise SalrunError(f"targets must be classes 0 to {classes - 1} of the model, got {asked}") from fault
        raise
