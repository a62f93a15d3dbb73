"""`salrun` and `python -m` without imports: each command is forked from one process that has them, and is its own.

For tests of what a command does; how it starts, and what a signal does to it, is tried on the console script itself.
A job of a sweep, which is a process of its own, is forked from the sweep that waits for it.
The scripts written here hand their words, folder, environment and open files to the process with the imports, whose
child then lives as the console script (or `python -m`) would, and end with the child's exit code.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import logging
import os
import pkgutil
import runpy
import select
import socket
import subprocess
import sys
import tempfile
import traceback
import types
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

import salrun
from salrun.cli import main as cli
from salrun.config.compose import compose_config
from salrun.console import EXIT
from salrun.pipeline.heap import keep_freed_memory
from salrun.store import sources
from salrun.sweep import launch
from tests import verified

MODULE = "warm-python-m"  # the script's name
CLIENT = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({place!r})
    socket.send_fds(server, [b"!"], [0, 1, 2])
    server.sendall(json.dumps([*sys.argv, os.getcwd(), dict(os.environ)]).encode())
    server.shutdown(socket.SHUT_WR)
    code = server.recv(1)
sys.exit(code[0] if code else "salrun: ended without an exit code")
"""


@contextlib.contextmanager
def warm_salrun() -> Iterator[Path]:
    """The script that is called instead of `salrun`; beside it stands that for `python -m`."""
    with tempfile.TemporaryDirectory() as folder:
        place, script = Path(folder, "socket"), Path(folder, "salrun")
        for path in (script, script.with_name(MODULE)):
            path.write_text(CLIENT.format(python=sys.executable, place=str(place)))
            path.chmod(0o755)
        words = [sys.executable, "-m", "tests.warm", str(place)]
        root = Path(__file__).resolve().parent.parent
        with subprocess.Popen(words, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            yield script
            process.communicate()  # it ends with its standard input


def import_all() -> None:
    """Import and parse everything that commands may need; nothing is computed, so no thread runs when one is forked."""
    torch.set_num_threads(1)
    keep_freed_memory()
    for module in pkgutil.walk_packages(salrun.__path__, "salrun."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
            sources._imports(module.name)  # keys hash the sources: an editor at work must not change them half-way
    verified.remember()
    compose_config(["+experiment=smerf_simple_fr", "scale=smoke", "methods=[smerf/gradient]"])  # parsers learn
    gc.freeze()  # else the first collection of every child copies all of this


def serve(place: str) -> None:
    """Fork a child for each command, until the standard input is closed."""
    import_all()
    launch.subprocess = types.SimpleNamespace(Popen=ForkedJob, PIPE=subprocess.PIPE)  # type: ignore[assignment]
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(place)
        server.listen()
        print("ready", flush=True)
        while server in select.select([server, sys.stdin], [], [])[0]:
            with server.accept()[0] as client:
                if os.fork() == 0:
                    server.close()
                    live(client)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


class ForkedJob:
    """The `subprocess.Popen` of a sweep's job: a child of the sweep, with its imports, that ends as the job would."""

    def __init__(self, words: Sequence[str], stdin: int, cwd: str) -> None:
        assert words[-1] == launch.__name__ and stdin == subprocess.PIPE
        reading, writing = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(writing)
            os.dup2(reading, 0)
            os.chdir(cwd)
            self._live()
        os.close(reading)
        self.stdin = open(writing, "wb")  # noqa: SIM115

    def _live(self) -> None:
        code = 1
        try:
            sys.stdin = open(0, closefd=False)  # noqa: SIM115
            logging.getLogger().handlers.clear()  # the sweep's
            launch.main()
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            EXIT(code)

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def __enter__(self) -> ForkedJob:
        return self

    def __exit__(self, *fault: object) -> None:
        self.stdin.close()


def live(client: socket.socket) -> None:
    """Be the console script of this client."""
    code = 1
    try:
        _, files, _, _ = socket.recv_fds(client, 1, 3)
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        with client.makefile("rb") as said:
            script, *words, folder, env = json.load(said)
        files = (io.FileIO(number, "w", closefd=False) for number in (1, 2))
        sys.stdout, sys.stderr = (io.TextIOWrapper(file, write_through=True) for file in files)
        os.environ.clear()
        os.environ.update(env)
        os.chdir(folder)
        if Path(script).name == MODULE:
            sys.argv[1:] = words[1:]
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
            code = 0
        else:
            del sys.path[0]  # of -m
            sys.argv = ["salrun", *words]
            code = cli.run(words)
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
        print(left.code, file=sys.stderr) if isinstance(left.code, str) else None
    except BaseException:
        traceback.print_exc()
    finally:
        client.sendall(bytes([code]))
        EXIT(code)


if __name__ == "__main__":
    serve(sys.argv[1])
    EXIT(0)  # it has nothing to put away
