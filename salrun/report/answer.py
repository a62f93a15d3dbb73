"""The first screen of a report: the comparison as a table with bars, mean ranks of several, and six maps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from salrun.report.console import MARKS, decimals, legend, rounded
from salrun.report.gallery import pool
from salrun.report.pictures import coloured, data_uri
from salrun.results.comparison import RANDOM, Comparison, Judged, experiment_matrix
from salrun.results.maps import KeptMaps
from salrun.results.run import Run
from salrun.stats.comparison import Standing

MEANINGS = {"better": "better than random", "worse": "worse than random", "alike": "not told apart from random", "": ""}
PER_IMAGE = 3  # maps of each of two images


@dataclass(frozen=True)
class Cell:
    """A method under a metric, as it is written and drawn."""

    value: float
    text: str
    interval: str
    best: bool
    mark: str  # against the random map
    meaning: str
    flagged: int
    bar: Markup


@dataclass(frozen=True)
class Line:
    """A method with its cells; None where a metric has no score of it."""

    name: str
    rank: str
    control: bool
    cells: list[Cell | None]


@dataclass(frozen=True)
class Answer:
    """One comparison."""

    title: str
    sentence: str
    heads: list[str]
    lines: list[Line]
    notes: list[str]


@dataclass(frozen=True)
class Matrix:
    """Mean ranks: experiments by methods; `shade` from 0 (best rank of its row) to 1 (worst)."""

    methods: list[str]
    rows: list[tuple[str, list[tuple[str, float]]]]


@dataclass(frozen=True)
class Shown:
    """An image with a few of its maps, as pictures."""

    about: str
    picture: str
    maps: list[tuple[str, str]]


def answer_of(comparison: Comparison) -> Answer:
    """The comparison as the page shows it."""
    columns = [_cells(judged) for judged in comparison.shown]
    lines = [
        Line(
            comparison.labels.get(name, name),
            f"{comparison.mean_ranks[name]:.1f}" if name in comparison.mean_ranks else "",
            name in comparison.controls,
            [column.get(name) for column in columns],
        )
        for name in [*comparison.methods, *comparison.controls]
    ]
    heads = [f"{judged.metric} {judged.arrow}" for judged in comparison.shown]
    said = comparison.sentence
    named = said.startswith(comparison.methods)  # names are written as they are
    notes = [f"{sentence(note)}." for note in (legend(comparison), *comparison.notes)]
    return Answer(comparison.title, said if named else sentence(said), heads, lines, notes)


def sentence(text: str) -> str:
    """With a capital."""
    return text[:1].upper() + text[1:]


def _cells(judged: Judged) -> dict[str, Cell]:
    standings = [*judged.ranking.methods, *judged.ranking.controls]
    places = decimals([s.mean for s in standings], 3)
    ends = [x for s in standings for x in (s.mean, s.low, s.high) if math.isfinite(x)]
    start, end = min([0.0, *ends]), max([0.0, *ends])
    random = next((s.mean for s in standings if s.method == RANDOM), math.nan)
    return {
        s.method: Cell(
            value=s.mean,
            text=rounded(s.mean, places),
            interval=f"95% interval {rounded(s.low, places)} to {rounded(s.high, places)}"
            if math.isfinite(s.low)
            else "",
            best=s.method in judged.ranking.best,
            mark=MARKS[s.gain.verdict].strip(),
            meaning=MEANINGS[s.gain.verdict],
            flagged=judged.flagged.get(s.method, 0),
            bar=bar(s, start, end, random),
        )
        for s in standings
    }


def bar(standing: Standing, start: float, end: float, reference: float) -> Markup:
    """A bar from zero to the mean with its interval, and a line where the random map is."""
    if not end > start or not math.isfinite(standing.mean):
        return Markup("")

    def at(x: float) -> float:
        return 1 + 62 * (x - start) / (end - start)

    left, right = sorted((at(0.0), at(standing.mean)))
    parts = [f'<rect x="{left:.1f}" y="1" width="{right - left:.1f}" height="5"/>']
    if math.isfinite(standing.low):
        parts.append(f'<path d="M{at(standing.low):.1f} 3.5H{at(standing.high):.1f}"/>')
    if math.isfinite(reference):
        parts.append(f'<path class="axis" d="M{at(reference):.1f} 0V7"/>')
    return Markup(f'<svg class="bar" width="64" height="7" aria-hidden="true">{"".join(parts)}</svg>')


def matrix_of(comparisons: Sequence[Comparison]) -> Matrix:
    """Mean ranks of the methods in each comparison, and over all of them."""
    table = experiment_matrix(comparisons)
    labels = {name: label for c in comparisons for name, label in c.labels.items()}
    rows = []
    for title, ranks in zip(table.index, table.to_numpy(), strict=True):
        there = ranks[np.isfinite(ranks)]
        low, high = (there.min(), there.max()) if len(there) else (0.0, 0.0)
        shades = (ranks - low) / (high - low if high > low else 1.0)
        rows.append(
            (
                str(title),
                [(f"{r:.1f}" if math.isfinite(r) else "", float(s)) for r, s in zip(ranks, shades, strict=True)],
            )
        )
    return Matrix([labels.get(name, name) for name in table], rows)


def six_maps(run: Run, comparison: Comparison | None) -> list[Shown]:
    """Two images with three maps each: the two best methods and the random map, or the last method without it."""
    kept = KeptMaps(run.path / "maps")
    known: dict[str, dict[str, Any]] = {m["name"]: m for m in kept.index["methods"]}
    order = [m for m in (comparison.methods if comparison else ()) if m in known] or list(known)
    last = RANDOM if RANDOM in known else order[-1]
    chosen = list(dict.fromkeys([*[m for m in order if m != last][: PER_IMAGE - 1], last]))
    right = [k for k, (y, p) in enumerate(zip(kept.index["label"], kept.index["prediction"], strict=True)) if y == p]
    places = right if len(right) > 1 else list(range(len(kept.index["label"])))
    images = [places[len(places) // 3], places[2 * len(places) // 3]]  # the first may be of a group without objects
    pictures = np.rint(pool(kept.pictures[images].astype(np.float32))).astype(np.uint8)
    planes = {name: pool(kept.planes(name)[images]) for name in chosen}
    classes = dict(enumerate(kept.index["classes"]))
    return [
        Shown(
            about=str(classes.get(kept.index["label"][at], kept.index["label"][at])),
            picture=data_uri(pictures[k]),
            maps=[
                (str(known[name]["label"]), data_uri(coloured(plane[k], known[name]["signed"], pictures[k])))
                for name, plane in planes.items()
            ],
        )
        for k, at in enumerate(images)
    ]
