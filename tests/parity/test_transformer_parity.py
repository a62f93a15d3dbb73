"""Methods of transformers against torch-cam, pytorch-grad-cam and pnpxai, in float64."""

import pytest
import torch
from torch import nn
from torchvision.models import VisionTransformer

import salrun
from tests.toys import images, seeded

B, CLASSES = 3, 5
TARGET = [4, 0, 2]


def network(layers=3):
    def build():
        net = VisionTransformer(16, 4, layers, 2, 12, 16, num_classes=CLASSES)
        for p in net.parameters():
            nn.init.normal_(p, std=0.4)
        return net

    return seeded(build).double()


def minmax(maps):
    low, high = maps.amin((1, 2, 3), keepdim=True), maps.amax((1, 2, 3), keepdim=True)
    return (maps - low) / (high - low)


@pytest.mark.parametrize("layers", [None, 2])
def test_torch_cam_legrad(layers):
    methods = pytest.importorskip("torchcam.methods")
    net, x = network(), images(B, 16)
    blocks = list(net.encoder.layers)[-(layers or 3) :]
    with methods.LeGrad(net, blocks) as peer:
        logits = net(x.clone().requires_grad_(True))
        (expected,) = peer(TARGET, logits, normalized=False)
    found = salrun.explain(net, x, TARGET, "legrad", layers=layers)
    up = nn.functional.interpolate(expected[:, None], size=16, mode="bilinear")
    torch.testing.assert_close(found.as_subclass(torch.Tensor), up.detach(), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(
    ("ours", "theirs", "options"),
    [
        ("grad_cam", "GradCAM", {}),
        ("grad_cam_pp", "GradCAMPlusPlus", {"eps": 1e-6}),
        ("layer_cam", "LayerCAM", {}),
        ("score_cam", "ScoreCAM", {"align_corners": True}),
    ],
)
def test_pytorch_grad_cam_of_tokens(ours, theirs, options):
    """Told by hand how tokens are reshaped, and which layer to read."""
    package = pytest.importorskip("pytorch_grad_cam")
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    net, x = network(), images(B, 16)
    layer = net.encoder.layers[-1].ln_1
    with getattr(package, theirs)(net, [layer], reshape_transform=lambda t: t[:, 1:].mT.unflatten(2, (4, 4))) as peer:
        expected = torch.from_numpy(peer(x, [ClassifierOutputTarget(c) for c in TARGET]))[:, None].double()
    found = minmax(salrun.explain(net, x, TARGET, ours, **options).as_subclass(torch.Tensor))
    for b in range(B):
        if found[b].isfinite().all():  # a CAM may be nowhere positive
            torch.testing.assert_close(found[b], expected[b], rtol=0, atol=1e-4)
    assert found.isfinite().any()


@pytest.mark.parametrize("fusion", ["mean", "min", "max"])
def test_pnpxai_rollout_of_one_layer(fusion):
    """Of one: it multiplies several in the order in which they run, where the last must begin (docs/peers.md)."""
    explainers = pytest.importorskip("pnpxai.explainers")
    net, x = network(1).float(), images(B, 16, dtype=torch.float32)
    peer = explainers.AttentionRollout(net, head_fusion_method=fusion, discard_ratio=0.0)
    found = salrun.explain(net, x, TARGET, "attention_rollout", head_fusion=fusion)
    expected = peer.attribute(x, torch.tensor(TARGET)).detach()
    torch.testing.assert_close(found.as_subclass(torch.Tensor), expected, rtol=1e-5, atol=1e-7)
