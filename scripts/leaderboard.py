"""The block of docs/leaderboard.md: methods x data sets of a campaign under one score, each row with its command."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import t

from salrun.config.catalogue import names
from salrun.results.run import Run
from salrun.sweep.campaigns import HOW, UNASKED

ARROWS = {"higher": "more is better", "lower": "less is better"}


def leaderboard(folder: Path, metric: str, mode: str = "-", score: str = "-", *settings: str) -> str:
    """Rows: methods, best mean over the data sets first; cells: mean with its 95% interval. A table per command.

    `-`: the metric has no such name. `settings`: words that a run's command must have; by default the command that
    most models of an experiment were run by. One model: the interval is over its images; several: over the models.
    """
    runs = chosen([Run(path.parent) for path in sorted(folder.glob("*/run.json"))], settings)
    table = pd.read_csv(folder / "summary.csv", keep_default_na=False, dtype={"cell": str})
    named = {"metric": metric, "mode": mode.strip("-"), "score": score.strip("-")}
    table = table[(table[list(named)] == list(named.values())).all(axis=1)]
    table = table.assign(**{end: pd.to_numeric(table[end]) for end in ("mean", "ci_low", "ci_high")})
    blocks = []
    for words in dict.fromkeys(runs.values()):
        of = [run for run in runs if runs[run] == words]
        cells = {cell: run for run in of for cell in run.cells.loc[run.cells["role"] == "model", "cell"]}
        part = table[table["cell"].isin(cells)]
        if not part.empty:
            blocks.append("\n".join(ranked(part, cells)))
    if not blocks:
        raise SystemExit(f"leaderboard: no run of {folder.name} has {' '.join(filter(None, named.values()))}")
    said = f"{' '.join(filter(None, named.values()))}, {ARROWS[table['direction'].iloc[0]]}"
    scales = ", ".join(sorted({run.facts["scale"] for run in runs}))
    return "\n\n".join([f"{said}; scale {scales}:", *blocks])


def ranked(table: pd.DataFrame, cells: Mapping[str, Run]) -> list[str]:
    """The lines of a table of runs that one command makes."""
    lowest_first = table["direction"].iloc[0] == "lower"
    order = table.groupby("method")["mean"].mean().sort_values(ascending=lowest_first, kind="stable")
    experiments = list(dict.fromkeys(table["experiment"].sort_values(kind="stable")))
    rows = [
        "| method | " + " | ".join(short(e, experiments) for e in experiments) + " | k | command |",
        "|---|" + "--:|" * (len(experiments) + 1) + "---|",
    ]
    controls = {name for run in cells.values() for name in run.controls}
    for method in order.index:
        part = table[table["method"] == method]
        shown = [interval(part[part["experiment"] == e]) for e in experiments]
        k = min(part[part["experiment"] == e]["cell"].nunique() for e in part["experiment"].unique())
        of = [cells[cell] for cell in dict.fromkeys(part["cell"])]
        title = f"{method} (control)" if method in controls else method
        rows.append(f"| {title} | {' | '.join(shown)} | {k} | `{command(of, method)}` |")
    return rows


def chosen(runs: Sequence[Run], settings: Sequence[str]) -> dict[Run, tuple[str, ...]]:
    """The runs whose command has these words; without words, of each experiment those of its most used command.

    Most used is what measured most methods most often; of equal ones the plainest. Each with the words of its table: a
    run of other methods is in the same, where all that its command leaves out are options of methods that it has not.
    """
    if settings:
        return {run: tuple(asked(run)) for run in runs if set(settings) <= set(run.overrides)}
    times = Counter((run.experiment, *asked(run)) for run in runs for _ in run.methods)
    best = {
        name: max((said for said in times if said[0] == name), key=lambda said: (times[said], -len(said)))[1:]
        for name in {run.experiment for run in runs}
    }
    words = {run: [w for w in best[run.experiment] if not of_others(w, run)] for run in runs}
    return {run: best[run.experiment] for run in runs if asked(run) in (words[run], list(best[run.experiment]))}


def of_others(word: str, run: Run) -> bool:
    """Whether a word is an option of a method that this run has not."""
    return word.startswith("methods.") and word.split(".")[1] not in run.methods


def asked(run: Run) -> list[str]:
    """What a run's command says beside experiment, seed, and what changes no result."""
    named = (*HOW, "seed=", "+experiment=", "methods=", "metrics=")  # a row says its methods, a table its metric
    return [w for w in run.overrides if w not in UNASKED and not w.startswith(named)]


def interval(rows: pd.DataFrame) -> str:
    """`0.123 [0.100, 0.146]`."""
    means = rows["mean"].to_numpy()
    if not len(means):
        return ""
    low, high = rows["ci_low"].iloc[0], rows["ci_high"].iloc[0]
    if len(means) > 1:
        half = t.ppf(0.975, len(means) - 1) * means.std(ddof=1) / np.sqrt(len(means))
        low, high = means.mean() - half, means.mean() + half
    return f"{means.mean():.3f} [{low:.3f}, {high:.3f}]"


def command(runs: Sequence[Run], method: str) -> str:
    """What makes a row again; SystemExit where nothing does, for then there is no such row."""
    words = asked(runs[0])
    kept = [w for w in words if not w.startswith("methods.") or w.startswith(f"methods.{method}.")]
    experiments = ",".join(sorted({experiment_of(run) for run in runs}))
    seeds = ",".join(map(str, sorted({int(run.facts["seed"]) for run in runs})))
    many = ["-m"] if "," in experiments + seeds else []
    first = ["salrun", *many, f"+experiment={experiments}", *([] if seeds == "0" else [f"seed={seeds}"])]
    return shlex.join([*first, *kept, f"methods=[{path_of(runs[0], method)}]"])


def path_of(run: Run, method: str) -> str:
    """The name of a method's config: the paper's own, or the plain one."""
    known = names("methods")
    for path in (f"{run.facts['paper']}/{method}", method):
        if path in known:
            return path
    raise SystemExit(f"leaderboard: no command makes the row of {method}: put it into conf/methods/{method}.yaml")


def experiment_of(run: Run) -> str:
    return next(w.partition("=")[2] for w in run.overrides if w.startswith("+experiment="))


def short(experiment: str, every: Sequence[str]) -> str:
    """Without what all names begin with."""
    first = experiment.partition("_")[0] + "_"
    alike = len(every) > 1 and all(e.startswith(first) for e in every)
    return experiment.removeprefix(first) if alike else experiment
