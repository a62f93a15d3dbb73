"""Gradient and CAM methods against captum and pytorch-grad-cam, in float64.

captum agrees to 1e-10 of the largest value, its integrated gradients to 1e-7 (their weights are float32).
pytorch-grad-cam scales its maps in float32 (OpenCV): 1e-5.
"""

from functools import cache

import numpy as np
import pytest
import torch
from torch import nn
from torchvision.models import resnet18
from torchvision.models.vgg import cfgs, make_layers

from salrun.methods.cam import GradCAM, GradCAMPlusPlus, LayerCAM, ScoreCAM, XGradCAM, first_component, resize
from salrun.methods.gradient import (
    ExpectedGradients,
    Gradient,
    InputXGradient,
    IntegratedGradients,
    SmoothGrad,
    VarGrad,
)
from salrun.methods.guided import GuidedGradCAM
from salrun.methods.kernel_shap import KernelSHAP
from salrun.methods.layers import layer_output
from salrun.methods.occlusion import Occlusion
from salrun.methods.superpixels import grid, switched_off
from salrun.models.classifier import Classifier
from tests import toys
from tests.toys import draws

B, SIZE, CLASSES = 2, 48, 7
TARGET, RNG = torch.tensor([5, 2]), draws(B)
pytestmark = pytest.mark.filterwarnings("ignore:Input Tensor 0 did not already require gradients")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NETS = ("cnn", "resnet18", "vgg16")


def cnn():
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 5, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 12, 3), nn.ReLU(inplace=True)),
        *(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(192, 20), nn.ReLU(), nn.Linear(20, CLASSES)),
    )


def vgg16():
    """VGG16 with a small head: its own has 120 million weights."""
    return nn.Sequential(make_layers(cfgs["D"]), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES))


@cache
def model(name):
    def build():
        net = {"cnn": cnn, "resnet18": lambda: resnet18(num_classes=CLASSES), "vgg16": vgg16}[name]()
        for m in net.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight)
        return net

    return toys.classifier(
        toys.seeded(build), MEAN, STD, cam={"cnn": "4", "resnet18": "layer3.1", "vgg16": "0.29"}[name]
    )


def images():
    return toys.images(B, SIZE)


def run(method, classifier, x):
    return toys.run(method, classifier, x, TARGET)


def close(found, expected, tolerance=1e-10):
    """Within `tolerance` of each map's largest value."""
    assert found.shape == expected.shape
    scale = expected.abs().amax((1, 2, 3), keepdim=True)
    assert (scale > 0).any()  # a CAM may be nowhere positive
    assert ((found - expected).abs() <= tolerance * scale).all()


def minmax(plane):
    low, high = plane.amin((2, 3), keepdim=True), plane.amax((2, 3), keepdim=True)
    return (plane - low) / torch.where(high == low, 1, high - low)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("space", ["norm", "raw"])
def test_captum_gradient(name, space):
    attr = pytest.importorskip("captum.attr")
    classifier, x = model(name), images()
    point, forward = (classifier.normalise(x), classifier.module) if space == "norm" else (x, classifier)
    expected = attr.Saliency(forward).attribute(point, TARGET, abs=False)
    close(run(Gradient(space), classifier, x), expected)
    close(run(InputXGradient(space), classifier, x), attr.InputXGradient(forward).attribute(point, TARGET))


@pytest.mark.parametrize("name", NETS)
def test_captum_integrated_gradients(name):
    attr = pytest.importorskip("captum.attr")
    classifier, x = model(name), images()
    peer = attr.IntegratedGradients(classifier.module)
    steps = 20 if name == "cnn" else 3
    rules = {"gauss_legendre": "gausslegendre", "riemann_left": "riemann_left", "riemann_middle": "riemann_middle"}
    for ours, theirs in rules.items() if name == "cnn" else [("gauss_legendre", "gausslegendre")]:
        expected = peer.attribute(classifier.normalise(x), target=TARGET, n_steps=steps, method=theirs)
        close(run(IntegratedGradients(steps, ours), classifier, x), expected, 1e-7)
    if name != "cnn":
        return
    black = peer.attribute(classifier.normalise(x), classifier.normalise(0 * x), TARGET, n_steps=steps)
    close(run(IntegratedGradients(steps, baseline="black"), classifier, x), black, 1e-7)


