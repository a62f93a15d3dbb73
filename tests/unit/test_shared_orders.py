"""The random orders of AOPC between runs of one model: what the store has is not drawn again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from salrun.config.check import check
from salrun.config.compose import compose_config
from salrun.models.inference import InferenceCopy
from salrun.pipeline import cell as pipeline
from salrun.pipeline.build import build
from salrun.pipeline.stages import Stages, tiles_of
from salrun.types import Score

WORDS = (
    *("dataset=textbox", "reasoning=simple_nr", "model=smerf_simple", "device=cpu", "compile=off", "tile=4"),
    "controls=[]",
    *("dataset.n_per_bucket=2", "dataset.groups=[2,5]", "metrics=[aopc_morf]", "metrics.aopc_morf.levels=[4]"),
    "metrics.aopc_morf.perturbations=[mean]",
)
STEPS, IMAGES = 4, 4
Shown = Callable[..., tuple[dict[tuple[str, str], Score], int]]


@pytest.fixture
def scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shown:
    """All scores of a run with options, and how many images it showed to the model; runs share a store."""
    seen: list[int] = []
    head = InferenceCopy.head

    def counting(self: InferenceCopy, point: Tensor, space: str) -> Tensor:
        seen.append(len(point))
        return head(self, point, space)  # type: ignore[arg-type]

    monkeypatch.setattr(InferenceCopy, "head", counting)

    def run(methods: str, **options: float) -> tuple[dict[tuple[str, str], Score], int]:
        words = [f"metrics.aopc_morf.{name}={value}" for name, value in options.items()]
        words += [f"methods=[{methods}]", f"cache_dir={tmp_path / 'store'}"]
        cell = build(check(compose_config([*WORDS, *words])))
        stages = Stages(cell, {role: model.classifier for role, model in pipeline.obtain_models(cell).items()})
        (tile,) = tiles_of(cell)
        seen.clear()
        found = {}
        for part in cell.methods:
            for name, score in stages.score(stages.open(tile), part, cell.metrics[0]).items():
                found[part.name, name] = score
        return found, sum(seen)

    return run


def test_a_run_of_more_orders_draws_the_rest(scored: Shown) -> None:
    few, shown = scored("gradient,edge", n_random=10)
    assert shown == IMAGES * (STEPS * (2 + 10) + 1), "two maps, ten orders, the image itself"
    many, shown = scored("gradient,edge", n_random=25)
    assert shown == IMAGES * STEPS * (2 + 15)
    drawn = [scores["edge", "mean_L4_orderings"].curve for scores in (few, many)]
    assert drawn[0] is not None and drawn[1] is not None
    assert torch.equal(drawn[0], drawn[1][:, :10])
    again, shown = scored("edge,sensitivity", n_random=25)
    assert shown == IMAGES * STEPS, "other methods, the same baseline: the new map alone"
    assert torch.equal(again["sensitivity", "mean_L4_random"].value, many["edge", "mean_L4_random"].value)
    assert scored("edge", n_random=20)[1] == IMAGES * STEPS, "another metric's score, no order"


def test_orders_that_some_images_needed_serve_who_needs_more(scored: Shown) -> None:
    error, methods = 0.2, "gradient,edge,sensitivity"
    stopped, shown = scored(methods, n_random=30, random_error=error)
    numbers = stopped["edge", "mean_orders"].value
    assert 10 < float(numbers.mean()) < 30, "some images stop early, some do not"
    assert shown == IMAGES * (STEPS * 3 + 1) + STEPS * int(numbers.sum())
    whole, shown = scored(methods, n_random=30)
    assert shown == STEPS * (IMAGES * 3 + int((30 - numbers).sum())), "the maps, and the orders that were left out"
    again, shown = scored(methods, n_random=30, random_error=error / 2)
    assert shown == 0
    assert (again["edge", "mean_orders"].value >= numbers).all()
    for i, n in enumerate(numbers.int().tolist()):
        curve = whole["edge", "mean_L4_orderings"].curve
        assert curve is not None
        assert stopped["edge", "mean_L4_random"].value[i] == pytest.approx(float(curve[i, :n].mean()), abs=1e-12)
    others, _ = scored("gradient,edge,all_lit", n_random=30, random_error=error)
    assert not torch.equal(others["edge", "mean_orders"].value, numbers), "other methods deviate otherwise"
