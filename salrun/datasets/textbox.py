"""TextBox (Kim, Plumb, Talwalkar, ICML 2022): synthetic images whose right explanation is known.

An image shows some of three objects: a letter (Text), a 10x10 square (Box1) and a 4x4 square (Box2). Which ones is its
*bucket*; a *reasoning* is a table bucket -> label, primary objects (to focus on), secondary ones (to avoid). Objects,
buckets and reasonings are data (conf/dataset/textbox.yaml, conf/reasoning/*.yaml): new ones need no code.

An image is a pure function of (seed, its id): nothing is stored, any subset can be made at any time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch import Tensor

from salrun.datasets.base import choice_seed
from salrun.datasets.ink import covered, glyph
from salrun.datasets.pictures import read_pictures
from salrun.errors import SalrunError, unknown
from salrun.ranges import Between, check_declared
from salrun.rng import Draws, to_integer
from salrun.types import NEUTRAL, PRIMARY, SECONDARY, Batch

VERSION = 1  # of the generator: a change of any pixel needs a new number
SPLITS = ("train", "validation")
# Positions in the sorted file list that the paper's code draws real backgrounds from (58 stands twice there).
PLACES = (
    *(0, 9, 10, 12, 15, 16, 17, 19, 20, 21, 24, 25, 26, 27, 28, 33, 34, 35, 37, 39, 41, 42, 43, 45, 46, 47, 49, 50),
    *(51, 52, 55, 56, 58, 64, 65, 58, 68, 71, 74, 78, 86, 88, 90, 91, 92, 93),
)
CANDIDATES = 16  # positions tried at a time
ROUNDS = 64  # before a placement is called impossible


@dataclass(frozen=True)
class Thing:
    """One object of the canvas: a filled box, or a letter given by its glyphs.

    `anchor` = [low, high], both inclusive: the range of its top-left corner, before `offset` is added.
    `apart` / `apart_always`: the squared distance to another object's anchor must exceed this, if that object is
    there / even if it is not (the paper's code keeps Box1 away from where the text would have been).
    """

    name: str
    size: tuple[int, int] | None = None
    glyphs: Mapping[str, str] = field(default_factory=dict)
    color: tuple[int, int, int] = (255, 255, 255)
    anchor: tuple[int, int] = (0, 53)
    offset: int = 0
    apart: Mapping[str, int] = field(default_factory=dict)
    apart_always: Mapping[str, int] = field(default_factory=dict)
    draw: int = 0  # later ones are drawn over earlier ones

    def bitmap(self, kind: str) -> np.ndarray:
        """Opacity 0..255 of its box."""
        if self.size is not None:
            return np.full(tuple(self.size), 255, dtype=np.uint8)
        if kind not in self.glyphs:
            raise unknown(f"kind of '{self.name}'", kind, self.glyphs, "dataset.buckets")
        return glyph(self.glyphs[kind])


@dataclass
class TextBox:
    """The dataset of one reasoning. See the module's docstring; numbers are the paper's.

    `labels`: "paper" follows Table 1, "code" the public code, which inverts the box branch of CR1-CR4.
    `placement`: "code" keeps top-left corners apart (letters may touch boxes in some 10% of images), "strict" forbids
    any overlap of the objects' boxes.
    """

    reasoning: dict[str, Any]
    objects: dict[str, dict[str, Any]]
    buckets: dict[str, dict[str, Any]]
    size: int = 64
    background: Literal["black", "noise", "places"] = "black"
    noise_max: Annotated[int, Between(0, 255)] = 150
    places_folder: str = "baseball_field"
    root: str | None = None
    placement: Literal["code", "strict"] = "code"
    labels: Literal["paper", "code"] = "paper"
    train_per_bucket: int | None = None  # instead of the reasoning's own numbers
    n_per_bucket: int = 20  # explained validation images of each bucket
    groups: list[str | int] | None = None  # explain only these buckets
    seed: int = 0  # of the images
    explained_seed: int | None = None  # of the choice of those explained; None: seed

    verification_split: ClassVar[str] = "validation"

    @property
    def name(self) -> str:
        """`textbox`, with what differs from the main condition: `textbox_noise`, `textbox_strict`, `textbox_code`."""
        backdrop = "" if self.background == "black" else f"_{self.background}"
        placement = "" if self.placement == "code" else f"_{self.placement}"
        return f"textbox{backdrop}{placement}{'_code' if self.labels == 'code' else ''}"

    def __post_init__(self) -> None:
        check_declared(self)
        self.shape = (3, self.size, self.size)
        self.things = {n: Thing(name=n, **_tuples(spec)) for n, spec in self.objects.items()}
        self.rules = {str(b): rule for b, rule in self.reasoning["buckets"].items()}
        self.contents = {str(b): {o: str(k) for o, k in (c or {}).items()} for b, c in self.buckets.items()}
        self.mask_names = tuple(self.things)
        self._check()
        self.classes = tuple(str(c) for c in range(1 + max(self.label(b) for b in self.rules)))

    def _check(self) -> None:
        where = f"reasoning '{self.reasoning.get('name', '?')}'"
        for bucket, rule in self.rules.items():
            if bucket not in self.contents:
                raise unknown("bucket", bucket, self.contents, where)
            if not isinstance(rule.get("label"), int) or rule["label"] < 0:
                raise SalrunError(f"{where}, bucket {bucket}: label must be 0, 1, ..., got {rule.get('label')!r}")
            for role in ("primary", "secondary"):
                for thing in rule.get(role) or ():
                    if thing not in self.contents[bucket]:
                        raise unknown(f"{role} object", thing, self.contents[bucket], f"{where}, bucket {bucket}")
        for bucket, content in self.contents.items():
            for thing, kind in content.items():
                if thing not in self.things:
                    raise unknown("object", thing, self.things, f"dataset.buckets.{bucket}")
                if self.things[thing].size is not None and kind != "box":
                    raise unknown(f"kind of '{thing}'", kind, ["box"], f"dataset.buckets.{bucket}")
                self.things[thing].bitmap(kind)
        for thing in self.things.values():
            extent = max(self.bitmap_size(thing))
            if thing.anchor[1] + thing.offset + extent > self.size or thing.anchor[0] + thing.offset < 0:
                raise SalrunError(
                    f"dataset.objects.{thing.name}: anchor {list(thing.anchor)} + offset {thing.offset} + size {extent}"
                    f" leaves the {self.size}x{self.size} canvas"
                )
        available = self.reasoning["validation_per_bucket"]
        if not 1 <= self.n_per_bucket <= available:
            raise SalrunError(f"dataset.n_per_bucket must be in 1..{available}, got {self.n_per_bucket}")
        for group in map(str, self.groups or ()):
            if group not in self.rules:
                raise unknown("bucket", group, self.rules, "dataset.groups")

    def bitmap_size(self, thing: Thing) -> tuple[int, int]:
        """Largest height and width over the object's kinds."""
        kinds = thing.glyphs or {"": ""}
        shapes = [thing.bitmap(kind).shape for kind in kinds]
        return max(s[0] for s in shapes), max(s[1] for s in shapes)

    # -- what there is ---------------------------------------------------------------------------------------------

    def label(self, bucket: str) -> int:
        rule = self.rules[bucket]
        return int(rule.get("code_label", rule["label"]) if self.labels == "code" else rule["label"])

    def per_bucket(self, split: str, bucket: str) -> int:
        if split == "validation":
            return int(self.reasoning["validation_per_bucket"])
        if self.train_per_bucket is not None:
            return self.train_per_bucket
        by_label = self.reasoning["train_per_bucket"]
        return int(by_label if isinstance(by_label, int) else by_label[self.rules[bucket]["label"]])

    def ids(self, split: str) -> list[str]:
        """`<split>-b<bucket>-<index>`, bucket by bucket."""
        if split not in SPLITS:
            raise unknown("split", split, SPLITS, "TextBox")
        return [f"{split}-b{b}-{k:05d}" for b in self.rules for k in range(self.per_bucket(split, b))]

    def explained(self) -> list[str]:
        """`n_per_bucket` validation images of each bucket: the same seeded positions in every bucket, unfiltered."""
        total = int(self.reasoning["validation_per_bucket"])
        order = Draws.of(choice_seed(self), ["explained"]).permutation(total, "explained")[0]
        positions = sorted(order[: self.n_per_bucket].tolist())
        buckets = [str(b) for b in self.groups] if self.groups else list(self.rules)
        return [f"validation-b{b}-{k:05d}" for b in buckets for k in positions]

    def groups_of(self, ids: Sequence[str]) -> list[str]:
        """The bucket of each image."""
        return [i.split("-")[1][1:] for i in ids]

    def deviations(self) -> list[str]:
        """In which ways the pictures are not the paper's."""
        if self.background != "places":
            return []
        return [f"substitute background: Places class '{self.places_folder}', not stadium/baseball"]

    def facts(self) -> dict[str, Any]:
        """What a reader asks of this data, for tables/cells.csv."""
        named = ("background", "noise_max", "placement", "labels", "train_per_bucket", "seed")
        chosen = {name: getattr(self, name) for name in named}
        chosen["explained_seed"] = choice_seed(self)
        return {"kind": "textbox", "reasoning": self.reasoning.get("name", ""), **chosen}

    def fingerprint(self) -> dict[str, Any]:
        return {
            **self.identity(),
            "train_per_bucket": {b: self.per_bucket("train", b) for b in self.rules},
            "validation_per_bucket": self.reasoning["validation_per_bucket"],
        }

    def identity(self) -> dict[str, Any]:
        """What a model trained on this data has learnt: everything but how many images there are."""
        backdrop: dict[str, Any] = {"kind": self.background}
        if self.background == "noise":
            backdrop["max"] = self.noise_max
        if self.background == "places":
            backdrop["pixels"] = hashlib.sha256(self._places.numpy().tobytes()).hexdigest()
        return {
            "dataset": "textbox",
            "version": VERSION,
            "size": self.size,
            "objects": {n: _plain(spec) for n, spec in self.objects.items()},
            "glyphs": {
                g: hashlib.sha256(glyph(g).tobytes()).hexdigest()[:16]
                for thing in self.things.values()
                for g in thing.glyphs.values()
            },
            "buckets": {b: self.contents[b] for b in self.rules},
            "label": {b: self.label(b) for b in self.rules},
            "background": backdrop,
            "placement": self.placement,
            "seed": self.seed,
        }

    # -- images ----------------------------------------------------------------------------------------------------

    def batch(self, ids: Sequence[str]) -> Batch:
        buckets = self.groups_of(ids)
        draws = Draws.of(self.seed, ids)
        places = self._place(buckets, draws)
        roles = {n: torch.full((len(ids),), NEUTRAL, dtype=torch.int8) for n in self.things}
        for row, bucket in enumerate(buckets):
            for thing in self.rules[bucket].get("primary") or ():
                roles[thing][row] = PRIMARY
            for thing in self.rules[bucket].get("secondary") or ():
                roles[thing][row] = SECONDARY
        y = torch.tensor([self.label(b) for b in buckets], dtype=torch.int64)
        x = self._render(buckets, places, draws).float() / 255
        return Batch(x, y, tuple(ids), tuple(buckets), self._masks(buckets, places), roles)

    def images(self, ids: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Pictures (uint8) and labels only: what training needs."""
        buckets = self.groups_of(ids)
        draws = Draws.of(self.seed, ids)
        y = torch.tensor([self.label(b) for b in buckets], dtype=torch.int64)
        return self._render(buckets, self._place(buckets, draws), draws), y

    def flips(self, n: int) -> Iterator[tuple[str, str, Tensor, Tensor]]:
        """Pairs of pictures of equal geometry that differ in one object (added, removed or exchanged).

        Yields (bucket a, bucket b, images a, images b), n pairs each, for every two defined buckets that differ so.
        """
        everything = {name: next(iter(t.glyphs), "true") for name, t in self.things.items()}
        for a in self.rules:
            for b in self.rules:
                if int_or_str(a) < int_or_str(b) and len(self._difference(a, b)) == 1:
                    draws = Draws.of(self.seed, [f"flip-{a}-{b}-{k:05d}" for k in range(n)])
                    places = self._place([everything] * n, draws)
                    yield a, b, self._render([a] * n, places, draws), self._render([b] * n, places, draws)

    def _difference(self, a: str, b: str) -> list[str]:
        return [n for n in self.things if self.contents[a].get(n) != self.contents[b].get(n)]

    def _place(self, buckets: Sequence[str | Mapping[str, str]], draws: Draws) -> dict[str, Tensor]:
        """Top-left corners (B, 2) = (row, column) of every object, there or not, in the order of `objects`."""
        contents = [self.contents[b] if isinstance(b, str) else b for b in buckets]
        present = {n: torch.tensor([n in c for c in contents]) for n in self.things}
        extents = {n: torch.tensor([self._extent(n, c) for c in contents]) for n in self.things}
        anchors: dict[str, Tensor] = {}
        for thing in self.things.values():
            low, high = thing.anchor
            anchor = torch.zeros(len(contents), 2, dtype=torch.int64)
            pending = torch.arange(len(contents))
            for trial in range(ROUNDS):
                words = draws[pending].bits(f"place/{thing.name}", (CANDIDATES, 2), start=trial * CANDIDATES * 2)
                tried = to_integer(words, high - low + 1) + low
                good = self._allowed(thing, tried, pending, anchors, present, extents)
                first = good.to(torch.uint8).argmax(dim=1)
                anchor[pending] = tried[torch.arange(len(pending)), first]
                pending = pending[~good.any(dim=1)]
                if not len(pending):
                    break
            else:
                raise SalrunError(
                    f"dataset.objects.{thing.name}: no free position found in {ROUNDS * CANDIDATES} tries; "
                    f"loosen its 'apart' distances or enlarge the canvas"
                )
            anchors[thing.name] = anchor
        return {n: anchors[n] + self.things[n].offset for n in anchors}

    def _allowed(
        self,
        thing: Thing,
        tried: Tensor,
        rows: Tensor,
        anchors: Mapping[str, Tensor],
        present: Mapping[str, Tensor],
        extents: Mapping[str, Tensor],
    ) -> Tensor:
        """Which candidate positions (B, K, 2) obey the placement rules."""
        good = torch.ones(tried.shape[:2], dtype=torch.bool)
        for other, anchor in anchors.items():
            distance = ((tried - anchor[rows, None]) ** 2).sum(dim=-1)
            there = present[other][rows, None]
            if other in thing.apart_always:
                good &= distance > thing.apart_always[other]
            if other in thing.apart:
                good &= ~there | (distance > thing.apart[other])
            if self.placement == "strict":
                start, stop = tried + thing.offset, tried + thing.offset + extents[thing.name][rows, None]
                begin = anchor[rows, None] + self.things[other].offset
                end = begin + extents[other][rows, None]
                overlap = ((start < end) & (begin < stop)).all(dim=-1)
                good &= ~(overlap & there & present[thing.name][rows, None])
        return good

    def _extent(self, name: str, content: Mapping[str, str]) -> tuple[int, int]:
        thing = self.things[name]
        height, width = thing.bitmap(content[name]).shape if name in content else self.bitmap_size(thing)
        return height, width

    def _render(self, buckets: Sequence[str], places: Mapping[str, Tensor], draws: Draws) -> Tensor:
        """Pictures (B, 3, H, W) uint8."""
        canvas = self._backdrop(draws).permute(0, 2, 3, 1)
        for thing in sorted(self.things.values(), key=lambda t: t.draw):
            color = torch.tensor(thing.color)
            for bitmap, spot in self._spots(thing, buckets, places[thing.name]):
                canvas[spot] = covered(canvas[spot], color, bitmap[..., None])
        return canvas.permute(0, 3, 1, 2).contiguous()

    def _masks(self, buckets: Sequence[str], places: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The box (B, H, W) of each object and its ink (opacity in [0, 1]); zero where it is absent."""
        masks: dict[str, Tensor] = {}
        for name, thing in self.things.items():
            masks[name] = torch.zeros(len(buckets), self.size, self.size, dtype=torch.bool)
            masks[f"{name}_ink"] = torch.zeros(len(buckets), self.size, self.size)
            for bitmap, spot in self._spots(thing, buckets, places[name]):
                masks[name][spot] = True
                masks[f"{name}_ink"][spot] = bitmap.float() / 255
        return masks

    def _spots(
        self, thing: Thing, buckets: Sequence[str], corner: Tensor
    ) -> Iterator[tuple[Tensor, tuple[Tensor, Tensor, Tensor]]]:
        """Each form of an object that is there: its opacity (h, w) uint8, and the (image, row, column) it covers."""
        kinds = [self.contents[b].get(thing.name) for b in buckets]
        for kind in sorted({k for k in kinds if k is not None}):
            rows = torch.tensor([k == kind for k in kinds]).nonzero()[:, 0]
            bitmap = torch.from_numpy(thing.bitmap(kind).copy())
            height, width = bitmap.shape
            down = torch.arange(height).view(1, -1, 1) + corner[rows, 0].view(-1, 1, 1)
            right = torch.arange(width).view(1, 1, -1) + corner[rows, 1].view(-1, 1, 1)
            yield bitmap, (rows.view(-1, 1, 1), down, right)

    def _backdrop(self, draws: Draws) -> Tensor:
        pixels = 3 * self.size * self.size
        if self.background == "noise":
            words = draws.bits("noise", -(-pixels // 4))
            lanes = torch.stack([(words >> shift) & 0xFFFF for shift in (0, 16, 32, 48)], dim=-1)
            noise = (lanes * (self.noise_max + 1)) >> 16
            return noise.flatten(1)[:, :pixels].reshape(-1, *self.shape).to(torch.uint8)
        if self.background == "places":
            return self._places[draws.integer(len(self._places), "places", 1)[:, 0]]
        return torch.zeros(len(draws), *self.shape, dtype=torch.uint8)

    @cached_property
    def _places(self) -> Tensor:
        """The pool of real backgrounds: resized (bicubic) to the canvas, brightness x 0.7."""
        folder = Path(self.root or ".") / "places" / self.places_folder
        files = sorted(p for p in folder.glob("*") if p.suffix.lower() in {".jpg", ".jpeg", ".png"})
        if len(files) <= max(PLACES):
            raise SalrunError(
                f"background=places needs at least {max(PLACES) + 1} pictures, found {len(files)} in {folder}; put "
                f"pictures of one Places class (the paper: stadium/baseball) there, or set data_root / SALRUN_DATA"
            )

        def prepare(picture: Image.Image) -> Image.Image:
            small = picture.resize((self.size, self.size), Image.Resampling.BICUBIC)
            return ImageEnhance.Brightness(small).enhance(0.7)

        return read_pictures([files[position] for position in PLACES], prepare)


def int_or_str(bucket: str) -> tuple[int, str]:
    """Sort key: 2 before 10, names after numbers."""
    return (int(bucket), "") if bucket.isdigit() else (1 << 30, bucket)


def _tuples(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list | tuple) else v for k, v in spec.items()}


def _plain(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, list | tuple) else v for k, v in spec.items()}
