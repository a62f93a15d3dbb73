"""Chunks cover the work once and respect the bound; they shrink when memory runs out, and a run says so."""

import itertools
import json

import pandas as pd
import pytest
import torch
from torch import nn

import salrun
from salrun.config.check import check
from salrun.config.compose import compose_config
from salrun.errors import SalrunError
from salrun.methods.chunking import FREE_CHUNK, chunks, gather_chunked, halving, run_chunked, run_grid
from salrun.models import inference
from salrun.pipeline import cell as pipeline
from salrun.pipeline import plan
from salrun.results.run import Run


def covered(n, copies, chunk):
    """What run_grid called."""
    tiles = []
    run_grid(lambda images, part: tiles.append((images, part)), n, copies, chunk)
    return tiles


def cells(tiles):
    return [cell for images, part in tiles for cell in itertools.product(range(64)[images], range(64)[part])]


def largest(tiles):
    return max((images.stop - images.start) * (part.stop - part.start) for images, part in tiles)


@pytest.mark.parametrize(("n", "copies"), [(1, 1), (1, 50), (7, 3), (5, 13), (40, 2)])
@pytest.mark.parametrize("chunk", [1, 2, 5, 8, 999, None])
def test_a_grid_is_covered_once_within_the_bound(n, copies, chunk):
    tiles = covered(n, copies, chunk)
    assert sorted(cells(tiles)) == list(itertools.product(range(n), range(copies)))
    assert largest(tiles) <= (max(n, FREE_CHUNK) if chunk is None else chunk)


def test_chunks_are_as_large_as_allowed():
    assert len(covered(4, 10, 8)) == 5
    assert len(covered(4, 10, 40)) == 1
    assert len(covered(1, 64, None)) == 2


def test_nothing_to_do():
    assert covered(0, 5, 3) == covered(5, 0, 3) == []


def test_one_axis():
    parts = []
    run_chunked(parts.append, 7, 3)
    assert parts == list(chunks(7, 3)) == [slice(0, 3), slice(3, 6), slice(6, 7)]
    assert list(chunks(7, None)) == [slice(0, 7)]
    data = torch.arange(7.0)
    for chunk in (1, 2, 7, None):
        assert torch.equal(gather_chunked(lambda part: data[part] ** 2, 7, chunk), data**2)


# -- out of memory -----------------------------------------------------------------------------------------------------

FULL = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
    RuntimeError("MPS backend out of memory (MPS allocated: 8 GB)"),
    RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to allocate"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
]


def sizes_tried(chunk, limit, fault=FULL[0]):
    """The chunks tried by a device that holds at most `limit` images, and the halvings told; 40 where none is given."""
    tried, told = [], []

    def work(size):
        tried.append(size)
        if (size or 40) > limit:
            raise fault
        return "done"

    assert halving(work, chunk, 40, "methods.rise", lambda *sizes: told.append(sizes)) == "done"
    return tried, told


@pytest.mark.parametrize("fault", FULL, ids=["cuda", "mps", "cpu", "cudnn"])
def test_chunks_are_halved_until_they_fit(fault, caplog):
    assert sizes_tried(16, 16, fault) == ([16], [])
    assert sizes_tried(16, 7, fault) == ([16, 8, 4], [(16, 8), (8, 4)])
    assert sizes_tried(None, 10, fault) == ([None, 20, 10], [(40, 20), (20, 10)])
    assert caplog.messages[0] == "methods.rise: out of memory with chunks of 16, going on with 8"


def test_a_single_image_that_does_not_fit_is_one_line():
    with pytest.raises(SalrunError) as refusal:
        sizes_tried(3, 0, torch.OutOfMemoryError("CUDA out of memory.\nlong story"))
    assert str(refusal.value) == (
        "methods.rise: out of memory with a single image at a time: take smaller images, a smaller model or another "
        "device (CUDA out of memory.)"
    )


def test_other_faults_are_not_tried_again():
    with pytest.raises(RuntimeError, match="shapes"):
        sizes_tried(16, 0, RuntimeError("shapes cannot be multiplied"))


class Small(nn.Module):
    """A network on a device that holds at most `limit` images."""

    def __init__(self, module, limit):
        super().__init__()
        self.module, self.limit, self.largest = module, limit, 0

    def forward(self, z):
        if len(z) > self.limit:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        self.largest = max(self.largest, len(z))
        return self.module(z)


WORDS = (
    *("dataset=textbox", "reasoning=simple_nr", "model=smerf_simple", "methods=[gradient,rise]", "device=cpu"),
    "controls=[]",
    *(
        "dataset.n_per_bucket=2",
        "dataset.groups=[2,5,11]",
        "tile=3",
        "compile=off",
        "methods.rise.n_masks=20",
        "report=false",
    ),
)


def test_a_run_halves_what_does_not_fit_and_says_what_and_where(tmp_path, monkeypatch):
    def run(name, limit, *metrics):
        def obtain(cell):
            obtained = models(cell)
            for model in obtained.values():
                model.classifier.module = Small(model.classifier.module, limit)
                model.classifier.layers = {}
            return obtained

        models = pipeline.obtain_models
        with monkeypatch.context() as patch:
            patch.setattr(pipeline, "obtain_models", obtain)
            patch.setattr(plan, "forward_rate", lambda *args: 1000.0)
            words = [*WORDS, f"cache_dir={tmp_path / name / 'store'}", *metrics]
            return Run(pipeline.run(check(compose_config(words)), tmp_path / name, words))

    monkeypatch.setattr(inference, "_pairs", lambda module, probe: [])
    free, tight = (
        run(name, limit, "metrics=[insertion]", "metrics.insertion.step=256")
        for name, limit in (("free", 1000), ("tight", 4))
    )
    assert free.facts["halved"] == []
    told = {(row["what"], row["tile"], row["from"], row["to"]) for row in tight.facts["halved"]}
    assert told == {
        (what, 0, 256 >> k, 128 >> k) for what in ("methods.rise", "metrics.insertion") for k in range(6)
    }, "once: the second tile begins with what fitted"
    keys = ["image_id", "method"]
    values = [r.scores.set_index(keys)["value"].sort_index() for r in (free, tight)]
    pd.testing.assert_series_equal(*values, rtol=1e-6)
    with pytest.raises(SalrunError, match=r"^predictions: out of memory with a single image at a time"):
        run("none", 0, "metrics=[]")
    facts = json.loads((tmp_path / "none" / "run.json").read_text())
    told = {"what": "predictions", "role": "model", "tile": -1}
    assert facts["halved"] == [{**told, "from": 4, "to": 2}, {**told, "from": 2, "to": 1}]


def test_the_api_halves_too():
    def module(limit):
        torch.manual_seed(0)
        return Small(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)), limit)

    x, y = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)), [0, 1]
    free, tight = (salrun.explain(module(n), x, y, "rise", n_masks=50) for n in (1000, 3))
    torch.testing.assert_close(free, tight)
    scores = [salrun.evaluate(module(n), x, y, free, "insertion", step=4).values for n in (1000, 3)]
    torch.testing.assert_close(*scores)
