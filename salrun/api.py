"""The same engine without Hydra, files or configs: `explain` and `evaluate` for any `nn.Module` that gives logits."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar

import torch
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from salrun.build import OF_METHOD, OF_METRIC
from salrun.errors import SalrunError, near, unknown
from salrun.methods.iba import fit_feature_stats
from salrun.models.classifier import Classifier
from salrun.models.layers import find_layers
from salrun.registry import PLUGINS, conf_dir, load_plugins, names
from salrun.rng import Draws
from salrun.types import FLAGS, Fitted, Method, Metric, Scene, Score
from salrun.views import map_flags, view

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Scores:
    """`values` and `flags` (names) per image; `curves` where the metric has them; `variants` where it gives several."""

    values: Tensor
    flags: list[str]
    curve: Tensor | None = None
    variants: Mapping[str, Scores] | None = None


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
    part = _method(method, options)
    with _borrowed(model, mean, std, layer, images) as classifier, _blamed(classifier, images, targets):
        target = _targets(classifier, images, targets)
        fitted = _fitted(part, classifier, background, layer, masks, roles, chunk)
        return part(classifier, images, target, _draws(seed, ids, images), fitted).detach()


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
    part, default_view = _metric(metric, options)
    if maps.shape[0] != images.shape[0] or maps.shape[2:] != images.shape[2:]:
        raise SalrunError(f"maps of shape {tuple(maps.shape)} do not fit images {tuple(images.shape)}")
    chosen = None if "raw" in part.needs else _view(view or default_view)
    with _borrowed(model, mean, std, layer, images) as classifier, _blamed(classifier, images, targets):
        target = _targets(classifier, images, targets)
        draws = _draws(seed, ids, images)
        again = None
        if method is not None:
            explainer = _method(method, {})
            fitted = _fitted(explainer, classifier, background, layer, masks, roles, chunk)

            def again(x: Tensor) -> Tensor:
                raw = explainer(classifier, x, target, draws, fitted)
                return chosen(raw) if chosen else raw

        elif "explain" in part.needs:
            raise SalrunError(f"metric '{metric}' explains again: give method=<the method that made the maps>")
        others = dict(other_maps or {})

        def other(name: str) -> Tensor:
            if name not in others:
                raise unknown("map", name, others, "other_maps")
            return chosen(others[name]) if chosen else others[name]

        if "masks" in part.needs and not masks:
            raise SalrunError(f"metric '{metric}' needs masks={{name: (B, H, W) bool}} and roles={{name: (B,)}}")
        scene = Scene(classifier, images, target, target, draws, masks or {}, roles or {}, again, other, chunk=chunk)
        score = part(chosen(maps) if chosen else maps, scene)
    flags = map_flags(maps)
    if not isinstance(score, dict):
        return _scores(score, flags)
    variants = {name: _scores(s, flags) for name, s in score.items()}
    first = next(iter(variants.values()))
    return Scores(first.values, first.flags, first.curve, variants)


# -- inside ------------------------------------------------------------------------------------------------------------


def _scores(score: Score, flags: Tensor) -> Scores:
    from salrun.stages import without_nan_maps

    settled = without_nan_maps(score, flags)
    return Scores(settled.value, [FLAGS[f] for f in settled.flag.tolist()], settled.curve)


@lru_cache(maxsize=256)
def _default(group: str, name: str) -> dict[str, Any]:
    """A part's config file with its standard values (paper-scale budgets)."""
    load_plugins()
    if name in PLUGINS[group]:
        part = PLUGINS[group][name]
        return {"_target_": f"{part.__module__}.{part.__qualname__}"}
    known = names(group)
    if name not in known:
        raise unknown(group.rstrip("s") if group == "methods" else "metric", name, [n for n in known if "/" not in n])
    settings = OmegaConf.create({"scale": "paper", "budget": {}})
    spec = OmegaConf.merge(settings, OmegaConf.load(conf_dir() / group / f"{name}.yaml"))
    plain: Any = OmegaConf.to_container(spec, resolve=True)
    return dict(plain[name])


def _method(method: str | Method, options: Mapping[str, Any]) -> Method:
    if isinstance(method, Method):
        return method
    if method.startswith("captum:"):
        from salrun.methods.captum import Captum

        return Captum(cls=method.partition(":")[2], options=dict(options))
    return _instance("methods", method, options, OF_METHOD)[0]


def _metric(metric: str | Metric, options: Mapping[str, Any]) -> tuple[Metric, str]:
    if isinstance(metric, Metric):
        return metric, "max_abs"
    part, spec = _instance("metrics", metric, options, OF_METRIC)
    chosen = spec.get("view", "max_abs")
    return part, "max_abs" if chosen == "method" else chosen


def _instance(group: str, name: str, options: Mapping[str, Any], reserved: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    spec = _default(group, name)
    module, _, cls = spec["_target_"].rpartition(".")
    part = getattr(importlib.import_module(module), cls)
    own = {k: v for k, v in spec.items() if k not in reserved and k != "_target_"}
    known = [f.name for f in fields(part)]
    for key in options:
        if key not in known:
            raise SalrunError(f"{name} has no option '{key}'{near(key, known)}")
    return part(**{**own, **options}), spec


def _view(name: str) -> Any:
    return view(name)


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
    except torch.OutOfMemoryError:
        raise
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
