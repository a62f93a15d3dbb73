"""`copies` of a model in `others`, and the variants of a metric that name them."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from salrun.config.check import check
from salrun.config.compose import compose_config
from salrun.config.copies import with_copies
from salrun.errors import SalrunError

RANDOMISED = "salrun.models.randomised.Randomised"
SIMILARITY = "salrun.metrics.randomisation.MapSimilarity"


def config(variants: dict[str, Any] | None, **others: dict[str, Any]) -> dict[str, Any]:
    similarity = {"_target_": SIMILARITY, "other": "random", "of": "model", "variants": variants}
    return {"others": others, "metrics": {"map_similarity": similarity}}


def random(copies: Any, **options: Any) -> dict[str, Any]:
    return {"_target_": RANDOMISED, "mode": "untrained", "copies": copies, **options}


def variants_of(given: dict[str, Any]) -> dict[str, Any]:
    return with_copies(given)["metrics"]["map_similarity"]["variants"]


def test_a_copy_is_a_model_with_a_draw_of_its_own() -> None:
    task = {"_target_": "salrun.models.recipe.OfTask", "dataset": {}, "recipe": random(2)}
    task["copies"] = task["recipe"].pop("copies")
    others = with_copies(config({}, before=random(1), random=random(3), digits=task))["others"]
    assert list(others) == ["before_0", "random_0", "random_1", "random_2", "digits_0", "digits_1"]
    assert [others[f"random_{i}"] for i in range(3)] == [
        {"_target_": RANDOMISED, "mode": "untrained", "draw": i} for i in range(3)
    ]
    assert [others[f"digits_{i}"]["recipe"]["draw"] for i in range(2)] == [0, 1]
    assert others["digits_0"].keys() == {"_target_", "dataset", "recipe"}


def test_a_variant_is_repeated_for_the_copies_it_names() -> None:
    given = {
        "alone": {"other": "digits"},
        "each": {"other": "random"},
        "ring": {"of": "random", "other": "random_next"},
    }
    assert variants_of(config(given, random=random(3), digits=random(1) | {"copies": 1})) == {
        "alone_0": {"other": "digits_0"},
        **{f"each_{i}": {"other": f"random_{i}"} for i in range(3)},
        **{f"ring_{i}": {"of": f"random_{i}", "other": f"random_{(i + 1) % 3}"} for i in range(3)},
    }


def test_names_are_exchanged_however_deep_and_other_text_is_left_alone() -> None:
    causal = {
        "_target_": "salrun.metrics.causal.CausalQuantity",
        "variants": {"nothing": {"of": "random", "tasks": {"random": 1.0}, "untrained": {"random": "random_next"}}},
    }
    ties = {"_target_": "salrun.metrics.insertion.Insertion", "ties": "random"}
    metrics = {"causal_quantity": causal, "insertion": ties}
    made = with_copies({"others": {"random": random(2)}, "metrics": metrics})["metrics"]
    last = {"of": "random_1", "tasks": {"random_1": 1.0}, "untrained": {"random_1": "random_0"}}
    assert made["causal_quantity"]["variants"]["nothing_1"] == last
    assert made["insertion"] == ties


def test_a_metric_without_variants_gets_one_for_each_copy() -> None:
    assert variants_of(config(None, random=random(2))) == {"0": {"other": "random_0"}, "1": {"other": "random_1"}}


def test_a_lone_copy_has_no_neighbour_and_no_copies_change_nothing() -> None:
    given = {"each": {"other": "random"}, "ring": {"of": "random", "other": "random_next"}}
    assert list(variants_of(config(given, random=random(1)))) == ["each_0"]
    plain = config(given, random={"_target_": RANDOMISED})
    assert with_copies(plain) is plain


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (config({}, random=random(0)), "others.random.copies must be between 1 and 10000, got 0"),
        (config({}, random=random("many")), "others.random.copies must be int, got 'many'"),
        (config({}, random=random(2, draw=5)), "others.random: copies numbers the draws; take 'draw' out"),
        (config({}, random=random(2), random_1=random(1)), "others.random.copies: 'random_1' is another model's name"),
        (
            config({}, random={"_target_": "salrun.models.recipe.Recipe", "copies": 2}),
            "copies of salrun.models.recipe.Recipe would be equal, it takes no 'draw'",
        ),
        (
            config({"both": {"of": "random", "other": "top"}}, random=random(2), top=random(3)),
            "metrics.map_similarity.variants.both: its models have different numbers of copies (random 2, top 3)",
        ),
    ],
)
def test_a_mistake_is_one_sentence(given: dict[str, Any], told: str) -> None:
    with pytest.raises(SalrunError, match=re.escape(told)):
        with_copies(given)


def test_the_command_line_sets_their_number_and_a_misspelt_key_is_told() -> None:
    words = ["+experiment=yona_mnist_shapes", "scale=smoke"]
    assert (
        "random_4"
        in check(compose_config([*words, "others.random.copies=5", "others.digits_random.copies=5"]))["others"]
    )
    with pytest.raises(SalrunError, match=r"unknown key 'others.random.copis'; did you mean copies"):
        check(compose_config([*words, "+others.random.copis=5"]))


@pytest.mark.parametrize(
    ("experiment", "scale", "models"),
    [
        ("yona_mnist_halves", "smoke", 16),
        ("yona_mnist_halves", "laptop", 2 + 2 * 20 + 2 * 4 * 10),
        ("yona_mnist_shapes", "paper", 2 + 2 * 20),
        ("yona_tinyimagenet_pairs", "paper", 2 + 3),
    ],
)
def test_every_untrained_network_stands_once_on_each_side(experiment: str, scale: str, models: int) -> None:
    made = check(compose_config([f"+experiment={experiment}", f"scale={scale}"]))
    assert 1 + len(made["others"]) == models
    plain = made["metrics"]["map_similarity"]
    pairs = [({**plain, **v}["of"], {**plain, **v}["other"]) for v in plain["variants"].values()]
    assert len(set(pairs)) == len(pairs)
    copies = [name for name, spec in made["others"].items() if re.fullmatch(r"(digits_)?random_\d+", name) and spec]
    assert len(copies) in (3, 6, 40)
    between = [(a, b) for a, b in pairs if a in copies]
    assert Counter(a for a, _ in between) == Counter(b for _, b in between) == Counter(copies)
    assert Counter(b for a, b in pairs if a not in copies and b in copies) == Counter(copies)
