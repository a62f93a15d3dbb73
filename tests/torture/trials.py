"""Try to break salrun, and write down what happened.

    python -m tests.torture.trials                              # everything: docs/results/torture.csv and torture.md
    python -m tests.torture.trials disk clocks                  # some of it
    python -m tests.torture.trials commands yaml --fuzz 500

Every run here is the real command line (`salrun.cli.main.run`) in a process of its own. Processes are forked from this
one, which has torch imported already: a life then costs a second instead of ten, so hundreds can be ended.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import ctypes
import html.parser
import json
import logging
import mmap
import os
import pickle
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from salrun.cli import main as cli
from salrun.console import EXIT
from salrun.errors import SalrunError
from salrun.models import recipe
from salrun.models.checkpoint import read_card
from salrun.pipeline import cell
from salrun.results.record import RunRecord
from salrun.store.sources import commit
from salrun.store.tensors import digest, load_state, read_safetensors
from tests.warm import import_all

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
# A real run with every stage in it, as cheap as they get: it trains, fits, explains, scores, concludes and reports.
TRAINING = [
    *("model.train=true", "model.accept_unverified=true", "~model.gate.flips", "model.recipes.fast.batch=32"),
    *("model.recipes.fast.epochs=6", "model.recipes.fast.epoch_images=64", "model.recipes.fast.restarts=1"),
    "dataset.train_per_bucket=20",
]
SHIPPED = [
    *("+experiment=smerf_simple_fr", "scale=smoke", "device=cpu", "threads=1", "compile=off", "paper=null"),
    *("dataset.n_per_bucket=1", "tile=4", "methods=[smerf/gradient,smerf/edge,iba]", "metrics=[pafl,insertion]"),
    *("methods.iba.steps=2", "methods.iba.copies=2", "metrics.insertion.step=1024", "fit_images=20"),
    "dataset.reasoning.validation_per_bucket=4",
]
RUN = [*SHIPPED, *TRAINING]
WITH_FIGURES = [*RUN, "paper=smerf"]


@dataclass
class Finding:
    """What one trial found. `failed` counts the tries that went wrong; `detail` says how, or what was seen."""

    trial: str
    tried: int
    failed: int
    detail: str


# -- lives: the real command in a process that can be watched and ended ------------------------------------------------


@dataclass
class Life:
    """One process that runs `salrun` words in `folder`."""

    words: Sequence[str]
    folder: Path
    before: Callable[[], object] = lambda: None  # what is done to the process first: another user, another clock
    env: Mapping[str, str] = field(default_factory=dict)
    pid: int = 0
    code: int | None = None

    hung: bool = False

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._stage = mmap.mmap(-1, 64)
        self._busy, self._since = 0.0, time.monotonic()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._live()

    def _live(self) -> None:
        code = 99
        try:
            die_with_parent()
            os.chdir(self.folder)
            for number in (1, 2):
                os.dup2(self._said.fileno(), number)
            sys.stdout, sys.stderr = (open(n, "w", closefd=False) for n in (1, 2))  # noqa: SIM115
            logging.getLogger().handlers.clear()
            os.environ |= {"SALRUN_CACHE": str(self.folder / "store"), "OMP_NUM_THREADS": "1", **self.env}
            os.environ.pop("SALRUN_PATH", None)
            self._tell_stages()
            self.before()
            code = cli.run(list(self.words))
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 98
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _tell_stages(self) -> None:
        plain, train = RunRecord.stage, recipe.train

        @contextlib.contextmanager
        def stage(record: RunRecord, name: str) -> Iterator[None]:
            self._stage[:] = name.encode().ljust(64)
            with plain(record, name):
                yield

        def training(*given: Any) -> Any:
            self._stage[:] = b"training".ljust(64)
            trained = train(*given)
            self._stage[:] = b"model".ljust(64)
            return trained

        RunRecord.stage = stage  # type: ignore[method-assign]
        recipe.train = training

    @property
    def stage(self) -> str:
        return self._stage[:].strip(b"\0 ").decode() or "start"

    @property
    def alive(self) -> bool:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is None

    def end(self, busy: float = 1800, idle: float = 1800) -> int:
        """Wait for it; its exit code. Killed after `busy` seconds of computing or `idle` seconds of next to none."""
        while self.alive:
            if self._hangs(busy, idle):
                self.kill()
            time.sleep(0.02)
        assert self.code is not None
        return self.code

    def _hangs(self, busy: float, idle: float) -> bool:
        """By the processor's time: other work of the machine makes nobody hang."""
        used = processor_time(self.pid)
        if used > self._busy + 0.2:
            self._busy, self._since = used, time.monotonic()
        self.hung = used > busy or time.monotonic() - self._since > idle
        return self.hung

    def kill(self) -> None:
        if self.alive:
            os.kill(self.pid, signal.SIGKILL)
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def kill_in(self, stage: str, delay: float, idle: float = 1800) -> str | None:
        """Kill it `delay` seconds into a stage (or into what comes after); where that was, None if it had finished."""
        while self.alive and self.stage != stage and not self._hangs(1800, idle):
            time.sleep(0.005)
        limit = time.monotonic() + delay
        while self.alive and time.monotonic() < limit:
            time.sleep(0.002)
        if not self.alive:
            return None
        where = self.stage
        self.kill()
        return where

    @property
    def said(self) -> str:
        self._said.seek(0)
        return self._said.read().decode(errors="replace")

    @property
    def last_line(self) -> str:
        return (self.said.strip().splitlines() or [""])[-1]


