"""`salrun` without its imports: each command is forked from one process that has them, and is a process of its own.

For tests of what a command does; how it starts, and what a signal does to it, is tried on the console script itself.
The script written here is called like that one: it hands its words, folder, environment and open files to the process
with the imports, whose child then lives as the console script would, and ends with the child's exit code.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import pkgutil
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

import salrun
from salrun.cli import main as cli

CLIENT = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({place!r})
    socket.send_fds(server, [b"!"], [0, 1, 2])
    server.sendall(json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode())
    server.shutdown(socket.SHUT_WR)
    code = server.recv(1)
sys.exit(code[0] if code else "salrun: ended without an exit code")
"""


@contextlib.contextmanager
def warm_salrun() -> Iterator[Path]:
    """The script that is called instead of `salrun`."""
    with tempfile.TemporaryDirectory() as folder:
        place, script = Path(folder, "socket"), Path(folder, "salrun")
        script.write_text(CLIENT.format(python=sys.executable, place=str(place)))
        script.chmod(0o755)
        words = [sys.executable, "-m", "tests.warm", str(place)]
        root = Path(__file__).resolve().parent.parent
        with subprocess.Popen(words, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            yield script
            process.communicate()  # it ends with its standard input


def import_all() -> None:
    """Everything that a command may import; nothing is computed, so no thread runs when a child is forked."""
    torch.set_num_threads(1)
    for module in pkgutil.walk_packages(salrun.__path__, "salrun."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def serve(place: str) -> None:
    """Fork a child for each command, until the standard input is closed."""
    import_all()
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


def live(client: socket.socket) -> None:
    """Be the console script of this client."""
    code = 1
    try:
        _, files, _, _ = socket.recv_fds(client, 1, 3)
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        with client.makefile("rb") as said:
            words, folder, env = json.load(said)
        sys.stdout, sys.stderr = (io.TextIOWrapper(io.FileIO(n, "w"), write_through=True) for n in (1, 2))
        os.environ.clear()
        os.environ.update(env)
        os.chdir(folder)
        del sys.path[0]  # of -m
        sys.argv = ["salrun", *words]
        code = cli.run(words)
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
    finally:
        client.sendall(bytes([code]))
        os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1])
