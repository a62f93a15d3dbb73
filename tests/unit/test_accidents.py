"""What tests/torture found once stays found: accidents leave nothing half-done, bad files and parts are named."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf

from salrun.cli import main as cli
from salrun.config.check import check
from salrun.config.compose import compose_config
from salrun.config.parts import instantiate, method_part, metric_parts, view_part
from salrun.errors import SalrunError
from salrun.models import checkpoint
from salrun.pipeline.stages import tiles
from salrun.store.entries import MARKER, STAGES, Store
from salrun.store.tensors import load_state, save_state

BASE = ["+experiment=smerf_simple_fr", "scale=smoke", "methods=[gradient]", "metrics=[pafl]"]


def test_weights_that_are_there_have_their_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted after the first of the two files, a checkpoint does not exist yet."""
    written, write = [], checkpoint.write_atomic

    def once(path: Path, data: bytes) -> None:
        if written:
            raise KeyboardInterrupt
        written.append(path)
        write(path, data)

    monkeypatch.setattr(checkpoint, "write_atomic", once)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save_checkpoint(tmp_path / "m.safetensors", torch.nn.Linear(2, 2), {})
    assert [p.name for p in tmp_path.iterdir()] == ["m.json"]


@pytest.mark.parametrize("text", [b"\x80\x04", b"[1]", b"{", b""])
def test_a_card_that_is_none_is_named(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "m.json").write_bytes(text)
    with pytest.raises(SalrunError, match=r"card of checkpoint .*m\.safetensors"):
        checkpoint.read_card(tmp_path / "m.safetensors")


def test_what_is_read_back_is_in_the_order_written(tmp_path: Path) -> None:
    groups = {"9": 1.0, "10": 0.5, "2": 0.25}
    save_state(tmp_path / "x.safetensors", {"a": torch.ones(1)}, {"groups": groups})
    assert list(load_state(tmp_path / "x.safetensors")[1]["groups"]) == list(groups)


def test_clearing_touches_nothing_but_entries(tmp_path: Path) -> None:
    store, key = Store(tmp_path / "store"), "ab" + 62 * "0"
    theirs = ["photos/a.png", "model/net.safetensors", "maps/ab/notes.txt", "scores/cd/" + key + ".safetensors"]
    for name in theirs:
        (store.root / name).parent.mkdir(parents=True, exist_ok=True)
        (store.root / name).write_text("mine")
    for stage in STAGES:
        store.write(stage, key, {"x": torch.ones(1)})
        store.path(stage, key).with_suffix(".broken").write_text("x")
        store.path(stage, key).with_name(f".{key}.safetensors.12.tmp").write_text("x")
    for name in ("../thesis", "..", "photos", ""):
        with pytest.raises(SalrunError, match="unknown stage"):
            store.clear(name)
    assert store.clear("maps")[0] == 3 and not store.has("maps", key) and store.has("scores", key)
    assert store.clear()[0] == 3 * (len(STAGES) - 1) and store.clear() == (0, 0) and store.usage() == {}
    left = sorted(str(p.relative_to(store.root)) for p in store.root.rglob("*") if p.is_file())
    assert left == sorted([MARKER, *theirs])
    assert sorted(p.name for p in store.root.iterdir() if p.is_dir()) == ["maps", "model", "photos", "scores"]


def test_a_folder_that_is_no_store_is_not_cleared(tmp_path: Path) -> None:
    store, key = Store(tmp_path), "ab" + 62 * "0"
    store.write("maps", key, {"x": torch.ones(1)})
    (tmp_path / MARKER).unlink()
    with pytest.raises(SalrunError, match=rf"has no {MARKER}, so nothing was removed"):
        store.clear()
    assert Store(tmp_path).has("maps", key)


def test_clearing_says_what_it_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("SALRUN_CACHE", str(tmp_path))
    for letter in "ab":
        Store(tmp_path).write("maps", 64 * letter, {"x": torch.ones(1)})
    assert cli.run(["cache", "clear", "scores"]) == cli.run(["cache", "clear"]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("removed")]
    assert [line.split(",")[0] for line in said] == ["removed 0 files", "removed 2 files"]


