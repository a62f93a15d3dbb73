"""The nouns of the field: what a data set gives, what a method and a metric receive and return, what a recipe makes.

Shapes: images `x` are (B, C, H, W) floats in [0, 1]; raw attributions (B, C, H, W) or (B, 1, H, W);
planes (B, 1, H, W); masks (B, H, W) booleans, or the opacity in [0, 1] of what is drawn (`<name>_ink`); values (B,)
float64; flags (B,) uint8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from salrun.ranges import check_declared

if TYPE_CHECKING:
    from salrun.models.classifier import Classifier
    from salrun.models.recipe import Obtained
    from salrun.rng import Draws
    from salrun.store.entries import Store

NEUTRAL, PRIMARY, SECONDARY = 0, 1, 2
ROLES = {"neutral": NEUTRAL, "primary": PRIMARY, "secondary": SECONDARY}

# Why a score is what it is. Everything but `ok` is counted in `n_flagged`; NaN is never turned into 0.
FLAGS = ("ok", "degenerate_map", "nan_map", "undefined", "saturated", "underflow", "no_mask")
OK, DEGENERATE_MAP, NAN_MAP, UNDEFINED, SATURATED, UNDERFLOW, NO_MASK = range(len(FLAGS))


@dataclass(frozen=True)
class Batch:
    """Some images with everything known about them. `roles[name][b]` says what mask `name` is for image b."""

    x: Tensor
    y: Tensor
    id: tuple[str, ...]
    group: tuple[str, ...]
    masks: Mapping[str, Tensor] = field(default_factory=dict)
    roles: Mapping[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.id)

    def to(self, device: torch.device) -> Batch:
        """On another device; from pinned memory without waiting for it."""
        return self.changed(lambda tensor: tensor.to(device, non_blocking=tensor.is_pinned()))

    def changed(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """With every tensor changed."""
        return replace(
            self,
            x=change(self.x),
            y=change(self.y),
            masks={k: change(v) for k, v in self.masks.items()},
            roles={k: change(v) for k, v in self.roles.items()},
        )


class Dataset(Protocol):
    """Images by id; what runs, recipes and tables ask of a data set.

    `datasets/base.py` gives all of it but `load` and `ids`. What only some data sets can say is in protocols of their
    own: `ImageFacts`, `Selecting`, `Deviating`, `Flipping`.
    """

    @property
    def name(self) -> str:
        """What tables call it."""

    @property
    def classes(self) -> Sequence[str]:
        """Names of the classes; a label is a place in it."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width of every image."""

    @property
    def mask_names(self) -> Sequence[str]:
        """The masks that every batch has."""

    @property
    def verification_split(self) -> str:
        """The split that a model's accuracy is measured on."""

    def ids(self, split: str) -> list[str]:
        """The images of "train", "validation" or "test"."""

    def explained(self) -> list[str]:
        """The images a run explains, in order; members of a group stand together where views clip by group."""

    def batch(self, ids: list[str]) -> Batch:
        """Images in [0, 1] with labels, groups and masks."""

    def images(self, ids: list[str]) -> tuple[Tensor, Tensor]:
        """Images (bytes, or floats in [0, 1]) and labels alone, for training, backgrounds and statistics."""

    def groups_of(self, ids: Sequence[str]) -> list[str]:
        """The group of each image, in which tables and verification count it."""

    def identity(self) -> dict[str, Any]:
        """What decides the images behind the ids and the splits: a shipped model of another identity is not used."""

    def fingerprint(self) -> dict[str, Any]:
        """What results depend on: generator version, parameters and seed, or hashes of files."""

    def facts(self) -> dict[str, Any]:
        """What a reader asks of the data, one word or number each, for tables/cells.csv."""


class Labelled(Dataset, Protocol):
    """A data set whose labels are known without reading images."""

    def labels(self, ids: Sequence[str]) -> Tensor:
        """(B,) class indices."""


