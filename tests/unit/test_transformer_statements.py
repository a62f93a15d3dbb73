"""What docs/transformers.md says of its runs: means over buckets, the lowest of them, and the answers."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from salrun.papers.hypotheses import Statement, answer
from salrun.papers.smerf.terms import SETTINGS
from salrun.papers.transformers import (
    ATTENTION,
    PHOTOGRAPHS,
    STATEMENTS,
    by_model,
    by_setting,
    judged,
    on_mosaics,
    standings,
)

LEVELS = {"oracle": 0.8, "all_lit": 0.6, "random": 0.05, "edge": 0.05, "grad_cam": 0.2, "lrp_epsilon": 0.5}
LEVELS |= {"input_x_gradient": 0.7, "integrated_gradients": 0.7, "deeplift_rescale": 0.7, "gradient": 0.3}
LEVELS |= dict.fromkeys(ATTENTION, 0.3) | {"attention_rollout": 0.1, "attn_lrp": 0.75}


def run(setting: str, levels: dict[str, float], seed: int = 0) -> Any:
    """Two buckets, .1 above and below a method's level, eight images each."""
    rows = [
        {"metric": metric, "mode": mode, "method": method, "group": bucket, "value": level + shift + 0.01 * (i % 2)}
        for metric in ("pafl", "piou")
        for mode in ("paper", "code")
        for method, level in levels.items()
        for bucket, shift in (("1", -0.1), ("2", 0.1))
        for i in range(8)
    ]
    cells = pd.DataFrame({"dataset.reasoning": [setting], "model": ["smerf_vit"], "seed": [seed]})
    return SimpleNamespace(scores=pd.DataFrame(rows), cells=cells)


def test_a_setting_counts_its_buckets_alike() -> None:
    table = pd.DataFrame({"setting": "s", "model": "m", "metric": "pafl", "method": "a", "group": ["1", "2"]})
    table = table.assign(mean=[0.2, 0.6], error=[0.03, 0.04], images=[4, 40])
    (row,) = standings(table).to_dict("records")
    assert (row["mean"], row["lowest"], row["lowest_bucket"], row["images"]) == (0.4, 0.2, "1", 44)
    assert row["error"] == pytest.approx(np.hypot(0.03, 0.04) / 2)


def test_every_statement_is_answered() -> None:
    runs = [run(setting, LEVELS) for setting in SETTINGS]
    own, said = judged(runs, runs)
    told = said.set_index("id")["answer"]
    assert list(said["id"]) == [statement.id for statement in STATEMENTS if PHOTOGRAPHS not in statement.data]
    assert told.drop("V4").to_dict() == {
        **dict.fromkeys(("V1", "V2", "V5", "V6", "V8"), "yes"),
        **dict.fromkeys(("V3", "V7"), "no"),  # AttnLRP is above all_lit, and nowhere below .5
    }
    assert told["V4"] == "yes (two models)" and set(said["k"]) == {2, 5, 7}
    assert by_setting(own, "pafl").iloc[0].to_dict()["method"] == "AttnLRP"
    assert [*by_setting(own, "pafl").index[-4:]] == ["oracle", "all_lit", "edge", "random"]


def test_over_seeds_the_settings_of_a_seed_are_one_model() -> None:
    """all_lit - rollout is .5 on average over settings in every seed, but not in every setting; V8 needs CNNs."""
    runs = [
        run(setting, LEVELS | {"attention_rollout": 0.1 + 0.4 * (setting == "simple_fr") + 0.01 * seed}, seed)
        for seed in range(3)
        for setting in SETTINGS
    ]
    said = judged(runs, [])[1].set_index("id")
    assert said["answer"]["V1"] == "yes" and said["k"]["V1"] == 7
    mean, low, high = map(float, re.findall(r"[+-][.\d]+", said["over seeds"]["V1"]))
    expected = 0.6 - 0.11 - 0.4 / 7
    assert said["over seeds"]["V1"].startswith("yes, all_lit - attention_rollout")
    assert mean == pytest.approx(expected, abs=0.006)
    assert high - mean == pytest.approx(4.303 * 0.01 / np.sqrt(3), abs=0.006) and low < mean
    assert said["over seeds"]["V4"].startswith("yes") and said["answer"]["V4"] == "yes (two models)"
    assert said["over seeds"]["V8"] == "not tested"


def grid(model: str, levels: dict[str, float]) -> Any:
    """Forty mosaics, by turns .05 above and below a method's level."""
    rows = [
        {"metric": metric, "score": score, "method": method, "value": level + 0.05 * (-1) ** i}
        for metric, score in (("mass_share", ""), ("mass_share", "chance"), ("pointing_game", ""))
        for method, level in levels.items()
        for i in range(40)
    ]
    return SimpleNamespace(scores=pd.DataFrame(rows), cells=pd.DataFrame({"model": [model]}))


def test_mosaics_are_judged_by_their_images() -> None:
    levels = dict.fromkeys(ATTENTION, 0.4) | {"attention_rollout": 0.25, "relevance_cvpr": 0.45, "random": 0.25}
    levels |= {"deeplift_rescale": 0.6, "integrated_gradients": 0.5}
    settings = [run(setting, LEVELS) for setting in SETTINGS]
    mosaics = [grid("cifar10_vit", levels), grid("tomsett_cnn", {"deeplift_rescale": 0.1})]
    own, said = judged([*settings, *mosaics], [])
    assert set(own["setting"]) == set(SETTINGS)
    told = said.set_index("id")["answer"][["V9", "V10", "V11", "V12"]]
    assert told.tolist() == ["uncertain (one model)", *["yes (one model)"] * 3]
    table = by_model(on_mosaics(mosaics))
    assert table["method"].iloc[0] == "DL-R" and table["method"].iloc[-1] == "Random"
    assert table["cifar10_vit, mass_share"].iloc[0] == "0.60 ± 0.02"
    assert table["tomsett_cnn, mass_share"].iloc[:2].tolist() == ["0.10 ± 0.02", ""]


def test_what_was_not_run_is_not_tested() -> None:
    runs = [run(setting, {m: v for m, v in LEVELS.items() if m != "attn_lrp"}) for setting in SETTINGS]
    assert judged(runs, [])[1].set_index("id")["answer"][["V5", "V8"]].tolist() == ["not tested"] * 2


def part(*differences: float) -> Statement:
    return Statement("X", "says", "every", lambda tables: ((f"p{i}", d, 0.01) for i, d in enumerate(differences)))


def test_an_answer_is_a_partial_conjunction_over_models_or_images() -> None:
    assert answer(part(0.5, 0.5), [{}])["answer"] == "yes (one model)"
    assert answer(part(0.5, -0.5), [{}])["answer"] == "no (one model)"
    assert answer(part(0.5, 0.001), [{}])["answer"] == "uncertain (one model)"
    assert answer(part(0.5, 0.5), [{}] * 3)["answer"] == "yes"
    assert answer(part(float("nan")), [{}] * 3)["answer"] == "not tested"
    assert answer(part(0.5, -0.5), [{}])["deciding"].startswith("p1 -0.50")
