"""Fill the result blocks of the docs pages from the committed results in docs/results/.

    python scripts/make_docs.py                      # fill every block of docs/*.md
    python scripts/make_docs.py --check              # say which pages are out of date, exit 1
    python scripts/make_docs.py judge                # make verdicts, tables and figures of every campaign
    python scripts/make_docs.py judge smerf yona     # of these
    python scripts/make_docs.py evidence outputs/tomsett_cifar10/latest tomsett/cifar10-5    # keep a run's tables
    python scripts/make_docs.py keep outputs/x/latest earlier/x [FIGURE ...]    # summaries of a run of no campaign

docs/results/<campaign>/<run>/ holds a run's tables of single images, all that is needed; beside these folders is what
`salrun collect docs/results/<campaign>` makes of them. A block stands between `<!-- results: KIND FOLDER [WORDS] -->`
and `<!-- /results -->`; KIND is one of BLOCKS, FOLDER a folder of docs/results/. What is around blocks is written
by hand.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from leaderboard import leaderboard
from omegaconf import OmegaConf
from scipy import stats

from salrun.papers.against_print import NAME, against_print, printed_numbers
from salrun.papers.court_pages import write_pages
from salrun.papers.evidence import published
from salrun.papers.frozen import frozen
from salrun.papers.smerf.terms import SETTINGS
from salrun.papers.style import save
from salrun.papers.transformers import write_page
from salrun.results.claims import ENOUGH, NOT_TESTED, headline
from salrun.results.kept import keep as keep_run
from salrun.results.kept import without_machine
from salrun.results.run import Run
from salrun.results.tables import ALL, markdown
from salrun.stats.bootstrap import mean_interval
from salrun.sweep.campaigns import PAPERS, evidence
from salrun.sweep.collect import collect_runs

DOCS = Path(__file__).resolve().parents[1] / "docs"
BLOCK = re.compile(r"(<!-- results: ([^\n]+?) -->\n)(.*?)(<!-- /results -->)", flags=re.DOTALL)
TRAINING_IMAGES = {"tomsett_cnn": 45_000, "cifar10_vit": 45_000, "mnist_cnn": 55_000}
WORDS = "judge [CAMPAIGN ..] | evidence RUN CAMPAIGN/NAME | keep RUN NAME [FIGURE ..]"
COURTS = ("court", "court_vit")  # docs/results/court: runs with a ladder, judged together
TRANSFORMERS = "transformers"  # docs/results/transformers: SMERF's settings on transformers, judged together
CNNS = [f"{setting}-0" for setting in SETTINGS]
EARLIER = "earlier"  # docs/results/earlier: summaries of runs whose tables of single images were not kept


def keep(run: Path, name: str, results: Path, figures: Sequence[str] = ()) -> None:
    """Copy what lasts of a run: its products, reliability, and run.json without its machine."""
    products(run, results / name, figures)
    for path in sorted((run / "reliability").glob("*.csv")):
        copy_table(path, results / name / path.name)
    facts = json.dumps(without_machine(Run(run).facts), indent=2)
    (results / name / "run.json").write_text(facts + "\n")


def products(run: Path, folder: Path, figures: Sequence[str] = ()) -> None:
    """Copy what was made of a run's tables: verdicts, the paper's tables, the numbers of its figures, and their means.

    Of the figures only those named: pictures of most data sets are not ours to publish.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tables = [run / "tables" / "model.csv", run / "claims.csv", run / "claim_parts.csv"]
    for path in [*tables, *sorted((run / "tables").glob("*_*.csv")), *sorted((run / "figures").glob("*.csv"))]:
        if path.is_file():
            copy_table(path, folder / path.name)
    summary = pd.read_csv(run / "tables" / "summary.csv", keep_default_na=False, dtype=str)
    summary[summary["group"] == ALL].map(_short).to_csv(folder / "summary.csv", index=False)
    for path in [*(run / "tables").glob("*_*.md"), *(run / "figures" / f"{name}.png" for name in figures)]:
        (folder / path.name).write_bytes(path.read_bytes())


