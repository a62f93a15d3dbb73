"""What makes a claim hold, fail, stay open, count or stand apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from salrun.errors import SalrunError
from salrun.papers.claims import Basis, Claim, Controls, Evidence, Numbers, claim, claims_of, part_name, parts, register
from salrun.papers.evidence import NotTestable, estimate_and_draws, pick, printed
from salrun.papers.verdicts import Verdicts, judge, measure
from salrun.results.claims import CLAIMS, ENOUGH, PARTS, headline
from salrun.stats import conjunction


def evidence(images: Any = None, draws: int = 2_000, seed: int = 0, **of: tuple[float, float]) -> Evidence:
    """A table with one column per part: (estimate, standard deviation of its draws)."""
    noise = np.random.default_rng(seed).normal(size=(draws, len(of)))
    centre, spread = (np.array([m[k] for m in of.values()]) for k in (0, 1))
    columns = pd.Index(list(of), name="part")
    tables = {"t": estimate_and_draws(list(centre), centre + spread * noise, columns)}
    return Evidence(tables, {"t": Basis(100), "other": Basis(7, 2, "of two models")}, images=images)


def models(k: int, spread: float = 0.01, start: int = 1, **of: float) -> dict[int, Evidence]:
    """Replicates of seeds start, start + 1, ..: each part's value plus a deterministic spread over models."""
    shift = spread * np.linspace(-1, 1, k)
    return {start + i: evidence(images=start + i, **{n: (v + shift[i], 1e-3) for n, v in of.items()}) for i in range(k)}


def exact(error: float = 0.0, **of: float) -> Evidence:
    return Evidence({"t": printed(pd.Series(of, dtype=float).rename_axis("part"), error)})


def stated(**options: Any) -> Claim:
    said: dict[str, Any] = {"id": "A", "paper": "p", "sentence": "all hold", "place": "Table 1", "predicate": "a part"}
    said |= {"measure": lambda e: e["t"], "unit": "AFL", "text": True, "reads": "t"}
    return Claim(**{**said, **options})


def row(a_claim: Claim, replicates: Evidence | dict[int, Evidence], published: Evidence | None = None) -> pd.Series:
    return judged(a_claim, replicates, published).claims.iloc[0]


def judged(a_claim: Claim, replicates: Evidence | dict[int, Evidence], published: Evidence | None = None) -> Verdicts:
    return judge([a_claim], {0: replicates} if isinstance(replicates, Evidence) else replicates, published)


# -- who decides -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "spread", "holds"), [(1.0, 0.1, "yes"), (-1.0, 0.1, "no"), (0.1, 1.0, "uncertain")])
def test_of_one_model_the_images_decide_and_the_answer_is_about_it(value: float, spread: float, holds: str) -> None:
    found = row(stated(), evidence(a=(value, spread)))
    assert found["holds"] == f"{holds} (one model)"
    assert (found["answer"], found["about"]) == (holds, "one model")
    assert found["measured"] == value and found["k"] == 1
    assert found["ci_high"] - found["ci_low"] == pytest.approx(2 * 1.96 * spread, rel=0.1)


def test_three_models_speak_about_the_sentence() -> None:
    assert row(stated(), models(3, a=0.5))["holds"] == "yes"
    assert row(stated(), models(2, a=0.5))["holds"] == "yes (2 models)"
    found = row(stated(), models(3, spread=1.0, a=0.5))
    assert found["holds"] == "uncertain" and "models would decide at this spread" in found["reason"]
    assert "interval over 3 models" in found["reason"]


def test_models_that_share_their_images_are_no_replicates() -> None:
    same = {seed: replace(e, images=7) for seed, e in models(4, a=0.5).items()}
    assert row(stated(), same)["holds"] == "yes (4 models, the same images)"


