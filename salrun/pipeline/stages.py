"""The cached stages of a cell: fit, maps, planes, scores. Each asks the store first and publishes what it computed.

One object owns the stages of all models of a cell: the run's own model and the `others` that metrics compare it with.
A tile is opened, measured with every model and closed; a map that several metrics or models ask for is made once.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from salrun.config.parts import MethodPart, MetricPart
from salrun.errors import SalrunError
from salrun.methods.chunking import FREE_CHUNK, gather_chunked, halving
from salrun.methods.iba import fit_feature_stats
from salrun.metrics.common import settled
from salrun.metrics.perturbation import batch_size
from salrun.models.classifier import Classifier
from salrun.models.compiling import Experience, Work
from salrun.models.inference import InferenceCopy, folded_copy, inference_copy
from salrun.models.soundness import Soundness, gradients_of, soundness
from salrun.models.target import targeted
from salrun.pipeline.build import Cell
from salrun.pipeline.guard import Guard
from salrun.pipeline.reading import Reader
from salrun.pipeline.returned import check_map, check_scores
from salrun.rng import Draws
from salrun.store.entries import check_entry, key_of
from salrun.store.sources import of_user, source_of, source_of_module, users_code
from salrun.types import FLAGS, Batch, FeatureStats, Fitted, Metric, Scene, Score
from salrun.views import NamedView, group_clip

log = logging.getLogger(__name__)
T = TypeVar("T")

FIT_BATCH = 50
FEW = 1000  # forward passes of a model: to prove that a copy is the same would take longer than it saves
OWN = "model"  # the role of the run's own model


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


def tiles_of(cell: Cell) -> list[Tile]:
    """The tiles that a cell works on. A view that clips by group sees one tile: every tile must be a whole group."""
    ids = cell.dataset.explained()
    twice = next((name for name, n in Counter(ids).items() if n > 1), None)
    if twice is not None:
        raise SalrunError(f"data set '{cell.dataset.name}' explains image {twice} twice: is a group named twice?")
    work = tiles(ids, cell.tile, cell.shard)
    views = [part.view for part in cell.methods] + [m.view for m in cell.metrics if isinstance(m.view, NamedView)]
    clipping = next((view.name for view in views if view.needs_clip), None)
    if clipping is None:
        return work
    sizes = Counter(cell.dataset.groups_of(ids))
    for tile in work:
        inside = Counter(cell.dataset.groups_of(tile.ids))
        if len(inside) > 1 or any(n < sizes[group] for group, n in inside.items()):
            wanted = sizes.most_common(1)[0][1] if len(set(sizes.values())) == 1 else "<images per group>"
            raise SalrunError(f"view '{clipping}' clips by group, so a tile must be a whole group: set tile={wanted}")
    return work


@dataclass
class Result:
    """What was measured on one tile with one model."""

    tile: Tile
    role: str
    batch: Batch
    prediction: Tensor
    confidence: Tensor
    target: dict[str, Tensor] = field(default_factory=dict)  # by method
    scores: dict[tuple[str, str, str, str, str], Score] = field(default_factory=dict)  # by tables.SCORE
    of_class: bool = True  # or of the run's target function


class Stages:
    """The stages of one cell with all its models; `keep_maps`: whether raw maps are stored."""

    def __init__(self, cell: Cell, models: Mapping[str, Classifier], keep_maps: bool = True) -> None:
        self.cell = cell
        self.classifiers = dict(models)
        self.models = {role: self._explained(model) for role, model in models.items()}
        self.keep_maps = keep_maps
        self.reader = Reader(cell.dataset, cell.device)
        self.guard = Guard()
        for role, model in self.models.items():
            self.guard.keep_model(role, model)
        self.computed = {role: {"maps": 0, "scores": 0} for role in self.models}  # what the store did not have
        self._data = {"data": cell.dataset.fingerprint(), **users_code(cell.dataset, cell.config.get("dataset"))}
        self.halved: list[dict[str, Any]] = []  # chunks that did not fit into memory
        self._chunks: dict[tuple[str, str], int] = {}  # what they became, by role and part
        self._inference: dict[tuple[str, str], InferenceCopy] = {}  # by role and numerics
        self._folded: dict[tuple[str, bool], Classifier] = {}
        self._averaging: dict[str, InferenceCopy] = {}
        self._compiled: dict[str, bool] = {}  # chosen, by role
        self._soundness: dict[str, Soundness] = {}
        self._fitted: dict[tuple[str, str], Fitted] = {}
        self._results: dict[str, Result] = {}  # of the open tile, by role
        self._maps: dict[tuple[str, str, str], Tensor] = {}  # of the open tile, by role, method and network
        self._scene: tuple[tuple[Any, ...], Scene, Tensor] | None = None  # of the open tile

    def _explained(self, model: Classifier) -> Classifier:
        """The model itself, or with the run's target function for its only logit."""
        target = self.cell.target
        if target is None:
            return model
        code = source_of_module(getattr(target, "func", target).__module__)
        return targeted(
            model, target, key_of("target", model=model.fingerprint, of=self.cell.config["target"], code=code)
        )

    def base(self, role: str) -> dict[str, Any]:
        """What every key of a model's results holds."""
        return {
            "model": self.models[role].fingerprint,
            **self._data,
            "seed": self.cell.seed,
            "tile": self.cell.tile,
            "precision": self.cell.precision,
            "device": self.cell.device.type,
        }

    def inference(self, role: str = OWN, exact: bool = False) -> InferenceCopy:
        """The copy of a model for forward-only work; how it was made is in its fingerprint.

        `exact`: none in half, for the few metrics that stay exact beside fast ones; not compiled.
        """
        beside = exact and self.cell.numerics != "exact"
        numerics: Literal["exact", "fast"] = "exact" if beside or self.cell.numerics == "exact" else "fast"
        if (role, numerics) not in self._inference:
            work = self._forward_work(role)
            compile: Literal["on", "off"] = "off" if beside else self._compile(role)
            copy = inference_copy(work.model, work.images, compile, work.batch, numerics=numerics)
            if copy.network.compiled is not None:
                Experience(self.cell.store).learn(work, copy)
            self._inference[role, numerics] = copy
            self.guard.keep_model(role, copy)
        return self._inference[role, numerics]

    def _forward_work(self, role: str) -> Work:
        """What the copy of a model will do in this run."""
        cell, model = self.cell, self.models[role]
        each = sum(m.metric.passes(model, cell.dataset.shape) for m in cell.metrics) * len(cell.methods)
        each += sum(m.metric.shared_passes(model, cell.dataset.shape) for m in cell.metrics)
        forward_only = [p.method for p in cell.methods if p.method.forward_only]
        each += sum(method.passes(model, cell.dataset.shape) for method in forward_only)
        passes = each * self._n_explained / cell.shard[1]
        return Work(model, self._first_images, passes, self.forward_batch, cell.numerics)

    def _compile(self, role: str) -> Literal["on", "off"]:
        """Chosen for all models before the first is compiled: what that costs must not bear on the others."""
        if self.cell.compile != "auto":
            return self.cell.compile
        if not self._compiled:
            experience = Experience(self.cell.store)
            self._compiled = {name: experience.choose(self._forward_work(name)) for name in self.models}
        return "on" if self._compiled[role] else "off"

    def folded(self, role: str = OWN, whole: bool = False) -> Classifier:
        """The copy of a model for exact work there and back; its fingerprint says how it was made. Or the model.

        `whole`: with all layers of the model, none folded into another.
        """
        if (role, whole) not in self._folded:
            model, data = self.models[role], self.cell.dataset
            methods = [part.method for part in self.cell.methods]
            served = [method for method in methods if (method.layout_free if whole else method.foldable)]
            planned = sum(method.passes(model, data.shape) for method in served)
            read = dict(model.module.named_modules()) if whole else (str(getattr(m, "layer", "")) for m in methods)
            keep = {model.layers.get(layer, layer) for layer in read}
            enough = planned * self._n_explained >= FEW
            copied = folded_copy(model, self._first_images[:2], keep) if enough else model
            self._folded[role, whole] = copied
            if copied is not model:
                self.guard.keep_model(role, copied)
        return self._folded[role, whole]

    def averaging(self, role: str = OWN) -> InferenceCopy:
        """The copy of a model in half precision for methods that average many gradients."""
        if role not in self._averaging:
            images = self._first_images
            self._averaging[role] = inference_copy(self.models[role], images, "off", numerics="fast", gradients=True)
            self.guard.keep_model(role, self._averaging[role])
        return self._averaging[role]

    def copies(self) -> dict[str, InferenceCopy]:
        """The copies made so far, by role."""
        own = "exact" if self.cell.numerics == "exact" else "fast"
        inference = {role if kind == own else f"{role}, {kind}": copy for (role, kind), copy in self._inference.items()}
        return {**inference, **{f"{role}, gradients": copy for role, copy in self._averaging.items()}}

    def network_of(self, role: str, part: MethodPart, exact: bool = False) -> Classifier:
        """What a method explains: the fastest copy of the model that it and `numerics` allow; `exact`: none in half."""
        method, numerics = part.method, "exact" if exact else self.cell.numerics
        if method.forward_only and numerics == self.cell.numerics:
            return self.inference(role)
        if method.averages_passes and numerics == "fast_gradients" and self.averaging(role).reduced:
            return self.averaging(role)
        if method.foldable or method.forward_only or method.layout_free:
            return self.folded(role, whole=method.layout_free)
        return self.models[role]

    @cached_property
    def _n_explained(self) -> int:
        return len(self.cell.dataset.explained())

    @cached_property
    def _first_images(self) -> Tensor:
        """As many of the first few images as the model takes at a time."""
        images = self._floats(self.reader.batch(self.cell.dataset.explained()[:4]).x)

        def taken(n: int | None) -> Tensor:
            with torch.no_grad():
                self.models[OWN](images[:n])
            return images[:n]

        return self._in_memory(taken, "predictions", OWN, Tile(-1, ()), None, len(images))

    def soundness(self, role: str = OWN) -> Soundness:
        """How a model answers to the first images; looked at once."""
        if role not in self._soundness:
            self._soundness[role] = soundness(self.classifiers[role], self._first_images)
        return self._soundness[role]

    @property
    def forward_batch(self) -> int:
        """Images per forward pass of the metrics."""
        return batch_size(torch.empty(1, *self.cell.dataset.shape, device=self.cell.device), self.cell.chunk)

    def _floats(self, x: Tensor) -> Tensor:
        x = x.to(self.cell.device)
        return (x.float() / 255 if x.dtype == torch.uint8 else x).to(getattr(torch, self.cell.precision))

    def _in_memory(
        self, work: Callable[[int | None], T], what: str, role: str, tile: Tile, chunk: int | None, free: int
    ) -> T:
        """`work(chunk)` of a part on a tile, its chunk halved until it fits; later tiles begin with that."""

        def told(before: int, after: int) -> None:
            self._chunks[role, what] = after
            self.halved.append({"what": what, "role": role, "tile": tile.index, "from": before, "to": after})

        return halving(work, self._chunks.get((role, what), chunk), free, what, told)

    # -- fit -------------------------------------------------------------------------------------------------------

    def fitted(self, role: str, part: MethodPart) -> Fitted:
        """Background images and feature statistics the method asks for, from training images; cached."""
        slot = role, part.name
        if slot not in self._fitted:
            background = self._background(part) if "background" in part.method.needs else None
            stats = self._feature_stats(role, part) if "feature_stats" in part.method.needs else None
            layer = getattr(part.method, "layer", None) if "layer" in part.method.needs else None
            self._fitted[slot] = Fitted(background, stats, layer, chunk=self.cell.chunk)
            of_stats = (stats.mean, stats.std, stats.active) if stats else ()
            self.guard.keep("its references", *filter(torch.is_tensor, (background, *of_stats)))
        return self._fitted[slot]

    def _training_ids(self, n: int, purpose: str) -> list[str]:
        ids = self.cell.dataset.ids("train")
        order = Draws.of(self.cell.seed, [purpose]).permutation(len(ids), "fit")[0]
        return [ids[i] for i in order[:n].tolist()]

    def _background(self, part: MethodPart) -> Tensor:
        n = int(getattr(part.method, "n_references", 100))
        return self._floats(self.reader.images(self._training_ids(n, "background")))

    def _feature_stats(self, role: str, part: MethodPart) -> FeatureStats:
        cell, layer = self.cell, str(getattr(part.method, "layer", "iba"))
        n = int(cell.config.get("fit_images") or 1000)
        key = key_of("fit", **self.base(role), layer=layer, n=n, source=source_of(part.method))
        stats = cell.store.read("fit", key, _stats)
        if stats is None:
            with cell.store.lease("fit", key, f"feature statistics of {layer}"):
                if not cell.store.has("fit", key):  # another process may have made them while this one waited
                    ids = self._training_ids(n, "feature_stats")
                    batches = (
                        self._floats(self.reader.images(ids[k : k + FIT_BATCH])) for k in range(0, len(ids), FIT_BATCH)
                    )
                    fitted = fit_feature_stats(self.models[role], layer, batches)
                    tensors = {"mean": fitted.mean, "std": fitted.std, "active": fitted.active}
                    cell.store.write("fit", key, tensors, {"n": fitted.n})
            stats = cell.store.read("fit", key, _stats)
            if stats is None:
                raise SalrunError(f"the store at {cell.store.root} loses what is written to it")
        mean, std, active = (values.to(cell.device) for values in (stats.mean, stats.std, stats.active))
        return FeatureStats(mean, std, active, stats.n)

    # -- maps ------------------------------------------------------------------------------------------------------

    def open(self, tile: Tile, role: str = OWN) -> Result:
        """Images, predictions and explained classes of a tile with a model; made once while the tile is open."""
        if role in self._results and self._results[role].tile == tile:
            return self._results[role]
        opened = next((result.batch for result in self._results.values() if result.tile == tile), None)
        batch = opened or self.reader.batch(tile.ids)
        if batch.x.dtype != getattr(torch, self.cell.precision):
            batch = replace(batch, x=self._floats(batch.x))
        with torch.no_grad(), self.guard.call(f"model '{self.models[role].name}'", False, role):
            logits = self._in_memory(
                lambda chunk: gather_chunked(lambda part: self.classifiers[role](batch.x[part]), len(batch), chunk),
                *("predictions", role, tile, self.cell.chunk, len(batch)),
            )
        probabilities = logits.double().softmax(1) if logits.device.type != "mps" else logits.cpu().double().softmax(1)
        prediction = logits.argmax(1)
        result = Result(tile, role, batch, prediction, probabilities.amax(1), of_class=self.cell.target is None)
        classes = {"predicted": prediction, "label": batch.y, "least_probable": logits.argmin(1)}
        for part in self.cell.methods:
            result.target[part.name] = classes[part.target] if result.of_class else torch.zeros_like(prediction)
        self._results[role] = result
        self.guard.lend("its images, labels or masks", role, lambda: _tensors(result))
        return result

    def close(self) -> None:
        """Forget the open tile's tensors: memory stays flat."""
        self._results, self._maps, self._scene = {}, {}, None
        self.guard.close()
        for model in (*self.models.values(), *self._folded.values()):
            model.forget()

    def tile_key(self, tile: Tile) -> str:
        """Names the tile for leases: one process at a time works on the images of a tile."""
        return key_of("tiles", **self.base(OWN), ids=tile.ids)

    def map_key(self, tile: Tile, part: MethodPart, role: str = OWN, exact: bool = False) -> str:
        network = self.network_of(role, part, exact)
        copied = {} if network is self.models[role] else {"network": network.fingerprint}
        read = {"content": part.method.content()} if "ids" in part.method.needs else {}
        return key_of(
            "maps",
            **self.base(role),
            **read,
            ids=tile.ids,
            method=part.config,
            target=part.target,
            source=source_of(part.method),
            fit_images=self.cell.config.get("fit_images") if "feature_stats" in part.method.needs else None,
            **copied,
        )

    def map(self, result: Result, part: MethodPart, exact: bool = False) -> Tensor:
        """The raw attribution of a tile, from memory, the store, or the method; `exact`: whatever `numerics` says."""
        slot = result.role, part.name, self.network_of(result.role, part, exact).fingerprint
        if slot not in self._maps:
            key = self.map_key(result.tile, part, result.role, exact)
            stored = self.cell.store.read("maps", key, partial(_map, result.batch.x))
            if stored is not None:
                self._maps[slot] = stored.to(self.cell.device)
            else:
                self._maps[slot] = self._explain(part, result, result.batch.x, exact)
                self.computed[result.role]["maps"] += 1
                if self.keep_maps:
                    self.cell.store.write("maps", key, {"map": self._maps[slot]}, {"method": part.name})
            raw = self._maps[slot]
            self.guard.lend(f"the map of method '{part.name}'", result.role, lambda: (raw,))
        return self._maps[slot]

    def packed(self, result: Result, part: MethodPart) -> dict[str, Tensor]:
        """`plane` (float16) and `scale` of a tile's maps, for looking at: the channel sum over its largest magnitude.

        Of a signed method the signed sum, else the sum of absolute values.
        """
        key = key_of("planes", map=self.map_key(result.tile, part, result.role), signed=part.method.signed)
        stored = self.cell.store.read("planes", key, partial(_planes, result.batch.x))
        if stored is not None:
            return stored
        raw = self.map(result, part)
        raw = raw.sum(1) if part.method.signed else raw.abs().sum(1)
        scale = raw.abs().flatten(1).amax(1).clamp(min=1e-30)
        tensors = {"plane": (raw / scale.view(-1, 1, 1)).half().cpu(), "scale": scale.float().cpu()}
        self.cell.store.write("planes", key, tensors)  # beside the map too: a sixth of its bytes, read by every run
        return tensors

    def _explain(
        self, part: MethodPart, result: Result, x: Tensor, exact: bool = False, target: Tensor | None = None
    ) -> Tensor:
        """The raw attribution of the tile's images, changed or not, for the method's target or another class."""
        network = self.network_of(result.role, part, exact)
        fitted = self.fitted(result.role, part)
        if "masks" in part.method.needs:
            fitted = replace(fitted, masks=result.batch.masks, roles=result.batch.roles)
        if "ids" in part.method.needs and x is result.batch.x:
            fitted = replace(fitted, ids=result.tile.ids)
        if any(network is copy for copy in self._inference.values()):
            fitted = replace(fitted, chunk=self.forward_batch)  # what the copy was made for
        rng = Draws.of(self.cell.seed, result.tile.ids, self.cell.device)
        explained = result.target[part.name] if target is None else target
        users = of_user(part.method)

        def work(chunk: int | None) -> Tensor:
            images = x.detach() if users else x  # a gradient asked for there stays there
            with nullcontext() if users else gradients_of(network):
                return part.method(network, images, explained, rng, replace(fitted, chunk=chunk))

        with self.guard.call(f"method '{part.name}'", users, result.role, x, explained):
            raw = self._in_memory(
                work, f"methods.{part.name}", result.role, result.tile, fitted.chunk, max(len(x), FREE_CHUNK)
            )
        return check_map(raw, x, part.name)

    # -- scores ----------------------------------------------------------------------------------------------------

    def score_key(self, tile: Tile, part: MethodPart, metric: MetricPart, role: str = OWN) -> str:
        view, exact = metric.view_of(part), explains_again(metric)
        others = {name: self.models[name].fingerprint for name in metric.metric.reads()}
        again = self.cell.explainer(part, metric.metric)
        fixed: dict[str, Any] = {"explainer": self.map_key(tile, again, role, exact)} if again is not part else {}
        if metric.metric.compares():
            fixed["suite"] = sorted(self.map_key(tile, each, role, exact) for each in self._suite_of(part))
        return key_of(
            "scores",
            map=self.map_key(tile, part, role, exact),
            metric=metric.config,
            view=view.name if view else None,
            source=source_of(metric.metric),
            forward=self.inference(role, metric.exact).fingerprint if "model" in metric.metric.needs else None,
            views=source_of(NamedView),
            other=others or None,
            **fixed,
        )

    def score(self, result: Result, part: MethodPart, metric: MetricPart) -> dict[str, Score]:
        """All named scores of one mode of a metric for one method on a tile."""
        key = self.score_key(result.tile, part, metric, result.role)
        stored = self.cell.store.read("scores", key, partial(_unpack, len(result.batch)))
        if stored is not None:
            return stored
        exact = explains_again(metric)
        raw = self.map(result, part, exact)
        scene, plane = self.scene(result, part, metric.view_of(part), raw, exact, metric.exact)
        shared = partial(self._shared_key, result, part, metric)
        asked = replace(
            scene,
            shared=partial(self._shared, shared),
            shared_rows=partial(self._shared_rows, shared),
            suite=partial(self._suite, result, part, metric),
        )
        users = of_user(metric.metric)
        if users:
            asked, plane = replace(asked, x=asked.x.detach()), plane.detach()
        with self.guard.call(f"metric '{metric.name}'", users, result.role, plane, asked.target):
            scores = self._in_memory(
                lambda chunk: metric.metric(plane, replace(asked, chunk=chunk)),
                *(f"metrics.{metric.name}", result.role, result.tile, self.cell.chunk, self.forward_batch),
            )
        by_name = scores if isinstance(scores, dict) else {"": scores}
        if users:
            by_name = check_scores(scores, metric.name)
        try:
            final = {name: settled(score, raw) for name, score in by_name.items()}
        except SalrunError as fault:
            raise SalrunError(f"metrics.{metric.name}: {fault}") from fault
        self.computed[result.role]["scores"] += 1
        self.cell.store.write("scores", key, *_pack(final))
        return final

    def _shared(self, key_of_work: Callable[[str], str], name: str, compute: Any) -> dict[str, Tensor]:
        """Work that a metric does once for all methods with the same target."""
        key = key_of_work(name)
        stored = self.cell.store.read("shared", key, _of_forms)
        if stored is None:
            tensors = compute()
            self.guard.check()
            self.cell.store.write("shared", key, tensors, _forms(tensors))
            return tensors
        return {k: v.to(self.cell.device) for k, v in stored.items()}

    def _shared_rows(
        self, key_of_work: Callable[[str], str], name: str, rows: Tensor, compute: Any
    ) -> dict[str, Tensor]:
        """The same for some images of the tile; the entry grows by those that it did not have."""
        key = key_of_work(name)
        stored = self.cell.store.read("shared", key, _of_forms)
        kept = {k: v.to(rows.device) for k, v in stored.items()} if stored else {}
        missing = rows[~torch.isin(rows, kept["rows"])] if kept else rows
        if len(missing):
            new = {**compute(missing), "rows": missing}
            kept = {k: torch.cat([kept[k], v]) for k, v in new.items()} if kept else new
            self.guard.check()
            self.cell.store.write("shared", key, kept, _forms(kept))
        place = (kept["rows"] == rows.unsqueeze(1)).long().argmax(1)
        return {k: v[place] for k, v in kept.items() if k != "rows"}

    def _shared_key(self, result: Result, part: MethodPart, metric: MetricPart, name: str) -> str:
        return key_of(
            "shared",
            **self.base(result.role),
            forward=self.inference(result.role, metric.exact).fingerprint,
            ids=result.tile.ids,
            name=name,
            target=part.target,
            source=source_of(metric.metric),
        )

    def _suite_of(self, part: MethodPart) -> list[MethodPart]:
        """A method, and the others of the run that explain the same class."""
        return [part, *(p for p in self.cell.methods if p.name != part.name and p.target == part.target)]

    def _suite(
        self, result: Result, part: MethodPart, asking: MetricPart, metric: Metric
    ) -> dict[str, dict[str, Score]]:
        """The scores of `metric`, which is the asking one with other options, for the methods of `_suite_of`."""
        options = {f.name: getattr(metric, f.name) for f in fields(metric)}  # type: ignore[arg-type]
        like = replace(asking, metric=metric, config={**asking.config, **options})
        return {p.name: self.score(result, p, like) for p in self._suite_of(part)}

    def scene(
        self,
        result: Result,
        part: MethodPart,
        view: NamedView | None,
        raw: Tensor,
        exact_map: bool = False,
        exact: bool = False,
    ) -> tuple[Scene, Tensor]:
        """One scene and plane for all metrics that read the same view of the same method's maps: they share work."""
        slot = (result.role, part.name, view.name if view else None, exact_map, exact)
        if self._scene is None or self._scene[0] != slot:
            try:
                plane = _plane(view, raw)
            except SalrunError as fault:
                raise SalrunError(f"method '{part.name}': {fault}") from fault
            self._scene = (slot, self._new_scene(result, part, view, exact), plane)
        return self._scene[1], self._scene[2]

    def _new_scene(self, result: Result, part: MethodPart, view: NamedView | None, exact: bool) -> Scene:
        def explain(x: Tensor, target: Tensor | None = None, by: MethodPart = part) -> Tensor:
            return _plane(view, self._explain(by, result, x, exact=True, target=target))

        def explain_by(name: str, x: Tensor) -> Tensor:
            return explain(x, by=next(p for p in self.cell.methods if p.name == name))

        def other_map(name: str, x: Tensor | None = None) -> Tensor:
            other = self.open(result.tile, name)
            return _plane(view, self.map(other, part) if x is None else self._explain(part, other, x, exact=True))

        looks = any("model" in m.metric.needs for m in self.cell.metrics)
        return Scene(
            model=self.inference(result.role, exact) if looks else self.models[result.role],
            x=result.batch.x,
            y=result.batch.y,
            target=result.target[part.name],
            rng=Draws.of(self.cell.seed, result.tile.ids, self.cell.device),
            masks=result.batch.masks,
            roles=result.batch.roles,
            explain=explain,
            explain_by=explain_by,
            other_map=other_map,
            chunk=self.cell.chunk,
        )


