"""The store: everything computed once, by content. A tile is done when its entry is here; nothing else decides that.

key = sha256(canonical JSON of {stage, configuration that matters, upstream keys, seed, tile size, precision, source}).
An entry is one checksummed file, published by rename. Leases only save work: two processes that compute the same entry
write the same bytes, and the rename decides. Works on shared file systems (no flock).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

from torch import Tensor

from salrun.errors import SalrunError, unknown
from salrun.store.leases import Lease
from salrun.store.tensors import load_state, save_state

log = logging.getLogger(__name__)

STAGES = ("model", "verification", "compiling", "fit", "tiles", "maps", "planes", "shared", "scores", "conclusions")


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values, equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)


def key_of(stage: str, **what: Any) -> str:
    return hashlib.sha256(canonical({"stage": stage, **what}).encode()).hexdigest()


class Store:
    """`root/<stage>/<first two letters>/<key>.safetensors`."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root)

    def path(self, stage: str, key: str) -> Path:
        return self.root / stage / key[:2] / f"{key}.safetensors"

    def has(self, stage: str, key: str) -> bool:
        return self.path(stage, key).exists()

    def read(self, stage: str, key: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The entry, or None if it is not there or is damaged (then it is set aside and named in the log)."""
        path = self.path(stage, key)
        if not path.exists():
            return None
        try:
            return load_state(path)
        except SalrunError as fault:
            aside = path.with_suffix(".broken")
            log.warning("store entry not trusted, set aside as %s and computed again: %s", aside.name, fault)
            try:
                os.replace(path, aside)
            except OSError:
                log.warning("could not set %s aside", path)
            return None

    def write(self, stage: str, key: str, tensors: dict[str, Tensor], meta: dict[str, Any] | None = None) -> None:
        save_state(self.path(stage, key), tensors, meta or {}, durable=False)  # thousands, each checked when read

    def lease_of(self, stage: str, key: str, what: str) -> Lease:
        """The right to compute an entry, not yet held."""
        return Lease(self.path(stage, key).with_suffix(".lease"), what)

    def lease(self, stage: str, key: str, what: str) -> Lease:
        """Hold the right to compute an entry; waits, with a message, while another process does."""
        lease = self.lease_of(stage, key, what)
        lease.acquire()
        return lease

    def usage(self) -> dict[str, tuple[int, int]]:
        """stage -> (entries, bytes)."""
        usage = {}
        for stage in sorted(p for p in self.root.glob("*") if p.is_dir()):
            sizes = [p.stat().st_size for p in stage.rglob("*.safetensors")]
            usage[stage.name] = (len(sizes), sum(sizes))
        return usage

    def clear(self, stage: str | None = None) -> None:
        """Remove a stage or all of them, and nothing else that may lie in the folder."""
        if stage is not None and stage not in STAGES:
            raise unknown("stage", stage, STAGES, "salrun cache clear")
        for name in [stage] if stage else STAGES:
            shutil.rmtree(self.root / name, ignore_errors=True)