def test_what_cannot_be_cleared_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, key = Store(tmp_path), "ab" + 62 * "0"
    store.write("maps", key, {"x": torch.ones(1)})

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(SalrunError, match=rf"cannot remove .*{key}.*: Permission denied"):
        store.clear()


@pytest.mark.parametrize("given", ["", " "])
def test_an_empty_folder_is_an_unset_one(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SALRUN_CACHE", given)
    monkeypatch.setenv("SALRUN_DATA", given)
    config = check(compose_config(BASE))
    assert config["cache_dir"] == str(Path.home() / ".cache/salrun/store")
    assert config["data_root"] == str(Path.home() / ".cache/salrun/data")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"methods": [1, 2]}, "methods must be a mapping"),
        ({"metrics": [1]}, "metrics must be a mapping"),
        ({"others": 3}, "others must be a mapping"),
        ({"metrics": {"pafl": {"variants": 3}}}, "metrics.pafl.variants must be a mapping"),
        ({"metrics": {"pafl": {"variants": {"code": 3}}}}, "metrics.pafl.variants.code must be a mapping"),
        ({"metrics": {"pafl": {"variants": {False: {}}}}}, "metrics.pafl.variants.False: the name .* must be text"),
        ({"metrics": {"pafl": {"variants": {7: {}}}}}, "metrics.pafl.variants.7: the name .* must be text"),
    ],
)
def test_a_part_of_the_wrong_shape_is_named(changes: dict, told: str) -> None:
    plain = OmegaConf.to_container(compose_config(BASE))
    for group, value in changes.items():
        plain[group] = _merged(plain[group], value)
    with pytest.raises(SalrunError, match=told):
        check(OmegaConf.create(plain))


def _merged(old: object, new: object) -> object:
    if isinstance(old, dict) and isinstance(new, dict):
        return old | {key: _merged(old.get(key), value) for key, value in new.items()}
    return new


def test_an_empty_shard_is_named() -> None:
    assert [tile.index for tile in tiles("abcdefg", 3, (1, 2))] == [1]
    with pytest.raises(SalrunError, match=r"shard=3/4 is empty: 7 images are 3 tiles of 3"):
        tiles("abcdefg", 3, (3, 4))


def test_what_is_no_method_is_not_called(tmp_path: Path) -> None:
    spec = {"_target_": "os.mkdir", "path": str(tmp_path / "made")}
    for part in (method_part, metric_parts):
        with pytest.raises(SalrunError, match=r"\.mine: os\.mkdir is not a salrun\.types\.Met"):
            part(spec, name="mine")
    assert not (tmp_path / "made").exists()


def test_a_constructors_refusal_says_where_in_the_config() -> None:
    with pytest.raises(SalrunError, match=r"^methods\.mine: n_masks of RISE must be at least 1, got -3"):
        instantiate({"_target_": "salrun.methods.rise.RISE", "n_masks": -3}, "methods.mine")
    with pytest.raises(SalrunError, match=r"^methods\.mine\.view: unknown view"):
        view_part("minmix", "methods.mine.view")
    with pytest.raises(SalrunError, match=r"^methods\.mine\.view must be the name"):
        view_part(3, "methods.mine.view")


@pytest.mark.parametrize(
    ("shape", "classes", "message"),
    [
        ((3, 24, 24), 10, "'tomsett_cnn' does not take the images of data set 'mine', 3x24x24"),
        ((1, 32, 32), 10, "'tomsett_cnn' does not take the images of data set 'mine', 1x32x32"),
        ((3, 32, 32), 3, "'tomsett_cnn' has 10 outputs but data set 'mine' has 3 classes"),
    ],
)
def test_a_model_that_does_not_fit_the_data_is_named(
    shape: tuple[int, ...], classes: int, message: str, tmp_path: Path
) -> None:
    config = compose_config(["dataset=cifar10", "model=tomsett_cnn", "methods=[gradient]"])
    recipe = instantiate(check(config)["model"], "model")
    data = SimpleNamespace(name="mine", shape=shape, classes=tuple(map(str, range(classes))))
    with pytest.raises(SalrunError, match=message):
        recipe.obtain(data, 0, Store(tmp_path), torch.device("cpu"))
