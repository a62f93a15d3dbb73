"""Tell trackers (`logger=...`) of a finished run: they read its tables, figures and config, and change none of them.

A tracker is a dataclass with `write(finished) -> str`, which returns where the run can be seen; with `groups: true` it
gets the means of single groups of images too. Whatever it raises is a warning: a run that is measured is done.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pandas as pd
import yaml

from salrun.config.parts import instantiate
from salrun.errors import SalrunError, told
from salrun.results.run import Run
from salrun.results.tables import ALL

log = logging.getLogger(__name__)

FILES = ("report.html", "config.yaml", "run.json", "claims.csv", "tables/summary.csv", "tables/cells.csv", "figures/*")


class Tracker(Protocol):
    """What `logger=<name>` stands for."""

    def write(self, finished: Finished) -> str:
        """Hand the run over; where it can be seen."""


@dataclass(frozen=True)
class Finished:
    """A finished run as trackers take it."""

    name: str
    experiment: str
    sweep: Path | None  # the folder of the sweep it is a job of
    parameters: Mapping[str, Any]  # its config, one key per value: `methods.rise.n_masks`
    tags: Mapping[str, str]
    metrics: Mapping[str, float]  # of the summary: mean and interval of every row
    files: Mapping[str, Path]  # path below the run directory -> file

    @property
    def figures(self) -> dict[str, Path]:
        return {path.stem: path for path in self.files.values() if path.suffix == ".png"}


def trackers(config: Mapping[str, Any]) -> dict[str, Tracker]:
    """The trackers of a run, by name; SalrunError where one cannot be made."""
    made = {name: instantiate(spec, f"logger.{name}") for name, spec in (config.get("logger") or {}).items()}
    for name, tracker in made.items():
        if not hasattr(tracker, "write"):
            raise SalrunError(f"logger.{name}: {type(tracker).__name__} is no tracker, it has no write(finished)")
    return made


def track(run: Run, to: Mapping[str, Tracker]) -> dict[str, str]:
    """Hand a finished run to every tracker: name -> where it can be seen, or why it cannot."""
    places = {}
    for name, tracker in to.items():
        try:
            places[name] = tracker.write(finished(run, getattr(tracker, "groups", False)))
        except (Exception, SystemExit) as fault:  # whatever a tracker or its server does, the run is measured
            places[name] = f"failed: {told(fault)}"
            log.warning(
                "logger=%s did not take the run (%s); its tables are complete, the same command again tells it anew",
                *(name, told(fault)),
            )
            log.debug("logger=%s", name, exc_info=True)
    return places


def finished(run: Run, groups: bool) -> Finished:
    """What trackers get of a run; `groups`: of each group of images too, not only of all of them."""
    folder = run.path.resolve()
    sweep = folder.parent if (folder.parent / "multirun.yaml").is_file() else None
    config = {key: value for key, value in yaml.safe_load(run.config).items() if key != "logger"}
    tags = {key: str(run.facts.get(key)) for key in ("command", "commit", "device", "host", "paper", "salrun")}
    found = sorted(path for pattern in FILES for path in folder.glob(pattern))
    return Finished(
        name=f"{run.experiment}-{folder.name}" if sweep is None else f"{run.experiment}-{sweep.name}-{folder.name}",
        experiment=run.experiment,
        sweep=sweep,
        parameters=dict(flat(config)),
        tags={**tags, "folder": str(folder)},
        metrics=dict(summary_rows(run, groups)),
        files={path.relative_to(folder).as_posix(): path for path in found},
    )


def flat(config: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of everything in a config; an empty mapping is a value."""
    if isinstance(config, dict) and config:
        for key, value in config.items():
            yield from flat(value, f"{where}.{key}" if where else str(key))
    else:
        yield where, config if isinstance(config, int | float | str) else str(config)


def summary_rows(run: Run, groups: bool) -> Iterator[tuple[str, float]]:
    """(`metric.mode.score/method[/role][/group]`, mean), and `.ci_low`, `.ci_high`, of every row of the summary."""
    roles = dict(zip(run.cells["cell"], run.cells["role"], strict=True))
    several = run.summary.groupby("cell")["group"].transform("nunique") > 1
    whole = (run.summary["group"] == ALL) | ~several
    for row, of_all in zip(run.summary.to_dict("records"), whole, strict=True):
        if of_all or groups:
            role = roles[row["cell"]]
            measure = ".".join(str(row[key]) for key in ("metric", "mode", "score") if not _empty(row[key]))
            parts = [measure, row["method"], "" if role == "model" else role, "" if of_all else f"group {row['group']}"]
            name = "/".join(plain(part) for part in parts if part)
            yield name, float(row["mean"])
            yield from ((f"{name}.{end}", float(row[end])) for end in ("ci_low", "ci_high"))


def _empty(cell: Any) -> bool:
    return bool(pd.isna(cell)) or cell == ""


def plain(name: str) -> str:
    """A name in the letters that every tracker takes."""
    return re.sub(r"[^\w\-. ]", "_", str(name))
