"""What a plan counts is what a run does, pass by pass; and the bar of a run moves inside a method."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from salrun.config.check import check
from salrun.config.compose import compose_config
from salrun.methods.chunking import run_chunked, run_grid
from salrun.metrics.mass import MassShare
from salrun.metrics.randomisation import MapSimilarity
from salrun.pipeline import cell, plan
from salrun.pipeline.plan import ENTRY_SECONDS, Plan
from salrun.pipeline.stages import Tile
from salrun.progress import passed, watched
from salrun.results.run import Run

WORDS = (
    *("dataset=textbox", "reasoning=simple_nr", "model=smerf_simple", "device=cpu", "compile=off", "report=false"),
    "controls=[]",
    *("dataset.n_per_bucket=2", "dataset.groups=[2,5,11]", "tile=4", "keep_maps=all"),
)
OF_PAPERS = {  # what three papers do, small; passes that a forward pass stands for
    "zhang": (
        1,
        *("methods=[rise,lime,zhang/score_cam]", "methods.rise.n_masks=70", "methods.lime.n_samples=9"),
        "metrics=[zhang/insertion,zhang/deletion,zhang/average_drop,zhang/average_gain]",
    ),
    "tomsett": (
        1,
        *("methods=[edge,random]", "metrics=[aopc_morf,aopc_lerf,faithfulness]", "metrics.faithfulness.n_pixels=8"),
        *("metrics.aopc_morf.levels=[5]", "metrics.aopc_lerf.levels=[5]", "metrics.aopc_morf.n_random=2"),
        "metrics.aopc_lerf.n_random=2",
    ),
    "smerf": (
        3,
        *("methods=[gradient,integrated_gradients,smoothgrad]", "metrics=[pafl]"),
        *("methods.integrated_gradients.steps=20", "methods.smoothgrad.n_samples=20"),
    ),
}


class Bar:
    """What a bar was told, in place of tqdm's."""

    def __init__(self, total: int, **_: Any) -> None:
        self.total, self.moves, self.named = total, [], []

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def set_postfix_str(self, text: str) -> None:
        self.named.append(text)

    def update(self, n: float) -> None:
        self.moves.append(n)

    @property
    def n(self) -> float:
        return sum(self.moves)


def test_a_watcher_is_told_of_all_that_is_done_in_pieces() -> None:
    seen: list[int] = []
    with watched(seen.append):
        run_grid(lambda images, copies: None, 3, 10, 6)
        run_chunked(lambda part: None, 5, 2)
    passed(100)  # nobody watches any more
    assert sum(seen) == 3 * 10 + 5 and max(seen) == 6


def test_a_bar_makes_up_for_what_it_was_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell, "tqdm", Bar)
    progress = cell.Progress(Plan([], 2, 1, 0, {(0, "model", "gradient"): 6.0}))
    with progress.work(Tile(0, ("a", "b")), "model", "gradient"):
        passed(2)
    with progress.work(Tile(0, ("a", "b")), "random", "gradient"):  # stored: nothing is due
        passed(2)
    assert progress.bar.moves == [2, 4, 0, 0] and progress.bar.named == ["gradient", "gradient, random"]


@pytest.mark.parametrize("paper", OF_PAPERS)
def test_what_is_planned_is_what_is_done(paper: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images are counted as they enter the network, but for the one look at each that says what it is taken for."""
    worth, *words = OF_PAPERS[paper]
    config = check(compose_config([*WORDS, f"cache_dir={tmp_path / 'store'}", *map(str, words)]))
    entered: list[int] = []
    bars: list[Bar] = []
    convolve, work = nn.Conv2d.forward, cell.explain_and_score

    def counted(layer: nn.Conv2d, x: Tensor) -> Tensor:
        entered.extend([len(x)] * (layer.in_channels == 3))
        return convolve(layer, x)

    def counting(*given: Any) -> Iterator[Any]:
        with monkeypatch.context() as patch:
            patch.setattr(nn.Conv2d, "forward", counted)
            patch.setattr(cell, "tqdm", lambda **options: bars.append(Bar(**options)) or bars[-1])
            yield from work(*given)

    monkeypatch.setattr(cell, "explain_and_score", counting)
    done = Run(cell.run(config, tmp_path / "run", words))
    planned = done.facts["plan"]["passes"]
    assert planned == sum(bars[0].moves) == bars[0].total
    passes = worth * (sum(entered) - 6)
    assert passes <= planned <= 1.1 * passes  # what metrics share is planned for each
    assert done.facts["plan"]["entries"] == sum(done.facts["computed"]["model"].values())
    assert max(bars[0].moves) < planned / 4 and done.facts["timings"]["maps and scores"] > 0
    again = Run(cell.run(config, tmp_path / "again", words))
    assert again.facts["plan"]["passes"] == bars[1].total == again.facts["plan"]["entries"] == 0


def test_seconds_beside_passes_are_planned() -> None:
    similarity = MapSimilarity(measures=["hog"])
    assert similarity.host_seconds((1, 28, 28)) > 0 == MassShare().host_seconds((1, 28, 28))
    cost = Plan([], 2, 1, 0, {}, entries=100, host=2.0)
    assert cost.seconds == 2.0 + 100 * ENTRY_SECONDS
    assert "100 maps and scores of a tile" in cost.table()


def test_a_short_run_is_timed_by_a_share_of_its_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a clock that moves: the probe ends with the passes, a long run's with its seconds."""
    monkeypatch.setattr(plan, "PROBE_SECONDS", 1e9)
    asked: list[int] = []
    model = nn.Linear(4, 2)
    model.register_forward_pre_hook(lambda module, given: asked.append(len(given[0])))
    cell_of = SimpleNamespace(dataset=SimpleNamespace(shape=(4,)), device=torch.device("cpu"), precision="float32")
    for enough, calls in ((0, 1 + plan.PROBE_BATCHES), (70, 1 + 7)):  # one to warm up
        assert plan._rate(model, cell_of, 10, enough) > 0
        assert asked == [10] * calls
        asked.clear()
    monkeypatch.setattr(plan, "PROBE_SECONDS", 0.0)
    plan._rate(model, cell_of, 10, 1e9)
    assert asked == [10]