def test_captums_trapezoid_is_low():
    """Its weights sum to 1 - 1/n: the integral of a constant is missed by 1/n. Ours sum to 1."""
    attr = pytest.importorskip("captum.attr")
    classifier, x, n = model("cnn"), images(), 10
    peer = attr.IntegratedGradients(classifier.module)
    theirs = peer.attribute(classifier.normalise(x), target=TARGET, n_steps=n, method="riemann_trapezoid")
    close(run(IntegratedGradients(n, "trapezoid"), classifier, x) * (n - 1) / n, theirs, 1e-7)


@pytest.mark.parametrize("kind", ["smoothgrad", "smoothgrad_sq", "vargrad"])
def test_captum_noise_tunnel_with_our_noise(monkeypatch, kind):
    attr = pytest.importorskip("captum.attr")
    classifier, x, n = model("cnn"), images(), 6
    noise = RNG.normal("smoothgrad", (n, *x.shape[1:])).double().flatten(0, 1)
    monkeypatch.setattr(torch, "normal", lambda mean, std: mean + std * noise)
    tunnel = attr.NoiseTunnel(attr.Saliency(classifier.module))
    expected = tunnel.attribute(
        classifier.normalise(x), nt_type=kind, nt_samples=n, stdevs=0.1, target=TARGET, abs=False
    )
    squared = kind == "smoothgrad_sq"
    ours = VarGrad(n, 0.1, relative=False) if kind == "vargrad" else SmoothGrad(n, 0.1, False, squared)
    close(run(ours, classifier, x), expected)


def test_captum_gradient_shap_with_our_draws(monkeypatch):
    """Its draws come from numpy: one reference and one place for each of its copies, image by image."""
    attr = pytest.importorskip("captum.attr")
    classifier, x, n = model("cnn"), images(), 5
    references = toys.images(4, SIZE, seed=9)
    chosen = RNG.integer(4, "expected_gradients/reference", n).flatten().numpy()
    share = RNG.uniform("expected_gradients/place", n).double().flatten().numpy()
    monkeypatch.setattr(np.random, "choice", lambda *args, **kwargs: chosen)
    monkeypatch.setattr(np.random, "uniform", lambda *args, **kwargs: share)
    peer = attr.GradientShap(classifier.module)
    expected = peer.attribute(
        classifier.normalise(x), classifier.normalise(references), n_samples=n, stdevs=0.0, target=TARGET
    )
    close(toys.run(ExpectedGradients(n), classifier, x, TARGET, background=references), expected, 1e-6)


@pytest.mark.parametrize(("window", "stride"), [(8, 8), (12, 5)])
def test_captum_occlusion(window, stride):
    attr = pytest.importorskip("captum.attr")
    classifier, x = model("cnn"), images()
    expected = attr.Occlusion(classifier.module).attribute(
        classifier.normalise(x), (3, window, window), (3, stride, stride), target=TARGET
    )
    close(run(Occlusion(window, stride), classifier, x), expected[:, :1], 1e-6)  # its sums are float32


def test_captum_shapley_values_of_few_parts():
    """All orders of four parts, one image at a time: exact, as ours is."""
    attr = pytest.importorskip("captum.attr")
    classifier, x = model("cnn"), images()
    parts = grid(x, 2).view(B, 1, SIZE, SIZE)
    hidden = classifier.normalise(switched_off(x, parts.flatten(1), "mean", 0.0))
    peer = attr.ShapleyValues(classifier.module)
    expected = torch.cat(
        [
            peer.attribute(
                classifier.normalise(x[b : b + 1]), hidden[b : b + 1], TARGET[b : b + 1], feature_mask=parts[b : b + 1]
            )
            for b in range(B)
        ]
    )
    close(run(KernelSHAP(14, cells=2, output="logit"), classifier, x), expected[:, :1], 1e-6)


