"""A trained network as methods and metrics see it: raw images in, logits out, layers by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor, nn

from salrun.errors import SalrunError, unknown

Space = Literal["norm", "raw"]
Baseline = Literal["zeros", "black", "mean"]  # of methods that compare an image with one


@dataclass(frozen=True)
class Pass:
    """One forward and backward pass of sum_b logit[b, target[b]]; all that several methods read off it."""

    logits: Tensor
    at_input: Tensor | None  # the gradient there; none where the backward pass ended at the layer
    activation: Tensor | None
    activation_gradient: Tensor | None

    @property
    def input_gradient(self) -> Tensor:
        if self.at_input is None:
            raise RuntimeError("this pass was asked for with to_input=False")
        return self.at_input

    @classmethod
    def join(cls, parts: Sequence[Pass]) -> Pass:
        """The passes of consecutive images as one."""
        if len(parts) == 1:
            return parts[0]

        def joined(name: str) -> Any:
            values = [getattr(part, name) for part in parts]
            return None if values[0] is None else torch.cat(values)

        return cls(*(joined(column.name) for column in fields(cls)))


def check_targets(x: Tensor, target: Tensor) -> None:
    """One target per image, or an error: `gather` would cut a short list silently."""
    if target.shape != x.shape[:1]:
        raise SalrunError(f"one target per image is needed: {x.shape[0]} images, targets {tuple(target.shape)}")


def pick(logits: Tensor, target: Tensor) -> Tensor:
    """logit[b, target[b]] per image, (B,)."""
    check_targets(logits, target)
    return logits.gather(1, target.view(-1, 1)).squeeze(1)


def check_classes(logits: Tensor) -> None:
    """Two classes or more, or an error: of one output every probability is 1."""
    if logits.shape[-1] < 2:
        raise SalrunError(
            "probabilities need two classes or more, and a target function (or a network) with one output has none: "
            "take methods and metrics that read the logit (output=logit where there is the choice)"
        )


def not_a_number(gradient: Tensor, score: Tensor) -> Tensor:
    """The gradient, NaN where the score is no finite number: ReLU's derivative at NaN is 1, and NaN would go unseen."""
    return gradient + 0 * score.detach().view(-1, *[1] * (gradient.ndim - 1))


def outer(module: nn.Module, most: int = 20) -> list[str]:
    """Names of modules, the outermost first."""
    return sorted((name for name, _ in module.named_modules() if name), key=lambda name: name.count("."))[:most]


def tensor_of(output: Any) -> Any:
    """What a layer gives; of several things (transformers' blocks) the first."""
    return output[0] if isinstance(output, tuple) and output else output


