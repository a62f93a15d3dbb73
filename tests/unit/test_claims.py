"""What makes a claim hold, fail or stay open."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from salrun.errors import SalrunError
from salrun.papers.claims import (
    COLUMNS,
    Basis,
    Claim,
    Evidence,
    Margin,
    claim,
    claims_of,
    evaluate_claims,
    measure,
    parts,
)
from salrun.papers.evidence import NotTestable, estimate_and_draws, pick


def evidence(images=100, draws=2_000, **margins):
    """A table with one column per margin: (estimate, spread of its draws)."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(draws, len(margins)))
    centre, spread = (np.array([m[k] for m in margins.values()]) for k in (0, 1))
    columns = pd.Index(list(margins), name="part")
    tables = {"t": estimate_and_draws(centre, centre + spread * noise, columns)}
    return Evidence(tables, {"t": Basis(images), "other": Basis(7, 2, "of two models")})


def exact(**margins):
    return Evidence({"t": estimate_and_draws(list(margins.values()), None, pd.Index(list(margins), name="part"))})


ALL = Claim("A", "p", "all parts are positive", lambda e: e["t"], reads="t")
ANY = Claim("B", "p", "some part is positive", lambda e: e["t"], any_of=True, reads="t")
TEXT = Claim("C", "p", "said in words", lambda e: e["t"], text=True, reads="t")


def row(a_claim, found, published=None):
    return evaluate_claims([a_claim], found, published).iloc[0]


@pytest.mark.parametrize(
    ("estimate", "spread", "holds"), [(1.0, 0.1, "yes"), (-1.0, 0.1, "no"), (0.1, 1.0, "uncertain")]
)
def test_the_interval_decides(estimate, spread, holds):
    margin = measure(ALL, [evidence(a=(estimate, spread))])
    assert margin.holds == holds
    assert margin.value == estimate
    assert margin.high - margin.low == pytest.approx(2 * 1.96 * spread, rel=0.1)


@pytest.mark.parametrize(
    ("here", "there", "verdict"),
    [
        (1.0, 0.2, "reproduced"),
        (-1.0, 0.2, "not reproduced"),
        (-1.0, -0.2, "reproduced"),  # false here as on the paper's own tables
        (1.0, -0.2, "not reproduced"),
        (0.0, 0.2, "uncertain"),
    ],
)
def test_verdict_compares_with_the_published_numbers(here, there, verdict):
    found = row(ALL, evidence(a=(here, 0.1)), exact(a=there))
    assert found["verdict"] == verdict
    assert found["published"] == there
    assert found["published_holds"] == ("yes" if there > 0 else "no")
    assert ("the paper's own tables contradict it" in found["reason"]) == (there < 0)


def test_all_parts_must_hold_and_the_failing_ones_are_named():
    found = row(ALL, evidence(good=(1.0, 0.1), bad=(-2.0, 0.1), worse=(-3.0, 0.1)), exact(good=1.0, bad=0.0))
    assert found["measured"] == -3.0
    assert found["holds"] == "no"
    assert "fails here for worse (-3), bad (-2)" in found["reason"]
    assert "contradict it for bad (+0)" in found["reason"]
    assert measure(ALL, [evidence(good=(1.0, 0.1), open=(0.1, 1.0))]).holds == "uncertain"


def test_the_part_that_gave_the_margin_is_named():
    several = evidence(far=(3.0, 0.1), near=(1.0, 0.1))
    assert "closest: near; " in row(TEXT, several)["reason"]
    any_of = Claim("E", "p", "some part is positive", lambda e: e["t"], any_of=True, text=True)
    assert "closest: far; " in row(any_of, several)["reason"]
    assert "closest: b; " in row(any_of, evidence(a=(-5.0, 0.1), b=(-1.0, 0.1)))["reason"]
    assert "closest" not in row(TEXT, evidence(alone=(1.0, 0.1)))["reason"]
    assert "closest" not in row(TEXT, evidence(good=(1.0, 0.1), bad=(-2.0, 0.1)))["reason"]  # named as failing


def test_one_part_is_enough_for_any():
    assert measure(ANY, [evidence(a=(1.0, 0.1), b=(-5.0, 0.1))]).holds == "yes"
    assert measure(ANY, [evidence(a=(-1.0, 0.1), b=(-5.0, 0.1))]).holds == "no"
    both = measure(ANY, [evidence(a=(0.1, 1.0), b=(-5.0, 0.1))])
    assert both.holds == "uncertain"
    assert both.low < both.value == 0.1 < both.high


def test_chance_among_many_parts_does_not_make_any_hold():
    """Forty null parts, each 2 sigma: uncorrected, one of them would often look positive."""
    rng = np.random.default_rng(1)
    wrong = 0
    for _ in range(40):
        margins = {f"p{i}": (v, 1.0) for i, v in enumerate(rng.normal(size=40))}
        wrong += measure(ANY, [evidence(draws=4_000, **margins)]).holds == "yes"
    assert wrong <= 4


def test_text_claims_have_no_published_number():
    found = row(TEXT, evidence(a=(1.0, 0.1)))
    assert found["published"] == "text"
    assert found["verdict"] == "reproduced"
    assert "text or figures only" in found["reason"]


