"""The real data sets and weights under SALRUN_DATA: what their makers say of them, measured."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
import torch

from salrun.datasets import download
from salrun.datasets.cifar10 import CIFAR10
from salrun.datasets.imagenet import ImageNet
from salrun.datasets.mnist import MNIST
from salrun.datasets.mnist_tasks import MnistHalves, MnistShapes
from salrun.datasets.pairs import Pairs
from salrun.datasets.tinyimagenet import TinyImageNet
from salrun.errors import SalrunError
from salrun.models.pretrained import EfficientNetLite, TorchvisionModel
from salrun.types import PRIMARY

pytestmark = pytest.mark.real_data

ROOT = os.environ.get("SALRUN_DATA", "")
GROUP1 = ["acorn", "espresso", "banana", "ice lolly", "gondola"]
GROUP2 = ["wok", "cauliflower", "space heater", "pay-phone", "baboon"]


def need(path: str) -> None:
    if not (Path(ROOT) / path).exists():
        pytest.skip(f"SALRUN_DATA has no {path}")


def test_mnist_is_mnist() -> None:
    need("MNIST/raw")
    assert "'train': 60000" in download.prove_mnist(ROOT)
    data = MNIST(ROOT)
    assert len(data.ids("train")) == 55_000
    assert torch.bincount(data.labels(data.ids("validation"))).tolist() == [500] * 10
    assert data.labels([f"test-{k:05d}" for k in range(10)]).tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]


def test_cifar10_is_cifar10() -> None:
    try:
        data = CIFAR10(ROOT)
        labels = data.labels([f"test-{k:05d}" for k in range(5)])
    except SalrunError as fault:
        pytest.skip(str(fault))
    assert labels.tolist() == [3, 8, 8, 0, 6]
    assert "'train': 50000" in download.prove_cifar10(ROOT)
    assert torch.bincount(data.labels(data.ids("train"))).tolist() == [4500] * 10
    assert data.digests() == super(CIFAR10, data).digests(), "the digests we state are those of the images"


def test_tinyimagenet_has_500_and_50_of_each_class() -> None:
    need("tiny-imagenet-200")
    assert "images" in download.prove_tinyimagenet(ROOT)
    data = TinyImageNet(ROOT)
    assert {"acorn", "baboon"} <= set(data.classes)
    ids = data.explained()[:50]
    x = data.batch(ids).x
    assert x.shape == (50, 3, 64, 64)
    assert x.std() > 0.1


def test_imagenet_reads_and_numbers_its_classes() -> None:
    need("imagenet/val")
    data = ImageNet(ROOT, n_explained=20)
    assert data.classes[0] == "tench"
    assert len(data.classes) == 1000
    batch = data.batch(data.explained())
    assert batch.x.shape == (20, 3, 224, 224)
    assert batch.y.unique().numel() == 20


def test_tasks_on_real_digits() -> None:
    need("MNIST/raw")
    halves = MnistHalves(ROOT, n_explained=200)
    batch = halves.batch(halves.explained())
    assert torch.bincount(batch.y).tolist() == [100, 100]
    assert (batch.x[:, 0][batch.masks["half"] & (batch.y == 1).view(-1, 1, 1)] == 0).all()
    shapes = MnistShapes(ROOT)
    ids = shapes.ids("test")
    batch = shapes.batch(ids)
    share = torch.bincount(batch.y).double() / len(ids)
    assert (share - 1 / 3).abs().max() < 0.02
    covered = (batch.masks["shape"] & (shapes.digits(ids)[0][:, 0] > 0)).any(2).any(1)[batch.y > 0]
    assert covered.double().mean() < 0.10  # shapes avoid the digit wherever there is room


def test_pairs_of_real_pictures() -> None:
    need("tiny-imagenet-200")
    data = Pairs(ROOT, GROUP1, GROUP2, n_explained=50)
    batch = data.batch(data.explained())
    assert torch.bincount(batch.y).tolist() == [10] * 5
    right = batch.roles["right"] == PRIMARY
    assert 10 < int(right.sum()) < 40
    own, other = data.members(data.ids("train"))
    assert len(set(own)) == 5 * 250
    assert not set(own) & set(other)


def lite(number: Literal[0, 1, 2]) -> EfficientNetLite:
    return EfficientNetLite(number=number, root=ROOT)


def resnet50_v1() -> TorchvisionModel:
    return TorchvisionModel("resnet50", f"{ROOT}/weights/resnet50_v1_imagenet.safetensors", variant="v1")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "at_least"), [*((partial(lite, number), 0.65) for number in (0, 1, 2)), (resnet50_v1, 0.65)]
)
def test_imagenet_weights_classify(model: Callable[[], EfficientNetLite | TorchvisionModel], at_least: float) -> None:
    """A wrong padding, stride or normalisation costs several points; 100 images have a standard error of 4.5."""
    need("imagenet/val")
    try:
        classifier = model().load()
    except SalrunError as fault:
        pytest.skip(str(fault))
    data = ImageNet(ROOT)
    ids = data.ids("test")[::10]
    with torch.inference_mode():
        hits = [classifier(b.x).argmax(1) == b.y for b in (data.batch(ids[k : k + 20]) for k in range(0, len(ids), 20))]
    assert torch.cat(hits).double().mean() >= at_least
