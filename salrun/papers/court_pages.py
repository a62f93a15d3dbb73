"""What docs/court.md and docs/cards.md show, made of committed runs: tables, figures, statements, cards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd

from salrun.config.catalogue import names
from salrun.papers.court import draw_court
from salrun.papers.court_statements import STATEMENTS
from salrun.papers.hypotheses import Tables, answers
from salrun.results.court import (
    ALL,
    BY_METHODS,
    CARE,
    NEVER,
    NOT_JUDGED,
    RULE,
    SETTING,
    TOLD,
    USE,
    judge,
    sample_of,
    titles,
    write_court,
)
from salrun.results.run import Run
from salrun.results.scored import read_runs
from salrun.results.tables import markdown, write_csv

BOTTOM = 0.5


def write_pages(runs: Sequence[Path], folder: Path, assumptions: Mapping[str, str]) -> None:
    """Tables, figures and pages (`court_*.md`) of these runs."""
    tables = judge(read_runs(runs))
    write_court(tables, folder)
    for table in folder.glob("*.parquet"):
        table.unlink()  # the CSV says the same
    for picture in draw_court(tables, folder):
        picture.with_suffix(".svg").unlink()
    said = answers(STATEMENTS, by_model(runs))
    write_csv(folder / "court_statements.csv", said)
    court = tables["court"]
    pages = {
        "court_statements": markdown(said),
        "court_table": "\n\n".join(overview(court)),
        "court_defects": "\n\n".join(by_defect(tables)),
        "court_settings": "\n\n".join(by_setting(court)),
        "court_fooled": "\n\n".join(by_bottom(tables)),
        "court_advice": "\n".join(advice(court)),
        "court_runs": markdown(pd.DataFrame(sizes(runs))),
        "court_cards": "\n".join(cards(tables, assumptions)),
    }
    for name, text in pages.items():
        (folder / f"{name}.md").write_text(text + "\n", encoding="utf-8")


def by_model(runs: Sequence[Path]) -> dict[str, list[Tables]]:
    """Data set -> the tables of each model by itself; what else was measured on a model stands with it."""
    with_ladder: dict[tuple[str, str, int], list[Path]] = {}
    others: list[tuple[tuple[str, str, int], Path]] = []
    for path in runs:
        own = Run(path).cells.query("role == 'model'").iloc[0]
        model = str(own["dataset"]), str(own["fingerprint"]), int(own["seed"])
        if Run(path).ladders:
            with_ladder.setdefault(model, []).append(path)
        else:
            others.append((model, path))
    found: dict[str, list[Tables]] = {}
    for model, paths in with_ladder.items():
        tables = judge(read_runs([*paths, *(path for other, path in others if other == model)]))
        found.setdefault(model[0], []).append(tables)
    return found


def sizes(runs: Sequence[Path]) -> Iterator[dict[str, object]]:
    """What was run."""
    for path in runs:
        run = Run(path)
        own = run.cells.query("role == 'model'").iloc[0]
        yield {
            "run": path.name,
            "model": own["model"],
            "seed": int(own["seed"]),
            "images": run.images["image_id"].nunique(),
            "maps": len(run.methods),
            "left out": "; ".join(d for d in run.facts.get("deviations", []) if "left out" in d),
            "command": f"`{run.facts['command']}`",
        }


# -- tables ------------------------------------------------------------------------------------------------------------


def overview(court: pd.DataFrame) -> Iterator[str]:
    """Every metric at its default, best first, the worst setting beside it; a table per data set and ladder."""
    for title, part in _ladders(court):
        worst = part[part["worst"]].set_index("metric")
        best = part[part["default"]].sort_values("agreement", ascending=False)
        told = dict(zip(part.index, titles(part), strict=True))
        table = pd.DataFrame(
            {
                "metric": [told[at] for at in best.index],
                "agreement [95%]": [_span(r.agreement, r.low, r.high) for r in best.itertuples()],
                "macro": best["macro"].map(_two),
                "worst setting": [
                    f"{_two(worst.loc[m, 'agreement'])} ({_setting(worst.loc[m])})" if m in worst.index else ""
                    for m in best["metric"]
                ],
                "weakest at": [f"{r.worst_defect} {_two(r.worst_agreement)}" for r in best.itertuples()],
                "worse .1 / .25 / .5": [
                    " / ".join(_two(r[f"worse_{d}"]) for d in ("0.1", "0.25", "0.5")) for _, r in best.iterrows()
                ],
                "methods by PAFL": best["methods_pafl"].map(_two) if "methods_pafl" in best else "",
                "alpha [95%]": [_span(r.alpha, r.alpha_low, r.alpha_high) for r in best.itertuples()],
                "consistency": best["mc"].map(_two) if "mc" in best else "",
                "passes": [f"{r.passes:g}{' maps' if r.explains else ''}" for r in best.itertuples()],
                "fooled by": best["fooled_by"],
                "advice": best["advice"],
            }
        )
        yield f"**{title}**\n\n{markdown(table)}"


def by_defect(tables: Tables) -> Iterator[str]:
    """Agreement of every metric at its default with each defect's order."""
    for title, part in _ladders(tables["agreement"].merge(_defaults(tables["court"]))):
        ladder = part[~part["truth"].isin(BY_METHODS)]
        wide = ladder.pivot(index="metric", columns="truth", values="mean")
        order = [c for c in dict.fromkeys(ladder["truth"]) if c != ALL]
        wide = wide.sort_values(ALL, ascending=False)[[*order, ALL]]
        yield f"**{title}**\n\n{markdown(wide.map(_two).reset_index())}"


