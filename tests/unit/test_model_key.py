"""The key of trained weights changes with what makes them and with nothing else; so does that of maps."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from salrun.models.architectures import TomsettCNN, smerf_cnn
from salrun.models.checkpoint import model_key
from salrun.models.classifier import Classifier
from salrun.models.recipe import Recipe
from salrun.models.torchvision import finetuned
from salrun.store import sources
from tests.unit.test_textbox import textbox

USERS = """
from dataclasses import dataclass
from torch import nn
from salrun.models.recipe import Recipe
from salrun.types import Batch

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(4, 2))

class Data:
    def identity(self):
        return {"files": "the same"}
    fingerprint = identity

@dataclass
class Mine(Recipe):
    pass
"""
Edit = Callable[[str], None]


@pytest.fixture
def edit(monkeypatch: pytest.MonkeyPatch) -> Edit:
    """Change the source of a module, as far as keys are concerned."""
    original = sources._source
    assert original("salrun.store.leases") and original("salrun.models.verification")

    def change(module: str) -> None:
        monkeypatch.setattr(sources, "_source", lambda m: original(m) + ("# changed" if m == module else ""))

    return change


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "code_of_mine.py").write_text(USERS)
    yield importlib.import_module("code_of_mine")
    del sys.modules["code_of_mine"]


def recipe(arch: Any = partial(smerf_cnn, kind="simple"), cls: type[Recipe] = Recipe, **fields: Any) -> Recipe:
    recipes = {"fast": {"epochs": 1}, "fast_pgd": {"epochs": 1, "pgd": {"eps": 0.1, "step": 0.1, "iterations": 1}}}
    return cls("m", arch, **{"recipes": recipes, **fields})


def key(given: Recipe, data: Any) -> str:
    return given._key(given.identity(data, 0), data)


@pytest.mark.parametrize("module", ["store.leases", "store.entries", "store.tensors", "models.verification"])
@pytest.mark.parametrize("training", ["plain", "pgd"])
def test_what_keeps_and_measures_a_model_is_not_in_its_key(edit: Edit, module: str, training: str) -> None:
    before = key(recipe(training=training), textbox())
    for edited in (module, "models.recipe", "models.checkpoint", "models.inference", "errors", "types"):
        edit(f"salrun.{edited}")
        assert key(recipe(training=training), textbox()) == before


@pytest.mark.parametrize(
    "module",
    ["models.training", "models.classifier", "models.architectures", "datasets.textbox", "datasets.base", "rng"],
)
def test_what_makes_the_weights_is(edit: Edit, module: str) -> None:
    before = key(recipe(), textbox())
    assert key(recipe(), textbox()) == before
    edit(f"salrun.{module}")
    assert key(recipe(), textbox()) != before


def test_so_is_how_weights_to_start_from_are_read(edit: Edit) -> None:
    arch = partial(finetuned, name="resnet18", weights=None, classes=2)
    before = key(recipe(arch), textbox())
    edit("salrun.models.architectures")
    assert key(recipe(arch), textbox()) == before
    for module in ("torchvision", "checkpoint"):
        edit(f"salrun.models.{module}")
        assert key(recipe(arch), textbox()) != before


@pytest.mark.parametrize("part", ["network", "data", "recipe"])
def test_and_a_users_code(edit: Edit, users: Any, part: str) -> None:
    arch = users.Net if part == "network" else partial(smerf_cnn, kind="simple")
    data = users.Data() if part == "data" else textbox()
    given = recipe(arch, users.Mine if part == "recipe" else Recipe)
    before = key(given, data)
    edit("code_of_mine")
    assert key(given, data) != before


def test_weights_differ_by_seed_loss_recipe_rounding_and_by_what_they_start_from() -> None:
    data = textbox()
    longer = {"fast": {"epochs": 2}, "fast_pgd": recipe().recipes["fast_pgd"]}
    others = [
        {},
        {"loss": "cross_entropy"},
        {"half": False},
        {"recipes": longer},
        {"init": "glorot"},
        {"training": "pgd"},
        {"training": "pgd", "recipes": longer},  # of the plain model that the other starts from
    ]
    keys = [key(recipe(**fields), data) for fields in others]
    keys += [key(recipe(), textbox(seed=1)), recipe()._key(recipe().identity(data, 1), data)]
    assert len(set(keys)) == len(keys)
    assert key(recipe(gate={"accuracy": 0.5}, accept_unverified=True, layers={"cam": "relu3"}), data) == keys[0]


# -- maps -------------------------------------------------------------------------------------------------------------


def test_maps_depend_on_the_code_of_the_forward_pass_alone(edit: Edit, users: Any) -> None:
    torch.manual_seed(0)
    plain = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))
    ours, theirs = Classifier(TomsettCNN(bn="rms")), Classifier(users.Net())
    keys = lambda: [model_key(model) for model in (plain, ours, theirs)]
    before = keys()
    for module in ("store.entries", "store.leases", "models.training"):
        edit(f"salrun.{module}")
        assert keys()[:2] == before[:2]
    edit("salrun.models.architectures")
    assert [a == b for a, b in zip(keys(), before, strict=True)] == [True, False, True]
    edit("code_of_mine")
    assert [a == b for a, b in zip(keys(), before, strict=True)] == [True, True, False]