def copy_table(source: Path, target: Path) -> None:
    """Numbers with six digits."""
    pd.read_csv(source, keep_default_na=False, dtype=str).map(_short).to_csv(target, index=False)


def campaigns(results: Path) -> list[Path]:
    """The folders that hold runs."""
    found = {path.parents[1] for path in results.glob("*/*/run.json")} - {results / EARLIER}
    return sorted(found)


def runs_of(folder: Path) -> list[Run]:
    """The runs of a campaign."""
    return [Run(path.parent) for path in sorted(folder.glob("*/run.json"))]


def transformers(folder: Path) -> tuple[list[Run], list[Run]]:
    """(runs of transformers, those of the CNNs of the same settings)"""
    return runs_of(folder), [run for run in runs_of(folder.parent / "smerf") if run.path.name in CNNS]


def judge(folder: Path, docs: Path) -> None:
    """What collecting a campaign's runs makes, beside them; figures that a page shows."""
    if folder.name in COURTS:
        assumptions: Any = OmegaConf.to_container(OmegaConf.load(docs / "assumptions.yaml"))
        return write_pages([run.path for run in runs_of(folder)], folder, assumptions)
    if folder.name == TRANSFORMERS:
        return write_page(*transformers(folder), folder)
    shown = re.compile(rf"results/{folder.name}/(\w+)\.png")
    figures = {name for page in docs.glob("*.md") for name in shown.findall(page.read_text(encoding="utf-8"))} - {NAME}
    with tempfile.TemporaryDirectory() as out:
        collect_runs([folder], Path(out))
        for name in figures:
            if not (Path(out) / "figures" / f"{name}.png").is_file():
                raise SystemExit(f"a page shows {name} of {folder.name}, which its runs do not make")
        for path in [path for path in folder.iterdir() if path.is_file()]:
            path.unlink()
        products(Path(out), folder, sorted(figures))
    draw_against_print(folder)


def draw_against_print(folder: Path) -> None:
    """against_print.png and .csv where the paper prints numbers; SMERF's with the perfect and the blind map."""
    claims, parts = folder / "claims.csv", folder / "claim_parts.csv"
    if not claims.is_file():
        return
    numbers = printed_numbers(*(pd.read_csv(path, keep_default_na=False, dtype=str) for path in (claims, parts)))
    if numbers.empty:
        return
    controls: dict[str, dict[str, float]] = {}
    if (folder / "smerf_pools.csv").is_file():
        table = _read(folder, "smerf_pools.csv").query("condition == 'plain' and mode == 'code'")
        for metric, unit in (("pafl", "AFL"), ("piou", "IOU")):
            part = table[(table["metric"] == metric) & table["method"].isin(["oracle", "all_lit"])]
            means = part[part["pool"].isin(["simple", "complex"])].groupby(["method", "pool"])["mean"].mean()
            controls[unit] = {f"{method}, {pool}": mean for (method, pool), mean in means.items()}
    save(against_print(numbers, controls), numbers, folder / NAME)
    (folder / f"{NAME}.svg").unlink()


def _short(cell: str) -> str:
    """Six digits of a number; anything else as it is."""
    return f"{float(cell):.6g}" if re.fullmatch(r"-?\d+\.\d{5,}(e-?\d+)?|-?\d\.?\d*e-?\d+", cell) else cell


# -- blocks ------------------------------------------------------------------------------------------------------------


def _read(folder: Path, name: str, **options: object) -> pd.DataFrame:
    return pd.read_csv(folder / name, **options)  # type: ignore[call-overload]