def test_the_replicate_the_predicates_were_written_on_is_shown_and_does_not_vote() -> None:
    """Replicate 0 alone contradicts."""
    odd = {0: evidence(images=0, a=(-9.0, 1e-3))}
    found = judged(stated(), odd | models(3, a=0.5))
    assert found.claims.iloc[0]["holds"] == "yes" and found.claims.iloc[0]["k"] == 3
    assert found.parts.iloc[0]["replicate_0"] == -9.0
    with_two = row(stated(), odd | models(2, a=0.5))
    assert with_two["k"] == 3 and with_two["holds"] == "uncertain"


def test_the_images_of_one_model_bound_the_error() -> None:
    alike = {s: evidence(images=s, a=(0.1, 0.5)) for s in (1, 2, 3)}
    assert row(stated(), alike)["holds"] == "uncertain"


def test_of_a_pretrained_network_fresh_images_decide() -> None:
    network = stated(population="images")
    assert row(network, evidence(a=(1.0, 0.1)))["holds"] == "yes (images seen before)"
    fresh = replace(evidence(a=(1.0, 0.1)), fresh=True)
    assert row(network, fresh)["holds"] == "yes"
    assert row(network, {0: evidence(a=(-9.0, 0.1)), 1: fresh})["holds"] == "yes"  # and they alone
    assert row(network, replace(fresh, other_network=True))["holds"] == "yes (another network)"


def test_without_draws_nothing_is_decided() -> None:
    found = row(stated(), evidence(draws=0, a=(1.0, 0.1)))
    assert found["holds"] == "uncertain (one model)" and np.isnan(found["ci_low"])


# -- how many parts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quantifier", "good", "bad", "holds"),
    [
        *[("every", 5, 0, "yes"), ("every", 4, 1, "no"), ("most", 3, 2, "yes"), ("most", 2, 3, "no")],
        *[("most", 2, 2, "no"), ("some", 1, 4, "yes"), ("some", 0, 5, "no"), (4, 4, 1, "yes"), (4, 3, 2, "no")],
    ],
)
def test_quantifiers(quantifier: Any, good: int, bad: int, holds: str) -> None:
    values = {f"g{i}": 0.5 for i in range(good)} | {f"b{i}": -0.5 for i in range(bad)}
    found = row(stated(quantifier=quantifier), models(5, **values))
    assert found["holds"] == holds
    assert (found["measured"] > 0) == (holds == "yes")  # the deciding part
    assert found["parts"] == good + bad
    assert f"{good} of {good + bad} parts hold here" in found["reason"]


def test_the_deciding_part_is_measured() -> None:
    several = models(5, far=3.0, near=1.0, bad=-2.0)
    assert row(stated(), several)["measured"] == pytest.approx(-2.0)
    assert row(stated(quantifier="some"), several)["measured"] == pytest.approx(3.0)
    assert "not: bad (-2)" in row(stated(), several)["reason"]
    assert "closest: near" in row(stated(), models(5, far=3.0, near=1.0))["reason"]


def test_of_parts_that_are_equally_sure_the_smallest_decides() -> None:
    """Both p-values are 0 to the last bit."""
    sure = evidence(large=(3.0, 1e-4), small=(1.0, 1e-4), middle=(2.0, 1e-4))
    assert row(stated(), sure)["measured"] == 1.0
    assert row(stated(quantifier="most"), sure)["measured"] == 2.0
    assert row(stated(bound=9.0), sure)["measured"] == 3.0


def test_chance_among_many_parts_does_not_make_some_hold() -> None:
    """Forty null parts, each 2 sigma: uncorrected, one of them would often look positive."""
    rng = np.random.default_rng(1)
    wrong = 0
    for _ in range(40):
        margins = {f"p{i}": (v, 1.0) for i, v in enumerate(rng.normal(size=40))}
        wrong += measure(stated(quantifier="some"), [evidence(draws=1_000, **margins)]).answer == "yes"
    assert wrong <= 4


