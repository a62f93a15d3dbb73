"""Methods that are not ours: any attribution class of Captum, and any function of the user's."""

from __future__ import annotations

import copy
import importlib
import inspect
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from pkgutil import resolve_name
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from salrun.errors import SalrunError, unknown
from salrun.methods.chunking import gather_chunked, out_of_memory
from salrun.models.classifier import Classifier, check_targets
from salrun.rng import Draws, hash64
from salrun.types import Fitted, Method

# These draw from the global generators: run image by image, each image with its own seed.
STOCHASTIC = ("NoiseTunnel", "GradientShap", "ShapleyValueSampling", "Lime", "KernelShap", "LimeBase")
NOT_FOR_IMAGES = ("LLM", "DataLoader")


def attributions() -> dict[str, Any]:
    """Captum's attribution classes that explain images, by name."""
    try:
        attr = importlib.import_module("captum.attr")
    except ImportError as error:
        raise SalrunError("method 'captum' needs the captum package: pip install 'salrun[peers]'") from error
    return {
        name: cls
        for name, cls in vars(attr).items()
        if inspect.isclass(cls)
        and issubclass(cls, attr.Attribution)
        and hasattr(cls, "attribute")
        and not any(word in name for word in NOT_FOR_IMAGES)
    }


def plain(value: Any) -> Any:
    """Lists (all that YAML knows) as the tuples that Captum asks for."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple) or type(value).__name__ == "ListConfig":
        return tuple(plain(item) for item in value)
    return value


def parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """The global generators of torch and numpy at `seed`, put back afterwards."""
    state = np.random.get_state()  # noqa: NPY002 (Captum draws from it)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        try:
            yield
        finally:
            np.random.set_state(state)  # noqa: NPY002


@contextmanager
def blamed(name: str) -> Iterator[None]:
    """Captum's refusals as errors that name it."""
    try:
        yield
    except (TypeError, ValueError, AttributeError, AssertionError, NotImplementedError, RuntimeError) as error:
        if out_of_memory(error):
            raise
        raise SalrunError(f"captum's {name} does not work here: {error}") from error