def processor_time(pid: int) -> float:
    """Seconds that a process and its children computed; Linux."""
    try:
        used = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0.0
    return sum(map(int, used[11:15])) / os.sysconf("SC_CLK_TCK") + sum(processor_time(int(child)) for child in children)


def die_with_parent() -> None:
    """Linux: nothing goes on when the torturer itself is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def run_of(folder: Path) -> Path:
    return (folder / "outputs" / "smerf_simple_fr" / "latest").resolve()


def tables(folder: Path) -> dict[str, bytes]:
    """The bytes of the tables of the newest run."""
    return {p.name: p.read_bytes() for p in sorted((run_of(folder) / "tables").iterdir()) if p.suffix != ".tmp"}


def reference(folder: Path, words: Sequence[str]) -> dict[str, bytes]:
    """The tables of an undisturbed run, made once."""
    if not (folder / "outputs").exists() or not run_of(folder).exists():
        life = Life(words, folder)
        if life.end() != 0:
            raise SystemExit(f"the undisturbed run failed: {life.said}")
    return tables(folder)


def refused(life: Life, *names: str) -> str:
    """Empty if the command ended as it should on a mistake or a broken machine, else what is wrong."""
    code, said = life.end(), life.said
    if code != 2:
        return f"exit {code}: {life.last_line}"
    if "Traceback" in said:
        return "a traceback"
    last = life.last_line
    if not last.startswith("salrun: "):
        return f"no line of ours: {last}"
    if not any(name in last for name in names):
        return f"does not name {' or '.join(names)}: {last}"
    return ""


# -- what a killed run leaves ------------------------------------------------------------------------------------------


def entries(store: Path) -> dict[str, tuple[int, int]]:
    """Published entries, each with what changes when it is published again."""
    found = {}
    for path in store.rglob("*.safetensors"):
        with contextlib.suppress(FileNotFoundError):
            stat = path.stat()
            found[str(path.relative_to(store))] = (stat.st_ino, stat.st_mtime_ns)
    return found


def corrupt(path: Path) -> bool:
    """Whether a file that stands under its final name cannot be read whole."""
    try:
        if path.suffix == ".safetensors" and path.parts[-3] == "model":
            return read_card(path)["sha256"] != digest(read_safetensors(path))
        if path.suffix == ".safetensors" and "store" in path.parts:
            return not load_state(path)
        if path.suffix == ".state":
            return not load_state(path)
        if path.suffix == ".json":
            return not json.loads(path.read_text())
        if path.suffix == ".parquet":
            return path.read_bytes()[-4:] != b"PAR1"
    except (SalrunError, ValueError):
        return True
    return path.suffix == ".broken" or path.stat().st_size == 0


def damage(home: Path) -> list[str]:
    """Files of a killed run that are not whole; drafts, leases and logs may be cut short."""
    passing = (".tmp", ".lease", ".log", ".txt")
    files = [p for p in home.rglob("*") if p.is_file() and not p.is_symlink() and p.suffix not in passing]
    return [str(p.relative_to(home)) for p in files if ".hydra" not in p.parts and corrupt(p)]


# -- fuzzed command lines and YAML files -------------------------------------------------------------------------------

BASE = [
    *("+experiment=smerf_simple_fr", "scale=smoke", "device=cpu", "plan=true", "dataset.n_per_bucket=1"),
    *("methods=[smerf/gradient,rise]", "metrics=[pafl,insertion]", "methods.rise.n_masks=10", "seed=0", "tile=4"),
]
TYPED = {  # keys and values that do not fit them
    "seed": ["x", "1.5", "null", "[1]", "{a: 1}", "true", "''"],
    "scale": ["huge", "1", "null", "[smoke]", "Smoke"],
    "device": ["gpu", "cuda:99", "1", "null", "''"],
    "precision": ["float16", "64", "null"],
    "tile": ["0", "-3", "x", "null", "2.5", "1e3"],
    "chunk": ["0", "-1", "x", "0.5"],
    "threads": ["0", "many"],
    "keep_maps": ["yes", "some", "null"],
    "compile": ["maybe", "1"],
    "plan": ["perhaps", "2", "null"],
    "shard": ["3/2", "1", "a/b", "-1/2", "1/0", "0/0"],
    "target": ["label2", "3", "null"],
    "name": ["null", "3", "[a]"],
    "methods.rise.n_masks": ["0", "-5", "x", "1.5", "null", "[3]"],
    "methods.rise.view": ["nothing", "3"],
    "methods.rise.target": ["other"],
    "methods.rise._target_": ["no.such.Thing", "salrun.methods.rise.Rise", "3", "''", "os.system"],
    "metrics.insertion.step": ["0", "-1", "x", "0.5"],
    "metrics.insertion.substrate": ["pink", "1"],
    "metrics.insertion.view": ["nothing", "7"],
    "dataset.n_per_bucket": ["0", "-1", "x", "2.5"],
    "dataset.size": ["x", "0", "-64"],
    "dataset.background": ["blue", "3"],
    "dataset.labels": ["wrong"],
    "dataset.placement": ["loose"],
    "model.recipe": ["slow", "3"],
    "model.training": ["more", "3"],
    "model.weights": ["/nowhere.safetensors", "3"],
    "model.loss": ["mse"],
    "cache_dir": ["/dev/null/x"],
}
GROUPED = ("dataset", "model", "reasoning", "methods", "metrics", "+experiment")
LETTERS = "abcdefghijklmnopqrstuvwxyz_"


def misspelt(word: str, dice: random.Random) -> str:
    """One letter more, less, or other."""
    at = dice.randrange(len(word))
    letter = dice.choice(LETTERS.replace(word[at], ""))
    return dice.choice(
        [word[:at] + letter + word[at:], word[:at] + word[at + 1 :] or "q", word[:at] + letter + word[at + 1 :]]
    )


def fuzzed_command(dice: random.Random) -> tuple[list[str], list[str]]:
    """A command line with one mistake in it, and the names of which its answer must have one."""
    words = list(BASE)
    kind = dice.choice(["key", "value", "group", "syntax", "verb", "noise"])
    if kind == "key":
        key = dice.choice([k for k in TYPED if "_target_" not in k])
        wrong = ".".join(misspelt(part, dice) if i == key.count(".") else part for i, part in enumerate(key.split(".")))
        return [*words, f"{wrong}=1"], [wrong, wrong.rpartition(".")[2]]
    if kind == "value":
        key = dice.choice(list(TYPED))
        value = dice.choice(TYPED[key])
        return [*words, f"{key}={value}"], [key, key.rpartition(".")[2], value.strip("'")]
    if kind == "group":
        group = dice.choice(GROUPED)
        name = misspelt("smerf_simple_fr" if "exp" in group else "textbox" if group == "dataset" else "gradient", dice)
        value = f"[{name}]" if group in ("methods", "metrics") else name
        return [w for w in words if not w.startswith(group + "=")] + [f"{group}={value}"], [name]
    if kind == "syntax":
        word = dice.choice(
            [
                *(
                    "methods=[gradient",
                    "methods=gradient,rise]",
                    "metrics=[pafl,,insertion]",
                    "=3",
                    "seed",
                    "seed=",
                    "tile==",
                ),
                *(
                    "methods.rise={n_masks: }",
                    "seed=[1",
                    "methods=[[gradient]]",
                    "+seed=1",
                    "~nothing",
                    "~methods.lime",
                ),
                *("seed='1", "methods.rise.n_masks=${nothing}", "seed=${oc.env:NO_SUCH}", "tile=${tile}", "a b=c"),
                *(
                    "methods=gradient",
                    "methods=3",
                    "methods={}",
                    "methods=[]",
                    "metrics=null",
                    "dataset=null",
                    "model={}",
                ),
                *("+methods.mine=3", "+methods.mine={}", "+methods.mine={a: 1}", "methods.rise=null", "methods.rise=3"),
                *("metrics.insertion=[]", "++dataset=3", "dataset.objects=3", "dataset.buckets=[]", "model.recipes=3"),
                *("others=3", "others={a: 3}", "model.arch=3", "model.layers=3", "hydra/launcher=nothing"),
                *("hydra.run.dir=", "dataset.transforms=3", "+dataset.transforms={a: 1}", "budget=3"),
                *("metrics.pafl.variants=3", "metrics.pafl.variants.code=3", "metrics.pafl.variants={a: {b: 1}}"),
                *("dataset.reasoning=3", "dataset.reasoning.buckets=3", "dataset.groups=[99]", "dataset.groups=x"),
            ]
        )
        return [*words, word], [re.split(r"[=\[{. ]", word.lstrip("+~"))[0] or word, word]
    if kind == "verb":
        verb = dice.choice([misspelt(dice.choice(list(cli.VERBS)), dice), *cli.VERBS])
        if verb in cli.VERBS:
            return [verb, *dice.sample(["nowhere", "-o", "--what", "", "x" * 300, "no/where", "\n"], 2)], ["salrun"]
        return [verb], [verb]
    text = "".join(
        dice.choice(LETTERS + "=.[]{}'\"$%&/\\ +~:,0123456789\n\t\0äß漢") for _ in range(dice.randrange(1, 30))
    )
    text = text.replace("\0", "")
    return [*words, text or "="], ["salrun"]


YAML = {  # what a user's methods/mine.yaml may look like
    "empty": "",
    "a word": "hello\n",
    "a list": "- 1\n- 2\n",
    "binary": "\0\1\2",
    "a tab": "mine:\n\t_target_: x\n",
    "no target": "mine: {n_masks: 3}\n",
    "open brace": "mine: {_target_: salrun.methods.rise.RISE\n",
    "open quote": 'mine: {_target_: "salrun.methods.rise.RISE}\n',
    "other name": "yours: {_target_: salrun.methods.rise.RISE}\n",
    "two parts": "mine: {_target_: salrun.methods.rise.RISE}\nyours: 3\n",
    "unknown module": "mine: {_target_: nowhere.at.All}\n",
    "unknown class": "mine: {_target_: salrun.methods.rise.Rice}\n",
    "no class": "mine: {_target_: salrun.methods.rise}\n",
    "not a method": "mine: {_target_: salrun.metrics.complexity.Sparseness}\n",
    "a function": "mine: {_target_: os.system, command: touch pwned}\n",
    "unknown key": "mine: {_target_: salrun.methods.rise.RISE, masks: 3}\n",
    "wrong type": "mine: {_target_: salrun.methods.rise.RISE, n_masks: many}\n",
    "out of range": "mine: {_target_: salrun.methods.rise.RISE, n_masks: -3}\n",
    "unknown view": "mine: {_target_: salrun.methods.rise.RISE, view: nothing}\n",
    "a cycle": "mine: {_target_: salrun.methods.rise.RISE, n_masks: '${methods.mine.n_masks}'}\n",
    "no reference": "mine: {_target_: salrun.methods.rise.RISE, n_masks: '${nothing.here}'}\n",
    "bad resolver": "mine: {_target_: salrun.methods.rise.RISE, n_masks: '${no_such:3}'}\n",
    "unknown defaults": "defaults: [nothing_here]\nmine: {_target_: salrun.methods.rise.RISE}\n",
    "defaults of a wrong kind": "defaults: 3\nmine: {_target_: salrun.methods.rise.RISE}\n",
    "itself": "defaults: [mine]\nmine: {_target_: salrun.methods.rise.RISE}\n",
    "an alias bomb": "a: &a [1,1]\nb: &b [*a,*a]\nmine: {_target_: salrun.methods.rise.RISE, n_masks: *b}\n",
    "a python object": "mine: !!python/object/apply:os.system ['touch pwned']\n",
    "a number as key": "3: {_target_: salrun.methods.rise.RISE}\n",
    "null": "mine: null\n",
    "twice": "mine: {_target_: salrun.methods.rise.RISE}\nmine: {_target_: 3}\n",
}
GOOD_YAML = "# RISE of mine\nmine:\n  _target_: salrun.methods.rise.RISE\n  n_masks: 12\n  view: minmax\n"


def fuzzed_yaml(dice: random.Random) -> tuple[str, str]:
    """(what is wrong, text) of a config file: one of the known mistakes, or a good file with a few bytes changed."""
    if dice.random() < 0.4:
        what = dice.choice(list(YAML))
        return what, YAML[what]
    text = list(GOOD_YAML)
    for _ in range(dice.randint(1, 3)):
        at = dice.randrange(16, len(text))
        text[at] = dice.choice(
            ["", ":", "{", "[", "-", "'", '"', "\n", "\t", "&", "*", "!", "%", "@", "x", "\x07", " "]
        )
    return "bytes changed", "".join(text)


def judged(life: Life, names: Sequence[str]) -> str:
    """Empty if a fuzzed command was answered as it should be, or was no mistake after all; else what is wrong."""
    if life.end(300) == 0:
        return ""
    return refused(life, *filter(None, names))


def stop_at_plan() -> None:
    """A command that gets as far as its plan has no mistake."""
    cell.preview = lambda *given: EXIT(0)  # type: ignore[assignment]


def commands(folder: Path, n: int, seed: int = 1) -> Iterator[Finding]:
    """Command lines with a mistake: exit 2, one line that names the key, never a traceback."""
    wrong, valid = [], 0
    for number in range(n):
        words, named = fuzzed_command(random.Random(f"{seed}/{number}"))
        life = Life(words, folder / "commands", before=stop_at_plan)
        fault = judged(life, named)
        valid += life.code == 0
        if fault:
            wrong.append(f"{' '.join(words[len(BASE) :] or words)!r}: {fault}")
            logging.warning(wrong[-1])
    yield Finding(
        "fuzzed command lines", n, len(wrong), "; ".join(wrong[:3]) or f"{n - valid} refused by a line, {valid} valid"
    )


def yaml_files(folder: Path, n: int, seed: int = 2) -> Iterator[Finding]:
    """Config files of a user's that are broken: the same."""
    wrong, valid = [], 0
    home = folder / "yaml"
    (home / "conf" / "methods").mkdir(parents=True, exist_ok=True)
    words = ["--config-dir", "conf", *(w for w in BASE if "rise" not in w), "methods=[mine]"]
    for number in range(n):
        what, text = fuzzed_yaml(random.Random(f"{seed}/{number}"))
        (home / "conf" / "methods" / "mine.yaml").write_text(text)
        life = Life(words, home, before=stop_at_plan)
        fault = judged(life, ["mine", "_target_", "yours", "hello", "methods"])
        valid += life.code == 0
        if (home / "pwned").exists():
            fault = "code in a YAML file was run"
            (home / "pwned").unlink()
        if fault:
            wrong.append(f"{what} {text!r}: {fault}")
            logging.warning(wrong[-1])
    yield Finding(
        "fuzzed YAML files", n, len(wrong), "; ".join(wrong[:3]) or f"{n - valid} refused by a line, {valid} valid"
    )


