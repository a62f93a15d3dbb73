"""The room of Yona & Greenfeld 2021: made-up scores with a known truth, made-up maps, and whole runs on tiny data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import load_file, save_file
from scipy.stats import spearmanr
from torch import nn

from salrun.build import build, check
from salrun.cell import obtain_models, open_stages, run
from salrun.composing import compose_config
from salrun.errors import SalrunError
from salrun.metrics.causal import CausalQuantity
from salrun.metrics.mass import MassShare
from salrun.models.classifier import Classifier
from salrun.models.of_task import OfTask
from salrun.models.randomised import Randomised
from salrun.models.recipe import Recipe
from salrun.models.small import MnistCNN
from salrun.papers.claims import claims_of
from salrun.papers.yona import claims, figures, tables
from salrun.rng import Draws
from salrun.stages import tiles
from salrun.store import Store
from salrun.types import DEGENERATE_MAP, NO_MASK, OK, PRIMARY, SECONDARY, Scene
from tests.fake_data import write_mnist

HALVES, SHAPES, PAIRS, SANITY = tables.HALVES, tables.SHAPES, tables.PAIRS, tables.SANITY
METHODS = (tables.VBP, tables.GBP)
IMAGES = 60


# -- made-up scores ----------------------------------------------------------------------------------------------------


class Made:
    """Scores with chosen means: noise is the same for every quantity of an image, so differences are exact."""

    def __init__(self, experiment: str, own: str, seed: int = 0) -> None:
        self.experiment, self.own, self.seed = experiment, own, seed
        self.noise = np.random.default_rng(1).normal(0, 0.02, IMAGES)
        self.noise -= self.noise.mean()
        self.frames: list[pd.DataFrame] = []

    def add(self, model: str, method: str, metric: str, variant: str, mean: float) -> None:
        ids = [f"test-{i:05d}" for i in range(IMAGES)]
        frame = pd.DataFrame({"image_id": ids, "value": mean + self.noise})
        about = {
            "model": model or self.own,
            "method": method,
            "metric": metric,
            "variant": f"{variant}:sum".lstrip(":"),
        }
        self.frames.append(frame.assign(**about))

    def alike(self, model: str, method: str, other: str, mean: float) -> None:
        for measure in (*tables.SIMILARITIES, "relative_change"):
            self.add(model, method, "map_similarity", f"{other}/{measure}", mean)

    def mass(self, model: str, method: str, region: str, mean: float, chance: float = 0.1) -> None:
        self.add(model, method, "mass_share", region, mean)
        self.add(model, method, "mass_share", f"{region}/chance".lstrip("/"), chance)

    def scores(self) -> pd.DataFrame:
        table = pd.concat(self.frames, ignore_index=True)
        keys = {"experiment": self.experiment, "dataset": "made up", "seed": self.seed, "scale": "smoke", "group": "g"}
        return table.assign(**keys, label=0, prediction=0, target=0, flag="ok")


def halves(on_t: float = 0.9, aware: float = 0.5, between: float = 0.9, mass: float = 0.8) -> pd.DataFrame:
    made = Made(HALVES, "mnist_cnn")
    for method in METHODS:
        for k in range(3):
            made.alike("", method, f"random_{k}", aware + 0.01 * (k - 1))
            made.alike("digits", method, f"digits_random_{k}", on_t + 0.01 * (k - 1))
            made.mass(f"random_{k}", method, "", 0.5, 0.5)
            made.mass(f"digits_random_{k}", method, "", 0.5, 0.5)
        for k in (1, 2):
            made.alike("random_0", method, f"between_random_{k}", between)
            made.alike("digits_random_0", method, f"digits_between_random_{k}", between)
            made.add("", method, "causal_quantity", f"trained_{k}/unit", 0.8)
            made.add(f"random_{k}", method, "causal_quantity", f"nothing_{k}/unit", 0.3)
        for k in range(1, 5):
            made.alike("", method, f"top_{k}", 0.9 - 0.1 * k)
            made.alike("digits", method, f"digits_top_{k}", 0.95)
        made.mass("", method, "", mass, 0.5)
        made.mass("digits", method, "", 0.55, 0.5)
    return made.scores()


def shapes(vbp: float = 0.6, gbp: float = 0.6) -> pd.DataFrame:
    made = Made(SHAPES, "mnist_cnn")
    for method, own in zip(METHODS, (vbp, gbp), strict=True):
        for model, shape, digit in (
            ("", own, 0.1),
            ("digits", 0.1, own),
            ("random_0", 0.1, 0.2),
            ("digits_random_0", 0.1, 0.2),
        ):
            made.mass(model, method, "primary", shape)
            made.mass(model, method, "secondary", digit)
    return made.scores()


def pairs(finetuned: float = 0.8, random: float = 0.5) -> pd.DataFrame:
    made = Made(PAIRS, "resnet50_pairs")
    for method in METHODS:
        made.mass("", method, "", finetuned, 0.5)
        made.mass("pretrained", method, "", 0.55, 0.5)
        for k in range(3):
            made.mass(f"random_{k}", method, "", random, 0.5)
    return made.scores()


def verdicts(*scores: pd.DataFrame) -> pd.DataFrame:
    return claims.evaluate(pd.concat(scores, ignore_index=True), draws=300).set_index("id")


def test_the_five_claims_are_there_and_shown_in_pictures_only() -> None:
    known = {c.id: c for c in claims_of("yona")}
    assert set(known) == {"Y1", "Y1a", "Y2", "Y2a", "Y2b", "Y3", "Y4", "Y5"}
    assert all(c.text for c in known.values())


def test_a_run_as_the_paper_has_it_reproduces_every_claim() -> None:
    found = verdicts(halves(), shapes(), pairs())
    assert (found["verdict"] == "reproduced").all(), found
    assert found.loc["Y1", "measured"] == pytest.approx(0.2)
    assert found.loc["Y1a", "measured"] == pytest.approx(0.1)
    assert found.loc["Y2", "measured"] == pytest.approx(0.3)
    assert found.loc["Y2b", "measured"] == pytest.approx(0.2)
    assert found.loc["Y3", "measured"] == pytest.approx(0.4)  # the digit model's gain over an untrained one
    assert found.loc["Y4", "measured"] == pytest.approx(0.05)  # how near one half the random model is
    assert found.loc["Y5", "measured"] == pytest.approx(0.05)
    assert "60 images of one model" in found.loc["Y1", "reason"]


@pytest.mark.parametrize(
    ("broken", "ids"),
    [
        ([halves(on_t=0.6, aware=0.2, between=0.6), shapes(), pairs()], {"Y1"}),
        ([halves(between=1.05), shapes(), pairs()], {"Y1a"}),
        ([halves(aware=0.85), shapes(), pairs()], {"Y2", "Y2a"}),
        ([halves(mass=0.55), shapes(), pairs()], {"Y2b"}),
        ([halves(), shapes(gbp=0.1), pairs()], {"Y3", "Y5"}),
        ([halves(), shapes(vbp=0.1), pairs()], {"Y3"}),
        ([halves(), shapes(), pairs(random=0.6)], {"Y4"}),
        ([halves(), shapes(), pairs(finetuned=0.5)], {"Y4"}),
        ([halves(), shapes(gbp=0.5), pairs()], {"Y5"}),
    ],
)
def test_what_is_broken_is_found(broken: list[pd.DataFrame], ids: set[str]) -> None:
    found = verdicts(*broken)
    assert set(found.index[found["verdict"] == "not reproduced"]) == ids, found[["measured", "verdict", "reason"]]


def test_a_part_of_the_experiments_tests_its_part_of_the_claims() -> None:
    found = verdicts(shapes())
    assert found["verdict"].to_dict() == {
        **dict.fromkeys(("Y1", "Y1a", "Y2", "Y2a", "Y2b", "Y4"), "not testable here"),
        **dict.fromkeys(("Y3", "Y5"), "reproduced"),
    }


def test_the_argument_is_one_table() -> None:
    (e,) = tables.evidence(halves(), draws=200).values()
    table = tables.argument_table(e).set_index(["method", "measure"])
    assert len(table) == 2 * len(tables.SIMILARITIES)
    row = table.loc[(tables.GBP, "spearman")]
    assert (row["test_t"], row["test_t~"]) == ("fails", "passes")
    assert row["value_t"] == pytest.approx(0.9)
    assert row["value_t~"] == pytest.approx(0.5)
    assert row["value_t_minus_t~"] == pytest.approx(0.4)
    assert row["between_untrained_t"] == pytest.approx(0.9)
    assert [row[f"last_layers_{k}_t~"] for k in range(1, 5)] == pytest.approx([0.8, 0.7, 0.6, 0.5])
    assert [row["mass_halves"], row["mass_digits"], row["mass_random"], row["mass_chance"]] == pytest.approx(
        [0.8, 0.55, 0.5, 0.5]
    )
    assert row["ci_low_t"] < row["value_t"] < row["ci_high_t"]
    assert [row["value_moved_t"], row["value_moved_t~"]] == pytest.approx([0.05, 0.3])
    assert (row["test_moved_t"], row["test_moved_t~"]) == ("fails", "passes")


def test_means_say_how_far_the_untrained_copies_are_apart() -> None:
    scores = halves()
    (e,) = tables.evidence(scores, draws=50).values()
    means = tables.means_table(scores, e, 0).set_index(tables.LEVELS)
    row = means.loc[(HALVES, "spearman", tables.GBP, "halves", "random")]
    assert (row["copies"], row["images"]) == (3, IMAGES)
    assert [row["lowest_copy"], row["highest_copy"]] == pytest.approx([0.49, 0.51])
    causal = means.loc[(HALVES, "lambda_unit", tables.GBP, "all tasks")]
    assert causal["value"].round(6).to_dict() == {"nothing": 0.3, "trained": 0.8}


def test_missing_scores_are_left_out_not_counted() -> None:
    scores = shapes()
    mass = (scores["metric"] == "mass_share") & (scores["image_id"] < "test-00030")
    expected = scores[~mass & (scores["model"] == "mnist_cnn") & (scores["variant"] == "primary:sum")]
    scores.loc[mass, "value"] = np.nan
    (e,) = tables.evidence(scores, draws=50).values()
    found = tables.mean_of(e, SHAPES, "mass", tables.GBP, "shapes", "primary").iloc[0]
    assert found == pytest.approx(expected[expected["method"] == tables.GBP]["value"].mean())
    table = tables.mass_table(tables.means_table(scores, e, 0))
    assert (table["images"] == 30).all()
    assert table["times_chance"].to_numpy() == pytest.approx((table["value"] / table["chance"]).to_numpy())


def test_seeds_and_strange_tables() -> None:
    second = halves(on_t=0.8).assign(seed=1)
    found = tables.evidence(pd.concat([halves(), second]), draws=20)
    assert list(found) == [0, 1]
    assert tables.mean_of(found[1], HALVES, "spearman", tables.GBP, "digits", "random").iloc[0] == pytest.approx(0.8)
    with pytest.raises(SalrunError, match="hold none of yona_mnist_halves"):
        tables.evidence(halves().assign(experiment="tomsett_cifar10"))
    with pytest.raises(SalrunError, match="one model and its others are expected, got mnist_cnn, another"):
        tables.evidence(pd.concat([halves(), halves().replace({"model": {"mnist_cnn": "another"}})]))
    again = halves()
    other_view = again.assign(variant=again["variant"].str.replace(":sum", ":max_abs"))
    with pytest.raises(SalrunError, match="one view at a time"):
        tables.evidence(pd.concat([again, other_view]))


def test_sanity_checks_sort_the_methods() -> None:
    made = Made(SANITY, "resnet18")
    truth = {"gradient": (0.2, 0.4), "edge": (1.0, 0.1), "unsure": (0.7, 0.1005)}
    for method, (alike, mass) in truth.items():
        for k in range(3):
            made.alike("", method, f"random_{k}", alike)
            made.mass(f"random_{k}", method, "", 0.1)
        made.alike("", method, "cascading_50", 0.9)
        made.alike("", method, "independent_100", 0.95)
        made.mass("", method, "", mass)
    scores = made.scores()
    found = claims.evaluate(scores, draws=200).set_index("id")
    assert found["verdict"].to_dict() == {
        "gradient/weights": "sensitive",
        "gradient/task": "sensitive",
        "edge/weights": "insensitive",
        "edge/task": "insensitive",
        "unsure/weights": "uncertain",
        "unsure/task": "sensitive",  # the noise is the same with both models: a paired difference is exact
    }
    assert "0.20 [0." in found.loc["gradient/weights", "statement"]
    assert "by training +0.30 [+0.30, +0.30]" in found.loc["gradient/task", "statement"]
    (e,) = tables.evidence(scores, draws=50).values()
    table = tables.sensitivity_table(e).set_index(["method", "test"])
    assert set(table.loc["edge"].index) == {"weights", "cascading_50", "independent_100", "task"}
    assert table.loc[("gradient", "cascading_50"), "verdict"] == "insensitive"


# -- parts -------------------------------------------------------------------------------------------------------------


def scene(
    maps: dict[str, torch.Tensor], masks: dict[str, torch.Tensor] | None = None, roles: dict | None = None
) -> Scene:
    n = len(next(iter(maps.values()))) if maps else 3
    y = torch.zeros(n, dtype=torch.int64)
    rng = Draws.of(0, [str(i) for i in range(n)])
    return Scene(
        Classifier(nn.Flatten()),
        torch.zeros(n, 1, 4, 4),
        y,
        y,
        rng,
        masks or {},
        roles or {},
        other_map=maps.__getitem__,
    )


def test_mass_share_and_its_chance_level() -> None:
    plane = torch.zeros(4, 1, 4, 4)
    plane[:, 0, 0, :2] = torch.tensor([-3.0, 1.0])
    plane[1, 0, 3, 3] = 4.0
    plane[3] = 0.0
    left = torch.zeros(4, 4, 4, dtype=torch.bool)
    left[:, :, :1] = True
    right = torch.zeros(4, 4, 4, dtype=torch.bool)
    right[:, 3, 3] = True
    roles = {"left": torch.tensor([PRIMARY, PRIMARY, 0, PRIMARY]), "right": torch.tensor([SECONDARY] * 4)}
    given = scene({"x": plane}, {"left": left, "right": right}, roles)
    share = MassShare("primary")(plane, given)
    assert share[""].value[:2].tolist() == pytest.approx([3 / 4, 3 / 8])
    assert share["chance"].value[:2].tolist() == pytest.approx([1 / 4, 1 / 4])
    assert share[""].value[2:].isnan().all()
    assert share[""].flag.tolist() == [OK, OK, NO_MASK, DEGENERATE_MAP]
    assert MassShare("secondary")(plane, given)[""].value[:3].tolist() == pytest.approx([0, 1 / 2, 0])
    nothing = MassShare()(plane[:3], scene({}))
    assert nothing[""].flag.tolist() == nothing["chance"].flag.tolist() == [NO_MASK] * 3


def test_the_causal_quantity_by_hand() -> None:
    rng = np.random.default_rng(0)
    maps = {name: rng.normal(size=(3, 1, 4, 4)) for name in ("model", "digits", "r", "dr")}
    metric = CausalQuantity({"model": 0.25, "digits": 0.75}, {"model": "r", "digits": "dr"})
    assert metric.reads() == ("digits", "r", "dr")
    tensors = {k: torch.from_numpy(v) for k, v in maps.items()}
    found = metric(tensors["model"], scene({k: v for k, v in tensors.items() if k != "model"}))

    def by_hand(m: dict[str, np.ndarray]) -> list[float]:
        change = 0.25 * (m["model"] - m["r"]) + 0.75 * (m["digits"] - m["dr"])
        length = lambda v: np.sqrt((v**2).sum(axis=(1, 2, 3)))
        return list(length(change) / (0.25 * length(m["model"]) + 0.75 * length(m["digits"])))

    assert found["raw"].value.tolist() == pytest.approx(by_hand(maps))
    unit = {k: v / np.sqrt((v**2).sum(axis=(1, 2, 3), keepdims=True)) for k, v in maps.items()}
    assert found["unit"].value.tolist() == pytest.approx(by_hand(unit))
    same = {"r": tensors["model"] * 2}
    alone = CausalQuantity({"model": 1.0}, {"model": "r"})(tensors["model"], scene(same))
    assert alone["unit"].value.tolist() == pytest.approx([0, 0, 0], abs=1e-12)
    assert alone["raw"].value.tolist() == pytest.approx([1, 1, 1])


def test_the_causal_quantity_refuses_half_a_specification() -> None:
    with pytest.raises(SalrunError, match="name a model for each of the tasks"):
        CausalQuantity({"model": 0.5, "digits": 0.5}, {"model": "random"})
    with pytest.raises(SalrunError, match="add up to 1"):
        CausalQuantity({"model": 0.5}, {"model": "random"})


class TinyData:
    """Enough of a data set to verify a network on."""

    name = "tiny"
    shape = (1, 28, 28)
    verification_split = "test"

    def __init__(self, classes: int = 3) -> None:
        self.count = classes
        self.classes = tuple(map(str, range(classes)))

    def ids(self, split: str) -> list[str]:
        return [f"{split}-{i}" for i in range(12)]

    def images(self, ids: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((len(ids), *self.shape), 100, dtype=torch.uint8), torch.arange(len(ids)) % self.count

    def groups_of(self, ids: list[str]) -> list[str]:
        return ["g"] * len(ids)

    def identity(self) -> dict:
        return {"tiny": self.count}

    fingerprint = identity


def recipe(classes: int = 3) -> Recipe:
    how = {"fast": {"loss": "cross_entropy", "epochs": 1, "batch": 4}}
    return Recipe("mnist_cnn", lambda: MnistCNN(classes), how, accept_unverified=True, gate={"accuracy": 0.99})


def weights(found) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in found.classifier.module.state_dict().items()}


def changed(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> set[str]:
    return {name.partition(".")[0] for name in a if not torch.equal(a[name], b[name])}


def test_randomised_models(tmp_path: Path) -> None:
    store, cpu = Store(tmp_path), torch.device("cpu")
    obtain = lambda part, seed=0, data=TinyData(): part.obtain(data, seed, store, cpu)
    parent = recipe()
    trained = weights(obtain(parent))
    every = {"conv1", "conv2", "dense1", "dense2"}

    def drawn(**options: object) -> set[str]:
        return changed(trained, weights(obtain(Randomised(parent, **options))))

    assert drawn(mode="all") == every
    assert drawn(mode="cascading", top=1) == {"dense2"}
    assert drawn(mode="cascading", top=3) == every - {"conv1"}
    assert drawn(mode="cascading", share=0.3) == {"dense1", "dense2"}  # 1.2 layers, rounded up
    assert drawn(mode="independent", share=0.75) == {"conv2"}
    assert drawn(mode="independent", top=4) == {"conv1"}

    first, second = (obtain(Randomised(parent, draw=k)) for k in (0, 1))
    assert changed(weights(first), weights(second)) == every
    assert first.classifier.fingerprint != second.classifier.fingerprint
    assert changed(weights(first), weights(obtain(Randomised(recipe(), draw=0)))) == set()
    assert changed(weights(first), weights(obtain(Randomised(parent), seed=1))) == every
    ten = weights(obtain(Randomised(recipe(10))))
    assert all(torch.equal(ten[k], v) for k, v in weights(first).items() if "dense2" not in k)  # one trunk, two heads
    assert first.source == "random"
    assert first.verification.gate == {}
    assert not any(p.requires_grad for p in first.classifier.parameters())

    with pytest.raises(SalrunError, match=r"has 4 layers with parameters, got top=5"):
        obtain(Randomised(parent, mode="cascading", top=5))
    with pytest.raises(SalrunError, match="mode=cascading takes either top or share"):
        Randomised(parent, mode="cascading")
    with pytest.raises(SalrunError, match="mode=all takes neither"):
        Randomised(parent, mode="all", top=1)
    with pytest.raises(SalrunError, match="has no untrained form"):
        obtain(Randomised(OfTask(parent, TinyData())))


def test_a_model_of_another_task_has_its_own_data(tmp_path: Path) -> None:
    seen = []

    class Spy:
        def obtain(self, data, seed, store, device):
            seen.append((data, seed))

    own = TinyData(10)
    OfTask(Spy(), own).obtain(TinyData(3), 4, Store(tmp_path), torch.device("cpu"))
    assert seen == [(own, 4)]


# -- whole runs on tiny data -------------------------------------------------------------------------------------------


def words(root: Path, experiment: str) -> list[str]:
    tiny = ["verify=false", "validation=10"]
    quick = ["accept_unverified=true", "recipes.fast.epochs=1"]
    chosen = [f"dataset.{w}" for w in tiny] + [f"model.{w}" for w in quick]
    if experiment != SANITY:
        chosen += [f"others.digits.dataset.{w}" for w in tiny] + [f"others.digits.recipe.{w}" for w in quick]
    return [
        f"+experiment={experiment}",
        "scale=smoke",
        "device=cpu",
        f"data_root={root}",
        f"cache_dir={root}/store",
        *chosen,
    ]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("yona")
    write_mnist(folder)
    return folder


@pytest.fixture(scope="module")
def halves_run(root: Path) -> Path:
    config = check(compose_config([*words(root, HALVES), "report=false"]))
    return run(config, root / "outputs" / HALVES / "1")


def test_a_run_of_halves_makes_everything(halves_run: Path) -> None:
    for name in ("similarity", "mass", "causal", "effects", "argument"):
        assert len(pd.read_csv(halves_run / "tables" / f"yona_{name}.csv")), name
    for name in ("figure1", "effects", "cascade_halves"):
        assert (halves_run / "figures" / f"yona_{name}.png").stat().st_size > 5_000
    found = pd.read_csv(halves_run / "claims.csv").set_index("id")["verdict"]
    assert (found[["Y1", "Y1a", "Y2", "Y2a"]] != "not testable here").all()
    scores = pd.read_parquet(halves_run / "tables" / "scores.parquet")
    assert scores["model"].nunique() == 16
    assert scores["image_id"].nunique() == 4
    assert set(scores["group"]) == {"intact"}
    assert set(scores.loc[scores["metric"] == "map_similarity", "model"]) == {
        "mnist_cnn",
        "digits",
        "random_0",
        "digits_random_0",
    }
    models = pd.read_csv(halves_run / "tables" / "model.csv")
    assert models.loc[models["model"].str.contains("random|top"), "verified"].isna().all()


def test_similarity_recomputed_from_the_kept_maps(halves_run: Path) -> None:
    """Each model's map is of its own predicted class: plain scipy on the stored maps gives the table."""
    scores = pd.read_parquet(halves_run / "tables" / "scores.parquet")
    ids = json.loads((halves_run / "maps" / "index.json").read_text())["image_id"]
    cases = {("mnist_cnn", "random_1"): "random_1", ("digits", "digits_random_2"): "digits_random_2"}
    for (model, other), variant in cases.items():
        own = "" if model == "mnist_cnn" else model
        a, b = (load_file(halves_run / "maps" / m / "guided_backprop.safetensors")["plane"] for m in (own, other))
        rows = scores[(scores["model"] == model) & (scores["method"] == "guided_backprop")]
        known = rows[rows["variant"] == f"{variant}/spearman:sum"].set_index("image_id")["value"]
        for i, image in enumerate(ids):
            expected = spearmanr(np.abs(a[i]).ravel(), np.abs(b[i]).ravel()).statistic
            assert known[image] == pytest.approx(expected, abs=5e-3)  # kept maps are float16


