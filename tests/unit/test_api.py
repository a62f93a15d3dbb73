"""The Python API on modules nobody here wrote: the right layers, the module as it was, errors that say what to do."""

from __future__ import annotations

import pytest
import torch
import torchvision
from torch import Tensor, nn

import salrun
from salrun.errors import SalrunError
from salrun.models.classifier import Classifier
from salrun.models.layers import find_layers, layers_of
from salrun.rng import Draws
from salrun.types import Metric, Scene, Score

X = torch.rand(2, 3, 12, 16, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """Two convolutions that lead to the logits, and `extra`: one that is not called, called for nothing, or twice."""

    def __init__(self, extra: str = "idle") -> None:
        super().__init__()
        with torch.random.fork_rng([]):
            torch.manual_seed(1)
            self.first, self.second, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 5)
            self.extra = nn.Conv2d(4, 4, 3, padding=1)
        self.use = extra

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(x).relu()).relu()
        if self.use == "aside":
            self.extra(x)
        elif self.use == "twice":
            x = self.extra(self.extra(x).relu()).relu()
        return self.head(x.mean((2, 3)))


@pytest.mark.parametrize("extra", ["idle", "aside", "twice"])
def test_a_layer_without_maps_is_named_and_the_gradient_does_not_mind(extra: str) -> None:
    net = Net(extra)
    x = X.clone().requires_grad_(True)
    expected = torch.autograd.grad(net(x)[:, 3].sum(), x)[0]
    torch.testing.assert_close(salrun.explain(net, X, 3, "gradient"), expected)
    for method in ("grad_cam", "grad_cam_pp", *(["score_cam"] if extra != "aside" else [])):  # it has no gradients
        with pytest.raises(SalrunError, match=r"layer 'extra' of model 'Net' has no maps .* give layer="):
            salrun.explain(net, X, 3, method)
    assert salrun.explain(net, X, 3, "grad_cam", layer="second").shape == (2, 1, 12, 16)


