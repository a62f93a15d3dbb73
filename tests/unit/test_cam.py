"""Class activation maps against plain loops and hand-made layers."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from salrun.errors import SalrunError
from salrun.methods import cam
from salrun.methods.bilinear import resize
from salrun.methods.cam import EigenCAM, FakeCAM, GradCAM, GradCAMPlusPlus, LayerCAM, ScoreCAM, XGradCAM
from salrun.methods.gradient import Gradient
from salrun.types import Fitted
from tests.toys import classifier, close, draws, images, run, seeded, targets

B, K, CLASSES = 3, 5, 4
TARGET, RNG = targets(B), draws(B)
VARIANTS = ("gradcam_lib", "official", "probability_softmax")


def net():
    def build():
        features = nn.Sequential(nn.Conv2d(3, K, 3, 2), nn.ReLU())
        return nn.Sequential(features, nn.Flatten(), nn.Linear(K * 9, 16), nn.Tanh(), nn.Linear(16, CLASSES))

    return classifier(seeded(build, 1), cam="0")


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("size", [(1, 1), (3, 5), (8, 12), (11, 6)])
def test_planes_are_resized_as_torch_does(size, align_corners):
    """Enlarged, as they are, reduced."""
    planes, x = images(2, size), images(2, (8, 12))
    expected = F.interpolate(planes, (8, 12), mode="bilinear", align_corners=align_corners)
    close(resize(planes, x, align_corners), expected, 1e-12)


def layer_gradient(model, x):
    """A and dy_c/dA, image by image."""
    activations, gradients = [], []
    for b in range(len(x)):
        a = model.module[0](model.normalise(x[b : b + 1])).detach().requires_grad_(True)
        model.module[1:](a)[0, TARGET[b]].backward()
        activations.append(a.detach()[0])
        gradients.append(a.grad[0])
    return torch.stack(activations), torch.stack(gradients)


def up(plane):
    return F.interpolate(plane[None, None], size=(8, 8), mode="bilinear", align_corners=False)[0]


@pytest.mark.parametrize("order", ["relu_then_resize", "resize_then_relu"])
def test_grad_cam_slow_twin(order):
    model, x = net(), images()
    activation, gradient = layer_gradient(model, x)
    for b in range(B):
        cam = torch.zeros(3, 3, dtype=torch.float64)
        for k in range(K):
            cam += gradient[b, k].sum() / 9 * activation[b, k]
        expected = up(cam.clamp(min=0)) if order == "relu_then_resize" else up(cam).clamp(min=0)
        close(run(GradCAM(order=order), model, x)[b], expected)
        close(run(GradCAM(relu=False, order=order), model, x)[b], up(cam))


def test_the_orders_differ_where_signs_meet():
    first, second = (run(GradCAM(order=order), net(), images()) for order in ("relu_then_resize", "resize_then_relu"))
    assert (first - second).abs().max() > 1e-4


@pytest.mark.parametrize("eps", [None, 1e-6, 1e-2])
def test_grad_cam_pp_slow_twin(eps):
    model, x = net(), images()
    activation, gradient = layer_gradient(model, x)
    raw = run(GradCAMPlusPlus(eps=eps), model, x)
    for b in range(B):
        cam = torch.zeros(3, 3, dtype=torch.float64)
        for k in range(K):
            total, weight = activation[b, k].sum(), 0.0
            for g in gradient[b, k].flatten():
                if g > 0:
                    weight += g * g**2 / (2 * g**2 + total * g**3 + (eps or 0))
            cam += weight * activation[b, k]
        close(raw[b], up(cam.clamp(min=0)))


def test_grad_cam_pp_does_not_know_its_batch():
    model, x = net(), images()
    for eps in (None, 1e-6):
        alone = torch.cat([run(GradCAMPlusPlus(eps), model, x[b : b + 1], TARGET[b : b + 1]) for b in range(B)])
        large = run(GradCAMPlusPlus(eps), model, x.repeat(20, 1, 1, 1), TARGET.repeat(20))
        close(large, alone.repeat(20, 1, 1, 1), 1e-14)


def test_a_cam_that_is_nowhere_positive_is_zero():
    model, x = net(), images()
    with torch.no_grad():
        model.module[2] = nn.Linear(K * 9, CLASSES).double()
        model.module[2].weight.copy_(-model.module[2].weight.abs())
        model.module[3], model.module[4] = nn.Identity(), nn.Identity()
    for method in (GradCAM(), GradCAM(order="resize_then_relu"), GradCAMPlusPlus()):
        assert torch.equal(run(method, model, x), torch.zeros(B, 1, 8, 8, dtype=torch.float64))
    assert (run(GradCAM(relu=False), model, x) < 0).any()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("space", ["norm", "raw"])
@pytest.mark.parametrize("align", [False, True])
def test_score_cam_slow_twin(variant, space, align):
    model, x = net(), images()
    raw = run(ScoreCAM(variant, space, align), model, x)
    with torch.no_grad():
        for b in range(B):
            activation, weights = model.module[0](model.normalise(x[b : b + 1]))[0], []
            for k in range(K):
                mask = F.interpolate(activation[k][None, None], size=(8, 8), mode="bilinear", align_corners=align)
                mask = (mask - mask.min()) / (mask.max() - mask.min())
                masked = (
                    mask * model.normalise(x[b : b + 1]) if space == "norm" else model.normalise(mask * x[b : b + 1])
                )
                logits = model.module(masked)[0]
                weights.append(logits[TARGET[b]] if variant == "gradcam_lib" else logits.softmax(0)[TARGET[b]])
            weight = torch.stack(weights)
            if variant != "official":
                weight = weight.softmax(0)
            cam = sum(weight[k] * activation[k] for k in range(K))
            close(raw[b], up(cam.clamp(min=0)))


@pytest.mark.parametrize("variant", VARIANTS)
def test_score_cam_ignores_constant_channels(variant):
    """A dead channel, and one that is the same everywhere, are as if they were not there."""
    model, x = net(), images()
    with torch.no_grad():
        for k, bias in ((1, -5.0), (3, 7.0)):
            model.module[0][0].weight[k], model.module[0][0].bias[k] = 0, bias
        activation = model.module[0](model.normalise(x))
        assert (activation[:, 1] == 0).all()
        assert (activation[:, 3] == 7).all()
    raw = run(ScoreCAM(variant), model, x)
    fewer = net()
    kept = [0, 2, 4]
    with torch.no_grad():
        scores = []
        for b in range(B):
            masks = F.interpolate(activation[b : b + 1, kept], size=(8, 8), mode="bilinear", align_corners=False)[0]
            low, high = masks.amin((1, 2), keepdim=True), masks.amax((1, 2), keepdim=True)
            masked = model.normalise(x[b : b + 1]) * ((masks - low) / (high - low)).unsqueeze(1)
            logits = model.module(masked)
            scores.append((logits if variant == "gradcam_lib" else logits.softmax(1))[:, TARGET[b]])
        weight = torch.stack(scores)
        weight = weight if variant == "official" else weight.softmax(1)
        for b in range(B):
            close(raw[b], up(sum(weight[b, i] * activation[b, k] for i, k in enumerate(kept))))
    with torch.no_grad():
        fewer.module[0][0].weight.zero_()
    assert torch.equal(run(ScoreCAM(variant), fewer, x), torch.zeros(B, 1, 8, 8, dtype=torch.float64))


def test_score_cam_of_the_most_active_channels():
    """Two of each image, not the same of all; weighted by the probability seen through their masks."""
    model, x = net(), images()
    activation = model.module[0](model.normalise(x)).detach()
    chosen = [sorted(activation[b].mean((1, 2)).topk(2).indices.tolist()) for b in range(B)]
    assert len({*map(tuple, chosen)}) > 1
    raw = run(ScoreCAM("official", channels=2), model, x)
    for b in range(B):
        cam = torch.zeros(3, 3, dtype=torch.float64)
        for k in chosen[b]:
            mask = up(activation[b, k])[0]
            masked = model.normalise(x[b : b + 1]) * (mask - mask.min()) / (mask.max() - mask.min())
            cam += model.module(masked).softmax(1)[0, TARGET[b]].detach() * activation[b, k]
        close(raw[b], up(cam))
    assert ScoreCAM(channels=2).passes(model, (3, 8, 8)) == 3
    assert torch.equal(run(ScoreCAM(channels=K), model, x), run(ScoreCAM(), model, x))


@pytest.mark.parametrize("chunk", [1, 2, 4, 7])
def test_score_cam_is_bounded_and_builds_no_graph(chunk):
    model, x = net(), images()
    seen = []
    model.module.register_forward_hook(lambda module, inputs, output: seen.append((len(output), output.requires_grad)))
    run(ScoreCAM(), model, x, chunk=chunk)
    assert max(size for size, _ in seen) <= chunk
    assert sum(size for size, _ in seen) == B * (K + 1)
    assert not any(graph for _, graph in seen)
    assert ScoreCAM().passes(model, (3, 8, 8)) == K + 1


@pytest.mark.parametrize("variant", VARIANTS)
def test_score_cam_does_not_show_constant_channels(variant, monkeypatch):
    """One is dead for all images, one lit the same everywhere, one dead for the first image: maps are bit-identical."""
    model, x = net(), images()
    with torch.no_grad():
        for k, bias in ((1, -5.0), (3, 7.0)):
            model.module[0][0].weight[k], model.module[0][0].bias[k] = 0, bias
        x[0] = x[0].mean()
        activation = model.module[0](model.normalise(x))
    live = int((activation.amax((2, 3)) > activation.amin((2, 3))).sum())
    assert live < B * (K - 2)
    sizes = []
    model.module.register_forward_hook(lambda module, inputs, output: sizes.append(len(output)))
    few = run(ScoreCAM(variant), model, x, chunk=1)
    assert len(sizes) == B + live
    sizes.clear()
    run(ScoreCAM(variant), model, x, chunk=4)
    passes = sizes[-(-B // 4) :]
    assert sum(passes) == live
    assert set(passes[:-1]) <= {4}
    sizes.clear()
    monkeypatch.setattr(cam, "places", lambda mask: torch.arange(mask.numel()))
    assert torch.equal(run(ScoreCAM(variant), model, x, chunk=1), few)
    assert len(sizes) == B * (K + 1)


def test_fake_cam():
    raw = run(FakeCAM(), net(), images())
    assert raw.shape == (B, 1, 8, 8)
    assert (raw.sum((1, 2, 3)) == 63).all()
    assert (raw[:, 0, 0, 0] == 0).all()


@pytest.mark.parametrize("method", [GradCAM, GradCAMPlusPlus, ScoreCAM])
def test_layers(method):
    model, x = net(), images()
    close(run(method(layer="0.1"), model, x), run(method(), model, x))
    close(run(method(), model, x, layer="0.0"), run(method(layer="0.0"), model, x))
    assert (run(method(layer="0.0"), model, x) - run(method(), model, x)).abs().max() > 0
    with pytest.raises(SalrunError, match=r"layer '1' of model 'net' gives no feature maps .* \(3, 45\)"):
        run(method(layer="1"), model, x)
    with pytest.raises(SalrunError, match="unknown layer 'features'"):
        run(method(layer="features"), model, x)
    assert not model.layer("cam")._forward_hooks


def test_bad_eps():
    with pytest.raises(SalrunError, match="eps of GradCAMPlusPlus"):
        GradCAMPlusPlus(eps=0.0)


def test_a_cam_alone_goes_back_no_further_than_its_layer():
    """And reads a gradient pass off where there is one already."""
    model, x, fitted = net(), images(), Fitted()
    forward, back = [], []
    model.module[0].register_forward_hook(lambda *_: forward.append(1))
    model.module[0][0].register_full_backward_hook(lambda *_: back.append(1))
    alone = [method(model, x, TARGET, RNG, fitted) for method in (GradCAM(), GradCAMPlusPlus())]
    assert (len(forward), len(back)) == (1, 0)
    with pytest.raises(RuntimeError, match="to_input=False"):
        _ = model.pass_once(x, TARGET, "cam", to_input=False).input_gradient
    gradient = Gradient()(model, x, TARGET, RNG, fitted)
    assert (len(forward), len(back)) == (2, 1)
    shared = [method(model, x, TARGET, RNG, fitted) for method in (GradCAM(), GradCAMPlusPlus())]
    assert (len(forward), len(back)) == (2, 1)
    assert all(torch.equal(a, b) for a, b in zip(alone, shared, strict=True))
    assert gradient.shape == x.shape


def test_layer_cam_slow_twin():
    model, x = net(), images()
    activation, gradient = layer_gradient(model, x)
    raw = run(LayerCAM(), model, x)
    for b in range(B):
        expected = sum(gradient[b, k].clamp(min=0) * activation[b, k] for k in range(K))
        close(raw[b], up(expected.clamp(min=0)))


def test_xgrad_cam_slow_twin():
    model, x = net(), images()
    with torch.no_grad():
        model.module[0][0].bias[2] = -100.0  # a dead channel: its sum is 0
    activation, gradient = layer_gradient(model, x)
    raw = run(XGradCAM(), model, x)
    for b in range(B):
        expected = torch.zeros(3, 3, dtype=torch.float64)
        for k in range(K):
            if activation[b, k].sum() > 0:
                expected += (activation[b, k] * gradient[b, k]).sum() / activation[b, k].sum() * activation[b, k]
        close(raw[b], up(expected.clamp(min=0)))


@pytest.mark.parametrize("channels", [K, 20])  # fewer and more than the nine places: either matrix of products
@pytest.mark.parametrize("centred", [False, True])
def test_eigen_cam_is_the_first_singular_component(channels, centred):
    def build():
        return nn.Sequential(nn.Conv2d(3, channels, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(channels * 9, CLASSES))

    model, x = classifier(seeded(build, 1), cam="1"), images()
    raw = run(EigenCAM(centred), model, x)
    for b in range(B):
        matrix = model.module[:2](model.normalise(x[b : b + 1])).detach()[0].flatten(1).T
        matrix = matrix - matrix.mean(0) if centred else matrix
        plane = (matrix @ torch.linalg.svd(matrix).Vh[0]).view(3, 3)
        end = plane.max() + plane.min() if centred else plane.sum()
        close(raw[b], up(plane * end.sign()), 1e-9)
    assert centred or raw.min() >= -1e-12


def test_eigen_cam_of_one_pattern_is_that_pattern():
    """All channels are multiples of one plane P: A = P a^T has the component P |a|."""

    class Pattern(nn.Module):
        def forward(self, x):
            return x[:, :1] * torch.tensor([3.0, 4.0], dtype=x.dtype).view(1, 2, 1, 1)

    module = nn.Sequential(Pattern(), nn.Flatten(), nn.Linear(2 * 64, CLASSES))
    model, x = classifier(module, (0.0,) * 3, (1.0,) * 3, cam="0"), images()
    close(run(EigenCAM(), model, x), 5 * x[:, :1], 1e-10)
