"""How far the work in hand is: who shows images to a model in pieces says how many, and whoever watches is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_watchers: list[Callable[[int], object]] = []


def passed(images: int) -> None:
    """So many images have been through the model."""
    for watcher in _watchers:
        watcher(images)


@contextmanager
def watched(watcher: Callable[[int], object]) -> Iterator[None]:
    """Tell `watcher` of all images that go through a model inside."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)
