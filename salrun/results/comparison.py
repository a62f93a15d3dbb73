"""The answer of one run or several: which method is best under which metric, and is it better than a random map?

    for answer in compare(Path("outputs/custom/latest")):
        print(answer.methods, answer.mean_ranks, answer["insertion"].ranking.best)

One `Comparison` per experiment, data set, model and setting. Runs that differ in their seed are one: their images stand
side by side, so that an interval is over the images of these models. Only the model of a run is read, not its `others`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from salrun.errors import SalrunError, unknown
from salrun.results.run import Run
from salrun.results.tables import write_csv
from salrun.results.trust import doubts_about
from salrun.stats.comparison import Ranking, Standing, fewest_images, metric_agreement, rank_methods
from salrun.stats.ranks import kendall_w
from salrun.stats.reliability import CELL, SERIES, Direction, rankings, same_for_all, wide

RANDOM = "random"
COMPUTED = ("precision", "numerics", "dtype", "tf32")
BEFORE = {"model.trained_in": {"": "float32"}}  # what runs were like that were made before it was told
DRAWN = (
    "cell",
    "seed",
    "dataset.seed",
    "dataset.explained_seed",
    "fingerprint",
    "source",
)  # replicates differ in these
NAMED = ["experiment", "dataset", "model", "scale"]  # what a comparison is called by, beside settings that vary
ARROWS = {"higher": "↑", "lower": "↓"}
NO_FAULT = ("ok", "no_mask")  # flags: an image without the masks a metric reads is no fault


@dataclass(frozen=True)
class Judged:
    """The methods under one of a metric's scores."""

    metric: str
    mode: str
    score: str
    view: str  # the one that all maps were read through; empty: each method's own, see `views`
    views: Mapping[str, str]
    direction: Direction
    first: bool  # of its metric's modes and scores: the one that a short table shows
    ranking: Ranking
    flagged: Mapping[str, int]  # method -> images whose score is undefined or in doubt
    scores: pd.DataFrame = field(repr=False)  # images x methods

    @property
    def title(self) -> str:
        clash = self.view if len({*self.views.values()}) > 1 else ""
        return " ".join(filter(None, [self.metric, self.mode, self.score, clash]))

    @property
    def arrow(self) -> str:
        return ARROWS[self.direction]


