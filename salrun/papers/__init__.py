"""One room per paper: `papers/<paper>/` holds its published numbers, tables, figures, claims and checkpoints."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

import pandas as pd


def conclude(paper: str | None, run: Path) -> pd.DataFrame | None:
    """Write a paper's own tables, figures and claims.csv from a run's tables; the claims, or None without a paper.

    A room has modules `tables` (write_tables), `figures` (write_figures) and `claims` (write_claims), each taking the
    run's directory; they read its tables and nothing else.
    """
    if paper is None:
        return None
    for module, function in (("tables", "write_tables"), ("figures", "write_figures"), ("claims", "write_claims")):
        name = f"salrun.papers.{paper}.{module}"
        if importlib.util.find_spec(name) is not None:
            getattr(importlib.import_module(name), function)(run)
    claims = run / "claims.csv"
    return pd.read_csv(claims, keep_default_na=False) if claims.exists() else None
