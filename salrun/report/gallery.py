"""Maps packed for the page: 8-bit planes, deflated, base64; the browser unpacks, colours and draws them on demand.

Input, in `maps/` of a run directory:

- `index.json`: {"image_id", "group", "label", "prediction": one entry per image; "methods": [{"name", "label",
  "signed"}]; "masks": {name: [[row0, col0, row1, col1] (row1, col1 exclusive) or null, per image]}; and optionally
  "classes": names for labels that are numbers; "roles": {name: ["primary" | "secondary" | "neutral" | null, per
  image]}};
- `images.safetensors`: x, uint8 (N, H, W, 3);
- `<method>.safetensors`: plane, float16 (N, H, W), negative only where the method is signed, and optionally scale (N),
  the factor that was taken out of each map.

Each plane is stored as integers in [-levels, levels] relative to its own largest absolute value, which is kept beside
it, so per-map and shared colour scales both stay exact to one level. A NaN pixel keeps a code of its own.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from salrun.stats.reliability import Direction, direction_of

MAX_IMAGES = 400  # beyond this nobody looks, and packing takes minutes
MAX_SIDE = 112  # pixels; 224 is halved exactly
LEVELS = (127, 31)  # the finer where it fits the budget
NAN = -128
PER_IMAGE = ("image_id", "group", "label", "prediction")
IMAGE_LEVEL = "-"  # the method name of scores that belong to the image, such as the model's confidence


class BadMaps(Exception):
    """Why there is no gallery, in words for the page."""


@dataclass(frozen=True)
class Gallery:
    meta: dict[str, Any]
    blobs: dict[str, str]
    notes: list[str]


def pack_gallery(run_dir: Path, directions: dict[str, Direction], budget: int) -> Gallery:
    """The run's maps in at most about `budget` characters. Raises BadMaps where there is nothing to show."""
    maps = run_dir / "maps"
    index, methods = _read_index(maps / "index.json")
    ids, groups = index["image_id"], index["group"]
    notes: list[str] = []
    kept = spread(groups, MAX_IMAGES)
    pictures = _tensor(maps / "images.safetensors", "x", len(ids), 4)
    height, width, channels = pictures.shape[1:]
    if channels != 3:
        raise BadMaps(f"maps/images.safetensors has {channels} channels, expected 3.")
    pixels = np.rint(pool(pictures[kept].astype(np.float32))).astype(np.uint8)

    planes: dict[str, NDArray[np.float32]] = {}
    taken_out: dict[str, NDArray[np.float32]] = {}
    for method in methods:
        try:
            path = maps / f"{method['name']}.safetensors"
            plane = _tensor(path, "plane", len(ids), 3)
            taken_out[method["name"]] = _tensor(path, "scale", len(ids), 1, default=1.0)[kept]
            if plane.shape[1:] != (height, width):
                raise BadMaps(f"its maps have shape {plane.shape[1:]}, the images {(height, width)}.")
        except BadMaps as fault:
            notes.append(f"{method['label']} is not shown: {fault}")
        else:
            planes[method["name"]] = pool(plane[kept].astype(np.float32))
    methods = [m for m in methods if m["name"] in planes]
    if not methods:
        raise BadMaps(" ".join(["No method has maps that can be read.", *notes]))

    scores = _scores(run_dir, [ids[i] for i in kept], list(planes), directions, notes)
    room = budget - sum(len(blob) for blob, _ in scores.packed())
    levels, fits = _plan(pixels, planes, room)
    chosen = spread([groups[i] for i in kept], fits)
    kept, pixels, scores = kept[chosen], pixels[chosen], scores.of(chosen)
    if len(kept) < len(ids):
        notes.append(f"{len(kept)} of {len(ids)} images are shown, the first of each group in turn, to keep the file"
                     " small; the numbers in the tables use all images.")  # fmt: skip
    if pixels.shape[1:3] != (height, width):
        notes.append(f"Drawn at {pixels.shape[2]} x {pixels.shape[1]} pixels (averaged down from {width} x {height}).")

    packed = {"images": deflate(pixels)}
    for number, method in enumerate(methods):
        codes, scale = quantise(planes.pop(method["name"])[chosen], levels)
        scale = scale * taken_out[method["name"]][chosen]
        method["scale"] = [float(f"{s:.5g}") if np.isfinite(s) else 0.0 for s in scale]
        packed[f"map{number}"] = deflate(codes.view(np.uint8)[..., None])
    packed["values"], packed["flags"] = scores.packed()
    meta = {
        "height": pixels.shape[1], "width": pixels.shape[2], "source": [height, width], "levels": levels,
        **{name: [index[name][i] for i in kept] for name in PER_IMAGE},
        "masks": {name: [boxes[i] for i in kept] for name, boxes in index["masks"].items()},
        "roles": {name: [roles[i] for i in kept] for name, roles in index["roles"].items()},
        "methods": methods, "metrics": scores.metrics, "flags": scores.flag_names,
        "delta": {name: delta for name, (_, delta) in packed.items()},
    }  # fmt: skip
    return Gallery(meta, {name: blob for name, (blob, _) in packed.items()}, notes)


