"""Classifiers of timm and of transformers by name; weights, preprocessing and class names as published.

Weights are read from .safetensors alone: nothing in them is executed. Both libraries are optional, and imported when a
model of theirs is asked for.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from salrun.errors import SalrunError, told, unknown
from salrun.models.checkpoint import fill, read_weights
from salrun.models.classifier import Classifier
from salrun.models.layers import Layers, blocks_of, find_layers
from salrun.models.pretrained import Pretrained
from salrun.models.recipe import Obtained
from salrun.models.training import fresh
from salrun.models.verification import Gate
from salrun.ranges import Above
from salrun.store.entries import Store, key_of
from salrun.types import Dataset

FILE = "model.safetensors"
RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}  # Pillow's numbers


def library(name: str, extra: str) -> Any:
    """An optional library, or how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError as fault:
        raise SalrunError(f"model={extra} needs {name} ({told(fault)}): pip install 'salrun[{extra}]'") from fault


class Logits:
    """Forward hook: the logits in what a network gives, in the order of a data set's classes where that is another."""

    order: list[int] | None = None

    def __call__(self, module: nn.Module, given: object, output: Any) -> Tensor:
        logits = getattr(output, "logits", output)
        return logits if self.order is None else logits[:, self.order]


@dataclass
class HubModel(Pretrained):
    """A classifier by its name in a library, with the weights published for it.

    `pretrained: false`: random weights, nothing is fetched. `weights`: a .safetensors file in place of the published
    one. `options`: what else the library's own function takes. `mean`, `std`, `layers`: None: the model's own.
    """

    name: str
    pretrained: bool = True
    weights: str | None = None
    sha256: str | None = None  # of the file, or its beginning
    classes: int | None = None  # None: the model's own
    options: dict[str, Any] = field(default_factory=dict)
    layers: Annotated[dict[str, str], Layers] = field(default_factory=dict)
    mean: list[float] | None = None  # type: ignore[assignment]
    std: list[Annotated[float, Above(0)]] | None = None  # type: ignore[assignment]
    gate: Annotated[dict[str, float], Gate] = field(default_factory=dict)

    @property
    def source(self) -> str:  # type: ignore[override]
        return "file" if self.weights else "library" if self.pretrained else "random"

    def facts(self) -> dict[str, Any]:
        given = Path(self.weights).name if self.weights else self.name if self.pretrained else None
        return {"name": self.name, "training": "pretrained" if given else "none", "starts_from": given}

    def module(self, seed: int) -> nn.Module:
        module = self.network(seed)
        if self.weights is not None:
            path = Path(self.weights).expanduser()
            if path.suffix != ".safetensors":
                raise SalrunError(f"model.weights must be a .safetensors file for this model, got {path}")
            fill(module, read_weights(path, self.sha256), path)
        self.logits = Logits()
        module.register_forward_hook(self.logits)
        given = {role: layer for role, layer in self.layers.items() if layer is not None}
        self.layers = self.usual_layers(module) | given
        return module

    def network(self, seed: int) -> nn.Module:
        """The network, with its published weights where they are asked for; sets mean, std, `names`, `preparation`."""
        raise NotImplementedError("abstract")

    def usual_layers(self, module: nn.Module) -> dict[str, str]:
        return find_layers(module)

    def prepare(self, mean: Sequence[float], std: Sequence[float], names: Sequence[str], preparation: str) -> None:
        """What the model's own config says: normalisation, class names, how pictures are made to fit."""
        self.mean, self.std = list(self.mean or mean), list(self.std or std)
        self.names, self.preparation = names, preparation

    def obtain(self, data: Dataset, seed: int, store: Store, device: torch.device) -> Obtained:
        self.data = data
        obtained = super().obtain(data, seed, store, device)
        done = prepared_by(data)
        if done and done != self.preparation:
            obtained.deviations.append(f"pictures are resized {done}; the model's own way is {self.preparation}")
        return obtained

    def load(self, seed: int = 0) -> Classifier:
        model = super().load(seed)
        data = getattr(self, "data", None)
        self.logits.order = None if data is None else order_of(self.names, data.classes)
        if self.logits.order is not None:
            model.fingerprint = key_of("weights", of=model.fingerprint, order=self.logits.order)
        return model


