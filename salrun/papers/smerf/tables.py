"""Tables 1 to 3 of Kim, Plumb, Talwalkar (ICML 2022), and `pools`: the numbers behind most of its figures."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from salrun.papers.evidence import join_tables, tidy
from salrun.papers.smerf.evidence import (
    Measured,
    ModelScores,
    SmerfEvidence,
    in_order,
    pool_members,
    with_enough_scores,
)
from salrun.papers.smerf.terms import LABELS, METRICS, MODES, published, reasonings, settings_of, validation_images

KEYS = ["condition", "pool", "metric", "method"]


def tables(e: SmerfEvidence) -> dict[str, pd.DataFrame]:
    """Tables 1 to 3, and the pooled numbers of every seed."""
    pools = join_tables({seed: pool_summary(measured) for seed, measured in e.seeds.items()})
    return {"table1": table_1(), "table2": table_2(), "table3": table_3(e.accuracies), "pools": pools}


def table_1() -> pd.DataFrame:
    """Label, focus (primary) and avoid (secondary) of every defined bucket, beside the printed ones (?: not there)."""
    rows = []
    for setting, reasoning in reasonings().items():
        for bucket, rule in reasoning["buckets"].items():
            focus, avoid = (" ".join(rule[role]) or "-" for role in ("primary", "secondary"))
            rows.append((setting, str(bucket), rule["label"], rule.get("code_label", rule["label"]), focus, avoid))
    ours = pd.DataFrame(rows, columns=["setting", "bucket", "label", "code_label", "focus", "avoid"])
    both = ours.merge(published("table1"), how="outer", on=["setting", "bucket"], suffixes=("", "_printed"), sort=False)
    agrees = both["label"] == both["label_printed"]
    for what in ("focus", "avoid"):
        agrees &= (both[what] == both[f"{what}_printed"]) | (both[f"{what}_printed"] == "?")
    return in_order(both.assign(agrees=agrees))


def table_2() -> pd.DataFrame:
    """Images of each setting and split, beside the printed totals."""
    rows = []
    for setting, reasoning in reasonings().items():
        train = sum(reasoning["train_per_bucket"][rule["label"]] for rule in reasoning["buckets"].values())
        rows += [(setting, "train", train), (setting, "validation", validation_images()[setting])]
    ours = pd.DataFrame(rows, columns=["setting", "split", "images"])
    return ours.merge(published("table2"), how="left", on=["setting", "split"], suffixes=("", "_printed"))


def table_3(accuracies: pd.DataFrame) -> pd.DataFrame:
    """Validation accuracy per bucket, beside the printed ones."""
    printed = published("accuracy").rename(columns={"accuracy": "published"})
    return accuracies.merge(printed, how="left", on=["condition", "setting", "bucket"])


def pool_summary(e: Measured) -> pd.DataFrame:
    """Mean (95% interval over images), standard deviation over buckets and worst bucket of every pool, beside 7.1's.

    `code_mean` is what the authors' plots would show: 0 as soon as one image has no score.
    """
    printed = published().pivot(index=KEYS, columns="statistic", values="value").add_prefix("published_")
    parts = []
    for mode, measured in zip(MODES, (e, e.paper or e), strict=True):
        if "mean" not in measured.tables:
            continue
        mean, std, lowest = (measured[statistic] for statistic in ("mean", "std", "min"))
        part = tidy(mean, "mean", mode=mode)
        part["std_over_buckets"] = std.iloc[0][mean.columns].to_numpy()
        part["min"] = lowest.iloc[0][mean.columns].to_numpy()
        part = part.merge(counts(measured.models, mode), how="left", on=KEYS)
        part["code_mean"] = part["mean"].where(part["images_without_score"] == 0, 0.0)
        parts.append(part.join(printed, on=KEYS) if mode == "code" else part)
    if not parts:
        return pd.DataFrame()
    order = {name: k for k, name in enumerate([*MODES, *METRICS, *LABELS])}
    joined = pd.concat(parts, ignore_index=True).sort_values(
        ["condition", "mode", "pool", "metric", "method"],
        key=lambda c: c.map(lambda v: (order.get(v, -1), v)),
        ignore_index=True,
    )
    there = {c: e.settings(c) for c in joined["condition"].unique()}
    pooled = [
        " ".join(s for s in there[condition] if s in settings_of(pool))
        for condition, pool in zip(joined["condition"], joined["pool"], strict=True)
    ]
    return joined.assign(settings=pooled)


def counts(models: Sequence[ModelScores], mode: str) -> pd.DataFrame:
    """Per condition, pool, metric, method: buckets, those left out, images, those without a score, worst bucket."""
    parts = []
    for model in models:
        for bucket, values in model.by_mode[mode].items():
            part = values.isna().sum().rename("images_without_score").reset_index()
            part = part.assign(mean=with_enough_scores(values).mean().to_numpy(), images=len(values), bucket=bucket)
            parts.append(part.assign(condition=model.condition, setting=model.setting))
    rows = pd.concat(parts, ignore_index=True)
    members = pool_members(rows["setting"], rows["bucket"])
    every = pd.concat([rows[inside].assign(pool=pool) for pool, inside in members.items()], ignore_index=True)
    summary = every.groupby(KEYS)[["images", "images_without_score"]].sum()
    summary.insert(0, "buckets", every.groupby(KEYS)["mean"].count())
    summary.insert(1, "buckets_left_out", every.groupby(KEYS).size() - summary["buckets"])
    lowest = every.dropna(subset="mean").sort_values("mean", kind="stable").drop_duplicates(KEYS).set_index(KEYS)
    summary["worst_bucket"] = lowest["setting"] + " " + lowest["bucket"]
    return summary.reset_index()