# -- a machine that fails ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def small_disk(path: Path, size: str) -> Iterator[None]:
    """A file system of that size at `path`; needs root."""
    path.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=777", "tmpfs", str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def may_mount() -> bool:
    if os.geteuid() != 0 or not shutil.which("mount"):
        return False
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], check=False)
        return done.returncode == 0 and subprocess.run(["umount", folder], check=False).returncode == 0


def small_files() -> None:
    """As good as a full disk where nothing can be mounted: no file may grow beyond 2 kB."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))


def unprivileged() -> None:
    """Root may do anything; without its capabilities (capset, all empty) it obeys permissions like anybody else."""
    if os.geteuid() == 0:
        header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        if ctypes.CDLL(None).capset(header, none) != 0:
            raise SystemExit("root's capabilities cannot be dropped here")


def disk(folder: Path, n: int) -> Iterator[Finding]:
    """The disk of the store, then of the outputs, is full: one line, nothing corrupt; with room it goes on."""
    expected, faults = reference(folder / "whole", SHIPPED), []
    home = folder / "full-store"
    if may_mount():
        with small_disk(home / "store", "96k"):
            faults.append(refused(Life(SHIPPED, home), str(home / "store")))
            faults.append("; ".join(damage(home)))
            subprocess.run(["mount", "-o", "remount,size=64m", str(home / "store")], check=True)
            life = Life(SHIPPED, home)
            faults.append("" if life.end() == 0 and tables(home) == expected else f"afterwards: {life.last_line}")
        with small_disk(folder / "full-outputs" / "outputs", "8k"):
            filled = {"SALRUN_CACHE": str(folder / "whole" / "store")}
            faults.append(refused(Life(SHIPPED, folder / "full-outputs", env=filled), "full-outputs"))
        how = "two full file systems, then room"
    else:
        faults.append(refused(Life(SHIPPED, home, small_files), str(home)))
        faults.append("; ".join(damage(home)))
        life = Life(SHIPPED, home)
        faults.append("" if life.end() == 0 and tables(home) == expected else f"afterwards: {life.last_line}")
        how = "files may not grow (no right to mount a small file system), then they may"
    yield finding("disk full", faults, how)


def finding(trial: str, faults: Sequence[str], seen: str) -> Finding:
    wrong = [f for f in faults if f]
    return Finding(trial, len(faults), len(wrong), "; ".join(wrong) or seen)


def permission(folder: Path, n: int) -> Iterator[Finding]:
    """A store, outputs, weights and a config that may not be written or read: one line that names the place."""
    faults = []
    for closed in (["store"], ["outputs"], ["store", "outputs"]):
        home = folder / "-".join(closed)
        for name in ("store", "outputs"):
            (home / name).mkdir(parents=True, exist_ok=True)
        for name in closed:
            (home / name).chmod(0o555)
        faults.append(refused(Life(SHIPPED, home, unprivileged), *closed))
    home = folder / "unreadable"
    home.mkdir()
    secret = home / "secret.safetensors"
    secret.write_bytes(b"x" * 100)
    secret.with_suffix(".json").write_text("{}")
    secret.chmod(0)
    faults.append(refused(Life([*SHIPPED, f"model.weights={secret}"], home, unprivileged), "secret"))
    yield finding("read-only store, no permission", faults, f"{len(faults)} places, each named in one line")


def spoil(path: Path, dice: random.Random) -> str:
    """Truncate a file or flip one of its bits; which."""
    data = bytearray(path.read_bytes())
    if dice.random() < 0.4:
        keep = dice.randrange(len(data))
        path.write_bytes(data[:keep])
        return f"cut at {keep} of {len(data)}"
    at = dice.randrange(len(data))
    data[at] ^= 1 << dice.randrange(8)
    path.write_bytes(data)
    return f"bit flipped at {at}"


def entries_spoilt(folder: Path, n: int, seed: int = 3) -> Iterator[Finding]:
    """Store entries of every stage, truncated or bit-flipped: set aside and named, computed again, tables the same."""
    expected, dice, faults = reference(folder / "spoilt", RUN), random.Random(seed), []
    home, stages, found = folder / "spoilt", ("verification", "fit", "maps", "scores"), 0
    for _ in range(n):
        victims = [dice.choice(sorted((home / "store" / stage).rglob("*.safetensors"))) for stage in stages]
        whole = {victim: victim.read_bytes() for victim in victims}
        how = {victim.parts[-3]: spoil(victim, dice) for victim in victims}
        for path in sorted(p for stage in ("maps", "scores") for p in (home / "store" / stage).rglob("*.safetensors")):
            if path not in victims and dice.random() < 0.5:
                path.unlink()  # so that what it was made of is read again
        life = Life(RUN, home)
        same = life.end() == 0 and tables(home) == expected
        faults.append("" if same else f"{how}: exit {life.code} {life.last_line}")
        aside = list((home / "store").rglob("*.broken"))
        found += len(aside)
        faults.append("" if all(path.stem in life.said for path in aside) else f"{how}: not named")
        for path in aside:
            path.unlink()
        for victim, data in whole.items():
            victim.write_bytes(data)
    seen = f"{len(stages) * n} entries, {found} of them read again: set aside and named; tables identical each time"
    yield finding("store entries cut or bit-flipped", faults, seen)
    (model,) = (home / "store" / "model").rglob("*.safetensors")
    whole, card = model.read_bytes(), model.with_suffix(".json").read_bytes()
    faults = []
    for _ in range(n):
        victim = dice.choice([model, model.with_suffix(".json")])
        spoil(victim, dice)
        life = Life(RUN, home)
        # A changed letter in the card's text leaves the weights what they are.
        fault = "" if life.end() == 0 and tables(home) == expected else refused(life, model.stem)
        faults.append(fault)
        model.write_bytes(whole)
        model.with_suffix(".json").write_bytes(card)
    yield finding(
        "trained checkpoints cut or bit-flipped",
        faults,
        "refused by a line that names the file, or a harmless letter of the card",
    )


class Payload:
    """What a hostile pickle does when it is loaded."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple:
        return (Path.touch, (self.proof,))