def test_an_undefined_part_is_left_out_and_more_than_a_fifth_leave_it_open() -> None:
    one = models(5, **{f"g{i}": 0.5 for i in range(4)}, gone=np.nan)
    found = judged(stated(), one)
    assert found.claims.iloc[0]["holds"] == "yes" and "undefined for gone" in found.claims.iloc[0]["reason"]
    assert found.parts.set_index("part").loc["gone", "holds"] == "undefined"
    two = models(5, g=0.5, h=0.5, gone=np.nan)
    assert row(stated(), two)["holds"] == "uncertain"
    assert row(stated(quantifier="some"), two)["holds"] == "yes"  # a defined part does
    assert row(stated(), models(5, gone=np.nan))["holds"] == "not tested"


def test_a_replicate_votes_where_it_has_all_that_the_claim_reads() -> None:
    """Of five models one was made without part b."""
    some = models(5, a=0.5, b=0.5) | {6: evidence(images=6, a=(0.5, 1e-3))}
    assert row(stated(measure=lambda e: pick(e["t"], part=["a"])), some)["k"] == 6
    assert row(stated(measure=lambda e: pick(e["t"], part=["a", "b"])), some)["k"] == 5


def test_parts_that_were_not_run_make_it_not_tested() -> None:
    lacking = stated(measure=lambda e: pick(e["t"], part="absent"))
    found = row(lacking, evidence(a=(1.0, 0.1)))
    assert found["holds"] == "not tested" and "needs part absent" in found["reason"]
    assert row(stated(measure=lambda e: e["nothing"]), Evidence())["holds"] == "not tested"


# -- sizes and equality ------------------------------------------------------------------------------------------------


def test_a_sure_difference_may_be_small() -> None:
    found = row(stated(), models(5, spread=1e-4, a=0.01))
    assert found["holds"] == "yes" and found["size"] == "small"
    assert row(stated(), models(5, a=0.5))["size"] == ""


def test_equality_is_two_one_sided_tests() -> None:
    equal = stated(bound=0.1)
    assert row(equal, models(5, a=0.05))["holds"] == "yes"
    assert row(equal, models(5, a=-0.5))["holds"] == "no"
    assert row(equal, models(5, spread=0.2, a=0.05))["holds"] == "uncertain"
    assert row(equal, models(5, a=0.05, b=0.5))["holds"] == "no"
    assert row(equal, models(5, a=0.05))["quantifier"] == "every, equal within 0.1"


# -- the paper's own numbers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "said"), [(0.2, "yes"), (-0.2, "no"), (0.01, "uncertain"), (-0.01, "uncertain")])
def test_printed_parts_hold_above_the_error_of_print(value: float, said: str) -> None:
    found = row(stated(text=False), evidence(a=(1.0, 0.1)), exact(0.02, a=value))
    assert found["published_holds"] == said and found["published"] == value
    assert ("the paper's own numbers contradict it" in found["reason"]) == (said == "no")


def test_the_error_of_print_adds_up_in_a_difference() -> None:
    apart = stated(text=False, measure=lambda e: e["t"]["a"] - e["t"]["b"])
    assert row(apart, Evidence(), exact(0.02, a=0.50, b=0.47))["published_holds"] == "uncertain"
    assert row(apart, Evidence(), exact(0.02, a=0.50, b=0.45))["published_holds"] == "yes"


def test_the_papers_quantifier_is_used_on_its_table() -> None:
    table = exact(0.005, a=0.2, b=0.2, c=-0.2)
    assert row(stated(text=False), Evidence(), table)["published_holds"] == "no"
    assert row(stated(text=False, quantifier="most"), Evidence(), table)["published_holds"] == "yes"
    assert row(stated(text=False, bound=0.25), Evidence(), table)["published_holds"] == "yes"
    equal = row(stated(text=False, bound=0.25), Evidence(), exact(0.005, a=0.0, b=0.2))
    assert equal["published"] == 0.2  # the part that decides is the farthest


