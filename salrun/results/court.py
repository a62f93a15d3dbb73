"""The metric court: the metrics of some runs, judged by maps whose order is known.

    tables = judge(read_runs([Path("outputs/court_textbox_simple_fr/latest")]))
    tables["court"], tables["agreement"], tables["preferences"], tables["fooled"]

A ladder is a map (its base) and the same map with growing doses of each defect (`salrun.methods.ladder`); the maps of
its bottom are altogether wrong. Models are cells: what is said of a data set is a mean over its models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from salrun.errors import SalrunError
from salrun.results.run import Run
from salrun.results.scored import Scored, Series, ladder_of, read_runs
from salrun.results.tables import write_csv, write_parquet
from salrun.stats.court import DRAWS as COURT_DRAWS
from salrun.stats.court import (
    FEWEST,
    Estimate,
    agreement_by_image,
    consistency,
    consistency_error,
    macro_agreement,
    mean_over_models,
    over_models,
    prefers,
    prefers_worse,
)
from salrun.stats.reliability import CELL, aligned, alpha, alpha_draws, alpha_verdict, rankings, same_for_all

DIFFERENCES = (0.1, 0.25, 0.5)
ALL = "all defects"
TRUTHS = ("pafl", "piou")  # what the order of real methods is known by
BY_METHODS = {f"methods by {name}": name for name in TRUTHS}  # as the column `truth` has it
KNOW = frozenset(  # metrics that are told where the evidence is
    {*TRUTHS, "pmafl", "safl", "siou", "smafl", "pointing_game", "mass_share", "localisation_auc"}
    | {"relevance_rank_accuracy", "top_k_intersection"}
)
MINOR, DISRUPTIVE = "minor", "disruptive"  # beginnings of the names of perturbed models, in `others`
OWN_MODEL = "model"

USE, SETTING, CARE, NEVER = "use", "use at its default", "with care", "do not use"
TOLD, NOT_JUDGED = "is told the truth", "not judged by a ladder"
GOOD, FAIR, POOR = 0.7, 0.5, 0.3
RULE = {
    USE: f"its agreement on the ladder is {GOOD} or more (lower end), {FAIR} or more at every setting, and no map of "
    "the bottom is preferred to the good one in half of the images",
    SETTING: "the same, but another setting of it falls below",
    NEVER: f"its agreement is below {POOR} (upper end), or a map of the bottom is preferred in half of the images",
    CARE: "anything between",
    TOLD: "it reads the masks that the order was made of",
    NOT_JUDGED: "it asks for maps of other images, which a ladder answers alike",
}


@dataclass
class Ladder:
    """Names of the maps of one ladder: the base, by defect the map of each dose, and the bottom."""

    title: str
    base: str = ""
    rungs: dict[str, dict[float, str]] = field(default_factory=dict)
    bottom: dict[str, str] = field(default_factory=dict)


class Setting(NamedTuple):
    """One way of computing a metric, on one data set and one ladder."""

    dataset: str
    ladder: str
    series: Series


def ladders(scored: Scored) -> list[Ladder]:
    """The ladders among the methods; a defect of a single dose is of the bottom, as are controls that are no rungs."""
    found: dict[str, Ladder] = {}
    for name, options in scored.methods.items():
        if not (title := ladder_of(options)):
            continue
        ladder = found.setdefault(title, Ladder(title))
        if options["dose"] == 0:
            ladder.base = name
        else:
            ladder.rungs.setdefault(options["defect"], {})[float(options["dose"])] = name
    blind = [name for name in scored.controls if not ladder_of(scored.methods.get(name, {}))]
    for ladder in found.values():
        if not ladder.base:
            raise SalrunError(f"the ladder of {ladder.title} has no map of dose 0: there is nothing to be worse than")
        single = {defect: of for defect, of in ladder.rungs.items() if len(of) == 1}
        ladder.rungs = {defect: of for defect, of in ladder.rungs.items() if defect not in single}
        ladder.bottom = {**{d: next(iter(of.values())) for d, of in single.items()}, **{n: n for n in blind}}
    return list(found.values())


def judge(scored: Scored) -> dict[str, pd.DataFrame]:
    """Every table of the court, by name; none where the runs have no ladder:

    court        one row per data set, ladder, metric and setting: what the others say, in short, and the advice
    agreement    with the known order: on all defects, on each, and on the order of the methods by PAFL and PIOU
    preferences  how often the worse of two maps scores higher, by defect and difference of their doses
    fooled       how often a map of the bottom scores higher than the good one
    consistency  MetaQuantus' score, where the runs have perturbed models
    """
    there = ladders(scored)
    if not there:
        return {}
    matrices = _matrices(scored, [ladder.base for ladder in there])
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in ("court", "agreement", "preferences", "fooled")}
    for (dataset, series), cells in matrices.items():
        truths = {name: _truth(matrices, dataset, name) for name in TRUTHS}
        alphas = _reliability(cells, scored)
        for ladder in there:
            setting = Setting(dataset, ladder.title, series)
            climbed = {cell: matrix for cell, matrix in cells.items() if ladder.base in matrix}
            if not climbed:
                continue
            made = _of_ladder(climbed, ladder)
            made["agreement"] += _of_methods(cells, truths, series, scored)
            rows["court"].append({**_called(setting), **_short(made), **alphas, **_cost(series, scored)})
            for name, lines in made.items():
                rows[name] += [_called(setting) | line for line in lines]
    tables = {name: pd.DataFrame(lines) for name, lines in rows.items() if lines}
    if len(known := _consistencies(scored)):
        tables["consistency"] = known
        tables["court"] = tables["court"].merge(known, how="left", on=["dataset", "metric", "mode", "score"])
    tables["court"] = _advised(tables["court"], scored)
    return tables


def write_court(tables: Mapping[str, pd.DataFrame], folder: Path) -> None:
    """Each table as CSV and Parquet."""
    for name, table in tables.items():
        write_csv(folder / f"{name}.csv", table)
        write_parquet(folder / f"{name}.parquet", table)


# -- what is read ------------------------------------------------------------------------------------------------------

Cells = Mapping[tuple[Any, ...], pd.DataFrame]  # (experiment, dataset, model, seed) -> images x maps, higher = better


def _matrices(scored: Scored, bases: Sequence[str]) -> dict[tuple[str, Series], dict[tuple[Any, ...], pd.DataFrame]]:
    """(data set, series) -> cells that have a ladder; scores that are the same for all maps are left out."""
    found: dict[tuple[str, Series], dict[tuple[Any, ...], pd.DataFrame]] = {}
    for keys, series, matrix, direction in scored.series():
        if any(base in matrix for base in bases) and not same_for_all(matrix):
            cell = tuple(keys[name] for name in CELL)
            found.setdefault((str(keys["dataset"]), series), {})[cell] = aligned(matrix, direction)
    return found


def _truth(matrices: Mapping[tuple[str, Series], Cells], dataset: str, metric: str) -> Cells:
    """The series of a metric that knows the truth: as its paper's text has it where there is the choice."""
    found = {series.mode: cells for (of, series), cells in matrices.items() if (of, series.metric) == (dataset, metric)}
    return found.get("paper") or next(iter(found.values()), {})


