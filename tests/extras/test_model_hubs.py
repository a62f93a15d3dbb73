"""timm's and transformers' classifiers by name: no network, their own preprocessing, class names and attention."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

import salrun
from salrun.config.parts import recipe_part
from salrun.errors import SalrunError
from salrun.models.hub import HuggingFaceModel, TimmModel, library, order_of, prepared_by
from salrun.models.verification import check_fit
from tests.toys import images

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2}
TINY = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16, "image_size": 16,
    "patch_size": 4,
}  # fmt: skip
METHODS = ("attention_rollout", "attention_last", "transformer_relevance", "legrad", "eigen_cam", "gradient")


def vit(**more: object) -> TimmModel:
    pytest.importorskip("timm")
    return TimmModel("vit_tiny_patch16_224", pretrained=False, options=SMALL, **more)  # type: ignore[arg-type]


def folder(path: Path, **more: object) -> HuggingFaceModel:
    """A model as transformers saves it, with a preprocessor's config."""
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(**TINY, id2label={0: "cat", 1: "dog", 2: "red fox"})
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        transformers.ViTForImageClassification(config).save_pretrained(path)
    about = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6], "size": {"height": 16, "width": 16}}
    (path / "preprocessor_config.json").write_text(json.dumps({**about, "resample": 3}))
    return HuggingFaceModel(str(path), **more)  # type: ignore[arg-type]


# -- timm --------------------------------------------------------------------------------------------------------------


def test_a_timm_model_without_weights_is_ready_for_every_method() -> None:
    recipe = vit(classes=4)
    model = recipe.load()
    assert recipe.source == "random" and recipe.facts()["training"] == "none"
    assert model.mean.flatten().tolist() == [0.5] * 3 and model.std.flatten().tolist() == [0.5] * 3  # its own
    assert model.layers == {"cam": "blocks.1.norm1", "iba": "blocks.0"}
    x = images(2, 32, dtype=torch.float32)
    assert model(x).shape == (2, 4)
    for name in METHODS:
        assert salrun.explain(model, x, [0, 3], name).std() > 0, name
    again = vit(classes=4).load()
    assert again.fingerprint == model.fingerprint != vit(classes=4).load(seed=1).fingerprint


@pytest.mark.parametrize("name", ["attention_rollout", "transformer_relevance", "legrad"])
def test_fused_attention_is_seen(name: str) -> None:
    """timm computes it by one kernel or step by step; the map is the same."""
    model, x = vit(classes=4).load().double(), images(2, 32)
    fused = salrun.explain(model, x, [0, 3], name)
    for block in model.module.blocks:
        assert block.attn.fused_attn
        block.attn.fused_attn = False
    torch.testing.assert_close(salrun.explain(model, x, [0, 3], name), fused, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "options", "tokens"),
    [
        ("deit_tiny_distilled_patch16_224", {}, 2),
        ("vit_tiny_patch16_224", {"reg_tokens": 4}, 5),
        ("vit_tiny_patch16_224", {"class_token": False, "global_pool": "avg"}, 0),
        ("vit_tiny_patch16_224", {"global_pool": "avg"}, 1),
    ],
)
def test_other_tokens_are_left_out_and_who_is_read_is_found(name: str, options: dict, tokens: int) -> None:
    from salrun.methods.transformer import readout

    pytest.importorskip("timm")
    model = TimmModel(name, pretrained=False, classes=3, options=SMALL | options).load()
    x = images(2, 32, dtype=torch.float32)
    share = readout(model, x, 2, 16 + tokens)[0]
    read = {2: [0.5, 0.5], 5: [1, 0, 0, 0, 0], 0: [], 1: [0]}[tokens]
    assert share[:tokens].tolist() == read
    torch.testing.assert_close(share[tokens:], torch.full((16,), (1 - sum(read)) / 16))
    assert salrun.explain(model, x, [0, 1], "attention_rollout").std() > 0


def test_convolutions_of_timm_have_the_layers_it_names() -> None:
    pytest.importorskip("timm")
    model = TimmModel("convnext_atto", pretrained=False, classes=3, options={"depths": [1, 1, 1, 1]}).load()
    assert model.layers == {"cam": "stages.3", "iba": "stages.1"}
    assert salrun.explain(model, images(1, 32, dtype=torch.float32), [0], "grad_cam").isfinite().all()