def test_a_claim_without_its_tables_is_not_testable():
    found = row(TEXT, Evidence())
    assert found["verdict"] == "not testable here"
    assert found["reason"] == "needs the table 't'"
    assert found["holds"] == ""
    assert pd.isna(found["measured"])
    assert row(TEXT, evidence(a=(np.nan, 1.0)))["reason"] == "undefined for a"


def test_an_untestable_published_table_is_a_mistake_of_the_paper():
    with pytest.raises(SalrunError, match="'A' of 'p' is not marked as text"):
        row(ALL, evidence(a=(1.0, 0.1)), Evidence())


def test_three_seeds_make_the_interval_theirs():
    close = [evidence(a=(v, 50.0)) for v in (1.0, 1.1, 0.9)]
    found = row(TEXT, close)
    assert found["measured"] == pytest.approx(1.0)
    assert found["holds"] == "yes"
    assert "CI over 3 seeds" in found["reason"]
    half = 4.302652 * 0.1 / np.sqrt(3)
    assert found["ci_low"] == pytest.approx(1 - half, rel=1e-5)
    assert row(TEXT, close[:2])["holds"] == "uncertain"
    assert "images of 2 models" in row(TEXT, close[:2])["reason"]
    assert "CI over 100 images of one model" in row(TEXT, close[:1])["reason"]


def test_the_basis_of_what_a_claim_reads_is_told():
    other = replace(TEXT, reads="other")
    assert row(other, evidence(a=(1.0, 0.1)))["reason"].endswith("CI over 7 images of 2 models; of two models")
    few = [evidence(a=(1.0, 0.1), images=n) for n in (100, 40)]
    assert "CI over 40 images of 2 models" in row(TEXT, few)["reason"]  # what the smaller of two models rests on
    assert "CI over 0 images of one model" in row(replace(TEXT, reads=None), few[:1])["reason"]


def test_evidence_may_say_more_than_tables_do():
    class Own(Evidence):
        def basis(self, reads):
            return Basis(reads.stop, 3, "measured")

    found = row(replace(TEXT, reads=slice(5)), Own(evidence(a=(1.0, 0.1)).tables))
    assert found["reason"].endswith("CI over 5 images of 3 models; measured")


def test_a_claim_may_bring_its_own_interval():
    own = Claim("D", "p", "s", lambda e: Margin(0.5, 0.1, 0.9), text=True)
    assert row(own, Evidence())["holds"] == "yes"
    assert row(own, [Evidence()] * 3)["ci_low"] == 0.5


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize(
    ("basis", "said"),
    [
        ("configuration", "checked on the configuration, not on a run"),
        ("toy maps", "checked on toy maps, not on a run"),
    ],
)
def test_a_claim_that_rests_on_no_run_has_no_interval_and_says_so(basis, said, seeds):
    for result in (Margin(0.5), exact(a=0.5, b=0.7)["t"]):
        fixed = Claim("F", "p", "s", lambda e, result=result: result, text=True, basis=basis)
        found = row(fixed, [Evidence()] * seeds)
        assert found["verdict"] == "reproduced"
        assert pd.isna(found["ci_low"]) and pd.isna(found["ci_high"])
        assert said in found["reason"]
        assert "CI over" not in found["reason"]
    assert row(Claim("F", "p", "s", lambda e: Margin(-0.5), text=True, basis=basis), Evidence())["holds"] == "no"


def test_an_unknown_basis_is_refused():
    with pytest.raises(SalrunError, match="basis must be one of configuration, toy maps, got 'dreams'"):
        claim("F", "test_paper", "s", basis="dreams")


def test_pick_names_what_is_missing():
    columns = pd.MultiIndex.from_product([["x", "y"], [1, 2]], names=["m", "k"])
    table = pd.DataFrame([[1.0, 2, 3, 4]], columns=columns)
    assert pick(table, m="y", k=2).to_numpy().tolist() == [[4.0]]
    assert pick(table, k=[1]).columns.tolist() == [("x", 1), ("y", 1)]
    with pytest.raises(NotTestable, match="needs m z"):
        pick(table, m=["x", "z"])
    with pytest.raises(NotTestable, match="cells by colour"):
        pick(table, colour="red")


def test_parts_join_under_names():
    frame = pd.DataFrame([[1.0, 2.0]], columns=["a", "b"])
    assert parts(near=frame, far=frame["a"]).columns.tolist() == ["near a", "near b", "far"]


def test_registry_keeps_order_and_refuses_collisions():
    @claim("Z2", "test_paper", "second")
    def _(e):
        return e["t"]

    @claim("Z1", "test_paper", "first", any_of=True, text=True, reads="t")
    def _(e):
        return e["t"]

    assert [c.id for c in claims_of("test_paper")] == ["Z2", "Z1"]
    assert claims_of("test_paper")[1].any_of and claims_of("test_paper")[1].reads == "t"
    with pytest.raises(SalrunError, match="defined twice"):
        claim("Z1", "test_paper", "again")(np.mean)
    assert claims_of("nobody") == []


def test_a_measurement_without_an_interval_decides_nothing():
    assert row(ALL, exact(a=1.0), exact(a=1.0))["verdict"] == "uncertain"


def test_columns_are_the_contract():
    table = evaluate_claims([ALL, TEXT], evidence(a=(1.0, 0.1)), exact(a=1.0))
    assert table.columns.tolist() == COLUMNS
    with pytest.raises(SalrunError, match="at least one model"):
        evaluate_claims([ALL], [])
