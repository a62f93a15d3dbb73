"""The inference copy: what is folded, what is refused, that it computes the same."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from salrun.conformance.device import DeviceClean
from salrun.errors import SalrunError
from salrun.methods.gradient import gradient_at
from salrun.methods.layers import layer_output
from salrun.models import inference
from salrun.models.architectures import TomsettCNN
from salrun.models.classifier import Classifier
from salrun.models.inference import InferenceCopy, folded_copy, inference_copy
from salrun.pipeline import cell as pipeline

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def images(n: int = 4, size: int = 16) -> Tensor:
    return torch.rand(n, 3, size, size, generator=torch.Generator().manual_seed(1))


def lively(module: nn.Module, seed: int = 0) -> nn.Module:
    """BatchNorms with statistics, scales and shifts that matter."""
    generator = torch.Generator().manual_seed(seed)
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.running_mean is not None:
            part.running_mean.copy_(torch.randn(part.running_mean.shape, generator=generator) * 0.3)
            part.running_var.copy_(torch.rand(part.running_var.shape, generator=generator) + 0.5)
            if part.weight is not None:
                part.weight.data.copy_(torch.rand(part.weight.shape, generator=generator) + 0.5)
            if part.bias is not None:
                part.bias.data.copy_(torch.randn(part.bias.shape, generator=generator) * 0.3)
    return module.eval()


def classifier(module: nn.Module) -> Classifier:
    return Classifier(lively(module), MEAN, STD, name="net", fingerprint="f")


def gap(model: Classifier, copy: Classifier, x: Tensor) -> float:
    """The largest relative difference of a probability."""
    with torch.no_grad():
        p, q = (m(x).double().softmax(1) for m in (model, copy))
    return float(((p - q).abs() / p).max())


def norms(module: nn.Module) -> list[str]:
    return [n for n, part in module.named_modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]


@pytest.fixture(autouse=True)
def _seeded():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def sequential() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, 3, groups=4), nn.Identity(), nn.BatchNorm2d(8, affine=False), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 5),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("build", "folds"),
    [
        (sequential, 3),
        (lambda: TomsettCNN(size=16), 6),
        (lambda: TomsettCNN(size=16, bn="rms"), 6),
        (lambda: torchvision.models.resnet18(num_classes=7), 20),
        (lambda: torchvision.models.mobilenet_v2(num_classes=7), 52),
    ],
    ids=["sequential", "tomsett", "tomsett_rms", "resnet18", "mobilenet_v2"],
)
def test_folds_every_norm_and_computes_the_same(build, folds: int) -> None:
    model = classifier(build())
    assert len(norms(model)) == folds
    x = images(size=16 if folds < 20 else 32)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    copy = inference_copy(model, x[:2])
    assert norms(copy) == []
    assert copy.steps == ("folded", "channels_last")
    assert copy.fingerprint == "f|inference+folded+channels_last"
    assert gap(model, copy, x) <= 1e-5
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert len(norms(model)) == folds
    assert not any(part._forward_hooks for part in [*model.modules(), *copy.modules()])
    assert all(p.requires_grad for p in model.parameters())


def test_is_exact_in_float64() -> None:
    model = classifier(TomsettCNN(size=16)).double()
    x = images().double()
    copy = inference_copy(model, x)
    assert copy.mean.dtype == torch.float64
    assert gap(model, copy, x) <= 1e-12


def test_serves_both_spaces_without_gradients() -> None:
    model = classifier(sequential())
    x = images()
    copy = inference_copy(model, x)
    assert isinstance(copy, Classifier)
    torch.testing.assert_close(copy.logits(x), copy.head(copy.normalise(x), "norm"))
    torch.testing.assert_close(copy.head(x, "raw"), model.head(x, "raw"), rtol=1e-5, atol=1e-6)
    assert not copy(x.requires_grad_()).requires_grad
    assert copy.layer("0") is copy.module[0], "layers keep their names"


def test_a_model_in_train_mode_is_copied_in_eval_mode_and_left_alone() -> None:
    model = classifier(sequential()).train()
    x = images()
    copy = inference_copy(model, x)
    assert model.training
    assert model.module[1].training
    assert not copy.training
    assert gap(model.eval(), copy, x) <= 1e-5


class Reused(nn.Module):
    """One convolution feeds two norms: neither may be folded into it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.one, self.two = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.BatchNorm2d(6)
        self.out = nn.Linear(12, 4)

    def forward(self, z: Tensor) -> Tensor:
        maps = [self.one(self.conv(z)), self.two(self.conv(z.flip(3)))]
        return self.out(torch.cat([F.relu(m).mean((2, 3)) for m in maps], 1))


