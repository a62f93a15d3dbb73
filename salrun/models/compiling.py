"""Whether compiling a model pays, by what it cost on this machine before; the store remembers.

It pays where more floating-point operations are planned than its seconds repay: seconds x operations of a pass /
(time of a pass - time of a compiled one). A choice is kept as well: the same run in the same store makes the same one,
repeated, resumed or in shards, whatever was learned since. So a run chooses for all its models before it compiles one.
"""

from __future__ import annotations

import logging
import platform
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from salrun.models.classifier import Classifier
from salrun.models.inference import InferenceCopy, filled
from salrun.store.entries import Store, check_entry, key_of

log = logging.getLogger(__name__)

STAGE = "compiling"
# Where nothing was learned yet: it takes 10 to 25 s and then saves about a fifth of a pass's time.
REPAID = {"cpu": 1e13, "cuda": 1e15}
FARTHEST = 30  # times more or less than that: what one measurement on a busy machine may make of it


@dataclass(frozen=True)
class Work:
    """Forward passes of a model that are planned, `batch` images at a time, and a few images to count with."""

    model: Classifier
    images: Tensor
    passes: float
    batch: int
    numerics: str

    @property
    def operations(self) -> float:
        """Of one pass."""
        from torch.utils.flop_counter import FlopCounterMode  # here: it takes triton

        with FlopCounterMode(display=False) as counter, torch.no_grad():
            self.model(self.images)
        return counter.get_total_flops() / len(self.images)

    @property
    def network(self) -> list[Any]:
        """What the costs depend on, but for the machine."""
        return [repr(self.model.module), list(self.images.shape[1:]), self.batch]

    @property
    def device(self) -> str:
        return self.images.device.type


class Experience:
    """Choices made and costs met, in a store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def choose(self, work: Work) -> bool:
        """Whether to compile for this work; the choice of the first who asked."""
        if not work.passes or work.device not in REPAID:
            return False
        key = key_of(
            STAGE,
            model=[work.model.fingerprint, *work.network],
            device=work.device,
            dtype=str(work.images.dtype),
            numerics=work.numerics,
            passes=work.passes,
        )
        known = self._read(key)
        if known is None:
            with self.store.lease(STAGE, key, "whether to compile"):
                known = self._read(key)  # another process may have chosen while this one waited
                if known is None:
                    known = {"compile": self._pays(work)}
                    self._write(key, known)
        return bool(known["compile"])

    def learn(self, work: Work, copy: InferenceCopy) -> None:
        """What compiling the copy cost, and what it brings, which is timed where it is not known yet."""
        if work.device not in REPAID:
            return
        network, key = copy.network, self._met(work, of_any=False)
        known = self._read(key)
        times = known["times"] if known else [_seconds(n, work) for n in (replace(network, compiled=None), network)]
        saved = max(times[0] - times[1], 0.0)
        usual = REPAID[work.device]
        repaid = network.compile_seconds * work.operations * work.batch / saved if saved else float("inf")
        repaid = min(max(repaid, usual / FARTHEST), usual * FARTHEST)
        costs = {"operations": repaid, "seconds": network.compile_seconds, "times": times}
        log.info("%s: compiling took %.1f s, worth it from %.1e operations", copy.name, costs["seconds"], repaid)
        for name in (key, self._met(work, of_any=True)):
            self._write(name, costs)

    def _pays(self, work: Work) -> bool:
        """By this model's last costs, or else by the last costs of any."""
        met = next(filter(None, (self._read(self._met(work, of_any)) for of_any in (False, True))), None)
        enough = met["operations"] if met else REPAID[work.device]
        planned = work.passes * work.operations
        if planned < enough:
            log.info("%s: not compiled: %.1e operations planned, worth it from %.1e", work.model.name, planned, enough)
        return planned >= enough

    def _met(self, work: Work, of_any: bool) -> str:
        """Where the costs of a network, or of any, are kept for this machine."""
        here = {"machine": platform.node(), "device": work.device, "threads": torch.get_num_threads()}
        return key_of(STAGE, **here, numerics=work.numerics, network=None if of_any else work.network)

    def _read(self, key: str) -> dict[str, Any] | None:
        return self.store.read(STAGE, key, _known)

    def _write(self, key: str, what: dict[str, Any]) -> None:
        self.store.write(STAGE, key, {"done": torch.ones(1)}, what)


def _known(tensors: dict[str, Tensor], meta: dict[str, Any]) -> dict[str, Any]:
    """A choice, or costs."""
    if "compile" not in meta:
        first, then = meta["times"]
        check_entry(min(meta["operations"], meta["seconds"], first, then) >= 0, "costs")
    return meta


@torch.no_grad()
def _seconds(network: Any, work: Work) -> float:
    """Of one full batch, the better of two."""
    z, times = filled(work.model.normalise(work.images), work.batch), []
    for _ in range(2):
        begun = time.monotonic()
        network(z).sum().item()
        times.append(time.monotonic() - begun)
    return min(times)
