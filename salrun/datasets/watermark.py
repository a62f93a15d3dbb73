"""Pictures with a text drawn over them that drives one class: photographs of which it is known what the class hangs on.

Networks trained on ImageNet take Chinese characters for a carton, many of whose training pictures bear a watermark (Li
et al., A Whac-A-Mole Dilemma, CVPR 2023; the overlay is theirs, in a heavier weight of its font and further down). What
they found on average is measured here for each picture, with and without the overlay.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from salrun.datasets.base import Derived
from salrun.datasets.ink import covered, glyph, resized
from salrun.errors import SalrunError
from salrun.ranges import Above, AtLeast, Between, check_declared
from salrun.rng import Draws
from salrun.types import PRIMARY, SECONDARY, Batch, Labelled, Model

VERSION = 1
BATCH = 50
OVERLAY, PICTURE = "overlay", "picture"
TEXT = ("u6377", "u5f84") * 3


class Effect(NamedTuple):
    """Of the overlay on one picture: the class's logit and probability, and what is predicted, without and with it."""

    logit_without: float
    logit_with: float
    p_without: float
    p_with: float
    predicted_without: int
    predicted_with: int

    @property
    def rise(self) -> float:
        """By how much the overlay raises the logit."""
        return self.logit_with - self.logit_without


