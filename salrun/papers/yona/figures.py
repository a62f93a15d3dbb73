"""Figures 1 to 7 of Yona & Greenfeld (2021) from the kept maps of runs, and the numbers behind them as figures.

The paper's pictures: 1 the deleted half, 2 / 4 / 5 shapes, 3 / 6 / 7 pairs; 2 and 3 show both methods on a few images,
4 and 6 more images with guided, 5 and 7 with vanilla backpropagation.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from safetensors.numpy import load_file

from salrun.papers.style import PALETTE, SIGNED, WIDTH, figure, house, look, save
from salrun.papers.yona.tables import (
    ALIKE,
    EFFECTS,
    GBP,
    HALVES,
    LABELS,
    OWN,
    PAIRS,
    SANITY,
    SHAPES,
    VBP,
    effects_table,
    evidence,
    means_table,
    methods_of,
)
from salrun.tables import members, read_scores

TITLES = {
    "": {HALVES: "trained, t~", SHAPES: "shape model", PAIRS: "fine-tuned"},
    "digits": {HALVES: "trained, t", SHAPES: "digit model"},
    "random_0": {HALVES: "untrained", SHAPES: "untrained", PAIRS: "random"},
    "pretrained": {PAIRS: "pretrained"},
}
FEW, MORE = 4, 10
DRAWS = 2_000


@dataclass(frozen=True)
class Maps:
    """The kept maps of a run; a model's are found under its name, the run's own under ""."""

    folder: Path
    experiment: str

    @cached_property
    def index(self) -> pd.DataFrame:
        content = json.loads((self.folder / "index.json").read_text())
        return pd.DataFrame({k: content[k] for k in ("image_id", "group", "label", "prediction")})

    @cached_property
    def pictures(self) -> np.ndarray:
        return load_file(self.folder / "images.safetensors")["x"]

    def has(self, model: str, method: str) -> bool:
        return (self.folder / model / f"{method}.safetensors").is_file()

    def planes(self, model: str, method: str) -> dict[str, np.ndarray]:
        found = load_file(self.folder / model / f"{method}.safetensors")
        return {name: values.astype(np.float32) for name, values in found.items()}


def maps_of(run: Path) -> dict[str, Maps]:
    """Kept maps by experiment: the run's own, or those of the runs it was collected from."""
    found: dict[str, Maps] = {}
    for folder, facts in members(run):
        experiment = facts.get("experiment")
        if (folder / "maps" / "index.json").is_file() and experiment:
            found.setdefault(experiment, Maps(folder / "maps", experiment))
    return found


def write_figures(run: Path, draws: int = DRAWS) -> list[Path]:
    """Every figure that the run's tables and maps allow, as figures/yona_*; of the first seed of several."""
    scores = read_scores(run)
    seed, e = next(iter(evidence(scores, draws).items()))
    means = means_table(scores, e, seed)
    into = run / "figures"
    paths = figure_effects(effects_table(e), into / "yona_effects")
    cascades: dict[str, tuple[str, ...]] = {HALVES: ("digits", "halves"), SANITY: ("trained",)}
    for experiment, trained in cascades.items():
        steps = cascade_table(means, experiment, trained)
        paths += figure_cascade(steps, methods_of(e), into / f"yona_cascade_{OWN[experiment]}")
    maps = maps_of(run)
    if HALVES in maps:
        paths += figure_1(maps[HALVES], into / "yona_figure1")
    for experiment, models, numbers in (
        (SHAPES, ("", "digits", "random_0"), (2, 4, 5)),
        (PAIRS, ("random_0", "pretrained", ""), (3, 6, 7)),
    ):
        if experiment in maps:
            chosen = ((GBP, VBP), FEW), ((GBP,), MORE), ((VBP,), MORE)
            for number, (methods, images) in zip(numbers, chosen, strict=True):
                paths += figure_models(maps[experiment], models, methods, images, into / f"yona_figure{number}")
    return paths


def spread(groups: pd.Series, most: int) -> list[int]:
    """Rows of the first images of each group in turn."""
    turn = groups.groupby(groups).cumcount()
    return sorted(turn.sort_values(kind="stable").index[:most])


@house()
def figure_1(maps: Maps, stem: Path) -> list[Path]:
    """Intact digits (columns): the image, guided backprop of the untrained network, of the one trained on t~."""
    shown = [("random_0", GBP), ("", GBP)]
    intact = maps.index[maps.index["group"] == "intact"]
    if intact.empty or not all(maps.has(*which) for which in shown):
        return []
    rows = list(intact.index[:8])
    fig, axes = figure(3, len(rows), height=WIDTH / max(len(rows), 4))
    drawn = []
    for column, row in zip(axes.T, rows, strict=True):
        _picture(column[0], maps, row)
    for line, which in zip(axes[1:], shown, strict=True):
        drawn += _draw(line, maps, which, rows)
    for line, name in zip(
        axes, ["image", *(f"{LABELS[GBP]}\n{TITLES[m][maps.experiment]}" for m, _ in shown)], strict=True
    ):
        _name_row(line[0], name)
    return save(fig, pd.DataFrame(drawn), stem)


