"""Work over a virtual batch (images x copies of them) in pieces that fit into memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from salrun.errors import SalrunError
from salrun.progress import passed

if TYPE_CHECKING:
    from salrun.models.classifier import Classifier, Pass, Space
    from salrun.types import Fitted

log = logging.getLogger(__name__)
T = TypeVar("T")

# What a virtual batch may grow to where nobody has said: enough to keep a processor busy with a single image.
FREE_CHUNK = 32
# How MPS (of all memory, of one tensor), the CPU, cuDNN and cuBLAS say it.
EXHAUSTED = ("out of memory", "Invalid buffer size", "can't allocate memory", "ALLOC_FAILED")


def chunks(n: int, size: int | None) -> Iterator[slice]:
    """Consecutive slices of 0..n, each of at most `size` (all at once where None)."""
    size = max(1, n if size is None else size)
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))


def out_of_memory(fault: BaseException) -> bool:
    """Whether a device has no memory left; only CUDA's allocator has an exception of its own for that."""
    return isinstance(fault, RuntimeError) and (
        isinstance(fault, torch.OutOfMemoryError) or any(words in str(fault) for words in EXHAUSTED)
    )


def halving(
    work: Callable[[int | None], T],
    chunk: int | None,
    free: int,
    what: str,
    told: Callable[[int, int], None] = lambda before, after: None,
) -> T:
    """`work(chunk)`, done again with half the chunk whenever memory is out; `free`: the chunk where none is given.

    `told(before, after)` hears of every halving. With single images there is nothing to halve.
    """
    while True:
        try:
            return work(chunk)
        except RuntimeError as fault:
            if not out_of_memory(fault):
                raise
            if chunk == 1:
                reason = str(fault).partition("\n")[0]
                raise SalrunError(
                    f"{what}: out of memory with a single image at a time: take smaller images, a smaller model or "
                    f"another device ({reason})"
                ) from fault
        # Not in the handler: its traceback keeps the tensors of the failed attempt alive.
        before, chunk = chunk or free, max(1, (chunk or free) // 2)
        log.warning("%s: out of memory with chunks of %d, going on with %d", what, before, chunk)
        told(before, chunk)
        torch.cuda.empty_cache()
        if torch.backends.mps.is_available():
            torch.mps.empty_cache()


def run_grid(step: Callable[[slice, slice], None], n: int, copies: int, chunk: int | None) -> None:
    """Call `step(images, copies)` on tiles that cover n x copies once, each of at most `chunk` elements.

    Copies of all images go together where they fit. Without `chunk` a tile has at most max(n, 32).
    """
    size = max(n, FREE_CHUNK) if chunk is None else max(1, chunk)
    for images in chunks(n, size):
        for part in chunks(copies, size // (images.stop - images.start)):
            step(images, part)
            passed((images.stop - images.start) * (part.stop - part.start))


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
    done = model.pass_once(x, target, layer, space, fitted.chunk, to_input=layer is None)
    passed(len(x))
    return done


def references_of(fitted: Fitted, x: Tensor, method: str) -> Tensor:
    """The background images, of the kind of `x`; a method that needs them and has none says so."""
    references = fitted.background
    if references is None or len(references) == 0:
        raise SalrunError(f"{method} needs background images as references; give background=<images>")
    if references.shape[1:] != x.shape[1:]:
        shapes = f"images {tuple(x.shape[1:])}, background {tuple(references.shape[1:])}"
        raise SalrunError(f"{method} needs background images of the same shape as the images: {shapes}")
    return references.to(x)
