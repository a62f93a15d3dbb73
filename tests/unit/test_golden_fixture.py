"""Our methods, built from SMERF's configs, against the libraries that SMERF ran: every row, to the printed digits."""

from __future__ import annotations

import pytest
import torch

from salrun.config.parts import method_part
from salrun.rng import Draws
from salrun.types import Fitted, Method
from tests import fixtures_golden as golden


def build(name: str, **options: object) -> Method:
    """The method as conf/methods/smerf/<name>.yaml sets it on top of conf/methods/<name>.yaml."""
    return method_part(f"smerf/{name}", options).method


def explain(method: Method, target: int = 0) -> torch.Tensor:
    fitted = Fitted(background=golden.background())
    return method(golden.network(), golden.image(), torch.tensor([target]), Draws.of(0, ["golden"]), fitted)


def check(found: float, printed: str) -> None:
    assert found == pytest.approx(float(printed), abs=golden.tolerance(printed), rel=0), printed


def test_the_network_is_the_one_described() -> None:
    outputs = golden.network()(golden.image())[0]
    at_zero = golden.network()(torch.zeros_like(golden.image()))[0]
    assert outputs.tolist() == pytest.approx([float(printed) for printed in golden.OUTPUTS], rel=2e-5, abs=0)
    check((outputs - at_zero)[0].item(), golden.GAIN)


def test_every_row_is_here() -> None:
    assert len(golden.ROWS) == 15
    assert all(len(row.split()) == 7 for row in golden.ROWS.values())


@pytest.mark.parametrize("row", golden.ROWS)
def test_row(row: str) -> None:
    name, _, variant = row.partition("/")
    options = {"path": variant} if variant == "inn108" else {}
    raw = explain(build(name, **options), target=int(variant) if variant.isdigit() else 0)
    for found, printed in zip(golden.summary(raw), golden.ROWS[row].split(), strict=True):
        check(found, printed)


def test_grad_cam() -> None:
    from salrun.methods.cam import GradCAM

    model, x = golden.network(), golden.image()
    done = model.pass_once(x, torch.tensor([0]), "cam")
    weights = done.activation_gradient.mean((2, 3))[0]
    for found, printed in zip(weights.tolist(), golden.CAM_WEIGHTS, strict=True):
        check(found, printed)
    cam = (weights.view(1, -1, 1, 1) * done.activation).sum(1)[0]
    for found, printed in zip(cam.flatten().tolist(), sum(golden.CAM, ()), strict=True):
        check(found, printed)
    resized = torch.nn.functional.interpolate(cam[None, None], size=(9, 9), mode="bilinear", align_corners=False)
    for order in ("relu_then_resize", "resize_then_relu"):
        torch.testing.assert_close(explain(GradCAM(order=order)), resized, rtol=1e-12, atol=0)


def test_lrp_z_is_input_times_gradient() -> None:
    difference = explain(build("lrp_z")) - explain(build("input_x_gradient"))
    assert difference.abs().max() < 1e-12


def test_deeplift_sums_to_the_gain() -> None:
    model, x = golden.network(), golden.image()
    gain = (model(x) - model(torch.zeros_like(x)))[0, 0].item()
    for name in ("deeplift_rescale", "deeplift_reveal_cancel"):
        assert explain(build(name)).sum().item() == pytest.approx(gain, abs=1e-9)
