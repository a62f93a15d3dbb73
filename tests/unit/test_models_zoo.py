"""Networks: the shapes and identities their papers state, layers by role, weights from files that may be anything."""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from salrun.config.parts import recipe_part
from salrun.errors import SalrunError
from salrun.methods.tokens import grid_of
from salrun.models import pretrained
from salrun.models.architectures import MnistCNN, TomsettCNN, efficientnet_lite, smerf_alexnet
from salrun.models.layers import layers_of
from salrun.models.pretrained import EfficientNetLite, OwnModel, TorchvisionModel, find_weights, renamed
from salrun.models.recipe import Obtained
from salrun.models.torchvision import FixedNorm, build, finetuned, modernised, smerf_vgg16
from salrun.models.verification import Verification


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def trained_a_little(module: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    """Running statistics and weights away from their initial values."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=generator))
        for _ in range(20):
            module.train()(torch.rand(shape, generator=generator))
    return module.eval()


# -- small networks ---------------------------------------------------------------------------------------------------


def test_tomsett_cnn_has_no_bias_and_the_right_shapes() -> None:
    model = TomsettCNN()
    assert not [name for name, _ in model.named_parameters() if name.endswith("bias")]
    assert count(model) == 9 * (3 * 32 + 32 * 32 + 32 * 64 + 64 * 64 + 64 * 128 + 128 * 128) + 2 * 224 + 2048 * 10
    shapes = {}
    for name in ("block3.relu2", "block2.relu2"):
        part = model.get_submodule(name)
        part.register_forward_hook(lambda m, i, o, name=name: shapes.update({name: tuple(o.shape[1:])}))
    assert model.eval()(torch.rand(2, 3, 32, 32)).shape == (2, 10)
    assert shapes == {"block3.relu2": (128, 8, 8), "block2.relu2": (64, 16, 16)}


@pytest.mark.parametrize("bn", ["scale", "rms"])
def test_gradient_x_input_sums_to_the_logit_with_rms_only(bn: str) -> None:
    model = trained_a_little(TomsettCNN(bn=bn), (8, 3, 32, 32)).double()
    x = torch.rand(4, 3, 32, 32, dtype=torch.float64, requires_grad=True)
    logit = model(x)[:, 3]
    (gradient,) = torch.autograd.grad(logit.sum(), x)
    gap = ((gradient * x).sum((1, 2, 3)) - logit).abs().max() / logit.abs().max()
    assert (gap < 1e-12) == (bn == "rms")


def test_rms_norm_learns_its_scale_of_squares() -> None:
    from salrun.models.architectures import RmsNorm

    norm = RmsNorm(2)
    x = (
        torch.randn(512, 2, 8, 8, generator=torch.Generator().manual_seed(0))
        * torch.tensor([3.0, 0.5]).view(1, 2, 1, 1)
        + 1
    )
    out = norm(x)
    square = x.square().mean((0, 2, 3))
    assert torch.allclose(out.square().mean((0, 2, 3)), torch.ones(2), atol=1e-3)
    for _ in range(100):
        norm(x)
    assert torch.allclose(norm.running_var, square, rtol=1e-3)
    assert torch.equal(norm.running_mean, torch.zeros(2))
    assert torch.allclose(norm.eval()(x), out, atol=1e-3)
    norm.reset_parameters()
    assert torch.equal(norm.running_var, torch.ones(2))
    assert norm.bias is None


def test_mnist_cnn_shapes() -> None:
    model = MnistCNN(classes=3).eval()
    assert model(torch.rand(2, 1, 28, 28)).shape == (2, 3)
    assert count(model) == 32 * 10 + 64 * 289 + 9216 * 128 + 128 + 129 * 3


# -- SMERF's deep networks --------------------------------------------------------------------------------------------


def test_smerf_alexnet_is_kerass() -> None:
    with torch.device("meta"):
        model = smerf_alexnet()
    shapes = {}
    for name, part in model.named_children():
        part.register_forward_hook(lambda m, i, o, name=name: shapes.update({name: tuple(o.shape[1:])}))
    assert model.eval()(torch.empty(2, 3, 64, 64, device="meta")).shape == (2, 2)
    assert [shapes[f"conv{k}"] for k in range(1, 6)] == [
        (96, 16, 16),
        (256, 8, 8),
        (384, 4, 4),
        (384, 4, 4),
        (256, 4, 4),
    ]
    assert shapes["flatten"] == (2 * 2 * 256,)
    assert isinstance(list(model.children())[-1], nn.BatchNorm1d)
    assert {(m.eps, m.momentum) for m in model.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)} == {
        (1e-3, 0.01)
    }


def test_smerf_vgg16_trains_its_head_only() -> None:
    with torch.device("meta"):
        model = smerf_vgg16(weights=None)
    assert model.eval()(torch.empty(2, 3, 64, 64, device="meta")).shape == (2, 2)
    trained = {name.split(".")[0] for name, p in model.named_parameters() if p.requires_grad}
    assert trained == {"dense1", "dense2", "dense3", "output"}
    with torch.device("meta"):
        other = smerf_vgg16(weights=None, frozen=False)
    assert all(p.requires_grad for p in other.parameters())
    assert repr(model) != repr(other)  # which is how trained models are told apart
    assert model.state_dict().keys() == other.state_dict().keys() and "features.28.weight" in model.state_dict()


# -- torchvision ------------------------------------------------------------------------------------------------------

# Output sizes at 224: CAM layer, IBA layer (Table A.0 of the field's common choices).
SIZES = {
    "resnet18": ((512, 7, 7), (128, 28, 28)),
    "resnet50": ((2048, 7, 7), (512, 28, 28)),
    "vgg16": ((512, 14, 14), (512, 28, 28)),
    "vgg16_bn": ((512, 14, 14), (512, 28, 28)),
    "vgg19_bn": ((512, 14, 14), (512, 28, 28)),
    "densenet121": ((1024, 7, 7), (512, 28, 28)),
    "mobilenet_v2": ((1280, 7, 7), (32, 28, 28)),
    "efficientnet_b0": ((1280, 7, 7), (40, 28, 28)),
    "convnext_tiny": ((768, 7, 7), (192, 28, 28)),
    "alexnet": ((256, 13, 13), (192, 27, 27)),
}


@pytest.mark.parametrize("name", SIZES)
def test_cam_and_iba_layers_have_the_right_sizes(name: str) -> None:
    with torch.device("meta"):
        model = build(name).eval()
    shapes = {}
    for role, layer in layers_of(name).items():
        model.get_submodule(layer).register_forward_hook(
            lambda m, i, o, role=role: shapes.update({role: tuple(o.shape[1:])})
        )
    model(torch.empty(1, 3, 224, 224, device="meta"))
    assert (shapes["cam"], shapes["iba"]) == SIZES[name]
    assert not [m for m in model.modules() if getattr(m, "inplace", False)]


def test_named_layers_of_the_papers() -> None:
    assert layers_of("resnet50") == {"cam": "layer4", "iba": "layer2"}
    assert layers_of("vgg16") == {"cam": "features.29", "iba": "features.17"}
    assert layers_of("vgg16_bn") == {"cam": "features.42", "iba": "features.24"}
    before, middle = "encoder.layers.encoder_layer_11.ln_1", "encoder.layers.encoder_layer_5"
    assert layers_of("vit_b_16") == {"cam": before, "iba": middle}
    assert layers_of("maxvit_t") == {}


def test_variant_v1_moves_the_strides() -> None:
    with torch.device("meta"):
        model = build("resnet50", variant="v1")
        plain = build("resnet50")
    for stage in ("layer2", "layer3", "layer4"):
        first = getattr(model, stage)[0]
        assert (first.conv1.stride, first.conv2.stride) == ((2, 2), (1, 1))
        assert getattr(plain, stage)[0].conv2.stride == (2, 2)
    with pytest.raises(SalrunError, match="bottlenecks"):
        build("resnet18", variant="v1")
    with pytest.raises(SalrunError, match=r"unknown torchvision model 'resnet5'.*did you mean resnet50"):
        build("resnet5")


@pytest.fixture(scope="module")
def resnet18_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(1)
    path = tmp_path_factory.mktemp("weights") / "resnet18.safetensors"
    save_file(
        {k: v.half() if v.is_floating_point() else v for k, v in build("resnet18", 10).state_dict().items()}, path
    )
    return path


def test_weights_from_safetensors_and_pth_are_one_model(resnet18_file: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    first = TorchvisionModel("resnet18", str(resnet18_file), classes=10).load()
    wrapped = {"state_dict": {f"module.{k}": v for k, v in load_file(resnet18_file).items()}}
    torch.save(wrapped, tmp_path / "wrapped.pth")
    second = TorchvisionModel("resnet18", str(tmp_path / "wrapped.pth"), classes=10).load()
    x = torch.rand(1, 3, 64, 64)
    assert torch.equal(first(x), second(x))
    assert first.fingerprint == second.fingerprint
    assert not first.training
    assert first.layers == {"cam": "layer4", "iba": "layer2"}
    assert TorchvisionModel("resnet18", str(resnet18_file), classes=10).source == "file"


def test_a_file_with_another_sha256_is_refused(resnet18_file: Path, tmp_path: Path) -> None:
    body = bytearray(resnet18_file.read_bytes())
    right = hashlib.sha256(body).hexdigest()
    copied = tmp_path / "copied.safetensors"
    copied.write_bytes(body)
    model = TorchvisionModel("resnet18", str(copied), classes=10, sha256=right)
    assert model.load().fingerprint
    body[-1] ^= 1
    copied.write_bytes(body)
    with pytest.raises(SalrunError, match=f"copied.* does not have the sha256 {right}"):
        model.load()


@pytest.mark.parametrize(("side", "layer"), [(224, "layer4"), (64, "layer3"), (32, "layer2"), (16, "layer2")])
def test_cam_of_small_images_reads_an_earlier_stage(side: int, layer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "verify_once", lambda *_: Verification("test", 1.0))
    data = SimpleNamespace(name="mine", shape=(3, side, side), classes=("a", "b"))

    def obtained(**given: object) -> Obtained:
        return TorchvisionModel("resnet18", None, classes=2, **given).obtain(data, 0, None, torch.device("cpu"))

    found = obtained(layers={"cam": None})
    assert found.classifier.layers == {"cam": layer, "iba": "layer2"}
    assert [d for d in found.deviations if layer in d] == ([] if layer == "layer4" else found.deviations)
    assert obtained(layers={"cam": "layer4"}).classifier.layers["cam"] == "layer4"


class Own(nn.Module):
    """Weights of its own: what a class sets is kept."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, width, 3), nn.ReLU(), nn.Conv2d(width, 6, 3), nn.BatchNorm2d(6))
        self.head = nn.Linear(6, 2)
        nn.init.constant_(self.head.weight, 0.25)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x).mean((2, 3)))


