"""Tables 1 and 2 of Tomsett et al. (AAAI 2020), and what stands behind their text: correlations, subsets of images."""

from __future__ import annotations

import numpy as np
import pandas as pd

from salrun.papers.claims import Evidence
from salrun.papers.evidence import join_tables, published, tidy
from salrun.papers.tomsett.evidence import PAIRS, ImageScores, Key, TomsettEvidence
from salrun.stats.bootstrap import percentile_error
from salrun.stats.reliability import alpha, inter_method, mean_pairwise

CASE = [*Key._fields, "edge"]
LEVEL = 0.999  # of Table 1's intervals


def tables(e: TomsettEvidence) -> dict[str, pd.DataFrame]:
    """All tables, with a column for the seed."""
    return {
        "table1": join_tables({seed: table_1(e.draws[seed], s.images) for seed, s in e.scores.items()}),
        "table2": join_tables({seed: table_2(d) for seed, d in e.draws.items()}),
        "inter_method": join_tables({seed: inter_method_table(s) for seed, s in e.scores.items()}),
        "subsets": join_tables({seed: subset_table(e.draws[seed], s) for seed, s in e.scores.items()}),
        "subset_alpha": join_tables({seed: subset_alpha_table(s) for seed, s in e.scores.items()}),
    }


def table_1(draws: Evidence, images: int) -> pd.DataFrame:
    """Table 1: Krippendorff's alpha with its 99.9% interval, beside the published values."""
    if "alpha" not in draws.tables:
        return pd.DataFrame()
    table = draws["alpha"]
    error = percentile_error(table.iloc[1:], LEVEL)
    measured = tidy(table, "alpha", LEVEL).assign(monte_carlo_error=error, images=images)
    named = {"alpha": "published", "ci_low": "published_low", "ci_high": "published_high"}
    return measured.merge(published("tomsett", "alpha").rename(columns=named), how="left", on=CASE)


def table_2(draws: Evidence) -> pd.DataFrame:
    """Table 2: Spearman between metrics for each method, raw (as printed) and aligned (positive = agreement)."""
    if "consistency" not in draws.tables:
        return pd.DataFrame()
    measured = tidy(draws["consistency"], "spearman")
    measured["aligned"] = measured["spearman"] * measured["pair"].map({p: sign for p, (_, _, sign) in PAIRS.items()})
    printed = published("tomsett", "consistency").rename(columns={"spearman": "published"})
    return measured.merge(printed, how="left", on=["pair", "method"])


def inter_method_table(s: ImageScores) -> pd.DataFrame:
    """Mean pairwise Spearman between methods' scores over images: all four cells of every metric."""
    rows = []
    for key, edge in s.cases():
        matrix = inter_method(s.of_case(key, edge))
        pairs = matrix.to_numpy()[np.triu_indices(len(matrix), k=1)]
        rows.append((*key, edge, mean_pairwise(matrix), np.nanmin(pairs), np.nanmax(pairs)))
    measured = pd.DataFrame(rows, columns=[*CASE, "spearman", "lowest_pair", "highest_pair"])
    printed = published("tomsett", "inter_method").rename(columns={"spearman": "published"})
    return measured.merge(printed, how="left", on=CASE)


def subset_table(draws: Evidence, s: ImageScores) -> pd.DataFrame:
    """Means of every subset (all images, low confidence, each class) with 95% intervals, at the longest L.

    `excess` is AOPC minus that of random pixel orders.
    """
    parts = [tidy(draws.tables[kind], quantity=kind) for kind in ("mean", "excess") if kind in draws.tables]
    if not parts:
        return pd.DataFrame()
    joined = pd.concat(parts, ignore_index=True)
    sizes = {name: int(chosen.sum()) for name, chosen in s.subsets().items()}
    return joined.assign(images=joined["subset"].map(sizes))


def subset_alpha_table(s: ImageScores) -> pd.DataFrame:
    """Krippendorff's alpha within every subset of the images."""
    rows = []
    for key, edge in s.cases():
        ranks = s.ranks(key, edge)
        for subset, chosen in s.subsets().items():
            rows.append((subset, int(chosen.sum()), *key, edge, alpha(ranks[chosen.to_numpy()])))
    return pd.DataFrame(rows, columns=["subset", "images", *CASE, "alpha"])
