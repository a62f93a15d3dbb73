"""The methods of the backward engine pass the conformance suite on a small vision transformer, too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from salrun.conformance import NotApplicable
from salrun.conformance.methods import CHECKS, CLASSES, SHAPE, Case, folded, half_precision
from salrun.models.classifier import Classifier
from salrun.models.vit import VisionTransformer
from salrun.types import Method
from tests.conformance.test_methods import build

NAMES = (
    *("input_x_gradient", "integrated_gradients", "lrp_z", "lrp_epsilon", "lrp_a_flat", "deeplift_rescale"),
    *("deeplift_reveal_cancel", "deep_shap", "attn_lrp"),
)
# There are no batch norms to fold, and bfloat16 is too coarse for random weights of this size.
MATRIX = [(name, check) for name in NAMES for check in CHECKS if check not in (folded, half_precision)]


class Net(nn.Module):
    """What the checks of a model's state look for, around the transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.vit = VisionTransformer(SHAPE[1], 4, 8, 2, 2, 12, CLASSES)
        self.first, self.head, self.drop = self.vit.patches, self.vit.output, nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.vit(x))


def case() -> Case:
    found = Case()
    net, generator = Net(), torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_(0, 0.4, generator=generator)
    found.model = Classifier(net, (0.45, 0.5, 0.4), (0.25, 0.2, 0.3), name="vit").double().eval()
    return found


@pytest.mark.parametrize(("name", "check"), MATRIX, ids=[f"{name}-{check.__name__}" for name, check in MATRIX])
def test_method(name: str, check: Callable[[Method, Case], None]) -> None:
    try:
        check(build(name), case())
    except NotApplicable as reason:
        pytest.skip(str(reason))


def test_the_matrix_is_whole() -> None:
    assert len(set(MATRIX)) == len(NAMES) * (len(CHECKS) - 2) == 144