@dataclass(frozen=True)
class Comparison:
    """Methods by metrics. `methods` and `controls` are in order of their mean rank over `shown`, best first."""

    title: str
    about: Mapping[str, Any]  # experiment, dataset, model, scale, seeds (all), target
    paper: str
    images: int  # of all models together
    metrics: tuple[Judged, ...]
    methods: tuple[str, ...]
    controls: tuple[str, ...]
    unscored: tuple[str, ...]  # methods without a single defined score
    labels: Mapping[str, str]
    doubts: tuple[str, ...]  # why the model, or one of them, cannot be trusted

    def __getitem__(self, title: str) -> Judged:
        """The metric of this name, or of this full title."""
        named = [j for j in self.metrics if j.title == title] or [j for j in self.shown if j.metric == title]
        if not named:
            raise unknown("metric", title, [j.title for j in self.metrics])
        return named[0]

    @property
    def shown(self) -> tuple[Judged, ...]:
        """One score of each metric."""
        return tuple(j for j in self.metrics if j.first)

    @property
    def models(self) -> int:
        return len(self.about["seeds"])

    @cached_property
    def mean_ranks(self) -> dict[str, float]:
        """Method -> mean over `shown` of its rank; a metric that has no score of it does not count."""
        ranks = pd.DataFrame({j.title: {s.method: s.rank for s in j.ranking.methods} for j in self.shown})
        return {method: float(ranks.loc[method].mean()) for method in self.methods}

    @cached_property
    def agreement(self) -> pd.DataFrame:
        """first, second, within_images, on_average: do two metrics rank the methods alike? Controls are left out."""
        own = {j.title: (j.scores[[m for m in j.scores if m in self.methods]], j.direction) for j in self.shown}
        return metric_agreement(own)

    @cached_property
    def concordance(self) -> float:
        """Kendall's W of the metrics' orders of the methods: 1 all alike; NaN below two metrics or three methods."""
        ranks = pd.DataFrame({j.title: {s.method: s.rank for s in j.ranking.methods} for j in self.shown}).dropna()
        if len(ranks) < 3 or ranks.shape[1] < 2:
            return float("nan")
        return kendall_w(rankings(-ranks.T.to_numpy()))

    @property
    def has_random(self) -> bool:
        return RANDOM in self.controls

    @property
    def too_few(self) -> bool:
        """Whether so few images were explained that no method could be told from a random map."""
        return self.images < fewest_images(len(self.methods))

    @property
    def sentence(self) -> str:
        """Which method to use, as far as these scores tell, and how many are better than a random map."""
        metrics = [judged.metric for judged in self.shown]
        under = f"under all {len(metrics)} metrics" if metrics[2:] else f"under {_listed(metrics)}"
        leads = {m: [j.metric for j in self.shown if m in j.ranking.best] for m in self.methods}
        top = [m for m in self.methods if leads[m] == metrics]
        if len(self.methods) == 1:
            said = f"{self.methods[0]} is the only method"
        elif len(top) == len(self.methods):
            said = f"the {len(top)} methods cannot be told apart {under}"
        elif top:
            first = all(j.ranking.methods[0].method == top[0] for j in self.shown) and not top[1:]
            said = f"{_listed(top)} {'is best' if first else 'cannot be told apart from the best'} {under}"
        else:
            most = max(self.methods, key=lambda m: len(leads[m]))
            said = f"no method leads {under}; {most} does under {_listed(leads[most])}"
        if not self.has_random:
            return said
        better = {j.metric: sum(_verdict(j, m) == "better" for m in self.methods) for j in self.shown}
        if len(set(better.values())) == 1:
            counts = f"{next(iter(better.values()))} under {'each metric' if metrics[1:] else metrics[0]}"
        else:
            counts = ", ".join(f"{count} under {metric}" for metric, count in better.items())
        return f"{said}; better than a random map, of {len(self.methods)}: {counts}"

    @property
    def notes(self) -> list[str]:
        """What a reader of the table must know, one sentence each."""
        notes = []
        if not self.has_random:
            notes.append("no `random` control in this run: nothing says what a random map would score")
        if self.unscored:
            notes.append(f"no score is defined of {_listed(self.unscored)}")
        if self.too_few:
            least = fewest_images(len(self.methods))
            notes.append(f"{self.images} images cannot tell {len(self.methods)} methods from random: it takes {least}")
        own = [j for j in self.shown if not j.view]
        if own:
            kinds = sorted({view for j in own for view in j.views.values()})
            by = f"as {self.paper} sets them" if self.paper else "by view=method"
            notes.append(f"each method is read through its own view, {by}: {', '.join(kinds)} (column view)")
        return notes

    def frame(self) -> pd.DataFrame:
        """One row per metric and method: everything the tables show."""
        rows = [self._row(j, s) for j in self.metrics for s in (*j.ranking.methods, *j.ranking.controls)]
        return pd.DataFrame(rows)

    def pairs(self) -> pd.DataFrame:
        """One row per metric and two methods; a positive difference is in favour of the first."""
        tables = [self._tagged(j, j.ranking.pairs) for j in self.metrics if len(j.ranking.pairs)]
        return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()

    def _row(self, judged: Judged, standing: Standing) -> dict[str, Any]:
        groups = [str(n) for n, group in enumerate(judged.ranking.groups, 1) if standing.method in group]
        return {
            **self._keys(judged),
            "direction": judged.direction,
            "view": judged.views.get(standing.method, judged.view),
            "method": standing.method,
            "control": not groups,
            "rank": standing.rank,
            "mean": standing.mean,
            "ci_low": standing.low,
            "ci_high": standing.high,
            "n": standing.n,
            "n_flagged": judged.flagged.get(standing.method, 0),
            "groups": " ".join(groups),
            "over_random": standing.gain.mean,
            "over_random_low": standing.gain.low,
            "over_random_high": standing.gain.high,
            "p_holm": standing.gain.p_holm,
            "than_random": standing.gain.verdict,
            "model_in_doubt": "; ".join(self.doubts),
        }

    def _keys(self, judged: Judged) -> dict[str, Any]:
        return {"comparison": self.title, "metric": judged.metric, "mode": judged.mode, "score": judged.score}

    def _tagged(self, judged: Judged, table: pd.DataFrame) -> pd.DataFrame:
        return pd.concat([pd.DataFrame(self._keys(judged), index=table.index), table], axis=1)


