"""Maps packed for the page: 8-bit planes, deflated, base64; the browser unpacks, colours and draws them on demand.

Each plane is stored as integers in [-levels, levels] relative to its own largest absolute value, which is kept beside
it, so per-map and shared colour scales both stay exact to one level. A NaN pixel keeps a code of its own.
"""

from __future__ import annotations

import base64
import zlib
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from salrun.results.maps import PER_IMAGE, BadMaps, KeptMaps
from salrun.results.run import MissingFile, Run, UnreadableFile
from salrun.results.tables import SCORE

MAX_IMAGES = 400  # beyond this nobody looks, and packing takes minutes
MAX_SIDE = 112  # pixels; 224 is halved exactly
LEVELS = (127, 31)  # the finer where it fits the budget
NAN = -128


@dataclass(frozen=True)
class Gallery:
    meta: dict[str, Any]
    blobs: dict[str, str]
    notes: list[str]


def pack_gallery(run: Run, budget: int) -> Gallery:
    """The run's maps in at most about `budget` characters. Raises BadMaps where there is nothing to show."""
    maps = KeptMaps(run.path / "maps")
    index = _as_text(maps.index)
    methods = [{key: m[key] for key in ("name", "label", "signed")} for m in maps.index["methods"]]
    ids, groups = index["image_id"], index["group"]
    notes: list[str] = []
    shown = spread(groups, MAX_IMAGES)
    height, width, _ = maps.pictures.shape[1:]
    pixels = np.rint(pool(maps.pictures[shown].astype(np.float32))).astype(np.uint8)

    planes: dict[str, NDArray[np.float32]] = {}
    scales: dict[str, NDArray[np.float32]] = {}
    for method in methods:
        name = method["name"]
        try:
            plane, scales[name] = maps.planes(name), maps.scale(name)[shown]
            if plane.shape[1:] != (height, width):
                raise BadMaps(f"its maps have shape {plane.shape[1:]}, the images {(height, width)}.")
        except BadMaps as fault:
            notes.append(f"{method['label']} is not shown: {fault}")
        else:
            planes[name] = pool(plane[shown])
    methods = [m for m in methods if m["name"] in planes]
    if not methods:
        raise BadMaps(" ".join(["No method has maps that can be read.", *notes]))

    scores = _scores(run, maps.cell(), [ids[i] for i in shown], list(planes), notes)
    space = budget - sum(len(blob) for blob, _ in scores.packed())
    levels, fits = _plan(pixels, planes, space)
    chosen = spread([groups[i] for i in shown], fits)
    shown, pixels, scores = shown[chosen], pixels[chosen], scores.of(chosen)
    if len(shown) < len(ids):
        notes.append(f"{len(shown)} of {len(ids)} images are shown, the first of each group in turn, to keep the file"
                     " small; the numbers in the tables use all images.")  # fmt: skip
    if pixels.shape[1:3] != (height, width):
        notes.append(f"Drawn at {pixels.shape[2]} x {pixels.shape[1]} pixels (averaged down from {width} x {height}).")

    packed = {"images": deflate(pixels)}
    for number, method in enumerate(methods):
        codes, scale = quantise(planes.pop(method["name"])[chosen], levels)
        scale = scale * scales[method["name"]][chosen]
        method["scale"] = [float(f"{s:.5g}") if np.isfinite(s) else 0.0 for s in scale]
        packed[f"map{number}"] = deflate(codes.view(np.uint8)[..., None])
    packed["values"], packed["flags"] = scores.packed()
    meta = {
        "height": pixels.shape[1], "width": pixels.shape[2], "source": [height, width], "levels": levels,
        **{name: [index[name][i] for i in shown] for name in PER_IMAGE},
        "masks": {name: [boxes[i] for i in shown] for name, boxes in index["masks"].items()},
        "roles": {name: [roles[i] for i in shown] for name, roles in index["roles"].items()},
        "methods": methods, "metrics": scores.metrics, "flags": scores.flag_names,
        "delta": {name: delta for name, (_, delta) in packed.items()},
    }  # fmt: skip
    return Gallery(meta, {name: blob for name, (blob, _) in packed.items()}, notes)


