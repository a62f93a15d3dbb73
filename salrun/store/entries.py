"""The store: everything computed once, by content. A tile is done when its entry is here; nothing else decides that.

key = sha256(canonical JSON of {stage, configuration that matters, upstream keys, seed, tile size, precision, source}).
An entry is one checksummed file, published by rename. Leases only save work: two processes that compute the same entry
write the same bytes, and the rename decides. Works on shared file systems (no flock).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from salrun.errors import SalrunError, unknown
from salrun.store.files import write_atomic
from salrun.store.leases import Lease
from salrun.store.tensors import load_state, save_state

log = logging.getLogger(__name__)
T = TypeVar("T")

STAGES = ("model", "verification", "compiling", "fit", "tiles", "maps", "planes", "shared", "scores", "conclusions")

MARKER = ".salrun-store"  # makes a folder a store: others are not cleared
ENTRY = re.compile(r"\.?([0-9a-f]{64})\..+")  # its file, and beside it drafts, leases, cards and states of training


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values, equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)


def key_of(stage: str, **what: Any) -> str:
    return hashlib.sha256(canonical({"stage": stage, **what}).encode()).hexdigest()


def _as_it_is(tensors: dict[str, Tensor], meta: dict[str, Any]) -> Any:
    return tensors, meta


def check_entry(right: bool, what: str) -> None:
    """Raise ValueError unless an entry is as it should be."""
    if not right:
        raise ValueError(f"its {what} cannot be")


class Store:
    """`root/<stage>/<first two letters>/<key>.safetensors`."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root)

    def path(self, stage: str, key: str) -> Path:
        return self.root / stage / key[:2] / f"{key}.safetensors"

    def has(self, stage: str, key: str) -> bool:
        return self.path(stage, key).exists()

    def read(
        self, stage: str, key: str, made: Callable[[dict[str, Tensor], dict[str, Any]], T] = _as_it_is
    ) -> T | None:
        """What is made of the entry; None if it is not there, or is damaged: then it is set aside and named in the log.

        `made` raises where tensors or notes are not what this stage writes: the checksum is right, the content is not.
        """
        path = self.path(stage, key)
        if not path.exists():
            return None
        try:
            return made(*load_state(path))
        except (SalrunError, LookupError, ValueError, TypeError, AttributeError, RuntimeError) as fault:
            aside = path.with_suffix(".broken")
            log.warning("store entry not trusted, set aside as %s and computed again: %s", aside.name, fault)
            try:
                os.replace(path, aside)
            except OSError:
                log.warning("could not set %s aside", path)
            return None

    def write(self, stage: str, key: str, tensors: dict[str, Tensor], meta: dict[str, Any] | None = None) -> None:
        _ = self._marked
        save_state(self.path(stage, key), tensors, meta or {}, durable=False)  # thousands, each checked when read

    def lease_of(self, stage: str, key: str, what: str) -> Lease:
        """The right to compute an entry, not yet held."""
        _ = self._marked
        return Lease(self.path(stage, key).with_suffix(".lease"), what)

    def lease(self, stage: str, key: str, what: str) -> Lease:
        """Hold the right to compute an entry; waits, with a message, while another process does."""
        lease = self.lease_of(stage, key, what)
        lease.acquire()
        return lease

    def usage(self) -> dict[str, tuple[int, int]]:
        """stage -> (entries, bytes)."""
        entries = {stage: [p for p in self._files(stage) if p.suffix == ".safetensors"] for stage in STAGES}
        return {stage: (len(paths), _bytes(paths)) for stage, paths in entries.items() if paths}

    def clear(self, stage: str | None = None) -> tuple[int, int]:
        """Remove the entries of a stage or of all, and nothing else that may lie in the folder: (files, bytes)."""
        if stage is not None and stage not in STAGES:
            raise unknown("stage", stage, STAGES, "salrun cache clear")
        paths = [path for name in ([stage] if stage else STAGES) for path in self._files(name)]
        if paths and not (self.root / MARKER).exists():
            raise SalrunError(
                f"{self.root} has no {MARKER}, so nothing was removed: a run that uses the folder as its store makes "
                f"that file"
            )
        size = _bytes(paths)
        for path in paths:
            try:
                path.unlink(missing_ok=True)
            except OSError as fault:
                raise SalrunError(f"cannot remove {path}: {fault.strerror}; the store is not cleared") from fault
        for folder in (*{path.parent for path in paths}, *{path.parent.parent for path in paths}):
            with contextlib.suppress(OSError):  # something is in it that is not ours
                folder.rmdir()
        return len(paths), size

    @cached_property
    def _marked(self) -> bool:
        """True, once the folder is marked as a store."""
        if not (self.root / MARKER).exists():
            write_atomic(self.root / MARKER, b"What salrun computed. `salrun cache clear` removes its entries.\n")
        return True

    def _files(self, stage: str) -> Iterator[Path]:
        """What salrun wrote into a stage."""
        for path in sorted((self.root / stage).glob("[0-9a-f][0-9a-f]/*")):
            match = ENTRY.fullmatch(path.name)
            if match and match[1].startswith(path.parent.name):
                yield path


def _bytes(paths: list[Path]) -> int:
    return sum(path.lstat().st_size for path in paths if path.exists())
