"""Signs of life in files: who works on what, and whether he still does. Works on shared file systems (no flock)."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from salrun.errors import SalrunError

log = logging.getLogger(__name__)

BEAT = 10.0  # seconds between two signs of life
STALE = 60.0  # seconds without one after which a lease counts as abandoned
POLL = 0.5
REMIND = 60.0  # seconds between two messages of someone who waits


def here() -> dict[str, Any]:
    """This process, as others will look for it."""
    return {"host": socket.gethostname(), "pid": os.getpid()}


def gone(owner: dict[str, Any]) -> bool:
    """Known to be dead: a process of this machine that is not there. Of other machines' processes nothing is known."""
    if owner.get("host") != socket.gethostname() or "pid" not in owner:
        return False
    try:
        os.kill(int(owner["pid"]), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    try:
        state = Path(f"/proc/{owner['pid']}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state == "Z"  # killed, and not yet buried by its parent


class Heartbeat:
    """Touches files from one thread for as long as the work on them goes on, however long a step of it takes."""

    def __init__(self) -> None:
        self._paths: set[Path] = set()
        self._thread: threading.Thread | None = None

    def start(self, path: Path) -> None:
        self._paths.add(path)
        if self._thread is None or not self._thread.is_alive():  # nor does a thread survive a fork
            self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
            self._thread.start()

    def stop(self, path: Path) -> None:
        self._paths.discard(path)

    def _run(self) -> None:
        while True:
            time.sleep(BEAT)
            for path in tuple(self._paths):
                with contextlib.suppress(OSError):
                    os.utime(path)


HEART = Heartbeat()


class Lease:
    """A file that says who works on an entry. Its heartbeat is its modification time.

    Whether a lease is abandoned is judged by the waiting process' own monotonic clock (has the heartbeat moved while I
    watched?), so neither clock jumps nor clocks that differ between machines matter.
    """

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        self.what = what
        self._me: dict[str, Any] = {}  # empty while it is not held

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *fault: object) -> None:
        self.release()

    def try_acquire(self) -> bool:
        """Take the lease if it is free or its holder is known to be dead."""
        owner = self.owner()
        if gone(owner):
            self._evict(owner)
        return self._create()

    def acquire(self) -> None:
        """Take the lease, waiting while its holder lives."""
        begun = told = time.monotonic()
        watched: tuple[int, float] | None = None
        while not self._create():
            now = time.monotonic()
            owner = self.owner()
            try:
                beat = self.path.stat().st_mtime_ns
            except OSError:
                continue
            if watched is None:
                log.info("%s: %s is at work on it; waiting", self.what, _name(owner))
                watched = (beat, now)
            elif beat != watched[0]:
                watched = (beat, now)
            if now - watched[1] > STALE or gone(owner):
                log.warning("%s: the lease of %s is abandoned; taking over", self.what, _name(owner))
                self._evict(owner)
                watched = None
                continue
            if now - told > REMIND:
                told = now
                log.info("%s: still waiting for %s, %.0f min now", self.what, _name(owner), (now - begun) / 60)
            time.sleep(POLL)

    def release(self) -> None:
        if self._me:
            HEART.stop(self.path)
            if self.owner() == self._me:  # else someone took us for dead
                self.path.unlink(missing_ok=True)
            self._me = {}

    def owner(self) -> dict[str, Any]:
        return _read(self.path)

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
        self._me = {**here(), "token": uuid.uuid4().hex}
        with os.fdopen(handle, "w") as file:
            json.dump(self._me, file)
        HEART.start(self.path)
        return True

    def _evict(self, owner: dict[str, Any]) -> None:
        """Remove the lease of `owner`; if another waiter was quicker and holds it by now, leave him alone."""
        aside = self.path.with_name(f".{self.path.name}.{uuid.uuid4().hex[:8]}")
        with contextlib.suppress(OSError):
            os.rename(self.path, aside)  # only one waiter succeeds
            if _read(aside) != owner:
                os.link(aside, self.path)
        aside.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}


def _name(owner: dict[str, Any]) -> str:
    return f"process {owner.get('pid', '?')} on {owner.get('host', '?')}"