def test_a_network_of_ones_own_keeps_its_weights(tmp_path: Path) -> None:
    model = OwnModel("own", Own, layers={"cam": None, "iba": None})
    found = model.load()
    assert bool((found.module.head.weight == 0.25).all())
    assert found.layers == {"cam": "features.3", "iba": "features.3"}
    assert found.fingerprint == OwnModel("own", Own).load().fingerprint != OwnModel("own", Own).load(1).fingerprint
    state = {f"module.{k}": torch.full_like(v, 2) for k, v in Own().state_dict().items()}
    for path, write in {tmp_path / "own.pth": torch.save, tmp_path / "own.safetensors": save_file}.items():
        write(state, path)
        loaded = OwnModel("own", Own, str(path), layers={"cam": "features.0"}).load()
        assert bool((loaded.module.head.weight == 2).all())
        assert loaded.layers["cam"] == "features.0"


def test_whatever_changes_a_network_changes_its_fingerprint(resnet18_file: Path, tmp_path: Path) -> None:
    def mark(**changed: object) -> str:
        return TorchvisionModel("resnet18", str(resnet18_file), classes=10, **changed).load().fingerprint

    marks = [mark(), mark(mean=[0.0] * 3), mark(std=[1.0] * 3), mark(layers={"cam": "layer3"})]
    assert len(set(marks)) == 4
    assert mark() == marks[0]
    wide = build("resnet50", 2).state_dict()
    save_file(wide, tmp_path / "fifty.safetensors")
    fifty = [TorchvisionModel("resnet50", str(tmp_path / "fifty.safetensors"), v, 2).load() for v in (None, "v1")]
    assert fifty[0].fingerprint != fifty[1].fingerprint  # the same weights, other strides