def test_a_timm_file_in_place_of_the_published_one(tmp_path: Path) -> None:
    save_file(vit(classes=4).load(seed=3).module.state_dict(), tmp_path / "mine.safetensors")
    model = vit(classes=4, weights=str(tmp_path / "mine.safetensors")).load()
    assert model.fingerprint == vit(classes=4).load(seed=3).fingerprint
    with pytest.raises(SalrunError, match=r"is for another architecture: head\.\w+ is"):
        vit(classes=5, weights=str(tmp_path / "mine.safetensors")).load()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"name": "vit_tiny_patch16_225"}, "unknown timm model 'vit_tiny_patch16_225'.*vit_tiny_patch16_224"),
        (
            {"options": {"colour": 1}},
            "timm cannot make vit_tiny_patch16_224 with model.options={'colour': 1}: .*keyword argument 'colour'",
        ),
    ],
)
def test_what_timm_does_not_know(given: dict, words: str) -> None:
    pytest.importorskip("timm")
    with pytest.raises(SalrunError, match=words):
        TimmModel(**{"pretrained": False, **given}).load()


def test_offline_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    pytest.importorskip("timm")

    def down(*given: object, **more: object) -> None:
        raise ConnectionError("no network\nand more")

    monkeypatch.setattr(hub, "hf_hub_download", down)
    with pytest.raises(SalrunError) as told:
        TimmModel("vit_tiny_patch16_224").load()
    assert "\n" not in str(told.value)
    assert (
        "cannot get timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k from the hub (ConnectionError: no network)"
        in str(told.value)
    )


def test_published_weights_are_read_from_safetensors_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    asked = []

    def download(where: str, file: str, local_files_only: bool = False) -> str:
        asked.append((where, file, local_files_only))
        if local_files_only:
            raise FileNotFoundError("not in the cache")
        return str(tmp_path / file)

    monkeypatch.setattr(hub, "hf_hub_download", download)
    save_file(vit(classes=4).load(seed=3).module.state_dict(), tmp_path / "model.safetensors")
    recipe = vit(classes=4)
    recipe.pretrained = True
    assert recipe.load().fingerprint == vit(classes=4).load(seed=3).fingerprint
    where = "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    assert asked == [(where, "model.safetensors", True), (where, "model.safetensors", False)]  # the cache first


def test_images_of_another_size_are_told_so() -> None:
    data = SimpleNamespace(name="small", shape=(3, 24, 24), classes=["a"] * 4)
    with pytest.raises(SalrunError, match="does not take the images of data set 'small', 3x24x24: .*doesn't match"):
        check_fit(vit(classes=4).load(), data, "vit", torch.device("cpu"))  # type: ignore[arg-type]


# -- transformers ------------------------------------------------------------------------------------------------------


def test_a_folder_of_transformers(tmp_path: Path) -> None:
    recipe = folder(tmp_path)
    model, x = recipe.load(), images(2, 16, dtype=torch.float32)
    assert recipe.source == "library" and recipe.names == ["cat", "dog", "red fox"]
    torch.testing.assert_close(model.mean.flatten(), torch.tensor([0.1, 0.2, 0.3]))
    torch.testing.assert_close(model.std.flatten(), torch.tensor([0.4, 0.5, 0.6]))
    assert recipe.preparation == "bicubic to 16x16"
    assert model.layers["cam"].endswith(".1.layernorm_before") and model.layers["iba"].endswith(".0")
    assert model(x).shape == (2, 3)
    for name in METHODS:
        assert salrun.explain(model, x, [0, 2], name).std() > 0, name


@pytest.mark.parametrize("name", ["attention_rollout", "transformer_relevance", "legrad"])
def test_sdpa_and_eager_are_seen_alike(name: str, tmp_path: Path) -> None:
    x, maps = images(2, 16), []
    for way in ("sdpa", "eager"):
        model = folder(tmp_path, options={"attn_implementation": way}).load()
        assert model.module.config._attn_implementation == way
        maps.append(salrun.explain(model.double(), x, [0, 2], name))
    torch.testing.assert_close(*maps, rtol=1e-6, atol=1e-9)  # its eager softmax may be float32


