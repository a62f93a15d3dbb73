"""A model recipe: how a network is built, where its weights come from, and what it must prove before it is explained.

Weights come, in this order, from: `weights` given by the user; a checkpoint shipped for exactly this data,
architecture, loss and seed; the store; training. A model that fails its gate stops the run unless `accept_unverified`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args

import torch
from torch import nn

from salrun import types
from salrun.errors import SalrunError, unknown
from salrun.models import checkpoint
from salrun.models.classifier import Classifier
from salrun.models.layers import Layers
from salrun.models.training import History, Loss, Training, accuracy, attack, fit, fresh, pgd_attack, train
from salrun.models.verification import Gate, Verification, check_fit, verify, verify_once
from salrun.ranges import Above, AtLeast, Between
from salrun.rng import Draws
from salrun.store.entries import Store, key_of
from salrun.store.sources import source_of_module
from salrun.types import Dataset

PAPERS = checkpoint.PAPERS
REPRODUCTIONS = {"paper": "the paper's", "code": "the public code's"}  # recipes that follow others
WEIGHTS_CODE = ("salrun.models.training", "salrun.models.classifier")  # what weights depend on, whatever the network


@dataclass
class Attack:
    """What a recipe's `pgd` may set: see `pgd_attack`; `ramp` is a share of the steps."""

    eps: Annotated[float, AtLeast(0)]
    step: Annotated[float, AtLeast(0)]
    iterations: Annotated[int, AtLeast(1)]
    ramp: Annotated[float, Between(0, 1)] = 0.0


@dataclass
class TrainingKeys(Training):
    """What each of a model's `recipes` may set, and in which range."""

    lr: Annotated[float, Above(0)] = 1e-4
    weight_decay: Annotated[float, AtLeast(0)] = 0.0
    clip_norm: Annotated[float, Above(0)] | None = None
    batch: Annotated[int, AtLeast(1)] = 128
    epochs: Annotated[int, AtLeast(1)] = 50
    epoch_images: Annotated[int, AtLeast(1)] | None = None
    patience: Annotated[int, AtLeast(1)] | None = None
    shift: Annotated[int, AtLeast(0)] = 4
    pgd: Annotated[dict[str, float], Attack] | None = None
    threshold: Annotated[float, Between(0, 1)] | None = None
    restarts: Annotated[int, AtLeast(1)] = 1


@dataclass
class Obtained:
    """A model ready to be explained, with everything a reader must know about it."""

    classifier: Classifier
    verification: Verification
    card: dict[str, Any]
    source: str  # shipped | trained | file | random | library
    deviations: list[str] = field(default_factory=list)


