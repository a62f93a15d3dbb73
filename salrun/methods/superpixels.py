"""Parts of an image that are switched on and off together: what LIME and Kernel SHAP explain by."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import numpy as np
import torch
from skimage.segmentation import quickshift, slic
from torch import Tensor


def superpixels(
    x: Tensor,
    kind: Literal["slic", "quickshift"],
    n_segments: int,
    compactness: float,
    ratio: float,
    kernel_size: float,
    max_dist: float,
) -> tuple[Tensor, list[int]]:
    """The superpixel 0..n-1 of each pixel, (B, H W) int64, and n of each image; by scikit-image, on the CPU."""
    if kind == "slic":
        find = partial(slic, n_segments=n_segments, compactness=compactness, start_label=0)
    else:
        find = partial(quickshift, ratio=ratio, kernel_size=kernel_size, max_dist=max_dist)
    parts = [_numbered(image, find) for image in x.cpu()]
    return torch.from_numpy(np.stack(parts)).to(x.device).flatten(1), [int(labels.max()) + 1 for labels in parts]


def _numbered(image: Tensor, find: Callable[..., np.ndarray]) -> np.ndarray:
    """Superpixel numbers 0..n-1, (H, W) int64, of an image (C, H, W); grey is seen as RGB."""
    # A pixel that is not finite spoils the map through its probabilities; scikit-image must survive it first.
    pixels = image.nan_to_num().expand(3 if len(image) == 1 else -1, -1, -1).permute(1, 2, 0).double().numpy()
    lab = pixels.shape[2] == 3
    labels = find(pixels, convert2lab=lab)
    return np.unique(labels, return_inverse=True)[1].reshape(labels.shape)


def grid(x: Tensor, cells: int) -> Tensor:
    """The cell of each pixel, (B, H W), of cells x cells as equal as they can be (no more than there are pixels)."""
    rows, columns = (torch.arange(size, device=x.device) * min(cells, size) // size for size in x.shape[-2:])
    return (rows.unsqueeze(1) * min(cells, x.shape[-1]) + columns).flatten().expand(len(x), -1)


def switched_off(x: Tensor, segment: Tensor, hide: Literal["mean", "constant"], value: float) -> Tensor:
    """The image with every part off: it shows its mean colour, or a grey `value` in [0, 1]."""
    if hide == "constant":
        return torch.full_like(x, value)
    index = segment.unsqueeze(1).expand(-1, x.shape[1], -1)
    mean = torch.zeros_like(index, dtype=x.dtype).scatter_reduce(2, index, x.flatten(2), "mean", include_self=False)
    return mean.gather(2, index).view_as(x)
