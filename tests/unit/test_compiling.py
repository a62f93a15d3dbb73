"""Whether compiling pays: what was learned decides, a choice once made stays, all are made before compiling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from salrun.config.check import check
from salrun.config.compose import compose_config
from salrun.models import compiling, inference
from salrun.models.classifier import Classifier
from salrun.models.compiling import FARTHEST, REPAID, Experience, Work
from salrun.models.inference import InferenceCopy, Network, inference_copy
from salrun.pipeline import cell as pipeline
from salrun.pipeline.build import build
from salrun.pipeline.stages import Stages
from salrun.store.entries import Store


def net(width: int = 5) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, width))


def work(passes: float, module: nn.Module | None = None, fingerprint: str = "f") -> Work:
    """120 operations a pass."""
    model = Classifier(module or net(), name="net", fingerprint=fingerprint).eval()
    return Work(model, torch.rand(4, 3, 2, 2), passes, batch=8, numerics="exact")


def compiled(of: Work, seconds: float) -> InferenceCopy:
    network = Network(of.model.module, compiled=of.model.module, batch=of.batch, compile_seconds=seconds)
    return InferenceCopy(of.model, network, ["compiled"])


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Callable[[float, float], None]:
    """So long does a batch take, eager and compiled."""

    def times(eager: float, fast: float) -> None:
        monkeypatch.setattr(compiling, "_seconds", lambda network, work: fast if network.compiled else eager)

    return times


USUAL = REPAID["cpu"] / 120  # passes


def test_operations_are_counted() -> None:
    assert work(1).operations == 120


def test_where_nothing_was_learned_the_usual_decides(tmp_path: Path) -> None:
    experience = Experience(Store(tmp_path))
    assert not experience.choose(work(0.99 * USUAL)) and experience.choose(work(1.01 * USUAL))
    assert not experience.choose(work(0)) and len(list(tmp_path.rglob("*.safetensors"))) == 2
    assert not experience.choose(replace(work(1e30), images=torch.rand(4, 3, 2, 2, device="meta")))


def test_what_it_cost_decides(tmp_path: Path, timed: Callable[[float, float], None]) -> None:
    """A batch of 8 saves 2 s of 3: 40 s of compiling are repaid by 160 passes."""
    timed(3, 1)
    experience = Experience(Store(tmp_path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(compiling.REPAID, "cpu", 160 * 120 * 2)
        experience.learn(work(1), compiled(work(1), 40))
        assert not experience.choose(work(159)) and experience.choose(work(161))
        assert not experience.choose(work(79, net(10))) and experience.choose(work(81, net(10))), "any network, if new"
        timed(2, 1)
        experience.learn(work(1, net(10)), compiled(work(1), 40))
        assert not experience.choose(work(319, net(10))) and experience.choose(work(321, net(10)))
        assert not experience.choose(work(158)) and experience.choose(work(162)), "its own before those of others"
        experience.learn(work(1), compiled(work(1), 10))
        assert not experience.choose(work(39)) and experience.choose(work(41)), "the last time; passes are timed once"


@pytest.mark.parametrize(("times", "bound"), [((1, 1), FARTHEST), ((1, 2), FARTHEST), ((1e9, 0), 1 / FARTHEST)])
def test_one_measurement_does_not_decide_for_ever(
    times: tuple[float, float], bound: float, tmp_path: Path, timed: Callable[[float, float], None]
) -> None:
    timed(*times)
    experience = Experience(Store(tmp_path))
    experience.learn(work(1), compiled(work(1), 5))
    assert not experience.choose(work(0.99 * bound * USUAL)) and experience.choose(work(1.01 * bound * USUAL))


def test_a_choice_stays(tmp_path: Path, timed: Callable[[float, float], None]) -> None:
    timed(1e9, 0)
    experience = Experience(Store(tmp_path))
    assert not experience.choose(work(0.5 * USUAL))
    experience.learn(work(1), compiled(work(1), 5))
    assert not experience.choose(work(0.5 * USUAL)) and not Experience(Store(tmp_path)).choose(work(0.5 * USUAL))
    others = [work(0.6 * USUAL), work(0.5 * USUAL, fingerprint="g"), replace(work(0.5 * USUAL), numerics="fast")]
    assert [experience.choose(other) for other in others] == [True, True, False], "fast has learned nothing yet"
    assert experience.choose(replace(work(0.5 * USUAL), batch=9))


def test_times_are_of_full_batches() -> None:
    sizes: list[int] = []

    def network(z: Tensor) -> Tensor:
        sizes.append(len(z))
        return z

    assert compiling._seconds(network, work(1)) > 0 and sizes == [8, 8]


# -- in a run ----------------------------------------------------------------------------------------------------------

WORDS = (
    *("dataset=textbox", "reasoning=simple_nr", "model=smerf_simple", "methods=[edge]", "metrics=[insertion]"),
    "controls=[]",
    *("device=cpu", "metrics.insertion.step=256", "dataset.n_per_bucket=2", "dataset.groups=[2,5,11]", "tile=6"),
)


def test_a_run_chooses_for_all_models_before_it_compiles_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = build(check(compose_config([*WORDS, f"cache_dir={tmp_path}"])))
    model = pipeline.obtain_models(cell)["model"].classifier
    twin = Classifier(model.module, name="twin", fingerprint="twin").eval()
    twin.mean, twin.std = model.mean, model.std
    happened: list[str] = []
    pays, learn = Experience._pays, Experience.learn

    def chosen(self: Experience, work: Work) -> bool:
        happened.append(f"choose {work.model.name}")
        return pays(self, work)

    def learned(self: Experience, work: Work, copy: InferenceCopy) -> None:
        happened.append(f"learn {work.model.name}")
        learn(self, work, copy)

    monkeypatch.setattr(Experience, "_pays", chosen)
    monkeypatch.setattr(Experience, "learn", learned)
    monkeypatch.setattr(compiling, "REPAID", {"cpu": 1e6})
    monkeypatch.setattr(compiling, "_seconds", lambda network, work: 1.0)  # compiling brings nothing
    monkeypatch.setattr(inference.torch, "compile", lambda module, **options: module)

    def steps(compile: Any = "auto") -> list[tuple[str, ...]]:
        stages = Stages(replace(cell, compile=compile), {"model": model, "twin": twin})
        return [stages.inference(role).steps for role in ("model", "twin")]

    first = steps()
    assert all("compiled" in of for of in first)
    assert happened == ["choose smerf_simple", "choose twin", "learn smerf_simple", "learn twin"]
    monkeypatch.setattr(compiling, "REPAID", {"cpu": 1e30})
    assert steps() == first and happened[4:] == ["learn smerf_simple", "learn twin"], "the choice is kept"
    assert not any("compiled" in of for of in steps("off")) and all("compiled" in of for of in steps("on"))


def test_a_copy_says_how_long_it_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference.torch, "compile", lambda module, **options: module)
    at = work(1)
    assert inference_copy(at.model, at.images, "on").network.compile_seconds > 0
    assert inference_copy(at.model, at.images, "off").network.compile_seconds == 0