def test_what_is_said_in_words_has_no_published_number() -> None:
    assert row(stated(), evidence(a=(1.0, 0.1)))["published_holds"] == ""
    with pytest.raises(SalrunError, match="not marked as text but the published tables cannot test it"):
        row(stated(text=False), evidence(a=(1.0, 0.1)))


def test_ours_agree_with_printed_numbers_within_tau() -> None:
    """AFL: within .05; b's interval reaches beyond, c lies outside."""
    numbers = Numbers("AFL", lambda e: e["t"])
    found = judged(stated(numbers=numbers), models(5, a=0.51, b=0.54, c=0.7, d=0.1), exact(0.02, a=0.5, b=0.5, c=0.5))
    assert found.claims.iloc[0]["agrees"] == "1 of 3 (median +0.04)"
    table = found.parts[found.parts["kind"] == "number"].set_index("part")
    assert table["agrees"].to_dict() == {"a": "yes", "b": "uncertain", "c": "no"}
    assert table.loc["c", "difference"] == pytest.approx(0.2)


# -- controls ----------------------------------------------------------------------------------------------------------


def controlled(meaning: Any) -> Claim:
    controls = Controls(meaning, lambda e, name: pick(e["t"], part=[f"control {name}"]))
    return stated(measure=lambda e: pick(e["t"], part=["method"]), controls=controls)


@pytest.mark.parametrize(
    ("meaning", "oracle", "blind", "counted"),
    [
        ("success", 0.5, -0.5, "yes"),
        ("success", -0.5, -0.5, "not informative: a perfect map (oracle) does not succeed either"),
        ("success", 0.5, 0.5, "not informative: all_lit, which knows nothing of the model, succeeds too"),
        ("failure", -0.5, 0.5, "yes"),
        ("failure", 0.5, -0.5, "not informative: a perfect map (oracle) does too"),
    ],
)
def test_controls_say_what_is_informative(meaning: str, oracle: float, blind: float, counted: str) -> None:
    values = {"method": 0.5, "control oracle": oracle, "control all_lit": blind}
    found = judged(controlled(meaning), models(5, **values))
    assert found.claims.iloc[0]["counted"] == counted
    assert f"oracle {oracle:+.3g}" in found.claims.iloc[0]["control"]
    assert list(found.parts.query("kind == 'control'")["part"]) == ["oracle", "all_lit"]  # the others were not run


def test_a_control_that_is_open_takes_nothing_away() -> None:
    unsure = {s: evidence(images=s, **{"method": (0.5, 1e-3), "control oracle": (0.0, 1.0)}) for s in (1, 2, 3)}
    assert row(controlled("failure"), unsure)["counted"] == "yes"


# -- counted or apart --------------------------------------------------------------------------------------------------


def test_why_a_claim_is_listed_apart() -> None:
    assert row(stated(), models(3, a=0.5))["counted"] == "yes"
    nested = stated(apart="nested: fig18.T1")
    assert row(nested, models(3, a=0.5))["counted"] == "follows from a counted claim: fig18.T1"
    other = {s: replace(e, bases={"t": Basis(100, reading="labels=code")}) for s, e in models(3, a=0.5).items()}
    assert row(stated(), other)["counted"] == "another reading of the paper: labels=code"


@pytest.mark.parametrize("value", [0.5, -0.5])
def test_what_needs_no_run_is_decided_by_its_value(value: float) -> None:
    toy = stated(apart="toy maps", measure=lambda e: pd.DataFrame({"PAFL": [value]}))
    found = row(toy, Evidence())
    assert found["holds"] == ("yes" if value > 0 else "no") and found["k"] == 0
    assert found["counted"] == "checked on toy maps, not on a run"


def test_the_second_mode_is_a_column() -> None:
    both = stated(measure=lambda e: pick(e["t"], part=["code"]), second_mode=lambda e: pick(e["t"], part=["text"]))
    found = judged(both, models(3, code=0.5, text=-0.5))
    assert found.claims.iloc[0][["holds", "second_mode"]].to_list() == ["yes", "no"]
    assert found.parts["mode"].to_list() == ["", "second"]


