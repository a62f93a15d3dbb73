"""The smerf experiments as configs: rows, shorthands, readings."""

import contextlib
from dataclasses import asdict

import pytest

from salrun.config.check import check
from salrun.config.compose import compose_config
from salrun.config.parts import dataset_part, recipe_part
from salrun.errors import SalrunError
from salrun.models.checkpoint import read_card
from salrun.models.training import Training
from salrun.papers.smerf.terms import LABELS, SETTINGS
from salrun.pipeline.build import build
from salrun.pipeline.stages import tiles_of


@pytest.mark.parametrize("setting", SETTINGS)
def test_experiments_have_all_rows_and_the_shorthands(setting):
    config = check(compose_config([f"+experiment=smerf_{setting}", "scale=smoke"]))
    assert list(config["methods"]) == list(LABELS)
    assert list(config["metrics"]) == ["pafl", "safl", "pmafl", "smafl", "piou", "siou"]
    assert config["dataset"]["reasoning"]["name"] == setting
    assert config["model"]["name"] == f"smerf_{setting.split('_')[0]}"
    assert config["methods"]["deep_shap"]["target"] == "label"
    assert config["methods"]["deep_shap"]["n_references"] == 4
    code = check(compose_config([f"+experiment=smerf_{setting}", "reading=code", "background=noise", "training=pgd"]))
    assert (code["dataset"]["labels"], code["model"]["loss"]) == ("code", "keras_clipped")
    assert (code["dataset"]["background"], code["dataset"]["noise_max"], code["model"]["training"]) == (
        "noise",
        99,
        "pgd",
    )
    assert code["methods"]["integrated_gradients"]["path"] == "inn108"
    assert {code["methods"][m]["view"] for m in ("deconvnet", "guided_backprop")} == {"bk_bucket"}
    assert code["dataset"]["n_per_bucket"] == code["tile"] == 20
    few = check(compose_config([f"+experiment=smerf_{setting}", "reading=code", "scale=laptop"]))
    assert few["tile"] == 10  # whole buckets: their percentiles are taken


def test_each_choice_of_a_reading_can_be_made_alone():
    alone = check(compose_config(["+experiment=smerf_complex_cr2", "choices.labels=code", "choices.bk=bk_bucket"]))
    assert (alone["dataset"]["labels"], alone["model"]["loss"]) == ("code", "bce_logits")
    assert alone["methods"]["deconvnet"]["view"] == "bk_bucket"
    for wrong in ("mine", "null", "1", "codes", "[code]"):
        with pytest.raises(SalrunError, match="^reading must be one of recommended, paper, code, got"):
            check(compose_config(["+experiment=smerf_complex_cr2", f"reading={wrong}"]))
    config = check(
        compose_config(["+experiment=smerf_simple_nr", "reading=code", "dataset.labels=paper", "arch=alexnet"])
    )
    assert config["dataset"]["labels"] == "paper"
    assert config["dataset"]["train_per_bucket"] == 5000
    assert config["model"]["name"] == "smerf_alexnet"
    few = check(compose_config(["+experiment=smerf_complex_cr2", "methods=[smerf/deconvnet]", "model=smerf_simple"]))
    assert list(few["methods"]) == ["deconvnet"]
    assert few["model"]["name"] == "smerf_simple"  # a model given by name wins over arch
    with pytest.raises(SalrunError, match="unknown arch 'resnet'.*alexnet"):
        compose_config(["+experiment=smerf_complex_cr2", "arch=resnet"])


RUN_SCRIPT = {  # of the public code: rate, most epochs
    **{"simple_fr": (1e-4, 50), "simple_nr": (1e-5, 50), "complex_fr": (1e-5, 50)},
    **{"complex_cr1": (1e-5, 100), "complex_cr2": (1e-5, 100), "complex_cr3": (1e-5, 150), "complex_cr4": (1e-5, 150)},
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_codes_reading_trains_by_its_run_script(setting):
    words = [f"+experiment=smerf_{setting}", "reading=code"]
    rate, epochs = RUN_SCRIPT[setting]
    stops = {"stop_loss": 0.005, "dead_loss": 7.0, "restarts": 20}
    expected = Training(loss="keras_clipped", optimizer="adam", lr=rate, batch=128, epochs=epochs, **stops)
    recipe = recipe_part(check(compose_config([*words, "model.train=true"]))["model"])
    assert asdict(recipe.how()) == asdict(expected)
    assert recipe.gate["accuracy"] == (0.98 if setting.startswith("simple") else 0.95)
    ours = recipe_part(check(compose_config([*words, "choices.recipe=fast"]))["model"])
    assert (ours.how().optimizer, ours.how().schedule) == ("adamw", "one_cycle")


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_shipped_model_of_the_codes_reading_is_used_and_said_to_deviate(setting):
    config = check(compose_config([f"+experiment=smerf_{setting}", "reading=code"]))
    data, recipe = dataset_part(config["dataset"]), recipe_part(config["model"])
    shipped = recipe.shipped(recipe.identity(data, 0))
    assert shipped is not None and shipped.stem == f"smerf-{setting}-clipped"
    told = "training recipe 'fast', not the public code's (model.train=true model.recipe=code)"
    assert told in recipe._deviations(read_card(shipped), "shipped", data)
    assert recipe._deviations({"recipe": "code"}, "trained", data) == []


def test_deep_networks_and_robust_ones_have_the_codes_recipe_too():
    deep = ["+experiment=smerf_complex_cr4", "reading=code"]
    for arch in ("alexnet", "vgg16"):
        how = recipe_part(check(compose_config([*deep, f"arch={arch}"]))["model"]).how()
        assert (how.optimizer, how.lr, how.batch, how.epochs) == ("adam", 5e-3, 1024, 10)
    robust = recipe_part(check(compose_config([*deep, "training=pgd"]))["model"]).how()
    assert robust.pgd == {"eps": 0.3, "step": 0.1, "iterations": 10} and robust.batch == 256


@pytest.mark.parametrize(("tile", "wanted"), [(2, None), (4, "2"), (1, "2")])
def test_percentiles_of_a_bucket_need_tiles_that_are_buckets(tile, wanted):
    changes = ["dataset.n_per_bucket=2", f"tile={tile}", "methods=[smerf/deconvnet]", "reading=code"]
    cell = build(check(compose_config(["+experiment=smerf_simple_fr", *changes])))
    with pytest.raises(SalrunError, match=f"whole group: set tile={wanted}") if wanted else contextlib.nullcontext():
        tiles_of(cell)
