"""Statements of our own, written before the runs that test them, and what the runs say of each.

A part is a difference that is > 0 where the statement holds, with its standard error over images, one for each model.
The answer is the partial conjunction of `salrun.stats.conjunction`: over models where there are three or more, else
over images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from salrun.stats.conjunction import ENOUGH, Parts, Quantifier, decide, needed, over_replicates

Tables = Mapping[str, pd.DataFrame]  # of one model
Part = tuple[str, float, float]  # what it is about, the difference, its standard error


@dataclass(frozen=True)
class Statement:
    """`data`: the data sets, or groups of models, that it is asked of; none: all."""

    id: str
    says: str
    quantifier: Quantifier
    parts: Callable[[Tables], Iterator[Part]]
    data: tuple[str, ...] = ()


def answers(statements: Sequence[Statement], models: Mapping[str, Sequence[Tables]]) -> pd.DataFrame:
    """One row per statement and data set (name -> the tables of each of its models)."""
    rows = []
    for statement in statements:
        for dataset, tables in models.items():
            if not statement.data or dataset in statement.data:
                about = {"id": statement.id, "statement": statement.says, "data": dataset}
                rows.append({**about, **answer(statement, tables)})
    return pd.DataFrame(rows, columns=["id", "statement", "data", "answer", "parts", "k", "deciding"])


def answer(statement: Statement, models: Sequence[Tables]) -> dict[str, object]:
    """What the models that were asked say together, and which part decides it."""
    found = [{name: (d, e) for name, d, e in statement.parts(tables) if not np.isnan(d)} for tables in models]
    found = [model for model in found if model] or [{}]
    names = [name for name in found[0] if all(name in model for model in found)]
    if not names:
        return {"answer": "not tested", "parts": "", "k": len(models), "deciding": ""}
    d, e = (np.array([[model[name][j] for name in names] for model in found]) for j in (0, 1))
    if len(found) >= ENOUGH:
        parts = over_replicates(d, np.nan_to_num(e).mean(axis=0))
    else:
        mean, error = d.mean(axis=0), np.sqrt((np.nan_to_num(e) ** 2).sum(axis=0)) / len(found) + 1e-12
        reach = stats.norm.isf(0.025) * error
        parts = Parts(mean, mean - reach, mean + reach, stats.norm.sf(mean / error), stats.norm.cdf(mean / error))
    m = needed(statement.quantifier, len(names))
    order = np.argsort(-parts.mean)
    at = int(order[m - 1])
    holding = int((parts.mean > 0).sum())
    few = "" if len(found) >= ENOUGH else " (one model)" if len(found) == 1 else " (two models)"
    return {
        "answer": decide(parts, m) + few,
        "parts": f"{holding} of {len(names)} > 0, {m} asked for",
        "k": len(found),
        "deciding": f"{names[at]} {parts.mean[at]:+.2f} [{parts.low[at]:+.2f}, {parts.high[at]:+.2f}]",
    }
