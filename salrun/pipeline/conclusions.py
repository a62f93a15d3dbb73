"""What a run concludes (its paper's tables, figures and verdicts): made where something it is made from changed.

Else it is taken from the store, byte for byte. It is made from the run's tables and kept maps, the facts that say what
was measured, the paper's published numbers, the code, and the libraries it calls: the key of an entry is their hash.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Mapping
from fnmatch import fnmatch
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from salrun import papers
from salrun.config.catalogue import conf_dir
from salrun.results.run import Run
from salrun.store.entries import Store, check_entry, key_of
from salrun.store.files import write_atomic
from salrun.store.sources import source_of_module

STAGE = "conclusions"
PARTS = ("maps", "evidence", "tables", "figures", "claims")  # modules of a paper
FACTS = ("schema", "experiment", "paper", "methods", "metrics", "fit_images")  # of run.json, what evidence may read
LIBRARIES = ("matplotlib", "numpy", "pandas", "pillow", "pyarrow", "scipy", "torch")


def conclude_once(store: Store, paper: str | None, run: Run) -> tuple[pd.DataFrame | None, list[str]]:
    """`papers.conclude`, by the store where it has what this run concludes; what has problems is not kept."""
    if paper is None:
        return papers.conclude(paper, run)
    for path in concluded(paper, run.path).values():
        path.unlink()  # of an earlier run in this folder
    key = key_of_conclusions(paper, run)
    if (kept := store.read(STAGE, key, partial(_files, paper))) is not None:
        for name, content in kept.items():
            write_atomic(run.path / name, content)
        return run.claims, []
    claims, problems = papers.conclude(paper, run)
    if not problems:
        keep(store, key, concluded(paper, run.path))
    return claims, problems


def concluded(paper: str, folder: Path) -> dict[str, Path]:
    """Name below the run directory -> file, of all that `papers.conclude` wrote there."""
    found = sorted(path for pattern in _patterns(paper) for path in folder.glob(pattern))
    return {path.relative_to(folder).as_posix(): path for path in found}


def _patterns(paper: str) -> tuple[str, ...]:
    return f"tables/{paper}_*", f"figures/{paper}_*", "claims.csv", "claim_parts.csv"


def _files(paper: str, tensors: dict[str, torch.Tensor], meta: dict[str, Any]) -> dict[str, bytes]:
    """Name -> bytes of an entry; raises at a name or content that no conclusion has."""
    for name, content in tensors.items():
        known = any(fnmatch(name, pattern) for pattern in _patterns(paper)) and name.count("/") < 2
        check_entry(known and content.dtype == torch.uint8 and content.dim() == 1, f"file {name}")
    check_entry("claims.csv" in tensors, "files")
    return {name: content.numpy().tobytes() for name, content in tensors.items()}


def keep(store: Store, key: str, files: Mapping[str, Path]) -> None:
    """One entry of the store: the bytes of all files, by name."""
    content = {name: np.frombuffer(bytearray(path.read_bytes()), np.uint8) for name, path in files.items()}
    store.write(STAGE, key, {name: torch.from_numpy(array) for name, array in content.items()})


def key_of_conclusions(paper: str, run: Run) -> str:
    import matplotlib as mpl  # here: a run of no paper does without it

    names = [f"salrun.papers.{paper}.{part}" for part in PARTS]
    return key_of(
        STAGE,
        paper=paper,
        facts={name: run.facts.get(name) for name in FACTS},
        data={folder: digests(run.path / folder) for folder in ("tables", "maps")},
        published=digests(Path(papers.__file__).parent / paper, "*.csv"),
        reasonings=digests(conf_dir() / "reasoning"),
        source=[source_of_module(name) for name in names if importlib.util.find_spec(name) is not None],
        libraries={name: version(name) for name in LIBRARIES},
        style=hashlib.sha256(Path(mpl.matplotlib_fname()).read_bytes()).hexdigest(),  # the user's own, below ours
    )


def digests(folder: Path, pattern: str = "*") -> dict[str, str]:
    """File -> hash of its bytes."""
    files = sorted(path for path in folder.glob(pattern) if path.is_file())
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
