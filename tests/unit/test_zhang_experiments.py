"""Zhang's experiments compose, measure every column of the tables, and are refused where they cannot."""

from __future__ import annotations

import pytest
import torch

from salrun.config.check import check
from salrun.config.compose import compose_config
from salrun.errors import SalrunError
from salrun.metrics.robustness import Sensitivity
from salrun.papers.zhang.evidence import setting_of
from salrun.papers.zhang.names import (
    COLUMNS,
    CONTROLS,
    FIDELITY,
    MASKED,
    METHODS,
    RANDOM_TIES,
    REFLECTED,
    ROBUSTNESS,
    TRANSFORMS,
)
from salrun.papers.zhang.tables import MEANS
from salrun.pipeline.build import build
from tests import toys
from tests.toys import script

COMPOSE = {
    "imagenet, ResNet-50": [],
    "the v1 weights": ["model=resnet50_v1"],
    "the light model": ["model=efficientnet_lite0"],
    "cifar10": ["dataset=cifar10", "model=tomsett_cnn"],
    "tinyimagenet": ["dataset=tinyimagenet"],
}


@pytest.mark.parametrize("words", COMPOSE.values(), ids=COMPOSE)
@pytest.mark.parametrize("name", ["fidelity", "targets", "robustness", "transforms"])
def test_experiments_compose_with_data_and_models(name, words, tmp_path):
    config = check(
        compose_config([f"+experiment=zhang_{name}", "scale=smoke", f"cache_dir={tmp_path}", "device=cpu", *words])
    )
    cell = build(config)
    assert [m.name for m in cell.methods] == METHODS
    assert all(m.view.name == "minmax" for m in cell.methods)
    size = 32 if "dataset=cifar10" in words else 224
    assert cell.dataset.shape == (3, size, size)
    assert hasattr(cell.dataset, "plain") == (name == "transforms")
    assert {p.target for p in cell.methods} == {"predicted" if name == "targets" else "label"}


def test_every_column_of_the_tables_is_measured():
    wanted = {
        "fidelity": [*FIDELITY, *RANDOM_TIES.values(), *MEANS["further"][1], "Sparseness", "Complexity", "EC"]
        + [f"{m} {c}" for m in MASKED[:3] for c in CONTROLS],
        "targets": MASKED,
        "robustness": [*ROBUSTNESS, "MS fixed", "AS fixed"],
        "transforms": MASKED,
    }
    for name, columns in wanted.items():
        metrics = check(compose_config([f"+experiment=zhang_{name}"]))["metrics"]
        modes = {(m, mode) for m, spec in metrics.items() for mode in spec.get("variants") or [""]}
        for column in columns:
            spec = COLUMNS[column]
            assert sum((spec.metric, mode) in modes for mode in spec.modes) == 1, (name, column)


def test_insertion_and_deletion_break_ties_as_their_columns_say():
    metrics = check(compose_config(["+experiment=zhang_fidelity"]))["metrics"]
    for name, ties in {
        "I": "raster_reversed",
        "Db": "raster_reversed",
        **dict.fromkeys(RANDOM_TIES.values(), "random"),
    }.items():
        column = COLUMNS[name]
        assert metrics[column.metric]["variants"][column.modes[0]]["ties"] == ties


def test_every_transform_is_run():
    transforms = check(compose_config(["+experiment=zhang_transforms"]))["dataset"]["transforms"]
    assert all(len(transforms[name]) == 4 for name in (*TRANSFORMS, REFLECTED))


def test_targets_are_told_apart_by_name_and_fact():
    config = check(compose_config(["+experiment=zhang_targets", "target=least_probable"]))
    assert config["name"] == "zhang_targets_least_probable"
    assert setting_of(config) == "least_probable"


@pytest.mark.parametrize("name", ["fidelity", "robustness", "transforms"])
def test_experiments_state_their_protocol(name):
    assert setting_of(check(compose_config([f"+experiment=zhang_{name}", "name=mine"]))) == name


def test_the_fixed_explainer_must_be_there():
    config = check(compose_config(["+experiment=zhang_robustness", "methods=[zhang/grad_cam]", "device=cpu"]))
    with pytest.raises(SalrunError, match="fixed explainer 'gradient' is not one of the run's methods"):
        build(config)


def test_maps_of_a_fixed_explainer_are_compared_in_one_view():
    words = ["+experiment=smerf_simple_fr", "methods=[gradient,fake_cam]", "metrics=[max_sensitivity]", "device=cpu"]
    words.append("metrics.max_sensitivity.fixed_explainer=gradient")
    with pytest.raises(SalrunError, match=r"several \(max_abs, raw\): set metrics\.max_sensitivity\.view=minmax"):
        build(check(compose_config(words)))
    build(check(compose_config([*words, "metrics.max_sensitivity.view=minmax"])))


def test_dataset_transforms_are_checked():
    with pytest.raises(SalrunError, match=r"unknown key 'dataset\.transforms\.rotate'"):
        check(compose_config(["+experiment=zhang_transforms", "+dataset.transforms.rotate=[3]"]))
    with pytest.raises(SalrunError, match=r"dataset\.transforms\.mixup_label must be one of primary, partner"):
        check(compose_config(["+experiment=zhang_transforms", "dataset.transforms.mixup_label=none"]))


def test_the_runs_of_reproduce_fit_together():
    reproduce = script("reproduce")
    for group in reproduce.campaign("zhang")["groups"]:
        settings = set()
        for job in reproduce.wanted("zhang", "laptop", [0], [], [], group):
            config = check(compose_config(job))
            settings.add((setting_of(config), config["name"]))
            assert (config["target"] == "label") == (config["protocol"] != "targets")
            assert set(config["methods"]) <= set(METHODS)
        assert ("fidelity", "zhang_fidelity") in settings
        jobs = reproduce.wanted("zhang", "laptop", [0], [], [], group)
        assert len(settings) == len(jobs)  # told apart by their names
    paper = [" ".join(j) for j in reproduce.wanted("zhang", "paper", [0], [], [], "cifar10")]
    assert sum("target=least_probable" in j for j in paper) == 1
    assert reproduce.main(["zhang", "--dry-run", "--group", "cifar10"]) == 0
    with pytest.raises(SystemExit):
        reproduce.main(["zhang", "--dry-run", "--group", "mnist"])


# -- the fixed explainer ----------------------------------------------------------------------------------------------


def test_a_fixed_explainer_compares_with_another_methods_maps():
    x = toys.images(3, 4, 1)
    fake = torch.ones_like(x)
    asked = []

    def by(name, neighbour):
        asked.append(name)
        return 0.05 * torch.ones_like(neighbour)

    scene = toys.scene(x, explain=lambda n: fake, explain_by=by)
    assert Sensitivity(n_draws=2)(fake, scene).value.tolist() == [0, 0, 0]
    assert Sensitivity(n_draws=2, fixed_explainer="gradient")(fake, scene).value.tolist() == pytest.approx([0.95] * 3)
    assert asked == ["gradient"] * 2
    alone = toys.scene(x, explain=lambda n: fake)
    with pytest.raises(SalrunError, match="fixed_explainer names a method of a run"):
        Sensitivity(fixed_explainer="gradient")(fake, alone)
