"""What the four papers share in turning a run's tables into evidence.

A table of evidence has one column per quantity and one row per draw: row 0 holds the estimates, the rows below the same
quantities in bootstrap resamples of the images. The draws of published tables are values that would be printed alike,
so the same functions read both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import numpy as np
import pandas as pd

from salrun.errors import SalrunError
from salrun.results.run import Run
from salrun.stats.bootstrap import mean_draws, percentile_interval

PRINT_DRAWS = 500
HALF_A_HUNDREDTH = 0.005  # the error of print of two decimals
DIGITISED = 0.02  # of values read off a plot


class NotTestable(Exception):
    """What a run cannot decide or draw; the message says what it lacks."""


def published(paper: str, name: str = "", file: str = "", **options: Any) -> pd.DataFrame:
    """A published table as data: papers/<paper>/published[_<name>].csv, or another file there."""
    file = file or f"published{'_' if name else ''}{name}.csv"
    with resources.files(f"salrun.papers.{paper}").joinpath(file).open() as text:
        return pd.read_csv(text, **options)


def estimate_and_draws(estimate: Sequence[float], draws: np.ndarray | None, columns: pd.Index) -> pd.DataFrame:
    """A table of evidence: the estimates as row 0, their draws (draws, columns) below."""
    first = np.asarray(estimate, dtype=np.float64)[None, :]
    rows = first if draws is None else np.concatenate([first, draws])
    return pd.DataFrame(rows, columns=columns)


def printed(values: pd.Series, error: float | pd.Series) -> pd.DataFrame:
    """A table of evidence of published values by their (multi-)index, each known up to the `error` of print.

    The draws are corners of what print allows: every value at one end of its error, at random.
    """
    reach = np.broadcast_to(np.asarray(error, dtype=np.float64), values.shape)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(PRINT_DRAWS, len(values)))
    return estimate_and_draws(values.to_list(), values.to_numpy(dtype=np.float64) + signs * reach, values.index)


def means(wide: pd.DataFrame, draws: int, seed: int | Sequence[int] = 0) -> pd.DataFrame:
    """Means over images (rows) and their draws; all columns share their resamples. A missing score is left out."""
    sampled = mean_draws(wide.to_numpy(dtype=np.float64), np.random.default_rng(seed), draws)
    return estimate_and_draws(wide.mean().to_list(), sampled, wide.columns)


def by_image(rows: pd.DataFrame, columns: Sequence[str], what: str = "view") -> pd.DataFrame:
    """Images x columns of the rows' values; two scores of one image under one column are refused."""
    if rows.duplicated(["image_id", *columns]).any():
        raise SalrunError(f"a metric has two scores for one image and method: compare one {what} at a time")
    return rows.pivot(index="image_id", columns=list(columns), values="value").astype(np.float64)


def pick(table: pd.DataFrame, **levels: object) -> pd.DataFrame:
    """The columns whose levels have these values: a single value drops its level, a list keeps it.

    What the run lacks makes the claim not testable, and is named.
    """
    columns, places = table.columns, np.arange(table.shape[1])
    for level, wanted in levels.items():
        if level not in columns.names:
            raise NotTestable(f"needs cells by {level}")
        values = list(wanted) if isinstance(wanted, (list, tuple)) else [wanted]
        present = columns.get_level_values(level)
        there = set(present.unique())
        absent = [v for v in values if v not in there]
        if absent:
            raise NotTestable(f"needs {level} {', '.join(map(str, absent))}")
        chosen = np.flatnonzero(present.isin(values))
        columns, places = columns[chosen], places[chosen]
        if not isinstance(wanted, (list, tuple)) and columns.nlevels > 1:
            columns = columns.droplevel(level)
    return table.iloc[:, places].set_axis(columns, axis=1)


def interval(table: pd.DataFrame, level: float = 0.95) -> tuple[Any, Any]:
    """Low and high end of every column over its draws; NaN where there are none."""
    if len(table) < 2:
        return np.nan, np.nan
    return percentile_interval(table.iloc[1:], level)


def tidy(table: pd.DataFrame, value: str = "value", level: float = 0.95, **more: object) -> pd.DataFrame:
    """One row per column of a table of evidence: its levels, the estimate, ci_low and ci_high."""
    low, high = interval(table, level)
    return table.columns.to_frame(index=False).assign(
        **{**more, value: table.iloc[0].to_numpy(), "ci_low": low, "ci_high": high}
    )


def of_paper(run: Run, paper: str) -> pd.DataFrame:
    """The facts of a run's models; where runs of no paper were collected with the paper's, without theirs."""
    foreign = {member.experiment for member in run.members if member.facts.get("paper") != paper}
    cells = run.cells[~run.cells["experiment"].isin(foreign)]
    return cells if len(cells) else run.cells


def one_model(cells: pd.DataFrame) -> None:
    """Refuse evidence about several models or data sets where a paper's tables are about one."""
    pairs = cells[["dataset", "model"]].drop_duplicates()
    if len(pairs) != 1:
        named = ", ".join(f"{d}/{m}" for d, m in pairs.itertuples(index=False))
        raise SalrunError(f"these tables are about one model on one data set, got {named or 'no scores'}")


def join_tables(tables: Mapping[Any, pd.DataFrame], name: str = "seed") -> pd.DataFrame:
    """Tables of several seeds (say) below each other, with a column that tells them apart."""
    parts = [table.assign(**{name: key}) for key, table in tables.items() if len(table)]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