# -- what is said of one metric at one setting -------------------------------------------------------------------------


def _of_ladder(cells: Cells, ladder: Ladder) -> dict[str, list[dict[str, Any]]]:
    agreements: list[dict[str, Any]] = []
    preferences: list[dict[str, Any]] = []
    by_image: dict[str, list[Any]] = {}  # defect -> agreement of every image, by cell
    wrong: dict[tuple[str, float], list[Any]] = {}
    macros: dict[str, list[tuple[float, Any, int]]] = {}
    for defect, rungs in ladder.rungs.items():
        doses = np.array([0.0, *sorted(rungs)])
        names = [ladder.base, *(rungs[dose] for dose in sorted(rungs))]
        for matrix in cells.values():
            scores = matrix.reindex(columns=names).to_numpy()
            by_image.setdefault(defect, []).append(agreement_by_image(scores, -doses))
            value, draws = macro_agreement(scores, -doses, np.random.default_rng(0))
            macros.setdefault(defect, []).append((value, draws, len(scores)))
            for difference in DIFFERENCES:
                wrong.setdefault((defect, difference), []).append(prefers_worse(scores, doses, difference))
    cell_count = range(len(cells))
    by_image[ALL] = [_mean_known([by_image[d][k] for d in ladder.rungs]) for k in cell_count]
    macros[ALL] = [_mean_of([macros[d][k] for d in ladder.rungs]) for k in cell_count]
    for difference in DIFFERENCES:
        wrong[ALL, difference] = [_mean_known([wrong[d, difference][k] for d in ladder.rungs]) for k in cell_count]
    for defect in (ALL, *ladder.rungs):
        macro = over_models(macros[defect])
        told = {"truth": defect, **asdict(_estimate(by_image[defect]))}
        agreements.append({**told, "macro": macro.mean, "macro_low": macro.low, "macro_high": macro.high})
        for difference in DIFFERENCES:
            share = asdict(_estimate(wrong[defect, difference]))
            preferences.append({"truth": defect, "difference": difference, **share})
    fooled = [
        {"by": title, **asdict(_estimate([prefers(_column(m, name), _column(m, ladder.base)) for m in cells.values()]))}
        for title, name in ladder.bottom.items()
    ]
    return {"agreement": agreements, "preferences": preferences, "fooled": fooled}


