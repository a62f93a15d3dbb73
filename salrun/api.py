"""The same engine without Hydra, files or configs: `explain`, `evaluate`, `show` for any `nn.Module` that gives logits.

Images, maps, masks and backgrounds may be arrays; `salrun.inputs` says what is accepted and how it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from salrun.config.catalogue import load_plugins, names
from salrun.config.parts import MetricPart, method_part, metric_parts
from salrun.errors import SalrunError, unknown
from salrun.inputs import Array, as_images, as_maps, as_tensor, as_tensors, fitting, in_full_precision, logits_of
from salrun.methods.chunking import FREE_CHUNK, halving
from salrun.methods.iba import fit_feature_stats
from salrun.metrics.common import settled
from salrun.metrics.perturbation import batch_size
from salrun.models.classifier import Classifier
from salrun.models.layers import find_layers
from salrun.models.soundness import gradients_of
from salrun.models.target import Target, only_logit
from salrun.results.comparison import Comparison
from salrun.results.comparison import compare as _compare
from salrun.rng import Draws
from salrun.types import FLAGS, Fitted, Method, Metric, Scene, Score
from salrun.views import VIEWS, NamedView

if TYPE_CHECKING:
    import pandas as pd

P = ParamSpec("P")
R = TypeVar("R")


Targets = Tensor | np.ndarray | Sequence[int] | int | Target | None  # a function of the output: what is explained


class Maps(Tensor):
    """Raw attributions that a notebook draws; what is computed of them are ordinary tensors."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def _repr_png_(self) -> bytes:
        return show(None, self[:8])._repr_png_()

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self.clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.as_subclass(Tensor).__reduce_ex__(protocol)


@dataclass(frozen=True, repr=False)
class Scores:
    """`values` and `flags` (names) per image; `curve` where the metric has one; `variants` where there are several.

    Variants are named by the mode of the metric's config, by the score it gives, or by both, `mode/score`; `values` are
    the first one's.
    """

    values: Tensor
    flags: list[str]
    curve: Tensor | None = None
    variants: Mapping[str, Scores] | None = None

    def frame(self) -> pd.DataFrame:
        """One row per image and variant: `image` (its place), `variant` where there are several, `value`, `flag`."""
        import pandas as pd

        tables = {
            name: pd.DataFrame({"image": range(len(one.flags)), "value": one.values.cpu().numpy(), "flag": one.flags})
            for name, one in (self.variants or {"": self}).items()
        }
        if not self.variants:
            return tables[""]
        return pd.concat(tables, names=["variant"]).reset_index("variant").reset_index(drop=True)

    def __repr__(self) -> str:
        lines = []
        for name, one in (self.variants or {"": self}).items():
            wrong = {flag: one.flags.count(flag) for flag in dict.fromkeys(one.flags) if flag != "ok"}
            flagged = "".join(f", {n} {flag}" for flag, n in wrong.items())
            mean = one.values.nanmean().item()
            lines.append(f"{name + ': ' if name else ''}mean {mean:.4g} over {len(one.flags)} images{flagged}")
        return f"Scores({'; '.join(lines)})"

    def _repr_html_(self) -> str:
        return self.frame()._repr_html_()  # type: ignore[operator]


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
    images: Array | Sequence[Array],
    targets: Targets = None,
    method: str | Method = "gradient",
    *,
    masks: Mapping[str, Array] | None = None,
    roles: Mapping[str, Array] | None = None,
    background: Array | None = None,
    layer: str | None = None,
    seed: int = 0,
    ids: Sequence[str] | None = None,
    chunk: int | None = None,
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
    **options: Any,
) -> Tensor:
    """Raw attributions (B, C, H, W) or (B, 1, H, W) of `method` for class `targets[b]` of image b (default: predicted).

    `targets` may be a function of the module's output that gives one number per image, (B,): the difference of two
    logits, the cosine of an embedding to a reference, the mean logit over a mask. `options` are the method's config
    keys. `mean` and `std` normalise the images in front of the module (default: the images are given as the module
    wants them). The module is left as found; one in half precision is computed as a copy in float32.
    """
    part = method_part(method, options).method
    with _borrowed(model, mean, std, layer, images, targets) as (classifier, x), _blamed(classifier, x, targets):
        target = _targets(classifier, x, targets)
        fitted = _fitted(part, classifier, background, layer, masks, roles, chunk, x.device)
        draws = _draws(seed, ids, x)

        def raw(size: int | None) -> Tensor:
            return part(classifier, x, target, draws, replace(fitted, chunk=size))

        return halving(raw, chunk, max(len(x), FREE_CHUNK), type(part).__name__).detach().as_subclass(Maps)


