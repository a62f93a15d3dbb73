"""The cached stages of a cell: fit, maps, scores. Each asks the store first and publishes what it computed."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from salrun.build import Cell, MethodPart, MetricPart
from salrun.errors import SalrunError
from salrun.methods.iba import fit_feature_stats
from salrun.metrics.perturbation import batch_size
from salrun.models.classifier import Classifier
from salrun.models.inference import inference_copy
from salrun.rng import Draws
from salrun.store import key_of, source_of, users_code
from salrun.types import NAN_MAP, OK, Batch, FeatureStats, Fitted, Scene, Score
from salrun.views import NamedView, group_clip, map_flags

log = logging.getLogger(__name__)

FIT_BATCH = 50


@dataclass(frozen=True)
class Tile:
    """Consecutive explained images; the unit of work, of resume and of sharding."""

    index: int
    ids: tuple[str, ...]


def tiles(ids: Sequence[str], size: int, shard: tuple[int, int] = (0, 1)) -> list[Tile]:
    """Cut the explained images into tiles of `size`; shard i of n takes every n-th tile."""
    cut = [Tile(k // size, tuple(ids[k : k + size])) for k in range(0, len(ids), size)]
    if shard[0] >= len(cut):
        raise SalrunError(
            f"shard={shard[0]}/{shard[1]} is empty: {len(ids)} images are {len(cut)} tiles of {size}; take "
            f"fewer shards, or smaller tiles (tile=)"
        )
    return cut[shard[0] :: shard[1]]


@dataclass
class Result:
    """What was measured on one tile with one model."""

    tile: Tile
    model: str
    batch: Batch
    prediction: Tensor
    confidence: Tensor
    target: dict[str, Tensor] = field(default_factory=dict)  # by method
    scores: dict[tuple[str, str, str], Score] = field(default_factory=dict)  # by (method, metric, variant)


class Stages:
    """The stages of one cell with one model."""

    def __init__(self, cell: Cell, name: str, model: Classifier, others: Mapping[str, Stages] | None = None) -> None:
        self.cell = cell
        self.name = name
        self.model = model
        self.others = dict(others or {})
        self.computed = {"maps": 0, "scores": 0}  # what the store did not have
        self.base = {
            "model": model.fingerprint,
            "data": cell.dataset.fingerprint(),
            **users_code(cell.dataset, cell.config.get("dataset")),
            "seed": cell.seed,
            "tile": cell.tile,
            "precision": cell.precision,
            "device": cell.device.type,
        }
        self._fitted: dict[str, Fitted] = {}
        self._maps: dict[tuple[int, str], Tensor] = {}
        self._opened: Result | None = None
        self._scene: tuple[tuple[int, str, str | None], Scene, Tensor] | None = None
        self._asking = ""  # source of the metric at work: shared work is keyed by it

    @cached_property
    def fast(self) -> Classifier:
        """The copy of the model that metrics run forward on; how it was made is in its fingerprint."""
        cell = self.cell
        ids = cell.dataset.explained()
        each = sum(m.metric.passes(self.model, cell.dataset.shape) for m in cell.metrics) * len(cell.methods)
        shared = sum(m.metric.shared_passes(self.model, cell.dataset.shape) for m in cell.metrics)
        probe = self._raw(cell.dataset.batch(ids[:4]).x)
        passes = (each + shared) * len(ids) / cell.shard[1]
        return inference_copy(self.model, probe, cell.compile, passes, self.forward_batch)

    @cached_property
    def forward_batch(self) -> int:
        """Images per forward pass of the metrics."""
        return batch_size(torch.empty(1, *self.cell.dataset.shape, device=self.cell.device), self.cell.chunk)

    # -- fit -------------------------------------------------------------------------------------------------------

    def fitted(self, part: MethodPart) -> Fitted:
        """Background images and feature statistics the method asks for, from training images; cached."""
        if part.name not in self._fitted:
            background = self._background(part) if "background" in part.method.needs else None
            stats = self._feature_stats(part) if "feature_stats" in part.method.needs else None
            layer = getattr(part.method, "layer", None) if "layer" in part.method.needs else None
            self._fitted[part.name] = Fitted(background, stats, layer, chunk=self.cell.chunk)
        return self._fitted[part.name]

    def _training_ids(self, n: int, purpose: str) -> list[str]:
        ids = self.cell.dataset.ids("train")
        order = Draws.of(self.cell.seed, [purpose]).permutation(len(ids), "fit")[0]
        return [ids[i] for i in order[:n].tolist()]

    def _background(self, part: MethodPart) -> Tensor:
        n = int(getattr(part.method, "n_references", 100))
        ids = self._training_ids(n, "background")
        return self._raw(self.cell.dataset.images(ids)[0])

    def _feature_stats(self, part: MethodPart) -> FeatureStats:
        layer = str(getattr(part.method, "layer", "iba"))
        n = int(self.cell.config.get("fit_images") or 1000)
        key = key_of("fit", **self.base, layer=layer, n=n, source=source_of(part.method))
        known = self.cell.store.read("fit", key)
        if known is None:
            with self.cell.store.lease("fit", key, f"feature statistics of {layer}"):
                if not self.cell.store.has("fit", key):  # another process may have made them while this one waited
                    ids = self._training_ids(n, "feature_stats")
                    batches = (
                        self._raw(self.cell.dataset.images(ids[k : k + FIT_BATCH])[0])
                        for k in range(0, len(ids), FIT_BATCH)
                    )
                    stats = fit_feature_stats(self.model, layer, batches)
                    tensors = {"mean": stats.mean, "std": stats.std, "active": stats.active}
                    self.cell.store.write("fit", key, tensors, {"n": stats.n})
            known = self.cell.store.read("fit", key)
            if known is None:
                raise SalrunError(f"the store at {self.cell.store.root} loses what is written to it")
        tensors, meta = known
        device = self.cell.device
        return FeatureStats(
            tensors["mean"].to(device), tensors["std"].to(device), tensors["active"].to(device), meta["n"]
        )

    def _raw(self, x: Tensor) -> Tensor:
        x = x.to(self.cell.device)
        return (x.float() / 255 if x.dtype == torch.uint8 else x).to(getattr(torch, self.cell.precision))

    # -- maps ------------------------------------------------------------------------------------------------------

    def open(self, tile: Tile) -> Result:
        """Images, predictions and explained classes of a tile."""
        batch = self.cell.dataset.batch(list(tile.ids)).to(self.cell.device)
        if batch.x.dtype != getattr(torch, self.cell.precision):
            batch = Batch(self._raw(batch.x), batch.y, batch.id, batch.group, batch.masks, batch.roles)
        with torch.no_grad():
            logits = self.model(batch.x)
        probabilities = logits.double().softmax(1) if logits.device.type != "mps" else logits.cpu().double().softmax(1)
        prediction = logits.argmax(1)
        result = Result(tile, self.name, batch, prediction, probabilities.amax(1))
        kinds = {"predicted": prediction, "label": batch.y, "least_probable": logits.argmin(1)}
        for part in self.cell.methods:
            result.target[part.name] = kinds[part.target]
        return result

    def opened(self, tile: Tile) -> Result:
        """`open`, once per tile: for other models' metrics, which ask for this model's maps of its own target."""
        if self._opened is None or self._opened.tile != tile:
            self._opened = self.open(tile)
        return self._opened

    def tile_key(self, tile: Tile) -> str:
        """Names the tile for leases: one process at a time works on the images of a tile with a model."""
        return key_of("tiles", **self.base, ids=tile.ids)

    def map_key(self, tile: Tile, part: MethodPart) -> str:
        return key_of(
            "maps",
            **self.base,
            ids=tile.ids,
            method=part.config,
            target=part.target,
            source=source_of(part.method),
            fit_images=self.cell.config.get("fit_images") if "feature_stats" in part.method.needs else None,
        )

    def map(self, result: Result, part: MethodPart, keep: bool = True) -> Tensor:
        """The raw attribution of a tile, from memory, the store, or the method."""
        slot = (result.tile.index, part.name)
        if slot not in self._maps:
            key = self.map_key(result.tile, part)
            known = self.cell.store.read("maps", key)
            if known is not None:
                self._maps[slot] = known[0]["map"].to(self.cell.device)
            else:
                self._maps[slot] = self._explain(part, result, result.batch.x)
                self.computed["maps"] += 1
                if keep:
                    self.cell.store.write("maps", key, {"map": self._maps[slot]}, {"method": part.name})
        return self._maps[slot]

    def _explain(self, part: MethodPart, result: Result, x: Tensor) -> Tensor:
        fitted = self.fitted(part)
        if "masks" in part.method.needs:
            fitted = Fitted(masks=result.batch.masks, roles=result.batch.roles, chunk=self.cell.chunk)
        rng = Draws.of(self.cell.seed, result.tile.ids, self.cell.device)
        raw = part.method(self.model, x, result.target[part.name], rng, fitted)
        if raw.dim() != 4 or raw.shape[0] != x.shape[0] or raw.shape[2:] != x.shape[2:]:
            raise SalrunError(
                f"method '{part.name}' returned shape {tuple(raw.shape)} for images {tuple(x.shape)}; "
                f"expected (B, C, H, W) or (B, 1, H, W)"
            )
        return raw.detach()

    def plane(self, view: NamedView, raw: Tensor, groups: Sequence[str]) -> Tensor:
        """The view of a raw attribution; a view that clips by group needs tiles that are groups."""
        if not view.needs_clip:
            return view(raw)
        if len(set(groups)) > 1:
            raise SalrunError(
                f"view '{view.name}' clips by group, so a tile must be one group: set tile=<images per group>"
            )
        return view(raw, group_clip(raw))

    # -- scores ----------------------------------------------------------------------------------------------------

    def score_key(self, tile: Tile, part: MethodPart, metric: MetricPart, view: NamedView | None) -> str:
        others = {name: self.others[name].model.fingerprint for name in metric.metric.reads()}
        again = self.cell.explainer(part, metric.metric)
        fixed = {"explainer": self.map_key(tile, again)} if again is not part else {}
        return key_of(
            "scores",
            map=self.map_key(tile, part),
            metric=metric.config,
            view=view.name if view else None,
            source=source_of(metric.metric),
            forward=self.fast.fingerprint if "model" in metric.metric.needs else None,
            views=source_of(NamedView),
            other=others or None,
            **fixed,
        )

    def score(self, result: Result, part: MethodPart, metric: MetricPart, keep_map: bool) -> dict[str, Score]:
        """All named scores of one metric variant for one method on a tile."""
        view = metric.view_of(part)
        key = self.score_key(result.tile, part, metric, view)
        known = self.cell.store.read("scores", key)
        if known is not None:
            return _unpack(*known)
        raw = self.map(result, part, keep_map)
        self._asking = source_of(metric.metric)
        scene, plane = self.scene(result, part, view, raw)
        scores = metric.metric(plane, scene)
        named = scores if isinstance(scores, dict) else {"": scores}
        try:
            named = {name: without_nan_maps(score, map_flags(raw)) for name, score in named.items()}
        except SalrunError as fault:
            raise SalrunError(f"metrics.{metric.name}: {fault}") from fault
        self.computed["scores"] += 1
        self.cell.store.write("scores", key, *_pack(named))
        return named

    def scene(self, result: Result, part: MethodPart, view: NamedView | None, raw: Tensor) -> tuple[Scene, Tensor]:
        """One scene and plane for all metrics that read the same view of the same method's maps: they share work."""
        slot = (result.tile.index, part.name, view.name if view else None)
        if self._scene is None or self._scene[0] != slot:
            try:
                plane = raw if view is None else self.plane(view, raw, result.batch.group)
            except SalrunError as fault:
                raise SalrunError(f"method '{part.name}': {fault}") from fault
            self._scene = (slot, self._new_scene(result, part, view), plane)
        return self._scene[1], self._scene[2]

    def _new_scene(self, result: Result, part: MethodPart, view: NamedView | None) -> Scene:
        def explain(x: Tensor, by: MethodPart = part) -> Tensor:
            raw = self._explain(by, result, x)
            return raw if view is None else self.plane(view, raw, result.batch.group)

        def explain_by(name: str, x: Tensor) -> Tensor:
            return explain(x, next(p for p in self.cell.methods if p.name == name))

        def other_map(name: str) -> Tensor:
            stages = self.others[name]
            raw = stages.map(stages.opened(result.tile), part)
            return raw if view is None else stages.plane(view, raw, result.batch.group)

        def shared(name: str, compute: Any) -> dict[str, Tensor]:
            key = key_of(
                "shared",
                **self.base,
                forward=self.fast.fingerprint,
                ids=result.tile.ids,
                name=name,
                target=part.target,
                source=self._asking,
            )
            known = self.cell.store.read("shared", key)
            if known is None:
                tensors = compute()
                self.cell.store.write("shared", key, tensors)
                return tensors
            return {k: v.to(self.cell.device) for k, v in known[0].items()}

        return Scene(
            model=self.fast if any("model" in m.metric.needs for m in self.cell.metrics) else self.model,
            x=result.batch.x,
            y=result.batch.y,
            target=result.target[part.name],
            rng=Draws.of(self.cell.seed, result.tile.ids, self.cell.device),
            masks=result.batch.masks,
            roles=result.batch.roles,
            explain=explain,
            explain_by=explain_by,
            other_map=other_map,
            shared=shared,
            chunk=self.cell.chunk,
        )

    def close(self, tile: Tile) -> None:
        """Forget the tile's tensors: memory stays flat."""
        for stages in (self, *self.others.values()):
            stages._maps = {slot: m for slot, m in stages._maps.items() if slot[0] != tile.index}
            stages._opened = None
            stages.model.forget()
        self._scene = None


