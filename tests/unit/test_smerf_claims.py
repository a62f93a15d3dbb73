"""Verdicts on the claims of smerf, on runs made up here."""

import pandas as pd
import pytest

from salrun import papers
from salrun.papers.claims import NotTestable, claims_of, measure
from salrun.papers.smerf.claims import claims
from salrun.papers.smerf.evidence import SmerfEvidence, read
from salrun.papers.smerf.figures import figures
from salrun.papers.smerf.tables import tables
from salrun.papers.smerf.terms import BOTH_PRESENT, FIFTEEN, METRICS, MID, WEAK, reasonings
from tests.smerf_runs import made_up, measured, paper_like, random_world, verdicts, write_run

BY_ID = {c.id: c for c in claims_of("smerf")}
ITEMS = ["table1", "table2", "table3", "fig2", "fig6a", "fig6b", "fig7", "fig7b", "fig8a", "fig8b", "fig9", "fig10"]
ITEMS += ["fig11", "fig12", "fig14", "fig15", "fig16", "fig17", "fig17b", "fig18", "fig19", "fig21", "fig22", "fig23"]
ITEMS += ["fig24", "fig25", "fig27", "fig28", "fig29", "fig30", "fig32", "fig33", "7"]
ONE_MODE = {"table1.T", "table2.T", "table3.T1", "table3.T2", "table3.T3", "fig9.T", "fig25.T", "fig15.T", "fig32.T2"}


@pytest.fixture(scope="module")
def at_random():
    return random_world()


def test_every_item_of_the_paper_has_a_claim_and_most_have_two_readings():
    assert {c.split(".")[0] for c in BY_ID} == set(ITEMS)
    assert {f"7.3.{k}" for k in range(1, 7)} <= set(BY_ID)
    twins = {c for c in BY_ID if c.endswith(".paper")}
    assert {c.removesuffix(".paper") for c in twins} <= set(BY_ID)
    assert set(BY_ID) - twins - {c.removesuffix(".paper") for c in twins} == ONE_MODE
    assert len(BY_ID) == 155


def test_claims_on_a_world_made_like_the_papers():
    found = verdicts(made_up(value=paper_like), draws=20)
    for id in ("fig6a.T1", "fig6a.F", "fig6a.T3", "fig6a.T4", "fig6b.T", "fig6b.F", "fig7.T2", "fig7.T4", "fig8a.T4"):
        assert found.loc[id, "holds"] == "yes", (id, found.loc[id, "reason"])
        assert found.loc[f"{id}.paper", "holds"] == "yes"
    assert found.loc["fig8a.T1", "holds"] == "yes"  # false on the published numbers, so not reproduced
    assert found.loc["fig8a.T1", "verdict"] == "not reproduced"
    assert found.loc["fig7.T1", "holds"] == "no"  # in this world others succeed as DL-R does
    assert found.loc["fig23.T1", "holds"] != "yes"
    untested = found[found["verdict"] == "not testable here"]
    assert len(untested) == sum("under" in r or "table '" in r or "run of" in r for r in untested["reason"])


def test_margins_are_what_plain_arithmetic_gives(at_random):
    found = verdicts(at_random)
    code = at_random.scores.query("mode == 'code'")
    means = code.groupby(["experiment", "group", "metric", "method"])["value"].mean()
    simple = means[means.index.get_level_values("experiment").str.contains("simple")].groupby(
        level=["metric", "method"]
    )
    complex_ = means.drop(index=["smerf_simple_fr", "smerf_simple_nr"], level=0).groupby(level=["metric", "method"])
    weak = simple.mean()["pafl"][WEAK]
    assert found.loc["fig6a.T1", "measured"] == pytest.approx((0.5 - weak).min())
    drop = (simple.mean()["pafl"] - complex_.mean()["pafl"])[FIFTEEN]
    assert found.loc["fig8a.T1", "measured"] == pytest.approx(drop.min())
    low = (simple.min()["piou"] - complex_.min()["piou"])[FIFTEEN]
    assert found.loc["fig18.T2", "measured"] == pytest.approx(low.min())
    lines = means["smerf_complex_cr2"].unstack("group")
    five = lines.loc["pafl", ["5", "6"]].mean(axis=1)[[*MID, "deep_taylor"]] - 0.5
    rest = 0.5 - pd.concat([lines.loc["pafl", b].mean(axis=1)[FIFTEEN] for b in (["8", "9"], ["11", "12"])])
    assert found.loc["fig8a.T6", "measured"] == pytest.approx(min(five.median(), rest.min()))
    success = {}
    for setting, buckets in BOTH_PRESENT.items():
        above = means[f"smerf_{setting}"].unstack("group").loc["pafl", list(buckets)].loc[FIFTEEN] > 0.5
        success[setting] = above.mean(axis=1).mean()
    rows = pd.Series(success)
    assert found.loc["fig7.T4", "measured"] == pytest.approx(rows.iloc[:2].mean() - rows.iloc[2:].mean())
    at = means["smerf_simple_fr"].unstack("group").loc["pafl", ["7", "8", "9", "10", "11", "12"]].loc[FIFTEEN]
    worst = (at[["7", "8", "9", "10"]].min(axis=1) - at[["11", "12"]].min(axis=1)).sort_values()
    assert found.loc["fig19.T1", "measured"] == pytest.approx(worst.iloc[2])  # 13 of 15 above