def test_mistakes_in_ones_own_network_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(SalrunError, match=r"model\.arch: Own cannot be made: TypeError: .*'breadth'"):
        OwnModel("own", functools.partial(Own, breadth=3)).load()
    with pytest.raises(SalrunError, match=r"model\.arch: dict gives a dict, not a torch\.nn\.Module"):
        OwnModel("own", dict).load()
    torch.save(Own(5).state_dict(), tmp_path / "five.pth")
    with pytest.raises(SalrunError, match="another architecture"):
        OwnModel("own", Own, str(tmp_path / "five.pth")).load()
    with pytest.raises(SalrunError, match="unknown layer 'nowhere'"):
        OwnModel("own", Own, layers={"cam": "nowhere"}).load()


def test_random_weights_follow_the_seed_and_leave_torchs_generator_alone() -> None:
    before = torch.random.get_rng_state()
    recipe = TorchvisionModel("resnet18", None, classes=2, layers={"cam": "layer3"})
    one, same, other = recipe.load(0), recipe.load(0), recipe.load(1)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert one.fingerprint == same.fingerprint != other.fingerprint
    assert one.layers == {"cam": "layer3", "iba": "layer2"}
    assert recipe.source == "random"
    with pytest.raises(SalrunError, match="unknown layer 'layer9'"):
        TorchvisionModel("resnet18", None, layers={"cam": "layer9"}).load()


