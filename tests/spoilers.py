"""Methods and metrics that spoil what they are lent, each in its own way; a plug-in for tests and torture."""

from __future__ import annotations

import builtins
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from salrun.types import Method, Metric, Scene, Score


def ok(plane: Tensor) -> Score:
    return Score(torch.ones(len(plane), dtype=torch.float64), torch.zeros(len(plane), dtype=torch.uint8))


class Spoiler(Method):
    """Spoils, and returns a map that looks all right."""

    def __call__(self, model: Any, x: Tensor, target: Tensor, rng: Any, fitted: Any) -> Tensor:
        raw = x.clone()
        with torch.no_grad():
            self.spoil(model, x, target)
        return raw

    def spoil(self, model: Any, x: Tensor, target: Tensor) -> None:
        raise NotImplementedError


@dataclass
class SpoilsImages(Spoiler):
    def spoil(self, model: Any, x: Tensor, target: Tensor) -> None:
        x.mul_(0)


@dataclass
class SpoilsImagesUnseen(Spoiler):
    def spoil(self, model: Any, x: Tensor, target: Tensor) -> None:
        x.data.copy_(x.data.flip(2))


@dataclass
class SpoilsTargets(Spoiler):
    def spoil(self, model: Any, x: Tensor, target: Tensor) -> None:
        target.zero_()


@dataclass
class SpoilsWeights(Spoiler):
    def spoil(self, model: Any, x: Tensor, target: Tensor) -> None:
        next(model.exact.parameters()).mul_(0)


@dataclass
class SpoilsWeightsUnseen(Spoiler):
    def spoil(self, model: Any, x: Tensor, target: Tensor) -> None:
        for parameter in model.parameters():
            parameter.data.numpy()[...] *= 0.5


@dataclass
class SpoilsLayers(Spoiler):
    def spoil(self, model: Any, x: Tensor, target: Tensor) -> None:
        layer = next(m for m in model.modules() if "weight" in m._parameters)
        layer.weight = torch.nn.Parameter(torch.zeros_like(layer.weight))


@dataclass
class SpoilsMode(Spoiler):
    def spoil(self, model: Any, x: Tensor, target: Tensor) -> None:
        model.train()


@dataclass
class SpoilsByHook(Spoiler):
    def spoil(self, model: Any, x: Tensor, target: Tensor) -> None:
        model.module.register_forward_hook(lambda module, inputs, output: output * 0)


@dataclass
class SpoilsTorch(Spoiler):
    def spoil(self, model: Any, x: Tensor, target: Tensor) -> None:
        torch.set_default_dtype(torch.float64)


@dataclass
class SpoilsDevice(Spoiler):
    def spoil(self, model: Any, x: Tensor, target: Tensor) -> None:
        torch.set_default_device("meta")


@dataclass
class SpoilsFunctions(Spoiler):
    def spoil(self, model: Any, x: Tensor, target: Tensor) -> None:
        torch.relu = lambda given: given


@dataclass
class SpoilsClasses(Spoiler):
    def spoil(self, model: Any, x: Tensor, target: Tensor) -> None:
        torch.nn.ReLU.forward = lambda self, given: given  # type: ignore[method-assign]


@dataclass
class SpoilsOurs(Spoiler):
    def spoil(self, model: Any, x: Tensor, target: Tensor) -> None:
        type(model).__call__ = lambda self, given: torch.zeros(len(given), 2)  # type: ignore[method-assign]


@dataclass
class SpoilsPython(Spoiler):
    def spoil(self, model: Any, x: Tensor, target: Tensor) -> None:
        builtins.len = lambda given: 1  # type: ignore[assignment]


@dataclass
class SpoilsModules(Spoiler):
    def spoil(self, model: Any, x: Tensor, target: Tensor) -> None:
        sys.modules.clear()


@dataclass
class SpoilsDepth(Spoiler):
    def spoil(self, model: Any, x: Tensor, target: Tensor) -> None:
        sys.setrecursionlimit(sys.getrecursionlimit() // 2)


@dataclass
class SpoilsHooks(Spoiler):
    def spoil(self, model: Any, x: Tensor, target: Tensor) -> None:
        torch.nn.modules.module.register_module_forward_hook(lambda module, given, found: found * 0)


@dataclass
class SpoilsKernels(Spoiler):
    def spoil(self, model: Any, x: Tensor, target: Tensor) -> None:
        torch.backends.mkldnn.enabled = False


@dataclass
class SpoilsModelWhole(Spoiler):
    def spoil(self, model: Any, x: Tensor, target: Tensor) -> None:
        model.__dict__.clear()


@dataclass
class SpoilsMap(Metric):
    def __call__(self, plane: Tensor, scene: Scene) -> Score:
        plane.neg_()
        return ok(plane)


@dataclass
class SpoilsSceneUnseen(Metric):
    def __call__(self, plane: Tensor, scene: Scene) -> Score:
        scene.x.data.zero_()
        return ok(plane)


@dataclass
class SpoilsMasks(Metric):
    def __call__(self, plane: Tensor, scene: Scene) -> Score:
        scene.masks["mine"] = 3  # type: ignore[index]
        return ok(plane)


@dataclass
class SpoilsModelOfScene(Metric):
    def __call__(self, plane: Tensor, scene: Scene) -> Score:
        with torch.no_grad():
            for parameter in scene.model.exact.parameters():
                parameter.zero_()
        return ok(plane)


@dataclass
class GradientLeftThere(Method):
    """No spoiler, if careless: asks the image itself for its gradient."""

    def __call__(self, model: Any, x: Tensor, target: Tensor, rng: Any, fitted: Any) -> Tensor:
        with torch.enable_grad():
            x.requires_grad_(True)
            model(x).gather(1, target.view(-1, 1)).sum().backward()
        assert x.grad is not None
        return x.grad


METHODS = {
    "spoils_images": "images",
    "spoils_images_unseen": "images",
    "spoils_targets": "images",
    "spoils_weights": "the model",
    "spoils_weights_unseen": "the model",
    "spoils_layers": "the model",
    "spoils_mode": "the model",
    "spoils_by_hook": "the model",
    "spoils_torch": "torch's settings",
    "spoils_device": "torch's settings",
    "spoils_functions": "torch.relu",
    "spoils_classes": "torch.nn.modules.activation.ReLU.forward",
    "spoils_ours": "salrun.models.classifier.Classifier.__call__",
    "spoils_python": "builtins.len",
    "spoils_modules": "sys.modules",
    "spoils_depth": "the recursion limit",
    "spoils_hooks": "torch's settings",
    "spoils_kernels": "torch's settings",
    "spoils_model_whole": "the model",
}
METRICS = {
    "spoils_map": "map",
    "spoils_scene_unseen": "images",
    "spoils_masks": "images",
    "spoils_model_of_scene": "the model",
}