def provenance(folder: Path) -> str:
    """What was run, when, at which commit, and how it differs from the paper."""
    facts = told_by(folder)
    lines = [
        f"`{facts['command']}`",
        "",
        f"Scale {facts['scale']}, seed {facts['seed']}, {facts['device']}, {facts['precision']}; "
        f"commit {facts['commit']}, {facts['day']}.",
    ]
    deviations = facts["deviations"]
    return "\n".join(
        [*lines, "", "Differs from the paper's protocol:", "", *(f"- {d}" for d in deviations)] if deviations else lines
    )


def told_by(folder: Path) -> dict[str, Any]:
    """What run.json says; of a campaign what those of its runs say, each thing once."""
    if (folder / "run.json").is_file():
        every = [json.loads((folder / "run.json").read_text())]
        command = every[0]["command"]
    else:
        every = [run.facts for run in runs_of(folder)]
        command = f"salrun collect docs/results/{folder.name}"
    facts: dict[str, Any] = {
        key: ", ".join(sorted({str(run.get(key)) for run in every})) for key in ("scale", "seed", "device", "precision")
    }
    deviations = [d for run in every for d in run.get("deviations", [])]
    commands = [said for run in every for said in run.get("commands", [run["command"]])]
    return facts | {
        "command": command,
        "commands": commands,
        "commit": ", ".join(sorted({commit_of(run) for run in every})),
        "day": ", ".join(sorted({str(run.get("started"))[:10] for run in every})),
        "deviations": list(dict.fromkeys(deviations)),
    }


def commit_of(facts: Mapping[str, Any]) -> str:
    """The commit's first digits, with the + of a tree that differed from it."""
    commit = str(facts.get("commit") or "unknown")
    return commit[:12] + ("+" if commit.endswith("+") else "")


def claims(folder: Path, *only: str) -> str:
    """What came out: the headline, then counted statements and those apart; or those whose id starts with a word."""
    table = _read(folder, "claims.csv", keep_default_na=False, dtype=str)
    if only:
        table = table[table["id"].str.startswith(only)]
    tested = table[table["answer"] != NOT_TESTED]
    counted = tested["counted"] == "yes"
    lines = [*([] if only else [f"{headline(table)}.", ""]), markdown(_verdicts(tested[counted]))]
    if not counted.all():
        apart = _verdicts(tested[~counted]).assign(**{"not counted": tested.loc[~counted, "counted"]})
        lines += ["", "Listed apart:", "", markdown(apart)]
    untested = table[table["answer"] == NOT_TESTED]
    if len(untested):
        lines += ["", f"Not tested: {', '.join(untested['id'])}."]
    return "\n".join(lines)


def _verdicts(table: pd.DataFrame) -> pd.DataFrame:
    """The columns of verdicts that a reader needs."""
    span = (
        table["measured"].map(_three) + " [" + table["ci_low"].map(_three) + ", " + table["ci_high"].map(_three) + "]"
    )
    shown = table[["id", "sentence", "holds"]].assign(**{"deciding part [95%]": span.str.replace(" [, ]", "")})
    shown["size"] = table["size"]
    return shown.assign(
        **{"in print": table["published_holds"], "numbers agree": table["agrees"], "why": table["reason"]}
    )


def verdict(folder: Path) -> str:
    """What the verdicts come to, in a sentence, and the freeze they rest on."""
    said = headline(_read(folder, "claims.csv", keep_default_na=False, dtype=str))
    return f"{said[0].upper()}{said[1:]}. Predicates frozen in commit {frozen()['commit'][:12]}."


def readings(folder: Path) -> str:
    """Claims whose truth depends on how the metric is read: the public code's way beside the text's."""
    table = _read(folder, "claims.csv", keep_default_na=False, dtype=str)
    both = table[(table["second_mode"] != "") & (table["answer"] != NOT_TESTED)]
    same = both["holds"] == both["second_mode"]
    said = f"{int(same.sum())} of {len(both)} statements come out the same in both readings of the metrics; the others:"
    names = {"holds": "holds (code)", "second_mode": "holds (text)"}
    return f"{said}\n\n{markdown(both.loc[~same, ['id', 'sentence', 'holds', 'second_mode']].rename(columns=names))}"