def test_one_setting_alone_decides_what_it_can_and_says_so():
    found = verdicts(made_up(("simple_fr",), value=paper_like))
    assert found.loc["fig6a.T1", "verdict"] == "reproduced"
    assert "pooled over simple_fr only; the paper pools simple_fr and simple_nr" in found.loc["fig6a.T1", "reason"]
    assert "CI over 18 images of one model" in found.loc["fig6a.T1", "reason"]  # 6 of 12 buckets have a primary object
    assert "CI over 30 images of one model" in found.loc["fig17.T2", "reason"]  # 10 a secondary one
    assert "CI over 15 images of one model" in found.loc["fig7.T2", "reason"]  # 5 both
    assert "CI over 18 images of one model" in found.loc["fig2.T1.paper", "reason"]
    assert found.loc["fig8a.T1", "verdict"] == "not testable here"
    assert found.loc["fig8a.T1", "reason"].startswith("needs a run of one of complex_fr")
    assert found.loc["fig7.T1", "reason"] == "needs a run of simple_nr"
    assert found.loc["fig11.T1", "reason"] == "needs a run of one of simple_fr, simple_nr under pgd"
    assert found.loc["fig19.T2", "verdict"] in ("reproduced", "not reproduced")


def test_models_of_another_reading_are_named():
    found = verdicts(made_up(("simple_fr",), value=paper_like, labels="code", loss="keras_clipped"))
    assert found.loc["fig6a.T1", "reason"].endswith("; models with labels=code, loss=keras_clipped")


def test_conditions_are_compared_over_the_settings_they_share():
    def lower(setting, bucket, metric, mode, method):
        return 0.1 if setting == "simple_nr" else paper_like(setting, bucket, metric, mode, method)

    def noisy(setting, bucket, metric, mode, method):
        return paper_like(setting, bucket, metric, mode, method) - 0.05

    plain = made_up(("simple_fr", "simple_nr"), value=lower)
    found = verdicts(plain + made_up(("simple_fr",), background="noise", value=noisy))
    # Simple-NR is the plain models' worst setting; noise was not run there, so it must not count.
    assert found.loc["fig30.T", "holds"] == "yes"
    assert found.loc["fig30.T", "measured"] == pytest.approx(0.05)
    assert found.loc["fig29.T1", "verdict"] == "not testable here"


def test_a_perfect_map_that_cannot_succeed_is_told():
    def bounded(setting, bucket, metric, mode, method):
        if method == "oracle" and metric == "piou":
            two = len(reasonings()[setting]["buckets"][int(bucket)]["primary"]) > 1
            return 0.4 if two and mode == "code" else 0.8
        return 0.3

    found = verdicts(made_up(settings=("complex_fr", "complex_cr2"), value=bounded))
    assert found.loc["7.3.1", "holds"] == "no"
    assert found.loc["7.3.1.paper", "holds"] == "yes"


def test_intervals_over_seeds_need_no_draws():
    first, *others = (
        made_up(("simple_fr", "simple_nr"), seed=s, value=lambda *a, s=s: paper_like(*a) + 0.001 * s) for s in range(3)
    )
    found = verdicts(first + others[0] + others[1], draws=0)
    assert "CI over 3 seeds" in found.loc["fig6a.T1", "reason"]
    assert found.loc["fig6a.T1", "holds"] == "yes"


