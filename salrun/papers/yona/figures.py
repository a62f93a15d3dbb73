"""Figures 1 to 7 of Yona & Greenfeld (2021) from the kept maps of runs, and the numbers behind them as figures.

The paper's pictures: 1 the deleted half, 2 / 4 / 5 shapes, 3 / 6 / 7 pairs; 2 and 3 show both methods on a few images,
4 and 6 more images with vanilla, 5 and 7 with guided backpropagation. Columns stand in the paper's order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from salrun.papers.claims import Evidence
from salrun.papers.evidence import NotTestable
from salrun.papers.style import MARKERS, PALETTE, SIGNED, WIDTH, bare, figure, look, styled
from salrun.papers.yona.evidence import (
    GBP,
    HALVES,
    LABELS,
    PAIRS,
    SANITY,
    SHAPES,
    TRAINED,
    VBP,
    YonaEvidence,
    methods_of,
)
from salrun.papers.yona.tables import ALIKE, EFFECTS, effects_table
from salrun.results.maps import OWN, KeptMaps

TITLES = {
    HALVES: {"random": "untrained", "halves": "trained, t~"},
    SHAPES: {"shapes": "shape model", "digits": "digit model", "random": "untrained"},
    PAIRS: {"random": "random", "pretrained": "pretrained", "finetuned": "fine-tuned"},
}
FEW, MORE = 4, 10
FIGURES = {  # number -> experiment, methods, images, models from left to right
    2: (SHAPES, (GBP, VBP), FEW, ("random", "digits", "shapes")),
    3: (PAIRS, (GBP, VBP), FEW, ("random", "pretrained", "finetuned")),
    4: (SHAPES, (VBP,), MORE, ("random", "shapes", "digits")),
    5: (SHAPES, (GBP,), MORE, ("random", "shapes", "digits")),
    6: (PAIRS, (VBP,), MORE, ("random", "pretrained", "finetuned")),
    7: (PAIRS, (GBP,), MORE, ("random", "pretrained", "finetuned")),
}
DRAWS = 2_000
Drawn = tuple[Figure, pd.DataFrame]


def figures(e: YonaEvidence) -> dict[str, Callable[[], Drawn]]:
    """Name -> what draws it, of the first seed."""
    seed, draws = next(iter(e.draws.items()))
    draws = Evidence({"mean": draws["mean"].head(1 + DRAWS)})
    makers: dict[str, Callable[[], Drawn]] = {"effects": lambda: figure_effects(effects_table(draws))}
    for experiment, trained in {HALVES: ("digits", "halves"), SANITY: ("trained",)}.items():
        steps = cascade_table(e, seed, experiment, trained)
        makers[f"cascade_{TRAINED[experiment]}"] = partial(figure_cascade, *steps, methods_of(draws))
    makers["figure1"] = partial(figure_1, e)
    makers |= {f"figure{number}": partial(figure_models, e, *shown) for number, shown in FIGURES.items()}
    return makers


# -- maps --------------------------------------------------------------------------------------------------------------


def spread(groups: pd.Series, most: int) -> list[int]:
    """Rows of the first images of each group in turn."""
    turn = groups.groupby(groups).cumcount()
    return sorted(turn.sort_values(kind="stable").index[:most])


def kept_roles(
    e: YonaEvidence, experiment: str, methods: Sequence[str], names: Sequence[str]
) -> dict[tuple[str, str], str]:
    """(model, method) -> the role of the model's first copy, where the run kept its maps."""
    if experiment not in e.maps:
        raise NotTestable(f"needs kept maps of {experiment}")
    maps = e.maps[experiment]
    models = e.models[(e.models["experiment"] == experiment) & (e.models["seed"] == maps.facts["seed"])]
    roles = models.sort_values("copy").drop_duplicates("name").set_index("name")["role"]
    shown = {(model, m): roles[model] for m in methods for model in names if model in roles}
    return {which: role for which, role in shown.items() if maps.has(which[1], role)}


@styled()
def figure_1(e: YonaEvidence) -> Drawn:
    """Intact digits (columns): the image, guided backprop of the untrained network, of the one trained on t~."""
    roles = kept_roles(e, HALVES, (GBP,), tuple(TITLES[HALVES]))
    maps = e.maps[HALVES]
    rows = list(maps.images.index[maps.images["group"] == "intact"][:8])
    if not rows or len(roles) < len(TITLES[HALVES]):
        raise NotTestable("needs maps of intact digits, untrained and trained")
    fig, axes = figure(3, len(rows), height=WIDTH / max(len(rows), 4))
    for ax, row in zip(axes[0], rows, strict=True):
        ax.imshow(maps.pictures[row])
    _name_row(axes[0, 0], "image")
    drawn = []
    for line, ((model, method), role) in zip(axes[1:], roles.items(), strict=True):
        drawn += _draw(line, maps, method, role, rows, TRAINED[HALVES])
        _name_row(line[0], f"{LABELS[method]}\n{TITLES[HALVES][model]}")
    bare(axes)
    return fig, pd.DataFrame(drawn)