class Bomb:
    def __reduce__(self):
        return (os.system, ("touch bombed",))


def damaged(tmp_path: Path, good: Path) -> dict[str, tuple[Path, str]]:
    """Files that must be refused, and what is said of each."""
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(good.read_bytes()[:100_000])
    disguised = tmp_path / "disguised.safetensors"
    disguised.write_bytes(pickle.dumps({"weight": Bomb()}))
    bomb = tmp_path / "bomb.pth"
    torch.save({"weight": Bomb()}, bomb)
    bare = tmp_path / "bare.pth"
    bare.write_bytes(pickle.dumps(Bomb()))
    half = tmp_path / "half.pth"
    torch.save(build("resnet18", 10).state_dict(), half)
    half.write_bytes(half.read_bytes()[:200_000])
    other = tmp_path / "other.pth"
    torch.save(MnistCNN().state_dict(), other)
    numbers = tmp_path / "numbers.pth"
    torch.save({"accuracy": 0.9}, numbers)
    keys = tmp_path / "keys.pth"
    torch.save({0: torch.ones(2)}, keys)
    flipped = tmp_path / "flipped.pth"
    torch.save(build("resnet18", 10).state_dict(), flipped)
    body = bytearray(flipped.read_bytes())
    body[len(body) // 2] ^= 1
    flipped.write_bytes(body)
    infinite = tmp_path / "infinite.safetensors"
    state = build("resnet18", 10).state_dict()
    state["fc.bias"][3] = torch.nan
    save_file(state, infinite)
    return {
        "cut": (cut, "damaged or truncated"),
        "disguised": (disguised, "not a safetensors file"),
        "bomb": (bomb, "could execute code, so it is refused"),
        "bare": (bare, "could execute code, so it is refused"),
        "half": (half, "damaged or truncated"),
        "other": (other, "another architecture"),
        "numbers": (numbers, "holds no state_dict"),
        "keys": (keys, "holds no state_dict"),
        "flipped": (flipped, "damaged or truncated.*checksum of"),
        "infinite": (infinite, "fc.bias has values that are not finite"),
        "none": (tmp_path / "none.pth", "there is no file"),
        "name": (tmp_path / "x" / "weights.h5", "there is no file"),
    }


def test_files_that_do_not_fit_are_refused_in_one_line(
    tmp_path: Path, resnet18_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cases = damaged(tmp_path, resnet18_file)
    assert len(cases) == 12
    for what, (path, says) in cases.items():
        with pytest.raises(SalrunError, match=says) as caught:
            TorchvisionModel("resnet18", str(path), classes=10).load()
        assert "\n" not in str(caught.value), what
        assert path.name in str(caught.value), what
    assert not (tmp_path / "bombed").exists()
    with pytest.raises(SalrunError, match=r"fc\.weight is \(10, 512\), the model has \(7, 512\)|fc\.bias is"):
        TorchvisionModel("resnet18", str(resnet18_file), classes=7).load()
    with pytest.raises(SalrunError, match=r"unknown weights 'IMAGENET1K_V9'.*IMAGENET1K_V1"):
        TorchvisionModel("resnet18", "IMAGENET1K_V9").load()


def test_a_failed_download_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*words: object, **more: object) -> None:
        raise OSError("network is unreachable")

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", unreachable)
    with pytest.raises(SalrunError, match=r"cannot download https://.*resnet18.*give its path as weights"):
        TorchvisionModel("resnet18").load()


def test_old_files_are_read_as_torchvision_reads_them() -> None:
    with torch.device("meta"):
        model = build("densenet121")
    new = {k: v for k, v in model.state_dict().items() if not k.endswith("num_batches_tracked")}
    old = {
        k.replace("norm1.", "norm.1.").replace("conv2.", "conv.2.") if "denselayer" in k else k: v
        for k, v in new.items()
    }
    assert set(old) != set(new)
    assert set(modernised(old, model)) == set(model.state_dict())


def test_finetuning_keeps_what_is_frozen(resnet18_file: Path) -> None:
    from safetensors.torch import load_file

    torch.manual_seed(0)
    source = build("resnet18")
    path = resnet18_file.with_name("thousand.safetensors")
    save_file(source.state_dict(), path)
    model = finetuned("resnet18", str(path), classes=5, trainable=("layer4.1", "fc"))
    assert {n.rpartition(".")[0].split(".")[0] for n, p in model.named_parameters() if p.requires_grad} == {
        "layer4",
        "fc",
    }
    assert all(isinstance(m, FixedNorm) for m in model.modules() if isinstance(m, nn.BatchNorm2d))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    nn.functional.cross_entropy(model.train()(torch.rand(4, 3, 64, 64)), torch.tensor([0, 1, 2, 3])).backward()
    optimizer.step()
    changed = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
    assert changed == {n for n, p in model.named_parameters() if p.requires_grad}
    assert torch.equal(model.conv1.weight, load_file(path)["conv1.weight"])
    with pytest.raises(SalrunError, match="unknown layer 'layer5'"):
        finetuned("resnet18", None, trainable=("layer5",))


# -- transformers -----------------------------------------------------------------------------------------------------


def test_a_stem_that_halves_leaves_the_tokens_where_the_patches_are() -> None:
    net = recipe_part("cifar10_vit").build(0).module
    assert count(net) == 390_922
    tokens = []
    net.blocks.register_forward_hook(lambda m, given, o: tokens.append(o.shape[1]))
    assert net(torch.rand(2, 3, 32, 32)).shape == (2, 10)
    assert tokens == [65] and grid_of(65, (32, 32), net) == (8, 8)
    # the token in the corner hangs on the picture's corner alone, up to the reach of the stem
    x = torch.rand(1, 3, 32, 32, requires_grad=True)
    net.eval().patches(net.stem(x))[0, :, 0, 0].sum().backward()
    assert x.grad[0, :, 8:].abs().max() == 0 and x.grad[0, :, :4, :4].abs().min() > 0


# -- EfficientNet-lite ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "parameters", "of_iba"),
    [(0, 4_652_008, (40, 28, 28)), (1, 5_416_680, (40, 28, 28)), (2, 6_092_072, (48, 28, 28))],
)
def test_efficientnet_lite_is_the_published_size(number: int, parameters: int, of_iba: tuple[int, ...]) -> None:
    with torch.device("meta"):
        model = efficientnet_lite(number).eval()
    assert count(model) == parameters
    shapes = {}
    for role, layer in EfficientNetLite(number=number).layers.items():
        model.get_submodule(layer).register_forward_hook(
            lambda m, i, o, role=role: shapes.update({role: tuple(o.shape[1:])})
        )
    model(torch.empty(1, 3, 224, 224, device="meta"))
    assert shapes == {"cam": (1280, 7, 7), "iba": of_iba}