class Classifier(nn.Module):
    """`forward(x)` maps raw images in [0, 1] to logits: `module(normalise(x))`.

    `normalise` is (x - mean) / std per channel. Methods that differentiate or mask in the network's own input space
    ("norm") work on `normalise(x)` and call `module`. `layers` names the layers that CAM and IBA read.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        module: nn.Module,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        layers: Mapping[str, str] | None = None,
        name: str = "model",
        fingerprint: str = "",
    ) -> None:
        super().__init__()
        self.module = module
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1), persistent=False)
        self.layers = dict(layers or {})
        self.name = name
        self.fingerprint = fingerprint
        self._last: tuple[Tensor, Tensor, str | None, Space, Pass] | None = None
        self._n_logits: int | None = None
        self.frozen = False  # nobody changes its weights: what depends on them alone may be kept
        self.beside: object = None  # what methods that compare with a reference keep of its pass, if it is frozen

    @property
    def exact(self) -> Classifier:
        """The model whose layers are read: itself, unless it is a copy made to be fast."""
        return self

    def normalise(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std

    def denormalise(self, z: Tensor) -> Tensor:
        return z * self.std + self.mean

    def forward(self, x: Tensor) -> Tensor:
        return self.module(self.normalise(x))

    def logits(self, x: Tensor) -> Tensor:
        return self.forward(x)

    def n_logits(self, x: Tensor) -> int:
        """How many logits an image has; asked once, with one of them."""
        if self._n_logits is None:
            with torch.no_grad():
                self._n_logits = self.logits(x[:1]).shape[1]
        return self._n_logits

    def enter(self, x: Tensor, space: Space) -> Tensor:
        """The image as a point of `space`."""
        return self.normalise(x) if space == "norm" else x

    def baseline(self, x: Tensor, name: Baseline, space: Space) -> Tensor:
        """A point of `space`: zeros there, the black image, or (mean) the colour that normalises to zero."""
        zeros = torch.zeros_like(x)
        return zeros if name == "zeros" else self.enter(zeros if name == "black" else self.denormalise(zeros), space)

    def head(self, point: Tensor, space: Space) -> Tensor:
        """Logits of a point of `space`."""
        return self.module(point) if space == "norm" else self.forward(point)

    def layer(self, name: str) -> nn.Module:
        """A submodule by its dotted name, or by its role ("cam", "iba")."""
        dotted = self.layers.get(name, name)
        modules = dict(self.module.named_modules())
        if dotted not in modules or dotted == "":
            if name in ("cam", "iba") and name not in self.layers:
                raise SalrunError(
                    f"model '{self.name}' has no {name.upper()} layer that we can name: its last convolution, if any, "
                    f"is not its map of features; give layer=<one of {', '.join(outer(self.module))}>"
                )
            raise unknown("layer", dotted, (n for n in modules if n), f"model '{self.name}'")
        return modules[dotted]

    def pass_once(
        self,
        x: Tensor,
        target: Tensor,
        layer: str | None = None,
        space: Space = "norm",
        chunk: int | None = None,
        to_input: bool = True,
    ) -> Pass:
        """The gradient pass for (x, target), computed once however many methods of a suite ask for it.

        The last pass is kept with its arguments and recognised by identity, so a pass that also recorded the CAM layer
        serves the methods that need only the input gradient. `chunk` bounds the images in one pass. With
        `to_input=False` a pass that is not known yet goes back no further than the layer.
        """
        if self._last is not None:
            last_x, last_target, last_layer, last_space, last_pass = self._last
            same = last_x is x and last_target is target and last_space == space
            deep = last_pass.at_input is not None or not to_input
            if same and deep and (layer is None or layer == last_layer):
                return last_pass
        wanted = layer if layer is not None else ("cam" if "cam" in self.layers else None)
        check_targets(x, target)
        parts = zip(x.split(chunk or len(x)), target.split(chunk or len(x)), strict=True)
        result = Pass.join([self._pass(*part, wanted, space, to_input) for part in parts])
        self._last = (x, target, wanted, space, result)
        return result

    def forget(self) -> None:
        """Drop the kept pass (end of a tile)."""
        self._last = None

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles do not carry the kept passes, and may be changed."""
        return {**self.__dict__, "_last": None, "beside": None, "frozen": False}

    def _pass(self, x: Tensor, target: Tensor, layer: str | None, space: Space, to_input: bool) -> Pass:
        outputs: list[Tensor] = []
        handle = None
        if layer is not None:
            handle = self.layer(layer).register_forward_hook(
                lambda module, given, output: outputs.append(tensor_of(output))
            )
        try:
            with torch.enable_grad():
                point = self.enter(x, space).detach().requires_grad_(True)
                logits = self.head(point, space)
                score = pick(logits, target)
                # A later in-place ReLU would change the recorded output; what flows on is what CAM reads. A layer that
                # runs twice or does not lead to the logits has no maps; the gradient at the input is what it ever is.
                outputs = [t for t in outputs if isinstance(t, Tensor) and t.requires_grad] if len(outputs) == 1 else []
                wanted = [*outputs, point] if to_input or not outputs else outputs
                grads = torch.autograd.grad(score.sum(), wanted, allow_unused=True)
        finally:
            if handle is not None:
                handle.remove()
        if len(grads) > len(outputs) and grads[-1] is None:
            raise SalrunError(f"the logits of model '{self.name}' do not depend on the image")
        at_input = not_a_number(grads[-1], score) if len(grads) > len(outputs) else None
        of_layer = grads[0] if outputs else None
        return Pass(logits.detach(), at_input, None if of_layer is None else outputs[0].detach(), of_layer)