def _read_index(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What is known of each image, as text, and the methods; every list as long as there are images."""
    if not path.is_file():
        raise BadMaps("This run kept no maps (there is no maps/index.json).")
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        n = len(raw["image_id"])
        index: dict[str, Any] = {name: list(map(_text, raw.get(name) or [None] * n)) for name in PER_IMAGE}
        names = dict(enumerate(raw.get("classes") or []))
        for name in ("label", "prediction"):
            index[name] = [_text(names.get(item, item)) for item in raw.get(name) or [None] * n]
        for name in ("masks", "roles"):
            index[name] = {str(key): list(items) for key, items in (raw.get(name) or {}).items()}
        methods = [
            {"name": str(m["name"]), "label": str(m.get("label") or m["name"]), "signed": bool(m["signed"])}
            for m in raw["methods"]
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as fault:
        raise BadMaps(f"maps/index.json cannot be read ({type(fault).__name__}: {fault}).") from fault
    lists = [(name, index[name]) for name in PER_IMAGE] + [*index["masks"].items(), *index["roles"].items()]
    if wrong := [name for name, items in lists if len(items) != n]:
        raise BadMaps(f"maps/index.json does not have {n} entries in {', '.join(wrong)}.")
    if n == 0 or len(set(index["image_id"])) < n:
        raise BadMaps("maps/index.json names no image." if n == 0 else "maps/index.json names an image twice.")
    return index, methods


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


def _tensor(path: Path, key: str, n: int, ndim: int, default: float | None = None) -> NDArray[Any]:
    """A tensor of n rows from a file of `maps/`, or n times the default where the file has none of that name."""
    if path.parent.name != "maps" or not path.is_file():
        raise BadMaps(f"maps/{path.name} is missing.")
    try:
        with safe_open(path, framework="np") as file:
            if default is not None and key not in file.keys():  # noqa: SIM118 (it is no dict)
                return np.full(n, default, np.float32)
            tensor: NDArray[Any] = file.get_tensor(key)
    except (SafetensorError, OSError) as fault:
        raise BadMaps(f"maps/{path.name} cannot be read ({fault}).") from fault
    if tensor.ndim != ndim or len(tensor) != n:
        raise BadMaps(f"maps/{path.name} has shape {tensor.shape}, expected {n} x {ndim - 1} axes.")
    return tensor


def name_scores(table: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """A name for each row's score that methods share, and the view that made its plane.

    A variant is `<name>:<view>` or `<view>`. Where every method is judged through one view of its own, as in SMERF, the
    view is left out of the name, or methods could not be compared.
    """
    parts = pd.DataFrame({"metric": table["metric"].astype(str), "method": table["method"].astype(str)})
    parts["variant"] = table["variant"].astype("string").fillna("").astype(str)
    parts["name"] = parts["variant"].map(lambda variant: variant.rpartition(":")[0])
    distinct = parts.drop_duplicates()
    twice = set(distinct.loc[distinct.duplicated(["metric", "method", "name"], keep=False), "metric"])
    full = parts["metric"].isin(twice)
    suffix = parts["variant"].where(full, parts["name"])
    view = parts["variant"].map(lambda variant: variant.rpartition(":")[2]).mask(full, "")
    return parts["metric"].where(suffix == "", parts["metric"] + " · " + suffix), view


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


def _scores(
    run_dir: Path, ids: list[str], methods: list[str], directions: dict[str, Direction], notes: list[str]
) -> Scores:
    shape = len(methods) + 1, len(ids)
    path = run_dir / "tables" / "scores.parquet"
    columns = ["model", "seed", "image_id", "method", "metric", "variant", "value", "flag"]
    try:
        scores = pq.read_table(path, columns=columns, filters=[("image_id", "in", ids)]).to_pandas()
    except (OSError, ValueError, KeyError, pa.ArrowException) as fault:
        why = "is missing" if isinstance(fault, FileNotFoundError) else f"cannot be read ({fault})"
        notes.append(f"There are no scores under the maps: tables/scores.parquet {why}.")
        return Scores([], np.empty((0, *shape)), np.empty((0, *shape), np.uint8), ["ok"])
    own = scores["method"] == IMAGE_LEVEL
    scores = pd.concat([scores[scores["method"].isin(methods)], scores[own]])  # the first metric is one of maps
    cells = scores[["model", "seed"]].drop_duplicates()
    if len(cells) > 1:
        model, seed = cells.iloc[0]
        scores = scores[(scores["model"] == model) & (scores["seed"] == seed)]
        notes.append(f"The scores under the maps are those of model {model}, seed {seed}; the tables also have those of"
                     f" {len(cells) - 1} more.")  # fmt: skip
    names, _ = name_scores(scores)
    keys = pd.DataFrame({"name": names, "metric": scores["metric"], "variant": scores["variant"]})
    keys = keys.drop_duplicates("name")
    several = keys["metric"].duplicated(keep=False)
    metrics = [
        {
            "label": str(name if more else metric),
            "direction": direction_of(metric, str(variant), directions) if metric in directions else "none",
        }
        for name, metric, variant, more in zip(keys["name"], keys["metric"], keys["variant"], several, strict=True)
    ]
    at = (
        pd.Index(keys["name"]).get_indexer(names),
        pd.Index([*methods, IMAGE_LEVEL]).get_indexer(scores["method"]),
        pd.Index(ids).get_indexer(scores["image_id"]),
    )
    flag_codes, flag_names = pd.factorize(pd.concat([pd.Series(["ok"]), scores["flag"].astype(str)]))
    values = np.full((len(keys), *shape), np.nan)
    values[at] = scores["value"]
    flags = np.zeros((len(keys), *shape), np.uint8)
    flags[at] = flag_codes[1:]
    return Scores(metrics, values, flags, [str(name) for name in flag_names])