def _as_text(index: dict[str, Any]) -> dict[str, Any]:
    """What is known of each image, as text; labels that are numbers by the names of their classes."""
    names = dict(enumerate(index["classes"]))
    shown = {name: list(map(_text, index[name])) for name in ("image_id", "group")}
    shown |= {name: [_text(names.get(item, item)) for item in index[name]] for name in ("label", "prediction")}
    return {**index, **shown}


def _text(item: Any) -> str | None:
    return None if item is None else str(item)


def spread(groups: list[str], n: int) -> NDArray[np.intp]:
    """Positions, in order, of n images taken from the groups in turn."""
    seen: dict[str, int] = defaultdict(int)
    rank = []
    for group in groups:
        rank.append(seen[group])
        seen[group] += 1
    return np.sort(np.argsort(rank, kind="stable")[:n])


def pool(x: NDArray[np.float32], side: int = MAX_SIDE) -> NDArray[np.float32]:
    """Mean over blocks, so that neither height nor width (axes 1 and 2) exceeds `side`."""
    block = -(-max(x.shape[1:3]) // side)
    for axis in (1, 2) if block > 1 else ():
        starts = np.arange(0, x.shape[axis], block)
        sizes = np.diff(np.append(starts, x.shape[axis]))
        sums = np.add.reduceat(x, starts, axis=axis)
        x = (sums / np.expand_dims(sizes, list(range(1, x.ndim - axis)))).astype(np.float32)
    return x


def quantise(plane: NDArray[np.float32], levels: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Codes in [-levels, levels] and the absolute value that `levels` stands for, per map."""
    scale = np.where(np.isfinite(plane), np.abs(plane), 0).max(axis=(1, 2))
    unit = np.where(scale > 0, scale, 1)[:, None, None]
    codes = np.rint(np.clip(plane / unit, -1, 1) * levels)
    return np.where(np.isnan(plane), NAN, codes).astype(np.int8), scale.astype(np.float32)


def deflate(data: NDArray[np.uint8]) -> tuple[str, bool]:
    """Base64 of the zlib stream of (..., W, C) bytes, and whether it is that of differences along W (if shorter)."""
    plain = zlib.compress(data.tobytes(), 6)
    zero = np.zeros_like(data[..., :1, :])
    delta = zlib.compress(np.diff(data, axis=-2, prepend=zero).tobytes(), 6)
    return base64.b64encode(min(plain, delta, key=len)).decode("ascii"), len(delta) < len(plain)


def _plan(pixels: NDArray[np.uint8], planes: dict[str, NDArray[np.float32]], budget: int) -> tuple[int, int]:
    """How fine, and how many images: judged on a few of them."""
    n = len(pixels)
    sample = np.unique(np.linspace(0, n - 1, 16).astype(int))
    fits = 0
    for levels in LEVELS:
        size = len(deflate(pixels[sample])[0]) + sum(
            len(deflate(quantise(plane[sample], levels)[0].view(np.uint8)[..., None])[0]) for plane in planes.values()
        )
        fits = int(max(budget, 0) * len(sample) / size)
        if fits >= n:
            return levels, n
    return LEVELS[-1], min(n, max(1, fits))


def name_scores(table: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """A name for each row's score that methods share, and the view that made its plane.

    Where every method is judged through one view of its own, as in SMERF, the view is left out of the name, or methods
    could not be compared.
    """
    parts = table[["metric", "method", "mode", "score", "view"]].astype("string").fillna("").astype(str)
    distinct = parts.drop_duplicates()
    several = distinct.duplicated(["metric", "method", "mode", "score"], keep=False)
    full = parts["metric"].isin(set(distinct.loc[several, "metric"]))
    told = parts.assign(view=parts["view"].where(full, ""))[["mode", "score", "view"]]
    joined = [" ".join(filter(None, row)) for row in zip(*(told[name].tolist() for name in told), strict=True)]
    suffix = pd.Series(joined, told.index, parts["metric"].dtype)
    return parts["metric"].where(suffix == "", parts["metric"] + " · " + suffix), parts["view"].mask(full, "")


@dataclass(frozen=True)
class Scores:
    """Values and flags as (metric, method, image), the image's own scores behind the last method; NaN for none."""

    metrics: list[dict[str, str]]
    values: NDArray[np.float64]
    flags: NDArray[np.uint8]
    flag_names: list[str]

    def of(self, images: NDArray[np.intp]) -> Scores:
        return replace(self, values=self.values[..., images], flags=self.flags[..., images])

    def packed(self) -> tuple[tuple[str, bool], tuple[str, bool]]:
        values = np.ascontiguousarray(self.values, dtype="<f4").view(np.uint8)
        return deflate(values[..., None]), deflate(self.flags[..., None])


def _scores(run: Run, cell: str, ids: list[str], methods: list[str], notes: list[str]) -> Scores:
    """The scores and the confidence of these images: of the model whose maps are shown, where the run has several."""
    shape = len(methods) + 1, len(ids)
    columns = ["cell", "model", "seed", "image_id", *SCORE, "value", "flag"]
    try:
        scores = run.read_scores(columns, ids)
        ways = run.summary[["metric", "mode", "score", "direction"]].drop_duplicates()
        images = run.images
    except (MissingFile, UnreadableFile) as fault:
        why = f"{fault.name} is missing" if isinstance(fault, MissingFile) else str(fault)
        notes.append(f"There are no scores under the maps: {why}.")
        return Scores([], np.empty((0, *shape)), np.empty((0, *shape), np.uint8), ["ok"])
    scores = scores[scores["method"].isin(methods)]
    cells = scores[["cell", "model", "seed"]].drop_duplicates("cell")
    if len(cells) > 1:
        shown = cells[cells["cell"] == cell] if cell in set(cells["cell"]) else cells.iloc[:1]
        cell, model, seed = shown.iloc[0]
        scores = scores[scores["cell"] == cell]
        notes.append(f"The scores under the maps are those of model {model}, seed {seed}; the tables also have those of"
                     f" {len(cells) - 1} more.")  # fmt: skip
    elif len(cells):
        cell = cells["cell"].iloc[0]
    scores = scores.merge(ways, on=["metric", "mode", "score"], how="left")
    confidence = images[(images["cell"] == cell) & images["image_id"].isin(ids)]
    confidence = confidence[["image_id", "confidence"]].rename(columns={"confidence": "value"})
    flags = np.where(confidence["value"].isna(), "undefined", "ok")
    confidence = confidence.assign(
        method="", metric="confidence", mode="", score="", view="", flag=flags, direction="none"
    )
    scores = pd.concat([scores, confidence], ignore_index=True)  # the first metric is one of maps
    names, _ = name_scores(scores)
    keys = scores.assign(name=names)[["name", "metric", "direction"]].drop_duplicates("name")
    several = keys["metric"].duplicated(keep=False)
    metrics = [
        {"label": str(name if more else metric), "direction": str(way)}
        for name, metric, way, more in zip(keys["name"], keys["metric"], keys["direction"], several, strict=True)
    ]
    at = (
        pd.Index(keys["name"]).get_indexer(names),
        pd.Index([*methods, ""]).get_indexer(scores["method"]),
        pd.Index(ids).get_indexer(scores["image_id"]),
    )
    flag_codes, flag_names = pd.factorize(pd.concat([pd.Series(["ok"]), scores["flag"].astype(str)]))
    values = np.full((len(keys), *shape), np.nan)
    values[at] = scores["value"]
    flags = np.zeros((len(keys), *shape), np.uint8)
    flags[at] = flag_codes[1:]
    return Scores(metrics, values, flags, [str(name) for name in flag_names])
