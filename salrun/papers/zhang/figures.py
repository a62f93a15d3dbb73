"""Figures 1 and 2 of Zhang, Torres, Hermanns (ACML 2024), drawn from the tables and kept maps of a run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib import colormaps
from safetensors import safe_open

from salrun.files import write_atomic
from salrun.papers.style import MARKERS, PALETTE, UNSIGNED, figure, house, save
from salrun.papers.zhang.tables import FIDELITY, LABELS, METHODS, Cell, read_cells, setting_of
from salrun.tables import members

BESIDE = ("integrated_gradients", "score_cam")  # shown beside the method that a row is about
SHOWN = 100  # images of Figure 2
NOTHING = pd.MultiIndex.from_tuples([], names=["column", "method"])
PANELS = {"AG": ("AG", 1, 0), "AD": ("ADb", -1, 100), "I": ("I", 1, 0), "D": ("Db", -1, 100)}


def write_figures(run: Path) -> list[Path]:
    """Every figure that the run's tables and maps allow, as figures/zhang_*; of the first seed of several."""
    cell = read_cells(run)[0]
    kept = kept_maps(run, cell.seed)
    return figure_2(cell, run / "figures" / "zhang_figure2") + figure_1(kept, cell, run / "figures" / "zhang_figure1")


@dataclass(frozen=True)
class Kept:
    """A folder of kept maps, and the row of each image in its files."""

    folder: Path
    row: dict[str, int]

    def has(self, method: str, image: str) -> bool:
        return image in self.row and (self.folder / f"{method}.safetensors").is_file()

    def picture(self, image: str) -> np.ndarray:
        return self._read("images", "x", image)

    def plane(self, method: str, image: str) -> np.ndarray:
        return self._read(method, "plane", image)

    def _read(self, file: str, name: str, image: str) -> np.ndarray:
        row = self.row[image]
        with safe_open(self.folder / f"{file}.safetensors", framework="numpy") as stored:
            return stored.get_slice(name)[row : row + 1][0]


def kept_maps(run: Path, seed: int) -> list[Kept]:
    """The run's maps, or those of the fidelity runs of this seed that it was collected from."""
    found = []
    for path, facts in members(run):
        index = path / "maps" / "index.json"
        ours = facts.get("seed", seed) == seed and setting_of(str(facts.get("experiment"))) == "fidelity"
        if ours and index.is_file():
            ids = json.loads(index.read_text())["image_id"]
            found.append(Kept(index.parent, {name: row for row, name in enumerate(ids)}))
    return found


def extremes(cell: Cell, kept: list[Kept]) -> pd.DataFrame:
    """Per metric the best and the worst method by their means, and the kept images they score highest and lowest."""
    scores, rows = cell.scores.get("fidelity", pd.DataFrame(columns=NOTHING)), []
    for metric in FIDELITY:
        if metric not in scores.columns.get_level_values("column"):
            continue
        of = pd.DataFrame(scores[metric])
        order = of.mean().dropna().sort_values(ascending=False, kind="stable").index
        for place, method in {"best": order[0], "worst": order[-1]}.items() if len(order) else ():
            own = of.loc[[any(k.has(method, image) for k in kept) for image in of.index], method].dropna()
            for end, image in {"highest": own.idxmax(), "lowest": own.idxmin()}.items() if len(own) else ():
                rows.append((metric, place, method, of[method].mean(), end, image, own[image]))
    return pd.DataFrame(rows, columns=["metric", "place", "method", "mean", "end", "image_id", "value"])


def coloured(plane: np.ndarray) -> np.ndarray:
    """(H, W, 3) bytes: the magnitude over its largest, in colours."""
    magnitude = np.abs(plane.astype(np.float32))
    return (255 * colormaps[UNSIGNED](magnitude / max(float(magnitude.max()), 1e-30))[..., :3]).astype(np.uint8)


@house()
def figure_1(kept: list[Kept], cell: Cell, stem: Path) -> list[Path]:
    """A gallery of extremes, and an index of it as JSON.

    Each row is a metric's best or worst method, the image it scores highest (left) and lowest (right), with the
    magnitude of that method's map and of others.
    """
    table = extremes(cell, kept)
    if table.empty:
        return []
    lines = list(table.groupby(["metric", "place"], sort=False))
    fig, axes = figure(len(lines), 2, height=1.0)
    for line, ((metric, where), part) in zip(axes, lines, strict=True):
        for ax, (_, item) in zip(line, part.iterrows(), strict=False):
            image = item["image_id"]
            homes = {m: [k for k in kept if k.has(m, image)] for m in dict.fromkeys([item["method"], *BESIDE])}
            shown = {m: found[0] for m, found in homes.items() if found}
            picture = shown[item["method"]].picture(image)
            ax.imshow(np.concatenate([picture, *(coloured(k.plane(m, image)) for m, k in shown.items())], axis=1))
            names = ", ".join(LABELS.get(m, m) for m in shown)
            ax.set_title(f"{item['end']} {metric} {item['value']:.3g}; {names}", fontsize=6)
        line[0].set_ylabel(f"{metric}\n{where}", fontsize=6)
    for ax in axes.flat:
        ax.set_xticks([])
        ax.set_yticks([])
        ax.grid(False)
    listing = json.dumps(table.to_dict("records"), indent=1).encode()
    write_atomic(stem.with_name(f"{stem.name}.json"), listing + b"\n")
    return [*save(fig, table, stem), stem.with_name(f"{stem.name}.json")]


def probability_table(cell: Cell, most: int = SHOWN) -> pd.DataFrame:
    """AG, AD, I, D by method against p_c: images in order of p_c, thinned out evenly."""
    scores, p = cell.scores.get("fidelity"), cell.probability.get("fidelity")
    if scores is None or p is None:
        return pd.DataFrame()
    p = p[p.index.isin(scores.index)].sort_values(kind="stable")
    chosen = p.iloc[np.unique(np.linspace(0, len(p) - 1, min(most, len(p))).round().astype(int))]
    parts = []
    for metric, (column, sign, offset) in PANELS.items():
        for method in METHODS:
            if (column, method) in scores:
                value = offset + sign * scores[column, method].reindex(chosen.index)
                parts.append(pd.DataFrame({"metric": metric, "method": method, "p": chosen, "value": value}))
    return pd.concat(parts).rename_axis("image_id").reset_index() if parts else pd.DataFrame()


@house()
def figure_2(cell: Cell, stem: Path) -> list[Path]:
    """AG, AD, insertion and deletion of every method against the probability of the class explained."""
    table = probability_table(cell)
    if table.empty:
        return []
    fig, axes = figure(2, 2, sharex=True)
    methods = [m for m in METHODS if m in set(table["method"])]
    for ax, metric in zip(axes.flat, PANELS, strict=True):
        for method in methods:
            part = table[(table["metric"] == metric) & (table["method"] == method)]
            k = METHODS.index(method)
            colour, marker = PALETTE[k % len(PALETTE)], MARKERS[(k + k // len(PALETTE)) % len(MARKERS)]
            ax.scatter(part["p"], part["value"], s=8, color=colour, marker=marker, alpha=0.6, label=LABELS[method])
        ax.set_title(metric)
    for ax in axes[-1]:
        ax.set_xlabel("p of the class explained")
    for ax in axes[:, 0]:
        ax.set_ylabel("percent")
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=5)
    return save(fig, table, stem)
