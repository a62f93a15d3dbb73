"""One look for every figure, and one way to save it: PNG, SVG and the plotted numbers as CSV."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from salrun.results.tables import write_csv
from salrun.store.files import write_atomic

# Okabe and Ito's palette: distinct under the common forms of colour blindness.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
LINES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
SIGNED, UNSIGNED = "RdBu_r", "viridis"
WIDTH = 7.0  # inches: the width of a printed text block

RC: dict[str, Any] = {
    "figure.dpi": 150,
    "savefig.dpi": 150,
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.5,
    "image.interpolation": "nearest",
    "svg.hashsalt": "salrun",  # the same figure gives the same file
    "svg.fonttype": "none",
}


def styled() -> Any:
    """The one style, for what is drawn inside; also a decorator: `@styled()` on each function that draws."""
    return mpl.rc_context(RC)  # type: ignore[arg-type]


def figure(rows: int = 1, columns: int = 1, height: float = 2.6, **options: Any) -> tuple[Figure, np.ndarray]:
    """A figure of the common width and its axes as an array (rows, columns); `height` in inches per row."""
    fig = Figure(figsize=(WIDTH, height * rows), layout="constrained")
    return fig, fig.subplots(rows, columns, squeeze=False, **options)


def bare(axes: np.ndarray) -> None:
    """Leave nothing but the pictures: no ticks, grids or frames."""
    for ax in axes.flat:
        ax.set_xticks([])
        ax.set_yticks([])
        ax.grid(False)
        ax.spines[:].set_visible(False)


def look(name: str, names: Sequence[str]) -> dict[str, Any]:
    """Colour and line of `name` among `names`: the same in every panel, and distinct without colour."""
    k = list(names).index(name)
    return {"color": PALETTE[k % len(PALETTE)], "linestyle": LINES[(k + k // len(PALETTE)) % len(LINES)]}


def save(fig: Figure, data: pd.DataFrame, stem: Path) -> None:
    """Write stem.png, stem.svg and stem.csv (the plotted numbers), each whole or not at all."""
    with styled():
        if (engine := fig.get_layout_engine()) is not None:
            engine.execute(fig)
        fig.set_layout_engine("none")  # laid out once, for all formats
        for kind, print_to in {  # not `savefig`, which draws everything once more before each format
            "png": partial(FigureCanvasAgg(fig).print_png, metadata={"Software": None}),
            "svg": partial(FigureCanvasSVG(fig).print_svg, metadata={"Date": None}),
        }.items():
            drawn = io.BytesIO()
            print_to(drawn)
            write_atomic(stem.with_name(f"{stem.name}.{kind}"), drawn.getvalue())
    write_csv(stem.with_name(f"{stem.name}.csv"), data)
