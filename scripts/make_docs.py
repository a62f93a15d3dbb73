"""Fill the result blocks of the docs pages from the committed results in docs/results/.

    python scripts/make_docs.py                                  # fill every block of docs/*.md
    python scripts/make_docs.py --check                          # say which pages are out of date, exit 1
    python scripts/make_docs.py keep outputs/smerf/paper smerf   # commit-ready copy of a run's results
    python scripts/make_docs.py keep outputs/yona/paper yona yona_effects    # and of some of its figures
    python scripts/make_docs.py evidence outputs/smerf/paper smerf           # of its tables of single images
    python scripts/make_docs.py judge                            # verdicts on all of those, from these tables alone

A block stands between `<!-- results: KIND FOLDER [WORDS] -->` and `<!-- /results -->`; KIND is one of BLOCKS, FOLDER a
folder of docs/results/. Everything around the blocks is written by hand.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from salrun.papers.evidence import published
from salrun.papers.frozen import frozen
from salrun.papers.verdicts import Verdicts
from salrun.results.claims import NOT_TESTED, headline
from salrun.results.run import Run
from salrun.results.tables import write_csv

DOCS = Path(__file__).resolve().parents[1] / "docs"
BLOCK = re.compile(r"(<!-- results: ([^\n]+?) -->\n)(.*?)(<!-- /results -->)", flags=re.DOTALL)
TRAINING_IMAGES = {"tomsett_cnn": 45_000, "mnist_cnn": 55_000}
UNJUDGED = {"tomsett": ("curves",)}  # tables that no verdict of a paper reads
EVIDENCE = "verdicts"  # docs/results/verdicts/<name>: tables of single images, and the verdicts made of them
PRIVATE = ("host", "pid", "runs", "platform", "peak_memory_mib")


def keep(run: Path, name: str, results: Path, figures: Sequence[str] = ()) -> list[Path]:
    """Copy what lasts of a run: summary, claims, models, reliability, the paper's tables, run.json without its machine.

    Of the figures only those named: pictures of most data sets are not ours to publish.
    """
    folder = results / name
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    tables = [run / "tables" / "summary.csv", run / "tables" / "model.csv", run / "claims.csv", run / "claim_parts.csv"]
    tables += [run / "reliability" / "reliability.csv", run / "reliability" / "agreement.csv"]
    for path in [*tables, *sorted((run / "tables").glob("*_*.csv"))]:
        if path.is_file():
            made.append(folder / path.name)
            content = pd.read_csv(path, keep_default_na=False, dtype=str)
            content.map(_short).to_csv(made[-1], index=False)
    for path in sorted((run / "tables").glob("*_*.md")):
        made.append(folder / path.name)
        made[-1].write_text(path.read_text())
    made.append(folder / "run.json")
    facts = {k: v for k, v in Run(run).facts.items() if k not in PRIVATE}
    made[-1].write_text(json.dumps(facts, indent=2) + "\n")
    for figure in figures:
        made.append(folder / f"{figure}.png")
        made[-1].write_bytes((run / "figures" / f"{figure}.png").read_bytes())
    return made


def keep_evidence(run: Path, folder: Path) -> None:
    """Copy a run's tables of single images and models, all that its verdicts are made of, and run.json; judge them.

    Beside them what was made of them: the paper's tables, and the numbers that its figures plot.
    """
    for name in ("tables", "figures"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for path in [*(run / "tables").glob("*_*.csv"), *(run / "figures").glob("*.csv")]:
        (folder / path.relative_to(run)).write_bytes(path.read_bytes())
    for path in sorted((run / "tables").iterdir()):
        judged_by = path.suffix == ".parquet" and path.stem not in (
            "summary",
            *UNJUDGED.get(Run(run).facts["paper"], ()),
        )
        if judged_by or path.name in ("cells.csv", "model.csv"):
            (folder / "tables" / path.name).write_bytes(path.read_bytes())
    facts = json.dumps({k: v for k, v in Run(run).facts.items() if k not in PRIVATE}, indent=2)
    (folder / "run.json").write_text(re.sub(r"/[^\s\"]*/(?=outputs\b)", "", facts) + "\n")  # no machine's folders
    write_verdicts(folder)


def write_verdicts(folder: Path) -> None:
    """claims.csv and claim_parts.csv of kept evidence."""
    found = judged(folder)
    write_csv(folder / "claims.csv", found.claims)
    write_csv(folder / "claim_parts.csv", found.parts)


def judged(folder: Path) -> Verdicts:
    """The verdicts on kept evidence, from its tables alone."""
    run = Run(folder)
    paper = run.facts["paper"]
    evidence, claims = (importlib.import_module(f"salrun.papers.{paper}.{part}") for part in ("evidence", "claims"))
    return claims.claims(evidence.read(run))


def _short(cell: str) -> str:
    """Six digits of a number; anything else as it is."""
    return f"{float(cell):.6g}" if re.fullmatch(r"-?\d+\.\d{5,}(e-?\d+)?|-?\d\.?\d*e-?\d+", cell) else cell


# -- blocks ------------------------------------------------------------------------------------------------------------


def markdown(table: pd.DataFrame) -> str:
    """A GitHub table; numbers right-aligned."""
    numeric = [pd.api.types.is_numeric_dtype(table[c]) for c in table]
    lines = [
        "| " + " | ".join(map(str, table.columns)) + " |",
        "|" + "|".join("--:" if n else "---" for n in numeric) + "|",
    ]
    for row in table.itertuples(index=False):
        lines.append("| " + " | ".join(_cell(v) for v in row) + " |")
    return "\n".join(lines)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.3f}"
    return str(value).replace("|", "\\|")


def _read(folder: Path, name: str, **options: object) -> pd.DataFrame:
    return pd.read_csv(folder / name, **options)  # type: ignore[call-overload]


def provenance(folder: Path) -> str:
    """What was run, when, at which commit, and how it differs from the paper."""
    facts = json.loads((folder / "run.json").read_text())
    lines = [
        f"`{facts['command']}`",
        "",
        f"Scale {facts.get('scale')}, seed {facts.get('seed')}, {facts.get('device')}, {facts.get('precision')}; "
        f"commit {_commit(facts)}, {str(facts.get('started'))[:10]}.",
    ]
    deviations = facts.get("deviations", [])
    return "\n".join(
        [*lines, "", "Differs from the paper's protocol:", "", *(f"- {d}" for d in deviations)] if deviations else lines
    )


def _commit(facts: dict[str, object]) -> str:
    """The commit's first digits, with the + of a tree that differed from it."""
    commit = str(facts.get("commit"))
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
    """SMERF: mean and lowest bucket of every method over the simple and the complex settings, beside the published."""
    table = _read(folder, "smerf_pools.csv").query("condition == 'plain' and metric == @metric and mode == @mode")
    first = table[table["seed"] == table["seed"].min()]
    columns: dict[str, pd.Series] = {}
    for pool in ("simple", "complex"):
        part = first[first["pool"] == pool].set_index("method")
        if part.empty:
            continue
        said = part["mean"].map("{:.3f}".format) + " [" + part["ci_low"].map("{:.3f}".format) + ", "
        columns[f"{pool} mean [95% CI]"] = said + part["ci_high"].map("{:.3f}".format) + "]"
        columns[f"{pool} min"] = part["min"]
        if mode == "code":
            columns[f"{pool} published mean"], columns[f"{pool} published min"] = (
                part["published_mean"],
                part["published_min"],
            )
        missing = part["images_without_score"]
        if missing.any():
            columns[f"{pool} images without score"] = missing
    return markdown(pd.DataFrame(columns).dropna(axis=1, how="all").rename_axis("method").reset_index())


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
    facts = json.loads((folder / "run.json").read_text())
    return "\n".join(["```", *facts.get("commands", [facts["command"]]), "```"])


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


