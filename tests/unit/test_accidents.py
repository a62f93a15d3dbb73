"""What tests/torture found once stays found: accidents leave nothing half-done, bad files and parts are named."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf

from salrun.config.check import check
from salrun.config.compose import compose_config
from salrun.config.parts import instantiate, method_part, metric_parts, view_part
from salrun.errors import SalrunError
from salrun.models import checkpoint
from salrun.pipeline.stages import tiles
from salrun.store.entries import STAGES, Store
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


def test_clearing_touches_nothing_but_the_store(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "store" / "photos").mkdir(parents=True)
    for stage in STAGES:
        store.write(stage, "ab12", {"x": torch.ones(1)})
    for name in ("../thesis", "..", "photos", ""):
        with pytest.raises(SalrunError, match="unknown stage"):
            store.clear(name)
    store.clear("maps")
    assert not store.has("maps", "ab12") and store.has("scores", "ab12")
    store.clear()
    assert (tmp_path / "thesis").exists() and [p.name for p in store.root.iterdir()] == ["photos"]


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
