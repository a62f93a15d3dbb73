"""conf/campaign/<paper>.yaml: the runs of a paper, and those that are its committed evidence (docs/results)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from salrun.config.catalogue import conf_dir
from salrun.errors import SalrunError
from salrun.results.run import Run

CAMPAIGNS = conf_dir() / "campaign"
PAPERS = sorted(path.stem for path in CAMPAIGNS.glob("*.yaml"))
UNASKED = ("seed=0", "scale=paper")  # what holds without being said
HOW = ("threads=", "report=")  # beginnings of words that change nothing of what is measured


@dataclass(frozen=True)
class Evidence:
    """A run whose tables are to be in docs/results/<campaign>/<name>."""

    campaign: str
    name: str
    words: tuple[str, ...]  # its command
    seed: int
    priority: float  # lower: sooner, as more verdicts hang on an hour of it
    hours: float  # of the whole machine, estimated
    kept: Mapping[str, Any] = field(default_factory=dict)  # beside scores: see salrun.results.kept

    @property
    def folder(self) -> Path:
        """Its place in docs/results."""
        return Path(self.campaign) / self.name


@cache
def campaign(paper: str) -> dict[str, Any]:
    """The file of a paper: `runs`, `evidence`, and where there are any, `groups` of runs and `shipped` conditions."""
    told = yaml.safe_load((CAMPAIGNS / f"{paper}.yaml").read_text(encoding="utf-8"))
    return {"groups": {}, "shipped": {}, "evidence": {}} | told


def words(entry: str | Sequence) -> Iterator[str]:
    """The words of an entry, those of the lists in it included."""
    if isinstance(entry, str):
        yield entry
    else:
        for part in entry:
            yield from words(part)


def evidence(papers: Sequence[str]) -> list[Evidence]:
    """All evidence of these papers, the most valuable first; of equal value seed by seed, so that sets are complete."""
    runs = [run for paper in papers for name, told in campaign(paper)["evidence"].items() for run in _runs(name, told)]
    return sorted(runs, key=lambda run: (run.priority, run.seed))


def _runs(name: str, told: Mapping[str, Any]) -> Iterator[Evidence]:
    for entry in told["runs"]:
        experiment, *overrides = words(entry["run"])
        for seed in entry.get("seeds", [0]):
            command = (f"+experiment={experiment}", f"scale={entry.get('scale', 'paper')}", f"seed={seed}", *overrides)
            kept = told.get("kept", {}) | (told.get("kept_of_seed_0", {}) if seed == 0 else {})
            yield Evidence(name, f"{entry['name']}-{seed}", command, seed, entry["priority"], entry["hours"], kept)


def asked(command: Sequence[str]) -> tuple[str, ...]:
    """What a command measures, in whatever order and with however many threads."""
    return tuple(sorted(word for word in command if word not in UNASKED and not word.startswith(HOW)))


def finished(folders: Sequence[Path]) -> dict[tuple[str, ...], Path]:
    """What was asked -> the newest finished run of it; runs that cannot be read (an older schema) do not count."""
    found: dict[tuple[str, ...], Path] = {}
    for folder in sorted(folders, key=lambda path: path.name):
        run = Run(folder)
        try:
            if run.done:
                found[asked(run.overrides)] = folder
        except SalrunError:
            continue
    return found