@house()
def figure_models(maps: Maps, models: tuple[str, ...], methods: tuple[str, ...], images: int, stem: Path) -> list[Path]:
    """One image per row: the image, then for each method the maps of the models."""
    shown = [(model, method) for method in methods for model in models if maps.has(model, method)]
    index = maps.index
    if maps.experiment == SHAPES:
        index = index[index["group"] != "nothing"]
    if not shown or index.empty:
        return []
    rows = spread(index["group"], images)
    height, width = maps.pictures.shape[1:3]
    fig, axes = figure(len(rows), 1 + len(shown), height=1.15 * WIDTH / (1 + len(shown)) * height / width)
    drawn = []
    for line, row in zip(axes, rows, strict=True):
        _picture(line[0], maps, row)
        _name_row(line[0], str(maps.index["group"][row]))
    for column, which in zip(axes.T[1:], shown, strict=True):
        drawn += _draw(column, maps, which, rows)
        column[0].set_title(f"{LABELS[which[1]]}\n{TITLES[which[0]][maps.experiment]}")
    axes[0, 0].set_title("image")
    return save(fig, pd.DataFrame(drawn), stem)


def _bare(ax: Axes) -> None:
    ax.set_xticks([])
    ax.set_yticks([])
    ax.grid(False)
    ax.spines[:].set_visible(False)


def _name_row(ax: Axes, name: str) -> None:
    ax.set_ylabel(name, rotation=0, ha="right", va="center")


def _picture(ax: Axes, maps: Maps, row: int) -> None:
    ax.imshow(maps.pictures[row])
    _bare(ax)


def _draw(axes: np.ndarray, maps: Maps, which: tuple[str, str], rows: list[int]) -> list[dict[str, object]]:
    """Signed maps, each over its largest |value|: red positive, blue negative."""
    found = maps.planes(*which)
    drawn = []
    for ax, row in zip(axes, rows, strict=True):
        _bare(ax)
        if row >= len(found["plane"]):
            continue
        ax.imshow(found["plane"][row], cmap=SIGNED, vmin=-1, vmax=1)
        image = {"image_id": maps.index["image_id"][row], "group": maps.index["group"][row]}
        drawn.append(
            {**image, "model": which[0] or OWN[maps.experiment], "method": which[1], "largest": found["scale"][row]}
        )
    return drawn


@house()
def figure_effects(table: pd.DataFrame, stem: Path) -> list[Path]:
    """Effect sizes with 95% intervals over images, by method: > 0 where the paper's picture is right."""
    if table.empty:
        return []
    names = [n for n in EFFECTS if n in set(table["effect"])]
    methods = list(dict.fromkeys(table["method"]))
    fig, axes = figure(height=0.6 + 0.22 * len(names) * max(len(methods), 2))
    ax = axes[0, 0]
    for k, method in enumerate(methods):
        part = table[table["method"] == method]
        y = [-names.index(n) - 0.7 * (k + 0.5) / len(methods) + 0.35 for n in part["effect"]]
        reach = np.abs(part[["ci_low", "ci_high"]].sub(part["value"], axis=0).to_numpy().T)
        ax.errorbar(
            part["value"], y, xerr=reach, fmt="os^DvPX*"[k % 8], color=PALETTE[k % len(PALETTE)],
            capsize=2, markersize=4, linestyle="none", label=LABELS.get(method, method),
        )  # fmt: skip
    ax.axvline(0.0, color="#888888", linewidth=0.8)
    ax.set_yticks([-i for i in range(len(names))], names)
    ax.set_ylim(0.5 - len(names), 0.5)
    ax.set_xlabel("difference of means (95% interval over images)")
    fig.legend(loc="outside upper center", ncols=min(len(methods), 5))
    return save(fig, table, stem)


def cascade_table(means: pd.DataFrame, experiment: str, models: tuple[str, ...]) -> pd.DataFrame:
    """Spearman with the model whose last layers are drawn anew, by step."""
    rows = means[(means["experiment"] == experiment) & (means["quantity"] == "spearman") & means["model"].isin(models)]
    step = rows["against"].str.extract(r"^(?:top|cascading)_(\d+)$")[0].astype(float)
    step = step.mask(rows["against"] == "random", 100.0 if experiment == SANITY else np.nan)
    rows = rows.assign(step=step).dropna(subset="step")
    return rows.sort_values(["model", "method", "step"], ignore_index=True)


@house()
def figure_cascade(table: pd.DataFrame, methods: list[str], stem: Path) -> list[Path]:
    """Adebayo's cascade: similarity with the model whose last layers are drawn anew; a panel per trained model."""
    if table.empty:
        return []
    models = list(dict.fromkeys(table["model"]))
    fig, axes = figure(1, len(models), sharey=True)
    for ax, model in zip(axes[0], models, strict=True):
        for method in methods:
            part = table[(table["model"] == model) & (table["method"] == method)]
            style = look(method, methods)
            ax.plot(part["step"], part["value"], marker="o", markersize=3, label=LABELS.get(method, method), **style)
            ax.fill_between(part["step"], part["ci_low"], part["ci_high"], color=style["color"], alpha=0.2, linewidth=0)
        ax.axhline(ALIKE, color="#888888", linewidth=0.8)
        ax.set_title(f"model: {model}")
        ax.set_xticks(sorted(table["step"].unique()))
        ax.set_xlabel("re-initialised last layers" + (" (%)" if table["experiment"].iloc[0] == SANITY else ""))
    axes[0, 0].set_ylabel("Spearman with the trained model")
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=min(len(methods), 4))
    return save(fig, table, stem)
