"""The store: everything computed once, by content. A tile is done when its entry is here; nothing else decides that.

key = sha256(canonical JSON of {stage, configuration that matters, upstream keys, seed, tile size, precision, source}).
An entry is one checksummed file, published by rename. Leases only save work: two processes that compute the same entry
write the same bytes, and the rename decides. Works on shared file systems (no flock).
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import logging
import os
import shutil
import socket
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor

from salrun.errors import SalrunError
from salrun.tensorfile import load_state, save_state

log = logging.getLogger(__name__)

STALE = 60.0  # seconds without a heartbeat after which a lease counts as abandoned
POLL = 0.5


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values, equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)


def key_of(stage: str, **what: Any) -> str:
    return hashlib.sha256(canonical({"stage": stage, **what}).encode()).hexdigest()


def source_of(part: object) -> str:
    """Hash of the module that defines a part, and of every salrun module it imports: changed code, changed key."""
    cls = part if isinstance(part, type) else type(part)
    modules = sorted(_reach(cls.__module__, frozenset()))
    return hashlib.sha256("".join(_source(m) for m in modules).encode()).hexdigest()[:16]


@lru_cache(maxsize=512)
def _source(module: str) -> str:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return module
    return Path(spec.origin).read_text(encoding="utf-8")


@lru_cache(maxsize=512)
def _imports(module: str) -> frozenset[str]:
    """The salrun modules a module imports (types and errors hold no arithmetic and are left out)."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(_source(module))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("salrun"):
            found.add(node.module)
            found.update(f"{node.module}.{a.name}" for a in node.names if _is_module(f"{node.module}.{a.name}"))
        elif isinstance(node, ast.Import):
            found.update(a.name for a in node.names if a.name.startswith("salrun"))
    return frozenset(found - {"salrun", "salrun.types", "salrun.errors", "salrun.models.classifier", module})


@lru_cache(maxsize=512)
def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _reach(module: str, seen: frozenset[str]) -> frozenset[str]:
    seen = seen | {module}
    for found in _imports(module) - seen:
        seen = _reach(found, seen)
    return seen


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
        save_state(self.path(stage, key), tensors, meta or {})

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
        for folder in [self.root / stage] if stage else list(self.root.glob("*")):
            shutil.rmtree(folder, ignore_errors=True)


class Lease:
    """A file that says who works on an entry. Its heartbeat is its modification time.

    Whether a lease is abandoned is judged by the waiting process' own monotonic clock (has the heartbeat moved while I
    watched?), so neither clock jumps nor clocks that differ between machines matter.
    """

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        self.what = what
        self._beaten = 0.0
        self._held = False

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *fault: object) -> None:
        self.release()

    def try_acquire(self) -> bool:
        """Take the lease if it is free or its holder is known to be dead."""
        if self._dead():
            self.path.unlink(missing_ok=True)
        self._held = self._create()
        self._beaten = time.monotonic()
        return self._held

    def acquire(self) -> None:
        """Take the lease, waiting while its holder lives."""
        watched: tuple[int, float] | None = None
        while not self._create():
            now = time.monotonic()
            try:
                beat = self.path.stat().st_mtime_ns
            except OSError:
                continue
            if watched is None:
                log.info("%s: %s is at work on it; waiting", self.what, self._holder())
                watched = (beat, now)
            elif beat != watched[0]:
                watched = (beat, now)
            elif now - watched[1] > STALE or self._dead():
                log.warning("%s: the lease of %s is abandoned; taking over", self.what, self._holder())
                self.path.unlink(missing_ok=True)
                watched = None
                continue
            time.sleep(POLL)
        self._held = True
        self._beaten = time.monotonic()

    def beat(self) -> None:
        """Say that the work goes on; cheap enough to be called at every step."""
        if self._held and time.monotonic() - self._beaten > STALE / 6:
            self._beaten = time.monotonic()
            try:
                os.utime(self.path)
            except OSError:
                log.warning("%s: lease lost; going on, the result is published all the same", self.what)

    def release(self) -> None:
        if self._held:
            self._held = False
            self.path.unlink(missing_ok=True)

    def _create(self) -> bool:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return False
        except OSError as fault:
            raise SalrunError(
                f"cannot write to the store at {self.path.parent}: {fault.strerror}; set cache_dir=<a writable folder>"
            ) from fault
        with os.fdopen(handle, "w") as file:
            json.dump({"host": socket.gethostname(), "pid": os.getpid()}, file)
        return True

    def _owner(self) -> dict[str, Any]:
        try:
            return json.loads(self.path.read_text())
        except (OSError, ValueError):
            return {}

    def _holder(self) -> str:
        owner = self._owner()
        return f"process {owner.get('pid', '?')} on {owner.get('host', '?')}"

    def _dead(self) -> bool:
        """Known to be dead: a process of this machine that is gone."""
        owner = self._owner()
        if owner.get("host") != socket.gethostname() or "pid" not in owner:
            return False
        try:
            os.kill(int(owner["pid"]), 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return False