def by_setting(court: pd.DataFrame) -> Iterator[str]:
    """Agreement of every setting of the metrics that have several."""
    for title, part in _ladders(court):
        several = part[part.groupby("metric")["metric"].transform("size") > 1]
        lines = []
        for metric, of in several.groupby("metric", sort=False):
            said = ", ".join(f"{_setting(r)} {_two(r['agreement'])}" for _, r in of.iterrows())
            span = _two(of["agreement"].max() - of["agreement"].min())
            lines.append({"metric": metric, "agreement by setting": said, "span": span})
        if lines:
            yield f"**{title}**\n\n{markdown(pd.DataFrame(lines))}"


def by_bottom(tables: Tables) -> Iterator[str]:
    """How often each map of the bottom is preferred to the good one."""
    for title, part in _ladders(tables["fooled"].merge(_defaults(tables["court"]))):
        wide = part.pivot(index="metric", columns="by", values="mean")
        yield f"**{title}**\n\n{markdown(wide.map(_two).reset_index())}"


def advice(court: pd.DataFrame) -> Iterator[str]:
    """Which metrics have which advice, in which data sets."""
    shown = court[court["default"] & (court["ladder"] == "oracle")]
    everywhere = shown.groupby("metric", sort=False)["advice"].agg(lambda a: " / ".join(dict.fromkeys(a)))
    for word in (USE, SETTING, CARE, NEVER, NOT_JUDGED):
        metrics = [m for m, said in everywhere.items() if said == word]
        if metrics:
            yield f"- **{word}**: {', '.join(metrics)}. ({RULE[word]})"
    mixed = {m: said for m, said in everywhere.items() if " / " in said}
    if mixed:
        order = ", ".join(shown["dataset"].unique())
        yield f"- **differs between data sets** ({order}): " + "; ".join(f"{m}: {s}" for m, s in mixed.items()) + "."


# -- cards -------------------------------------------------------------------------------------------------------------


def cards(tables: Tables, assumptions: Mapping[str, str]) -> Iterator[str]:
    """A section per metric: what it measures and assumes, where it was right and wrong, how it is fooled, its cost."""
    about = names("metrics")
    court, agreement, fooled = tables["court"], tables["agreement"], tables["fooled"]
    for metric in sorted(court["metric"].unique()):
        yield f"## {metric}\n"
        yield f"- **Measures**: {about.get(metric, 'a metric of your own')}"
        yield f"- **Assumes**: {assumptions.get(metric, 'not written down')}."
        of = court[(court["metric"] == metric) & (court["ladder"] == "oracle")]
        for _, row in of[of["default"]].iterrows():
            mine = _of(agreement, row)
            mine = mine[~mine["truth"].isin([ALL, *BY_METHODS])].dropna(subset="mean")
            right = [f"{r.truth} {_two(r.mean)}" for r in mine.itertuples() if r.mean >= 0.7]
            wrong = [f"{r.truth} {_two(r.mean)}" for r in mine.itertuples() if r.mean < 0.3]
            yield (
                f"- **On {row['dataset']}** ({sample_of(row)}): agreement "
                f"{_span(row['agreement'], row['low'], row['high'])}; right about {_listed(right)}; wrong about "
                f"{_listed(wrong)}; alpha {_two(row['alpha'])} ({row['reliability']})."
            )
            tricks = [f"{r.by} {_two(r.mean)}" for r in _of(fooled, row).itertuples() if r.mean >= BOTTOM]
            preferred = "share of images that prefer it to the good map"
            yield f"- **Fooled on {row['dataset']} by**: {_listed(tricks)} ({preferred})."
        first = of[of["default"]].iloc[0]
        unit = "explanations" if first["explains"] else "forward passes"
        yield f"- **Cost**: {first['passes']:g} {unit} per image and map, besides what all maps share."
        for dataset, settings in of.groupby("dataset", sort=False):
            if len(settings) > 1:
                best = settings.loc[settings["agreement"].idxmax()] if settings["agreement"].notna().any() else first
                worst = settings[settings["worst"]]
                avoid = f"; not {_setting(worst.iloc[0])} ({_two(worst.iloc[0]['agreement'])})" if len(worst) else ""
                yield f"- **Settings on {dataset}**: best {_setting(best)} ({_two(best['agreement'])}){avoid}."
        yield f"- **Advice**: {'; '.join(f'{r.dataset}: {r.advice}' for r in of[of['default']].itertuples())}.\n"


def _of(table: pd.DataFrame, row: pd.Series) -> pd.DataFrame:
    keys = ["dataset", "ladder", "metric", "mode", "score"]
    return table[(table[keys] == row[keys].to_list()).all(axis=1)]


def _defaults(court: pd.DataFrame) -> pd.DataFrame:
    shown = court[court["default"] & (court["advice"] != TOLD)]
    return shown[["dataset", "ladder", "metric", "mode", "score"]]


def _ladders(table: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    for (dataset, ladder), part in table.groupby(["dataset", "ladder"], sort=False):
        yield f"{dataset}, ladder of {ladder}", part


def _setting(row: pd.Series) -> str:
    return " ".join(filter(None, [row["mode"], row["score"]])) or "default"


def _listed(said: Sequence[str]) -> str:
    return ", ".join(said) or "none"


def _two(value: float) -> str:
    return "" if pd.isna(value) else f"{value:.2f}"


def _span(value: float, low: float, high: float) -> str:
    return "" if pd.isna(value) else f"{value:.2f} [{low:.2f}, {high:.2f}]"
