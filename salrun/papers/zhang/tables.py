"""Tables 1 to 4 of Zhang, Torres, Hermanns (ACML 2024) beside the published values, and further ones of our own."""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations, product

import numpy as np
import pandas as pd

from salrun.papers import Page
from salrun.papers.evidence import interval, join_tables, pick, tidy
from salrun.papers.zhang.evidence import (
    SeedEvidence,
    ZhangEvidence,
    by_family,
    by_method,
    common,
    lead,
    published_evidence,
    published_tables,
    second,
    shared_means,
    with_metrics,
)
from salrun.papers.zhang.names import (
    CLEAN,
    CLOSE,
    COLUMNS,
    CONTROLLED,
    CONTROLS,
    FAMILIES,
    FIDELITY,
    MASKED,
    METHODS,
    RANDOM_TIES,
    REFLECTED,
    TARGETS,
    TRANSFORMS,
)
from salrun.papers.zhang.pages import column_names, constant_maps, page, protocol
from salrun.stats import conjunction

MEANS = {  # name -> the frame it shows columns of, and which
    "table1": ("fidelity", [*FIDELITY, *RANDOM_TIES.values()]),
    "table2": ("targets", MASKED),
    "table3": ("robustness", ["MS", "AS", "MS fixed", "AS fixed", "Sparseness", "Complexity", "EC"]),
    "table4": ("transforms", MASKED),
    "controls": ("fidelity", list(CONTROLLED)),
    "further": (
        "fidelity",
        ["AG clipped", "LA", "Complete", "Residual"],
    ),  # what the paper defines or mentions without a table
}
TITLES = {  # of those that have a page for readers
    "table1": "Table 1: fidelity",
    "table2": "Table 2: fidelity by target class",
    "table3": "Table 3: robustness and complexity (fixed: the gradient explains all neighbours)",
    "table4": "Table 4: fidelity under transforms, mean over their variations",
    "controls": "Controls: AI, ADb, AG with all maps equally bright",
}
SHOWN = [*TRANSFORMS, REFLECTED]
CONCLUSIONS = {  # about AI, ADb and AG: do they outlive maps of equal brightness?
    "gradient methods have the lowest family mean": lambda values: lead(-by_family(values), "gradient"),
    "CAM methods have the highest family mean": lambda values: lead(by_family(values), "CAM"),
    "Fake-CAM is among the best two": lambda values: values["fake_cam"] - second(values.drop(columns="fake_cam")),
}


def tables(e: ZhangEvidence) -> dict[str, pd.DataFrame | Page]:
    """Every table that the evidence allows, with a column for the seed; for readers some as text too."""
    frames: dict[str, dict[int, pd.DataFrame]] = {}
    texts: dict[str, list[str]] = {}
    for seed in e.seeds:
        for name, (of, _) in MEANS.items():
            table = means_table(name, seed, e.falling)
            if table.empty:
                continue
            how = protocol(e.members, seed.settings[of])
            if name in TITLES:
                texts.setdefault(name, []).append(page(TITLES[name], table, seed, constant_maps(of, seed), how))
            frames.setdefault(name, {})[seed.seed] = table.assign(
                budget=table["method"].map(how["budgets"]),
                definition=column_names(table).map(how["metrics"]),
                method_definition=table["method"].map(how["methods"]),
            )
        for name, make in OTHERS.items():
            frames.setdefault(name, {})[seed.seed] = make(seed)
    joined = {name: join_tables(each) for name, each in frames.items()}
    return {name: Page(t, "\n".join(texts[name])) if name in texts else t for name, t in joined.items()}


# -- means beside published ones --------------------------------------------------------------------------------------


def means_table(name: str, e: SeedEvidence, falling: Collection[str] = ()) -> pd.DataFrame:
    """One row per mean: value with its 95% interval, n images, rank among the methods (1 = best), published.

    Ranks compare means over the images that every method explains. The controls are AI, ADb and AG as in Table 1 and
    with all maps equally bright, by pixel ranks and stretched to mean 0.5: after min-max a gradient's map is nearly
    black and Fake-CAM's nearly white, and a conclusion that does not outlive the controls is about brightness.
    """
    of, wanted = MEANS[name]
    frame = with_metrics(e.frames[of], wanted) if of in e.frames else pd.DataFrame()
    if not frame.shape[1] or (name == "controls" and not with_metrics(frame, wanted[3:]).shape[1]):
        return pd.DataFrame()
    keys = [str(level) for level in frame.columns.names]
    rows = tidy(with_metrics(e.means[of], wanted)).assign(n=frame.notna().sum().to_numpy())
    rows["rank"] = _ranks(rows.assign(value=common(frame).mean().to_numpy()), "value", keys[:-1], falling)
    if name != "further":
        printed = published_tables()[of].rename(columns={"printed": "published"})
        printed["published_rank"] = _ranks(printed, "published", keys[:-1], falling)
        rows = rows.merge(printed, how="left", on=keys)
    place = {value: k for k, value in enumerate([*TARGETS, CLEAN, *SHOWN, *COLUMNS, *METHODS])}
    rows = rows.sort_values(keys, key=lambda s: s.map(place).fillna(len(place)), kind="stable", ignore_index=True)
    if name != "controls":
        return rows
    metric, view = (rows["metric"].map({column: pair[k] for column, pair in CONTROLLED.items()}) for k in (0, 1))
    family = {method: family for family, members in FAMILIES.items() for method in members}
    return rows.assign(metric=metric, view=view, family=rows["method"].map(family).fillna("control"))