@runtime_checkable
class ImageFacts(Protocol):
    """A data set with facts of single images."""

    def image_facts(self, ids: Sequence[str]) -> dict[str, list[str]]:
        """Of each image, for tables/images.parquet."""


class Model(Protocol):
    """What a data set may ask of a model."""

    mean: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Logits of raw images."""


@runtime_checkable
class Selecting(Protocol):
    """A data set whose explained images are chosen by the model's answers."""

    @property
    def plain(self) -> Dataset:
        """The data that models are trained and verified on."""

    def select(self, model: Model, device: torch.device) -> None:
        """Choose them."""


@runtime_checkable
class Deviating(Protocol):
    """A data set that can differ from its paper's."""

    def deviations(self) -> list[str]:
        """In which ways it does, one sentence each, for tables and report."""


@runtime_checkable
class Flipping(Protocol):
    """A data set that can change one object of an image, and with it the label."""

    def flips(self, n: int) -> Iterator[tuple[str, str, Tensor, Tensor]]:
        """(group, other group, `n` images of the one, the same with the object exchanged) for every pair of groups."""

    def label(self, group: str) -> int:
        """The label of a group's images."""


class Recipe(Protocol):
    """A way to a model: trained, loaded, randomised, or of another task (`models/recipe.py` and its neighbours)."""

    def obtain(self, data: Dataset, seed: int, store: Store, device: torch.device) -> Obtained:
        """The model for this data, verified, wherever its weights come from."""

    def facts(self) -> dict[str, Any]:
        """What a reader asks of the model, one word or number each, for tables/cells.csv."""


@dataclass(frozen=True)
class FeatureStats:
    """Per-neuron statistics of one layer over training images (IBA): each (C, h, w)."""

    mean: Tensor
    std: Tensor
    active: Tensor
    n: int


@dataclass(frozen=True)
class Fitted:
    """What a method may need beyond the image; it names in `needs` what it does need."""

    background: Tensor | None = None
    feature_stats: FeatureStats | None = None
    layer: str | None = None
    masks: Mapping[str, Tensor] = field(default_factory=dict)
    roles: Mapping[str, Tensor] = field(default_factory=dict)
    chunk: int | None = None
    ids: tuple[str, ...] = ()  # of the images, where they are those of the data set


class Method:
    """A saliency method: hyper-parameters as dataclass fields, one call, no state.

    `__call__` returns the raw attribution, (B, C, H, W) or (B, 1, H, W), of logit `target[b]` for image b. An image's
    result depends on nothing but the image, its id and the model: never on its batch-mates.
    """

    needs: ClassVar[frozenset[str]] = frozenset()  # of: attention background feature_stats layer masks ids
    signed: ClassVar[bool] = True
    paper_name: ClassVar[str] = ""  # what the papers' tables call it
    source: ClassVar[str] = ""  # where the formula comes from
    on_host: ClassVar[str] = ""  # what is done on the CPU whatever the device, where something is
    forward_only: ClassVar[bool] = False  # it reads probabilities of many variants: `numerics=fast` serves it
    averages_passes: ClassVar[bool] = False  # it averages many gradients: `numerics=fast_gradients` may serve it
    subtracts_scores: ClassVar[bool] = False  # its map is made of differences: half precision shows more in it
    sees_class: ClassVar[bool] = True  # another class has another map
    foldable = False  # a batch norm folded into the layer before it leaves the map as it is: a faster copy serves it
    layout_free = False  # if it is not foldable: a copy with the same layers in another memory layout serves it

    def __post_init__(self) -> None:
        check_declared(self)

    def passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        """Cost per image in forward passes (a backward pass counts two)."""
        return 3.0

    def content(self) -> str:
        """What maps depend on besides settings and code: files that the method reads, as they are now."""
        return ""

    def check_images(self, ids: Sequence[str], shape: tuple[int, int, int]) -> None:
        """Refuse images that it has nothing to say of, before anything is computed; only asked where it needs ids."""

    def __call__(self, model: Classifier, x: Tensor, target: Tensor, rng: Draws, fitted: Fitted) -> Tensor:
        raise NotImplementedError("abstract")


