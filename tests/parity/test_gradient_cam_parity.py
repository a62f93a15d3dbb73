"""Gradient and CAM methods against captum, pytorch-grad-cam and iNNvestigate's values, in float64.

captum agrees to 1e-10 of the largest value, its integrated gradients to 1e-7 (their weights are float32).
pytorch-grad-cam scales its maps in float32 (OpenCV): 1e-5.
"""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torchvision.models import resnet18
from torchvision.models.vgg import cfgs, make_layers

from salrun.methods.cam import GradCAM, GradCAMPlusPlus, ScoreCAM
from salrun.methods.gradient import Gradient, InputXGradient, IntegratedGradients, SmoothGrad
from salrun.models.classifier import Classifier
from salrun.rng import Draws
from salrun.types import Fitted

B, SIZE, CLASSES = 2, 48, 7
TARGET = torch.tensor([5, 2])
RNG = Draws.of(0, ["a", "b"])
pytestmark = pytest.mark.filterwarnings("ignore:Input Tensor 0 did not already require gradients")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NETS = ("cnn", "resnet18", "vgg16")
_made = {}


def cnn():
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 5, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 12, 3), nn.ReLU(inplace=True)),
        *(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(192, 20), nn.ReLU(), nn.Linear(20, CLASSES)),
    )


def vgg16():
    """VGG16 with a small head: its own has 120 million weights."""
    return nn.Sequential(make_layers(cfgs["D"]), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES))


def model(name):
    if name not in _made:
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            net = {"cnn": cnn, "resnet18": lambda: resnet18(num_classes=CLASSES), "vgg16": vgg16}[name]()
            for m in net.modules():
                if isinstance(m, nn.Conv2d):
                    nn.init.kaiming_normal_(m.weight)
        layer = {"cnn": "4", "resnet18": "layer3.1", "vgg16": "0.29"}[name]
        _made[name] = Classifier(net, MEAN, STD, {"cam": layer}, name).double().eval()
    _made[name].forget()
    return _made[name]


def images():
    return torch.rand(B, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def run(method, classifier, x):
    return method(classifier, x, TARGET, RNG, Fitted())


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


@pytest.mark.parametrize(("squared", "kind"), [(False, "smoothgrad"), (True, "smoothgrad_sq")])
def test_captum_noise_tunnel_with_our_noise(monkeypatch, squared, kind):
    attr = pytest.importorskip("captum.attr")
    classifier, x, n = model("cnn"), images(), 6
    noise = RNG.normal("smoothgrad", (n, *x.shape[1:])).double().flatten(0, 1)
    monkeypatch.setattr(torch, "normal", lambda mean, std: mean + std * noise)
    tunnel = attr.NoiseTunnel(attr.Saliency(classifier.module))
    expected = tunnel.attribute(
        classifier.normalise(x), nt_type=kind, nt_samples=n, stdevs=0.1, target=TARGET, abs=False
    )
    close(run(SmoothGrad(n, 0.1, relative=False, squared=squared), classifier, x), expected)


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


# iNNvestigate 1.0.8's values on a net defined by formulas; printed digits are float32.


def sequence(shape, scale, rate, offset=0.0):
    k = np.arange(1, np.prod(shape) + 1)
    return torch.from_numpy((scale * np.sin(rate * k) + offset).reshape(shape))


class ChannelsLast(nn.Module):
    def forward(self, x):
        return x.permute(0, 2, 3, 1).flatten(1)


def golden():
    net = nn.Sequential(
        *(nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.ReLU(), ChannelsLast()),
        *(nn.Linear(20, 6), nn.ReLU(), nn.Linear(6, 2)),
    ).double()
    kernels = {0: (0.4, 1.3, 0.0), 2: (0.3, 0.9, 0.05), 5: (0.5, 1.1, 0.0), 7: (0.6, 1.9, 0.5)}
    biases = {0: 2.1, 2: 1.7, 5: 0.8, 7: 2.9}
    with torch.no_grad():
        for i, numbers in kernels.items():
            weight = net[i].weight
            if weight.ndim == 4:
                weight.copy_(sequence([weight.shape[a] for a in (2, 3, 1, 0)], *numbers).permute(3, 2, 0, 1))
            else:
                weight.copy_(sequence(weight.shape[::-1], *numbers).T)
            net[i].bias.copy_(sequence(net[i].bias.shape, 0.1, biases[i]))
    x = sequence((9, 9, 3), 1.0, 0.37).abs().permute(2, 0, 1)[None].contiguous()
    x[:, :, :3] = 0
    return Classifier(net, layers={"cam": "3"}).double().eval(), x


GOLDEN = {
    "gradient": (Gradient(), (-0.041636, 11.194, 0.17482, 0.15493, -0.029644, -0.03045, 0.034634)),
    "input_x_gradient": (InputXGradient(), (-0.0046591, 5.2287, 0.1239, 0.1419, -0.029616, 0.0, 0.058351)),
    "ig_inn108": (
        IntegratedGradients(64, "riemann_left", "black", "inn108"),
        (0.042217, 16.308, -0.33863, -0.45468, 0.012598, 0.0, -0.14333),
    ),
    "ig_straight": (
        IntegratedGradients(64, "riemann_left", "black"),
        (-0.065417, 13.738, 0.42898, 0.11635, -0.48579, 0.0, 0.19176),
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_innvestigate_values(name):
    method, expected = GOLDEN[name]
    classifier, x = golden()
    with torch.no_grad():
        np.testing.assert_allclose(classifier(x)[0], (0.09936, 0.042835), rtol=2e-5)
    raw = method(classifier, x, torch.tensor([0]), RNG[:1], Fitted())[0]
    found = [raw.sum(), raw.abs().sum(), *raw[:, 4, 4], raw[:, 2, 4].sum(), raw[:, 7, 5].sum()]
    for value, printed in zip(found, expected, strict=True):
        unit = 10.0 ** (np.floor(np.log10(abs(printed))) - 4) if printed else 1e-12  # of the fifth digit
        assert abs(float(value) - printed) <= unit / 2 + 1e-4 * abs(printed)


def test_grad_cam_values():
    classifier, x = golden()
    raw = classifier.pass_once(x, torch.tensor([0]), "cam")
    alpha = raw.activation_gradient.mean((2, 3))[0]
    np.testing.assert_allclose(alpha, (6.7e-5, 3.72e-4, 6.39e-4, 8.44e-4, 9.64e-4), rtol=0.01)
    cam = torch.tensor([[1.401e-3, 1.063e-3], [7.49e-4, 1.199e-3]], dtype=torch.float64)
    expected = F.interpolate(cam[None, None], size=(9, 9), mode="bilinear", align_corners=False)
    for order in ("relu_then_resize", "resize_then_relu"):
        found = GradCAM(order=order)(classifier, x, torch.tensor([0]), RNG[:1], Fitted())
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=0)
