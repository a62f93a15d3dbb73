"""What a convolutional layer of a network gives for some images."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from salrun.errors import SalrunError
from salrun.methods.chunking import gather_chunked

if TYPE_CHECKING:
    from salrun.models.classifier import Classifier


class _Reached(Exception):
    """The forward pass has come to the layer: the rest of it is not needed."""


@torch.no_grad()
def layer_output(model: Classifier, x: Tensor, layer: str, chunk: int | None = None, stop: bool = True) -> Tensor:
    """The output A, (B, K, h, w), of `layer` for raw images `x`, at most `chunk` at a time.

    The network is run no further than the layer; with `stop=False` it is, and an in-place operator that follows is seen
    in A.
    """
    model = model.exact
    outputs: list[Tensor] = []

    def keep(module: nn.Module, inputs: object, output: Tensor) -> None:
        outputs.append(output)
        if stop:
            raise _Reached

    def output(part: slice) -> Tensor:
        outputs.clear()
        with suppress(_Reached):
            model(x[part])
        return feature_maps(outputs[0] if len(outputs) == 1 else None, layer, model)

    handle = model.layer(layer).register_forward_hook(keep)
    try:
        return gather_chunked(output, len(x), chunk)
    finally:
        handle.remove()


def feature_maps(output: object, layer: str, model: Classifier) -> Tensor:
    """The output of a layer, if that is what it should be."""
    if output is None:
        dotted = model.layers.get(layer, layer)
        raise SalrunError(
            f"layer '{dotted}' of model '{model.name}' has no maps to read: it must run once in a forward pass, and "
            f"lead to the logits; give layer=<another of its modules>"
        )
    if not isinstance(output, Tensor) or output.dim() != 4:
        what = f"a tensor {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
        raise SalrunError(f"layer '{layer}' of model '{model.name}' gives no feature maps (B, C, h, w), but {what}")
    return output