@dataclass
class Captum(Method):
    """`captum.attr.<cls>(model).attribute(x, target=target, **options)`.

    `init` goes to the constructor, `options` to `attribute`. Layer methods read `layer`; their maps are summed over
    channels and resized to the image. Classes that want `baselines` get the background images; NoiseTunnel wraps `of`.
    Occlusion without a window slides one of an eighth of the image by half its side. Speed and memory are Captum's.
    """

    cls: str = "IntegratedGradients"
    options: dict = field(default_factory=dict)
    init: dict = field(default_factory=dict)
    of: str = "Saliency"
    layer: str = "cam"
    space: Literal["norm", "raw"] = "norm"

    paper_name: ClassVar[str] = "Captum"
    on_host: ClassVar[str] = "Captum's own code"
    source: ClassVar[str] = "Kokhlikyan et al. 2020, arXiv:2009.07896"

    def __post_init__(self) -> None:
        classes = attributions()
        for name in (self.cls, self.of):
            if name not in classes:
                raise unknown("attribution", name, classes, "captum.attr")
        if "FeaturePermutation" in self.cls:
            raise SalrunError(
                f"captum's {self.cls} swaps features between images: a map would depend on its batch-mates"
            )
        accepted = parameters(classes[self.cls].attribute)
        if not any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
            for name in self.options:
                if name not in accepted:
                    raise unknown("option", name, set(accepted) - {"self", "inputs", "target"}, f"captum's {self.cls}")
        if self.wants_background:
            self.needs = frozenset({"background"})  # type: ignore[misc]

    @property
    def wants_background(self) -> bool:
        asked = parameters(attributions()[self.cls].attribute).get("baselines")
        return asked is not None and asked.default is asked.empty and "baselines" not in self.options

    def passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        """Three per step or sample where the class counts them; what else it does is not known."""
        accepted = parameters(attributions()[self.cls].attribute)
        for name in ("n_steps", "n_samples", "nt_samples"):
            if name in accepted:
                return 3.0 * float(self.options.get(name, accepted[name].default))
        return 3.0

    def __call__(self, model: Classifier, x: Tensor, target: Tensor, rng: Draws, fitted: Fitted) -> Tensor:
        check_targets(x, target)
        stochastic = any(name in self.cls for name in STOCHASTIC)

        def part_of(part: slice) -> Tensor:
            seed = hash64(rng.seed, "captum", *rng.key[part].tolist()) if stochastic else rng.seed
            with seeded(seed & (2**63 - 1), x.device):
                return self.attribute(model, x[part], target[part], fitted)

        return gather_chunked(part_of, len(x), 1 if stochastic else fitted.chunk)

    def attribute(self, model: Classifier, x: Tensor, target: Tensor, fitted: Fitted) -> Tensor:
        """Captum's answer for these images, as large as they are."""
        explainer = self.explainer(self.cls, model, fitted)
        options = self.arguments(explainer, model, x, fitted)
        if "target" in parameters(explainer.attribute) or self.cls == "NoiseTunnel":
            options.setdefault("target", target)
        point = model.enter(x, self.space).detach()
        with torch.enable_grad(), warnings.catch_warnings(), blamed(self.cls):
            warnings.simplefilter("ignore")  # about gradients and hooks that it sets and removes by itself
            answer = explainer.attribute(point, **options)
        raw = (answer[0] if isinstance(answer, tuple) else answer).detach()
        if raw.shape == x.shape:
            return raw
        if raw.ndim != 4:
            raise SalrunError(f"captum's {self.cls} gives {tuple(raw.shape)} for images {tuple(x.shape)}: no map")
        return F.interpolate(raw.sum(1, keepdim=True), size=x.shape[-2:], mode="bilinear", align_corners=False)

    def explainer(self, name: str, model: Classifier, fitted: Fitted) -> Any:
        cls = attributions()[name]
        asked, given = parameters(cls), plain(self.init) if name == self.cls else {}
        if "attribution_method" in asked:
            return cls(self.explainer(self.of, model, fitted), **given)
        if "model" in asked:
            model = copy.deepcopy(model)  # these classes put hooks and other weights into it, and may fail on the way
        if "layer" in asked:
            given = {"layer": model.layer(fitted.layer or self.layer), **given}
        with blamed(name):
            return cls(model.module if self.space == "norm" else model, **given)

    def arguments(self, explainer: Any, model: Classifier, x: Tensor, fitted: Fitted) -> dict[str, Any]:
        """`options`, and what the class asks for beyond them."""
        asked, options = parameters(explainer.attribute), plain(self.options)
        if self.cls == "Occlusion" and "sliding_window_shapes" not in options:
            side = [ceil(n / 8) for n in x.shape[-2:]]
            options["sliding_window_shapes"] = (x.shape[1], *side)
            options.setdefault("strides", (x.shape[1], *(ceil(n / 2) for n in side)))
        if self.wants_background:
            if fitted.background is None:
                raise SalrunError(f"captum's {self.cls} needs baselines: give background= or options.baselines")
            options["baselines"] = model.enter(fitted.background, self.space)
        if fitted.chunk is not None:
            bounds = {"internal_batch_size": fitted.chunk, "perturbations_per_eval": max(1, fitted.chunk // len(x))}
            options = {name: bound for name, bound in bounds.items() if name in asked} | options
        missing = [
            name
            for name, p in asked.items()
            if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD and name not in (*options, "inputs")
        ]
        if missing:
            raise SalrunError(f"captum's {self.cls} needs options: {', '.join(missing)}")
        return options


@dataclass
class Function(Method):
    """`function(model, x, target, **options)`, the user's own: a callable, or its name as `package.module.function`.

    `model` maps raw images to logits, `x` is (B, C, H, W) in [0, 1]; the answer is (B, C, H, W) or (B, 1, H, W).
    """

    function: str
    options: dict = field(default_factory=dict)

    paper_name: ClassVar[str] = "Function"
    source: ClassVar[str] = "the user"

    def __post_init__(self) -> None:
        try:
            self.resolved: Any = resolve_name(self.function) if isinstance(self.function, str) else self.function
        except (ImportError, AttributeError, ValueError) as error:
            raise SalrunError(f"no function '{self.function}': {error}; give package.module.function") from error
        if not callable(self.resolved):
            raise SalrunError(f"'{self.function}' is not callable but {type(self.resolved).__name__}")

    def __call__(self, model: Classifier, x: Tensor, target: Tensor, rng: Draws, fitted: Fitted) -> Tensor:
        check_targets(x, target)
        raw = self.resolved(model, x, target, **self.options)
        channels = raw.shape[1] if isinstance(raw, Tensor) and raw.ndim == 4 else None
        if channels not in (1, x.shape[1]) or raw.shape != (len(x), channels, *x.shape[2:]):
            got = tuple(raw.shape) if isinstance(raw, Tensor) else type(raw).__name__
            raise SalrunError(
                f"function '{self.function}' must return a tensor {tuple(x.shape)} or one channel, got {got}"
            )
        return raw.detach()
