"""Figures 1, 2a and 2b of Tomsett et al. (AAAI 2020), drawn from the tables and kept maps of a run's first seed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from textwrap import fill

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from salrun.papers.evidence import NotTestable
from salrun.papers.style import SIGNED, bare, figure, look, styled
from salrun.papers.tomsett.evidence import LABELS, METHODS, PERTURBATIONS, F, ImageScores, TomsettEvidence
from salrun.results.maps import KeptMaps
from salrun.stats.bootstrap import mean_interval

SHOWN = ("dog", "frog", "horse", "ship", "truck")
SURE = 0.99
PERTURBED_BY = {"mean": "mean", "random_rgb": "random RGB"}
DRAWS = 2_000
Drawn = tuple[Figure, pd.DataFrame]


def figures(e: TomsettEvidence) -> dict[str, Callable[[], Drawn]]:
    """Name -> what draws it."""
    first = next(iter(e.scores.values()))
    return {
        "figure2b": partial(figure_2b, first),
        "figure2a": partial(figure_2a, e.curves),
        "figure1": partial(figure_1, e.maps, first),
    }


def _title(method: str) -> str:
    """A method's name, broken between words."""
    return fill(LABELS.get(method, method), 9, break_long_words=False)


@styled()
def figure_1(maps: KeptMaps | None, s: ImageScores) -> Drawn:
    """One surely and rightly classified image of five classes; each map over its largest |value|, red positive."""
    if maps is None:
        raise NotTestable("needs kept maps")
    images = maps.images.rename(columns={"group": "class"})[["image_id", "label", "prediction", "class"]]
    images["confidence"] = images["image_id"].map(s.confidence)
    sure = (images["label"] == images["prediction"]) & (images["confidence"] >= SURE)
    chosen = images[sure & images["class"].isin(SHOWN)].drop_duplicates("class").sort_values("class")
    planes = {m: maps.planes(m) for m in METHODS if maps.has(m)}
    if chosen.empty or not planes:
        raise NotTestable("needs maps of images that the model is sure of")
    fig, axes = figure(len(chosen), 1 + len(planes), height=1.2 + 0.8 / len(chosen))
    rows = []
    for line, (row, image) in zip(axes, chosen.iterrows(), strict=True):
        line[0].imshow(maps.pictures[row])
        line[0].set_ylabel(image["class"])
        for ax, (method, of_method) in zip(line[1:], planes.items(), strict=True):
            largest = float(np.abs(of_method[row]).max())
            shown = of_method[row] / largest if largest > 0 else of_method[row]
            drawn = ax.imshow(shown, cmap=SIGNED, vmin=-1, vmax=1)
            rows.append({**image, "method": method, "largest": largest})
    for ax, title in zip(axes[0], ["Image", *map(_title, planes)], strict=True):
        ax.set_title(title)
    bare(axes)
    fig.colorbar(
        drawn, ax=axes, location="bottom", shrink=0.4, aspect=40, label="relevance / largest", ticks=[-1, 0, 1]
    )
    return fig, pd.DataFrame(rows)


def aopc(probability: np.ndarray) -> np.ndarray:
    """AOPC(L) for L = 0 .. of curves f(x^(k)), k = 0 ..: the running mean of f(x^(0)) - f(x^(k))."""
    fall = probability[:, :1] - probability
    return np.cumsum(fall, axis=1) / np.arange(1, fall.shape[1] + 1)


def curve_table(curves: pd.DataFrame, draws: int = DRAWS) -> pd.DataFrame:
    """Mean AOPC minus that of random orders for every L, by metric, perturbation and method, with 95% intervals."""
    parts = []
    for (metric, perturbation), panel in curves.groupby(["measure", "perturbation"]):
        panel_of = {"metric": metric, "perturbation": perturbation}
        random = panel[panel["kind"] == "random"].drop_duplicates("image_id").set_index("image_id")["y"]
        if random.empty:
            continue
        for method, part in panel[panel["kind"] == "map"].groupby("method"):
            part = part[part["image_id"].isin(random.index)]
            mapped, shared = np.stack(part["y"].to_list()), np.stack(random[part["image_id"]].to_list())
            interval = mean_interval(aopc(mapped) - aopc(shared), np.random.default_rng(0), draws=draws)
            values = {"value": interval.mean, "ci_low": interval.low, "ci_high": interval.high}
            parts.append(pd.DataFrame({**panel_of, "method": method, "L": np.arange(mapped.shape[1]), **values}))
        parts.append(_orderings(panel[panel["kind"] == "orderings"]).assign(**panel_of))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _orderings(rows: pd.DataFrame) -> pd.DataFrame:
    """The random orders' own 95%: of the dataset means of each order that all images have, around their mean."""
    spread = []
    for steps, part in rows.drop_duplicates(["image_id", "steps"]).groupby("steps"):
        each = np.stack(part["y"].to_list()).mean(axis=0)
        by_all = ~np.isnan(each)  # a run with random_error stops image by image
        each = each[by_all] if by_all.any() else each
        low, high = np.quantile(each - each.mean(), [0.025, 0.975])
        spread.append(("random orders", steps, 0.0, low, high))
    return pd.DataFrame(spread, columns=["method", "L", "value", "ci_low", "ci_high"])