def without_nan_maps(score: Score, flags: Tensor) -> Score:
    """NaN maps have no score, whatever the metric made of them; other flags of the map fill an `ok`."""
    if not isinstance(score, Score) or not score.value.shape == score.flag.shape == flags.shape:
        got = f"values {tuple(score.value.shape)}" if isinstance(score, Score) else f"a {type(score).__name__}"
        raise SalrunError(f"a metric must return a Score, a value and a flag for each of {len(flags)} maps, got {got}")
    flags = flags.to(score.flag.device)
    broken = flags == NAN_MAP
    value = score.value.masked_fill(broken, torch.nan)
    flag = torch.where(broken | ((score.flag == OK) & (flags != OK)), flags, score.flag)
    return Score(value, flag, score.curve, score.curve_x)


def _pack(named: Mapping[str, Score]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors: dict[str, Tensor] = {}
    for name, score in named.items():
        tensors[f"{name}/value"], tensors[f"{name}/flag"] = score.value.double(), score.flag
        if score.curve is not None:
            tensors[f"{name}/curve"] = score.curve
        if score.curve_x is not None:
            tensors[f"{name}/curve_x"] = score.curve_x
    return tensors, {"names": list(named)}


def _unpack(tensors: dict[str, Tensor], meta: dict[str, Any]) -> dict[str, Score]:
    return {
        name: Score(
            tensors[f"{name}/value"],
            tensors[f"{name}/flag"],
            tensors.get(f"{name}/curve"),
            tensors.get(f"{name}/curve_x"),
        )
        for name in meta["names"]
    }