@dataclass(frozen=True)
class Score:
    """One number and one flag per image, and the curve behind the number where there is one."""

    value: Tensor
    flag: Tensor
    curve: Tensor | None = None  # (B, K)
    curve_x: Tensor | None = None  # (K,)


@dataclass(frozen=True)
class Scene:
    """What a metric may look at besides the map: the image, the model, the masks, the method itself."""

    model: Classifier
    x: Tensor
    y: Tensor
    target: Tensor
    rng: Draws
    masks: Mapping[str, Tensor] = field(default_factory=dict)
    roles: Mapping[str, Tensor] = field(default_factory=dict)
    explain: Callable[..., Tensor] | None = None  # (x, target=its own): the same method and view on other images
    other_map: Callable[..., Tensor] | None = None  # (name, x=its own): the same method and view on another model
    shared: Callable[[str, Callable[[], dict[str, Tensor]]], dict[str, Tensor]] = lambda name, compute: compute()
    shared_rows: Callable[[str, Tensor, Callable[[Tensor], dict[str, Tensor]]], dict[str, Tensor]] = (
        lambda name, rows, compute: compute(rows)  # of some images, by their places: what anybody asked for is kept
    )
    suite: Callable[[Metric], dict[str, dict[str, Score]]] | None = None  # by method of the run, this one first
    chunk: int | None = None
    explain_by: Callable[[str, Tensor], Tensor] | None = None  # another method of the run, by name, in the same view
    memo: dict[str, tuple[tuple[object, ...], Any]] = field(default_factory=dict, repr=False, compare=False)

    def once(self, name: str, plane: Tensor, compute: Callable[[], Any]) -> Any:
        """`compute()`, once for all the metrics of this scene that read the same plane (recognised by identity)."""
        asked = (plane, self.x, self.target, self.model, self.explain, self.rng)
        if name not in self.memo or any(a is not b for a, b in zip(self.memo[name][0], asked, strict=True)):
            self.memo[name] = (asked, compute())
        return self.memo[name][1]


class Metric:
    """A score of a map: hyper-parameters as dataclass fields, facts as class attributes.

    Receives the plane that its view makes of the raw attribution (or the raw attribution itself where
    `needs` has "raw"), and returns one `Score`, or several by name where one pass gives several variants.
    """

    direction: ClassVar[Literal["higher", "lower", "none"]] = "higher"
    turned: ClassVar[frozenset[str]] = frozenset()  # of its named scores, those that are better the other way
    range: ClassVar[tuple[float, float]] = (float("-inf"), float("inf"))
    chance: ClassVar[float | None] = None
    needs: ClassVar[frozenset[str]] = frozenset()  # of: model masks explain raw other_map
    source: ClassVar[str] = ""
    on_host: ClassVar[str] = ""  # what is done on the CPU whatever the device, where something is

    def __post_init__(self) -> None:
        check_declared(self)

    def passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        """Forward passes per image and method."""
        return 0.0

    def shared_passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        """Forward passes per image done once for all methods."""
        return 0.0

    def host_seconds(self, shape: tuple[int, int, int]) -> float:
        """Seconds per image and method that it takes on the host, where these and not the passes are its cost."""
        return 0.0

    def shared_as(self) -> str:
        """What the shared passes are called, where several metrics use the same; empty: they are its own."""
        return ""

    def reads(self) -> tuple[str, ...]:
        """Names of the models whose maps it asks for by `scene.other_map`; the scores depend on their weights."""
        return ()

    def compares(self) -> bool:
        """Whether it asks for scores of the run's other methods by `scene.suite`; its own then depend on them."""
        return False

    def __call__(self, plane: Tensor, scene: Scene) -> Score | dict[str, Score]:
        raise NotImplementedError("abstract")