def _of_methods(cells: Cells, truths: Mapping[str, Cells], series: Series, scored: Scored) -> list[dict[str, Any]]:
    """Agreement with the order of the real methods by each truth, on the cells that have it."""
    rows, titles_of = [], {name: title for title, name in BY_METHODS.items()}
    for name, truth in truths.items():
        if not truth or series.metric == name:
            continue
        by_image, macros = [], []
        for cell in [cell for cell in cells if cell in truth]:
            own, known = scored.own(cells[cell]), scored.own(truth[cell])
            methods = [m for m in own if m in known]
            if len(methods) < FEWEST:
                continue
            scores, right = own[methods].to_numpy(), known[methods].reindex(own.index).to_numpy()
            by_image.append(agreement_by_image(scores, right))
            value, draws = macro_agreement(scores, right, np.random.default_rng(0))
            macros.append((value, draws, len(scores)))
        macro = over_models(macros)
        told = {"truth": titles_of[name], **asdict(_estimate(by_image))}
        rows.append({**told, "macro": macro.mean, "macro_low": macro.low, "macro_high": macro.high})
    return rows


def _reliability(cells: Cells, scored: Scored) -> dict[str, Any]:
    """Krippendorff's alpha over the real methods, as `salrun reliability` has it, as a mean over models."""
    models = []
    for matrix in cells.values():
        own = scored.own(matrix)
        if own.shape[1] > 1 and not same_for_all(own):
            ranks = rankings(own)
            draws = alpha_draws([ranks], np.random.default_rng(0), COURT_DRAWS)[:, 0]
            models.append((alpha(ranks), draws, len(own)))
    of = over_models(models)
    verdict = alpha_verdict(of.mean, of.low, of.high)
    return {"alpha": of.mean, "alpha_low": of.low, "alpha_high": of.high, "reliability": verdict}


