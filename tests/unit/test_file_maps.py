"""`methods=[file]`: maps of other code, by image id; bad files are one line each, before anything is computed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_tensors

from salrun.cli import main as cli
from salrun.errors import SalrunError
from salrun.methods.file import File
from salrun.types import Fitted
from tests.toys import classifier, images, run

SHAPE = (3, 64, 64)
WORDS = [
    *("dataset=textbox", "reasoning=simple_fr", "model=smerf_simple", "device=cpu", "paper=null", "report=false"),
    *("dataset.n_per_bucket=1", "metrics=[pafl,insertion]", "metrics.insertion.step=1024"),
]


def words(tmp_path: Path, *more: str) -> list[str]:
    return [*WORDS, f"cache_dir={tmp_path / 'store'}", *more]


@pytest.fixture(scope="module")
def maps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """Edge maps of a run by image id."""
    folder = tmp_path_factory.mktemp("edge")
    assert cli.run([*words(folder, "methods=[edge]", "keep_maps=all"), f"hydra.run.dir={folder / 'run'}"]) == 0
    ids = pd.read_parquet(folder / "run" / "tables" / "images.parquet")["image_id"].unique()
    rng = np.random.default_rng(0)
    return {image: rng.random((64, 64)).astype(np.float32) for image in ids}


def write(kind: str, maps: dict[str, np.ndarray], folder: Path) -> Path:
    if kind == "folder":
        for image, array in maps.items():
            (folder / f"{image}.npy").parent.mkdir(parents=True, exist_ok=True)
            np.save(folder / f"{image}.npy", array)
        return folder
    path = folder / f"maps.{kind}"
    np.savez(path, **maps) if kind == "npz" else save_file(maps, path)
    return path


def test_three_kinds_of_files_give_one_table(maps: dict[str, np.ndarray], tmp_path: Path) -> None:
    tables = []
    for kind in ("folder", "npz", "safetensors"):
        (tmp_path / kind).mkdir()
        path = write(kind, maps, tmp_path / kind)
        more = ["methods=[file,random]", f"methods.file.path={path}", f"hydra.run.dir={tmp_path / kind / 'run'}"]
        assert cli.run(words(tmp_path, *more)) == 0
        tables.append(pd.read_parquet(tmp_path / kind / "run" / "tables" / "scores.parquet").drop(columns="cell"))
    pd.testing.assert_frame_equal(tables[0], tables[1])
    pd.testing.assert_frame_equal(tables[0], tables[2])
    own = tables[0].query("method == 'file' and metric == 'pafl'")
    assert set(own["flag"]) == {"ok", "no_mask"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int16])
def test_maps_of_few_bits_are_read(dtype: torch.dtype, tmp_path: Path) -> None:
    x = images(2, 4)
    maps = torch.arange(-8, 8).view(1, 4, 4).to(dtype)
    save_tensors({"a": maps, "b": maps[0].clone()}, tmp_path / "maps.safetensors")
    method, fitted = File(str(tmp_path / "maps.safetensors")), Fitted(ids=("a", "b"))
    found = method(classifier(), x, torch.zeros(2, dtype=torch.int64), None, fitted)  # type: ignore[arg-type]
    assert found.tolist() == [maps.double().tolist()] * 2


def test_changed_files_are_read_again(maps: dict[str, np.ndarray], tmp_path: Path) -> None:
    scores = []
    for shift in (0, 20):
        write("folder", {image: np.roll(array, shift) for image, array in maps.items()}, tmp_path / "maps")
        more = ["methods=[file]", f"methods.file.path={tmp_path / 'maps'}", f"hydra.run.dir={tmp_path / 'run'}{shift}"]
        assert cli.run(words(tmp_path, *more, "controls=[]")) == 0
        scores.append(pd.read_parquet(tmp_path / f"run{shift}" / "tables" / "scores.parquet")["value"])
    assert not scores[0].equals(scores[1])


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda folder, name: (folder / name).unlink(), "has no map of 1 of "),
        (lambda folder, name: (folder / name).write_bytes(b"no array"), "cannot be read"),
        (
            lambda folder, name: np.save(folder / name, np.zeros((8, 8))),
            "is float64 (8, 8); a map of these images is",
        ),
        (lambda folder, name: np.save(folder / name, np.array([{}], dtype=object)), "cannot be read"),
        (lambda folder, name: np.save(folder / name, np.zeros((64, 64), complex)), "of real numbers"),
    ],
)
def test_bad_files_are_one_line(maps, tmp_path, spoil, complaint, capsys) -> None:
    path = write("folder", maps, tmp_path / "maps")
    spoil(path, f"{next(iter(maps))}.npy")
    assert cli.run(words(tmp_path, "methods=[file]", f"methods.file.path={path}")) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1 and complaint in said[0]


def test_no_path_and_metrics_that_explain_again_are_refused(maps, tmp_path, capsys) -> None:
    assert cli.run(words(tmp_path, "methods=[file]")) == 2
    assert "method 'file' needs the maps: methods.file.path=" in capsys.readouterr().err
    path = write("npz", maps, tmp_path)
    more = ["methods=[file]", f"methods.file.path={path}", "metrics=[pafl,insertion,max_sensitivity]"]
    assert cli.run(words(tmp_path, *more)) == 2
    assert "leave out metrics that ask for others (max_sensitivity)" in capsys.readouterr().err


def test_other_images_have_no_maps(maps, tmp_path) -> None:
    with pytest.raises(SalrunError, match="the data set's own images alone"):
        run(File(str(write("folder", maps, tmp_path))), classifier(), images())