def items(folder: Path, paper: str, *further: str) -> str:
    """Every table and figure of a paper: command, file, number of models, and whether it was measured.

    `further`: more folders, beside the first or by their place in docs/results.
    """
    folders = {name: folder.parents[_depth(folder)] / name for name in further}
    folders = {str(folder.relative_to(folder.parents[_depth(folder)])): folder} | folders
    rows = []
    for row in published_items(paper).to_dict("records"):
        more = "" if row["command"] == "reproduce" else f" {row['command']}"
        command = f"`python scripts/reproduce.py {paper}{more}`" if row["command"] else ""
        kept = {name: at for name, at in folders.items() if row["file"] and any(at.rglob(f"{row['file']}*"))}
        models = max((pd.read_csv(next(at.rglob("model.csv")))["seed"].nunique() for at in kept.values()), default=0)
        status = row["status"] or (f"measured ({', '.join(kept)})" if kept else "not measured")
        rows.append(
            (row["item"], row["shows"], command, f"`{row['file']}`" if row["file"] else "", models or "", status)
        )
    return markdown(pd.DataFrame(rows, columns=["item", "shows", "command", "file", "k", "status"]).astype(str))


def _depth(folder: Path) -> int:
    """How many levels docs/results is above a folder of it."""
    return [parent.name for parent in folder.parents].index("results")


def published_items(paper: str) -> pd.DataFrame:
    """papers/<paper>/items.csv."""
    return published(paper, file="items.csv", keep_default_na=False, dtype=str)


def accuracy(folder: Path) -> str:
    """Accuracy of every model: overall and in its worst group."""
    table = _read(folder, "model.csv", dtype={"group": str}).query("what == 'accuracy'")
    keys = [key for key in ("experiment", "dataset", "model", "seed") if key in table]
    rows = []
    for cell, part in table.groupby(keys, sort=False):
        overall = part.loc[part["group"] == "(all)", "value"]
        groups = part[part["group"] != "(all)"].sort_values("value")
        worst = f"{groups['value'].iloc[0]:.3f} ({groups['group'].iloc[0]})" if len(groups) else ""
        rows.append((*cell, float(overall.iloc[0]), worst, part["source"].iloc[0], part["verified"].iloc[0]))
    return markdown(pd.DataFrame(rows, columns=[*keys, "accuracy", "worst group", "weights", "verified"]))


def pools(folder: Path, metric: str, mode: str = "code") -> str:
    """SMERF: mean and lowest bucket of every method over the simple and the complex settings, beside the published.

    Of the models that vote: where there are three beside seed 0, their mean and its interval, else seed 0 alone with an
    interval over images.
    """
    table = _read(folder, "smerf_pools.csv").query("condition == 'plain' and metric == @metric and mode == @mode")
    columns: dict[str, pd.Series] = {}
    for pool in ("simple", "complex"):
        of = table[table["pool"] == pool]
        if of.empty:
            continue
        voting = of[of["seed"] > 0]
        k = voting["seed"].nunique()
        part = (voting if k >= ENOUGH else of[of["seed"] == of["seed"].min()]).groupby("method", sort=False)
        mean, low, high = part["mean"].mean(), part["ci_low"].mean(), part["ci_high"].mean()
        over = f", {k} models" if k >= ENOUGH else ""
        if k >= ENOUGH:
            reach = part["mean"].std() / k**0.5 * stats.t.ppf(0.975, k - 1)
            low, high = mean - reach, mean + reach
        said = [f"{m:.3f} [{a:.3f}, {b:.3f}]" for m, a, b in zip(mean, low, high, strict=True)]
        columns[f"{pool} mean [95% CI{over}]"] = pd.Series(said, mean.index)
        columns[f"{pool} min"] = part["min"].mean()
        if mode == "code":
            for what in ("mean", "min"):
                columns[f"{pool} published {what}"] = part[f"published_{what}"].first()
        missing = part["images_without_score"].sum()
        if missing.any():
            columns[f"{pool} images without score"] = missing
    return markdown(pd.DataFrame(columns).dropna(axis=1, how="all").rename_axis("method").reset_index())


