"""The one figure of a comparison: a panel per metric, methods with their intervals, the random map as a line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from salrun.papers.style import PALETTE, figure, save, styled
from salrun.results.comparison import RANDOM, Comparison, Judged

COLUMNS = 3
INCHES = 0.2  # of height per method


def draw_comparison(comparisons: Sequence[Comparison], folder: Path) -> list[Path]:
    """comparison.png, .svg and .csv, numbered where there are several comparisons; the pictures."""
    drawn = []
    for n, comparison in enumerate(comparisons, 1):
        stem = folder / ("comparison" if len(comparisons) == 1 else f"comparison_{n}")
        save(comparison_figure(comparison), plotted(comparison), stem)
        drawn.append(stem.with_name(f"{stem.name}.png"))
    return drawn


def plotted(comparison: Comparison) -> pd.DataFrame:
    """The numbers of the figure."""
    first = {(j.metric, j.mode, j.score) for j in comparison.shown}
    frame = comparison.frame()
    keys = frame[["metric", "mode", "score"]].itertuples(index=False, name=None)
    return frame.loc[
        [key in first for key in keys], ["metric", "method", "control", "mean", "ci_low", "ci_high", "rank"]
    ]


@styled()
def comparison_figure(comparison: Comparison) -> Figure:
    """Best method on top, controls below in grey; filled: best under this metric, or not told apart from the best."""
    names = [*comparison.methods, *comparison.controls]
    columns = min(COLUMNS, len(comparison.shown))
    rows = -(-len(comparison.shown) // columns)
    fig, axes = figure(rows, columns, height=0.9 + INCHES * len(names), sharey=True)
    for ax, judged in zip(axes.flat, comparison.shown, strict=False):
        _panel(ax, judged, names)
    for ax in axes.flat[len(comparison.shown) :]:
        ax.set_visible(False)
    for ax in axes[:, 0]:
        ax.set_yticks(range(len(names)), names)
        ax.set_ylim(len(names) - 0.5, -0.5)
    fig.suptitle(f"{comparison.title}: {comparison.images} images, mean and 95% interval", fontsize=9)
    return fig


def _panel(ax: Axes, judged: Judged, names: Sequence[str]) -> None:
    standings = {s.method: s for s in (*judged.ranking.methods, *judged.ranking.controls)}
    if RANDOM in standings:
        ax.axvline(standings[RANDOM].mean, color="#888888", linestyle="--", linewidth=1)
    for y, name in enumerate(names):
        if name not in standings:
            continue
        s, control = standings[name], name not in {m.method for m in judged.ranking.methods}
        colour = "#888888" if control else PALETTE[0]
        ax.plot([s.low, s.high], [y, y], color=colour, linewidth=1.5)
        filled = colour if name in judged.ranking.best else "white"
        ax.plot(s.mean, y, "o", markersize=4.5, markeredgecolor=colour, markerfacecolor=filled)
    ax.set_title(f"{judged.metric} ({judged.direction} is better)")
    ax.locator_params(axis="x", nbins=4)