@pytest.mark.parametrize("name", ["cnn", "vgg16"])
def test_captum_guided_grad_cam(name):
    """It resizes by the nearest neighbour unless told otherwise."""
    attr = pytest.importorskip("captum.attr")
    classifier, x = model(name), images()
    peer = attr.GuidedGradCam(classifier.module, classifier.layer("cam"))
    expected = peer.attribute(classifier.normalise(x), TARGET, interpolate_mode="bilinear")
    close(run(GuidedGradCAM(), classifier, x), expected)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("relu", [False, True])
def test_captum_grad_cam(name, relu):
    attr = pytest.importorskip("captum.attr")
    classifier, x = model(name), images()
    peer = attr.LayerGradCam(classifier.module, classifier.layer("cam"))
    cam = peer.attribute(classifier.normalise(x), TARGET, relu_attributions=relu)
    close(run(GradCAM(relu=relu), classifier, x), attr.LayerAttribution.interpolate(cam, (SIZE, SIZE), "bilinear"))


def grad_cam_peer(cls, classifier, x, **attributes):
    """The peer's map, which is scaled to [0, 1]."""
    peers = pytest.importorskip("pytorch_grad_cam")
    targets = pytest.importorskip("pytorch_grad_cam.utils.model_targets")
    with getattr(peers, cls)(classifier.module, [classifier.layer("cam")]) as peer:
        vars(peer).update(attributes)
        chosen = [targets.ClassifierOutputTarget(int(c)) for c in TARGET]
        return torch.from_numpy(peer(classifier.normalise(x), chosen)).double().unsqueeze(1)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("method", [LayerCAM(), XGradCAM()])
def test_pytorch_grad_cam_of_other_weights(name, method):
    classifier, x = model(name), images()
    close(minmax(run(method, classifier, x)), grad_cam_peer(type(method).__name__, classifier, x), 1e-5)


@pytest.mark.parametrize("name", NETS)
def test_pytorch_grad_cam_eigen(name):
    """Centred, and of either sign: it takes the one that LAPACK gives, and keeps what is positive of it."""
    classifier, x = model(name), images()
    matrix = layer_output(classifier, x, "cam", stop=False).flatten(2).mT
    plane = first_component(matrix - matrix.mean(1, keepdim=True))
    side = round(plane.shape[1] ** 0.5)
    theirs = grad_cam_peer("EigenCAM", classifier, x)
    for b in range(B):
        both = [minmax(resize((sign * plane[b]).view(1, 1, side, side).relu(), x)) for sign in (1, -1)]
        assert min((some - theirs[b : b + 1]).abs().max() for some in both) < 1e-4


@pytest.mark.parametrize("name", NETS)
def test_pytorch_grad_cam(name):
    classifier, x = model(name), images()
    close(minmax(run(GradCAM(), classifier, x)), grad_cam_peer("GradCAM", classifier, x), 1e-5)


@pytest.mark.parametrize("name", NETS)
def test_pytorch_grad_cam_pp(name):
    """Equal with its eps of 1e-6; by design not without, where gradients are small (their squares near eps)."""
    classifier, x = model(name), images()
    expected = grad_cam_peer("GradCAMPlusPlus", classifier, x)
    close(minmax(run(GradCAMPlusPlus(eps=1e-6), classifier, x)), expected, 1e-5)
    assert (minmax(run(GradCAMPlusPlus(), classifier, x)) - expected).abs().max() > 1e-5


@pytest.mark.parametrize("name", ["cnn", "resnet18"])
def test_pytorch_grad_cam_score_cam(name):
    """Its interpolation aligns corners; its softmax is in float32. Dead channels, which it weighs, add A = 0 times it:
    only the other weights shrink by a common factor, which min-max removes."""
    classifier, x = model(name), images()
    if name == "resnet18":
        classifier = Classifier(classifier.module, MEAN, STD, {"cam": "layer1.1"}).double().eval()
        x = x[:, :, :24, :24]
    expected = grad_cam_peer("ScoreCAM", classifier, x)
    close(minmax(run(ScoreCAM(align_corners=True), classifier, x)), expected, 1e-5)