@pytest.mark.parametrize("metric", METRICS)
def test_claims_declare_the_metrics_that_they_read(metric):
    """Without a metric, those that declare it are not testable for it; no other claim misses it."""
    (e,) = measured(made_up(n=2).where(lambda s: s["metric"] != metric), draws=1)
    tried = 0
    for id, claim in BY_ID.items():
        if not claim.reads.of or not claim.reads.metrics or claim.reads.conditions != ("plain",):
            continue
        try:
            measure(claim, [e])
            said = ""
        except NotTestable as problem:
            said = str(problem)
        assert (said == f"needs the metric {metric}") == (metric in claim.reads.metrics), (id, said)
        assert f"metric {metric}" not in said or metric in claim.reads.metrics, (id, said)
        tried += 1
    assert tried == 100


def test_a_setting_without_its_metrics_needs_metrics_not_a_run(tmp_path):
    world = made_up(("simple_fr",), methods=("gradient",)).where(lambda s: s["metric"] == "pafl")
    e = read(write_run(tmp_path, world.assign(metric="top_share")), draws=20)
    found = claims(e).set_index("id")
    assert found.loc["fig2.T1", "reason"] == "needs the metric piou"
    assert found.loc["fig2.T1.paper", "reason"] == "needs the metric piou"
    assert found.loc["fig6a.T3", "reason"] == "needs the metrics pafl, safl"
    assert found.loc["fig23.T1", "reason"] == "needs the metrics pmafl, smafl"
    assert found.loc["fig23.T2", "reason"] == "needs a run of simple_nr"
    assert found.loc["fig7.T1", "reason"] == "needs a run of simple_nr"
    assert found.loc["fig2.T2", "reason"].startswith("needs a run of one of complex_fr")
    assert found.loc["table3.T2", "verdict"] == "reproduced"  # from model.csv, without any score
    assert "CI over 6000 images of one model" in found.loc["table3.T2", "reason"]
    assert len(tables(e)["table3"]) == len(reasonings()["simple_fr"]["buckets"]) + 1


def test_what_rests_on_no_run_says_so():
    found = claims(SmerfEvidence()).set_index("id")
    assert (found["verdict"] == "reproduced").sum() == 8
    for id in ("table1.T", "table2.T"):
        assert "checked on the configuration, not on a run" in found.loc[id, "reason"]
    for id in ("fig14.T", "fig16.T1", "fig16.T2", "fig14.T.paper", "fig16.T1.paper", "fig16.T2.paper"):
        assert "checked on toy maps, not on a run" in found.loc[id, "reason"]
    rest = found[found["verdict"] == "reproduced"]
    assert rest[["ci_low", "ci_high"]].isna().all(axis=None)
    assert not found["reason"].str.contains("CI over").any()


def test_accuracies_are_claims_about_table_3(tmp_path):
    def accuracy(setting, bucket):
        return 0.80 if (setting, bucket) == ("complex_cr3", "12") else 1.0

    world = made_up(("simple_fr", "complex_cr3"), methods=("gradient",), accuracy=accuracy)
    e = read(write_run(tmp_path, world), draws=200)
    found = claims(e).set_index("id")
    assert found.loc["table3.T1", "verdict"] == "not reproduced"
    assert "complex_cr3 12" in found.loc["table3.T1", "reason"]
    assert "CI over 10000 images of 2 models" in found.loc["table3.T1", "reason"]
    assert found.loc["table3.T2", "verdict"] == "reproduced"
    assert found.loc["table3.T3", "verdict"] == "reproduced"  # 0.98 overall
    made = tables(e)
    assert set(made) == {"table1", "table2", "table3", "pools"}
    three = made["table3"].set_index(["setting", "bucket"])
    assert three.loc[("complex_cr3", "12"), "published"] == 0.90


def test_a_run_that_is_not_the_papers_decides_nothing(tmp_path):
    e = read(write_run(tmp_path, made_up(("simple_fr",), methods=("gradient",), paper="mine")), draws=10)
    found = claims(e).set_index("id")
    assert found.loc["fig6a.T1", "verdict"] == "not testable here"
    assert tables(e)["pools"].empty and tables(e)["table3"].empty
    assert "figure2" not in figures(e) and "figure14" in figures(e)


@pytest.mark.parametrize("metrics", [["pafl"], ["safl", "piou"], ["pointing_game"]])
def test_a_run_with_some_of_the_metrics_makes_what_these_allow(tmp_path, metrics):
    world = made_up(("simple_fr", "complex_cr2"), methods=("gradient", "lrp_z"))
    scores = world.scores
    other = scores[(scores["metric"] == "siou") & (scores["mode"] == "code")].assign(metric="pointing_game")
    world.scores = pd.concat([scores[scores["metric"].isin(metrics)], other], ignore_index=True)
    found, problems = papers.conclude("smerf", write_run(tmp_path, world))
    assert problems == [] and "not testable here" in set(found["verdict"])
