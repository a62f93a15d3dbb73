"""docs/slurm.md typed word by word at a terminal, on a Slurm of one node: each command says what the page shows."""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest

from salrun.cli.status import CLEAR
from tests.cluster.one_node_slurm import one_node_slurm, why_not
from tests.cluster.place import COMMAND
from tests.conftest import ROOT, command_env

pytestmark = pytest.mark.cluster

PAGE = ROOT / "docs" / "slurm.md"
KILLED = 6
ENDED = "\x1e"  # what the shell prints after a command, with its exit code


def steps(text: str) -> list[tuple[str, list[str]]]:
    """(command, lines that the page shows of what it says), in order."""
    lines = "".join(re.findall(r"```console\n(.*?)```", text, re.DOTALL)).splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("$ ")] + [len(lines)]
    return [(lines[a][2:], lines[a + 1 : b]) for a, b in pairwise(starts)]


def pattern(shown: list[str]) -> str:
    """As a regular expression: `...` is any lines, `<what>` some text of one line; spaces may be more."""
    return "".join("(?:[^\n]*\n)*?" if line == "..." else f"{_line(line)} *\n" for line in shown)


def _line(line: str) -> str:
    fixed = [re.sub(r"(\\ )+", " +", re.escape(part)) for part in re.split(r"<[\w ]+>", line)]
    return "[^\n]+?".join(fixed)


class Terminal:
    """A shell whose output is a terminal's: what is watched is drawn anew."""

    def __init__(self, shell: subprocess.Popen[bytes], screen: int) -> None:
        self.shell = shell
        self.screen = screen

    def type(self, command: str) -> tuple[int, str]:
        """(exit code, all that was written)."""
        assert self.shell.stdin is not None
        self.shell.stdin.write(f"{command}\nprintf '{ENDED}%d{ENDED}' $?\n".encode())
        self.shell.stdin.flush()
        said = b""
        while said.count(ENDED.encode()) < 2:
            said += os.read(self.screen, 65536)
        text, code, _ = said.decode().replace("\r", "").split(ENDED)
        return int(code), text


@contextmanager
def terminal(folder: Path, **env: str) -> Iterator[Terminal]:
    screen, behind = pty.openpty()
    env = command_env(folder, **env)
    env["PATH"] = os.pathsep.join([str(Path(COMMAND).parent), env["PATH"]])
    with subprocess.Popen(["bash"], cwd=folder, env=env, stdin=subprocess.PIPE, stdout=behind, stderr=behind) as shell:
        try:
            yield Terminal(shell, screen)
        finally:
            shell.kill()
            os.close(behind)
            os.close(screen)


def test_the_page_shows_what_its_commands_say(tmp_path: Path) -> None:
    if find_spec("hydra_plugins.hydra_submitit_launcher") is None:
        pytest.skip("hydra_submitit_launcher is not installed: pip install 'salrun[cluster]'")
    if why_not():
        pytest.skip(f"no Slurm here: {why_not()}")
    day = steps(PAGE.read_text(encoding="utf-8"))
    home = tmp_path / "home"
    home.mkdir()
    refreshed = []
    with one_node_slurm(tmp_path / "slurm") as slurm, terminal(home, SLURM_CONF=slurm.env["SLURM_CONF"]) as shell:
        for command, shown in day:
            code, said = shell.type(command)
            assert code == 0, f"{command}\n{said}"
            *before, screen = said.split(CLEAR)
            refreshed += [len(before)] if "--watch" in command else []
            assert re.fullmatch(pattern(shown), screen), f"{command}\n{screen}\nis not\n{os.linesep.join(shown)}"

    assert len(refreshed) == 2 and refreshed[0] > 1  # watched twice; the first time while jobs ran
    (sweep,) = (home / "outputs" / "sweeps").iterdir()
    facts = [json.loads((sweep / str(n) / "run.json").read_text()) for n in range(21)]
    assert [n for n in range(21) if facts[n]["attempts"] != 1] == [KILLED]
    with open(home / "outputs" / "joined" / "tables" / "cells.csv", newline="") as file:
        cells = list(csv.DictReader(file))
    assert len(cells) == 21
    assert "</html>" in (home / "outputs" / "joined" / "report.html").read_text(encoding="utf-8")