def campaigns_beside(folder: Path, metric: str, *others: str) -> str:
    """SMERF: the mean of every method over the simple and the complex settings, as printed and in several campaigns."""
    columns: dict[str, pd.Series] = {}
    for pool in ("simple", "complex"):
        for name in (folder.name, *others):
            table = _read(folder.parent / name, "smerf_pools.csv")
            table = table.query("condition == 'plain' and metric == @metric and mode == 'code' and pool == @pool")
            if table.empty:
                continue
            columns.setdefault(f"{pool}: printed", table.groupby("method")["published_mean"].first())
            seeds = f" (k = {table['seed'].nunique()})" if table["seed"].nunique() > 1 else ""
            columns[f"{pool}: {name}{seeds}"] = table.groupby("method")["mean"].mean()
    shown = pd.DataFrame(columns).map(lambda value: "" if pd.isna(value) else f"{value:.3f}")
    return markdown(shown.rename_axis("method").reset_index())


def checkpoints(folder: Path) -> str:
    """The cards of the checkpoints we ship."""
    rows = []
    for path in sorted((folder.resolve().parents[1] / "salrun" / "papers").glob("*/checkpoints/*.json")):
        card = json.loads(path.read_text())
        how, check = card["training"], card["verification"]
        images = sum(card["train_per_group"].values()) if card["train_per_group"] else None
        steps = (how["epoch_images"] or images or TRAINING_IMAGES[card["identity"]["model"]]) * len(card["history"])
        rows.append(
            {
                "checkpoint": path.stem,
                "image-steps": f"{steps:,}",
                "minutes": f"{card['seconds'] / 60:.1f}",
                "images/s": f"{steps / card['seconds']:.0f}",
                "accuracy": f"{check['accuracy']:.4f}",
                "worst group": f"{min(check['groups'].values()):.3f}",
                "paired flips": f"{check['flip_rate']:.3f}" if check["flip_rate"] is not None else "",
                "under attack": f"{card['pgd_accuracy']:.3f}" if "pgd_accuracy" in card else "",
                "MB": f"{path.with_suffix('.safetensors').stat().st_size / 1e6:.1f}",
            }
        )
    return markdown(pd.DataFrame(rows))


def page(folder: Path, name: str) -> str:
    """A table that its paper's package wrote for readers."""
    path = folder / f"{name}.md"
    return path.read_text().strip() if path.is_file() else f"*Not measured yet: {name}.*"


def commands(folder: Path) -> str:
    """The runs behind collected results, to be typed again."""
    return "\n".join(["```", *told_by(folder)["commands"], "```"])


def verdicts(folder: Path, *others: str) -> str:
    """What several networks say about each counted claim, the paper's own first; empty where one cannot test it."""
    tables = {}
    for each in [folder, *(folder.parent / name for name in others)]:
        if (each / "claims.csv").is_file():
            tables[each.name] = _read(each, "claims.csv", keep_default_na=False, dtype=str).set_index("id")
    first = next(iter(tables.values()))
    shown = first[["sentence"]].assign(**{"in print": first["published_holds"]})
    for name, table in tables.items():
        shown[name] = table["holds"].mask(table["answer"] == NOT_TESTED, "")
    return markdown(shown.reset_index())


