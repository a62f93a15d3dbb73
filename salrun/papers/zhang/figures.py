"""Figures 1 and 2 of Zhang, Torres, Hermanns (ACML 2024), drawn from the scores and kept maps of the first seed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.figure import Figure

from salrun.papers.evidence import NotTestable
from salrun.papers.style import PALETTE, UNSIGNED, figure, styled
from salrun.papers.zhang.evidence import SeedEvidence, ZhangEvidence
from salrun.papers.zhang.names import CORRELATED, FIDELITY, LABELS, METHODS
from salrun.results.maps import KeptMaps

BESIDE = ("integrated_gradients", "score_cam")  # shown beside the method that a row is about
SHOWN = 100  # images of Figure 2
FIFTHS = 5
SPELT = {"AG": "average gain", "AD": "average drop", "I": "insertion", "D": "deletion"}


def figures(e: ZhangEvidence) -> dict[str, Callable[[], Any]]:
    """Name -> the function that draws it: of the first seed of several."""
    first = e.seeds[0]
    return {"figure1": partial(figure_1, first, e.maps), "figure2": partial(figure_2, first)}


def extremes(e: SeedEvidence, maps: Sequence[KeptMaps]) -> pd.DataFrame:
    """Per metric the best and the worst method by their means, and the kept images they score highest and lowest."""
    scores, rows = e.frames.get("fidelity", pd.DataFrame()), []
    for metric in FIDELITY:
        if metric not in scores:
            continue
        of = pd.DataFrame(scores[metric])
        order = of.mean().dropna().sort_values(ascending=False, kind="stable").index
        for place, method in {"best": order[0], "worst": order[-1]}.items() if len(order) else ():
            shown = {image for of in maps if of.has(method) for image in of.row}
            values = of.loc[of.index.isin(shown), method].dropna()
            for end, image in {"highest": values.idxmax(), "lowest": values.idxmin()}.items() if len(values) else ():
                rows.append((metric, place, method, of[method].mean(), end, image, values[image]))
    return pd.DataFrame(rows, columns=["metric", "place", "method", "mean", "end", "image_id", "value"])


def coloured(plane: np.ndarray) -> np.ndarray:
    """(H, W, 3) bytes: the magnitude over its largest, in colours."""
    magnitude = np.abs(plane)
    return (255 * colormaps[UNSIGNED](magnitude / max(float(magnitude.max()), 1e-30))[..., :3]).astype(np.uint8)


@styled()
def figure_1(e: SeedEvidence, maps: Sequence[KeptMaps]) -> tuple[Figure, pd.DataFrame, dict[str, bytes]]:
    """A gallery of extremes, and an index of it as JSON.

    Each row is a metric's best or worst method, the image it scores highest (left) and lowest (right), with the
    magnitude of that method's map and of others.
    """
    table = extremes(e, maps)
    if table.empty:
        raise NotTestable("needs kept maps of fidelity runs")
    lines = list(table.groupby(["metric", "place"], sort=False))
    fig, axes = figure(len(lines), 2, height=1.0)
    for line, ((metric, where), part) in zip(axes, lines, strict=True):
        for ax, (_, item) in zip(line, part.iterrows(), strict=False):
            image = item["image_id"]
            having = {m: [of for of in maps if of.has(m) and image in of.row] for m in (item["method"], *BESIDE)}
            shown = {m: several[0] for m, several in having.items() if several}
            picture = shown[item["method"]].picture(image)
            ax.imshow(np.concatenate([picture, *(coloured(of.plane(m, image)) for m, of in shown.items())], axis=1))
            names = ", ".join(LABELS.get(m, m) for m in shown)
            ax.set_title(f"{item['end']} {metric} {item['value']:.3g}; {names}", fontsize=6)
        line[0].set_ylabel(f"{metric}\n{where}", fontsize=6)
    for ax in axes.flat:
        ax.set_xticks([])
        ax.set_yticks([])
        ax.grid(False)
    return fig, table, {"json": json.dumps(table.to_dict("records"), indent=1).encode() + b"\n"}


def probability_table(e: SeedEvidence, most: int = SHOWN) -> pd.DataFrame:
    """AG, AD, I, D by method against p_c: images in order of p_c, thinned out evenly."""
    scores = e.frames.get("fidelity")
    if scores is None or "fidelity" not in e.probability.index.get_level_values("setting"):
        return pd.DataFrame()
    p = e.probability.loc["fidelity"].droplevel(["transform", "strength"])
    p = p[p.index.isin(scores.index)].sort_values(kind="stable")
    chosen = p.iloc[np.unique(np.linspace(0, len(p) - 1, min(most, len(p))).round().astype(int))]
    parts = []
    for column, (metric, sign, offset) in CORRELATED.items():
        for method in METHODS:
            if (column, method) in scores:
                value = offset + sign * scores[column, method].reindex(chosen.index)
                parts.append(pd.DataFrame({"metric": metric, "method": method, "p": chosen, "value": value}))
    return pd.concat(parts).rename_axis("image_id").reset_index() if parts else pd.DataFrame()


@styled()
def figure_2(e: SeedEvidence) -> tuple[Figure, pd.DataFrame]:
    """AG, AD, insertion and deletion against the probability of the class explained, a panel for each method.

    A dot is an image, the line the mean of each fifth of the images.
    """
    table = probability_table(e)
    if table.empty:
        raise NotTestable("needs fidelity runs with curves of deletion")
    methods = [method for method in METHODS if method in set(table["method"])]
    metrics = [metric for metric, *_ in CORRELATED.values() if metric in set(table["metric"])]
    fig, axes = figure(len(metrics), len(methods), height=1.05, sharex=True, sharey="row")
    for line, metric in zip(axes, metrics, strict=True):
        for ax, method in zip(line, methods, strict=True):
            part = table[(table["metric"] == metric) & (table["method"] == method)].dropna().sort_values("p")
            ax.scatter(part["p"], part["value"], s=3, color=PALETTE[0], alpha=0.4, linewidths=0)
            fifths = part.groupby(np.arange(len(part)) * FIFTHS // max(len(part), 1))[["p", "value"]].mean()
            ax.plot(fifths["p"], fifths["value"], color=PALETTE[1])
            ax.set_xticks([0, 1], ["0", "1"])
            ax.tick_params(labelsize=6)
        line[0].set_ylabel(f"{SPELT[metric]} (%)", fontsize=7)
    for ax, method in zip(axes[0], methods, strict=True):
        ax.set_title(LABELS[method], fontsize=7)
    fig.supxlabel("probability of the class explained", fontsize=8)
    return fig, table