@styled()
def figure_models(
    e: YonaEvidence, experiment: str, methods: Sequence[str], images: int, models: Sequence[str]
) -> Drawn:
    """One image per row: the image, then for each method the maps of the models."""
    roles = kept_roles(e, experiment, methods, models)
    maps = e.maps[experiment]
    groups = maps.images["group"]
    rows = spread(groups[groups != "nothing"] if experiment == SHAPES else groups, images)
    if not roles or not rows:
        raise NotTestable(f"needs maps of {', '.join(methods)}")
    height, width = maps.pictures.shape[1:3]
    fig, axes = figure(len(rows), 1 + len(roles), height=1.15 * WIDTH / (1 + len(roles)) * height / width)
    for ax, row in zip(axes[:, 0], rows, strict=True):
        ax.imshow(maps.pictures[row])
        _name_row(ax, groups[row])
    drawn = []
    for column, ((model, method), role) in zip(axes.T[1:], roles.items(), strict=True):
        drawn += _draw(column, maps, method, role, rows, TRAINED[experiment])
        column[0].set_title(f"{LABELS[method]}\n{TITLES[experiment][model]}")
    axes[0, 0].set_title("image")
    bare(axes)
    return fig, pd.DataFrame(drawn)


def _name_row(ax: Axes, name: str) -> None:
    ax.set_ylabel(name, rotation=0, ha="right", va="center")


def _draw(
    axes: np.ndarray, maps: KeptMaps, method: str, role: str, rows: Sequence[int], trained: str
) -> list[dict[str, object]]:
    """Signed maps, each over its largest |value|: red positive, blue negative."""
    planes, scale = maps.planes(method, role), maps.scale(method, role)
    drawn = []
    for ax, row in zip(axes, rows, strict=True):
        if row >= len(planes):  # other models keep fewer images
            continue
        ax.imshow(planes[row], cmap=SIGNED, vmin=-1, vmax=1)
        image = maps.images.loc[row, ["image_id", "group"]]
        drawn.append({**image, "model": trained if role == OWN else role, "method": method, "largest": scale[row]})
    return drawn


# -- numbers -----------------------------------------------------------------------------------------------------------


@styled()
def figure_effects(table: pd.DataFrame) -> Drawn:
    """Effect sizes with 95% intervals over images, by method: > 0 where the paper's picture is right."""
    if table.empty:
        raise NotTestable("needs an experiment of EFFECTS")
    names = [n for n in EFFECTS if n in set(table["effect"])]
    methods = list(dict.fromkeys(table["method"]))
    fig, axes = figure(height=0.6 + 0.22 * len(names) * max(len(methods), 2))
    ax = axes[0, 0]
    for k, method in enumerate(methods):
        part = table[table["method"] == method]
        y = [-names.index(n) - 0.7 * (k + 0.5) / len(methods) + 0.35 for n in part["effect"]]
        reach = np.abs(part[["ci_low", "ci_high"]].sub(part["value"], axis=0).to_numpy().T)
        ax.errorbar(
            part["value"], y, xerr=reach, fmt=MARKERS[k % len(MARKERS)], color=PALETTE[k % len(PALETTE)],
            capsize=2, markersize=4, linestyle="none", label=LABELS.get(method, method),
        )  # fmt: skip
    ax.axvline(0.0, color="#888888", linewidth=0.8)
    ax.set_yticks([-i for i in range(len(names))], names)
    ax.set_ylim(0.5 - len(names), 0.5)
    ax.set_xlabel("difference of means (95% interval over images)")
    fig.legend(loc="outside upper center", ncols=min(len(methods), 5))
    return fig, table


def cascade_table(e: YonaEvidence, seed: int, experiment: str, models: Sequence[str]) -> tuple[pd.DataFrame, str]:
    """(Spearman with the model whose last layers are drawn anew, by step; what the steps count: % or layers)."""
    drawn = e.models[(e.models["experiment"] == experiment) & e.models["mode"].isin(["cascading", "all"])]
    unit = drawn.sort_values("mode", ascending=False)["unit"].iloc[0] if len(drawn) else ""  # the cascade's, if any
    step = drawn[drawn["unit"] == unit].drop_duplicates("drawn").set_index("drawn")["step"]
    means = e.means(seed, DRAWS)
    rows = means[(means["experiment"] == experiment) & (means["quantity"] == "spearman") & means["model"].isin(models)]
    rows = e.called(rows).assign(step=rows["against"].map(step)).dropna(subset="step")
    return rows.sort_values(["model", "method", "step"], ignore_index=True), unit


@styled()
def figure_cascade(table: pd.DataFrame, unit: str, methods: Sequence[str]) -> Drawn:
    """Adebayo's cascade: similarity with the model whose last layers are drawn anew; a panel per trained model."""
    if table.empty:
        raise NotTestable("needs models whose last layers are drawn anew")
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
        ax.set_xlabel("re-initialised last layers" + (" (%)" if unit == "%" else ""))
    axes[0, 0].set_ylabel("Spearman with the trained model")
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=min(len(methods), 4))
    return fig, table
