"""The hypotheses of docs/court.md, written before the runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pandas as pd
from scipy import stats

from salrun.papers.hypotheses import Part, Statement, Tables
from salrun.results.court import NOT_JUDGED, TOLD

ORDERED = ("deletion", "insertion", "pixel_flipping", "aopc_morf", "aopc_lerf", "irof")
PERTURBING = (*ORDERED, "saco", "idsds", "sensitivity_n", "faithfulness")
ON_MOSAICS = {"insertion": 0.61, "idsds": 0.61, "saco": 0.47, "irof": 0.43, "deletion": 0.07}  # of grid_cifar10-0


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
    court = tables["court"]
    asked_of = court["default"] & (court["metric"] == "aopc_morf") & (court["ladder"] == "gradcam")
    for _, row in court[asked_of].iterrows():
        if (line := _line(tables, "agreement", row, truth="noise")) is not None:
            yield "aopc_morf", -line["macro"], _error(line, "macro_low", "macro_high")


def _p3(tables: Tables) -> Iterator[Part]:
    """On logits where both were asked so: probabilities of perturbed models may be 0 or 1, whatever is removed."""
    for modes in (["logit"], ["", "default"]):
        pair = [_consistency(tables, metric, modes) for metric in ("pixel_flipping", "faithfulness")]
        if all(len(of) for of in pair):
            flipping, correlation = (of.iloc[0] for of in pair)
            error = np.hypot(flipping["mc_error"], correlation["mc_error"])
            yield "pixel_flipping - faithfulness", float(flipping["mc"] - correlation["mc"]), float(error)
            return


def _consistency(tables: Tables, metric: str, modes: Sequence[str]) -> pd.DataFrame:
    """Lines of the metric's own score in these modes."""
    row = _default(tables, metric)
    if row is None or "consistency" not in tables:
        return pd.DataFrame()
    found = tables["consistency"]
    own = (found["metric"] == metric) & (found["score"] == row["score"]) & found["mode"].isin(modes)
    return found[own & found["mc"].notna()]


def _w1(tables: Tables) -> Iterator[Part]:
    for metric in ("deletion", "insertion", "aopc_morf", "aopc_lerf"):
        for by in ("inverse", "random"):
            row = _default(tables, metric)
            line = None if row is None else _line(tables, "fooled", row, by=by)
            if line is not None:
                yield f"{metric} against {by}", 0.5 - line["mean"], _error(line)


def _w2(tables: Tables) -> Iterator[Part]:
    for metric, on_mosaics in ON_MOSAICS.items():
        if (row := _default(tables, metric)) is not None:
            yield metric, row["agreement"] - on_mosaics, _error(row)


GRID, WATERMARK = "grid_cifar10", "watermark_imagenet"
asked = partial(Statement, data=("textbox", GRID, "grid_imagenet", WATERMARK))
STATEMENTS = (
    asked("C1", "metrics that remove pixels by their order are right on the noise ladder", "most", _c1),
    asked("C2", "no metric is right about every defect", "every", _c2),
    asked("C3", "the worst baseline costs a perturbation metric .1 of agreement or more", "most", _c3),
    asked("C4", "complexity metrics prefer the worse of two maps as often as not", "most", _c4),
    asked("C5", "masking metrics are fooled by a constant map", "every", _c5),
    asked("C6", "there is a reliable metric that is not right", "some", _c6),
    asked("C7", "metrics that are told the masks are right about noise, shift and permute", "every", _c7),
    asked("W1", "deleting by order prefers the good map to wrong ones", "every", _w1, data=(WATERMARK,)),
    asked("W2", "agreement is higher than on mosaics of CIFAR-10", "most", _w2, data=(WATERMARK,)),
    asked("P1", "LeRF agrees with the noise ladder by .95 or more (F-Fidelity)", "average", _p1, data=(GRID,)),
    asked("P2", "MoRF of a ladder made from Grad-CAM has the wrong sign (F-Fidelity)", "average", _p2, data=(GRID,)),
    asked("P3", "pixel flipping is more consistent than faithfulness correlation (MetaQuantus)", "average", _p3),
)
