"""Images of a data set, those of the next tile read while the device works on this one."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import torch
from torch import Tensor

from salrun.types import Batch, Dataset


class Reader:
    """One thread reads ahead, one batch at most, and nobody else reads meanwhile: data sets need not be thread-safe."""

    def __init__(self, dataset: Dataset, device: torch.device) -> None:
        self.dataset = dataset
        self.device = device
        self.pays = device.type != "cpu"  # there, what reads ahead takes the processor from the work
        self._thread: ThreadPoolExecutor | None = None
        self._coming: tuple[tuple[str, ...], Future[Batch]] | None = None

    def ahead(self, ids: Sequence[str]) -> None:
        """Begin to read what will be asked for next; a fault is raised when it is asked for."""
        if not self.pays:
            return
        self._settle()
        self._thread = self._thread or ThreadPoolExecutor(1, "images")
        self._coming = tuple(ids), self._thread.submit(self._read, list(ids))

    def batch(self, ids: Sequence[str]) -> Batch:
        """Images with all that is known about them, on the device."""
        coming = self._settle()
        if coming is not None and coming[0] == tuple(ids):
            self._coming = None
            return coming[1].result().to(self.device)
        return self._read(list(ids)).to(self.device)

    def images(self, ids: Sequence[str]) -> Tensor:
        """Images alone, as the data set has them."""
        self._settle()
        return self.dataset.images(list(ids))[0]

    def close(self) -> None:
        """Nothing is read any more when this returns."""
        self._coming = None
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
            self._thread = None

    def _settle(self) -> tuple[tuple[str, ...], Future[Batch]] | None:
        """What was read ahead, once it is there."""
        if self._coming is not None:
            wait([self._coming[1]])
        return self._coming

    def _read(self, ids: list[str]) -> Batch:
        """In pinned memory for CUDA, which copies from there without waiting."""
        batch = self.dataset.batch(ids)
        return batch.changed(Tensor.pin_memory) if self.device.type == "cuda" else batch