class Shared(nn.Module):
    """One norm for two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.norm = nn.Conv2d(3, 6, 3), nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)
        self.out = nn.Linear(6, 4)

    def forward(self, z: Tensor) -> Tensor:
        return self.out((F.relu(self.norm(self.one(z))) + F.relu(self.norm(self.two(z)))).mean((2, 3)))


class Between(nn.Module):
    """An in-place function between convolution and norm: the tensor is the same object, its content is not."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Linear(6, 4)

    def forward(self, z: Tensor) -> Tensor:
        return self.out(self.norm(F.relu_(self.conv(z))).mean((2, 3)))


class PreNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv, self.out = nn.BatchNorm2d(3), nn.Conv2d(3, 6, 3), nn.Linear(6, 4)

    def forward(self, z: Tensor) -> Tensor:
        return self.out(F.relu(self.conv(self.norm(z))).mean((2, 3)))


class Parametrised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = parametrizations.weight_norm(nn.Conv2d(3, 6, 3))
        self.norm, self.out = nn.BatchNorm2d(6), nn.Linear(6, 4)

    def forward(self, z: Tensor) -> Tensor:
        return self.out(F.relu(self.norm(self.conv(z))).mean((2, 3)))


@pytest.mark.parametrize("build", [Reused, Shared, Between, PreNorm, Parametrised])
def test_does_not_fold_where_it_would_be_wrong(build, caplog) -> None:
    model = classifier(build())
    x = images()
    with caplog.at_level(logging.WARNING):
        copy = inference_copy(model, x)
    assert caplog.messages == [], "seen from the calls, not found out by trying"
    assert norms(copy) == norms(model)
    assert "folded" not in copy.steps
    assert gap(model, copy, x) <= 1e-5


class Skip(nn.Module):
    """The first convolution's output is also used beside its norm; hooks cannot see that, the probe does."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)
        self.next, self.last, self.out = nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6), nn.Linear(6, 4)

    def forward(self, z: Tensor) -> Tensor:
        z = self.conv(z)
        return self.out(F.relu(self.last(self.next(self.norm(z))) + z).mean((2, 3)))


def test_a_wrong_fold_is_found_on_the_probe_and_the_others_are_kept(caplog) -> None:
    model = classifier(Skip())
    x = images()
    with caplog.at_level(logging.WARNING):
        copy = inference_copy(model, x)
    assert norms(copy) == ["module.norm"]
    assert copy.steps == ("folded but norm", "channels_last")
    assert gap(model, copy, x) <= 1e-5
    assert any("not folded (norm into conv)" in message for message in caplog.messages)


class Viewing(nn.Module):
    """`view` of a convolution's output works in the usual layout only."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv2d(3, 6, 3), nn.Linear(6 * 14 * 14, 4)

    def forward(self, z: Tensor) -> Tensor:
        z = self.conv(z)
        return self.out(z.view(len(z), -1))


def test_a_layout_the_network_refuses_is_not_used(caplog) -> None:
    model = classifier(Viewing())
    with caplog.at_level(logging.WARNING):
        copy = inference_copy(model, images())
    assert copy.steps == ()
    assert any("not channels_last" in message for message in caplog.messages)
    assert gap(model, copy, images()) == 0