def _ranks(rows: pd.DataFrame, value: str, within: list[str], falling: Collection[str]) -> pd.Series:
    """1 = best by the metric's direction; equal ones share the mean rank."""
    better = rows[value].mask(rows["metric"].isin(falling), -rows[value])
    return better.groupby([rows[key] for key in within]).rank(ascending=False)


# -- further tables ---------------------------------------------------------------------------------------------------


def discrimination_table(e: SeedEvidence) -> pd.DataFrame:
    """Do the metrics tell CAMs, RISE and IBA apart? Their spread, a method's interval, pairs that differ surely.

    Over the images that all of them explain; none where those are too few.
    """
    table, rows = shared_means(e, "fidelity", CLOSE), []
    published = published_evidence()["fidelity"]
    for metric in FIDELITY if len(table) > 1 else []:
        present = [m for m in CLOSE if (metric, m) in table]
        if len(present) < 2:
            continue
        values = pick(table, metric=metric, method=present)
        low, high = interval(values)
        pairs = pd.DataFrame({pair: values[pair[0]] - values[pair[1]] for pair in combinations(present, 2)})
        below, above = interval(pairs)
        printed = pick(published, metric=metric, method=CLOSE).iloc[0]
        spread, printed_spread = (v.max() - v.min() for v in (values.iloc[0], printed))
        apart = int(((below > 0) | (above < 0)).sum())
        rows.append((metric, spread, (high - low).mean(), apart, pairs.shape[1], printed_spread))
    names = ["metric", "spread", "interval_width", "pairs_apart", "pairs", "published_spread"]
    return pd.DataFrame(rows, columns=names)


def calibration_table(e: SeedEvidence) -> pd.DataFrame:
    """mean p_c under each variation and transform, and its ratio to the clean images' (the same images where both are).

    `published` is the ratio of Fake-CAM's insertion score to its clean one, which hardly depends on the map.
    """
    p = {key: part.droplevel([0, 1, 2]) for key, part in e.probability.groupby(level=[0, 1, 2])}
    clean = p.get(("transforms", CLEAN, ""), p.get(("fidelity", "", "")))
    if clean is None:
        return pd.DataFrame()
    insertion = pick(published_evidence()["transforms"], metric="I", method="fake_cam").iloc[0]
    rows = []
    for transform in SHOWN:
        each = {s: part.reindex(clean.index).dropna() for (_, t, s), part in p.items() if t == transform}
        for strength, part in (each | ({"all": pd.concat(each.values())} if each else {})).items():
            mean, reference = part.mean(), clean[part.index].mean()
            printed = insertion.get(transform, np.nan) / insertion[CLEAN] if strength == "all" else np.nan
            rows.append((transform, strength, len(part), mean, mean / reference, printed))
    return pd.DataFrame(rows, columns=["transform", "variation", "n", "mean_p", "ratio", "published"])


def variations_table(e: SeedEvidence) -> pd.DataFrame:
    """Table 4 taken apart: the means of every single variation."""
    columns = ["transform", "variation", "metric", "method", "value"]
    parts = [
        with_metrics(frame, MASKED).mean().rename("value").reset_index().assign(transform=transform, variation=strength)
        for transform in SHOWN
        for (of, strength), frame in e.variations.items()
        if of == transform
    ]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


def brightness_table(e: SeedEvidence) -> pd.DataFrame:
    """Each conclusion on maps as they are (minmax) and made equally bright: its margin and whether it holds.

    Of the methods at hand, over the images that all of them explain; families are compared as far as they are there.
    """
    table, rows = shared_means(e, "fidelity"), []
    names = {pair: name for name, pair in CONTROLLED.items()}
    for (said, margin_of), metric, view in product(CONCLUSIONS.items(), MASKED[:3], ["minmax", *CONTROLS]):
        name = names[metric, view]
        present = [m for m in METHODS if (name, m) in table and table[name, m].notna().iloc[0]]
        if not {"fake_cam", "gradient", "grad_cam"} <= set(present):
            continue
        margin, *draws = margin_of(by_method(table, name, present))
        low, high, holds = np.nan, np.nan, "uncertain"
        if draws:
            parts = conjunction.over_images(margin, draws)
            low, high, holds = parts.low[0], parts.high[0], conjunction.decide(parts, 1)
        rows.append((said, metric, view, len(present), margin, low, high, holds))
    columns = ["conclusion", "metric", "view", "methods", "margin", "ci_low", "ci_high", "holds"]
    return pd.DataFrame(rows, columns=columns)


OTHERS = {
    "discrimination": discrimination_table,
    "calibration": calibration_table,
    "variations": variations_table,
    "brightness": brightness_table,
}
