"""On an accelerator the same numbers come out, in half precision nearly, and full memory is met: `make test-cuda`.

Nearly every test runs on the CPU too, on less: that shows that it can run. On a device it prints what it measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import torch

from salrun.config.check import check
from salrun.config.compose import compose_config
from salrun.conformance.methods import Case
from salrun.conformance.metrics import Case as Scenes
from salrun.errors import SalrunError
from salrun.methods.chunking import halving
from salrun.models.classifier import Classifier
from salrun.models.inference import fast_dtype, has_tf32, inference_copy
from salrun.pipeline import cell as pipeline
from salrun.pipeline.reading import Reader
from salrun.results.run import Run
from salrun.types import Batch
from tests.conformance.test_methods import NAMES, build

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda), pytest.param("mps", marks=pytest.mark.mps)]
SAME = 1e-4  # of a map's largest value, on average: float32 sums in another order
WORDS = (
    *("dataset=textbox", "reasoning=simple_nr", "model=smerf_simple", "methods=[gradient,rise,smoothgrad,edge]"),
    "controls=[]",
    *("metrics=[insertion]", "metrics.insertion.step=256", "dataset.n_per_bucket=2", "dataset.groups=[2,5,11]"),
    *("tile=3", "compile=off", "methods.rise.n_masks=40", "methods.smoothgrad.n_samples=4", "report=false"),
)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Its state is that of a run: full float32."""
    before = torch.backends.cudnn.allow_tf32
    pipeline.settle_numerics({"threads": 1})
    yield request.param
    torch.backends.cudnn.allow_tf32 = before


def run(folder: Path, device: str, *more: str) -> Run:
    words = (*WORDS, f"device={device}", f"cache_dir={folder / 'store'}", *more)
    return Run(pipeline.run(check(compose_config(words)), folder / "_".join([device, *more]), words))


def values(of: Run) -> pd.Series:
    return of.scores.set_index(["image_id", "method", "score"])["value"].sort_index()


def test_maps_are_those_of_the_cpu(device: str) -> None:
    case = Case().single()
    off = {}
    for name in NAMES if device != "cpu" else ("gradient", "lrp_epsilon", "grad_cam"):
        method = build(name)
        expected, raw = case.run(method), case.to(device).run(method)
        assert raw.device.type == device
        off[name] = float(((raw.cpu() - expected).abs().mean() / expected.abs().max().clamp_min(1e-30)).double())
    print(
        f"\n{device}: maps off by {max(off.values()):.1e} at most ({max(off, key=lambda n: off[n])}); below {SAME:.0e}?"
    )
    assert {name: gap for name, gap in off.items() if not gap < SAME} == {}


def test_scores_are_those_of_the_cpu(device: str, tmp_path: Path) -> None:
    cpu, there = run(tmp_path, "cpu"), run(tmp_path, device)
    assert there.facts["device"] == device and there.facts["numerics"]["tf32"] is False
    gap = values(cpu).sub(values(there)).abs().max()
    seconds = [of.facts["timings"]["maps and scores"] for of in (cpu, there)]
    print(
        f"\n{device}: scores off by {gap:.1e} at most; maps and scores took {seconds[0]} s here, {seconds[1]} s there"
    )
    assert gap < 1e-3
    assert cpu.images[["prediction"]].equals(there.images[["prediction"]])


def test_half_precision_is_measured_and_small_or_refused(device: str, tmp_path: Path) -> None:
    here = torch.device(device)
    wanted = [] if fast_dtype(here) is None else [str(fast_dtype(here)).removeprefix("torch.")]
    wanted += ["tf32"] if has_tf32(here) else []
    try:
        facts = run(tmp_path, device, "numerics=fast_gradients").facts
    except SalrunError:
        facts = json.loads((tmp_path / f"{device}_numerics=fast_gradients" / "run.json").read_text())
        assert facts["reason"].startswith("numerics=fast_gradients ")
    numerics = facts["numerics"]
    print(f"\n{device}: {numerics['mode']}, {numerics['dtype']}, TF32 {numerics['tf32']}: {facts['deviations'][-1]}")
    assert [step for step in numerics["steps"]["model"] if step in ("bfloat16", "float16", "tf32")] == wanted
    assert "tf32" not in numerics["steps"].get("model, gradients", [])
    assert not torch.backends.cuda.matmul.allow_tf32 and not torch.backends.cudnn.allow_tf32


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES[1:], indirect=True)
def test_a_compiled_copy_gives_the_same(device: str) -> None:
    scene = Scenes().scene
    model: Classifier = scene.model.float().to(device)
    x = scene.x.float().to(device)
    copy = inference_copy(model, x, "on", batch=len(x))
    print(f"\n{device}: {'+'.join(copy.steps)}, compiled in {copy.network.compile_seconds:.1f} s")
    torch.testing.assert_close(copy(x).double().softmax(1), model(x).double().softmax(1), rtol=1e-4, atol=0)


def test_full_memory_is_met(device: str) -> None:
    """Chunks of 8 would take an exabyte, of 4 a terabyte, of 2 a gigabyte."""
    told: list[tuple[int, int]] = []

    def work(chunk: int | None) -> int:
        torch.empty(1 << (20 + 5 * (chunk or 8)), dtype=torch.uint8, device=device)
        return chunk or 8

    fitted = halving(work, 8, 8, "work", lambda *sizes: told.append(sizes))
    print(f"\n{device}: chunks halved to {fitted}")
    assert fitted in (2, 4) and told[0] == (8, 4)
    assert torch.ones(8, device=device).sum().item() == 8


def test_images_read_ahead_arrive(device: str) -> None:
    class Pictures:
        def batch(self, ids: list[str]) -> Batch:
            x = torch.arange(2 * 3 * 64 * 64, dtype=torch.float32).view(2, 3, 64, 64) + len(ids[0])
            return Batch(x, torch.tensor([0, 1]), tuple(ids), tuple(ids), {"text": x[:, 0] > 7})

    reader = Reader(Pictures(), torch.device(device))  # type: ignore[arg-type]
    reader.pays = True
    for ids in (["a", "b"], ["aa", "bb"]):
        reader.ahead(ids)
        assert reader._coming is not None
        assert reader._coming[1].result().x.is_pinned() is (device == "cuda")
        batch, expected = reader.batch(ids), Pictures().batch(ids)
        assert batch.x.device.type == batch.masks["text"].device.type == device
        assert torch.equal(batch.x.cpu(), expected.x) and torch.equal(batch.masks["text"].cpu(), expected.masks["text"])
    reader.close()