def test_an_architecture_without_weights_needs_no_network() -> None:
    pytest.importorskip("transformers")
    recipe = HuggingFaceModel("vit", pretrained=False, classes=4, options=TINY)
    model = recipe.load()
    assert recipe.source == "random" and recipe.names == []
    assert model(images(1, 16, dtype=torch.float32)).shape == (1, 4)
    assert model.fingerprint != HuggingFaceModel("vit", pretrained=False, classes=4, options=TINY).load(1).fingerprint


def test_weights_that_are_no_safetensors_are_refused(tmp_path: Path) -> None:
    recipe = folder(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "elsewhere")
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(SalrunError, match="cannot get .* no file named model.safetensors"):
        recipe.load()


def test_a_model_without_its_head_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    recipe = folder(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(
        {k: v for k, v in tensors.items() if "classifier" not in k}, tmp_path / "model.safetensors", {"format": "pt"}
    )
    with pytest.raises(SalrunError, match="is no finished image classifier: its file has no classifier"):
        recipe.load()


def test_a_folder_that_does_not_say_how_to_normalise(tmp_path: Path) -> None:
    recipe = folder(tmp_path)
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(SalrunError, match="does not say how its images are normalised .* give model.mean="):
        recipe.load()
    assert folder(tmp_path, mean=[0.5], std=[0.5]).load().mean.item() == 0.5


def test_a_hub_id_offline_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")

    def down(*given: object, **more: object) -> None:
        raise OSError("We couldn't connect\nCheck your internet connection")

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", down)
    with pytest.raises(
        SalrunError, match=r"cannot get no/such from the hub \(OSError: We couldn't connect\): fetch it"
    ):
        HuggingFaceModel("no/such").load()


# -- both --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "classes", "order"),
    [
        (["cat", "dog", "red fox"], ["Dog", "Red_fox", "cat"], [1, 2, 0]),
        (["tench, Tinca tinca", "goldfish, x"], ["goldfish", "tench"], [1, 0]),
        (["cat", "dog"], ["cat", "dog"], None),
        (["cat", "dog"], ["0", "1"], None),
        ([], ["cat"], None),
        (["crane", "crane", "dog"], ["dog", "crane", "crane"], None),
    ],
)
def test_outputs_in_the_order_of_the_classes(names: list[str], classes: list[str], order: list[int] | None) -> None:
    assert order_of(names, classes) == order


def test_outputs_are_put_in_the_order_of_the_data_sets_classes(tmp_path: Path) -> None:
    recipe, x = folder(tmp_path), images(2, 16, dtype=torch.float32)
    plain = recipe.load()
    expected = plain(x)
    recipe.data = SimpleNamespace(classes=["red_fox", "cat", "dog"])  # type: ignore[assignment]
    model = recipe.load()
    torch.testing.assert_close(model(x), expected[:, [2, 0, 1]])
    assert model.fingerprint != plain.fingerprint


def test_pictures_that_are_prepared_otherwise_are_told() -> None:
    data = SimpleNamespace(size=224, short_side=248, fit="crop")
    assert prepared_by(data) == "bilinear to 248, the middle 224x224 of it"
    assert prepared_by(SimpleNamespace(size=224, short_side=248, fit="squash")) == "bilinear to 224x224"
    assert prepared_by(SimpleNamespace()) == ""
    recipe = vit()
    recipe.load()
    assert recipe.preparation == "bicubic to 249, the middle 224x224 of it"


def test_a_missing_library_says_how_to_get_it() -> None:
    with pytest.raises(SalrunError, match=r"model=timm needs no_such_library .*: pip install 'salrun\[timm\]'"):
        library("no_such_library", "timm")


@pytest.mark.parametrize("name", ["timm", "huggingface"])
def test_the_shipped_configs_are_recipes(name: str) -> None:
    assert recipe_part(name, {"pretrained": False}).facts()["training"] == "none"


def test_several_outputs_are_told_so_before_a_run() -> None:
    class Two(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x.flatten(1), x.flatten(1)

    data = SimpleNamespace(name="small", shape=(3, 2, 2), classes=["a"] * 12)
    with pytest.raises(SalrunError, match=r"model 'two' gives a tuple, not logits \(B, classes\)"):
        check_fit(Two(), data, "two", torch.device("cpu"))  # type: ignore[arg-type]
