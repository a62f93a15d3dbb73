"""A comparison as text: one table of methods by metrics, as wide as there is room, and what it says in a sentence."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from itertools import accumulate
from math import floor, isfinite, log10

from salrun.results.comparison import Comparison, Judged, experiment_matrix

WIDTH = 100  # where there is no terminal
RANK = 6  # columns of the mean rank
MARKS = {"better": "+", "worse": "-", "alike": "=", "": " "}
AMBER, BOLD, PLAIN = "\033[33m", "\033[1m", "\033[0m"


def width() -> int:
    """Columns of the terminal; without one COLUMNS, or a fixed number."""
    return shutil.get_terminal_size((WIDTH, 24)).columns


def amber(text: str) -> str:
    """What a reader must not miss."""
    return f"{AMBER}{text}{PLAIN}" if _colours() else text


def bold(text: str) -> str:
    return f"{BOLD}{text}{PLAIN}" if _colours() else text


def _colours() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def answer(comparison: Comparison, columns: int) -> list[str]:
    """Title, sentence, table, and what its marks mean."""
    seeds = ", ".join(map(str, comparison.about["seeds"]))
    models = f", {comparison.models} models (seeds {seeds})" if comparison.models > 1 else ""
    title = f"{comparison.title}: {comparison.images} images{models}, scale={comparison.about['scale']}"
    below = [legend(comparison), *comparison.notes]
    return [
        *map(bold, wrapped(title, columns)),
        *wrapped(comparison.sentence, columns),
        "",
        *table(comparison, columns),
        "",
        *(line for text in below for line in wrapped(text, columns)),
    ]


def table(comparison: Comparison, columns: int) -> list[str]:
    """Methods by metrics, best first, then the controls; the less room, the shorter the cells, and then the rows."""
    names = [*comparison.methods, *comparison.controls]
    left = max(map(len, [*names, "controls"]))
    grid: list[list[str]] = []
    widths: list[int] = []
    for style in ("interval", "spread", "short"):
        grid = [_column(judged, names, style) for judged in comparison.shown]
        widths = [max(map(len, column)) for column in grid]
        if left + RANK + sum(widths) <= columns:
            break
    fitting = max(1, sum(end <= columns - left - RANK for end in accumulate(widths)))
    ranks = {name: f"{rank:.1f}" for name, rank in comparison.mean_ranks.items()}
    lines = []
    for n, name in enumerate(["method", *names]):
        if n == len(comparison.methods) + 1:
            lines.append("controls")
        rank = "rank" if n == 0 else ranks.get(name, "")
        cells = "".join(column[n].ljust(w) for column, w in zip(grid[:fitting], widths, strict=False))
        lines.append(f"{name:<{left}}{rank:>{RANK}}{cells}".rstrip())
    left_out = [judged.metric for judged in comparison.shown[fitting:]]
    return [*lines, *(wrapped(f"not shown, too narrow: {', '.join(left_out)}", columns) if left_out else [])]


def legend(comparison: Comparison) -> str:
    """What the marks of the table mean."""
    whose = "images of these models" if comparison.models > 1 else "images"
    said = f"* best, or not told apart from the best; 95% intervals over {whose}; rank: mean over the metrics"
    if comparison.has_random:
        said += "; +/-/= better, worse, not told apart from random (paired, Holm)"
    if any(judged.flagged for judged in comparison.shown):
        said += "; !n: n scores flagged"
    views = sorted({judged.view for judged in comparison.shown if judged.view})
    return said + (f"; maps read through {', '.join(views)}" if views else "")


def joined(comparisons: Sequence[Comparison], columns: int) -> list[str]:
    """Mean ranks of several comparisons, methods by comparisons, and their mean."""
    matrix = experiment_matrix(comparisons)
    heads = [*(f"({n})" for n in range(1, len(matrix))), "mean"]
    left = max(map(len, ["mean rank", *matrix.columns]))
    fitting = max(1, (columns - left) // RANK - 1)
    chosen = [*range(min(fitting, len(heads) - 1)), len(heads) - 1]  # the mean is always there
    lines = [f"{head} {title}" for head, title in zip(heads, matrix.index[:-1], strict=False)]
    lines.append(f"{'mean rank':<{left}}" + "".join(f"{heads[n]:>{RANK}}" for n in chosen))
    for method in matrix:
        ranks = [f"{rank:.1f}" if isfinite(rank) else "-" for rank in matrix[method]]
        lines.append(f"{method:<{left}}" + "".join(f"{ranks[n]:>{RANK}}" for n in chosen))
    if matrix.isna().any(axis=None):
        lines.append("ranks are among the methods of each; the mean is of methods that all have")
    return lines


def wrapped(text: str, columns: int, indent: str = "") -> list[str]:
    """The text in lines of at most so many columns; words, and paths, stay whole."""
    return textwrap.wrap(text, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def decimals(values: Sequence[float], digits: int) -> int:
    """Places behind the point that show the largest value with so many digits."""
    largest = max((abs(v) for v in values if isfinite(v)), default=0.0)
    return min(max(digits - 1 - floor(log10(largest)), 0), 6) if largest else digits


def rounded(value: float, places: int) -> str:
    """With so many places behind the point; zero has no sign."""
    return f"{round(value, places) + 0.0:.{places}f}"


def _column(judged: Judged, names: Sequence[str], style: str) -> list[str]:
    """A metric's head, and its cell of each method: mean, interval, the mark against random, flagged scores."""
    short = style == "short"
    standings = {s.method: s for s in (*judged.ranking.methods, *judged.ranking.controls)}
    places, gap = decimals([s.mean for s in standings.values()], 2 if short else 3), "" if short else " "

    def number(value: float) -> str:
        text = rounded(value, places)
        return text.replace("0.", ".", 1) if short and abs(value) < 1 else text

    size = max((len(number(s.mean)) for s in standings.values()), default=0)
    cells = [f"   {judged.metric} {judged.arrow}"]
    for method in names:
        if method not in standings:
            cells.append(f"   {'-':>{size}}")
            continue
        s = standings[method]
        spread = f"[{number(s.low)}, {number(s.high)}]" if style == "interval" else f"±{number((s.high - s.low) / 2)}"
        spread = spread if isfinite(s.low) else ""  # of one image
        star, mark = "*" if method in judged.ranking.best else " ", MARKS[s.gain.verdict]
        flagged = f"!{judged.flagged[method]}" if judged.flagged.get(method) else ""
        cells.append(f"  {star}{number(s.mean):>{size}}{gap}{spread}{gap}{mark}{flagged}")
    return cells
