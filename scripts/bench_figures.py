"""The benches' figures, as SVG: rates of methods and metrics by family, and the growth of cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from salrun.papers.style import PALETTE, figure, look, styled

Row = dict[str, Any]
SIDES = {  # column: label, marker, colour
    "floor": ("floor: eager passes it cannot avoid", "|", PALETTE[6]),
    "peer": ("fastest peer, equal work", "X", PALETTE[1]),
    "exact": ("salrun, exact", "o", PALETTE[0]),
    "fast": ("salrun, fast (half precision)", "D", PALETTE[2]),
}
FAMILIES = ("gradient", "relevance", "CAM", "masks", "curve", "correlation", "masking")
TITLES = {"images": "images", "pixels": "pixels of an image", "methods": "methods of one pass", "masks": "masks"}


@styled()
def speed_figure(rows: list[Row], name: str, path: Path) -> None:
    """Images per second on a log scale, a panel per network, names by family; bars are quartiles."""
    rows = [row for row in rows if row["family"] in FAMILIES and row["exact"]]
    models = list(dict.fromkeys(row["model"] for row in rows))
    labels = sorted({(FAMILIES.index(row["family"]), row["family"], row[name]) for row in rows})
    place: dict[str, int] = {}
    for _, family, label in labels:
        place.setdefault(f"{family}:".upper(), -len(place))
        place[label] = -len(place)
    fig, axes = figure(1, len(models), 0.9 + 0.18 * len(place), sharey=True)
    for ax, model in zip(axes[0], models, strict=True):
        for row in (row for row in rows if row["model"] == model):
            for side, (label, marker, colour) in SIDES.items():
                if not row.get(side):
                    continue
                if row.get(f"{side}_low"):
                    ax.plot([row[f"{side}_low"], row[f"{side}_high"]], [place[row[name]]] * 2, color=colour, lw=1)
                size = {"markersize": 9, "markeredgewidth": 2} if marker == "|" else {"markersize": 4.5}
                ax.plot(row[side], place[row[name]], marker, color=colour, label=label, **size)
        ax.set_xscale("log")
        ax.set_xlabel("images per second")
        ax.set_title(model)
    axes[0, 0].set_yticks(list(place.values()), list(place))
    known = {label: handle for ax in axes[0] for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    fig.legend(known.values(), known.keys(), loc="outside upper center", ncols=2)
    save(fig, path)


@styled()
def growth_figure(rows: list[Row], path: Path) -> None:
    """Time and memory against n, both on log scales; dotted: in proportion to n."""
    names = list(dict.fromkeys(row["axis"] for row in rows))
    fig, axes = figure(2, len(names), 2.2, sharex="col")
    for column, axis in enumerate(names):
        series = list(dict.fromkeys(row["series"] for row in rows if row["axis"] == axis))
        for name in series:
            line = [row for row in rows if (row["axis"], row["series"]) == (axis, name)]
            n = [row["n"] for row in line]
            for ax, quantity in zip(axes[:, column], ("seconds", "mib"), strict=True):
                values = [row[quantity] for row in line]
                if not all(values):
                    continue
                ax.plot(n, values, marker="o", markersize=3, label=name, **look(name, series))
                if name == series[-1]:
                    ax.plot(n, [values[0] * k / n[0] for k in n], ":", color="grey", lw=1)
        for ax in axes[:, column]:
            ax.set_xscale("log")
            ax.set_yscale("log")
            ax.set_xticks(n, [f"{k:,}" for k in n])
            ax.xaxis.set_minor_formatter("")
            ax.yaxis.set_major_formatter("{x:g}")
            ax.yaxis.set_minor_formatter("")
            low, high = ax.get_ylim()
            ax.set_ylim(low / 2, high * 2)  # flat is to look flat
        axes[0, column].legend(fontsize=6)
        axes[1, column].set_xlabel(TITLES[axis])
    axes[0, 0].set_ylabel("seconds")
    axes[1, 0].set_ylabel("MiB at the peak")
    save(fig, path)


def save(fig: Figure, path: Path) -> None:
    FigureCanvasSVG(fig).print_svg(path, metadata={"Date": None})
