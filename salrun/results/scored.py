"""The scores of some runs as judges of metrics read them: one matrix (images x methods) per cell and series."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from salrun.errors import SalrunError
from salrun.results.run import LADDER, Run
from salrun.results.tables import directions_of
from salrun.stats.reliability import CELL, SERIES, Direction, wide

ORACLE = "oracle"  # the ladder whose rungs keep their names


class Series(NamedTuple):
    """What tells the series of a cell apart; the view is empty where it is the methods' own."""

    metric: str
    mode: str
    score: str
    view: str

    @property
    def title(self) -> str:
        return " ".join(filter(None, self))


@dataclass(frozen=True)
class Scored:
    """The scores of some runs, their images, and which way each named score is better."""

    scores: pd.DataFrame
    images: pd.DataFrame  # CELL, image_id, group, confidence
    directions: Mapping[tuple[str, str, str], Direction]  # by metric, mode, score
    controls: tuple[str, ...] = ()  # methods that are there to be compared with, and have no part in rankings
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # method -> its options
    metrics: tuple[Mapping[str, Any], ...] = ()  # as run.json lists them

    def series(self, nan_to_zero: bool = False) -> Iterator[tuple[dict[str, Any], Series, pd.DataFrame, Direction]]:
        """(keys, series, images x methods, direction) of all that is better one way or the other."""
        for keys, matrix in wide(self.scores, nan_to_zero):
            series = Series(*(str(keys[name]) for name in SERIES))
            direction: Direction = self.directions.get((series.metric, series.mode, series.score), "none")
            if direction != "none":
                yield keys, series, matrix, direction

    def own(self, matrix: pd.DataFrame) -> pd.DataFrame:
        """Without the controls."""
        return matrix.drop(columns=[name for name in self.controls if name in matrix])


def read_runs(paths: Sequence[Path]) -> Scored:
    """The scores of several runs as one table."""
    if not paths:
        raise SalrunError("there is nothing to judge: give the folder of at least one run")
    runs = [Run(path) for path in paths]
    scores = pd.concat([_scores(run) for run in runs], ignore_index=True)
    refuse_other_methods(runs)
    images = pd.concat([run.images.merge(run.cells[["cell", *CELL]], on="cell") for run in runs], ignore_index=True)
    directions: dict[tuple[str, str, str], Any] = {}
    for run in runs:
        directions |= _directions(run)
    keys = [*CELL, "image_id", "method", *SERIES]
    listed = {(m["metric"], m["mode"]): m for run in runs for m in run.metrics}
    return Scored(
        scores.drop_duplicates(keys, keep="last", ignore_index=True),
        images.drop_duplicates([*CELL, "image_id"], keep="last", ignore_index=True),
        directions,
        tuple(dict.fromkeys(called(run, name) for run in runs for name in run.controls)),
        {called(run, name): about.get("options") or {} for run in runs for name, about in run.methods.items()},
        tuple(listed.values()),
    )


def refuse_other_methods(runs: Sequence[Run]) -> None:
    """A method must mean the same in all runs of one cell: their scores would be taken for each other's."""
    seen: dict[tuple, tuple[Run, Any]] = {}
    for run in runs:
        for cell, (name, about) in product(run.cells["cell"], run.methods.items()):
            other, options = seen.setdefault((cell, called(run, name)), (run, about.get("options")))
            if about.get("options") != options:
                raise SalrunError(
                    f"{other.path} and {run.path} are of one model, but methods.{name} differs between them: "
                    f"judge them apart, or give the methods other names"
                )


def ladder_of(options: Mapping[str, Any]) -> str:
    """The ladder that a method with these options is a rung of, by its base and its mix; empty where it is none."""
    if options.get("_target_") != LADDER:
        return ""
    base = str((options.get("base") or {}).get("_target_", ORACLE)).rpartition(".")[2].lower()
    return base if options.get("mix", "pixels") == "pixels" else f"{base} by {options['mix']}"


def called(run: Run, name: str) -> str:
    """A run's method as tables of several runs call it: rungs of ladders with another base go by that base too."""
    ladder = ladder_of(run.methods[name].get("options") or {}) if name in run.methods else ""
    return name if ladder in ("", ORACLE) else f"{name} of {ladder}"


def _scores(run: Run) -> pd.DataFrame:
    scores = run.scores
    new = {name: called(run, name) for name in run.ladders}
    if all(name == other for name, other in new.items()):
        return scores
    return scores.assign(method=[new.get(name, name) for name in scores["method"]])


def _directions(run: Run) -> dict[tuple[str, str, str], str]:
    """From its metrics; a collected run lists none, and has a summary."""
    if run.metrics:
        return directions_of(run.metrics, run.scores)
    ways = run.summary[["metric", "mode", "score", "direction"]].drop_duplicates()
    return {(metric, mode, score): way for metric, mode, score, way in ways.itertuples(index=False, name=None)}