def test_a_claim_must_be_well_said() -> None:
    for wrong, told in [
        ({"unit": "parsec"}, "unit must be one of AFL"),
        ({"apart": "whim"}, "apart must start with one of"),
        ({"sentence": "word " * 26}, "more than 25 words"),
        ({"place": ""}, "place and predicate must be said"),
    ]:
        with pytest.raises(SalrunError, match=told):
            register(stated(paper="test_paper", **wrong))
    assert claims_of("test_paper") == []


def test_claims_keep_their_order_and_are_not_defined_twice() -> None:
    options = {"place": "p", "predicate": "d", "reads": "t"}
    for name in ("Z2", "Z1"):
        claim(name, "test_order", "it is so", **options)(lambda e: e["t"])
    assert [c.id for c in claims_of("test_order")] == ["Z2", "Z1"]
    elsewhere = stated(id="Z1", paper="test_order", measure=NotTestable)
    with pytest.raises(SalrunError, match="is defined twice"):
        register(elsewhere)


# -- tables and words --------------------------------------------------------------------------------------------------


def test_the_tables_have_their_columns() -> None:
    found = judge([stated(), stated(id="B", quantifier="some")], models(3, a=0.5, b=-0.5))
    assert list(found.claims.columns) == CLAIMS and list(found.claims["id"]) == ["A", "B"]
    assert list(found.parts.columns) == PARTS and len(found.parts) == 4
    with pytest.raises(SalrunError, match="at least one model"):
        judge([stated()], {})


def test_parts_are_named_after_their_columns() -> None:
    table = pd.DataFrame({("a", "b"): [1.0], ("c", ""): [2.0]})
    assert [part_name(c) for c in table] == ["a b", "c"]
    assert list(parts(x=table, y=table["a", "b"])) == ["x a b", "x c", "y"]


def test_headline_of_one_model_of_models_and_of_a_network() -> None:
    claims = [stated(), stated(id="B", bound=0.1), stated(id="C", measure=lambda e: e["gone"])]
    claims += [stated(id="D", apart="ours")]
    assert headline(judge(claims, {0: evidence(a=(1.0, 0.1))}).claims) == (
        "on this model: 1 hold, 1 fail, 0 uncertain of 2 statements it can speak about; "
        "it takes 3 models to speak about the paper"
    )
    assert headline(judge(claims, models(4, a=0.5)).claims) == (
        "of 3 counted statements 1 hold, 1 fail, 0 uncertain, 1 not tested; 4 models; "
        "at most 0.1 false decisions of either kind expected"
    )
    mixed = models(3, a=0.5) | {9: evidence(images=9, a=(0.5, 0.1), b=(0.5, 0.1))}
    both = [
        stated(measure=lambda e: pick(e["t"], part=["a"])),
        stated(id="B", measure=lambda e: pick(e["t"], part="b")),
    ]
    assert headline(judge(both, mixed).claims).startswith(
        "of 2 counted statements 1 hold, 0 fail, 0 uncertain, 0 not tested; "
        "1 more are about too few models, or images seen before: 1 hold, 0 fail, 0 uncertain; 4 models"
    )
    network = [replace(c, population="images") for c in claims]
    assert headline(judge(network, {0: evidence(a=(1.0, 0.1))}).claims).startswith("on this network: 1 hold, 1 fail")
    fresh = {1: replace(evidence(a=(1.0, 0.1)), fresh=True)}
    assert "2 of them about one pretrained network, over its images" in headline(judge(network, fresh).claims)
    assert headline(judge(claims[2:3], models(3, a=0.5)).claims).startswith("none of the 1 counted statements")


def test_readers_of_verdicts_know_how_many_models_they_take() -> None:
    assert ENOUGH == conjunction.ENOUGH