def test_a_compiler_that_fails_or_lies_is_not_used(monkeypatch, caplog) -> None:
    model = classifier(sequential())
    x = images()

    def broken(module: nn.Module, **options: object):
        def run(z: Tensor) -> Tensor:
            raise RuntimeError("no C++ compiler\nlong story")

        return run

    for fake, reason in ((broken, "no C++ compiler"), (lambda module, **_: lambda z: module(z) * 1.001, "off by")):
        monkeypatch.setattr(inference.torch, "compile", fake)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            copy = inference_copy(model, x, "on")
        assert "compiled" not in copy.steps
        assert len(caplog.messages) == 1
        assert "not compiled" in caplog.messages[0]
        assert reason in caplog.messages[0]
        assert gap(model, copy, x) <= 1e-5


def test_the_compiled_program_meets_one_batch_size_only(monkeypatch) -> None:
    sizes = []

    def spy(module: nn.Module, **options: object):
        def run(z: Tensor) -> Tensor:
            sizes.append(len(z))
            return module(z)

        return run

    monkeypatch.setattr(inference.torch, "compile", spy)
    model = classifier(sequential())
    copy = inference_copy(model, images(3), "on", batch=8)
    for n in (1, 3, 4, 7, 8, 9, 21):
        x = images(n)
        with torch.no_grad():
            torch.testing.assert_close(copy(x), model(x), rtol=1e-5, atol=1e-6)
    assert set(sizes) == {8}


@pytest.mark.slow
def test_really_compiled() -> None:
    """Where the machine has a working compiler; without one the copy must say so and go on."""
    model = classifier(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(784, 3)))
    x = images()
    copy = inference_copy(model, x, "on")
    assert gap(model, copy, x) <= 1e-5
    assert gap(model, copy, images(11)) <= 1e-5
    if "compiled" not in copy.steps:
        pytest.skip("torch.compile does not work on this machine")


def test_unknown_mode_is_refused() -> None:
    with pytest.raises(SalrunError, match="on or off"):
        inference_copy(classifier(sequential()), images(), "maybe")  # type: ignore[arg-type]


def test_is_an_inference_copy() -> None:
    assert isinstance(inference_copy(classifier(sequential()), images()), InferenceCopy)


# -- half precision ----------------------------------------------------------------------------------------------------


@pytest.fixture
def bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every processor computes in bfloat16, if not faster."""
    monkeypatch.setattr(inference, "fast_dtype", lambda device: torch.bfloat16)


def test_a_fast_copy_gives_nearly_the_same(bfloat16: None) -> None:
    model, x = classifier(TomsettCNN(size=16)), images(8)
    copy = inference_copy(model, x[:4], numerics="fast")
    assert copy.steps == ("folded", "channels_last", "bfloat16")
    assert copy.fingerprint == "f|inference+folded+channels_last+bfloat16"
    assert copy.reduced and copy(x).dtype == torch.float32 and not copy(x).requires_grad
    assert 1e-5 < gap(model, copy, x) < 0.05, "another rounding, and no more than that"
    types = {name: parameter.dtype for name, parameter in copy.module.named_parameters()}
    assert types.pop("dense.weight") == torch.float32, "the logits keep their digits"
    assert set(types.values()) == {torch.bfloat16}
    assert torch.equal(copy.module.dense.weight, model.module.dense.weight)
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


def test_without_a_last_linear_layer_all_is_in_half_precision(bfloat16: None) -> None:
    convolutions = nn.Sequential(nn.Conv2d(3, 5, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    copy = inference_copy(classifier(convolutions), images(), numerics="fast")
    assert copy.reduced and {p.dtype for p in copy.parameters()} == {torch.bfloat16}
    assert copy(images()).dtype == torch.float32


def test_where_there_is_no_half_precision_it_says_so(monkeypatch, caplog) -> None:
    monkeypatch.setattr(inference, "fast_dtype", lambda device: None)
    model, x = classifier(sequential()), images()
    with caplog.at_level(logging.WARNING, "salrun.models.inference"):
        copy = inference_copy(model, x, numerics="fast")
    assert caplog.messages == ["net: stays float32: no bfloat16 here"]
    assert not copy.reduced and copy.fingerprint == inference_copy(model, x).fingerprint


@pytest.mark.parametrize(
    ("device", "unit", "dtype"),
    [
        *(("cpu", "", None), ("cpu", "avx512_bf16", torch.bfloat16), ("cpu", "amx_tile", torch.bfloat16)),
        *(("cuda", (7, 5), None), ("cuda", (8, 0), torch.bfloat16), ("mps", "", torch.float16), ("meta", "", None)),
    ],
)
def test_half_precision_by_device(device: str, unit: object, dtype: torch.dtype | None, monkeypatch) -> None:
    for name in ("avx512_bf16", "amx_tile"):
        monkeypatch.setattr(torch.cpu, f"_is_{name}_supported", lambda name=name: name == unit, raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: unit)
    assert inference.fast_dtype(torch.device(device)) is dtype


class Flags(nn.Module):
    """Notes whether TF32 is allowed while it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.seen = sequential(), []

    def forward(self, z: Tensor) -> Tensor:
        self.seen.append((torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32))
        return self.net(z)