@dataclass
class Watermark(Derived):
    """Test pictures of `plain`, of other classes, with a row of glyphs over them; class `class_index` is explained.

    The overlay: `glyphs` of `size` (share of the picture's height), their centre at `position` (shares of height and
    width), in `colour` with `opacity`. Its mask is the pixels that it changes; mask `picture` is all others. Controls,
    `form`: "flipped" is the row upside down, "mirrored" each glyph as in a mirror, "scattered" the pixels of its ink
    at random places of the picture, others for each picture.

    Up to `asked` pictures are tried in random order until `n_explained` are kept: those in which the overlay raises the
    class's logit by `least` or more (None: whatever it does) and, with `turned`, makes it the prediction that it was
    not before. The others are counted.
    """

    plain: Labelled
    root: str = ""  # where the files of `plain` are, where it is given by name
    class_index: Annotated[int, AtLeast(0)] = 478  # carton
    form: Literal["text", "flipped", "mirrored", "scattered"] = "text"
    glyphs: list[str] = field(default_factory=lambda: list(TEXT))
    size: Annotated[float, Above(0), Between(0, 1)] = 0.16
    position: list[Annotated[float, Between(0, 1)]] = field(default_factory=lambda: [0.7, 0.5])
    opacity: Annotated[float, Above(0), Between(0, 1)] = 0.5
    colour: list[Annotated[int, Between(0, 255)]] = field(default_factory=lambda: [255, 255, 255])
    n_explained: Annotated[int, AtLeast(1)] = 100
    least: Annotated[float, AtLeast(0)] | None = 1.0
    turned: bool = True
    asked: Annotated[int, AtLeast(1)] = 1000
    explained_seed: int = 0  # of the order in which pictures are tried, and of scattered places

    mask_names = (OVERLAY, PICTURE)

    def __post_init__(self) -> None:
        check_declared(self)
        if isinstance(self.plain, str):
            raise SalrunError(f"dataset.plain of a watermark must be a data set, got {self.plain!r}")
        self.shape = self.plain.shape
        form = "" if self.form == "text" else f"_{self.form}"
        self.name = f"watermark_{self.plain.name}{form}"
        for option, wanted in (("position", 2), ("colour", 3)):
            if len(getattr(self, option)) != wanted:
                raise SalrunError(f"dataset.{option} must be {wanted} numbers, got {getattr(self, option)}")
        if self.shape[0] not in (1, 3):
            raise SalrunError(f"a watermark is drawn into grey or RGB pictures; {self.plain.name}'s are {self.shape}")
        self._ink = self._placed()
        self._effects: dict[str, Effect] = {}  # of the pictures that were tried
        self._kept: list[str] = []

    # -- the overlay -----------------------------------------------------------------------------------------------

    def _placed(self) -> Tensor:
        """(H, W) bytes: how much of each pixel the row of glyphs covers, before it is scattered."""
        height, width = self.shape[1:]
        row = self._row(round(self.size * height))
        top, left = (
            round(at * side - extent / 2)
            for at, side, extent in zip(self.position, (height, width), row.shape, strict=True)
        )
        if min(top, left) < 0 or top + row.shape[0] > height or left + row.shape[1] > width:
            raise SalrunError(
                f"the overlay of {row.shape[0]} x {row.shape[1]} pixels at {list(self.position)} leaves the picture of "
                f"{height} x {width}: lower dataset.size ({self.size:g}), or move dataset.position"
            )
        ink = torch.zeros(height, width, dtype=torch.uint8)
        ink[top : top + row.shape[0], left : left + row.shape[1]] = torch.from_numpy(row)
        return (ink * self.opacity).round().to(torch.uint8)

    def _row(self, height: int) -> np.ndarray:
        """The glyphs beside each other, `height` pixels high."""
        if height < 1 or not self.glyphs:
            raise SalrunError(f"{self.name}: there is nothing to draw: size {self.size:g}, glyphs {list(self.glyphs)}")
        drawn = []
        for bitmap in (glyph(name, "dataset.glyphs") for name in self.glyphs):
            scaled = resized(bitmap, height, max(1, round(bitmap.shape[1] * height / bitmap.shape[0])))
            drawn.append(scaled[:, ::-1] if self.form == "mirrored" else scaled)
        row = np.concatenate(drawn, axis=1)
        return np.ascontiguousarray(row[::-1] if self.form == "flipped" else row)

    def cover(self, ids: Sequence[str]) -> Tensor:
        """(B, H, W) bytes: how much of each pixel the overlay covers."""
        if self.form != "scattered":
            return self._ink.expand(len(ids), -1, -1)
        order = Draws.of(self.explained_seed, ids).permutation(self._ink.numel(), "watermark/places")
        return self._ink.flatten()[order].view(len(ids), *self._ink.shape)

    def drawn(self, ids: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Pictures (B, C, H, W) without and with the overlay, as bytes."""
        pixels = self.plain.images(list(ids))[0]
        if pixels.dtype != torch.uint8:
            pixels = (255 * pixels).round().to(torch.uint8)
        colour = torch.tensor(self.colour, dtype=torch.float64)
        colour = colour if self.shape[0] == 3 else colour.mean().round().view(1)
        return pixels, covered(pixels, colour.view(-1, 1, 1), self.cover(ids).unsqueeze(1))

    # -- the choice ------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def select(self, model: Model, device: torch.device) -> None:
        """Choose the pictures by the model's answers; done before anything is explained."""
        self._effects, self._kept = {}, []
        ids = self._candidates()
        for start in range(0, len(ids), BATCH):
            part = ids[start : start + BATCH]
            for name, effect in zip(part, self.effects(part, model, device), strict=True):
                if len(self._kept) == self.n_explained:
                    return
                self._effects[name] = effect
                if self._holds(effect):
                    self._kept.append(name)
        if not self._kept:
            raise SalrunError(
                f"{self.name}: of {len(self._effects)} pictures the overlay {self._wanted} in none; it takes a model "
                "that has learnt to heed such text, or another class (dataset.class_index)"
            )

    def _candidates(self) -> list[str]:
        """Test pictures of other classes, in the order in which they are tried."""
        if self.class_index >= len(self.classes):
            raise SalrunError(
                f"dataset.class_index must be in 0..{len(self.classes) - 1} ({self.plain.name}), got {self.class_index}"
            )
        ids = self.plain.ids("test")
        ids = [name for name, c in zip(ids, self.plain.labels(ids).tolist(), strict=True) if c != self.class_index]
        if not ids:
            raise SalrunError(f"{self.plain.name} has no test pictures of other classes than {self.class_index}")
        order = Draws.of(self.explained_seed, ids).bits("watermark/order", 1)[:, 0].argsort(stable=True)
        return [ids[k] for k in order[: self.asked].tolist()]

    @torch.no_grad()
    def effects(self, ids: Sequence[str], model: Model, device: torch.device) -> Iterator[Effect]:
        """What the overlay does to each picture."""
        columns: list[list[Any]] = []
        for pixels in self.drawn(ids):
            logits = model(pixels.to(device) / 255.0).cpu()
            own = logits[:, self.class_index], logits.softmax(1)[:, self.class_index], logits.argmax(1)
            columns += [values.tolist() for values in own]
        without, p_without, before, with_, p_with, after = columns
        yield from map(Effect, without, with_, p_without, p_with, before, after)

    def _holds(self, effect: Effect) -> bool:
        enough = self.least is None or effect.rise >= self.least
        return enough and (not self.turned or self._turns(effect))

    def _turns(self, effect: Effect) -> bool:
        return effect.predicted_with == self.class_index != effect.predicted_without

    @property
    def _wanted(self) -> str:
        """What the overlay has to do, in words."""
        called = f"'{self.classes[self.class_index]}'"
        rise = [] if self.least is None else [f"raises the logit of {called} by {self.least:g} or more"]
        return " and ".join([*rise, *([f"turns the prediction into {called}"] if self.turned else [])])

    # -- ids -------------------------------------------------------------------------------------------------------

    def explained(self) -> list[str]:
        if not self._kept:
            raise SalrunError(f"the pictures of {self.name} are chosen by a model: it takes a run")
        return list(self._kept)

    def labels(self, ids: Sequence[str]) -> Tensor:
        """The class that is explained."""
        return torch.full((len(ids),), self.class_index)

    def groups_of(self, ids: Sequence[str]) -> list[str]:
        return [self.classes[self.class_index]] * len(ids)

    def batch(self, ids: list[str]) -> Batch:
        without, pixels = self.drawn(ids)
        changed = (pixels != without).any(1)
        masks = {OVERLAY: changed, PICTURE: ~changed}
        roles = {OVERLAY: torch.full((len(ids),), PRIMARY), PICTURE: torch.full((len(ids),), SECONDARY)}
        return Batch(pixels / 255.0, self.labels(ids), tuple(ids), tuple(self.groups_of(ids)), masks, roles)

    # -- what it says of itself ------------------------------------------------------------------------------------

    def image_facts(self, ids: Sequence[str]) -> dict[str, list[str]]:
        """What the overlay does to each picture, and what is seen without it."""
        effects = [self._effects[name] for name in ids]
        numbers = {name: [f"{getattr(e, name):.4g}" for e in effects] for name in Effect._fields[:4]}
        seen = [self.classes[e.predicted_without] for e in effects]
        return {"effect": [f"{e.rise:.3f}" for e in effects], **numbers, "predicted_without": seen}

    def deviations(self) -> list[str]:
        left, tried = len(self._effects) - len(self._kept), len(self._effects)
        return [f"{left} of {tried} pictures left out: the overlay {self._wanted} in those kept"] if left else []

    def identity(self) -> dict[str, Any]:
        return {"dataset": self.name, "version": VERSION, "plain": self.plain.identity()}

    def fingerprint(self) -> dict[str, Any]:
        named = {name: getattr(self, name) for name in ("class_index", "form", "opacity")}
        ink = {"ink": self._digest, "colour": list(self.colour)}
        seed = {"places": self.explained_seed} if self.form == "scattered" else {}
        return {**self.identity(), **named, **ink, **seed, "plain": self.plain.fingerprint()}

    @cached_property
    def _digest(self) -> str:
        return hashlib.sha256(self._ink.numpy().tobytes()).hexdigest()[:16]

    def facts(self) -> dict[str, Any]:
        """What a reader asks of this data, for tables/cells.csv; `turned` and `rise` are of all that were tried."""
        named = {n: getattr(self, n) for n in ("class_index", "form", "size", "opacity", "least", "explained_seed")}
        effects = list(self._effects.values())
        rise = sum(e.rise for e in effects) / len(effects) if effects else float("nan")
        counts = {"tried": len(effects), "kept": len(self._kept), "turned": sum(map(self._turns, effects))}
        return {"kind": self.name, **named, **counts, "rise": f"{rise:.3f}"}
