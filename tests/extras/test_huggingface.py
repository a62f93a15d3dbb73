"""`dataset=huggingface`, from folders in the library's own forms: nothing is fetched."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from salrun.errors import SalrunError
from salrun.results.run import Run

datasets = pytest.importorskip(
    "datasets", reason="datasets is not installed: pip install 'salrun[huggingface]' (make test-extras)"
)
from salrun.datasets.huggingface import HuggingFace  # noqa: E402

SIZE = {"size": 8, "short_side": 8}


@pytest.fixture(autouse=True)
def _nothing_is_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setattr(f"datasets.config.{name}", True, raising=False)


def shade(value: int) -> Image.Image:
    return Image.fromarray(np.full((10, 12, 3), value, np.uint8))


def written(folder: Path, labels: object, kind: object, values: tuple[int, ...] = (10, 200, 30)) -> str:
    """A data set of uniform pictures, as save_to_disk writes it."""
    features = datasets.Features({"picture": datasets.Image(), "kind": kind})
    part = datasets.Dataset.from_dict({"picture": [shade(v) for v in values], "kind": labels}, features=features)
    datasets.DatasetDict({"test": part, "train": part.select([0])}).save_to_disk(str(folder))
    return str(folder)


def test_images_labels_and_splits(tmp_path: Path) -> None:
    name = written(tmp_path / "saved", [1, 0, 1], datasets.ClassLabel(names=["no", "yes"]))
    data = HuggingFace(str(tmp_path), name=name, train_split="train", **SIZE)
    assert data.classes == ("no", "yes") and data.ids("test") == ["test-00000", "test-00001", "test-00002"]
    assert data.ids("train") == ["train-00000"] and data.shape == (3, 8, 8)
    batch = data.batch(["test-00001", "test-00000", "train-00000"])
    assert batch.y.tolist() == [0, 1, 1] and batch.group == ("no", "yes", "yes")
    assert torch.allclose(batch.x[:, 0, 0, 0] * 255, torch.tensor([200.0, 10.0, 10.0]))


@pytest.mark.parametrize(
    ("labels", "kind", "classes", "y"),
    [
        (["b", "a", "b"], "string", ("a", "b"), [1, 0, 1]),
        ([2, 0, 2], "int64", ("0", "1", "2"), [2, 0, 2]),
    ],
)
def test_labels_that_are_words_or_numbers(tmp_path: Path, labels, kind, classes, y) -> None:
    name = written(tmp_path / "saved", labels, datasets.Value(kind))
    data = HuggingFace(str(tmp_path), name=name, label="kind", **SIZE)
    assert data.classes == classes and data.labels(data.ids("test")).tolist() == y


def test_a_folder_of_pictures_and_changed_pictures(tmp_path: Path) -> None:
    for name in ("test/cat/1.png", "test/dog/2.png"):
        (tmp_path / "folder" / name).parent.mkdir(parents=True)
        shade(100).save(tmp_path / "folder" / name)
    data = HuggingFace(str(tmp_path / "cache"), name=str(tmp_path / "folder"), **SIZE)
    assert data.classes == ("cat", "dog") and len(data.ids("test")) == 2
    before = data.fingerprint()
    shade(101).save(tmp_path / "folder" / "test" / "cat" / "1.png")
    assert HuggingFace(str(tmp_path / "cache"), name=str(tmp_path / "folder"), **SIZE).fingerprint() != before


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    name = written(tmp_path / "saved", [1, 0, 1], datasets.ClassLabel(names=["no", "yes"]))
    cases = {
        "name is not set": {},
        "cannot be loaded": {"name": "nobody/nothing"},
        "unknown split 'tset'": {"name": name, "split": "tset"},
        "unknown column 'pictur'": {"name": name, "image": "pictur"},
    }
    for said, settings in cases.items():
        with pytest.raises(SalrunError, match=said):
            HuggingFace(str(tmp_path), **settings, **SIZE).ids("test")
    unlabelled = written(tmp_path / "bare", ["b", "a", "b"], datasets.Value("string"))
    with pytest.raises(SalrunError, match=r"dataset\.label.*say which"):
        HuggingFace(str(tmp_path), name=unlabelled, **SIZE).ids("test")


NET = """
import torch

def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 2))
"""


def test_a_run(tmp_path: Path, salrun_command) -> None:
    name = written(tmp_path / "saved", [1, 0, 1], datasets.ClassLabel(names=["no", "yes"]))
    (tmp_path / "mynet.py").write_text(NET)
    words = ["dataset=huggingface", f"dataset.name={name}", "dataset.size=8", "dataset.short_side=8", "model=own"]
    words += ["model.arch._target_=mynet.net", "methods=[gradient]", "metrics=[sparseness]", "device=cpu"]
    done = salrun_command(*words, "hydra.run.dir=run", HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    run = Run(tmp_path / "run")
    assert set(run.scores["image_id"]) == {"test-00000", "test-00001", "test-00002"} and run.cells["dataset"][0] == name
