"""What a layer of a network gives for some images, as maps of features: convolutions, channels last, tokens."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from salrun.errors import SalrunError
from salrun.methods.chunking import gather_chunked
from salrun.methods.tokens import grid_of, patches
from salrun.models.classifier import outer, tensor_of
from salrun.models.layers import CONVOLUTIONS, NORMS

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
    outputs: list[object] = []

    def keep(module: nn.Module, inputs: object, output: object) -> None:
        outputs.append(tensor_of(output))
        if stop:
            raise _Reached

    def output(part: slice) -> Tensor:
        outputs.clear()
        with suppress(_Reached):
            model(x[part])
        return feature_maps(outputs[0] if len(outputs) == 1 else None, layer, model, x.shape[2:])

    handle = model.layer(layer).register_forward_hook(keep)
    try:
        return gather_chunked(output, len(x), chunk)
    finally:
        handle.remove()


def feature_maps(output: object, layer: str, model: Classifier, size: torch.Size) -> Tensor:
    """The output of a layer as maps (B, C, h, w), for images of `size`, if that is what it should be.

    Channels last are moved first; of tokens (B, N, C) those of the patches are put in their places, others left out.
    """
    if output is None:
        raise SalrunError(
            f"layer '{_dotted(layer, model)}' of model '{model.name}' has no maps to read: it must run once in a "
            f"forward pass, and lead to the logits; give layer=<another of its modules>"
        )
    if isinstance(output, Tensor) and output.dim() == 4:
        return output.movedim(-1, 1) if _channels_last(output, model.layer(layer)) else output
    if isinstance(output, Tensor) and output.dim() == 3:
        grid = grid_of(output.shape[1], size, model.module)
        if grid is not None:
            return patches(output, grid)
    what = f"a tensor {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
    raise SalrunError(
        f"layer '{layer}' of model '{model.name}' gives no feature maps (B, C, h, w) and no tokens (B, N, C) of a grid "
        f"of patches, but {what}; give layer=<one of {', '.join(outer(model.module))}>"
    )


def as_output(maps: Tensor, own: Any, layer: nn.Module) -> Any:
    """Maps (B, C, h, w) as the layer itself gives them: what is no map or patch in its `own` output stays."""
    if isinstance(own, tuple):
        return as_output(maps, own[0], layer), *own[1:]
    if own.dim() == 4:
        return maps.movedim(1, -1) if _channels_last(own, layer) else maps
    others = own.shape[1] - maps.shape[2] * maps.shape[3]
    return torch.cat([own[:, :others], maps.flatten(2).mT], 1)


def _dotted(layer: str, model: Classifier) -> str:
    return model.layers.get(layer, layer)


def _channels_last(output: Tensor, layer: nn.Module) -> bool:
    """Whether a layer without convolutions, of linear layers and layer norms of this width, gives (B, h, w, C)."""
    if any(isinstance(m, CONVOLUTIONS) for m in layer.modules()):
        return False
    widths = {
        m.normalized_shape[-1] if isinstance(m, NORMS) else m.out_features
        for m in layer.modules()
        if isinstance(m, (nn.Linear, *NORMS))
    }
    return output.shape[3] in widths and output.shape[1] not in widths