def pickles(folder: Path, n: int) -> Iterator[Finding]:
    """Pickles in place of weights, cards, store entries and data are refused and never loaded."""
    home, faults = folder / "pickles", []
    reference(home, SHIPPED)
    proof = home / "pwned"
    evil = pickle.dumps(Payload(proof))
    zipped = home / "zipped.safetensors"
    torch.save({"a": Payload(proof)}, zipped)
    plain = home / "plain.safetensors"
    plain.write_bytes(evil)
    for weights in (plain, zipped):
        weights.with_suffix(".json").write_text(json.dumps({"sha256": digest(weights.read_bytes())}))
        faults.append(refused(Life([*SHIPPED, f"model.weights={weights}"], home), weights.name))
    plain.with_suffix(".json").write_bytes(evil)
    faults.append(refused(Life([*SHIPPED, f"model.weights={plain}"], home), plain.stem))
    expected = tables(home)
    victim = sorted((home / "store" / "scores").rglob("*.safetensors"))[0]
    victim.write_bytes(evil)
    life = Life(SHIPPED, home)
    faults.append("" if life.end() == 0 and tables(home) == expected else f"a store entry: {life.last_line}")
    data = home / "data" / "cifar-10-batches-py"
    data.mkdir(parents=True, exist_ok=True)
    for name in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch", "batches.meta"):
        (data / name).write_bytes(evil)
    for verify in ("true", "false"):
        words = ["dataset=cifar10", f"dataset.verify={verify}", "model=tomsett_cnn", "methods=[gradient]", "device=cpu"]
        faults.append(refused(Life(words, home, env={"SALRUN_DATA": str(home / "data")}), "cifar"))
    if proof.exists():
        faults.append("a pickle was loaded")
    yield finding("pickles in disguise", faults, "refused; no code of theirs was run")


