"""scripts/train_models.py: the shipped checkpoints can be trained again by the recipe on their cards."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from salrun.config.parts import dataset_part, recipe_part
from salrun.errors import SalrunError
from salrun.models import checkpoint, training
from salrun.models.checkpoint import load_checkpoint, save_checkpoint, whole
from salrun.models.training import Training
from tests.toys import script

NAME = "smerf-simple_fr"
TRAINED = Path("outputs") / "trained" / f"{NAME}.safetensors"


train_models: Any = script("train_models")
JOBS = train_models.catalogue()
CARDS = {p.stem: p for p in sorted(checkpoint.PAPERS.glob("*/checkpoints/*.json"))}


# -- the catalogue and the cards ---------------------------------------------------------------------------------------


def test_every_shipped_checkpoint_can_be_trained_by_name():
    assert set(CARDS) <= set(JOBS)


@pytest.mark.parametrize("name", CARDS)
def test_the_command_trains_as_the_card_says(name: str) -> None:
    card = json.loads(CARDS[name].read_text())
    config = train_models.config_of(JOBS[name])
    recipe = recipe_part(config["model"])
    before = {f.name: f.default for f in fields(Training)}  # what a card older than a field was trained with
    assert {**before, **card["training"]} == asdict(recipe.how())
    assert card["recipe"] == recipe.recipe
    assert train_models.shipped_path(name, config) == CARDS[name].with_suffix(".safetensors")
    if config["dataset"].get("background") in ("black", "noise"):  # TextBox without files
        data = dataset_part(config["dataset"])
        assert card["identity"] == json.loads(json.dumps(recipe.identity(data, config["seed"])))
        assert card["train_per_group"] == data.fingerprint()["train_per_bucket"]


@pytest.mark.parametrize("name", CARDS)
def test_shipped_checkpoints_are_whole(name: str) -> None:
    assert whole(CARDS[name].with_suffix(".safetensors"))


# -- training ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def papers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A catalogue of one tiny training, nothing shipped, in a folder of its own; returns where it would be shipped."""
    tiny = ["dataset.train_per_bucket=8", "~model.gate.flips", "model.gate.accuracy=0", "model.gate.group=0"]
    tiny += ["+model.gate.images=12", *(f"model.recipes.fast.{k}" for k in ("epochs=2", "epoch_images=32", "batch=16"))]
    monkeypatch.setattr(train_models, "catalogue", lambda: {NAME: [*JOBS[NAME], *tiny]})
    monkeypatch.setattr(train_models, "PAPERS", tmp_path / "papers")
    monkeypatch.setattr(checkpoint, "PAPERS", tmp_path / "papers")
    monkeypatch.setenv("SALRUN_CACHE", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "papers" / "smerf" / "checkpoints" / f"{NAME}.safetensors"


def run(*words: str) -> int:
    return train_models.main([*words, "--device=cpu"])


def damage(path: Path) -> None:
    body = bytearray(path.read_bytes())
    body[-1] ^= 1
    path.write_bytes(body)


def test_what_is_whole_is_trained_again_beside_it(papers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(NAME) == 0
    assert whole(papers) and not TRAINED.exists()
    shipped, when = papers.read_bytes(), papers.stat().st_mtime_ns
    assert "shipped" not in capsys.readouterr().out
    assert run(NAME) == 0
    assert TRAINED.read_bytes() == shipped and whole(TRAINED)
    assert papers.stat().st_mtime_ns == when
    assert f"{NAME}: the same weights as shipped\n" in capsys.readouterr().out


@pytest.mark.parametrize("harm", [damage, Path.unlink, lambda p: p.with_suffix(".json").unlink()])
def test_what_is_not_whole_is_trained_in_its_place(papers: Path, harm: Any) -> None:
    run(NAME)
    shipped = papers.read_bytes()
    harm(papers)
    assert not whole(papers)
    assert run("--missing") == 0
    assert whole(papers) and papers.read_bytes() == shipped
    assert not TRAINED.exists()


def test_missing_leaves_what_is_whole(papers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(NAME)
    capsys.readouterr()
    assert run("--missing") == 0
    assert capsys.readouterr().out == f"{NAME}: there already\n"
    assert not TRAINED.exists()


def test_other_weights_are_said_with_both_accuracies(papers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_checkpoint(papers, nn.Linear(2, 2), {"verification": {"accuracy": 0.25}})
    run(NAME)
    accuracy = checkpoint.read_card(TRAINED)["verification"]["accuracy"]
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"{NAME}: other weights than shipped (accuracy {accuracy}, shipped 0.25): see {TRAINED}"


def test_a_model_that_fails_its_gate_is_set_aside(papers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = [*train_models.catalogue()[NAME], "model.gate.accuracy=1", "model.recipes.fast.restarts=1"]
    monkeypatch.setattr(train_models, "catalogue", lambda: {NAME: overrides})
    assert run(NAME) == 1
    assert not papers.exists() and not papers.with_suffix(".json").exists()
    assert whole(papers.parent / "failed" / papers.name)


def test_an_interrupted_training_says_so_and_goes_on(
    papers: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(NAME)
    epoch, seen = training._epoch, []

    def pressed_in_the_second(*given: Any) -> dict[str, float]:
        seen.append(given[5])
        if seen == [0, 1]:
            raise KeyboardInterrupt
        return epoch(*given)

    monkeypatch.setattr(training, "_epoch", pressed_in_the_second)
    capsys.readouterr()
    assert run(NAME) == 130
    said = capsys.readouterr()
    assert said.out == ""
    line = "train_models: interrupted; the same command goes on after the last whole epoch"
    assert said.err.splitlines()[-1] == line and "Traceback" not in said.err
    assert run(NAME) == 0
    assert seen == [0, 1, 1]
    assert "the same weights as shipped" in capsys.readouterr().out


def test_an_unknown_name_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("smerf-simple_fx") == 2
    assert "did you mean smerf-simple_fr" in capsys.readouterr().err


# -- what a damaged checkpoint says ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("harm", "fault"),
    [(damage, "sha256"), (Path.unlink, "cannot read"), (lambda p: p.write_bytes(b""), "not a safetensors file")],
)
def test_a_damaged_shipped_checkpoint_says_how_to_get_it_back(papers: Path, harm: Any, fault: str) -> None:
    save_checkpoint(papers, nn.Linear(2, 2), {})
    harm(papers)
    with pytest.raises(SalrunError, match=rf"{fault}.*; restore it, or train it again: make train-{NAME}$"):
        load_checkpoint(papers, nn.Linear(2, 2))


def test_a_damaged_file_of_the_users_has_no_such_command(papers: Path, tmp_path: Path) -> None:
    for own in (tmp_path / "own.safetensors", papers.parent / "failed" / papers.name):
        save_checkpoint(own, nn.Linear(2, 2), {})
        damage(own)
        with pytest.raises(SalrunError, match=r"sha256.*; delete or restore it$"):
            load_checkpoint(own, nn.Linear(2, 2))
