"""Work over a virtual batch (images x copies of them) in pieces that fit into memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from salrun.models.classifier import Classifier, Pass, Space
    from salrun.types import Fitted

log = logging.getLogger(__name__)
T = TypeVar("T")

# What a virtual batch may grow to where nobody has said: enough to keep a processor busy with a single image.
FREE_CHUNK = 32


def chunks(n: int, size: int | None) -> Iterator[slice]:
    """Consecutive slices of 0..n, each of at most `size` (all at once where None)."""
    size = max(1, n if size is None else size)
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))


def halving(work: Callable[[int], T], size: int) -> T:
    """`work(size)`, tried again with half the size whenever an accelerator runs out of memory."""
    while True:
        try:
            return work(size)
        except torch.OutOfMemoryError:
            if size <= 1:
                raise
        # Not in the handler: its traceback keeps the tensors of the failed attempt alive.
        size //= 2
        log.warning("out of memory: going on with chunks of %d", size)
        torch.cuda.empty_cache()


def run_grid(step: Callable[[slice, slice], None], n: int, copies: int, chunk: int | None) -> None:
    """Call `step(images, copies)` on tiles that cover n x copies once, each of at most `chunk` elements.

    Copies of all images go together where they fit. After an out-of-memory error the tile is halved and done again, so
    a `step` must change the caller's tensors only as its last act. Without `chunk` a tile has at most max(n, 32).
    """
    size = max(n, FREE_CHUNK) if chunk is None else max(1, chunk)
    todo = [(slice(0, n), slice(0, copies))] if n and copies else []

    def attempt(limit: int) -> int:
        rows, columns = todo[-1]
        height, width = rows.stop - rows.start, columns.stop - columns.start
        if height > limit:
            cut = rows.start + limit
            todo[-1:] = [(slice(cut, rows.stop), columns), (slice(rows.start, cut), columns)]
        elif height * width > limit:
            cut = columns.start + limit // height
            todo[-1:] = [(rows, slice(cut, columns.stop)), (rows, slice(columns.start, cut))]
        else:
            step(rows, columns)
            todo.pop()
        return limit

    while todo:
        size = halving(attempt, size)


def run_chunked(step: Callable[[slice], None], n: int, chunk: int | None) -> None:
    """Call `step(part)` on consecutive slices of 0..n, each of at most `chunk` (all at once where None)."""
    run_grid(lambda _, part: step(part), 1, n, n if chunk is None else chunk)


def run_pairs(step: Callable[[slice], None], pairs: int, images: int, chunk: int | None) -> None:
    """Call `step(part)` on consecutive slices of so many (image, copy) pairs, numbered in the caller's way.

    Unlike `run_grid` it leaves no pass half empty because the images do not divide it. Without `chunk` a part has at
    most max(images, 32).
    """
    run_chunked(step, pairs, max(images, FREE_CHUNK) if chunk is None else chunk)


def places(mask: Tensor) -> Tensor:
    """The numbers of the elements where a mask holds, in order; to count them the host waits for the device.

    On `meta`, where no value is known, all.
    """
    if mask.is_meta:
        return torch.arange(mask.numel(), device=mask.device)
    return torch.where(mask.flatten())[0]


def gather_chunked(compute: Callable[[slice], Tensor], n: int, chunk: int | None) -> Tensor:
    """`compute` over slices of 0..n, concatenated along the first axis."""
    pieces: list[Tensor] = []
    run_chunked(lambda part: pieces.append(compute(part)), n, chunk)
    return torch.cat(pieces)


def shared_pass(
    model: Classifier, x: Tensor, target: Tensor, fitted: Fitted, layer: str | None = None, space: Space = "norm"
) -> Pass:
    """`model.pass_once`, at most `fitted.chunk` images at a time; back to `layer`, or else to the input."""
    size = len(x) if fitted.chunk is None else fitted.chunk
    return halving(lambda chunk: model.pass_once(x, target, layer, space, chunk, to_input=layer is None), size)
