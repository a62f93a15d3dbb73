"""Figures 1, 2a and 2b of Tomsett et al. (AAAI 2020), drawn from the tables and kept maps of a run."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import fill

import numpy as np
import pandas as pd
from safetensors.numpy import load_file

from salrun.papers.style import SIGNED, figure, house, look, save
from salrun.papers.tomsett.tables import (
    LABELS,
    METHODS,
    METRICS,
    PERTURBATIONS,
    Cell,
    Key,
    cells,
    parse_variants,
)
from salrun.stats.bootstrap import mean_interval
from salrun.tables import members, read_scores

SHOWN = ("dog", "frog", "horse", "ship", "truck")
SURE = 0.99
PERTURBED_BY = {"mean": "mean", "random_rgb": "random RGB"}
DRAWS = 2_000


def write_figures(run: Path) -> list[Path]:
    """Every figure that the run's tables and maps allow, as figures/tomsett_*; of the first seed of several."""
    cell = cells(read_scores(run))[0]
    paths = figure_2b(cell, run / "figures" / "tomsett_figure2b")
    if (run / "tables" / "curves.parquet").is_file():
        curves = pd.read_parquet(run / "tables" / "curves.parquet")
        paths += figure_2a(curves[curves["seed"] == cell.seed], run / "figures" / "tomsett_figure2a")
    maps = kept_maps(run, cell.seed)
    return paths if maps is None else paths + figure_1(maps, cell, run / "figures" / "tomsett_figure1")


def kept_maps(run: Path, seed: int) -> Path | None:
    """The run's maps, or those of the first run of this seed (a shard, it may be) that it was collected from."""
    for folder, facts in members(run):
        if (folder / "maps" / "index.json").is_file() and facts.get("seed", seed) == seed:
            return folder / "maps"
    return None


def _title(method: str) -> str:
    """A method's name, broken between words."""
    return fill(LABELS.get(method, method), 9, break_long_words=False)


@house()
def figure_1(maps: Path, cell: Cell, stem: Path) -> list[Path]:
    """One surely and rightly classified image of five classes; each map over its largest |value|, red positive."""
    index = json.loads((maps / "index.json").read_text())
    known = pd.DataFrame({k: index[k] for k in ("image_id", "label", "prediction")})
    known["row"] = np.arange(len(known))
    known["class"] = known["image_id"].map(cell.group)
    right = known[known["label"] == known["prediction"]]
    if cell.confidence is not None:
        right = right.assign(confidence=right["image_id"].map(cell.confidence))
        right = right[right["confidence"] >= SURE]
    chosen = right[right["class"].isin(SHOWN)].drop_duplicates("class").sort_values("class")
    methods = [m for m in METHODS if (maps / f"{m}.safetensors").is_file()]
    if chosen.empty or not methods:
        return []
    images = load_file(maps / "images.safetensors")["x"]
    planes = {m: load_file(maps / f"{m}.safetensors")["plane"].astype(np.float32) for m in methods}
    fig, axes = figure(len(chosen), 1 + len(methods), height=1.2 + 0.8 / len(chosen))
    rows = []
    for line, (_, item) in zip(axes, chosen.iterrows(), strict=True):
        line[0].imshow(images[item["row"]])
        line[0].set_ylabel(item["class"])
        for ax, method in zip(line[1:], methods, strict=True):
            plane = planes[method][item["row"]]
            largest = float(np.abs(plane).max())
            drawn = ax.imshow(plane / largest if largest > 0 else plane, cmap=SIGNED, vmin=-1, vmax=1)
            rows.append({**item.drop("row"), "method": method, "largest": largest})
    for ax, title in zip(axes[0], ["Image", *map(_title, methods)], strict=True):
        ax.set_title(title)
    for ax in axes.flat:
        ax.set_xticks([])
        ax.set_yticks([])
        ax.grid(False)
    fig.colorbar(
        drawn, ax=axes, location="bottom", shrink=0.4, aspect=40, label="relevance / largest", ticks=[-1, 0, 1]
    )
    return save(fig, pd.DataFrame(rows), stem)


def aopc(probability: np.ndarray) -> np.ndarray:
    """AOPC(L) for L = 0 .. of curves f(x^(k)), k = 0 ..: the running mean of f(x^(0)) - f(x^(k))."""
    fall = probability[:, :1] - probability
    return np.cumsum(fall, axis=1) / np.arange(1, fall.shape[1] + 1)


def curve_table(curves: pd.DataFrame, draws: int = DRAWS, seed: int = 0) -> pd.DataFrame:
    """Mean AOPC minus that of random orders for every L, by metric, perturbation and method, with 95% intervals."""
    curves = parse_variants(curves[curves["metric"].isin(["aopc_morf", "aopc_lerf"])])
    parts = []
    for (name, perturbed_by), panel in curves.groupby(["metric", "perturbation"]):
        metric, perturbation = METRICS[str(name)], str(perturbed_by)
        random = panel[panel["kind"] == "_random"].drop_duplicates("image_id").set_index("image_id")["y"]
        if random.empty:
            continue
        for method, part in panel[panel["kind"].isna()].groupby("method"):
            part = part[part["image_id"].isin(random.index)]
            own, other = np.stack(part["y"].to_list()), np.stack(random[part["image_id"]].to_list())
            interval = mean_interval(aopc(own) - aopc(other), np.random.default_rng(seed), draws=draws)
            parts.append(
                pd.DataFrame(
                    {
                        "metric": metric,
                        "perturbation": perturbation,
                        "method": method,
                        "L": np.arange(own.shape[1]),
                        "value": interval.mean,
                        "ci_low": interval.low,
                        "ci_high": interval.high,
                    }
                )
            )
        parts.append(_orderings(metric, perturbation, panel[panel["kind"] == "_orderings"]))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _orderings(metric: str, perturbation: str, rows: pd.DataFrame) -> pd.DataFrame:
    """The random orders' own 95%: of the dataset means of each order, around their mean."""
    rows = rows.drop_duplicates(["image_id", "steps"])
    found = []
    for steps, part in rows.groupby(rows["steps"].astype(int)):
        each = np.stack(part["y"].to_list()).mean(axis=0)
        low, high = np.quantile(each - each.mean(), [0.025, 0.975])
        found.append((metric, perturbation, "random orders", int(steps), 0.0, low, high))
    return pd.DataFrame(found, columns=["metric", "perturbation", "method", "L", "value", "ci_low", "ci_high"])


@house()
def figure_2a(curves: pd.DataFrame, stem: Path) -> list[Path]:
    """AOPC minus the random baseline against L: MoRF and LeRF (rows) by perturbation (columns)."""
    table = curve_table(curves)
    if table.empty:
        return []
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
    return save(fig, table, stem)


def distribution_table(cell: Cell, bins: int = 40) -> pd.DataFrame:
    """F over images by perturbation and method: density in bins of [-1, 1], mean, quartiles, count, missing."""
    rows = []
    edges = np.linspace(-1, 1, bins + 1)
    for perturbation in PERTURBATIONS:
        scores = cell.scores.get(Key("F", 0, perturbation))
        if scores is None:
            continue
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


@house()
def figure_2b(cell: Cell, stem: Path) -> list[Path]:
    """Distributions of F over images: outline, quartiles (bar), median (line) and mean (dot)."""
    table = distribution_table(cell)
    if table.empty:
        return []
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
    return save(fig, table, stem)