def test_mass_recomputed_from_the_kept_maps(halves_run: Path) -> None:
    scores = pd.read_parquet(halves_run / "tables" / "scores.parquet")
    ids = json.loads((halves_run / "maps" / "index.json").read_text())["image_id"]
    plane = np.abs(load_file(halves_run / "maps" / "digits" / "gradient.safetensors")["plane"].astype(np.float64))
    rows = scores[(scores["model"] == "digits") & (scores["method"] == "gradient") & (scores["variant"] == "sum")]
    found = rows.set_index("image_id").loc[ids, "value"].to_numpy()
    assert found == pytest.approx(plane[:, 14:].sum((1, 2)) / plane.sum((1, 2)), abs=1e-3)


def test_each_model_is_explained_for_its_own_prediction(root: Path, halves_run: Path) -> None:
    """What a metric sees of another model is what that model's own rows are about, in whatever order they are asked."""
    cell = build(check(compose_config(words(root, HALVES))))
    cell.store = Store(root / "another store")  # nothing known: every map is made here
    cell.others = {name: cell.others[name] for name in ("random_0",)}
    cell.metrics = []
    stages = open_stages(cell, obtain_models(cell))
    (tile,) = tiles(cell.dataset.explained(), cell.tile)
    part = cell.methods[0]
    seen = stages["model"].scene(
        stages["model"].open(tile), part, part.view, stages["model"].map(stages["model"].open(tile), part)
    )[0]
    assert seen.other_map is not None
    through = seen.other_map("random_0")
    other = stages["random_0"]
    x = other.open(tile).batch.x.requires_grad_(True)
    logits = other.model.module(other.model.normalise(x))
    (gradient,) = torch.autograd.grad(logits.amax(1).sum(), x)
    torch.testing.assert_close(through, gradient * other.model.std, rtol=1e-4, atol=1e-6)
    stages["model"].close(tile)
    assert not other._maps, "the maps of the other models are forgotten with the tile"