def prepared(how: str, short_side: object, middle: object = None) -> str:
    """In words: how pictures are made to fit."""
    return f"{how} to {short_side}" + (f", the middle {middle} of it" if middle else "")


def prepared_by(data: Any) -> str:
    """How a data set of pictures does it; empty for others."""
    if not hasattr(data, "short_side"):
        return ""
    size = f"{data.size}x{data.size}"
    return prepared("bilinear", data.short_side, size) if data.fit == "crop" else prepared("bilinear", size)


def order_of(names: Sequence[str], classes: Sequence[str]) -> list[int] | None:
    """The place of each class of a data set among a model's outputs; None: they are in that order, or have other names.

    A name counts up to its first comma, without regard to case, spaces and underscores.
    """
    ours, theirs = ([name.partition(",")[0].strip().lower().replace(" ", "_") for name in s] for s in (classes, names))
    if ours == theirs or sorted(ours) != sorted(theirs) or len(set(ours)) < len(ours):
        return None
    return [theirs.index(name) for name in ours]


@dataclass
class TimmModel(HubModel):
    """`name` as in timm.list_models(), with a tag of its weights or without; `options` go to timm.create_model."""

    name: str = "vit_tiny_patch16_224"

    def network(self, seed: int) -> nn.Module:
        timm = library("timm", "timm")
        if not timm.is_model(self.name):
            raise unknown("timm model", self.name, timm.list_models(), "model.name")
        options = self.options if self.classes is None else {**self.options, "num_classes": self.classes}
        try:
            module = fresh(partial(timm.create_model, self.name, pretrained=False, **options), seed)
        except SalrunError as fault:
            raise SalrunError(f"timm cannot make {self.name} with model.options={options}: {fault}") from fault
        about: Any = module.pretrained_cfg
        side = about["input_size"][-1]
        shown = prepared(about["interpolation"], round(side / about["crop_pct"]), f"{side}x{side}")
        self.prepare(about["mean"], about["std"], self.class_names(timm, module), shown)
        if self.pretrained and self.weights is None:
            path = published(about.get("hf_hub_id"), self.name)
            fill(module, read_weights(path), path)
        return module

    def class_names(self, timm: Any, module: nn.Module) -> list[str]:
        """The model's own, or ImageNet's where it has as many classes."""
        names = module.pretrained_cfg.get("label_names")  # type: ignore[union-attr, operator]
        subset = timm.data.infer_imagenet_subset(module)
        if names or not subset:
            return list(names or [])
        info = timm.data.ImageNetInfo(subset)
        return [info.index_to_description(k) for k in range(info.num_classes())]

    def usual_layers(self, module: nn.Module) -> dict[str, str]:
        """Of networks of convolutions the stages that timm itself names: the last, and that of stride 8."""
        info = getattr(module, "feature_info", None)
        if blocks_of(module) or not info:
            return find_layers(module)
        stages = {stage["reduction"]: stage["module"] for stage in info if stage["module"]}
        return {"cam": stages[max(stages)], "iba": stages[min(stages, key=lambda stride: abs(stride - 8))]}


def published(where: str | None, name: str) -> Path:
    """The .safetensors file of a model on the hub, from the cache or by download."""
    hub = library("huggingface_hub", "timm")
    if not where:
        raise SalrunError(f"{name} has no published .safetensors: give model.weights=<file> or model.pretrained=false")
    try:
        return Path(kept_or_fetched(partial(hub.hf_hub_download, where, FILE)))
    except Exception as fault:  # no network, no such repository, no such file: the hub has an exception for each
        raise unavailable(where, fault) from fault


