"""Chunks cover the work once, respect the bound, and shrink when memory runs out."""

import itertools
import logging

import pytest
import torch

from salrun.methods.chunking import FREE_CHUNK, chunks, gather_chunked, run_chunked, run_grid


def covered(n, copies, chunk, limit=None):
    """What run_grid called, with a device that holds at most `limit` elements."""
    tiles = []

    def step(images, part):
        size = (images.stop - images.start) * (part.stop - part.start)
        if limit is not None and size > limit:
            raise torch.OutOfMemoryError("full")
        tiles.append((images, part))

    run_grid(step, n, copies, chunk)
    return tiles


def cells(tiles):
    return [cell for images, part in tiles for cell in itertools.product(range(64)[images], range(64)[part])]


def largest(tiles):
    return max((images.stop - images.start) * (part.stop - part.start) for images, part in tiles)


@pytest.mark.parametrize(("n", "copies"), [(1, 1), (1, 50), (7, 3), (5, 13), (40, 2)])
@pytest.mark.parametrize("chunk", [1, 2, 5, 8, 999, None])
@pytest.mark.parametrize("limit", [None, 1, 3, 20])
def test_a_grid_is_covered_once_within_the_bound(n, copies, chunk, limit):
    tiles = covered(n, copies, chunk, limit)
    assert sorted(cells(tiles)) == list(itertools.product(range(n), range(copies)))
    bound = max(n, FREE_CHUNK) if chunk is None else chunk
    assert largest(tiles) <= min(bound, limit or bound)


def test_chunks_are_as_large_as_allowed():
    assert len(covered(4, 10, 8)) == 5
    assert len(covered(4, 10, 40)) == 1
    assert len(covered(1, 64, None)) == 2


def test_nothing_to_do():
    assert covered(0, 5, 3) == covered(5, 0, 3) == []


def test_out_of_memory_is_logged_and_gets_through(caplog):
    with caplog.at_level(logging.WARNING):
        tiles = covered(2, 10, 16, limit=7)
    assert largest(tiles) == 4
    assert [record.getMessage() for record in caplog.records] == [
        "out of memory: going on with chunks of 8",
        "out of memory: going on with chunks of 4",
    ]
    with pytest.raises(torch.OutOfMemoryError):
        covered(2, 2, 4, limit=0)


def test_one_axis():
    parts = []
    run_chunked(parts.append, 7, 3)
    assert parts == list(chunks(7, 3)) == [slice(0, 3), slice(3, 6), slice(6, 7)]
    assert list(chunks(7, None)) == [slice(0, 7)]
    data = torch.arange(7.0)
    for chunk in (1, 2, 7, None):
        assert torch.equal(gather_chunked(lambda part: data[part] ** 2, 7, chunk), data**2)