def test_a_model_that_does_not_look_is_named() -> None:
    class Blind(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.zeros(len(x), 2, requires_grad=True)

    with pytest.raises(SalrunError, match="'Blind' do not depend on the image"):
        salrun.explain(Blind(), X, 0)


@pytest.mark.parametrize(
    "name",
    "alexnet vgg11 vgg13_bn vgg16 vgg19_bn densenet121 googlenet inception_v3 squeezenet1_1 shufflenet_v2_x0_5 "
    "mobilenet_v2 mobilenet_v3_small mobilenet_v3_large mnasnet0_5 efficientnet_b0 efficientnet_v2_s regnet_y_400mf "
    "convnext_tiny resnet18 swin_t swin_v2_t vit_b_32 vit_l_32".split(),
)
def test_torchvision_modules_have_the_layers_of_the_command_line(name: str) -> None:
    extra = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    with torch.device("cpu" if name.startswith("regnet") else "meta"):
        module = torchvision.models.get_model(name, weights=None, **extra)
    assert find_layers(module) == layers_of(name)


@pytest.mark.parametrize(
    ("images", "targets", "words"),
    [
        (X, [0], "2 images need 2 targets"),
        (X, [0, 5], r"targets must be classes 0 to 4 of the model, got \[0, 5\]"),
        (X, [-1, 0], "targets must be classes 0 to 4"),
        (X, 7, "targets must be classes 0 to 4"),
        (X, [0.0, 1.5], "targets are numbers of classes"),
        (X[0], [0], r"images must be \(B, C, H, W\)"),
        ((255 * X).byte(), [0, 1], "images must be floats, got torch.uint8"),
    ],
)
def test_what_does_not_fit_is_said_in_words(images: Tensor, targets: object, words: str) -> None:
    for method in ("gradient", "lrp_epsilon", "rise"):
        options = {"n_masks": 2} if method == "rise" else {}
        with pytest.raises(SalrunError, match=words):
            salrun.explain(Net(), images, targets, method, **options)  # type: ignore[arg-type]
    if images.dim() == 4:
        with pytest.raises(SalrunError, match=words):
            salrun.evaluate(Net(), images, targets, torch.rand(2, 1, 12, 16), "deletion")  # type: ignore[arg-type]


def test_what_is_no_score_is_refused() -> None:
    class Bare(Metric):
        def __call__(self, plane: Tensor, scene: Scene) -> Score:
            return plane.mean((1, 2, 3))  # type: ignore[return-value]

    class Single(Metric):
        def __call__(self, plane: Tensor, scene: Scene) -> Score:
            return Score(plane.mean().double(), torch.zeros((), dtype=torch.uint8))

    for metric, got in ((Bare(), "a Tensor"), (Single(), r"values \(\)")):
        with pytest.raises(SalrunError, match=f"must return a Score, .* each of 2 maps, got {got}"):
            salrun.evaluate(Net(), X, 0, X, metric)


def test_faults_of_the_model_stay_its_own() -> None:
    class Picky(Net):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("not today")

    with pytest.raises(RuntimeError, match="not today"):
        salrun.explain(Picky(), X, 0)


@pytest.mark.parametrize("method", ["gradient", "integrated_gradients", "grad_cam", "lrp_epsilon", "iba"])
def test_works_in_inference_mode(method: str) -> None:
    net, background = Net("idle"), torch.rand(4, 3, 12, 16, generator=torch.Generator().manual_seed(2))
    given = {"layer": "second", "background": background}
    expected = salrun.explain(net, X, 3, method, **given)
    with torch.inference_mode():
        maps = salrun.explain(net, X * 1, 3, method, **given)
        sensitivity = salrun.evaluate(net, X * 1, 3, maps, "max_sensitivity", method=method, n_draws=1, **given)
    torch.testing.assert_close(maps, expected)
    assert sensitivity.values.shape == (2,)


def test_a_classifier_keeps_its_layers() -> None:
    model = Classifier(Net(), layers={"cam": "first"})
    salrun.explain(model, X, 0, "grad_cam", layer="second")
    assert model.layers == {"cam": "first"}


@pytest.mark.parametrize("method", ["grad_cam", "grad_cam_pp", "score_cam", "iba"])
def test_a_patch_embedding_is_no_map_of_features(method):
    """The last convolution of a network of tokens is its way in: refused, with the layers to choose from."""
    tokens = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.Flatten(2), nn.LayerNorm(4), nn.Linear(4, 4), nn.LayerNorm(4))
    assert find_layers(tokens) == {} and find_layers(tokens[:4])["cam"] == "0"
    module, x = nn.Sequential(tokens, nn.Flatten(), nn.Linear(32, 2)), torch.zeros(1, 3, 8, 8)
    with pytest.raises(SalrunError, match=r"no (CAM|IBA) layer that we can name: .*give layer=<one of 0, 1, 2, 0.0"):
        salrun.explain(module, x, 0, method=method, background=x)


def test_a_metric_may_explain_another_class_and_only_a_run_explains_by_other_models() -> None:
    net, maps = Net(), salrun.explain(Net(), X, 3, "gradient")
    found = salrun.evaluate(net, X, 3, maps, "random_logit", method="gradient", measures=["cosine"], view="sum")
    off = Draws.of(0, ["0", "1"]).integer(4, "random_logit", 1).squeeze(1)
    other = salrun.explain(net, X, off + (off >= 3), "gradient")
    a, b = (m.double().sum(1).abs().flatten(1) for m in (maps, other))
    torch.testing.assert_close(found.variants["cosine"].values, nn.functional.cosine_similarity(a, b))
    with pytest.raises(SalrunError, match="SmoothMPRT explains other images by other models: that takes a run"):
        salrun.evaluate(net, X, 3, maps, "smooth_mprt", method="gradient", other_maps={"random": maps})
