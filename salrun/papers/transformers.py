"""The hypotheses of docs/transformers.md, written before the runs, and the tables and the figure of that page.

It reads SMERF's experiments with `arch=vit`, and those with the papers' CNNs beside them: a model is a setting. Beside
these, mosaics of photographs (`+experiment=transformer_grid`): one model each, and its images decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from salrun.papers.hypotheses import Part, Statement, Tables, answers
from salrun.papers.smerf.terms import LABELS, SETTINGS
from salrun.papers.style import PALETTE, figure, save, styled
from salrun.results.run import Run
from salrun.results.tables import markdown, write_csv

METRICS, MODE = ("pafl", "piou"), "paper"
ON_MOSAICS = ("mass_share", "localisation_auc", "pointing_game")
CONTROLS = ("oracle", "oracle_tokens", "all_lit", "all_lit_tokens", "edge", "random")
LINES = [control for control in CONTROLS if control != "edge"]
ATTENTION = ("attention_last", "attention_rollout", "transformer_relevance", "legrad", "attn_lrp")
TIMES_INPUT = ("input_x_gradient", "integrated_gradients", "lrp_epsilon", "deeplift_rescale", "attn_lrp")
NAMES = LABELS | {
    "attention_last": "last attention",
    "attention_rollout": "rollout",
    "transformer_relevance": "relevance",
    "legrad": "LeGrad",
    "relevance_cvpr": "relevance, CVPR",
    "attn_lrp": "AttnLRP",
    "oracle_tokens": "Oracle, 8x8",
    "all_lit_tokens": "All lit, 8x8",
}


def buckets(run: Run) -> pd.DataFrame:
    """One row per metric, method and bucket: the mean over its images, and its standard error."""
    scores = run.scores
    scores = scores[scores["metric"].isin(METRICS) & (scores["mode"] == MODE)]
    by = scores.groupby(["metric", "method", "group"], as_index=False)["value"]
    table = by.agg(mean="mean", error="sem", images="count")
    facts = run.cells.iloc[0]
    return table.assign(setting=facts["dataset.reasoning"], model=facts["model"], seed=facts["seed"])


def standings(table: pd.DataFrame) -> pd.DataFrame:
    """Per setting, model, metric and method: the mean over buckets, its error over images, and the lowest bucket."""
    table = table.dropna(subset=["mean"])
    by = table.assign(squared=table["error"] ** 2).groupby(["setting", "model", "metric", "method"])
    means = by.agg(
        mean=("mean", "mean"), squared=("squared", "sum"), buckets=("mean", "size"), images=("images", "sum")
    )
    lowest = table.loc[by["mean"].idxmin()].set_index(["setting", "model", "metric", "method"])
    means["error"] = np.sqrt(means.pop("squared")) / means["buckets"]
    return means.assign(
        lowest=lowest["mean"], lowest_error=lowest["error"], lowest_bucket=lowest["group"]
    ).reset_index()


def on_mosaics(runs: Sequence[Run]) -> pd.DataFrame:
    """Per model, metric and method: the mean over mosaics, its standard error, their number."""
    tables = []
    for run in runs:
        scores = run.scores[run.scores["metric"].isin(ON_MOSAICS) & (run.scores["score"] == "")]
        by = scores.groupby(["metric", "method"], as_index=False)["value"]
        tables.append(by.agg(mean="mean", error="sem", images="count").assign(model=run.cells["model"].iloc[0]))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def apart(runs: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """(runs on SMERF's settings, runs on mosaics)"""
    settings = ["dataset.reasoning" in run.cells for run in runs]
    return list(compress(runs, settings)), [run for run, setting in zip(runs, settings, strict=True) if not setting]


def judged(runs: Sequence[Run], cnns: Sequence[Run]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(standings of the transformers, what they say of every statement)

    The answer counts a setting, its seeds averaged, as a model; `over seeds` counts a seed, its settings averaged, as
    docs/verdicts.md does.
    """
    runs, grids = apart(runs)
    scored = pd.concat([buckets(run) for run in runs], ignore_index=True)
    own = standings(scored)
    beside = standings(pd.concat([buckets(run) for run in cnns], ignore_index=True)) if cnns else own.head(0)
    pools: dict[str, list[Tables]] = pooled(own, beside)
    mosaics = on_mosaics([run for run in grids if run.cells["model"].iloc[0] == ON_PHOTOGRAPHS])
    if len(mosaics):
        shares = mosaics[mosaics["metric"] == ON_MOSAICS[0]].set_index("method")
        pools = {**pools, PHOTOGRAPHS: [{"own": shares}]}
    said = answers(STATEMENTS, pools)
    seeds: list[dict[str, Any]] = [pooled(standings(part), beside) for _, part in scored.groupby("seed")]
    over_seeds = answers(
        [replace(statement, parts=_mean_of(statement.parts)) for statement in STATEMENTS],
        {name: [pool[name] for pool in seeds] for name in seeds[0] if all(name in pool for pool in seeds)},
    ).set_index(["id", "data"])
    answer, deciding = over_seeds["answer"], over_seeds["deciding"]
    column = answer.where(deciding == "", answer + ", " + deciding)
    said["over seeds"] = column.reindex(pd.MultiIndex.from_frame(said[["id", "data"]])).fillna("").to_numpy()
    return own, said


def pooled(own: pd.DataFrame, beside: pd.DataFrame) -> dict[str, list[Tables]]:
    """The PAFL of every setting, the transformer's and the CNN's, by the settings that statements are about."""
    models: dict[str, Tables] = {}
    for name in (s for s in SETTINGS if s in set(own["setting"])):
        tables = {"own": own, "cnn": beside}
        models[name] = {
            k: t[(t["setting"] == name) & (t["metric"] == "pafl")].set_index("method") for k, t in tables.items()
        }
    kinds = {EVERY: "", "complex settings": "complex", "simple settings": "simple"}
    pools = {kind: [model for name, model in models.items() if name.startswith(start)] for kind, start in kinds.items()}
    return {kind: pool for kind, pool in pools.items() if pool}


# -- parts -------------------------------------------------------------------------------------------------------------


def _above(pairs: Sequence[tuple[str, str]]) -> Callable[[Tables], Iterator[Part]]:
    """Mean of the first - mean of the second, for every pair."""

    def parts(tables: Tables) -> Iterator[Part]:
        own = tables["own"]
        for one, other in pairs:
            if one in own.index and other in own.index:
                difference = own["mean"][one] - own["mean"][other]
                yield f"{one} - {other}", difference, float(np.hypot(own["error"][one], own["error"][other]))

    return parts


def _fails_somewhere(tables: Tables) -> Iterator[Part]:
    own = tables["own"]
    for method in own.index.difference(CONTROLS):
        yield method, 0.5 - own["lowest"][method], own["lowest_error"][method]


def _ranks_alike(tables: Tables) -> Iterator[Part]:
    """Spearman over the methods that both networks have; its standard error is that of no correlation."""
    own, cnn = tables["own"]["mean"], tables["cnn"]["mean"]
    common = own.index.intersection(cnn.index).difference(CONTROLS)
    if len(common) > 2:
        yield "methods", own[common].rank().corr(cnn[common].rank()) - 0.5, 1 / np.sqrt(len(common) - 1)


def _mean_of(parts: Callable[[Tables], Iterator[Part]]) -> Callable[[Any], Iterator[Part]]:
    """The parts that all settings have, averaged over them."""

    def averaged(settings: Sequence[Tables]) -> Iterator[Part]:
        found = [{name: (d, e) for name, d, e in parts(tables)} for tables in settings]
        for name in found[0]:
            if all(name in setting for setting in found):
                d, e = np.array([setting[name] for setting in found]).T
                yield name, d.mean(), float(np.sqrt((np.nan_to_num(e) ** 2).sum()) / len(d))

    return averaged


LIT, EVERY, PHOTOGRAPHS, ON_PHOTOGRAPHS = "all_lit", "every setting", "photographs", "cifar10_vit"
STATEMENTS = (
    Statement("V1", "rollout does not find the reasoning", "average", _above([(LIT, "attention_rollout")]), (EVERY,)),
    Statement(
        *("V2", "relevance finds more than rollout", "average"),
        _above([("transformer_relevance", "attention_rollout")]),
        (EVERY,),
    ),
    Statement(
        *("V3", "no method made for transformers beats the map that lights every object", "every"),
        _above([(LIT, method) for method in ATTENTION]),
        ("complex settings",),
    ),
    Statement(
        *("V4", "methods that multiply by the input beat the map that lights every object", "most"),
        _above([(method, LIT) for method in TIMES_INPUT]),
        ("simple settings",),
    ),
    Statement(
        "V5",
        "AttnLRP finds more than LRP-epsilon",
        "average",
        _above([("attn_lrp", "lrp_epsilon")]),
        (EVERY,),
    ),
    Statement("V6", "token Grad-CAM does not find the reasoning", "average", _above([(LIT, "grad_cam")]), (EVERY,)),
    Statement("V7", "each method has a bucket below .5", "every", _fails_somewhere, ("complex settings",)),
    Statement("V8", "methods rank as on the CNN", "average", _ranks_alike, (EVERY,)),
    Statement(
        *("V9", "every method made for transformers puts more on the picture that decides than a random map", "every"),
        _above([(method, "random") for method in ATTENTION]),
        (PHOTOGRAPHS,),
    ),
    Statement(
        *("V10", "the two methods that find the reasoning of SMERF's transformers lead here too", "every"),
        _above([(one, other) for one in ("deeplift_rescale", "integrated_gradients") for other in ATTENTION]),
        (PHOTOGRAPHS,),
    ),
    Statement(
        *("V11", "relevance puts more on the picture that decides than rollout", "average"),
        _above([("transformer_relevance", "attention_rollout")]),
        (PHOTOGRAPHS,),
    ),
    Statement(
        *("V12", "the CVPR rule of relevance puts more there than the ICCV rule", "average"),
        _above([("relevance_cvpr", "transformer_relevance")]),
        (PHOTOGRAPHS,),
    ),
)


# -- the page ----------------------------------------------------------------------------------------------------------


def write_page(runs: Sequence[Run], cnns: Sequence[Run], folder: Path) -> None:
    """What docs/transformers.md shows of these runs: CSV files, `transformers_*.md`, a figure."""
    own, said = judged(runs, cnns)
    write_csv(folder / "transformers.csv", own)
    write_csv(folder / "transformers_statements.csv", said)
    pafl = own[own["metric"] == "pafl"]
    save(panels(pafl), pafl, folder / "transformers_pafl")
    shown = {"statements": said, "pafl": by_setting(own, "pafl"), "piou": by_setting(own, "piou")}
    mosaics = on_mosaics(apart(runs)[1])
    if len(mosaics):
        write_csv(folder / "transformers_photographs.csv", mosaics)
        shown["photographs"] = by_model(mosaics)
    for name, table in shown.items():
        (folder / f"transformers_{name}.md").write_text(markdown(table) + "\n", encoding="utf-8")


def by_model(mosaics: pd.DataFrame) -> pd.DataFrame:
    """Methods x models and metrics, with intervals over mosaics; the transformer's best first, controls below."""
    reach = 1.96 * mosaics["error"]
    cells = [f"{mean:.2f} ± {half:.2f}" for mean, half in zip(mosaics["mean"], reach, strict=True)]
    column = mosaics["model"] + ", " + mosaics["metric"]
    wide = mosaics.assign(cell=cells, column=column).pivot(index="method", columns="column", values="cell")
    first = mosaics[(mosaics["model"] == ON_PHOTOGRAPHS) & (mosaics["metric"] == ON_MOSAICS[0])].set_index("method")
    best = first["mean"].reindex(wide.index).sort_values(ascending=False).index
    ordered = [*(m for m in best if m not in CONTROLS), *(m for m in CONTROLS if m in wide.index)]
    columns = [f"{model}, {metric}" for model in mosaics["model"].unique() for metric in ON_MOSAICS]
    table = wide.loc[ordered, [name for name in columns if name in wide]].fillna("")
    table.insert(0, "method", [NAMES.get(str(name), str(name)) for name in ordered])
    return table


def by_setting(own: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Methods x settings, best on average first, controls below; the last column is the lowest bucket of all."""
    part = own[own["metric"] == metric]
    wide = part.pivot(index="method", columns="setting", values="mean")
    wide = wide[[setting for setting in SETTINGS if setting in wide]]
    wide = wide.assign(mean=wide.mean(axis=1), lowest=part.groupby("method")["lowest"].min())
    controls = [name for name in CONTROLS if name in wide.index]
    ordered = wide.loc[[*wide.drop(index=controls).sort_values("mean", ascending=False).index, *controls]]
    shown = ordered.map("{:.2f}".format)
    shown.insert(0, "method", [NAMES.get(str(name), str(name)) for name in ordered.index])
    return shown


# -- the figure --------------------------------------------------------------------------------------------------------


@styled()
def panels(table: pd.DataFrame) -> Figure:
    """A panel per setting: methods by their mean PAFL, the lowest bucket as a hollow point, controls as lines."""
    settings = [s for s in SETTINGS if s in set(table["setting"])]
    fig, axes = figure(-(-len(settings) // 2), 2, height=2.6)
    for ax in axes.flat[len(settings) :]:
        ax.set_axis_off()
    for ax, setting in zip(axes.flat, settings, strict=False):
        part = table[table["setting"] == setting].set_index("method")
        methods = part.drop(index=list(CONTROLS), errors="ignore").sort_values("mean")
        ax.errorbar(methods["mean"], range(len(methods)), xerr=1.96 * methods["error"], fmt="o", color=PALETTE[0], ms=4)
        ax.plot(methods["lowest"], range(len(methods)), "o", mfc="none", color=PALETTE[0], ms=4)
        for colour, control in zip(PALETTE[1:], LINES, strict=False):
            if control in part.index:
                ax.axvline(part["mean"][control], color=colour, linestyle="--", linewidth=1, label=NAMES[control])
        ax.set_yticks(range(len(methods)), [NAMES.get(name, name) for name in methods.index])
        ax.set_title(setting)
        ax.set_xlim(0, 1)
        ax.set_xlabel("PAFL; hollow: lowest bucket")
    axes.flat[0].legend(loc="lower right", fontsize=7)
    return fig