@styled()
def figure_2a(curves: pd.DataFrame) -> Drawn:
    """AOPC minus the random baseline against L: MoRF and LeRF (rows) by perturbation (columns)."""
    table = curve_table(curves)
    if table.empty:
        raise NotTestable("needs curves of AOPC and its random orders")
    fig, axes = figure(2, 2, sharex=True, sharey="row")
    methods = [m for m in METHODS if m in set(table["method"])]
    for line, metric in zip(axes, ("MoRF", "LeRF"), strict=True):
        for ax, perturbation in zip(line, PERTURBATIONS, strict=True):
            panel = table[(table["metric"] == metric) & (table["perturbation"] == perturbation)]
            for method in methods:
                part = panel[panel["method"] == method]
                style = look(method, METHODS)
                ax.plot(part["L"], part["value"], label=LABELS[method], **style)
                ax.fill_between(
                    part["L"], part["ci_low"], part["ci_high"], color=style["color"], alpha=0.2, linewidth=0
                )
            random = panel[panel["method"] == "random orders"]
            ax.fill_between(random["L"], random["ci_low"], random["ci_high"], color="#888888", alpha=0.4, linewidth=0)
            ax.axhline(0.0, color="#888888", linewidth=0.8)
            ax.set_title(f"{metric}, {PERTURBED_BY[perturbation]}")
    for ax in axes[-1]:
        ax.set_xlabel("L (perturbed pixels)")
    for ax in axes[:, 0]:
        ax.set_ylabel("AOPC minus random order")
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=len(methods))
    return fig, table


def distribution_table(s: ImageScores, bins: int = 40) -> pd.DataFrame:
    """F over images by perturbation and method: density in bins of [-1, 1], mean, quartiles, count, missing."""
    rows = []
    edges = np.linspace(-1, 1, bins + 1)
    for perturbation in PERTURBATIONS:
        scores = s.scores.get(F[perturbation], pd.DataFrame())
        for method in scores:
            valid = scores[method].dropna().to_numpy()
            if not len(valid):
                continue
            key = {"perturbation": perturbation, "method": method}
            density, _ = np.histogram(valid, edges, density=True)
            rows += [
                {**key, "item": "density", "F": c, "value": d}
                for c, d in zip(edges[:-1] + 1 / bins, density, strict=True)
            ]
            marks = dict(
                zip(("quartile 1", "median", "quartile 3"), np.quantile(valid, [0.25, 0.5, 0.75]), strict=True)
            )
            rows += [{**key, "item": item, "F": at} for item, at in {"mean": valid.mean(), **marks}.items()]
            counts = {"images": len(valid), "undefined": len(scores) - len(valid)}
            rows += [{**key, "item": item, "value": float(n)} for item, n in counts.items()]
    return pd.DataFrame(rows, columns=["perturbation", "method", "item", "F", "value"])


@styled()
def figure_2b(s: ImageScores) -> Drawn:
    """Distributions of F over images: outline, quartiles (bar), median (line) and mean (dot)."""
    table = distribution_table(s)
    if table.empty:
        raise NotTestable("needs faithfulness")
    fig, axes = figure(1, 2, sharey=True)
    for ax, perturbation in zip(axes[0], PERTURBATIONS, strict=True):
        panel = table[table["perturbation"] == perturbation]
        methods = list(panel["method"].unique())
        for k, method in enumerate(methods):
            part = panel[panel["method"] == method]
            density = part[part["item"] == "density"]
            half = 0.42 * density["value"] / density["value"].max()
            colour = look(method, METHODS)["color"] if method in METHODS else "#888888"
            ax.fill_betweenx(density["F"], k - half, k + half, color=colour, alpha=0.4, linewidth=0)
            at = part.dropna(subset="F").set_index("item")["F"]
            ax.plot([k, k], [at["quartile 1"], at["quartile 3"]], color="black", linewidth=3)
            ax.plot([k - 0.15, k + 0.15], [at["median"]] * 2, color="black", linewidth=1)
            ax.plot(k, at["mean"], "o", color="white", markeredgecolor="black", markersize=4)
        ax.set_xticks(range(len(methods)), [_title(m) for m in methods])
        ax.set_title(PERTURBED_BY[perturbation])
    axes[0, 0].set_ylabel("F")
    return fig, table
