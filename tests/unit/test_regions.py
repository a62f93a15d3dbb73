"""Masks beside one's own pictures and COCO's boxes: they move as the pictures do, and mistakes are named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from salrun.datasets.folder import Coco, Folder
from salrun.errors import SalrunError
from salrun.types import NEUTRAL, PRIMARY, SECONDARY

SIZE = {"size": 8, "short_side": 8}


def picture(path: Path, box: tuple[int, int, int, int] | None = None, size: tuple[int, int] = (16, 16)) -> Path:
    """White in the box (left, top, right, bottom), black elsewhere."""
    array = np.zeros((size[1], size[0]), np.uint8)
    if box is not None:
        array[box[1] : box[3], box[0] : box[2]] = 255
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)
    return path


def region(box: tuple[int, int, int, int]) -> torch.Tensor:
    mask = torch.zeros(8, 8, dtype=torch.bool)
    mask[box[1] : box[3], box[0] : box[2]] = True
    return mask


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two classes; what is white in a picture is what its mask marks."""
    for name, box in {"cat/1.png": (2, 4, 8, 10), "cat/2.png": (0, 0, 4, 4), "dog/1.jpg": (8, 8, 16, 16)}.items():
        picture(tmp_path / "root" / name, box)
    return tmp_path / "root"


def test_masks_lie_on_what_they_mark(root: Path) -> None:
    picture(root / "masks" / "cat" / "1.png", (2, 4, 8, 10))
    picture(root / "masks" / "dog" / "1.png", (8, 8, 16, 16))
    data = Folder(str(root), **SIZE)
    assert data.classes == ("cat", "dog") and data.mask_names == ("primary",)
    batch = data.batch(["cat/1.png", "cat/2.png", "dog/1.jpg"])
    assert torch.equal(batch.masks["primary"][0], region((1, 2, 4, 5)))
    assert torch.equal(batch.masks["primary"][0], batch.x[0, 0] > 0.5)
    assert not batch.masks["primary"][1].any()
    assert torch.equal(batch.masks["primary"][2], region((4, 4, 8, 8)))
    assert batch.roles["primary"].tolist() == [PRIMARY, NEUTRAL, PRIMARY]


def test_masks_are_cropped_as_their_pictures_are(tmp_path: Path) -> None:
    """A wide picture loses its sides; what is marked there is gone, and so is its role."""
    for name, box in {"middle": (14, 4, 20, 10), "side": (0, 0, 6, 16)}.items():
        picture(tmp_path / "a" / f"{name}.png", box, (32, 16))
        picture(tmp_path / "masks" / "a" / f"{name}.png", box, (32, 16))
    batch = Folder(str(tmp_path), **SIZE).batch(["a/middle.png", "a/side.png"])
    assert torch.equal(batch.masks["primary"], batch.x[:, 0] > 0.5)
    assert batch.roles["primary"].tolist() == [PRIMARY, NEUTRAL]
    squashed = Folder(str(tmp_path), **SIZE, fit="squash").batch(["a/side.png"])
    assert squashed.roles["primary"].tolist() == [PRIMARY]


def test_one_mask_per_role(root: Path, tmp_path: Path) -> None:
    picture(tmp_path / "marks" / "primary" / "cat" / "1.png", (2, 4, 8, 10))
    picture(tmp_path / "marks" / "secondary" / "cat" / "1.png", (0, 0, 2, 2))
    data = Folder(str(root), masks=str(tmp_path / "marks"), **SIZE)
    batch = data.batch(["cat/1.png"])
    assert data.mask_names == ("primary", "secondary")
    assert {name: role.tolist() for name, role in batch.roles.items()} == {
        **{"primary": [PRIMARY], "secondary": [SECONDARY]}
    }
    assert torch.equal(batch.masks["secondary"][0], region((0, 0, 1, 1)))


def test_palettes_and_colours_mark_what_is_not_zero(root: Path) -> None:
    indices = np.zeros((16, 16), np.uint8)
    indices[:8] = 3
    paletted = Image.fromarray(indices).convert("P")
    (root / "masks" / "cat").mkdir(parents=True)
    paletted.save(root / "masks" / "cat" / "1.png")
    Image.fromarray(np.stack([indices * 0, indices, indices * 0], 2)).save(root / "masks" / "cat" / "2.png")
    batch = Folder(str(root), **SIZE).batch(["cat/1.png", "cat/2.png"])
    assert all(torch.equal(mask, region((0, 0, 8, 4))) for mask in batch.masks["primary"])


def test_a_class_may_be_called_masks(tmp_path: Path) -> None:
    picture(tmp_path / "masks" / "1.png", (0, 0, 4, 4))
    data = Folder(str(tmp_path), **SIZE)
    assert data.classes == ("masks",) and data.mask_names == ()


