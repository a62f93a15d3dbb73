"""Images of the next tile are read while the device works: once, by one reader at a time, faults where they belong."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from salrun.config.check import check
from salrun.config.compose import compose_config
from salrun.pipeline import cell as pipeline
from salrun.pipeline.build import build
from salrun.pipeline.plan import plan
from salrun.pipeline.reading import Reader
from salrun.pipeline.stages import Result, Stages, tiles_of
from salrun.types import Batch


class Pictures:
    """Notes who reads what; two readers at once are one too many."""

    def __init__(self) -> None:
        self.read: list[tuple[tuple[str, ...], str]] = []
        self.free = threading.Event()
        self.free.set()
        self.busy = threading.Lock()

    def batch(self, ids: list[str]) -> Batch:
        assert self.busy.acquire(blocking=False), "two readers"
        try:
            assert self.free.wait(10)
            self.read.append((tuple(ids), threading.current_thread().name))
            if "bad" in ids:
                raise OSError("bad picture")
            x = torch.full((len(ids), 1, 2, 2), float(len(self.read)))
            return Batch(x, torch.zeros(len(ids)), tuple(ids), tuple(ids), {"text": x > 0})
        finally:
            self.busy.release()

    def images(self, ids: list[str]) -> tuple[Tensor, Tensor]:
        batch = self.batch(ids)
        return batch.x, batch.y


@pytest.fixture
def reader() -> Iterator[Reader]:
    made = Reader(Pictures(), torch.device("cpu"))  # type: ignore[arg-type]
    made.pays = True
    yield made
    made.close()


def names(reader: Reader) -> list[str]:
    return [name.partition("_")[0] for _, name in reader.dataset.read]  # type: ignore[attr-defined]


def test_what_was_read_ahead_is_not_read_again(reader: Reader) -> None:
    reader.dataset.free.clear()  # type: ignore[attr-defined]
    reader.ahead(("a", "b"))  # returns although nothing can be read yet
    reader.dataset.free.set()  # type: ignore[attr-defined]
    assert reader.batch(("a", "b")).id == ("a", "b")
    assert names(reader) == ["images"], "by another thread"
    reader.batch(("a", "b"))
    assert names(reader) == ["images", "MainThread"], "kept for one asking"


def test_one_reads_at_a_time_whatever_is_asked_for(reader: Reader) -> None:
    for ask in (reader.batch, reader.images, reader.ahead):
        reader.dataset.free.clear()  # type: ignore[attr-defined]
        reader.ahead(("a",))
        threading.Timer(0.05, reader.dataset.free.set).start()  # type: ignore[attr-defined]
        ask(("b",))
    assert reader.batch(("b",)).id == ("b",)
    assert names(reader) == ["images", "MainThread"] * 2 + ["images"] * 2


def test_a_fault_is_raised_at_the_tile_it_belongs_to(reader: Reader) -> None:
    reader.ahead(("bad",))
    assert reader.batch(("a",)).id == ("a",)
    with pytest.raises(OSError, match="bad picture"):
        reader.batch(("bad",))
    reader.ahead(("b",))
    assert reader.batch(("b",)).id == ("b",)


def test_nothing_is_left_running(reader: Reader) -> None:
    reader.ahead(("a",))
    assert any(thread.name.startswith("images") for thread in threading.enumerate())
    reader.close()
    assert not any(thread.name.startswith("images") for thread in threading.enumerate())
    assert reader.batch(("a",)).id == ("a",), "and can be asked again"


def test_it_pays_where_another_device_works() -> None:
    assert not Reader(Pictures(), torch.device("cpu")).pays  # type: ignore[arg-type]
    assert Reader(Pictures(), torch.device("cuda")).pays  # type: ignore[arg-type]
    plain = Reader(Pictures(), torch.device("cpu"))  # type: ignore[arg-type]
    plain.ahead(("a",))
    plain.batch(("a",))
    assert names(plain) == ["MainThread"]


def test_a_run_reads_every_tile_once_for_all_models_and_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [
        *("dataset=textbox", "reasoning=simple_nr", "model=smerf_simple", "methods=[gradient]", "metrics=[]"),
        *("device=cpu", "dataset.n_per_bucket=2", "dataset.groups=[2,5,11]", "tile=2", f"cache_dir={tmp_path}"),
    ]
    cell = build(check(compose_config(words)))
    model = pipeline.obtain_models(cell)["model"].classifier
    read: list[tuple[str, ...]] = []
    batch = cell.dataset.batch
    monkeypatch.setattr(cell.dataset, "batch", lambda ids: read.append(tuple(ids)) or batch(ids))

    def results(pays: bool) -> list[Result]:
        stages = Stages(cell, {"model": model, "twin": model})
        stages.reader.pays = pays
        work = tiles_of(cell)
        return list(pipeline.explain_and_score(cell, stages, work, plan(cell, stages, work)))

    plain, ahead = results(False), results(True)
    assert read == [tile.ids for tile in tiles_of(cell)] * 2
    assert [r.role for r in ahead] == ["model", "twin"] * 3
    for a, b in zip(plain, ahead, strict=True):
        assert a.tile == b.tile and torch.equal(a.batch.x, b.batch.x) and torch.equal(a.confidence, b.confidence)
    monkeypatch.setattr(pipeline, "score_tile", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        results(True)
    assert not any(thread.name.startswith("images") for thread in threading.enumerate())