def data_spoilt(folder: Path, n: int, seed: int = 4) -> Iterator[Finding]:
    """MNIST files that are cut, bit-flipped, empty or missing: refused by a line that names the file."""
    home, dice, faults = folder / "data", random.Random(seed), []
    raw = home / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    files = {f"{part}-{kind}": (3 if "images" in kind else 1) for part in ("train", "t10k") for kind in KINDS}
    for name, dimensions in files.items():
        shape = (60, 28, 28)[:dimensions]
        header = bytes((0, 0, 8, dimensions)) + b"".join(size.to_bytes(4, "big") for size in shape)
        (raw / name).write_bytes(header + bytes(k % 10 for k in range(60 * (784 if dimensions == 3 else 1))))
    words = ["dataset=mnist", "model=mnist_cnn", "model.training=none", "methods=[gradient]", "metrics=[sparseness]"]
    words += ["device=cpu", "scale=smoke", "dataset.validation=10", "dataset.n_explained=4", "report=false"]
    env = {"SALRUN_DATA": str(home / "data")}
    # The published checksums refuse these files as they stand, which is one of the cases.
    faults.append(refused(Life(words, home, env=env), "MNIST"))
    for _ in range(n):
        victim = raw / dice.choice(list(files))
        whole = victim.read_bytes()
        kind = dice.choice(["cut", "empty", "missing", "header"])
        if kind == "missing":
            victim.unlink()
        else:
            victim.write_bytes({"cut": whole[:-1], "empty": b"", "header": b"\xff" + whole[1:]}[kind])
        fault = refused(Life([*words, "dataset.verify=false"], home, env=env), victim.name, "MNIST")
        faults.append(f"{victim.name} {kind}: {fault}" if fault else "")
        victim.write_bytes(whole)
    yield finding("data files cut, changed or missing", faults, "each named in one line")