def test_pictures_of_one_name_are_told_apart(root: Path) -> None:
    picture(root / "cat" / "1.jpg")
    picture(root / "masks" / "cat" / "1.png", (0, 0, 4, 4))
    with pytest.raises(SalrunError, match="belongs to no picture"):
        _ = Folder(str(root), **SIZE).mask_names
    (root / "masks" / "cat" / "1.png").rename(root / "masks" / "cat" / "1.jpg.png")
    assert Folder(str(root), **SIZE).batch(["cat/1.jpg", "cat/1.png"]).roles["primary"].tolist() == [PRIMARY, NEUTRAL]


def test_results_depend_on_masks_and_models_do_not(root: Path) -> None:
    kept, prints = [], []
    for box in (None, (2, 4, 8, 10), (0, 0, 8, 10)):
        if box:
            picture(root / "masks" / "cat" / "1.png", box)
        data = Folder(str(root), **SIZE)
        kept.append(data.identity())
        prints.append(data.fingerprint())
    assert kept[0] == kept[1] == kept[2]
    assert all(prints.count(found) == 1 for found in prints)


@pytest.mark.parametrize(
    ("name", "size", "said"),
    [
        ("cat/9.png", (16, 16), "belongs to no picture"),
        ("cat/1.jpeg", (16, 16), "belongs to no picture"),
        ("cat/1.png", (8, 16), "has 8 x 16 pixels, its picture 16 x 16"),
    ],
)
def test_masks_that_do_not_fit_are_named(root: Path, name: str, size: tuple[int, int], said: str) -> None:
    picture(root / "masks" / name, (0, 0, 4, 4), size)
    with pytest.raises(SalrunError, match=said):
        Folder(str(root), **SIZE).batch(["cat/1.png"])


# -- COCO --------------------------------------------------------------------------------------------------------------


def coco(path: Path, files: list[str], boxes: list[tuple[int, int, list[float]]]) -> str:
    """Annotations of (place in files, category, bbox); category 1 is cat, 3 is dog."""
    content = {
        "images": [{"id": n + 10, "file_name": name, "width": 16, "height": 16} for n, name in enumerate(files)],
        "categories": [{"id": 3, "name": "dog"}, {"id": 1, "name": "cat"}],
        "annotations": [
            {"id": n, "image_id": i + 10, "category_id": c, "bbox": b} for n, (i, c, b) in enumerate(boxes)
        ],
    }
    path.write_text(json.dumps(content))
    return str(path)


def test_boxes_of_the_class_are_primary_and_others_secondary(root: Path, tmp_path: Path) -> None:
    boxes = [(0, 1, [2, 4, 6, 6]), (0, 3, [0, 0, 2, 2]), (1, 3, [8, 8, 8, 8])]
    path = coco(tmp_path / "coco.json", ["cat/1.png", "1.jpg"], boxes)
    data = Folder(str(root), boxes=path, **SIZE)
    batch = data.batch(["cat/1.png", "cat/2.png", "dog/1.jpg"])
    assert data.mask_names == ("primary", "secondary")
    assert torch.equal(batch.masks["primary"][0], region((1, 2, 4, 5)))
    assert torch.equal(batch.masks["secondary"][0], region((0, 0, 1, 1)))
    assert batch.roles["primary"].tolist() == [PRIMARY, NEUTRAL, PRIMARY]


def test_a_coco_file_is_a_data_set(root: Path, tmp_path: Path) -> None:
    boxes = [(0, 1, [2, 4, 6, 6]), (0, 3, [0, 0, 2, 2]), (1, 3, [8, 8, 8, 8])]
    path = coco(tmp_path / "coco.json", ["cat/1.png", "dog/1.jpg", "cat/2.png"], boxes)
    data = Coco(str(root), annotations=path, **SIZE)
    assert data.classes == ("cat", "dog") and data.ids("test") == ["cat/1.png", "dog/1.jpg"]  # no box: left out
    assert data.labels(data.ids("test")).tolist() == [0, 1]
    batch = data.batch(["cat/1.png"])
    assert torch.equal(batch.masks["primary"][0], batch.x[0, 0] > 0.5)
    assert batch.roles["secondary"].tolist() == [SECONDARY]
    names = tmp_path / "names.txt"
    names.write_text("bird\ndog\ncat\n")
    assert Coco(str(root), annotations=path, names_file=str(names), **SIZE).labels(["cat/1.png"]).tolist() == [2]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[]", "is no COCO file"),
        ("{", "is no COCO file"),
        ('{"images": [], "annotations": [], "categories": []}', "has no box"),
        ('{"images": [{"id": 1, "file_name": "x.png"}], "categories": [{"id": 1, "name": "cat"}], '
         '"annotations": [{"image_id": 1, "category_id": 1, "bbox": [0, 0, -1, 2]}]}', "bbox"),
        ('{"images": [{"id": 1, "file_name": "x.png"}], "categories": [{"id": 1, "name": "cat"}], '
         '"annotations": [{"image_id": 1, "category_id": 1, "bbox": [0, 0, 1, 2]}]}', "names x.png, which is not in"),
    ],
)  # fmt: skip
def test_what_is_no_coco_file_is_one_line(root: Path, tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "coco.json").write_text(content)
    with pytest.raises(SalrunError, match=said):
        Coco(str(root), annotations=str(tmp_path / "coco.json"), **SIZE).ids("test")
