"""A network with in-place ReLUs is explained as the same network without."""

import pytest
import torch
from torch import Tensor, nn

from salrun.methods.lrp import LRP
from salrun.models.classifier import Classifier
from salrun.rng import Draws
from salrun.types import Fitted


class Net(nn.Module):
    """A residual block; the input of the first ReLU is read once more before it is overwritten, or not."""

    def __init__(self, in_place: bool, read_before: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.norm, self.b = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, padding=1)
        self.head, self.relu, self.read_before = nn.Linear(4, 3), nn.ReLU(in_place), read_before
        with torch.no_grad():
            for p in (self.norm.running_mean, self.norm.weight, self.norm.bias):
                p.uniform_(0.5, 1.5)

    def forward(self, x: Tensor) -> Tensor:
        z = self.norm(self.a(x))
        other = self.b(z) if self.read_before else 0.0
        y = self.relu(z)
        return self.head(self.relu(self.b(y) + y + other).mean((2, 3)))


@pytest.mark.parametrize("read_before", [False, True])
@pytest.mark.parametrize(
    "method",
    [
        LRP(),
        LRP(dense="z", conv="z"),
        LRP(start="one"),
        LRP(conv="alpha_beta", alpha=2.0, beta=1.0, first="flat"),
        LRP(batch_norm="library"),
    ],
)
def test_in_place_changes_nothing(method: LRP, read_before: bool) -> None:
    x, target = torch.rand(2, 3, 6, 6, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 2])

    def explained(in_place: bool) -> Tensor:
        net = Net(in_place, read_before).double().eval()
        model = Classifier(net, (0.5,) * 3, (0.25,) * 3, {}, "net").double()
        return method(model, x.double(), target, Draws.of(0, ["a", "b"]), Fitted())

    torch.testing.assert_close(explained(True), explained(False), rtol=1e-12, atol=1e-14)
