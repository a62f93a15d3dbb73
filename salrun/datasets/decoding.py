"""Anybody's picture files as RGB bytes: what cannot be read right is refused by its name.

Pairs and TextBox read pictures by `pictures.read_pictures`, which the keys of trained models hold as it is.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from salrun.datasets.base import Table
from salrun.errors import SalrunError

VERSION = 2  # of what is made of a file: 2 scales 16 bits
LARGEST = 1 << 30  # bytes of a file
LONGEST = 1000  # sides of a picture, one over the other
DEEP = ("I;16", "I;16L", "I;16B", "I;16N")


def check_regular(path: Path) -> None:
    """Refuse what is no readable file, without opening it: a pipe would wait for ever."""
    if path.is_symlink() and not path.exists():
        raise SalrunError(f"picture {path} is a link to nothing")
    if not path.is_file():
        raise SalrunError(f"picture {path} is {'a folder' if path.is_dir() else 'no regular file'}")
    if path.stat().st_size > LARGEST:
        raise SalrunError(f"picture {path} has more than {LARGEST >> 20} MiB")
    try:
        str(path).encode()
    except UnicodeEncodeError as fault:
        raise SalrunError(f"picture {str(path)!a}: its name is no text (UTF-8)") from fault


def decoded(files: Sequence[tuple[str, Path, int]], prepare: Callable[[Image.Image], Image.Image] | None) -> Table:
    """A table of (id, picture, class); pictures are read when they are asked for."""
    ids, paths, classes = zip(*files, strict=True)
    return Table(list(ids), torch.tensor(classes), lambda rows: decode([paths[r] for r in rows], prepare))


@contextmanager
def opened(path: Path) -> Iterator[Image.Image]:
    """A picture file, for reading; whatever goes wrong with it, in here or with its pixels, is told by its name."""
    check_regular(path)
    try:
        with warnings.catch_warnings(), Image.open(path) as picture:
            warnings.simplefilter("ignore")  # Pillow's of large pictures; larger ones it refuses
            if max(picture.size) > LONGEST * min(picture.size):
                raise ValueError(f"{picture.width} x {picture.height} pixels are no picture")
            yield picture
    except SalrunError:
        raise
    except Exception as fault:  # Pillow's decoders raise anything on damaged files
        reason = str(fault).replace(f" {str(path)!r}", "") or type(fault).__name__
        raise SalrunError(f"cannot read picture {path}: {reason}") from fault


def decode(paths: Sequence[Path], prepare: Callable[[Image.Image], Image.Image] | None) -> Tensor:
    """(B, 3, H, W) bytes of prepared pictures."""
    arrays = []
    for path in paths:
        with opened(path) as picture:
            colours = rgb(picture)
            arrays.append(np.asarray(prepare(colours) if prepare else colours))
    return stacked(arrays)


def stacked(arrays: Sequence[np.ndarray]) -> Tensor:
    """(B, C, H, W) of pictures with their channels last."""
    return torch.from_numpy(np.stack(arrays).transpose(0, 3, 1, 2).copy())


def rgb(picture: Image.Image) -> Image.Image:
    """8 bits a colour: 16 of them divided by 257; alpha only where it hides nothing."""
    if picture.mode in DEEP or (picture.mode == "I" and picture.format == "PNG"):
        values = np.asarray(picture).astype(np.int64)
        return Image.fromarray(((values + 128) // 257).astype(np.uint8)).convert("RGB")
    if picture.mode in ("I", "F") or ";" in picture.mode:
        raise ValueError(f"its numbers (mode {picture.mode}) have no known white: save it with 8 or 16 bits")
    if picture.has_transparency_data and np.asarray(picture.convert("RGBA"))[..., 3].min() < 255:
        raise ValueError("it has transparent pixels, which have no colour: save it without transparency")
    return picture.convert("RGB")