KINDS = ("images-idx3-ubyte", "labels-idx1-ubyte")
HOSTILE = [
    "<script>document.title='pwned'</script>",
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "../../../pwned",
    "{{ 7 * 7 }}{% raw %}",
    "-->]]>&amp;&#60;",
    "line one\nline two",
]
HOSTILE_DATA = """
from dataclasses import dataclass
import torch
from salrun.datasets.base import TrainTestDataset, stored

@dataclass
class Hostile(TrainTestDataset):
    root: str = ""
    n_explained: int | None = 16
    seed: int = 0
    validation: int = 16
    split_seed: int = 0
    name = "hostile"
    classes = {classes!r}
    shape = (1, 28, 28)

    def load(self, part):
        draw = torch.Generator().manual_seed(len(part))
        y = torch.arange(64) % len(self.classes)
        return stored(part, torch.randint(256, (64, 1, 28, 28), generator=draw, dtype=torch.uint8), y)
"""


class Tags(html.parser.HTMLParser):
    """Counts elements and event handlers of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen[tag] += 1
        self.seen.update(name for name, _ in attributes if name.startswith("on"))


def hostile(folder: Path, n: int) -> Iterator[Finding]:
    """Class names and labels that are HTML, templates and paths: the report shows them as text, files stay in place."""
    pages = {}
    for kind, classes in (("tame", [f"class {k}" for k in range(len(HOSTILE))]), ("hostile", HOSTILE)):
        home = folder / kind
        home.mkdir(parents=True, exist_ok=True)
        (home / "hostile_data.py").write_text(HOSTILE_DATA.format(classes=tuple(classes)))
        words = ["++dataset={_target_: hostile_data.Hostile}", "model=mnist_cnn", f"model.arch.classes={len(classes)}"]
        words += ["model.training=none", "methods=[gradient,edge]", "metrics=[sparseness]", "device=cpu", "name=x"]
        label = json.dumps(classes[1])
        life = Life([*words, f"+methods.gradient.label={label}", "cache_dir=store"], home)
        if life.end() != 0:
            yield Finding("hostile class names", 1, 1, f"{kind}: {life.last_line}")
            return
        page = Tags()
        text = (home / "outputs" / "x" / "latest" / "report.html").read_text()
        page.feed(text)
        pages[kind] = page.seen
    strange = {t: c for t, c in pages["hostile"].items() if c != pages["tame"][t]}
    outside = [str(p) for p in folder.parent.rglob("pwned*")]
    faults = [f"elements differ: {strange}" if strange else "", "; ".join(outside), "49" if "4949" in text else ""]
    yield finding("hostile class names", faults, f"{len(HOSTILE)} names; the page has the elements of a tame one")


def jumping_clock() -> None:
    """The wall clock leaps a year back or forth at every look."""
    real, leaps = time.time, random.Random(5)
    time.time = lambda: real() + leaps.choice([-3.15e7, 0, 3.15e7])  # type: ignore[assignment]


def clocks(folder: Path, n: int) -> Iterator[Finding]:
    """Files from the future and the past, and a clock that leaps: nothing is redone, the tables are the same."""
    home = folder / "clocks"
    expected, faults = reference(home, SHIPPED), []
    for moment in (4e9, 1.0):
        for path in (home / "store").rglob("*"):
            os.utime(path, (moment, moment))
        for path in list((home / "store" / "scores").rglob("*.safetensors"))[:1]:
            path.unlink()
        before = entries(home / "store")
        life = Life(SHIPPED, home, jumping_clock)
        same = life.end() == 0 and tables(home) == expected
        now = entries(home / "store")
        faults.append("" if same else f"exit {life.code}: {life.last_line}")
        faults.append("redone" if any(now.get(k) != v for k, v in before.items()) else "")
    yield finding("clock jumps", faults, "mtimes of 1970 and 2096, a wall clock that leaps by years")


def twins(folder: Path, n: int) -> Iterator[Finding]:
    """Two processes train the same model; then again, and the one that trains is killed."""
    expected, faults = reference(folder / "one", RUN), []
    for number in range(n):
        home = folder / f"twins-{number}"
        pair = [Life(RUN, home) for _ in range(2)]
        if number % 2:
            while all(life.alive and life.stage in ("start", "data") for life in pair):
                time.sleep(0.01)
            time.sleep(0.3)
            pair[0].kill()
        for life in pair:
            if life.end() not in (0, -signal.SIGKILL):
                faults.append(f"exit {life.code}: {life.last_line}")
        models = list((home / "store" / "model").rglob("*.safetensors"))
        faults.append("" if len(models) == 1 else f"{len(models)} models were published")
        faults.append("" if tables(home) == expected else "the tables differ")
        faults.append("; ".join(damage(home)))
    yield finding("two processes train one model", faults, f"{n} pairs, in every second one is killed while training")


# -- all of it ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    run: Callable[[Path, int], Iterator[Finding]]
    n: int
    brief: int  # of the version in the test suite


TRIALS = {
    "commands": Trial(commands, 250, 10),
    "yaml": Trial(yaml_files, 250, 5),
    "disk": Trial(disk, 1, 1),
    "permission": Trial(permission, 1, 1),
    "entries": Trial(entries_spoilt, 10, 1),
    "pickles": Trial(pickles, 1, 1),
    "data": Trial(data_spoilt, 16, 2),
    "hostile": Trial(hostile, 1, 1),
    "clocks": Trial(clocks, 1, 1),
    "twins": Trial(twins, 4, 1),
}
COLUMNS = ["trial", "tried", "failed", "detail", "when", "commit"]
BLOCK = re.compile(r"(<!-- torture:begin -->\n).*?(<!-- torture:end -->)", flags=re.DOTALL)


def record(findings: Sequence[Finding], results: Path) -> None:
    """Put the findings into torture.csv, in place of the same trial's earlier ones, and into torture.md's table."""
    path = results / "torture.csv"
    rows = {row["trial"]: row for row in csv.DictReader(path.open())} if path.exists() else {}
    stamp = {"when": datetime.now(UTC).strftime("%Y-%m-%d"), "commit": (commit() or "")[:8]}
    rows |= {f.trial: {**{k: str(v) for k, v in vars(f).items()}, **stamp} for f in findings}
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows.values())
    lines = ["| trial | tried | failed | |", "|---|--:|--:|---|"]
    lines += [
        f"| {r['trial']} | {r['tried']} | {r['failed']} | {r['detail'].replace('|', '/')} |" for r in rows.values()
    ]
    page = results / "torture.md"
    page.write_text(BLOCK.sub(lambda m: m[1] + "\n".join(lines) + "\n" + m[2], page.read_text()))


def main(argv: Sequence[str] | None = None) -> int:
    from tests.torture.attacks import ATTACKS  # here: they are made of what stands above

    TRIALS.update(ATTACKS)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trials", nargs="*", help=f"of: {', '.join(TRIALS)} (default: all)")
    parser.add_argument("--fuzz", type=int, default=500, help="fuzzed command lines and YAML files, half of each")
    parser.add_argument(
        "--work", type=Path, default=Path(tempfile.gettempdir()) / "salrun-torture", help="kept to look at"
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args(argv)
    if unknown := set(given.trials) - set(TRIALS):
        parser.error(f"unknown trials {', '.join(sorted(unknown))}: {', '.join(TRIALS)}")
    counts = {"commands": given.fuzz // 2, "yaml": given.fuzz - given.fuzz // 2}
    import_all()
    failed = 0
    for name in given.trials or TRIALS:
        work = given.work / name
        shutil.rmtree(work, ignore_errors=True)
        findings = list(TRIALS[name].run(work, counts.get(name, TRIALS[name].n)))
        for f in findings:
            print(
                f"{'FAILED' if f.failed else 'ok':<8}{f.trial}: {f.failed} of {f.tried} failed; {f.detail}", flush=True
            )
            failed += f.failed
        record(findings, given.results)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
