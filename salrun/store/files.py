"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from pathlib import Path
from typing import TextIO

from salrun.errors import SalrunError


def write_atomic(path: Path, data: bytes, durable: bool = True) -> None:
    """Write into a temporary sibling, fsync, rename. Readers see the old file or the new one, nothing between.

    Without `durable` there is no fsync: after a power cut the file may be there and empty. For what carries a checksum
    and can be computed again.
    """
    draft = path.parent / f".{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(draft, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError as fault:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise SalrunError(f"cannot write {path}: {fault.strerror}") from fault


def shown(path: Path) -> str:
    """A path as it is printed: from the working folder where it lies in it, which is shorter."""
    whole = path.absolute()
    return str(whole.relative_to(Path.cwd()) if whole.is_relative_to(Path.cwd()) else path)


def open_log(path: Path) -> TextIO:
    """A log to be written on, never through a link: that would change another file."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666)
    except OSError as fault:
        if fault.errno != errno.ELOOP:
            raise
        raise SalrunError(f"{path} is a link, and logs are not written through links: remove it") from fault
    return os.fdopen(handle, "a", encoding="utf-8")