def _tensors(result: Result) -> list[Tensor]:
    batch = result.batch
    return [batch.x, batch.y, *batch.masks.values(), *batch.roles.values(), result.prediction, result.confidence]


def explains_again(metric: MetricPart) -> bool:
    """Whether a metric compares maps of neighbouring images; half precision would drown their small differences."""
    return "explain" in metric.metric.needs


def _plane(view: NamedView | None, raw: Tensor) -> Tensor:
    """The view of a raw attribution (None: itself); a view that clips by group gets whole groups (`tiles_of`)."""
    if view is None:
        return raw
    return view(raw, group_clip(raw)) if view.needs_clip else view(raw)


def _pack(named: Mapping[str, Score]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors: dict[str, Tensor] = {}
    for name, score in named.items():
        tensors[f"{name}/value"], tensors[f"{name}/flag"] = score.value.double(), score.flag
        if score.curve is not None:
            tensors[f"{name}/curve"] = score.curve
        if score.curve_x is not None:
            tensors[f"{name}/curve_x"] = score.curve_x
    return tensors, {"names": list(named), **_forms(tensors)}


def _unpack(n: int, tensors: dict[str, Tensor], meta: dict[str, Any]) -> dict[str, Score]:
    """The scores of `n` images."""
    scores = {
        name: Score(
            tensors[f"{name}/value"],
            tensors[f"{name}/flag"],
            tensors.get(f"{name}/curve"),
            tensors.get(f"{name}/curve_x"),
        )
        for name in meta["names"]
    }
    check_entry(bool(scores), "names")
    _check_forms(tensors, meta)
    for score in scores.values():
        check_entry(score.value.shape == score.flag.shape == (n,), "shapes")
        check_entry(score.value.dtype == torch.float64 and score.flag.dtype == torch.uint8, "types")
        check_entry(n == 0 or int(score.flag.max()) < len(FLAGS), "flags")
        if score.curve is not None:
            check_entry(score.curve.dim() == 2 and len(score.curve) == n, "curves")
            check_entry(score.curve_x is None or score.curve_x.shape == score.curve.shape[1:], "axis")
    return scores


# -- what entries of the store are made into: each raises where the content is not what was written --------------------


def _stats(tensors: dict[str, Tensor], meta: dict[str, Any]) -> FeatureStats:
    stats = FeatureStats(tensors["mean"], tensors["std"], tensors["active"], int(meta["n"]))
    check_entry(stats.mean.shape == stats.std.shape == stats.active.shape and stats.mean.dim() == 3, "shapes")
    check_entry(stats.mean.is_floating_point() and stats.std.is_floating_point(), "types")
    return stats


def _map(x: Tensor, tensors: dict[str, Tensor], meta: dict[str, Any]) -> Tensor:
    raw = tensors["map"]
    fits = raw.dim() == 4 and len(raw) == len(x) and raw.shape[2:] == x.shape[2:] and raw.shape[1] in (1, x.shape[1])
    check_entry(fits and raw.is_floating_point(), "map")
    return raw


def _planes(x: Tensor, tensors: dict[str, Tensor], meta: dict[str, Any]) -> dict[str, Tensor]:
    plane, scale = tensors["plane"], tensors["scale"]
    check_entry(plane.shape == (len(x), *x.shape[2:]) and scale.shape == (len(x),), "shapes")
    check_entry(plane.dtype == torch.float16 and scale.dtype == torch.float32, "types")
    return {"plane": plane, "scale": scale}


def _forms(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    return {"shapes": shapes, "types": {name: str(tensor.dtype) for name, tensor in tensors.items()}}


def _check_forms(tensors: Mapping[str, Tensor], meta: dict[str, Any]) -> None:
    """Entries of version 0.1 do not name the types of their tensors, or not even the shapes."""
    for what, found in _forms(tensors).items():
        check_entry(meta.get(what, found) == found, what)


def _of_forms(tensors: dict[str, Tensor], meta: dict[str, Any]) -> dict[str, Tensor]:
    check_entry("shapes" in meta, "notes")
    _check_forms(tensors, meta)
    return tensors
