"""The store: atomic, checksummed, shareable; and keys that change exactly when results may."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from salrun.errors import SalrunError
from salrun.methods.gradient import Gradient
from salrun.models import compiling, verification
from salrun.pipeline import conclusions, stages
from salrun.store import leases as leases_module
from salrun.store import sources
from salrun.store.entries import Store, canonical, key_of
from salrun.store.leases import Lease
from salrun.store.sources import source_of
from salrun.store.tensors import load_state, save_state
from salrun.types import Score

KEY = "ab12" + 60 * "0"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def entry(store: Store, key: str = KEY) -> Path:
    store.write("maps", key, {"map": torch.arange(6.0).view(2, 3)}, {"method": "gradient"})
    return store.path("maps", key)


def test_what_is_written_is_read(store: Store) -> None:
    entry(store)
    found = store.read("maps", KEY)
    assert found is not None
    assert torch.equal(found[0]["map"], torch.arange(6.0).view(2, 3)) and found[1] == {"method": "gradient"}
    assert store.read("maps", "cd34") is None
    assert store.usage()["maps"][0] == 1


def test_tensors_that_share_memory_are_written(store: Store) -> None:
    axis = torch.arange(5.0)
    store.write("scores", "c" * 64, {"one/x": axis, "two/x": axis, "part": axis[1:3]})
    tensors, _ = store.read("scores", "c" * 64) or ({}, {})
    assert tensors["one/x"].tolist() == tensors["two/x"].tolist() == axis.tolist()
    assert tensors["part"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("position", [3, 30, 200, -3])
def test_a_flipped_bit_is_found_named_and_not_trusted(
    store: Store, position: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = entry(store)
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)
    with caplog.at_level(logging.WARNING):
        assert store.read("maps", KEY) is None
    assert str(path.name)[:4] in caplog.text
    assert not path.exists() and path.with_suffix(".broken").exists()


@pytest.mark.parametrize("keep", [0, 5, 60, 0.9])
def test_a_truncated_entry_is_not_trusted(store: Store, keep: float) -> None:
    path = entry(store)
    data = path.read_bytes()
    path.write_bytes(data[: int(keep if keep > 1 or keep == 0 else keep * len(data))])
    assert store.read("maps", KEY) is None


def test_every_single_byte_counts(tmp_path: Path) -> None:
    """Whatever byte is changed, the file is refused: nothing is outside of the checksum."""
    path = tmp_path / "x.safetensors"
    save_state(path, {"a": torch.ones(3)}, {"k": 1})
    good = path.read_bytes()
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 0x01
        path.write_bytes(bad)
        try:
            tensors, meta = load_state(path)
        except SalrunError:
            continue
        # JSON may spell the same header with another space.
        assert torch.equal(tensors["a"], torch.ones(3)) and meta == {"k": 1}, at


def test_no_draft_is_left_behind(store: Store) -> None:
    path = entry(store)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_keys() -> None:
    assert canonical({"b": 1, "a": [1, 2]}) == canonical({"a": [1, 2], "b": 1})
    base = key_of("maps", ids=["a"], steps=50)
    assert base == key_of("maps", steps=50, ids=["a"])
    assert len({base, key_of("scores", ids=["a"], steps=50), key_of("maps", ids=["a"], steps=51)}) == 3


def test_the_source_of_a_part_covers_what_it_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    before = source_of(Gradient())
    assert before == source_of(Gradient)
    original = sources._source
    assert "salrun.methods.chunking" in sources._reach("salrun.methods.gradient", frozenset())
    changed = lambda module: original(module) + ("# changed" if module == "salrun.methods.chunking" else "")
    monkeypatch.setattr(sources, "_source", changed)
    assert source_of(Gradient()) != before


def hold(path: str, seconds: float) -> None:
    lease = Lease(Path(path), "work")
    lease.acquire()
    time.sleep(seconds)
    os._exit(0)  # dies without releasing


def test_a_lease_is_exclusive_and_a_dead_holder_is_found_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases_module, "STALE", 1.0)  # our own dead child stays a zombie: only its silence tells
    path = tmp_path / "k.lease"
    process = multiprocessing.get_context("spawn").Process(target=hold, args=(str(path), 1.5))
    process.start()
    while not path.exists():
        time.sleep(0.02)
    time.sleep(0.1)
    mine = Lease(path, "work")
    assert not mine.try_acquire()
    with caplog.at_level(logging.INFO):
        mine.acquire()
    assert "waiting" in caplog.text and "abandoned" in caplog.text
    mine.release()
    assert not path.exists()
    process.join()


def test_a_silent_lease_of_another_machine_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases_module, "STALE", 0.3)
    monkeypatch.setattr(leases_module, "POLL", 0.05)
    path = tmp_path / "k.lease"
    path.write_text(json.dumps({"host": "elsewhere", "pid": 1}))
    os.utime(path, (time.time() + 100,) * 2)  # a clock that is ahead must not matter
    mine = Lease(path, "work")
    assert not mine.try_acquire()
    begun = time.monotonic()
    mine.acquire()
    assert 0.3 <= time.monotonic() - begun < 5


def test_a_store_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SalrunError, match="cannot write"):
        Store(tmp_path / "file").write("maps", "ab", {"x": torch.ones(1)})


RIGHT = {"/value": torch.zeros(2).double(), "/flag": torch.zeros(2, dtype=torch.uint8), "/curve": torch.zeros(2, 3)}
AXIS, PACKED = stages._pack({"": Score(RIGHT["/value"], RIGHT["/flag"], RIGHT["/curve"], torch.arange(3.0))})
WRONG: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [  # what reads it, the tensors and the notes of an entry
    (partial(stages._unpack, 2), {}, {"names": [""]}),
    (partial(stages._unpack, 2), RIGHT, {}),
    (partial(stages._unpack, 2), RIGHT, {"names": []}),
    (partial(stages._unpack, 3), RIGHT, {"names": [""]}),
    (partial(stages._unpack, 3), {k: v for k, v in RIGHT.items() if k != "/curve"}, {"names": [""]}),
    (partial(stages._unpack, 2), {**RIGHT, "/flag": torch.full((2,), 99, dtype=torch.uint8)}, {"names": [""]}),
    (partial(stages._unpack, 2), {**RIGHT, "/value": torch.zeros(2)}, {"names": [""]}),
    (partial(stages._unpack, 2), {**RIGHT, "/curve": torch.zeros(3)}, {"names": [""]}),
    (partial(stages._map, torch.zeros(2, 3, 4, 4)), {"map": torch.zeros(2, 3, 4, 5)}, {}),
    (partial(stages._map, torch.zeros(2, 3, 4, 4)), {"mapp": torch.zeros(2, 3, 4, 4)}, {}),
    (partial(stages._planes, torch.zeros(2, 3, 4, 4)), {"plane": torch.zeros(2, 4, 4).half()}, {}),
    (stages._stats, {"mean": torch.zeros(1, 2, 2), "std": torch.zeros(1, 2, 2), "active": torch.zeros(2)}, {"n": 3}),
    (
        stages._stats,
        {"mean": torch.zeros(1, 2, 2).int(), "std": torch.zeros(1, 2, 2), "active": torch.zeros(1, 2, 2)},
        {"n": 3},
    ),
    (stages._of_forms, {"f": torch.zeros(2)}, {"shapes": {"f": [3]}}),
    (stages._of_forms, {"f": torch.zeros(2)}, {}),
    (stages._of_forms, {"f": torch.zeros(2).int()}, {"shapes": {"f": [2]}, "types": {"f": "torch.float32"}}),
    (partial(stages._unpack, 2), {k: v for k, v in AXIS.items() if k != "/curve_x"}, PACKED),
    (partial(stages._unpack, 2), {k: v for k, v in AXIS.items() if k != "/curve"}, PACKED),
    (partial(stages._unpack, 2), {**AXIS, "/curve": torch.zeros(2, 3, dtype=torch.int32)}, PACKED),
    (verification._figures, {}, {"split": "test", "accuracy": 99.0}),
    (verification._figures, {}, {"split": "test", "accuraccy": 0.5}),
    (verification._figures, {}, {"split": "test", "accuracy": 0.5, "groups": [1]}),
    (compiling._known, {}, {"times": [1.0]}),
    (partial(conclusions._files, "smerf"), {"../x": torch.zeros(2, dtype=torch.uint8)}, {}),
    (partial(conclusions._files, "smerf"), {"tables/smerf_/../../x": torch.zeros(2, dtype=torch.uint8)}, {}),
]


@pytest.mark.parametrize(("made", "tensors", "meta"), WRONG)
def test_an_entry_with_a_right_checksum_and_wrong_content_is_set_aside(
    made: Any, tensors: dict[str, Any], meta: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path)
    store.write("scores", "ab12", tensors or {"done": torch.ones(1)}, meta)
    assert store.read("scores", "ab12", made) is None
    assert store.path("scores", "ab12").with_suffix(".broken").exists() and "ab12.broken" in caplog.text


def test_a_right_entry_is_read() -> None:
    assert stages._unpack(2, RIGHT, {"names": [""]})[""].curve is not None  # of version 0.1
    assert stages._unpack(2, AXIS, PACKED)[""].curve_x is not None