def brightness(folder: Path) -> str:
    """Zhang: does a conclusion outlive maps of equal brightness? Its margin in points, by view."""
    path = folder / "zhang_brightness.csv"
    if not path.is_file():
        return "*Not measured yet.*"
    data = _read(folder, path.name)
    first = data[data["seed"] == data["seed"].min()]
    first = first.assign(said=first["holds"] + first["margin"].map(" ({:+.1f})".format))
    keys = ["conclusion", "metric", "methods"]
    wide = first.pivot(index=keys, columns="view", values="said").reindex(columns=first["view"].unique())
    return markdown(wide.reindex(first.set_index(keys).index.unique()).fillna("").reset_index())


def subsets(folder: Path, metric: str, quantity: str, perturbation: str = "mean") -> str:
    """Tomsett: a metric's mean by subset of the images (all, low confidence, each class) and method."""
    data = _read(folder, "tomsett_subsets.csv").query(
        "metric == @metric and quantity == @quantity and perturbation == @perturbation"
    )
    first = data[data["seed"] == data["seed"].min()]
    wide = first.pivot(index=["subset", "images"], columns="method", values="value")
    order = first.drop_duplicates(["subset", "images"]).set_index(["subset", "images"]).index
    wide = wide.reindex(index=order, columns=first["method"].unique())
    return markdown(wide.reset_index())


def table(folder: Path, name: str, *columns: str) -> str:
    """Any committed CSV, or some of its columns."""
    data = _read(folder, name)
    return markdown(data[list(columns)] if columns else data)


def runs_beside(folder: Path, method: str, first: str, *metrics: str) -> str:
    """A method's mean score in every run of a campaign, in percent, with an interval over images.

    In brackets: its difference from the first run's on the same images. The first run's other views are rows too.
    """
    every = {run.path.name.rpartition("-")[0]: run.scores for run in runs_of(folder)}
    scores = {name: table[table["method"] == method] for name, table in every.items()}
    rows = []
    for name in (first, *(name for name in scores if name != first)):
        for view in scores[name]["view"].unique() if name == first else ["minmax"]:
            cells = [_beside(scores[name], view, scores[first], metric) for metric in metrics]
            rows.append([f"{name}{'' if view == 'minmax' else f', maps as {view}'}", *cells])
    return markdown(pd.DataFrame(rows, columns=["run", *metrics]))


def _beside(here: pd.DataFrame, view: str, first: pd.DataFrame, metric: str) -> str:
    def of(scores: pd.DataFrame, view: str) -> pd.Series:
        part = scores[(scores["metric"] == metric) & (scores["view"] == view)]
        part = part[part["mode"] == part["mode"].iloc[0]] if len(part) else part
        return 100 * part.set_index("image_id")["value"]

    values, before = of(here, view), of(first, "minmax")
    if values.empty:
        return ""
    low, high = interval_of(values)
    if here is first and view == "minmax":
        return f"{values.mean():.1f} [{low:.1f}, {high:.1f}]"
    change = (values - before).dropna()
    low, high = interval_of(change)
    return f"{values.mean():.1f} ({change.mean():+.1f} [{low:+.1f}, {high:+.1f}])"


def interval_of(values: pd.Series) -> tuple[float, float]:
    """95% bootstrap interval of the mean."""
    found = mean_interval(values, np.random.default_rng(0))
    return float(found.low[0]), float(found.high[0])


def _three(cell: str) -> str:
    return f"{float(cell):+.3g}" if cell else ""


BLOCKS: dict[str, Callable[..., str]] = {
    f.__name__: f
    for f in (
        *(provenance, commands, accuracy, checkpoints, table, page, runs_beside),
        *(verdict, claims, readings, verdicts, items, pools, campaigns_beside, brightness, subsets, leaderboard),
    )
}