def _three(cell: str) -> str:
    return f"{float(cell):+.3g}" if cell else ""


BLOCKS: dict[str, Callable[..., str]] = {
    f.__name__: f
    for f in (
        *(provenance, commands, accuracy, checkpoints, table, page),
        *(verdict, claims, readings, verdicts, items, pools, brightness, subsets),
    )
}


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
    parser.add_argument("words", nargs="*", metavar="keep RUN NAME [FIGURE ...] | evidence RUN NAME | judge")
    options = parser.parse_args(argv)
    if options.words:
        match options.words:
            case ["keep", run, name, *figures]:
                keep(Path(run), name, docs / "results", figures)
            case ["evidence", run, name]:
                keep_evidence(Path(run), docs / "results" / EVIDENCE / name)
            case ["judge"]:
                for facts in sorted((docs / "results" / EVIDENCE).glob("*/run.json")):
                    write_verdicts(facts.parent)
            case _:
                parser.error("give nothing, or: keep RUN NAME [FIGURE ...] | evidence RUN NAME | judge")
    stale = []
    for path in sorted(docs.glob("*.md")):
        old = path.read_text(encoding="utf-8")
        new = fill(old, docs / "results")
        if new != old:
            stale.append(path)
            if not options.check:
                path.write_text(new, encoding="utf-8")
    for path in stale:
        print(f"{'out of date' if options.check else 'written'}: {path.name}")
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
