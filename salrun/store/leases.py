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
STALE = 60.0  # seconds without one, watched, after which a lease counts as abandoned
SILENT = 300.0  # seconds without one, told by the age of the file, after which its owner counts as dead
POLL = 0.5
REMIND = 60.0  # seconds between two messages of someone who waits


def here() -> dict[str, Any]:
    """This process, as others will look for it."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "process": _began(os.getpid())}


def gone(owner: dict[str, Any]) -> bool:
    """Known to be dead: a process of this machine that is not there. Of other machines' processes nothing is known."""
    pid = owner.get("pid")
    if owner.get("host") != socket.gethostname() or not isinstance(pid, int) or not 0 < pid < 1 << 31:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    if _stat(pid)[:1] == ["Z"]:  # killed, and not yet buried by its parent
        return True
    began = owner.get("process"), _began(pid)
    return all(began) and began[0] != began[1]  # else another process has its number now


def _began(pid: int) -> str | None:
    """When a process began, in ticks of this boot of the machine; None where /proc does not tell."""
    try:
        return f"{_stat(pid)[19]} of {Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"
    except (OSError, IndexError):
        return None


def _stat(pid: int) -> list[str]:
    """What /proc says of a process from its state on; nothing where it does not tell."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def silence(path: Path) -> float:
    """Seconds since a file was last touched, by the clock of its file system; a file of the future is as silent."""
    probe = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        probe.touch()
        now = probe.stat().st_mtime
        probe.unlink()
    except OSError:  # a folder that may only be read
        now = time.time()
    return abs(now - path.lstat().st_mtime)


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
        """Take the lease if it is free or abandoned."""
        if self._create():
            return True
        owner = self.owner()
        if self.held():
            return False
        self._evict(owner)
        return self._create()

    def held(self) -> bool:
        """Whether somebody has it who may be alive: not known to be dead, nor silent for long."""
        try:
            self.path.lstat()
            return not gone(self.owner()) and silence(self.path) < SILENT
        except OSError:
            return False

    def acquire(self) -> None:
        """Take the lease, waiting while its holder lives."""
        begun = told = time.monotonic()
        watched: tuple[int, float] | None = None
        while not self._create():
            now = time.monotonic()
            owner = self.owner()
            try:
                beat = self.path.lstat().st_mtime_ns
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
        if self.owner() != owner:  # looked at once more: the lease is away for a moment below
            return
        aside = self.path.with_name(f".{self.path.name}.{uuid.uuid4().hex[:8]}")
        with contextlib.suppress(OSError):
            os.rename(self.path, aside)  # only one waiter succeeds
            if _read(aside) != owner:
                with contextlib.suppress(FileExistsError):  # a third one has taken it meanwhile
                    os.link(aside, self.path)
            aside.unlink()


def _read(path: Path) -> dict[str, Any]:
    """Who holds a lease; nobody known where the file is garbage."""
    try:
        owner = json.loads(path.read_text()) if path.is_file() else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return owner if isinstance(owner, dict) else {}


def _name(owner: dict[str, Any]) -> str:
    return f"process {owner.get('pid', '?')} on {owner.get('host', '?')}"
