"""Small images, networks and scenes, and the call of a method on them: what tests share."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from salrun.models.classifier import Classifier
from salrun.rng import Draws
from salrun.types import Fitted, Method, Scene
from tests.conftest import ROOT

MEAN, STD = (0.4, 0.5, 0.3), (0.2, 0.25, 0.3)
CLASSES = 3


def images(
    n: int = 3, size: int | tuple[int, int] = 8, channels: int = 3, seed: int = 1, dtype: torch.dtype = torch.float64
) -> Tensor:
    """(n, channels, height, width), uniform in [0, 1)."""
    sides = (size, size) if isinstance(size, int) else size
    return torch.rand(n, channels, *sides, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def targets(n: int = 3) -> Tensor:
    """1, 0, 2, 1, ..: no image's class is its number for all, and the first two exist where there are two classes."""
    return torch.tensor([1, 0, 2]).repeat(n // 3 + 1)[:n]


def draws(n: int = 3, seed: int = 0) -> Draws:
    """The random numbers of the images "0", "1", .."""
    return Draws.of(seed, [str(i) for i in range(n)])


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def seeded(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """A network whose weights are those of the seed; the global state of random numbers stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build().eval()


def network(
    size: int | tuple[int, int] = 8,
    channels: int = 3,
    features: int = 4,
    classes: int = CLASSES,
    stride: int = 1,
    padding: int = 0,
    seed: int = 0,
) -> nn.Sequential:
    """Convolution, ReLU, flatten, linear: modules "0" to "3"."""
    sides = (size, size) if isinstance(size, int) else size
    height, width = ((side + 2 * padding - 3) // stride + 1 for side in sides)
    flat = features * height * width
    convolution = lambda: nn.Conv2d(channels, features, 3, stride, padding)
    layers = lambda: nn.Sequential(convolution(), nn.ReLU(), nn.Flatten(), nn.Linear(flat, classes))
    return seeded(layers, seed)  # type: ignore[return-value]


def classifier(
    module: nn.Module | None = None,
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
    dtype: torch.dtype = torch.float64,
    **layers: str,
) -> Classifier:
    """The network as a model that is shown images in [0, 1]; `layers` by role (`cam="1"`)."""
    return Classifier(network() if module is None else module, mean, std, layers, "net").to(dtype).eval()


def shaken(net: nn.Module, seed: int = 0, x: Tensor | None = None) -> nn.Module:
    """Random parameters of a sensible size, in float64; statistics of batch norms away from (0, 1), or those of x."""
    generator = torch.Generator().manual_seed(seed)
    net = net.double().eval()
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                module.weight.normal_(0, (2 / module.weight[0].numel()) ** 0.5, generator=generator)
                if module.bias is not None:
                    module.bias.normal_(0, 0.1, generator=generator)
            if isinstance(module, (nn.BatchNorm2d, nn.BatchNorm1d)):
                module.weight.uniform_(0.5, 1.5, generator=generator)
                module.bias.normal_(0, 0.2, generator=generator)
                module.running_mean.normal_(0, 0.2, generator=generator)
                module.running_var.uniform_(0.5, 1.5, generator=generator)
                module.momentum = 1.0 if x is not None else module.momentum
        if x is not None:
            net.train()(x)
    return net.eval()


def run(
    method: Method, model: Classifier, x: Tensor, target: Tensor | None = None, rng: Draws | None = None, **fitted: Any
) -> Tensor:
    """The raw attribution, computed afresh."""
    model.forget()
    target = targets(len(x)) if target is None else target
    return method(model, x, target, draws(len(x)) if rng is None else rng, Fitted(**fitted))


def scene(
    x: Tensor | int = 3,
    module: nn.Module | None = None,
    target: Sequence[int] | Tensor | None = None,
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
    rng: Draws | None = None,
    **more: Any,
) -> Scene:
    """A scene of these images, or of so many black ones (4 x 4); class 0 unless told; `more` fields of Scene."""
    x = torch.zeros(x, 3, 4, 4) if isinstance(x, int) else x
    target = torch.zeros(len(x), dtype=torch.int64) if target is None else torch.as_tensor(target)
    model = Classifier(nn.Flatten() if module is None else module, mean, std).to(x.dtype).eval()
    return Scene(model, x, target, target, draws(len(x)) if rng is None else rng, **more)


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def script(name: str) -> ModuleType:
    """scripts/<name>.py, imported; it finds its neighbours there."""
    if str(ROOT / "scripts") not in sys.path:
        sys.path.append(str(ROOT / "scripts"))
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
