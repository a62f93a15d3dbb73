"""The hypotheses of docs/court.md, written before the runs: a statement, its parts, and what the runs say of it.

A part is a difference that is > 0 where it holds, with its standard error over images, one for each model. The answer
is the partial conjunction of `salrun.stats.conjunction`: over models where there are three or more, else over images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from salrun.results.court import NOT_JUDGED, TOLD
from salrun.stats.conjunction import ENOUGH, Parts, Quantifier, decide, needed, over_replicates

Tables = Mapping[str, pd.DataFrame]  # of one model
Part = tuple[str, float, float]  # what it is about, the difference, its standard error

ORDERED = ("deletion", "insertion", "pixel_flipping", "aopc_morf", "aopc_lerf", "irof")
PERTURBING = (*ORDERED, "saco", "idsds", "sensitivity_n", "faithfulness")


@dataclass(frozen=True)
class Statement:
    """`data` is the beginning of the names of the data sets it is asked of."""

    id: str
    says: str
    quantifier: Quantifier
    parts: Callable[[Tables], Iterator[Part]]
    data: tuple[str, ...] = ("textbox", "grid")


def answers(models: Mapping[str, Sequence[Tables]]) -> pd.DataFrame:
    """One row per statement and data set (name -> the tables of each of its models)."""
    rows = []
    for statement in STATEMENTS:
        for dataset, tables in models.items():
            if dataset.startswith(statement.data):
                about = {"id": statement.id, "statement": statement.says, "data": dataset}
                rows.append({**about, **_answer(statement, tables)})
    return pd.DataFrame(rows, columns=["id", "statement", "data", "answer", "parts", "k", "deciding"])


def _answer(statement: Statement, models: Sequence[Tables]) -> dict[str, object]:
    found = [{name: (d, e) for name, d, e in statement.parts(tables) if not np.isnan(d)} for tables in models]
    names = [name for name in found[0] if all(name in model for model in found)]
    if not names:
        return {"answer": "not tested", "parts": "", "k": len(models), "deciding": ""}
    d, e = (np.array([[model[name][j] for name in names] for model in found]) for j in (0, 1))
    if len(models) >= ENOUGH:
        parts = over_replicates(d, np.nan_to_num(e).mean(axis=0))
    else:
        mean, error = d.mean(axis=0), np.sqrt((np.nan_to_num(e) ** 2).sum(axis=0)) / len(models) + 1e-12
        reach = stats.norm.isf(0.025) * error
        parts = Parts(mean, mean - reach, mean + reach, stats.norm.sf(mean / error), stats.norm.cdf(mean / error))
    m = needed(statement.quantifier, len(names))
    order = np.argsort(-parts.mean)
    at = int(order[m - 1])
    holding = int((parts.mean > 0).sum())
    few = "" if len(models) >= ENOUGH else " (one model)" if len(models) == 1 else " (two models)"
    return {
        "answer": decide(parts, m) + few,
        "parts": f"{holding} of {len(names)} > 0, {m} asked for",
        "k": len(models),
        "deciding": f"{names[at]} {parts.mean[at]:+.2f} [{parts.low[at]:+.2f}, {parts.high[at]:+.2f}]",
    }


# -- parts -------------------------------------------------------------------------------------------------------------


def _default(tables: Tables, metric: str) -> pd.Series | None:
    court = tables["court"]
    rows = court[court["default"] & (court["metric"] == metric) & (court["ladder"] == "oracle")]
    return rows.iloc[0] if len(rows) else None


def _line(tables: Tables, name: str, row: pd.Series, **where: object) -> pd.Series | None:
    """The line of a longer table that is about the same setting."""
    table = tables[name]
    for column, value in {**row[["ladder", "metric", "mode", "score"]].to_dict(), **where}.items():
        table = table[table[column] == value]
    return table.iloc[0] if len(table) else None


def _error(row: pd.Series, low: str = "low", high: str = "high") -> float:
    return float(row[high] - row[low]) / (2 * stats.norm.isf(0.025))


def _judged(tables: Tables) -> Iterator[pd.Series]:
    court = tables["court"]
    asked = court["default"] & ~court["advice"].isin([TOLD, NOT_JUDGED]) & (court["ladder"] == "oracle")
    for _, row in court[asked].iterrows():
        yield row


def _c1(tables: Tables) -> Iterator[Part]:
    for metric in ORDERED:
        if (row := _default(tables, metric)) is not None:
            line = _line(tables, "agreement", row, truth="noise")
            assert line is not None
            yield metric, line["mean"] - 0.7, _error(line)


def _c2(tables: Tables) -> Iterator[Part]:
    for row in _judged(tables):
        line = _line(tables, "agreement", row, truth=row["worst_defect"])
        if line is not None:
            yield row["metric"], 0.5 - line["mean"], _error(line)


def _c3(tables: Tables) -> Iterator[Part]:
    court = tables["court"]
    for metric in PERTURBING:
        if (row := _default(tables, metric)) is not None:
            worst = court[court["worst"] & (court["metric"] == metric) & (court["ladder"] == "oracle")].iloc[0]
            yield metric, row["agreement"] - worst["agreement"] - 0.1, np.hypot(_error(row), _error(worst))


def _c4(tables: Tables) -> Iterator[Part]:
    for metric in ("sparseness", "complexity", "effective_complexity"):
        if (row := _default(tables, metric)) is not None:
            yield metric, 0.1 - abs(row["worse_0.25"] - 0.5), _error(row, "worse_0.25_low", "worse_0.25_high")


def _c5(tables: Tables) -> Iterator[Part]:
    for metric in ("average_drop", "average_increase", "local_accuracy"):
        if (row := _default(tables, metric)) is not None:
            line = _line(tables, "fooled", row, by="constant")
            assert line is not None
            yield metric, line["mean"] - 0.5, _error(line)


def _c6(tables: Tables) -> Iterator[Part]:
    for row in _judged(tables):
        reliable, wrong = row["alpha"] - 0.667, 0.3 - row["agreement"]
        ends = ("alpha_low", "alpha_high") if reliable < wrong else ("low", "high")
        yield row["metric"], min(reliable, wrong), _error(row, *ends)


def _c7(tables: Tables) -> Iterator[Part]:
    for metric in ("mass_share", "localisation_auc", "relevance_rank_accuracy"):
        if (row := _default(tables, metric)) is not None:
            for defect in ("noise", "shift", "permute"):
                line = _line(tables, "agreement", row, truth=defect)
                assert line is not None
                yield f"{metric} on {defect}", line["mean"] - 0.9, _error(line)


def _p1(tables: Tables) -> Iterator[Part]:
    if (row := _default(tables, "aopc_lerf")) is not None:
        line = _line(tables, "agreement", row, truth="noise")
        assert line is not None
        yield "aopc_lerf", line["macro"] - 0.95, _error(line, "macro_low", "macro_high")


def _p2(tables: Tables) -> Iterator[Part]:
    """Of the ladder of Grad-CAM."""
    table = tables["agreement"]
    rows = table[(table["ladder"] == "gradcam") & (table["metric"] == "aopc_morf") & (table["truth"] == "noise")]
    for _, line in rows[rows["score"].str.startswith("mean")].iterrows():
        yield "aopc_morf", -line["macro"], _error(line, "macro_low", "macro_high")


def _p3(tables: Tables) -> Iterator[Part]:
    court = tables["court"]
    if "mc" in court:
        flipping, correlation = (court[court["metric"] == m]["mc"].dropna() for m in ("pixel_flipping", "faithfulness"))
        if len(flipping) and len(correlation):
            yield "pixel_flipping - faithfulness", float(flipping.iloc[0] - correlation.iloc[0]), float("nan")


STATEMENTS = (
    Statement("C1", "metrics that remove pixels by their order are right on the noise ladder", "most", _c1),
    Statement("C2", "no metric is right about every defect", "every", _c2),
    Statement("C3", "the worst baseline costs a perturbation metric .1 of agreement or more", "most", _c3),
    Statement("C4", "complexity metrics prefer the worse of two maps as often as not", "most", _c4),
    Statement("C5", "masking metrics are fooled by a constant map", "every", _c5),
    Statement("C6", "there is a reliable metric that is not right", "some", _c6),
    Statement("C7", "metrics that are told the masks are right about noise, shift and permute", "every", _c7),
    Statement("P1", "LeRF agrees with the noise ladder by .95 or more (F-Fidelity)", "average", _p1, ("grid",)),
    Statement("P2", "MoRF of a ladder made from Grad-CAM has the wrong sign (F-Fidelity)", "average", _p2, ("grid",)),
    Statement("P3", "pixel flipping is more consistent than faithfulness correlation (MetaQuantus)", "average", _p3),
)
