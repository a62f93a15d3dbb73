"""One resolver: a name, a spec, a file, `module:Class` and an instance give the same part, with Hydra's values."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf
from torch import nn

import salrun
from salrun.config.catalogue import names, part_config
from salrun.config.compose import compose_config
from salrun.config.parts import dataset_part, entries, method_part, metric_parts, recipe_part
from salrun.datasets.mnist import MNIST
from salrun.errors import SalrunError
from salrun.methods.gradient import Gradient
from salrun.methods.rise import RISE
from salrun.metrics.insertion import Insertion

TWO = '''
from dataclasses import dataclass
from salrun.metrics.common import scored
from salrun.types import Method, Metric

@dataclass
class Flat(Method):
    """One everywhere."""
    level: float = 1.0

    def __call__(self, model, x, target, rng, fitted):
        return x * 0 + self.level

@dataclass
class Ends(Metric):
    """The largest and the smallest value of the map."""
    times: float = 1.0
    view = "sum"

    def __call__(self, plane, scene):
        flat = plane.flatten(1).double() * self.times
        return {"high": scored(flat.amax(1), plane), "low": scored(flat.amin(1), plane)}
'''
X = torch.linspace(0, 1, 2 * 3 * 8 * 8).view(2, 3, 8, 8)


@pytest.fixture
def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "two_parts_of_mine.py").write_text(TWO)
    return tmp_path


def composed(*overrides: str) -> dict[str, Any]:
    return OmegaConf.to_container(compose_config([*overrides, "data_root=/d", "cache_dir=/c"]), resolve=True)  # type: ignore[return-value]


# -- configs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", ["smoke", "paper"])
@pytest.mark.parametrize("group", ["methods", "metrics"])
def test_configs_are_those_that_hydra_composes(group: str, scale: str) -> None:
    by_folder = defaultdict(list)
    for name in names(group):
        by_folder[name.rpartition("/")[0]].append(name)
    assert len(by_folder) > 1
    for some in by_folder.values():
        config = composed(f"{group}=[{','.join(some)}]", f"scale={scale}")[group]
        assert {name.rpartition("/")[2]: part_config(group, name, scale) for name in some} == config


@pytest.mark.parametrize("group", ["dataset", "model"])
def test_data_sets_and_models_too(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SALRUN_DATA", "/d")
    for name in names(group):
        assert part_config(group, name) == composed(f"{group}={name}")[group]


def test_a_users_folder_with_a_defaults_list(tmp_path: Path) -> None:
    folder = tmp_path / "methods" / "mine"
    folder.mkdir(parents=True)
    header = "# @package methods\n# Mine\n"
    lines = header + "defaults:\n  - /methods/smerf/deconvnet@_here_\n  - _self_\ndeconvnet: {start: one}\n"
    (folder / "deconvnet.yaml").write_text(lines)
    (spec,) = (entry.spec for entry in entries("mine/deconvnet", ("methods",), folders=(tmp_path,)))
    assert spec == {**(part_config("methods", "smerf/deconvnet") or {}), "start": "one"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("defaults: [nothing_here]\nmine: {}\n", "names methods/nothing_here, which is not there"),
        ("defaults: [mine]\nmine: {}\n", "leads back to methods/mine"),
        ("defaults: 3\nmine: {}\n", "defaults must be a list"),
        ("defaults: [override /model: x]\nmine: {}\n", "only a run can compose"),
        ("mine: {n: '${nothing.here}'}\n", "does not resolve at 'methods.mine.n'"),
        ("yours: {}\n", "has nothing at 'methods.mine'"),
        ("mine: [\n", "is no YAML"),
        ("- mine\n", "must be a mapping"),
    ],
)
def test_a_config_that_is_none_is_named(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "methods").mkdir()
    (tmp_path / "methods" / "mine.yaml").write_text(text)
    with pytest.raises(SalrunError, match=told):
        part_config("methods", "mine", folders=(tmp_path,))


# -- parts ------------------------------------------------------------------------------------------------------------


def test_every_way_leads_to_the_same_part(here: Path) -> None:
    spec = {"_target_": "salrun.methods.rise.RISE", "n_masks": 7}
    ways = [
        ("rise", {"n_masks": 7}),
        ("salrun.methods.rise:RISE", {"n_masks": 7}),
        (spec, None),
        (RISE(n_masks=7), None),
    ]
    assert {repr(method_part(*way).method) for way in ways} == {repr(RISE(n_masks=7))}
    assert [p.metric for p in metric_parts("salrun.metrics.insertion:Insertion")] == [Insertion()]
    (ours,) = metric_parts("two_parts_of_mine.py", {"times": 2.0})
    assert (ours.name, ours.view_name, ours.metric.times) == ("ends", "sum", 2.0)  # type: ignore[attr-defined]
    assert [e.group for e in entries("two_parts_of_mine.py")] == ["methods", "metrics"]
    assert isinstance(dataset_part("mnist", {"root": "x"}), MNIST) and dataset_part("mnist").root  # type: ignore[attr-defined]
    assert recipe_part("mnist_cnn_shapes").arch.keywords["classes"] == 3  # type: ignore[attr-defined]


def test_an_option_leaves_out_the_variants_that_set_it_otherwise() -> None:
    modes = lambda *given: [part.mode for part in metric_parts(*given)]
    assert modes("average_gain") == ["all", "clipped"]
    assert modes("average_gain", {"clipped": True}) == ["clipped"]
    assert modes("average_gain", {"mask_space": "norm"}) == ["all", "clipped"]
    assert modes("zhang/average_gain", {"view": "ranks"}) == ["all", "clipped", "ranks"]
    assert {part.view_name for part in metric_parts("zhang/average_gain", {"view": "ranks"})} == {"ranks"}


@pytest.mark.parametrize(
    ("part", "options", "told"),
    [
        ("gradeint", {}, "unknown method 'gradeint'; did you mean gradient"),
        ("smerf/gradeint", {}, "did you mean smerf/gradient"),
        ("rise", {"n_mask": 3}, "rise has no option 'n_mask'; did you mean n_masks"),
        ("rise", {"view": "sum"}, "rise has no option 'view'"),
        (Gradient(), {"space": "raw"}, "Gradient is made already"),
        ("sparseness", {}, "unknown method 'sparseness'"),
        ("salrun.metrics.insertion:Insertion", {}, "unknown method 'Insertion'"),
        ("nowhere.py", {}, "nowhere.py is not there"),
        ("captum:Salency", {}, "did you mean Saliency"),
        ("captum:Saliency", {"abss": False}, "unknown option 'abss'"),
        ("../methods/rise", {}, "unknown method"),
        ("", {}, "unknown method"),
    ],
)
def test_a_mistake_is_one_sentence(part: Any, options: dict, told: str) -> None:
    if "captum" in str(part):
        pytest.importorskip("captum")
    with pytest.raises(SalrunError, match=told):
        method_part(part, options)


def test_a_file_with_several_is_told_how_to_choose(here: Path) -> None:
    (here / "several.py").write_text(TWO + TWO.replace("Flat", "Flatter").replace("Ends", "Extremes"))
    with pytest.raises(SalrunError, match=r"several methods: name one \(several:Flat, several:Flatter\)"):
        method_part("several.py")
    assert method_part("several:Flatter", {"level": 2.0}).name == "flatter"


# -- in the API -------------------------------------------------------------------------------------------------------


def test_the_papers_variants_have_names_in_the_api(network: nn.Module) -> None:
    maps = salrun.explain(network, X, 0, "smerf/gradient")
    assert torch.equal(maps, salrun.explain(network, X, 0, method_part("smerf/gradient").method))
    scores = salrun.evaluate(network, X, 0, maps, "zhang/insertion")
    assert scores.variants is not None and list(scores.variants) == ["raster_reversed", "random"]
    for ties, variant in scores.variants.items():
        alone = salrun.evaluate(network, X, 0, maps, "insertion", view="minmax", ties=ties)
        assert torch.equal(variant.values, alone.values) and alone.variants is None
    assert torch.equal(scores.values, scores.variants["raster_reversed"].values)  # the reproduction's stand first


def test_every_mode_of_a_metric_is_scored(network: nn.Module) -> None:
    maps = salrun.explain(network, X, 1)
    scores = salrun.evaluate(network, X, 1, maps, "zhang/average_gain")
    assert scores.variants is not None
    assert list(scores.variants) == ["all", "clipped", "ranks", "matched_mean"]
    assert torch.equal(scores.values, scores.variants["all"].values)
    ranks = salrun.evaluate(network, X, 1, maps, "average_gain", view="ranks", clipped=False)
    assert torch.equal(ranks.values, scores.variants["ranks"].values)
    assert not torch.equal(ranks.values, scores.values)


def test_modes_and_names_of_scores_are_joined(network: nn.Module, here: Path) -> None:
    spec = {"_target_": "two_parts_of_mine.Ends", "variants": {"once": {}, "twice": {"times": 2.0}}}
    modes = {part.mode: part.metric for part in metric_parts(spec, name="ends")}
    maps = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    named = salrun.evaluate(network, X, 0, maps, modes["once"])
    assert list(named.variants or {}) == ["high", "low"]
    both = salrun.evaluate(network, X, 0, maps, spec)  # type: ignore[arg-type]
    assert list(both.variants or {}) == ["once/high", "once/low", "twice/high", "twice/low"]
    assert torch.equal(both.values, maps.flatten(1).double().amax(1))


def test_somebodys_own_hydra_app_is_left_alone(network: nn.Module, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("x: 1\n")
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        inside = GlobalHydra.instance().hydra
        maps = salrun.explain(network, X, 0, "zhang/grad_cam")
        salrun.evaluate(network, X, 0, maps, "average_drop")
        assert GlobalHydra.instance().hydra is inside is not None
