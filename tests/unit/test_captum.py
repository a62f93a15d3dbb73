"""The doors for methods that are not ours."""

import sys

import numpy as np
import pytest
import torch
from torch import nn

from salrun.errors import SalrunError
from salrun.methods.captum import Captum, Function, attributions
from salrun.rng import Draws
from tests import toys
from tests.toys import draws, images, targets

captum = pytest.importorskip("captum")

B, TARGET, RNG = 3, targets(3), draws(3)


def net():
    return toys.classifier(toys.network(stride=2), cam="1")


def run(method, model=None, x=None, target=TARGET, **given):
    return toys.run(method, model or net(), images() if x is None else x, target, **given)


@pytest.mark.parametrize("space", ["norm", "raw"])
def test_occlusion_is_captums(space):
    model, x = net(), images()
    options = {"sliding_window_shapes": [3, 2, 2], "strides": [3, 2, 2]}
    point, forward = (model.normalise(x), model.module) if space == "norm" else (x, model)
    expected = captum.attr.Occlusion(forward).attribute(point, (3, 2, 2), (3, 2, 2), target=TARGET)
    for chunk in (None, 1, 2, 50):
        found = run(Captum("Occlusion", options, space=space), model, x, chunk=chunk)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert run(Captum("Occlusion"), model, x).abs().max() > 0


@pytest.mark.parametrize(
    ("cls", "options"), [("NoiseTunnel", {}), ("GradientShap", {}), ("KernelShap", {"n_samples": 5})]
)
def test_random_ones_depend_on_image_and_seed_alone(cls, options):
    background, x = images(4), images()
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002
    state = torch.get_rng_state()
    whole = run(Captum(cls, options), background=background)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(4)
    np.random.seed(4)  # noqa: NPY002
    for b in range(B):
        one = slice(b, b + 1)
        alone = run(Captum(cls, options), x=x[one], target=TARGET[one], rng=RNG[one], background=background)
        assert torch.equal(alone, whole[one])
    assert not torch.equal(run(Captum(cls, options), rng=Draws(1, RNG.key), background=background), whole)


@pytest.mark.parametrize("cls", ["LayerGradCam", "LayerConductance", "LayerActivation", "GuidedGradCam"])
def test_layer_methods_give_maps(cls):
    raw = run(Captum(cls))
    assert raw.shape in {(B, 1, 8, 8), (B, 3, 8, 8)}
    named = run(Captum(cls, layer="0"))
    assert cls == "GuidedGradCam" or not torch.equal(raw, named)


def test_background_goes_to_those_who_want_it():
    assert Captum("DeepLiftShap").needs == {"background"}
    assert Captum("DeepLiftShap", {"baselines": 0}).needs == Captum("DeepLift").needs == frozenset()
    with pytest.raises(SalrunError, match="DeepLiftShap needs baselines"):
        run(Captum("DeepLiftShap"))
    model, x, background = net(), images(), images(5)
    raw = run(Captum("DeepLiftShap"), model, x, background=background)
    with torch.no_grad():
        gained = model(x).gather(1, TARGET.view(-1, 1))[:, 0] - model(background)[:, TARGET].mean(0)
    torch.testing.assert_close(raw.sum((1, 2, 3)), gained, rtol=1e-9, atol=1e-9)


def test_a_failure_of_captum_leaves_the_model_alone():
    model = net()
    model.module.append(nn.Sigmoid())
    model.module.append(nn.Flatten())
    with pytest.raises(SalrunError, match="captum's LRP does not work here"):
        run(Captum("LRP"), model)
    assert not any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in model.modules())
    assert not any(hasattr(m, "rule") for m in model.modules())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Captum("Oclusion"), "unknown attribution 'Oclusion' in captum.attr; did you mean Occlusion"),
        (lambda: Captum("NoiseTunnel", of="Salience"), "did you mean Saliency"),
        (lambda: Captum("Saliency", {"absolute": True}), "unknown option 'absolute' in captum's Saliency"),
        (lambda: Captum("FeaturePermutation"), "batch-mates"),
        (lambda: run(Captum("NeuronGradient")), "needs options: neuron_selector"),
        (lambda: run(Captum("Saliency", init={"nothing": 1})), "captum's Saliency does not work here"),
        (lambda: run(Captum("Saliency"), target=TARGET[:2]), "one target per image"),
    ],
)
def test_errors(make, words):
    with pytest.raises(SalrunError, match=words):
        make()


def test_captum_is_optional(monkeypatch):
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    with pytest.raises(SalrunError, match=r"pip install 'salrun\[peers\]'"):
        Captum("Saliency")


def test_only_classes_for_images():
    names = set(attributions())
    assert {"Occlusion", "DeepLift", "Lime", "LayerGradCam", "NoiseTunnel"} <= names
    assert not [name for name in names if "LLM" in name or "DataLoader" in name or name == "Attribution"]


def brightness(model, x, target, gain=1.0):
    return gain * x.sum(1, keepdim=True)


def test_a_function_of_the_users():
    x = images()
    assert torch.equal(run(Function(brightness)), x.sum(1, keepdim=True))
    by_name = Function(f"{__name__}.brightness", {"gain": 2.0})
    assert torch.equal(run(by_name), 2 * x.sum(1, keepdim=True))
    for wrong in ("brightness", "nowhere.at.all", f"{__name__}.missing", f"{__name__}.B"):
        with pytest.raises(SalrunError, match=wrong):
            Function(wrong)
    for bad in (lambda *args: None, lambda m, x, t: x[:1], lambda m, x, t: x.sum(1), lambda m, x, t: x[:, :2]):
        with pytest.raises(SalrunError, match="must return a tensor"):
            run(Function(bad))
