"""`dataset.explained_seed` chooses the images explained, and nothing else: no image, no model, no stored result."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from salrun.config.catalogue import names
from salrun.config.check import check
from salrun.config.compose import compose_config
from salrun.config.parts import dataset_part, recipe_part
from salrun.datasets.base import TrainTestDataset
from salrun.datasets.mnist import MNIST
from salrun.datasets.transforms import Transformed
from salrun.errors import SalrunError
from tests import fake_data
from tests.unit.test_datasets import every
from tests.unit.test_pipeline import run
from tests.unit.test_textbox import textbox


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(fake_data.write_all(tmp_path_factory.mktemp("data")))


def test_it_chooses_images_and_changes_none(root: str) -> None:
    sets = [*every(root), textbox(n_per_bucket=3)]
    assert len(sets) == 8
    for data in sets:
        chosen = [replace(data, explained_seed=seed) for seed in (0, 1)]
        first, second = (each.explained() for each in chosen)
        assert len(first) == len(second) and first != second, data.name
        assert chosen[0].identity() == chosen[1].identity() and chosen[0].fingerprint() == chosen[1].fingerprint()
        assert [each.facts()["explained_seed"] for each in chosen] == [0, 1]
        assert {each.facts()["seed"] for each in chosen} == {0}


def test_the_choice_of_a_seed_is_what_it_was_when_the_datas_seed_made_it(root: str) -> None:
    for data in [*every(root), textbox(n_per_bucket=3)]:
        for seed in (0, 1):
            both = replace(data, seed=seed, explained_seed=seed)
            alone = replace(data, seed=seed, explained_seed=None)
            assert both.explained() == alone.explained() and alone.facts()["explained_seed"] == seed
    mnist = MNIST(root, n_explained=5, explained_seed=0, verify=False).explained()
    assert mnist == ["test-00048", "test-00064", "test-00113", "test-00145", "test-00171"]
    assert [name[-5:] for name in textbox(n_per_bucket=5, explained_seed=0, groups=["7"]).explained()] == [
        "00011",
        "00063",
        "00208",
        "00209",
        "00331",
    ]


def test_transforms_show_the_images_that_the_plain_data_chose(root: str) -> None:
    plain = MNIST(root, n_explained=4, verify=False)
    seen = [Transformed(replace(plain, explained_seed=s), mixup=[], resize=[], crop=[], rotation=[]) for s in (0, 1)]
    assert seen[0].explained() != seen[1].explained() == replace(plain, explained_seed=1).explained()
    assert [each.facts()["explained_seed"] for each in seen] == [0, 1]


@pytest.mark.parametrize("name", sorted(names("dataset")))
def test_every_config_follows_the_runs_seed(name: str) -> None:
    assert compose_config([f"dataset={name}", "seed=3"])["dataset"]["explained_seed"] == 3


def test_data_that_draws_nothing_has_no_other_seed() -> None:
    with pytest.raises(SalrunError, match=r"unknown key 'dataset.seed'.*did you mean explained_seed"):
        check(compose_config(["+experiment=zhang_fidelity", "dataset.seed=1"]))


def test_nested_data_follows_it_too() -> None:
    config = check(compose_config(["+experiment=yona_mnist_halves", "seed=3"]))
    assert config["dataset"]["explained_seed"] == config["others"]["digits"]["dataset"]["explained_seed"] == 3
    assert config["dataset"]["seed"] == 0
    alone = check(compose_config(["+experiment=yona_mnist_halves", "seed=3", "dataset.explained_seed=0"]))
    assert alone["dataset"]["explained_seed"] == 0 and alone["seed"] == 3


@pytest.mark.parametrize("reading", ["recommended", "code"])
@pytest.mark.parametrize("setting", ["simple_fr", "simple_nr"])
def test_shipped_models_of_other_seeds_are_used(setting: str, reading: str) -> None:
    explained = set()
    for seed in (0, 1, 2):
        config = check(compose_config([f"+experiment=smerf_{setting}", f"seed={seed}", f"reading={reading}"]))
        data, recipe = dataset_part(config["dataset"]), recipe_part(config["model"])
        path = recipe.shipped(recipe.identity(data, seed))  # type: ignore[attr-defined]
        tail = ("-clipped" if reading == "code" else "") + (f"-seed{seed}" if seed else "")
        assert path is not None and path.stem == f"smerf-{setting}{tail}"
        explained.add(tuple(data.explained()))
    assert len(explained) == 3


def test_a_run_tells_its_seeds(tmp_path: Path) -> None:
    told = run(tmp_path / "run", "report=false", "seed=1", "metrics=[pafl]", "methods=[edge]", "dataset.seed=0")
    assert told.facts["seeds"] == {"model": 1, "data": 0, "explained": 1}
    assert set(told.cells["dataset.explained_seed"]) == {1} and set(told.cells["dataset.seed"]) == {0}


@dataclass
class Older(TrainTestDataset):
    """A user's data set, written before there was such a field."""

    root: str = ""
    n_explained: int | None = None
    seed: int = 0
    validation: int = 20
    split_seed: int = 0

    name = "older"
    classes = MNIST.classes
    shape = MNIST.shape

    def load(self, part):
        return MNIST(self.root, verify=False).load(part)


def test_a_class_without_the_field_chooses_by_its_own_seed(root: str) -> None:
    older = Older(root, n_explained=5, seed=1)
    assert older.explained() == MNIST(root, n_explained=5, explained_seed=1, verify=False).explained()
    assert older.facts()["explained_seed"] == 1
    assert "seed" not in older.identity()
    told = r"dataset: \S+\.Older does not take these parameters: .*'explained_seed'"
    with pytest.raises(SalrunError, match=told):
        dataset_part({"_target_": f"{__name__}.Older", "root": root, "explained_seed": 1})