def kept_or_fetched(get: Callable[..., Any]) -> Any:
    """What the hub's cache has, which is not asked for news; else by download, whose retries are not told."""
    log = logging.getLogger("huggingface_hub")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with suppress(OSError, ValueError):
            return get(local_files_only=True)
        return get()
    finally:
        log.setLevel(before)


def unavailable(name: str, fault: Exception) -> SalrunError:
    return SalrunError(
        f"cannot get {name} from the hub ({told(fault)}): fetch it elsewhere and give its path (model.weights, or a "
        f"folder as model.name of model=huggingface), or take random weights (model.pretrained=false)"
    )


@dataclass
class HuggingFaceModel(HubModel):
    """`name`: an image classifier of the hub, a folder that has one (config.json, preprocessor_config.json,
    model.safetensors), or, with `pretrained: false`, an architecture of transformers ("vit", "deit", "swin").

    `options` are keys of its config.
    """

    name: str = "google/vit-base-patch16-224"

    def network(self, seed: int) -> nn.Module:
        transformers = library("transformers", "huggingface")
        config = self.config(transformers)
        classifier = transformers.AutoModelForImageClassification
        try:
            if self.pretrained and self.weights is None:
                options = {"config": config, "use_safetensors": True, "output_loading_info": True}
                module, loaded = kept_or_fetched(partial(classifier.from_pretrained, self.name, **options))
            else:
                module, loaded = fresh(partial(classifier.from_config, config), seed), {}
        except (OSError, ValueError, RuntimeError) as fault:
            raise unavailable(self.name, fault) from fault
        if loaded.get("missing_keys"):
            few = ", ".join(sorted(loaded["missing_keys"])[:3])
            raise SalrunError(f"{self.name} is no finished image classifier: its file has no {few}")
        names = [str(config.id2label[k]) for k in sorted(config.id2label)]
        mean, std, shown = self.preprocessing(transformers)
        self.prepare(mean, std, [] if names[0] == "LABEL_0" else names, shown)
        return module.float()

    def config(self, transformers: Any) -> Any:
        options = self.options if self.classes is None else {**self.options, "num_labels": self.classes}
        try:
            if self.of_architecture(transformers):
                return transformers.AutoConfig.for_model(self.name, **options)
            return kept_or_fetched(partial(transformers.AutoConfig.from_pretrained, self.name, **options))
        except (OSError, ValueError, TypeError) as fault:
            raise unavailable(self.name, fault) from fault

    def of_architecture(self, transformers: Any) -> bool:
        """Whether nothing but a way to build is asked for."""
        return not self.pretrained and self.name in transformers.models.auto.configuration_auto.CONFIG_MAPPING

    def preprocessing(self, transformers: Any) -> tuple[Sequence[float], Sequence[float], str]:
        """Mean, standard deviation, and how pictures are resized."""
        if self.mean is not None and self.std is not None:
            return self.mean, self.std, "not asked for (model.mean and model.std are given)"
        if self.of_architecture(transformers):
            return (0.5,), (0.5,), "none published"
        try:
            about, _ = kept_or_fetched(partial(transformers.ImageProcessingMixin.get_image_processor_dict, self.name))
        except (OSError, ValueError) as fault:
            raise SalrunError(
                f"{self.name} does not say how its images are normalised ({told(fault)}): give model.mean=[..] "
                f"model.std=[..], one number per channel, for images in [0, 1]"
            ) from fault
        size, middle = ("x".join(map(str, dict(about.get(key) or {}).values())) for key in ("size", "crop_size"))
        shown = prepared(
            RESAMPLING.get(about.get("resample", 2), "somehow"), size, about.get("do_center_crop") and middle
        )
        if not about.get("do_normalize", True):
            return (0.0,), (1.0,), shown
        return about["image_mean"], about["image_std"], shown