@pytest.fixture
def _full_float32() -> Iterator[None]:
    """As in a run."""
    before = torch.backends.cudnn.allow_tf32
    pipeline.settle_numerics({"threads": 1})
    yield
    torch.backends.cudnn.allow_tf32 = before


@pytest.mark.usefixtures("_full_float32")
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_tf32_is_allowed_inside_a_fast_copy_only(dtype: torch.dtype | None, monkeypatch) -> None:
    monkeypatch.setattr(inference, "fast_dtype", lambda device: dtype)
    monkeypatch.setattr(inference, "has_tf32", lambda device: True)
    half = ("bfloat16",) if dtype else ()
    model, x = classifier(Flags()), images()
    for numerics, gradients, steps in (("exact", False, ()), ("fast", False, (*half, "tf32")), ("fast", True, half)):
        copy = inference_copy(model, x, numerics=numerics, gradients=gradients)
        assert copy.steps == ("folded", "channels_last", *steps)
        assert copy.fingerprint == "f|inference+" + "+".join(copy.steps), "its results have keys of their own"
        assert copy.reduced is bool(steps)
        assert copy.computes_in == (steps[0] if steps else "float32")
        copy.module.seen.clear()
        copy(x)
        assert copy.module.seen == [("tf32" in steps, "tf32" in steps)]
        assert not torch.backends.cuda.matmul.allow_tf32 and not torch.backends.cudnn.allow_tf32
    with pytest.raises(ZeroDivisionError), inference.tf32_allowed():
        _ = 1 / 0
    assert not torch.backends.cuda.matmul.allow_tf32 and not torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize(("capability", "there"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_tf32_by_device(capability: tuple[int, int], there: bool, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert inference.has_tf32(torch.device("cuda")) is there
    assert not inference.has_tf32(torch.device("cpu"))


class Constant(nn.Module):
    """A float32 constant inside, which cannot be multiplied with bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.flat, self.weight = nn.Flatten(), torch.linspace(-1, 1, 3 * 16 * 16 * 4).view(-1, 4)

    def forward(self, z: Tensor) -> Tensor:
        return self.flat(z) @ self.weight


class Margin(nn.Module):
    """Classes that differ by less than the last digit of their common part."""

    def forward(self, z: Tensor) -> Tensor:
        mean = z.mean((2, 3))
        return 100 + torch.cat([1e-3 * mean, 2e-3 * mean], 1)


class Large(nn.Module):
    """Numbers that bfloat16 has and float16 has not."""

    def forward(self, z: Tensor) -> Tensor:
        return (z * 1e6).mean((2, 3)) / 1e6


@pytest.mark.parametrize(
    ("build", "dtype", "reason"),
    [
        (Constant, torch.bfloat16, "RuntimeError: expected m"),
        (Margin, torch.bfloat16, "would keep its class"),
        (Large, torch.float16, "a logit would be no finite number"),
    ],
)
def test_half_precision_that_gives_other_answers_is_not_used(build, dtype, reason: str, monkeypatch, caplog) -> None:
    monkeypatch.setattr(inference, "fast_dtype", lambda device: dtype)
    model = classifier(build())
    with caplog.at_level(logging.WARNING, "salrun.models.inference"):
        copy = inference_copy(model, images(), numerics="fast")
    assert not copy.reduced and copy.steps == ("channels_last",)
    (message,) = caplog.messages
    assert message.startswith(f"net: not {dtype}".replace("torch.", "")) and reason in message
    assert gap(model, copy, images()) <= 1e-5


def test_gradients_are_there_where_they_are_asked_for(bfloat16: None) -> None:
    model, x = classifier(TomsettCNN(size=16)), images()
    copy = inference_copy(model, x, "on", numerics="fast", gradients=True)
    assert "compiled" not in copy.steps
    target = torch.tensor([1, 0, 2, 1])
    exact, fast = (gradient_at(m, model.normalise(x), target, "norm") for m in (model, copy))
    assert fast.dtype == torch.float32
    cosine = F.cosine_similarity(exact.flatten(1), fast.flatten(1))
    assert (cosine > 0.95).all() and not torch.equal(exact, fast)
    with pytest.raises(RuntimeError, match="does not require grad"):
        gradient_at(inference_copy(model, x, numerics="fast"), model.normalise(x), target, "norm")


def test_layers_are_read_off_the_original(bfloat16: None) -> None:
    """In the copy the first convolution has a norm folded into it, and computes in bfloat16."""
    model, x = classifier(sequential()), images()
    copy = inference_copy(model, x, numerics="fast")
    assert copy.exact is model and model.exact is model
    assert torch.equal(layer_output(copy, x, "0"), layer_output(model, x, "0"))
    assert not any(part._forward_hooks for part in [*model.modules(), *copy.modules()])


def test_a_fast_copy_stays_on_its_device(bfloat16: None) -> None:
    copy = inference_copy(classifier(sequential()), images(), numerics="fast")
    x = images(5)
    with DeviceClean():
        copy(x)
        copy.head(x, "raw")


def test_weights_are_frozen_on_cpus(monkeypatch) -> None:
    seen = []
    monkeypatch.setattr(inference.torch, "compile", lambda module, **options: seen.append(options) or module)
    copy = inference_copy(classifier(sequential()), images(), "on")
    assert seen == [{"dynamic": False, "options": {"freezing": True}}]
    assert copy.steps[-2:] == ("compiled", "frozen"), "scores of a frozen program have keys of their own"


@pytest.mark.slow
def test_really_compiled_in_half_precision(bfloat16: None) -> None:
    model, x = classifier(TomsettCNN(size=16)), images(8)
    copy = inference_copy(model, x[:4], "on", batch=8, numerics="fast")
    if "compiled" not in copy.steps:
        pytest.skip("torch.compile does not work on this machine")
    assert copy.steps == ("folded", "channels_last", "bfloat16", "compiled", "frozen")
    assert copy(x).dtype == torch.float32 and 0 < gap(model, copy, x) < 0.05


# -- there and back ----------------------------------------------------------------------------------------------------


class Attending(nn.Module):
    """Two layers of self-attention over the rows of the image, `options` as `nn.MultiheadAttention` has them."""

    def __init__(self, asked: dict[str, object] | None = None, **options: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.MultiheadAttention(48, 3, **{"batch_first": True, **options})  # type: ignore[arg-type]
            for _ in range(2)
        )
        self.out = nn.Linear(48, 4)
        self.asked = {"need_weights": False} if asked is None else asked

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.transpose(1, 2).flatten(2)
        for layer in self.layers:
            tokens = tokens + layer(tokens, tokens, tokens, **self.asked)[0]
        return self.out(tokens.mean(1))


MASK = torch.ones(16, 16, dtype=torch.bool).triu(1)


@pytest.mark.parametrize("heads_bias", [True, False])
def test_attention_with_its_images_first_is_the_same(heads_bias: bool) -> None:
    model = classifier(Attending(bias=heads_bias)).double()
    x, target = images().double(), torch.tensor([0, 1, 2, 3])
    copied = folded_copy(model, x)
    assert isinstance(copied, InferenceCopy) and copied.steps == ("images_first", "channels_last")
    assert all(type(layer) is nn.MultiheadAttention for layer in model.module.layers), "the model is left alone"
    expected, found = (gradient_at(m, model.normalise(x), target, "norm") for m in (model, copied))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    assert gap(model, copied, x) <= 1e-12


@pytest.mark.parametrize(
    "asked",
    [{}, {"need_weights": False, "attn_mask": MASK}, {"need_weights": False, "key_padding_mask": MASK[:4]}],
    ids=["weights", "mask", "padding"],
)
def test_attention_that_is_asked_for_more_is_torchs_own(asked: dict[str, object]) -> None:
    model, x = classifier(Attending(asked)).double(), images().double()
    copied = folded_copy(model, x)
    assert gap(model, copied, x) <= 1e-12
    plain = folded_copy(classifier(Attending()).double(), x)
    plain.module.load_state_dict(model.module.state_dict())
    assert not asked or gap(model, plain, x) > 1e-3, "the mask matters"


def test_attention_of_tokens_first_or_with_further_keys_is_left_as_it_is() -> None:
    for options in ({"batch_first": False}, {"add_zero_attn": True}, {"add_bias_kv": True}):
        copied = folded_copy(classifier(Attending(**options)), images())
        assert isinstance(copied, InferenceCopy) and "images_first" not in copied.steps


def test_a_folded_copy_has_the_same_gradients_and_layers() -> None:
    model, x = Classifier(lively(TomsettCNN()), MEAN, STD, {"cam": "block3.relu2"}, "net", "f"), images(3, 32)
    copied, target = folded_copy(model, x), torch.tensor([1, 0, 2])
    assert isinstance(copied, InferenceCopy) and copied.steps == ("folded", "channels_last") and copied.exact is copied
    assert norms(model.module) and not norms(copied.module)
    expected, found = (m.pass_once(x, target, "cam") for m in (model, copied))
    for name in ("logits", "at_input", "activation", "activation_gradient"):
        a, b = getattr(expected, name), getattr(found, name)
        assert float((a - b).abs().max() / a.abs().max()) < 1e-4, name
    assert copied.pass_once(x, target) is found, "a pass serves several methods"


def test_a_layer_that_is_read_keeps_its_output() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4))
    model = classifier(nn.Sequential(net, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)))
    copied = folded_copy(model, images(), keep={"0.3"})
    assert norms(copied.module) == ["0.4"]
    assert isinstance(copied, InferenceCopy) and copied.steps[0] == "folded but 0.4", "in the fingerprint"
    expected, found = (layer_output(m, images(), "0.3") for m in (model, copied))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_a_copy_with_other_gradients_is_none() -> None:
    """An operator whose derivative depends on the layout: the same values, other slopes."""

    class Slope(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):  # type: ignore[no-untyped-def]
            ctx.last = x.is_contiguous(memory_format=torch.channels_last)
            return x * 1

        @staticmethod
        def backward(ctx, signal):  # type: ignore[no-untyped-def]
            return signal * (2 if ctx.last else 1)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(Slope.apply(self.conv(x)).mean((2, 3)))

    model = classifier(Net())
    assert "channels_last" in inference_copy(model, images(), "off").steps
    assert folded_copy(model, images()) is model


def test_a_network_without_gradients_is_not_copied() -> None:
    class Steps(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x > 0.5).float().mean((2, 3))

    model = classifier(Steps())
    assert folded_copy(model, images()) is model