@dataclass
class Recipe:
    """A network of ours: `arch` builds it, `recipes[recipe]` trains it.

    `training`: "plain", "pgd" (adversarial training from the plain weights, by the recipe `<recipe>_pgd`) or "none"
    (random weights).
    """

    name: str
    arch: Callable[[], nn.Module]
    recipes: dict[str, Annotated[dict[str, Any], TrainingKeys]]
    recipe: str = "fast"
    loss: str | None = None  # instead of the recipe's own
    training: str = "plain"
    init: str = "torch"  # torch | glorot
    mean: list[float] = field(default_factory=lambda: [0.0])
    std: list[Annotated[float, Above(0)]] = field(default_factory=lambda: [1.0])
    layers: Annotated[dict[str, str], Layers] = field(default_factory=dict)
    gate: Annotated[dict[str, float], Gate] = field(default_factory=dict)
    paper: str | None = None  # whose checkpoints/ folder is searched
    weights: str | None = None  # a .safetensors file of the user's
    train: bool = False  # ignore shipped checkpoints
    accept_unverified: bool = False
    half: bool = True  # weights are rounded to float16, so that a shipped checkpoint is the model, exactly

    def __post_init__(self) -> None:
        if self.recipe not in self.recipes:
            raise unknown("recipe", self.recipe, self.recipes, "model.recipe")
        for what, value, allowed in (
            ("training", self.training, ("plain", "pgd", "none")),
            ("loss", self.loss, (None, *get_args(Loss))),
            ("init", self.init, ("torch", "glorot")),
        ):
            if value not in allowed:
                raise unknown(what, str(value), filter(None, allowed), f"model.{what}")
        if self.training == "pgd" and f"{self.recipe}_pgd" not in self.recipes:
            wanted = f"model.recipes.{self.recipe}_pgd"
            raise SalrunError(f"model '{self.name}' has no recipe for training=pgd; add {wanted}")

    @property
    def title(self) -> str:
        """The name with what tells this model from its main form: `smerf_simple_clipped`, `smerf_simple_pgd`."""
        clipped = "_clipped" if self.how().loss == "keras_clipped" else ""
        return self.name + clipped + {"plain": "", "pgd": "_pgd", "none": "_random"}[self.training]

    def facts(self) -> dict[str, Any]:
        """What a reader asks of this model, for tables/cells.csv."""
        starts_from = getattr(self.arch, "keywords", {}).get("weights")
        return {
            "name": self.name,
            "paper": self.paper,
            "recipe": self.recipe,
            "training": self.training,
            "loss": self.how().loss,
            "trained_in": self.how().precision,
            "starts_from": Path(starts_from).name if starts_from else None,
        }

    # -- parts -----------------------------------------------------------------------------------------------------

    def how(self) -> Training:
        """The recipe, with what it changes for the loss: `<recipe>_clipped` for keras_clipped."""
        spec = dict(self.recipes[self.recipe + ("_pgd" if self.training == "pgd" else "")])
        if self.loss is not None:
            spec["loss"] = self.loss
        if self.loss == "keras_clipped":
            spec |= self.recipes.get(f"{self.recipe}_clipped", {})
        return Training(**spec)

    def identity(self, data: Dataset, seed: int) -> dict[str, Any]:
        """What makes two trained models the same model: data, architecture, loss, kind of training, seed."""
        return {
            "model": self.name,
            "arch": repr(self.build(seed).module),
            "init": self.init,
            "mean": list(self.mean),
            "std": list(self.std),
            "loss": self.how().loss,
            "training": self.training,
            "data": data.identity() if self.training != "none" else None,
            "seed": seed,
        }

    def build(self, seed: int, start: int = 0) -> Classifier:
        """A freshly initialised network; `start` counts restarts."""
        module = fresh(self.arch, seed, start, self.init)
        return Classifier(module.eval(), self.mean, self.std, self.layers, self.title)

    # -- weights ---------------------------------------------------------------------------------------------------

    def obtain(self, data: Dataset, seed: int, store: Store, device: torch.device) -> Obtained:
        """The model, wherever its weights come from, verified."""
        model = self.build(seed).to(device)
        check_fit(model, data, self.name, device)
        if self.training == "none":
            return self._finish(model, data, store, device, {"identity": self.identity(data, seed)}, "random")
        if self.weights is not None:
            card = checkpoint.load_checkpoint(Path(self.weights), model.module)
            return self._finish(model, data, store, device, card, "file")
        identity = self.identity(data, seed)
        shipped = None if self.train else self.shipped(identity)
        if shipped is not None:
            card = checkpoint.load_checkpoint(shipped, model.module)
            return self._finish(model, data, store, device, card, "shipped")
        key = self._key(identity, data)
        path = store.path("model", key)
        if not path.exists():
            with store.lease("model", key, f"training {self.name}"):
                if not path.exists():
                    self._train_to(path, data, seed, device, identity, store)
        try:
            card = checkpoint.load_checkpoint(path, model.module)
        except SalrunError as fault:
            raise SalrunError(f"{fault}; remove {path} and run again to train anew") from fault
        return self._finish(model, data, store, device, card, "trained")

    def _key(self, identity: dict[str, Any], data: Dataset) -> str:
        """The key of the trained weights; of code it holds what they are made by, not what loads and verifies them."""
        made_by = [*WEIGHTS_CODE, getattr(self.arch, "func", self.arch).__module__, type(data).__module__]
        if type(self) is not Recipe:
            made_by.append(type(self).__module__)
        # A network's description does not tell what it starts from or which layers learn; its parameters do.
        given = getattr(self.arch, "keywords", {})
        return key_of(
            "model",
            identity=identity,
            arch={k: Path(v).name if isinstance(v, str) else v for k, v in given.items()},
            data=data.fingerprint(),
            how=asdict(self.how()),
            half=self.half,
            start=self._start(identity, data) if self.training == "pgd" else None,
            source={module: source_of_module(module) for module in sorted(set(made_by))},
        )

    def _start(self, identity: dict[str, Any], data: Dataset) -> str:
        """What tells the plain weights that adversarial training starts from."""
        plain = self._plain()
        before = plain.identity(data, identity["seed"])
        shipped = None if self.train else plain.shipped(before)
        return plain._key(before, data) if shipped is None else str(checkpoint.read_card(shipped).get("sha256"))

    def at_hand(self, data: Dataset, seed: int, store: Store) -> bool:
        """Whether `obtain` would find weights rather than train them."""
        if self.training == "none" or self.weights is not None:
            return True
        identity = self.identity(data, seed)
        shipped = None if self.train else self.shipped(identity)
        return shipped is not None or store.has("model", self._key(identity, data))

    def training_passes(self, data: Dataset) -> float:
        """Forward passes of one training (a backward pass counts two; every step of an attack is a pass of its own)."""
        how = self.how()
        images = how.epochs * min(how.epoch_images or len(data.ids("train")), len(data.ids("train")))
        return 3.0 * images * (1 + (how.pgd["iterations"] if how.pgd else 0))

    def shipped(self, identity: dict[str, Any]) -> Path | None:
        """The checkpoint whose card has this very identity, if we ship one."""
        wanted = json.loads(json.dumps(identity))
        for card in sorted((PAPERS / self.paper / "checkpoints").glob("*.json")) if self.paper else []:
            if checkpoint.read_card(card.with_suffix(".safetensors")).get("identity") == wanted:
                return card.with_suffix(".safetensors")
        return None

    def train_to(self, path: Path, data: Dataset, seed: int, device: torch.device, store: Store) -> dict[str, Any]:
        """Train and write checkpoint and card to `path` (what `make train-<name>` does); resumable."""
        return self._train_to(path, data, seed, device, self.identity(data, seed), store)

    def _train_to(
        self, path: Path, data: Dataset, seed: int, device: torch.device, identity: dict[str, Any], store: Store
    ) -> dict[str, Any]:
        model, history = self._train(path, data, seed, device, store)
        if self.half:
            checkpoint.round_half(model.module)
        card = {
            "identity": identity,
            "recipe": self.recipe,
            "training": asdict(self.how()),
            "train_per_group": data.fingerprint().get("train_per_bucket"),
            "history": history.epochs,
            "ended": history.ended,
            "start": history.start,
            "seconds": round(history.seconds, 1),
            "device": device.type,
            "torch": torch.__version__,
            **self._robustness(model, data, device),
            "verification": verify(model, data, self.gate, device).as_dict(),
        }
        checkpoint.save_checkpoint(path, model.module, card, half=self.half)
        for state in path.parent.glob(f".{path.stem}.*.state"):
            state.unlink()
        return card

    def _train(
        self, path: Path, data: Dataset, seed: int, device: torch.device, store: Store
    ) -> tuple[Classifier, History]:
        """Train, from fresh starts until one is accepted; PGD goes on from the plain model."""
        how, state = self.how(), lambda start: path.parent / f".{path.stem}.{start}.state"
        if self.training == "pgd":
            model = self.build(seed).to(device)  # the plain one is no longer to be trained
            plain = self._plain().obtain(data, seed, store, device)
            model.module.load_state_dict(plain.classifier.module.state_dict())
            return model, fit(model, data, how, seed, device, state("pgd"), f"{self.name} pgd")
        accepted = lambda model: verify(model, data, self.gate, device).passed  # noqa: E731
        return train(partial(self.build, seed), data, how, seed, device, accepted, state, self.name)

    def _plain(self) -> Recipe:
        """The recipe of the model that adversarial training starts from."""
        plain = copy.copy(self)
        plain.training = "plain"
        return plain

    def _robustness(self, model: Classifier, data: Dataset, device: torch.device, n: int = 500) -> dict[str, float]:
        """Accuracy under the attack the model was trained against."""
        how = self.how()
        if self.training != "pgd" or how.pgd is None:
            return {}
        ids = data.ids("validation")
        ids = ids[:: max(1, len(ids) // n)]
        x, y = data.images(ids)
        x = (x.float() / 255 if x.dtype == torch.uint8 else x).to(device)
        y = y.to(device)
        noise = Draws.of(0, ids, device).uniform("pgd", tuple(x.shape[1:]))
        adversary = pgd_attack(model, x, y, how.loss, noise, **attack(how.pgd))
        with torch.no_grad():
            right = (model(adversary).argmax(1) == y).float().mean().item()
        return {
            "pgd_accuracy": round(right, 4),
            "clean_accuracy": round(accuracy(model, data, ids, device), 4),
        }

    def _finish(
        self, model: Classifier, data: Dataset, store: Store, device: torch.device, card: Mapping[str, Any], source: str
    ) -> Obtained:
        model.fingerprint = checkpoint.model_key(model)
        gate = {} if self.training == "none" else self.gate
        verification = verify_once(model, data, gate, device, store)
        deviations = self._deviations(card, source, data)
        if not verification.passed:
            if not self.accept_unverified:
                other = "seed=..., model.recipe=paper" if "paper" in self.recipes else "seed=..."
                raise SalrunError(
                    f"model '{self.name}' fails verification: {verification.reason}; explaining it would say nothing "
                    f"about the methods. Train another ({other}) or go on with model.accept_unverified=true"
                )
            deviations.append(f"UNVERIFIED MODEL, accepted by model.accept_unverified=true: {verification.reason}")
        model.requires_grad_(False)
        return Obtained(model, verification, dict(card), source, deviations)

    def _deviations(self, card: Mapping[str, Any], source: str, data: Dataset) -> list[str]:
        if source == "random":
            return []
        if source == "file":
            return [f"model weights from the file {self.weights}"]
        used = str(card.get("recipe", self.recipe))
        deviations = []
        if source == "shipped":
            deviations.append("model: shipped checkpoint (model.train=true trains anew)")
            had, has = card.get("train_per_group"), data.fingerprint().get("train_per_bucket")
            if had is not None and has is not None and dict(had) != json.loads(json.dumps(has)):
                deviations.append(f"model: trained on {_sizes(had)} images per bucket, this data set has {_sizes(has)}")
        followed = self.recipe if self.recipe in REPRODUCTIONS else "paper"
        if used != followed:
            remedy = f" (model.train=true model.recipe={followed})" if followed in self.recipes else ""
            deviations.append(f"training recipe '{used}', not {REPRODUCTIONS[followed]}{remedy}")
        precision = card.get("training", {}).get("precision", "float32")
        if precision != "float32":
            deviations.append(f"model: trained in {precision}")
        return deviations


def _sizes(per_group: Mapping[str, int]) -> str:
    """`2000`, or `2000 to 6000`."""
    low, high = min(per_group.values()), max(per_group.values())
    return str(low) if low == high else f"{low} to {high}"


@dataclass
class OfTask:
    """`recipe` on `dataset`: the model of task t beside that of task t~ on the same images (Yona & Greenfeld 2021)."""

    recipe: types.Recipe
    dataset: Dataset

    def facts(self) -> dict[str, Any]:
        """The model's facts, and those of the task it was trained for."""
        return {**self.recipe.facts(), **{f"task.{name}": value for name, value in self.dataset.facts().items()}}

    def obtain(self, data: Dataset, seed: int, store: Store, device: torch.device) -> Obtained:
        return self.recipe.obtain(self.dataset, seed, store, device)