def overview(results: Path) -> str:
    """docs/results/README.md: what is there of every campaign, and what is missing."""
    planned = evidence(PAPERS)
    rows, runs = [], []
    for name in dict.fromkeys([*(e.campaign for e in planned), *(path.name for path in campaigns(results))]):
        there = {run.path.name: run for run in runs_of(results / name)}
        left = [e for e in planned if e.campaign == name and e.name not in there]
        facts = [run.facts for run in there.values()]
        rows.append(
            {
                "campaign": f"[{name}]({name}/)" if there else name,
                "runs": f"{len(there)} of {len(there) + len(left)}",
                "k": len({f["seed"] for f in facts}),
                "commit": ", ".join(sorted({commit_of(f) for f in facts})),
                "hours taken": f"{sum(map(hours_of, facts)):.2f}",
                "hours left, about": f"{sum(e.hours for e in left):.1f}",
            }
        )
        runs += [(name, run.path.name, run.facts) for run in there.values()]
    taken = pd.DataFrame(
        [
            {
                "run": f"[{campaign}/{name}]({campaign}/{name}/)",
                "command": f"`{f['command']}`",
                "commit": commit_of(f),
                "hours": f"{hours_of(f):.2f}",
                "machine": f"{f['device']}, {f['threads']} of {f['processors']} cores, torch {f['versions']['torch']}",
            }
            for campaign, name, f in runs
        ]
    )
    return OVERVIEW.format(campaigns=markdown(pd.DataFrame(rows)), runs=markdown(taken))


def hours_of(facts: Mapping[str, Any]) -> float:
    """How long a run took, what it found in the store not counted."""
    return sum(facts["timings"].values()) / 3600


OVERVIEW = """# Committed evidence

Written by `python scripts/make_docs.py`. A folder `<campaign>/<run>/` is a run directory with its tables of single
images, models, facts (`run.json`) and, where they are ours to publish, the maps that a figure shows: all that claims,
tables and figures are made of. Beside these folders stands what `python scripts/make_docs.py judge` made of them, which
is what `salrun collect` makes. Your own runs may join:

```
salrun +experiment=smerf_simple_fr seed=5 methods.deep_shap.n_references=100
salrun collect docs/results/smerf outputs/smerf_simple_fr/latest -o outputs/with_mine
```

`make evidence` does what is missing, the most valuable first ([conf/campaign](../../conf/campaign) says what, and in
which order). `earlier/` has summaries of runs whose tables of single images were not kept. k: seeds that were run.

## Campaigns
{campaigns}

## Runs
{runs}
"""


def fill(page: str, results: Path) -> str:
    """The page with every block made anew; a block without results says so."""

    def block(match: re.Match[str]) -> str:
        kind, name, *words = match[2].split()
        if kind not in BLOCKS:
            raise SystemExit(f"unknown block '{kind}'; known: {', '.join(BLOCKS)}")
        folder = results / name
        content = (
            BLOCKS[kind](folder, *words) if folder.is_dir() else f"*Not measured yet: docs/results/{name} is empty.*"
        )
        return f"{match[1]}{content}\n{match[4]}"

    return BLOCK.sub(block, page)


def main(argv: Sequence[str] | None = None, docs: Path = DOCS) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("words", nargs="*", metavar=WORDS)
    options = parser.parse_args(argv)
    results = docs / "results"
    match options.words:
        case ["keep", run, name, *figures]:
            keep(Path(run), name, results, figures)
        case ["evidence", run, name]:
            planned = {str(e.folder): e for e in evidence(PAPERS)}
            keep_run(Run(run), results / name, **(planned[name].kept if name in planned else {}))
        case ["judge", *names]:
            for folder in [results / name for name in names] or campaigns(results):
                judge(folder, docs)
        case []:
            pass
        case _:
            parser.error(f"give nothing, or: {WORDS}")
    pages = {path: fill(path.read_text(encoding="utf-8"), results) for path in sorted(docs.glob("*.md"))}
    if campaigns(results):
        pages[results / "README.md"] = overview(results)
    stale = [path for path, new in pages.items() if not path.is_file() or path.read_text(encoding="utf-8") != new]
    for path in stale if not options.check else []:
        path.write_text(pages[path], encoding="utf-8")
    for path in stale:
        print(f"{'out of date' if options.check else 'written'}: {path.name}")
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
