"""salrun/results/kept.py: the lasting form of a run is a run that collects, without its machine."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from salrun.errors import SalrunError
from salrun.results.kept import keep, without_machine
from salrun.results.run import Run
from salrun.results.tables import CURVES
from salrun.sweep.collect import collect_runs
from tests.conftest import ROOT
from tests.fake_run import make_run, save_maps, save_run

CALLED = {"experiment": "e", "dataset": "d", "model": "m", "group": "1", "method": "edge", "metric": "deletion"}
MIB = 1 << 20


def run_of(folder: Path, seed: int, **facts: object) -> Path:
    """A finished run of four images with curves."""
    rows = pd.DataFrame([{**CALLED, "seed": seed, "image_id": f"i{i}", "value": (i + seed) / 3} for i in range(4)])
    about = {"cell": f"c{seed}", "scale": "smoke", "mode": "", "score": "", "view": "max_abs"}
    curves = rows.assign(**about, x=[[0.0, 1.0]] * 4, y=[[1.0, 1 / 3]] * 4)[CURVES]
    return save_run(folder, rows.assign(**about), curves=curves, **{"device": "cpu", "precision": "float32", **facts})


def test_kept_runs_collect_beside_fresh_ones(tmp_path: Path) -> None:
    keep(Run(run_of(tmp_path / "a", 0)), tmp_path / "kept" / "a-0", curves=True)
    keep(Run(run_of(tmp_path / "b", 1)), tmp_path / "kept" / "b-1")
    fresh = run_of(tmp_path / "fresh", 2)
    assert not (tmp_path / "kept" / "b-1" / "tables" / "curves.parquet").exists()
    (tmp_path / "kept" / "claims.csv").touch()  # beside the runs stands what was made of them
    assert collect_runs([*(tmp_path / "kept").glob("*"), fresh], tmp_path / "out", drawn=False) == 0
    joined = Run(tmp_path / "out")
    wanted = sorted((i + seed) / 3 for i in range(4) for seed in range(3))
    assert sorted(joined.scores["value"]) == wanted  # to the last bit: a tie must stay one
    assert set(joined.curves["seed"]) == {0, 2} and set(joined.cells["seed"]) == {0, 1, 2}
    assert joined.curves["y"].iloc[0][1] == 1 / 3
    assert not (tmp_path / "out" / "figures").exists() and not (tmp_path / "out" / "report.html").exists()


def test_a_run_is_kept_anew_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "kept" / "tables").mkdir(parents=True)
    (tmp_path / "kept" / "tables" / "old.csv").touch()
    keep(Run(run_of(tmp_path / "a", 0)), tmp_path / "kept")
    assert sorted(p.name for p in (tmp_path / "kept").rglob("*.*")) == [
        *("cells.csv", "images.parquet", "model.csv", "run.json", "scores.parquet")
    ]
    with pytest.raises(SalrunError, match="is not kept"):
        keep(Run(run_of(tmp_path / "b", 0, planned_only=True)), tmp_path / "kept")
    assert len(Run(tmp_path / "kept").scores) == 4


def test_no_word_of_the_machine() -> None:
    facts = {
        "host": "h",
        "pid": 1,
        "overrides": ["data_root=/home/me/data", "model.weights=~/nets/a.pth", "methods=[zhang/rise]", "shard=0/1"],
        "models": {"model": {"weights": "/srv/x/w.safetensors", "note": "images/s, and/or"}},
        "timings": {"a": 1.5},
    }
    assert without_machine(facts) == {
        "overrides": ["data_root=data", "model.weights=a.pth", "methods=[zhang/rise]", "shard=0/1"],
        "models": {"model": {"weights": "w.safetensors", "note": "images/s, and/or"}},
        "timings": {"a": 1.5},
    }


def test_pictures_are_kept_where_they_are_ours(tmp_path: Path) -> None:
    shown = {"methods": ["gradient", "lrp_z"], "per_group": 2, "roles": ["random_0"]}
    run = make_run(tmp_path / "run", n_images=8, groups=2, side=16)
    models = {"model": "0123456789ab", "random_0": "x", "random_1": "y"}
    about = {"image_id": [f"i{i}" for i in range(6)], "group": ["1", "1", "1", "2", "2", "2"]}
    about |= {"label": [0] * 6, "prediction": [1] * 6}
    save_maps(run, about, ["gradient", "lrp_z", "edge"], models)
    cells = pd.read_csv(run / "tables" / "cells.csv")
    kinds = {"ours": ("textbox", "noise"), "places": ("textbox", "places"), "imagenet": ("imagenet", None)}
    for name, (kind, background) in kinds.items():
        cells.assign(**{"dataset.kind": kind, "dataset.background": background}).to_csv(
            run / "tables" / "cells.csv", index=False
        )
        keep(Run(run), tmp_path / name, shown=shown)
    whole, (cut,) = Run(run).maps[0], Run(tmp_path / "ours").maps
    assert cut.index["image_id"] == ["i0", "i1", "i3", "i4"] and set(cut.index["models"]) == {"model", "random_0"}
    np.testing.assert_array_equal(cut.pictures, whole.pictures[[0, 1, 3, 4]])
    for role in ("model", "random_0"):
        np.testing.assert_array_equal(cut.planes("lrp_z", role), whole.planes("lrp_z", role)[[0, 1, 3, 4]])
        np.testing.assert_array_equal(cut.scale("lrp_z", role), whole.scale("lrp_z", role)[[0, 1, 3, 4]])
    assert not cut.has("edge") and not cut.has("gradient", "random_1")
    assert not (tmp_path / "places" / "maps").exists() and not (tmp_path / "imagenet" / "maps").exists()


COMMITTED = sorted((ROOT / "docs" / "results").glob("*/*/run.json"))


def test_committed_evidence_says_nothing_of_a_machine() -> None:
    for path in COMMITTED:
        facts = json.loads(path.read_text())
        assert without_machine(facts) == facts, path


def test_the_checkout_stays_small() -> None:
    left_out = {".git", ".venv", "outputs", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis"}
    tops = [path for path in ROOT.iterdir() if path.name not in left_out]
    files = [f for top in tops for f in ([top] if top.is_file() else top.rglob("*")) if f.is_file()]
    assert sum(f.stat().st_size for f in files if "__pycache__" not in f.parts) < 200 * MIB