def _short(made: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """The columns of the court's own table."""
    whole = next(row for row in made["agreement"] if row["truth"] == ALL)
    row: dict[str, Any] = {"agreement": whole["mean"], "low": whole["low"], "high": whole["high"]}
    row |= {name: whole[name] for name in ("macro", "macro_low", "macro_high", "images", "models")}
    defects = [r for r in made["agreement"] if r["truth"] != ALL and r["truth"] not in BY_METHODS]
    known = [r for r in defects if not np.isnan(r["mean"])]
    worst = min(known, key=lambda r: r["mean"], default=None)
    row |= {"worst_defect": worst["truth"] if worst else "", "worst_agreement": worst["mean"] if worst else np.nan}
    for of in made["agreement"]:
        if of["truth"] in BY_METHODS:
            row[f"methods_{BY_METHODS[of['truth']]}"] = of["mean"]
    for of in made["preferences"]:
        if of["truth"] == ALL:
            title = f"worse_{of['difference']:g}"
            row |= {title: of["mean"], f"{title}_low": of["low"], f"{title}_high": of["high"]}
    beaten = [of["by"] for of in made["fooled"] if of["mean"] >= 0.5]
    return row | {"fooled_by": " ".join(beaten)}


def _cost(series: Series, scored: Scored) -> dict[str, Any]:
    """Forward passes per image and map, and whether each of them is an explanation."""
    listed = [m for m in scored.metrics if (m["metric"], m["mode"]) == (series.metric, series.mode)]
    about = listed[0] if listed else {}
    return {"passes": about.get("passes", np.nan), "explains": bool(about.get("explains", False))}


def _advised(court: pd.DataFrame, scored: Scored) -> pd.DataFrame:
    """With the setting that is the default, the worst one of its metric, and the advice by RULE.

    The default is the mode called "default", or the first; of several scores that of the first perturbation or measure
    that the metric lists, else the first by name.
    """
    court = court.reset_index(drop=True)
    court["default"] = court["worst"] = False
    court["advice"] = ""
    firsts = {(m["metric"], m["mode"]): _first(m.get("options") or {}) for m in scored.metrics}
    for _, part in court.groupby(["dataset", "ladder", "metric"], sort=False):
        named = part[part["mode"].isin(["", "default"])]
        named = named if len(named) else part[part["mode"] == part["mode"].iloc[0]]
        first = firsts.get((named["metric"].iloc[0], named["mode"].iloc[0]), "")
        listed = named[[str(score).startswith(first) for score in named["score"]]]
        court.loc[(listed if len(listed) else named).index[0], "default"] = True
        if part["agreement"].notna().any():
            court.loc[part["agreement"].idxmin(), "worst"] = True
        for at, row in part.iterrows():
            court.loc[at, "advice"] = _advice(row, part)
    return court


def _first(options: Mapping[str, Any]) -> str:
    """What the names of a metric's first scores begin with; nothing where it lists no several."""
    several = options.get("perturbations") or options.get("measures") or [""]
    return str(several[0])


def _advice(row: pd.Series, settings: pd.DataFrame) -> str:
    if row["metric"] in KNOW:
        return TOLD
    if row["explains"]:
        return NOT_JUDGED
    if np.isnan(row["agreement"]):
        return ""
    if row["high"] < POOR or row["fooled_by"]:
        return NEVER
    if row["low"] < GOOD:
        return CARE
    return USE if (settings["agreement"] >= FAIR).all() and not settings["fooled_by"].any() else SETTING


# -- MetaQuantus' consistency ------------------------------------------------------------------------------------------


def _consistencies(scored: Scored) -> pd.DataFrame:
    """Meta-consistency by data set, metric, mode and score, where the runs have perturbed models; a mean over cells."""
    found: dict[tuple[Any, ...], dict[tuple[Any, ...], dict[str, pd.DataFrame]]] = {}
    for keys, series, matrix, direction in scored.series():
        model = str(keys["model"])
        role = model if model.startswith((MINOR, DISRUPTIVE)) else OWN_MODEL
        place = keys["dataset"], series.metric, series.mode, series.score
        cell = keys["experiment"], keys["seed"]
        found.setdefault(place, {}).setdefault(cell, {})[role] = scored.own(aligned(matrix, direction))
    rows = []
    for place, cells in found.items():
        whole = [four for roles in cells.values() if (four := _consistency(roles))]
        if whole:
            means = {name: float(np.mean([four[name] for four in whole])) for name in whole[0]}
            means["mc_error"] /= np.sqrt(len(whole))
            rows.append({**dict(zip(("dataset", "metric", "mode", "score"), place, strict=True)), **means})
    return pd.DataFrame(rows)


def _consistency(roles: Mapping[str, pd.DataFrame]) -> Mapping[str, float]:
    """Of one cell; nothing where it lacks perturbed models of a kind, or has fewer than two methods."""
    sides = {kind: [m for role, m in roles.items() if role.startswith(kind)] for kind in (MINOR, DISRUPTIVE)}
    if OWN_MODEL not in roles or not all(sides.values()):
        return {}
    methods = [name for name in roles[OWN_MODEL] if all(name in matrix for matrix in roles.values())]
    images = sides[MINOR][0].index.intersection(roles[OWN_MODEL].index)
    if len(methods) < 2:
        return {}
    own, minor, disruptive = (
        [matrix.reindex(index=images, columns=methods).to_numpy() for matrix in matrices]
        for matrices in ([roles[OWN_MODEL]], sides[MINOR], sides[DISRUPTIVE])
    )
    error = consistency_error(own[0], minor, disruptive)
    return {**consistency(own[0], minor, disruptive), "mc_error": error}


# -- small things ------------------------------------------------------------------------------------------------------


def _called(setting: Setting) -> dict[str, str]:
    series = setting.series
    named = {"metric": series.metric, "mode": series.mode, "score": series.score}
    return {"dataset": setting.dataset, "ladder": setting.ladder, **named}


def _column(matrix: pd.DataFrame, name: str) -> np.ndarray:
    return matrix[name].to_numpy() if name in matrix else np.full(len(matrix), np.nan)


def _estimate(values: Sequence[Any]) -> Estimate:
    return mean_over_models(values, np.random.default_rng(0))


def _mean_known(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Per image the mean over defects that it has."""
    stacked = np.stack(columns)
    known = (~np.isnan(stacked)).sum(axis=0)
    return np.divide(np.nansum(stacked, axis=0), known, out=np.full(stacked.shape[1], np.nan), where=known > 0)


def _mean_of(parts: Sequence[tuple[float, Any, int]]) -> tuple[float, Any, int]:
    """Per model the mean over defects that it has, of estimate and draws."""
    known = [part for part in parts if not np.isnan(part[0])]
    if not known:
        return parts[0]
    return float(np.mean([p[0] for p in known])), np.mean([p[1] for p in known], axis=0), known[0][2]


def short_tables(court: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """(title, table) of each data set and ladder: a line per metric at its default, best first, as text."""
    for (dataset, ladder), part in court.groupby(["dataset", "ladder"], sort=False):
        worst = part[part["worst"]].set_index("metric")["agreement"]
        names = dict(zip(part.index, titles(part), strict=True))
        best = part[part["default"]].sort_values("agreement", ascending=False)
        table = pd.DataFrame(
            {
                "metric": [names[at] for at in best.index],
                "agreement": [f"{r.agreement:.2f} [{r.low:.2f}, {r.high:.2f}]" for r in best.itertuples()],
                "worst": best["metric"].map(worst).map("{:.2f}".format),
                "weakest at": best["worst_defect"],
                "worse": best["worse_0.25"].map("{:.2f}".format),
                "alpha": best["alpha"].map("{:.2f}".format),
                "passes": best["passes"].map("{:g}".format),
                "fooled by": best["fooled_by"],
                "advice": best["advice"],
            }
        )
        yield f"{dataset}, ladder of {ladder}: {sample_of(part)}", table


def sample_of(rows: pd.DataFrame | pd.Series) -> str:
    """`3 models, 60 images`: what rows of the court rest on."""
    models, images = int(np.max(rows["models"])), int(np.max(rows["images"]))
    return f"{models} model{'s' * (models != 1)}, {images} image{'s' * (images != 1)}"


def court_of(run: Run) -> list[tuple[str, pd.DataFrame]]:
    """The short tables of one run with a ladder."""
    return list(short_tables(judge(read_runs([run.path]))["court"]))


def titles(court: pd.DataFrame) -> Iterator[str]:
    """What each row's setting is called; a default by its metric alone."""
    for metric, mode, score in court[["metric", "mode", "score"]].itertuples(index=False, name=None):
        yield " ".join(filter(None, [metric, "" if mode == "default" else mode, score]))