def compare(*runs: Path | str) -> list[Comparison]:
    """One comparison per experiment, data set, model and setting of these run directories, in their order."""
    return compare_runs([Run(path) for path in runs])


def compare_runs(runs: Sequence[Run], none: bool = False) -> list[Comparison]:
    """`compare` of runs that are open already; `none`: there may be nothing to compare."""
    if not runs:
        raise SalrunError("a comparison needs the folder of at least one run, got none")
    cells = pd.concat([run.cells.assign(run=n) for n, run in enumerate(runs)], ignore_index=True)
    cells = cells[cells["role"] == "model"].astype(object).fillna("").replace(BEFORE)
    # Runs made before these were told are of the kind that the others are, where that is one.
    untold = [name for name in COMPUTED if name in cells and len({*cells[name]} - {""}) == 1]
    settings = [name for name in cells if name not in (*DRAWN, *untold, "run")]
    answers = []
    for named, members in cells.groupby(settings, sort=False):
        called = dict(zip(settings, named, strict=True))
        alike, twins = (_shared(cells, called, names) for names in (NAMED, ["dataset", "model"]))
        varying = [name for name in settings if alike[name].nunique() > 1]
        varying = [*(["experiment"] if twins["experiment"].nunique() > 1 else []), *varying]
        of = [runs[n] for n in dict.fromkeys(members["run"])]
        answers += [c for c in [_comparison(of, members, varying)] if c.methods]
    if not answers and not none:
        raise SalrunError("nothing to compare: no metric of these runs, of which more or less is better, has a score")
    return answers


def _shared(cells: pd.DataFrame, called: Mapping[str, Any], names: Sequence[str]) -> pd.DataFrame:
    """The cells of these names."""
    return cells[(cells[list(names)] == [called[name] for name in names]).all(axis=1)]


