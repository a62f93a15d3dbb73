"""One package per paper: `papers/<paper>/` holds its published numbers, evidence, tables, figures, claims, checkpoints.

All papers have one protocol, and read a run once:

    read(run) -> Evidence            evidence.py   what the tables of a run say, in the paper's own terms
    tables(evidence)                 tables.py     name -> frame, text or both (Page): tables/<paper>_<name>.csv, .md
    figures(evidence)                figures.py    name -> what draws it: figures/<paper>_<name>.png .svg .csv
    claims(evidence)                 claims.py     verdicts: claims.csv (a row per claim), claim_parts.csv (per part)

What figures and claims take from single maps is measured once, before the run is read, into tables of single images
(`measure(run)` of maps.py, where a paper has one), so that tables alone make everything again.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from salrun.papers.evidence import NotTestable
from salrun.results.run import Run
from salrun.results.tables import write_csv, write_parquet
from salrun.store.files import write_atomic

log = logging.getLogger(__name__)

Figures = Mapping[str, Callable[[], Any]]  # name -> what draws it


@dataclass(frozen=True)
class Page:
    """A table, and the same as text for readers."""

    table: pd.DataFrame
    text: str


def draw(paper: str, run: Run, figures: Figures) -> None:
    """figures/<paper>_<name>.png, .svg, .csv and a figure's own further files; one that lacks data is left out.

    <paper>_captions.json says what each shows.
    """
    from salrun.papers.captions import captions
    from salrun.papers.style import save

    drawn = []
    for name, figure in figures.items():
        try:
            fig, numbers, *further = figure()
        except NotTestable:
            continue
        stem = run.path / "figures" / f"{paper}_{name}"
        save(fig, numbers, stem)
        drawn.append(stem.name)
        for kind, content in dict(*further).items():
            write_atomic(stem.with_name(f"{stem.name}.{kind}"), content)
    if said := captions(paper, drawn):
        write_atomic(run.path / "figures" / f"{paper}_captions.json", (json.dumps(said, indent=1) + "\n").encode())


def conclude(paper: str | None, run: Run, drawn: bool = True) -> tuple[pd.DataFrame | None, list[str]]:
    """Write a paper's own tables, figures and verdicts from a run's tables: (the claims, what could not be made).

    A run with other methods or metrics than the paper's may lack what they need: that is said, and takes nothing of
    what was measured. `drawn`: with figures.
    """
    problems: list[str] = []
    if paper is None:
        return None, problems

    def attempt(what: str, make: Callable[[], Any]) -> Any:
        try:
            return make()
        except Exception as fault:
            said = f"the {what} of {paper} could not be made from this run ({type(fault).__name__}: {fault})"
            log.warning("%s; see run.log", said)
            log.debug("traceback", exc_info=fault)
            problems.append(said)
            return None

    def part(name: str) -> Any:
        return importlib.import_module(f"salrun.papers.{paper}.{name}")

    if importlib.util.find_spec(f"salrun.papers.{paper}.maps") is not None:
        attempt("measures of maps", lambda: write_measures(paper, run, part("maps").measure(run)))
    evidence = attempt("evidence", lambda: part("evidence").read(run))
    if evidence is None:
        return None, problems
    attempt("tables", lambda: write_paper_tables(paper, run, part("tables").tables(evidence)))
    if drawn:
        attempt("figures", lambda: draw(paper, run, part("figures").figures(evidence)))
    verdicts = attempt("claims", lambda: part("claims").claims(evidence))
    if verdicts is None:
        return None, problems
    write_csv(run.path / "claims.csv", verdicts.claims)
    write_csv(run.path / "claim_parts.csv", verdicts.parts)
    return run.claims, problems


def write_measures(paper: str, run: Run, measures: dict[str, pd.DataFrame]) -> None:
    """tables/<paper>_<name>.parquet: what was measured on kept maps, image by image."""
    for name, frame in measures.items():
        if len(frame):
            write_parquet(run.path / "tables" / f"{paper}_{name}.parquet", frame)


def write_paper_tables(paper: str, run: Run, tables: dict[str, pd.DataFrame | str | Page]) -> None:
    """tables/<paper>_<name>.csv, .md where it is text for readers, or both; empty ones are left out."""
    for name, table in tables.items():
        stem = run.path / "tables" / f"{paper}_{name}"
        if isinstance(table, Page):
            write_paper_tables(paper, run, {name: table.text})
            table = table.table
        if isinstance(table, str):
            write_atomic(stem.with_name(f"{stem.name}.md"), table.encode())
        elif len(table):
            write_csv(stem.with_name(f"{stem.name}.csv"), table)
