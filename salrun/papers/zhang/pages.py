"""Tables 1 to 4 and the controls as text for readers, and what was run to measure them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from salrun.papers.zhang.evidence import SeedEvidence
from salrun.papers.zhang.names import COLUMNS, CONTROLLED, LABELS
from salrun.results.claims import NOT_TESTED
from salrun.results.run import Run

BUDGETS = {  # what a method's cost and noise depend on
    "integrated_gradients": ["steps"],
    "score_cam": ["layer", "channels"],
    "rise": ["n_masks"],
    "lime": ["n_samples"],
    "iba": ["steps", "copies", "fit_images"],
}
UNSAID = ("_target_", "direction", "target")

Protocol = Mapping[str, Mapping[str, str]]


def protocol(members: Iterable[tuple[str, Run]], settings: Sequence[str]) -> dict[str, dict[str, str]]:
    """What was run in these settings, as text: "methods" by name, their "budgets", "metrics" by column."""
    runs = [run for setting, run in members if setting in settings]
    methods = [pair for run in runs for pair in _methods(run)]
    budgets = [
        (name, {k: spec[k] for k in BUDGETS[name] if spec.get(k) is not None})
        for name, spec in methods
        if name in BUDGETS
    ]
    metrics = [
        (name, {**entry["options"], "view": entry["view"], **({"turned": entry["turned"]} if entry["turned"] else {})})
        for run in runs
        for entry in run.metrics
        for name, column in COLUMNS.items()
        if column.metric == entry["metric"] and entry["mode"] in column.modes
    ]
    return {"methods": _listed(methods), "budgets": _listed(budgets), "metrics": _listed(metrics)}


def _methods(run: Run) -> list[tuple[str, dict[str, Any]]]:
    """Options, view and target of every method of a run; of IBA also the number of images behind its statistics."""
    specs = {name: {**m["options"], "view": m["view"], "target": m["target"]} for name, m in run.methods.items()}
    if "iba" in specs and "fit_images" in run.facts:
        specs["iba"]["fit_images"] = run.facts["fit_images"]
    return list(specs.items())


def _listed(specs: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, str]:
    """name -> `parameter=value, ..`; where runs differ, all of them; the targets of equal ones in one place."""
    targets: dict[str, dict[str, dict[str, None]]] = {}
    for name, spec in specs:
        said = {**spec, "step": "pixels / 28"} if "step" in spec and spec["step"] is None else spec
        text = ", ".join(f"{k}={v}" for k, v in said.items() if k not in UNSAID)
        targets.setdefault(name, {}).setdefault(text, {})[str(spec.get("target", ""))] = None
    listed = {}
    for name, texts in targets.items():
        explained = {text: "/".join(filter(None, named)) for text, named in texts.items()}
        listed[name] = " | ".join(
            ", ".join(filter(None, [text, named and f"target={named}"])) for text, named in explained.items()
        )
    return listed


def others_agree(first: pd.DataFrame, others: Mapping[str, pd.DataFrame]) -> pd.Series:
    """By claim `2 of 3`: how many other networks, of those that can test it, say what the first one says.

    The tables are claims.csv by id; empty where the first decides nothing or no other can test it.
    """
    said = {}
    for id, answer in first["answer"].items():
        found = [table["answer"].get(id, NOT_TESTED) for table in others.values()]
        tested = [other for other in found if other != NOT_TESTED]
        said[id] = f"{tested.count(answer)} of {len(tested)}" if tested and answer in ("yes", "no") else ""
    return pd.Series(said, dtype=str)


def column_names(table: pd.DataFrame) -> pd.Series:
    """The names in COLUMNS of a table's rows: its metrics, with the view where that is one of the controls."""
    if "view" not in table:
        return table["metric"]
    names = {pair: name for name, pair in CONTROLLED.items()}
    return pd.Series([names[pair] for pair in zip(table["metric"], table["view"], strict=True)], index=table.index)


def constant_maps(of: str, e: SeedEvidence) -> list[str]:
    """`LIME 3 of 20`, ..: how many of the maps behind a table are constant."""
    maps = e.maps[e.maps["scored"] & e.maps["setting"].isin(e.settings[of])]
    maps = maps[maps["image_id"].isin(e.frames[of].index)]
    counts = maps.groupby("method")["constant"].agg(["sum", "size"])
    return [f"{LABELS.get(m, m)} {flat} of {n}" for m, flat, n in counts.itertuples(name=None) if flat]


def page(title: str, table: pd.DataFrame, e: SeedEvidence, flat: Sequence[str], how: Protocol) -> str:
    """The table for readers: methods down, columns across, `measured (printed)`, under what was run. `?`: misprint?"""
    groups = [k for k in ("target", "transform", "view") if k in table]
    columns = list(dict.fromkeys(table[[*groups, "metric"]].itertuples(index=False, name=None)))
    rows = table.set_index([*groups, "metric", "method"])
    methods, metrics = how["methods"], how["metrics"]
    lines = [f"**{title}.** {e.about}. Measured (printed); n: images of each method.", ""]
    lines += [f"- {metric}: {metrics[metric]}" for metric in dict.fromkeys(column_names(table)) if metric in metrics]
    lines += [f"- {LABELS.get(m, m)}: {methods[m]}" for m in dict.fromkeys(table["method"]) if m in methods]
    lines += [f"- Constant maps, all 0 after min-max; flagged, scores kept: {', '.join(flat)}"] if flat else []
    lines += ["", "| method | n | budget | " + " | ".join(" ".join(c) for c in columns) + " |"]
    lines += ["|---" * (len(columns) + 3) + "|"]
    for method, part in table.groupby("method", sort=False):
        values = [_cell_text(rows.loc[(*c, method)], c[-1]) if (*c, method) in rows.index else "" for c in columns]
        budget = how["budgets"].get(str(method), "").replace("|", "or")
        lines.append(f"| {LABELS.get(str(method), method)} | {part['n'].max()} | {budget} | {' | '.join(values)} |")
    return "\n".join(lines) + "\n"


def _cell_text(row: pd.Series, metric: str) -> str:
    digits = COLUMNS[metric].digits
    text = "-" if np.isnan(row["value"]) else f"{row['value']:.{digits}f}"
    printed = row.get("published", np.nan)
    doubt = "" if pd.isna(row.get("corrected", np.nan)) else f"; {row['corrected']:g}?"
    return text if pd.isna(printed) else f"{text} ({printed:g}{doubt})"