def test_efficientnet_lite0_reads_the_packages_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = efficientnet_lite()
    theirs = {}
    for name, tensor in model.state_dict().items():
        name = name.replace("stem.conv", "_conv_stem").replace("stem.norm", "_bn0").replace("dense.", "_fc.")
        name = name.replace("head.conv", "_conv_head").replace("head.norm", "_bn1").replace("blocks.", "_blocks.")
        name = name.replace("expand.conv", "_expand_conv").replace("expand.norm", "_bn0")
        name = name.replace("depthwise.conv", "_depthwise_conv").replace("depthwise.norm", "_bn1")
        name = name.replace("project.conv", "_project_conv").replace("project.norm", "_bn2")
        theirs[name] = tensor
    assert "_blocks.7._expand_conv.weight" in theirs
    assert set(renamed(theirs)) == set(model.state_dict())
    path = tmp_path / "weights" / "efficientnet-lite0-57934424.pth"
    path.parent.mkdir()
    torch.save(theirs, path)
    with pytest.raises(SalrunError, match="does not have the sha256"):  # the published file's name, other content
        EfficientNetLite(root=str(tmp_path)).load()
    monkeypatch.setattr(pretrained, "LITE", (replace(pretrained.LITE[0], sha256=None),))
    loaded = EfficientNetLite(root=str(tmp_path)).load()
    x = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.allclose(loaded(x), model.eval()((255 * x - 127) / 128), atol=1e-5)


def test_efficientnet_lite0_says_where_it_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for number in (0, 2):
        with pytest.raises(
            SalrunError, match=rf"looked for .*weights.*scripts/get_data.py efficientnet_lite{number} --source registry"
        ):
            find_weights(None, str(tmp_path), number)


def test_a_model_below_its_gate_is_a_deviation(resnet18_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = TorchvisionModel(name="resnet18", classes=10, weights=str(resnet18_file), gate={"accuracy": 0.7})
    for accuracy, said in ((0.26, ["test accuracy 0.260 < 0.7"]), (0.8, [])):
        found = Verification("test", accuracy, gate=model.gate)
        monkeypatch.setattr(pretrained, "verify_once", lambda *_, found=found: found)
        monkeypatch.setattr(pretrained, "check_fit", lambda *_: None)
        obtained = model.obtain(SimpleNamespace(shape=(3, 224, 224)), 0, None, torch.device("cpu"))
        assert [d.partition(": ")[2] for d in obtained.deviations] == said
