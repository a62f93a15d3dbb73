"""The manners of the Python API: what is plain is accepted and gives what the tensor would; else one sentence."""

from __future__ import annotations

import copy
import io
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import salrun
from salrun.errors import SalrunError
from salrun.report.pictures import STOPS, coloured
from tests.unit.test_api import Net, X

TARGETS = [0, 3]
ARRAY = X.numpy()


class Wrapped(nn.Module):
    """A network whose output holds the logits somewhere."""

    def __init__(self, wrap) -> None:
        super().__init__()
        self.net, self.wrap = Net(), wrap

    def forward(self, x: Tensor):
        return self.wrap(self.net(x))


def reference(method: str = "gradient") -> Tensor:
    return salrun.explain(Net(), X, TARGETS, method, **({"layer": "second"} if method == "grad_cam" else {}))


@pytest.mark.parametrize(
    "images",
    [ARRAY, ARRAY.astype(np.float64), X.double(), list(X), tuple(ARRAY), ARRAY.transpose(0, 2, 3, 1), ARRAY[..., ::1]],
    ids=["array", "float64 array", "float64", "list", "arrays", "channels last", "view"],
)
def test_images_in_any_plain_form_give_the_same_map(images) -> None:
    torch.testing.assert_close(salrun.explain(Net(), images, np.array(TARGETS)), reference(), check_dtype=False)


def test_a_grey_image_is_shown_to_a_colour_model_in_three_channels() -> None:
    grey = X[:, :1]
    expected = salrun.explain(Net(), grey.expand(-1, 3, -1, -1), TARGETS)
    for given in (grey, grey.permute(0, 2, 3, 1)):
        torch.testing.assert_close(salrun.explain(Net(), given, TARGETS), expected)
    told = {"mean": [0.5] * 3, "std": [0.2] * 3}
    assert salrun.explain(Net(), grey, TARGETS, **told).shape == (2, 3, 12, 16)


def test_one_target_of_numpy_is_that_of_every_image() -> None:
    torch.testing.assert_close(salrun.explain(Net(), X, np.int64(3)), salrun.explain(Net(), X, 3))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda logits: {"logits": logits, "loss": logits.mean(), "hidden": logits},
        lambda logits: {"scores": logits, "loss": logits.mean()},
        lambda logits: (logits, logits[:, :, None]),
        lambda logits: SimpleNamespace(logits=logits),
    ],
    ids=["logits", "only", "tuple", "attribute"],
)
@pytest.mark.parametrize("method", ["gradient", "grad_cam", "lrp_epsilon"])
def test_logits_are_found_in_what_the_model_gives(wrap, method: str) -> None:
    model = Wrapped(wrap)
    given = {"layer": "net.second"} if method == "grad_cam" else {}
    torch.testing.assert_close(salrun.explain(model, X, TARGETS, method, **given), reference(method))
    assert not model._forward_hooks
    scores = salrun.evaluate(model, X, TARGETS, X, "deletion")
    torch.testing.assert_close(scores.values, salrun.evaluate(Net(), X, TARGETS, X, "deletion").values)


@pytest.mark.parametrize(
    ("wrap", "words"),
    [
        (lambda logits: (logits, logits), r"got \(a tensor \(\d, 5\), a tensor \(\d, 5\)\): wrap it"),
        (lambda logits: logits[:, 0], r"must give logits \(B, classes\), got a tensor \(\d,\)"),
        (lambda logits: {"loss": logits.mean()}, r"got \{loss: a tensor \(\)\}"),
    ],
)
def test_an_output_without_plain_logits_is_told(wrap, words: str) -> None:
    with pytest.raises(SalrunError, match=words):
        salrun.explain(Wrapped(wrap), X, TARGETS)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_model_in_half_precision_is_computed_in_full_and_left_as_found(dtype: torch.dtype) -> None:
    model = Net().to(dtype)
    maps = salrun.explain(model, X.to(dtype), TARGETS)
    assert maps.dtype == torch.float32
    torch.testing.assert_close(maps, reference(), atol=2e-3, rtol=2e-2)
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert salrun.evaluate(model, X, TARGETS, maps.to(dtype), "deletion").flags == ["ok", "ok"]


def test_maps_in_any_plain_form_give_the_same_score() -> None:
    expected = salrun.evaluate(Net(), X, TARGETS, X, "insertion").values
    for maps in (ARRAY, ARRAY.transpose(0, 2, 3, 1), list(X), X.double()):
        torch.testing.assert_close(salrun.evaluate(Net(), ARRAY, TARGETS, maps, "insertion").values, expected)
    plane = salrun.evaluate(Net(), X, TARGETS, X[:, :1], "insertion").values
    torch.testing.assert_close(salrun.evaluate(Net(), X, TARGETS, ARRAY[:, 0], "insertion").values, plane)


