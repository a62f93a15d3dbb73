"""Every number that a paper prints beside what was measured: one figure for any paper, from the rows of its claims."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from salrun.papers.style import PALETTE, figure, styled

NAME = "against_print"
LOOKS = {"yes": (PALETTE[0], "o"), "uncertain": (PALETTE[4], "D"), "no": (PALETTE[1], "s")}  # by `agrees`
SAYS = {"yes": "agrees", "uncertain": "uncertain", "no": "differs"}
CONTROL = PALETTE[2]


def printed_numbers(claims: pd.DataFrame, parts: pd.DataFrame) -> pd.DataFrame:
    """unit, part, published, measured, ci_low, ci_high, agrees: a row for each number, however many claims read it.

    The numbers of a claim about ranks are the scores that it ranks.
    """
    rows = (
        parts[parts["kind"] == "number"].merge(claims[["id", "unit"]], on="id").replace({"unit": {"ranks": "scores"}})
    )
    rows = rows.drop_duplicates(["unit", "part", "published", "measured"])
    numbers = rows[["published", "measured", "ci_low", "ci_high"]].apply(pd.to_numeric, errors="coerce")
    return rows[["unit", "part", "agrees"]].join(numbers).dropna(subset=["published", "measured"])


@styled()
def against_print(numbers: pd.DataFrame, controls: Mapping[str, Mapping[str, float]] | None = None) -> Figure:
    """A panel per unit: measured over printed with its interval, the diagonal, and how many agree.

    `controls` (unit -> name -> value) have no number in print: they stand at the left edge.
    """
    units = list(dict.fromkeys(numbers["unit"]))
    fig, axes = figure(-(-len(units) // 2), min(2, len(units)), height=3.2)
    for ax in axes.flat[len(units) :]:
        ax.set_axis_off()
    for ax, unit in zip(axes.flat, units, strict=False):
        part = numbers[numbers["unit"] == unit]
        marked = (controls or {}).get(unit, {})
        ends = [*part["published"], *part["measured"], *marked.values()]
        low, high = min(ends), max(ends)
        margin = 0.06 * (high - low or 1)
        ax.plot([low, high], [low, high], color="#999999", linewidth=1, zorder=1)
        for agrees, (colour, marker) in LOOKS.items():
            of = part[part["agrees"] == agrees]
            reach = np.abs(of[["ci_low", "ci_high"]].sub(of["measured"], axis=0).to_numpy()).T
            style = {"fmt": marker, "color": colour, "ms": 3, "elinewidth": 0.7, "label": f"{SAYS[agrees]}: {len(of)}"}
            ax.errorbar(of["published"], of["measured"], yerr=np.nan_to_num(reach), **style)
        written = -np.inf
        for name, value in sorted(marked.items(), key=lambda pair: pair[1]):
            written = max(value, written + 0.045 * (high - low or 1))  # names of neighbours do not lie on each other
            ax.plot(low - margin, value, ">", color=CONTROL, ms=5)
            ax.annotate(name, (low - 0.4 * margin, written), fontsize=7, va="center")
        median = (part["measured"] - part["published"]).median()
        ax.set_title(f"{unit}: {len(part)} numbers\nmedian difference {median:+.3f}")
        ax.set_xlabel("printed")
        ax.set_ylabel("measured")
        ax.legend(loc="lower right", fontsize=7)
    return fig
