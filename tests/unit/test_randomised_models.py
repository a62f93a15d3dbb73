"""Networks with random layers, and networks of another task."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from salrun.datasets.mnist_tasks import MnistHalves
from salrun.errors import SalrunError
from salrun.models.architectures import MnistCNN
from salrun.models.noised import Noised
from salrun.models.randomised import Randomised
from salrun.models.recipe import OfTask, Recipe
from salrun.pipeline.build import share_data
from salrun.store.entries import Store


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


def test_models_of_equal_tasks_share_their_data() -> None:
    halves, again, other = (MnistHalves("data", half=half) for half in ("bottom", "bottom", "top"))
    tasks = [OfTask(recipe(), data) for data in (halves, again, other)]
    share_data([recipe(), *tasks])
    assert [task.dataset is halves for task in tasks] == [True, True, False]
    assert tasks[2].dataset is other


def test_shaken_weights_are_the_trained_ones_times_normal_draws(tmp_path: Path) -> None:
    store, cpu, data, parent = Store(tmp_path), torch.device("cpu"), TinyData(), recipe()
    trained = weights(parent.obtain(data, 0, store, cpu))
    little, again, other, hard = (
        Noised(parent, sigma, draw).obtain(data, 0, store, cpu)
        for sigma, draw in ((0.001, 0), (0.001, 0), (0.001, 1), (2.0, 0))
    )
    before, after = (of["dense1.weight"] for of in (trained, weights(little)))
    factor = (after / before - 1)[before != 0]
    assert abs(factor.std().item() - 0.001) < 1e-4 and abs(factor.mean().item()) < 1e-4
    assert weights(hard)["dense1.weight"].std() > 1.8 * trained["dense1.weight"].std()
    assert little.classifier.fingerprint == again.classifier.fingerprint != other.classifier.fingerprint
    assert not little.verification.gate and Noised(parent, 2.0).facts()["sigma"] == 2.0
