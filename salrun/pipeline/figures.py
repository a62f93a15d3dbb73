"""A run's figures: drawn where something they are made from changed, else taken from the store, byte for byte.

They are made from the run's tables and kept maps, the facts that say what was measured, the paper's published numbers,
the code that draws, and the libraries it calls: the key of an entry is the hash of all of these.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from salrun import papers
from salrun.results.run import Run
from salrun.store.entries import Store, key_of
from salrun.store.files import write_atomic
from salrun.store.sources import source_of_module

STAGE = "figures"
FACTS = ("schema", "experiment", "paper", "methods", "metrics", "fit_images")  # of run.json, what evidence may read
LIBRARIES = ("matplotlib", "numpy", "pandas", "pillow", "scipy", "torch")


def draw_once(store: Store, paper: str, run: Run, figures: Callable[[], papers.Figures]) -> None:
    """Write the figures of a run; `figures` is asked only where the store has not kept them."""
    key = key_of_figures(paper, run)
    if (kept := store.read(STAGE, key)) is None:
        keep(store, key, papers.draw(paper, run, figures))
        return
    for name, content in kept[0].items():
        write_atomic(run.path / "figures" / name, content.numpy().tobytes())


def keep(store: Store, key: str, paths: Iterable[Path]) -> None:
    """One entry of the store: the bytes of all files, by name."""
    files = {path.name: np.frombuffer(bytearray(path.read_bytes()), np.uint8) for path in paths}
    store.write(STAGE, key, {name: torch.from_numpy(content) for name, content in files.items()})


def key_of_figures(paper: str, run: Run) -> str:
    import matplotlib as mpl  # here: a run of no paper does without it

    return key_of(
        STAGE,
        paper=paper,
        facts={name: run.facts.get(name) for name in FACTS},
        data={folder: digests(run.path / folder) for folder in ("tables", "maps")},
        published=digests(Path(papers.__file__).parent / paper, "*.csv"),
        source=source_of_module(f"salrun.papers.{paper}.figures"),
        libraries={name: version(name) for name in LIBRARIES},
        style=hashlib.sha256(Path(mpl.matplotlib_fname()).read_bytes()).hexdigest(),  # the user's own, below ours
    )


def digests(folder: Path, pattern: str = "*") -> dict[str, str]:
    """File -> hash of its bytes."""
    files = sorted(path for path in folder.glob(pattern) if path.is_file())
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