@_ordinary
def evaluate(
    model: nn.Module,
    images: Array | Sequence[Array],
    targets: Targets,
    maps: Array | Sequence[Array],
    metric: str | Metric = "insertion",
    *,
    view: str | None = None,
    masks: Mapping[str, Array] | None = None,
    roles: Mapping[str, Array] | None = None,
    background: Array | None = None,
    layer: str | None = None,
    method: str | Method | None = None,
    other_maps: Mapping[str, Array] | None = None,
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
    needs = parts[0].metric.needs
    if "explain" in needs and method is None:
        raise SalrunError(f"metric '{metric}' explains again: give method=<the method that made the maps>")
    if "masks" in needs and not masks:
        raise SalrunError(f"metric '{metric}' needs masks={{name: (B, H, W) bool}} and roles={{name: (B,)}}")
    with _borrowed(model, mean, std, layer, images, targets) as (classifier, x), _blamed(classifier, x, targets):
        planes = as_maps(maps, x)
        others = {name: as_maps(other, x, f"other_maps['{name}']") for name, other in (other_maps or {}).items()}
        target = _targets(classifier, x, targets)
        draws = _draws(seed, ids, x)
        known = as_tensors(masks, "masks", x.device), as_tensors(roles, "roles", x.device)
        scene = Scene(classifier, x, target, target, draws, *known, chunk=chunk)
        again: Callable[..., Tensor] | None = None
        if method is not None:
            explainer = method_part(method).method
            fitted = _fitted(explainer, classifier, background, layer, masks, roles, chunk, x.device)
            again = lambda x, of=target: explainer(classifier, x, of, draws, fitted)  # noqa: E731
        variants: dict[str, Scores] = {}
        for part in parts:
            variants |= _variants(part, planes, scene, again, others)
    first = next(iter(variants.values()))
    return first if list(variants) == [""] else replace(first, variants=variants)


def show(
    images: Array | Sequence[Array] | None,
    maps: Array | Sequence[Array] | Mapping[str, Array],
    *,
    signed: bool | None = None,
    mode: Literal["overlay", "map"] = "overlay",
) -> Any:
    """A matplotlib figure, one row per image: itself and its map, or its maps by name, in the colours of the report.

    A map is shown as its channel sum over its own largest magnitude, red for and blue against where it is `signed`
    (default: where it has negative values); over the grey image with `mode="overlay"`. Without images, maps alone.
    """
    from salrun.report.drawing import grid

    named = maps if isinstance(maps, Mapping) else {"": maps}
    planes = {name: as_tensor(given, "maps").detach().cpu().double().numpy() for name, given in named.items()}
    pictures = None if images is None else as_tensor(images, "images").detach().cpu().double().numpy()
    return grid(pictures, planes, signed, mode)


# -- inside ------------------------------------------------------------------------------------------------------------


def _variants(
    part: MetricPart,
    maps: Tensor,
    scene: Scene,
    again: Callable[..., Tensor] | None,
    other_maps: Mapping[str, Tensor],
) -> dict[str, Scores]:
    """The scores of one mode of a metric, by mode and name."""
    seen = _seen_through(part)

    def other(name: str, x: Tensor | None = None) -> Tensor:
        if x is not None:
            raise SalrunError(f"{type(part.metric).__name__} explains other images by other models: that takes a run")
        if name not in other_maps:
            raise unknown("map", name, other_maps, "other_maps")
        return seen(other_maps[name])

    def explain_again(x: Tensor, target: Tensor | None = None) -> Tensor:
        assert again is not None
        return seen(again(x) if target is None else again(x, target))

    scene = replace(scene, explain=None if again is None else explain_again, other_map=other)
    plane = seen(maps)

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
    return Scores(final.value.detach(), [FLAGS[f] for f in final.flag.tolist()], final.curve)


def _draws(seed: int, ids: Sequence[str] | None, images: Tensor) -> Draws:
    """Images are named by position unless `ids` says how: give ids to get the same noise in another batch."""
    return Draws.of(seed, ids if ids is not None else [str(i) for i in range(len(images))], images.device)


def _targets(model: Classifier, images: Tensor, targets: Targets) -> Tensor:
    if callable(targets):
        return torch.zeros(len(images), dtype=torch.int64, device=images.device)
    if targets is None:
        with torch.no_grad():
            return model(images).argmax(1)
    target = torch.as_tensor(targets, device=images.device)
    if target.is_floating_point():
        raise SalrunError(f"targets are numbers of classes, got {target.dtype}")
    target = target.to(torch.int64)
    if target.dim() == 0:
        target = target.expand(len(images))
    if target.shape != (len(images),):
        raise SalrunError(f"{len(images)} images need {len(images)} targets, got {tuple(target.shape)}")
    return target


def _fitted(
    part: Method,
    model: Classifier,
    background: Array | None,
    layer: str | None,
    masks: Mapping[str, Array] | None,
    roles: Mapping[str, Array] | None,
    chunk: int | None,
    device: torch.device,
) -> Fitted:
    name = type(part).__name__
    stats = None
    references = None
    if background is not None:
        references = fitting(model, as_images(background, "background").to(device), "background")
    if "background" in part.needs and references is None:
        raise SalrunError(f"{name} compares with reference images: give background=(R, C, H, W)")
    if "feature_stats" in part.needs:
        if references is None:
            raise SalrunError(f"{name} needs feature statistics: give background=<some hundred training images>")
        chosen = layer or str(getattr(part, "layer", "iba"))
        stats = fit_feature_stats(model, chosen, references.split(50))
    if "masks" in part.needs and not masks:
        raise SalrunError(f"{name} needs masks={{name: (B, H, W) bool}} and roles={{name: (B,)}}")
    known = as_tensors(masks, "masks", device), as_tensors(roles, "roles", device)
    return Fitted(references, stats, layer, *known, chunk)


@contextmanager
def _borrowed(
    model: nn.Module,
    mean: Sequence[float],
    std: Sequence[float],
    layer: str | None,
    images: Array | Sequence[Array],
    targets: Targets,
) -> Iterator[tuple[Classifier, Tensor]]:
    """The module in eval mode with frozen weights, as a Classifier that gives logits, and the images as it takes them.

    Modes, flags and hooks are restored whatever happens.
    """
    x = as_images(images)
    model = in_full_precision(model)
    modes = {m: m.training for m in model.modules()}
    frozen = {p: p.requires_grad for p in model.parameters()}
    if isinstance(model, Classifier):
        classifier = model
    else:
        classifier = Classifier(model, mean, std, find_layers(model), type(model).__name__)
        weight = next(model.parameters(), None)
        if weight is not None and not isinstance(images, Tensor):
            x = x.to(weight.device)
        classifier.to(x.device)
    layers = classifier.layers
    if layer is not None:
        classifier.layer(layer)
        classifier.layers = {**layers, "cam": layer, "iba": layer}

    def read(module: nn.Module, given: Any, output: Any) -> Tensor:
        return only_logit(targets, output) if callable(targets) else logits_of(output, classifier.name)

    hook = classifier.module.register_forward_hook(read)
    try:
        model.eval()
        for parameter in frozen:
            parameter.requires_grad_(False)
        yield classifier, fitting(classifier, x)
    finally:
        hook.remove()
        for module, mode in modes.items():
            module.training = mode
        for parameter, flag in frozen.items():
            parameter.requires_grad_(flag)
        classifier.layers = layers
        classifier.forget()


@contextmanager
def _blamed(model: Classifier, images: Tensor, targets: Targets) -> Iterator[None]:
    """What torch says of images and targets that do not fit the module, in words for the caller."""
    try:
        with gradients_of(model):
            yield
    except (RuntimeError, IndexError) as fault:
        asked = torch.as_tensor([] if targets is None else targets).flatten().tolist()
        with suppress(RuntimeError), torch.no_grad():
            classes = model(images[:1]).shape[-1]
            if any(not 0 <= c < classes for c in asked):
                raise SalrunError(f"targets must be classes 0 to {classes - 1} of the model, got {asked}") from fault
        raise