def experiment_matrix(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """Mean ranks, comparisons x methods, best method first; the last row is their mean, of methods that all have."""
    table = pd.DataFrame([c.mean_ranks for c in comparisons], index=[c.title for c in comparisons])
    table.loc["mean"] = table.mean().where(table.notna().all())
    return table[sorted(table, key=lambda m: (table[m].isna().any(), table[m].mean(), m))]


def write_comparison(comparisons: Sequence[Comparison], folder: Path) -> None:
    """methods.csv, pairs.csv and agreement.csv; equal runs give equal bytes."""
    write_csv(folder / "methods.csv", pd.concat([c.frame() for c in comparisons], ignore_index=True))
    write_csv(folder / "pairs.csv", pd.concat([c.pairs() for c in comparisons], ignore_index=True))
    agreed = [c.agreement.assign(comparison=c.title) for c in comparisons]
    write_csv(folder / "agreement.csv", pd.concat(agreed, ignore_index=True))


def _comparison(runs: Sequence[Run], cells: pd.DataFrame, varying: Sequence[str]) -> Comparison:
    called = cells.iloc[0]
    paper = next((str(run.facts["paper"]) for run in runs if run.facts.get("paper")), "")
    title = str(called["experiment"]) if paper else f"{called['model']} on {called['dataset']}"
    told = [f"{name.rpartition('.')[2]}={called[name]}" for name in varying if called[name] not in ("", title)]
    controls = list(dict.fromkeys(name for run in runs for name in run.controls))
    scores = pd.concat([run.scores for run in runs], ignore_index=True)
    rungs = {name for run in runs for name in run.ladders}  # they judge metrics, and are no methods
    scores = scores[scores["cell"].isin(set(cells["cell"])) & ~scores["method"].isin(rungs)]
    scores = scores.drop_duplicates(["cell", "image_id", "method", *SERIES], keep="last")
    metrics = tuple(_judged(scores, runs, controls))
    order = pd.DataFrame({j.title: {s.method: s.rank for s in j.ranking.methods} for j in metrics if j.first})
    mean = order.mean(axis=1)
    apart = dict.fromkeys(s.method for j in metrics if j.first for s in j.ranking.controls)
    seeds = sorted(dict.fromkeys(cells["seed"]))
    about = {name: called.get(name, "") for name in ("experiment", "dataset", "model", "scale", "target")}
    return Comparison(
        title=", ".join([title, *told]),
        about=about | {"seeds": seeds},
        paper=paper,
        images=len(scores[["cell", "image_id"]].drop_duplicates()),
        metrics=metrics,
        methods=tuple(sorted(mean.index, key=lambda m: (mean[m], m))),
        controls=tuple(sorted(apart, key=controls.index)),
        unscored=tuple(sorted({*scores["method"]} - {*mean.index, *apart})) if metrics else (),
        labels={name: str(about.get("label") or name) for run in runs for name, about in run.methods.items()},
        doubts=tuple(dict.fromkeys(doubt for run in runs for doubt in doubts_about(run))),
    )


def _judged(scores: pd.DataFrame, runs: Sequence[Run], controls: Sequence[str]) -> Iterator[Judged]:
    """Every score of which more or less is better, in the order of the runs' metrics."""
    listed = dict.fromkeys((m["metric"], m["mode"]) for run in runs for m in run.metrics)
    place = {key: n for n, key in enumerate(listed)}  # of some collected runs nothing is listed: by name, then
    ways = pd.concat([run.summary[["metric", "mode", "score", "direction"]] for run in runs]).drop_duplicates()
    directions = {tuple(row[:3]): row[3] for row in ways.itertuples(index=False, name=None)}
    pooled = scores.assign(**dict.fromkeys(CELL, ""), image_id=scores["cell"] + " " + scores["image_id"])
    faults = scores[~scores["flag"].isin(NO_FAULT)]
    series = sorted(wide(pooled), key=lambda s: (place.get((s[0]["metric"], s[0]["mode"]), len(place)), *_names(s[0])))
    seen: set[str] = set()
    for keys, matrix in series:
        metric, mode, score, view = _names(keys)
        direction = directions.get((metric, mode, score), "none")
        if direction == "none" or (matrix.shape[1] > 1 and same_for_all(matrix)):
            continue
        rows = _rows(scores, metric, mode, score, view)
        views = dict(rows[["method", "view"]].drop_duplicates().itertuples(index=False, name=None))
        one = next(iter(views.values())) if len({*views.values()}) == 1 else ""
        flagged = _rows(faults, metric, mode, score, view)["method"].value_counts().sort_index()
        ranking = rank_methods(matrix, direction, controls, RANDOM)
        first = metric not in seen
        seen.add(metric)
        counts = {str(m): int(n) for m, n in flagged.items()}
        yield Judged(metric, mode, score, view or one, views, direction, first, ranking, counts, matrix)


def _verdict(judged: Judged, method: str) -> str:
    return next((s.gain.verdict for s in judged.ranking.methods if s.method == method), "")


def _listed(names: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _names(keys: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(str(keys[name]) for name in SERIES)


def _rows(scores: pd.DataFrame, metric: str, mode: str, score: str, view: str) -> pd.DataFrame:
    chosen = (scores["metric"] == metric) & (scores["mode"] == mode) & (scores["score"] == score)
    return scores[chosen & (scores["view"] == view)] if view else scores[chosen]