def test_sanity_checks_of_any_model_and_data_without_masks(root: Path, capsys: pytest.CaptureFixture) -> None:
    chosen = [*words(root, SANITY), "dataset=mnist", "model=mnist_cnn", "methods=[gradient,edge]", "report=false"]
    out = run(check(compose_config(chosen)), root / "outputs" / SANITY / "1")
    said = capsys.readouterr().out
    assert "insensitive        edge/weights" in said
    table = pd.read_csv(out / "tables" / "yona_sensitivity.csv").set_index(["method", "test"])
    assert "task" not in table.index.get_level_values("test")
    assert (table.loc["edge", "value"] == 1).all()
    assert len(table.loc["gradient"]) == 1 + 3 + 4
    assert (out / "figures" / "yona_cascade_trained.png").is_file()


# -- figures -----------------------------------------------------------------------------------------------------------


def keep_maps(folder: Path, experiment: str, groups: list[str], models: list[str], size: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    n = len(groups)
    index = {"image_id": [f"i{k}" for k in range(n)], "group": groups, "label": [0] * n, "prediction": [0] * n}
    for model in models:
        (folder / "maps" / model).mkdir(parents=True, exist_ok=True)
        for method in METHODS:
            plane = rng.uniform(-1, 1, (n, *size)).astype(np.float16)
            save_file(
                {"plane": plane, "scale": np.arange(1, n + 1, dtype=np.float32)},
                folder / "maps" / model / f"{method}.safetensors",
            )
    save_file({"x": rng.integers(0, 256, (n, *size, 3), dtype=np.uint8)}, folder / "maps" / "images.safetensors")
    (folder / "maps" / "index.json").write_text(json.dumps(index))
    (folder / "run.json").write_text(json.dumps({"experiment": experiment}))


def test_figures_1_to_7_of_collected_runs(tmp_path: Path) -> None:
    models = {HALVES: ["", "random_0"], SHAPES: ["", "digits", "random_0"], PAIRS: ["", "pretrained", "random_0"]}
    groups = {HALVES: ["intact"] * 5, SHAPES: ["circle", "nothing", "circle", "rectangle"], PAIRS: ["acorn", "banana"]}
    for name, kept in models.items():
        keep_maps(tmp_path / name, name, groups[name], kept, (8, 16) if name == PAIRS else (8, 8))
    joined = tmp_path / "joined"
    (joined / "tables").mkdir(parents=True)
    pd.concat([halves(), shapes(), pairs()]).to_parquet(joined / "tables" / "scores.parquet")
    (joined / "run.json").write_text(json.dumps({"experiment": "yona", "runs": [str(tmp_path / n) for n in models]}))
    names = {path.name for path in figures.write_figures(joined, draws=50)}
    stems = {*(f"yona_figure{k}" for k in range(1, 8)), "yona_effects", "yona_cascade_halves"}
    assert names == {f"{stem}.{kind}" for stem in stems for kind in ("png", "svg", "csv")}
    drawn = pd.read_csv(joined / "figures" / "yona_figure2.csv")
    assert set(drawn["group"]) == {"circle", "rectangle"}
    assert len(drawn) == 3 * 3 * 2  # images with a shape, models, methods
    assert set(drawn["model"]) == {"shapes", "digits", "random_0"}
    assert set(pd.read_csv(joined / "figures" / "yona_figure7.csv")["method"]) == {tables.VBP}
    effects = pd.read_csv(joined / "figures" / "yona_effects.csv")
    assert len(effects) == len(tables.EFFECTS) * len(METHODS)


def test_examples_are_spread_over_the_groups() -> None:
    groups = pd.Series(["a", "a", "a", "b", "c"])
    assert figures.spread(groups, 3) == [0, 3, 4]
    assert figures.spread(groups.iloc[1:], 4) == [1, 2, 3, 4]
