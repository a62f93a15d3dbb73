"""The figures of the metric court: correctness against reliability, against consistency, and how often it is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox

from salrun.papers.labels import label_points
from salrun.papers.style import PALETTE, figure, save, styled
from salrun.results.court import ALL, CARE, NEVER, NOT_JUDGED, SETTING, TOLD, USE, sample_of, titles

CHANCE = "#888888"
COLOURS = dict(zip((USE, SETTING, CARE, NEVER, NOT_JUDGED), PALETTE, strict=False))


def draw_court(tables: Mapping[str, pd.DataFrame], folder: Path) -> list[Path]:
    """court_reliability, court_preferences and, where it was measured, court_consistency; the pictures."""
    court = tables["court"]
    shown = court[court["default"] & (court["advice"] != TOLD)]
    drawn = {"court_reliability": (against(shown, "alpha", "reliability (Krippendorff's alpha)"), shown)}
    worse = _whole(tables["preferences"]).merge(shown[["dataset", "ladder", "metric", "mode", "score"]])
    drawn["court_preferences"] = (preferences(worse), worse)
    if "mc" in court:
        drawn["court_consistency"] = (against(shown, "mc", "consistency without truth (MetaQuantus)"), shown)
    for name, (fig, data) in drawn.items():
        save(fig, data, folder / name)
    return [folder / f"{name}.png" for name in drawn]


def _whole(table: pd.DataFrame) -> pd.DataFrame:
    """What is said of all defects together."""
    return table[table["truth"] == ALL]


@styled()
def against(court: pd.DataFrame, other: str, label: str) -> Figure:
    """Agreement with the known order against another column, a panel per data set and ladder; size is cost."""
    groups = list(court.dropna(subset=["agreement", other]).groupby(["dataset", "ladder"], sort=False))
    fig, axes = figure(max(1, len(groups)), 1, height=4.2)
    for ax, ((dataset, ladder), part) in zip(axes.flat, groups, strict=False):
        _points(ax, part, other)
        ax.set_title(f"{dataset}, ladder of {ladder}: {sample_of(part)}")
        ax.set_xlabel(label)
        ax.set_ylabel("agreement with the known order")
    advised = [advice for advice in COLOURS if advice in set(court["advice"])]
    dots = [Line2D([], [], color=COLOURS[advice], marker="o", linestyle="") for advice in advised]
    fig.legend(dots, advised, loc="outside upper center", ncols=len(COLOURS))
    fig.draw_without_rendering()  # names are placed where the points will be
    for ax, (_, part) in zip(axes.flat, groups, strict=False):
        spans = [Bbox.from_extents(r[other], r["low"], r[other], r["high"]).padded(0.004) for _, r in part.iterrows()]
        label_points(
            ax, list(zip(part[other], part["agreement"], strict=True)), list(titles(part)), _sizes(part), spans
        )
    return fig


def _sizes(part: pd.DataFrame) -> np.ndarray:
    return 15 + 12 * np.log2(1 + part["passes"].fillna(0).to_numpy(dtype=float))


def _points(ax: Axes, part: pd.DataFrame, other: str) -> None:
    ax.axhline(0, color=CHANCE, linestyle="--", linewidth=1)
    colour = list(part["advice"].map(COLOURS))
    ax.vlines(part[other], part["low"], part["high"], color=colour, linewidth=0.8)
    ax.scatter(part[other], part["agreement"], s=_sizes(part), c=colour, alpha=0.8)
    ax.margins(x=0.12)


@styled()
def preferences(worse: pd.DataFrame) -> Figure:
    """How often the worse of two maps scores higher, by difference of their doses; chance is one half."""
    groups = list(worse.groupby(["dataset", "ladder"], sort=False))
    most = max(len(part) for _, part in groups)
    columns = min(2, len(groups))
    fig, axes = figure(-(-len(groups) // columns), columns, height=1 + 0.07 * most, sharex=True)
    for ax in axes.flat[len(groups) :]:
        ax.set_visible(False)
    for ax, ((dataset, ladder), part) in zip(axes.flat, groups, strict=False):
        order = part.groupby(["metric", "mode", "score"], sort=False)["mean"].mean().sort_values().index
        place = {key: y for y, key in enumerate(order)}
        ax.axvline(0.5, color=CHANCE, linestyle="--", linewidth=1)
        for k, (difference, at) in enumerate(part.groupby("difference")):
            y = [
                place[key] + 0.25 * (k - 1)
                for key in at[["metric", "mode", "score"]].itertuples(index=False, name=None)
            ]
            ax.hlines(y, at["low"], at["high"], color=PALETTE[k], linewidth=1)
            ax.plot(at["mean"], y, "o", color=PALETTE[k], markersize=3, label=f"doses {difference:g} apart")
        names = titles(pd.DataFrame(list(order), columns=["metric", "mode", "score"]))
        ax.set_yticks(range(len(order)), list(names), fontsize=6)
        ax.set_ylim(len(order) - 0.5, -0.5)
        ax.set_title(f"{dataset}, {ladder}")
    fig.supxlabel("share of pairs of which the worse scores higher", fontsize=9)
    fig.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return fig