def test_masks_and_backgrounds_may_be_arrays() -> None:
    mask = np.zeros((2, 12, 16), dtype=bool)
    mask[:, :6] = True
    given = {"masks": {"top": mask}, "roles": {"top": np.array([1, 1])}}
    scores = salrun.evaluate(Net(), ARRAY, TARGETS, ARRAY, "pafl", **given)
    assert scores.values.shape == (2,)
    with_arrays = salrun.explain(Net(), ARRAY, TARGETS, "deep_shap", background=ARRAY)
    torch.testing.assert_close(with_arrays, salrun.explain(Net(), X, TARGETS, "deep_shap", background=X))


@pytest.mark.parametrize(
    ("images", "given", "words"),
    [
        (255 * X, {"mean": [0.5] * 3, "std": [0.2] * 3}, r"images reach from .* to 25\d, .*divide by 255"),
        (X - 0.5, {"std": [0.2] * 3}, "images reach from -0.5"),
        (X[:0], {}, r"one image at least, got \(0, 3, 12, 16\)"),
        (X[:, :2], {}, r"images have 2 channels in \(2, 2, 12, 16\), model 'Net' takes 3"),
        ([X[0], X[1, :, 1:]], {}, "images must be a tensor or a numeric array, got list"),
        ("pictures", {}, "images must be a tensor or a numeric array, got str"),
        (X, {"method": "smoothgrad", "sigma": float("nan")}, "sigma of .* must be .*got nan"),
        (X, {"method": "smoothgrad", "sigma": float("inf")}, "sigma of .* must be .*got inf"),
        (X, {"method": "lrp_a_flat", "alpha": float("nan")}, "alpha of .* must be a finite number, got nan"),
    ],
)
def test_what_is_not_plain_is_one_sentence(images, given, words: str) -> None:
    with pytest.raises(SalrunError, match=words):
        salrun.explain(Net(), images, 0, **given)


def test_images_without_mean_and_std_may_have_any_range() -> None:
    assert salrun.explain(Net(), 255 * X - 100, 0).shape == X.shape


def test_scores_as_a_frame_and_in_a_notebook() -> None:
    scores = salrun.evaluate(Net(), X, TARGETS, X * float("nan"), "insertion")
    frame = scores.frame()
    assert list(frame.columns) == ["image", "value", "flag"]
    assert frame["flag"].tolist() == ["nan_map", "nan_map"]
    assert repr(scores) == "Scores(mean nan over 2 images, 2 nan_map)"
    several = salrun.evaluate(Net(), X, TARGETS, X, "zhang/insertion")
    table = several.frame()
    assert set(table["variant"]) == set(several.variants or ())
    assert len(table) == 2 * len(several.variants or ())
    assert several._repr_html_().count("<tr") == len(table) + 1


def test_maps_are_tensors_that_a_notebook_draws() -> None:
    maps = reference()
    assert maps._repr_png_().startswith(b"\x89PNG")
    assert type(maps * 2) is type(maps[0]) is Tensor
    file = io.BytesIO()
    torch.save(maps, file)
    file.seek(0)
    for other in (torch.load(file, weights_only=True), copy.deepcopy(maps)):
        assert type(other) is Tensor and torch.equal(other, maps)


def test_a_grid_has_a_row_per_image_and_a_column_per_map() -> None:
    drawn = salrun.show(X, {"gradient": X - 0.5, "plane": ARRAY[:, 0]})
    assert isinstance(drawn, Figure)
    assert len(drawn.axes) == 2 * 3
    assert [ax.get_title() for ax in drawn.axes[:3]] == ["image", "gradient", "plane"]
    pixels = drawn.axes[1].images[0].get_array()
    picture = np.rint(255 * ARRAY[0].transpose(1, 2, 0)).astype(np.uint8)
    np.testing.assert_array_equal(pixels, coloured((ARRAY[0] - 0.5).astype(np.float64).sum(0), True, picture))
    alone = salrun.show(None, X, mode="map", signed=False)
    np.testing.assert_array_equal(alone.axes[1].images[0].get_array(), coloured(np.abs(ARRAY[1]).sum(0), False))
    for images, maps in ((X[:1], X), (X, X[:, :, 1:]), (X[:, :2], X)):
        with pytest.raises(SalrunError, match="equally many|1 or 3 channels"):
            salrun.show(images, maps)


def test_the_colours_are_those_of_the_report() -> None:
    script = (Path(salrun.__file__).parent / "report" / "report.js").read_text()
    for signed, name in ((True, "signed"), (False, "unsigned")):
        (line,) = re.findall(rf"^ +{name}: ramp\((.*)\),$", script, flags=re.MULTILINE)
        assert tuple(re.findall(r'"(\w+)"', line)) == STOPS[signed]
    signed = coloured(np.array([[-2.0, 0.0, 2.0, np.nan]]), True)[0]
    assert signed[0].tolist() == [0x0B, 0x3C, 0x7D] and signed[2].tolist() == [0x7F, 0x0D, 0x22]
    assert abs(int(signed[1, 0]) - 0xF5) <= 1 and len(set(signed[3].tolist())) == 1
    assert coloured(np.array([[0.0, -1.0]]), False)[0].tolist() == [[0x0A, 0x08, 0x22], [0xFC, 0xFB, 0xA6]]
