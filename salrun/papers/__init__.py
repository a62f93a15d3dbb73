"""One room per paper: `papers/<paper>/` holds its published numbers, tables, figures, claims and checkpoints."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from pathlib import Path

import pandas as pd

log = logging.getLogger(__name__)


def conclude(paper: str | None, run: Path) -> tuple[pd.DataFrame | None, list[str]]:
    """Write a paper's own tables, figures and claims.csv from a run's tables: (the claims, what could not be made).

    A room has modules `tables` (write_tables), `figures` (write_figures) and `claims` (write_claims), each taking the
    run's directory; they read its tables and nothing else. A run with other methods or metrics than the paper's may
    lack what they need: that is said, and takes nothing of what was measured.
    """
    problems: list[str] = []
    if paper is None:
        return None, problems
    for module, function in (("tables", "write_tables"), ("figures", "write_figures"), ("claims", "write_claims")):
        name = f"salrun.papers.{paper}.{module}"
        if importlib.util.find_spec(name) is not None:
            try:
                getattr(importlib.import_module(name), function)(run)
            except Exception as fault:
                said = f"the {module} of {paper} could not be made from this run ({type(fault).__name__}: {fault})"
                log.warning("%s; see run.log", said)
                log.debug("traceback", exc_info=fault)
                problems.append(said)
    claims = run / "claims.csv"
    return pd.read_csv(claims, keep_default_na=False) if claims.exists() else None, problems
