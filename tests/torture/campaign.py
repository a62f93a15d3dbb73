"""A campaign of random attacks, and what came of them.

    python -m tests.torture.campaign --seed 3                                     # all of it; interrupted, it goes on
    python -m tests.torture.campaign --seed 3 --kills 0 --lines 100 --yaml 0 --runs 0 --weights 0
    python -m tests.torture.campaign --seed 3 --record                            # and docs/results/torture.* have it

Every attack is a process of its own, forked from this one; the seed and its number say what it does. It fails by a
corrupt file, lost or repeated work, a wrong status, a traceback, an "unexpected" fault, an unknown key accepted in
silence, or a hang: 30 s of the processor's time for what must be refused, or 30 s of waiting.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from PIL import Image
from safetensors.torch import save

from salrun.config.catalogue import conf_dir
from salrun.config.compose import compose_config
from salrun.store.tensors import load_state, save_state
from tests.torture import trials
from tests.torture.kills import kills
from tests.torture.trials import BASE, RESULTS, SHIPPED, Finding, Life, record
from tests.warm import import_all

HANG = 30.0  # seconds
FAULTS = ("corrupt", "lost", "repeated", "status", "traceback", "unexpected", "accepted", "hang", "other")
COLUMNS = ["kind", "number", "attack", "exit", "seconds", "fault", "said"]


@dataclass
class Attack:
    """Words, what they attack, and what they must not do."""

    what: str
    words: list[str]
    folder: Path
    refused: bool = False  # an unknown key: exit 2 is the only right end
    shown: str = ""  # must be among what is said
    like: Path | None = None  # the folder of a run whose tables this one must have
    before: Callable[[], object] = lambda: None
    env: Mapping[str, str] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        begun = time.monotonic()
        life = Life(self.words, self.folder, before=self.before, env=self.env)
        code = life.end(HANG, HANG)
        said = life.said
        return {
            "attack": self.what[:300],
            "exit": code,
            "seconds": round(time.monotonic() - begun, 1),
            "fault": "hang" if life.hung else self.fault(code, said, life.last_line),
            "said": life.last_line[:300],
        }

    def fault(self, code: int, said: str, last: str) -> str:
        """What is wrong with this end; empty where nothing is."""
        if "Traceback" in said:
            return "traceback"
        if "unexpected" in last and code == 1:
            return "unexpected"
        if self.refused and code == 0:
            return "accepted"
        if code not in (0, 2) and not (code == 1 and self.words[0] in ("check", "-m")):
            return "other"
        if code == 2 and not last.startswith("salrun: "):
            return "other"
        if self.like is not None and (code != 0 or trials.tables(self.folder) != trials.tables(self.like)):
            return "corrupt"
        return "lost" if self.shown not in said else ""


# -- command lines -----------------------------------------------------------------------------------------------------

VALUES = [
    *("nan", "inf", "-inf", "-1", "0", "1e400", "99999999999999999999", "1.5", "null", "true", "[]", "{}", "''", "'x'"),
    *("glob(*)", "int(3.5)", "range(3)", "choice(1,2)", "interval(0,1)", "shuffle([1,2])", "${nothing}", "${seed}"),
    *("${oc.env:NOTHING}", "[1,[2,[3]]]", "{a: {b: c}}", "../../x", "/dev/null", "/", "~", "ä漢", "x" * 5000, "[null]"),
    *("'a\\nb'", "0x10", "1_000", "{_target_: os.getcwd}", "[nan]", "{1: 2}", "on", "salrun", "???", "[${seed}]"),
    *("range(0,1000000000)", "range(3,1)", "range(0,inf)"),
]
FREE = ("hydra", "metrics.pafl.variants")  # where any name is a name


@lru_cache(maxsize=1)
def composed() -> dict[str, Any]:
    return OmegaConf.to_container(compose_config(BASE), resolve=False)  # type: ignore[return-value]


def places(content: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Every key of a config with its place."""
    for key, value in content.items() if isinstance(content, dict) else ():
        at = f"{where}.{key}" if where else str(key)
        yield at, value
        yield from places(value, at)


def line(dice: random.Random, number: int, folder: Path) -> Attack:
    """A command line: of the trials' kinds, with a key that nobody knows, or with a value that nobody means."""
    home, stop = folder / "lines", trials.stop_at_plan
    kind = dice.choice(["trial", "key", "key", "value", "value", "value", "several"])
    if kind == "trial":
        words, _ = trials.fuzzed_command(dice)
        return Attack(" ".join(words[len(BASE) :] or words), words, home, before=stop)
    known = list(places(composed()))
    if kind == "key":
        inside = [at for at, value in known if isinstance(value, dict) and not at.startswith(FREE)]
        at = dice.choice(["", *inside])
        siblings = [place.rpartition(".")[2] for place, _ in known if place.rpartition(".")[0] == at]
        elsewhere = dice.choice(known)[0].rpartition(".")[2]  # a key that is right in another place
        name = elsewhere if dice.random() < 0.3 else trials.misspelt(dice.choice(siblings or ["mine"]), dice)
        wrong = f"{at}.{name}" if at else name
        word = f"{dice.choice(['+', '++'])}{wrong}={dice.choice(['1', 'x', '[1]', 'null', '{a: 1}'])}"
        refused = name not in siblings and not ADDABLE.fullmatch(wrong)
        return Attack(word, [*BASE, word], home, refused=refused, before=stop)
    chosen = [dice.choice(known)[0] for _ in range(1 if kind == "value" else 3)]
    words = [f"{at if dice.random() < 0.8 else dice.choice(OF_HYDRA)}={dice.choice(VALUES)}" for at in chosen]
    multirun = ["-m"] if dice.random() < 0.1 else []
    whole = dice.random() < 0.2 and not multirun  # as far as its plan goes
    before = Attack.before if whole else stop
    return Attack(" ".join([*multirun, *words]), [*multirun, *BASE, *words], home, before=before)


OF_HYDRA = [f"hydra.{key}" for key in ("run.dir", "job.name", "job.chdir", "output_subdir", "mode", "verbose")]
ADDABLE = re.compile(r"methods\.[^.]+\.(view|target|label)|metrics\.[^.]+\.(view|variants)|dataset\.transforms")


# -- YAML and plug-in files --------------------------------------------------------------------------------------------

PLUGIN = '''from dataclasses import dataclass
import torch
from salrun.types import Method, Metric, Score

@dataclass
class Mine(Method):
    """A method."""
    power: float = 2.0

    def __call__(self, model, x, target, rng, fitted):
        return x.abs() ** self.power

@dataclass
class Yours(Metric):
    """A metric."""

    def __call__(self, plane, scene):
        return Score(plane.double().flatten(1).mean(1), torch.zeros(len(plane), dtype=torch.uint8))
'''
HOSTILE_LINES = [
    *("raise RuntimeError('x')", "raise KeyboardInterrupt", "import sys; sys.exit(0)", "1 / 0", "import nothing_here"),
    *("raise SystemExit", "def f(:", "\tx = 1", "class Mine: pass", "from salrun import nothing", "\0"),
    *("raise BaseException('y')", "Mine = 3", "assert False", "exec('x')", "raise ValueError('a\\nb')", "del Method"),
]
NOT_FINITE = ("return x * float('nan')", "return x.double() / 0")  # which are flagged, not refused
HOSTILE_BODIES = [
    *("return None", "return x.numpy()", "return x > 0", "return x.to(torch.complex64)", "return x[:1]", "return x[0]"),
    *("raise KeyError('k')", "raise RuntimeError('r')", "return x.mul_(0)", "return x.int()"),
    *(*NOT_FINITE, "return torch.zeros(0)", "return {'a': x}", "raise MemoryError", "return 3"),
    *("return x.to(torch.float8_e4m3fn)", "yield x", "torch.set_default_device('meta'); return x.clone()"),
    *("raise NotImplementedError", "model.module = None; return x", "return x.sparse_mask", "import sys; sys.exit(0)"),
]


MISTAKES = ["line out", "line twice", "indented", "value", "unknown key", "bytes", "bom", "list", "cut", "tail"]
TAILS = ["zzz: &a [*a]", "? [1]", "...", "---\na: 1", "<<: 3", "!!python/object:x {}", "%", "}"]


def config_file(dice: random.Random, number: int, folder: Path) -> Attack:
    """A user's config file: one of ours with something wrong in it, or the trials' mistakes."""
    home = folder / "yaml"
    shutil.rmtree(home / "conf", ignore_errors=True)
    group = dice.choice(["methods", "metrics", "dataset", "model", "experiment", "reasoning"])
    words = ["--config-dir", "conf", *(w for w in BASE if "rise" not in w)]
    refused = False
    if dice.random() < 0.3:
        group, (what, text) = "methods", trials.fuzzed_yaml(dice)
        data = text.encode(errors="replace")
    else:
        path = dice.choice(sorted((conf_dir() / group).glob("*.yaml")))
        lines = path.read_text().splitlines()
        what = dice.choice(MISTAKES)
        at = dice.randrange(len(lines))
        if what == "line out":
            del lines[at]
        elif what == "line twice":
            lines.insert(at, lines[at])
        elif what == "indented":
            lines[at] = dice.choice([" ", "  ", "\t", "- "]) + lines[at]
        elif what == "value":
            lines[at] = lines[at].partition(":")[0] + ": " + dice.choice(VALUES)
        elif what == "unknown key":
            inside = group in ("methods", "metrics")
            lines.append("  zzz_nobody: 3" if inside else "zzz_nobody: 3")
            refused = True
        elif what == "tail":
            lines.append(dice.choice(TAILS))
        text = "\n".join([*lines, ""])
        data = (text.replace(f"\n{path.stem}:", "\nmine:") if group in ("methods", "metrics") else text).encode()
        if what == "bytes":
            data = bytes(dice.randrange(256) if dice.random() < 0.02 else byte for byte in data)
        elif what in ("bom", "list", "cut"):
            data = {"bom": b"\xef\xbb\xbf" + data, "list": b"- 1\n", "cut": data[: dice.randrange(len(data))]}[what]
            refused = what != "cut"
        what = f"{group}/{path.name}: {what} at {at}"
    file = home / "conf" / group / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_bytes(data)
    several = group in ("methods", "metrics")
    name = f"{group}=[mine]" if several else "+experiment=mine" if group == "experiment" else f"{group}=mine"
    words = [w for w in words if not w.startswith((f"{group}=", f"+{group}=", "metrics.insertion"))] + [name]
    return Attack(f"{what} {data[:150]!r}", words, home, refused=refused, before=trials.stop_at_plan)


def plugin_file(dice: random.Random, number: int, folder: Path) -> Attack:
    """A plug-in with a line or a body that is wrong, run as far as its scores or put through `salrun check`."""
    home = folder / "plugins"
    home.mkdir(parents=True, exist_ok=True)
    lines = PLUGIN.splitlines()
    kind, refused = dice.choice(["line", "body", "body", "letters"]), False
    if kind == "line":
        lines.insert(dice.randrange(len(lines)), dice.choice(HOSTILE_LINES))
    elif kind == "body":
        bodies = [k for k, text in enumerate(lines) if text.strip().startswith("return")]
        body = dice.choice(HOSTILE_BODIES)
        lines[dice.choice(bodies)] = f"        {body}"
        refused = body not in NOT_FINITE
    text = "\n".join(lines) + "\n"
    if kind == "letters":
        text = "".join(dice.choice("abc():\n =.'\"") if dice.random() < 0.01 else letter for letter in text)
    (home / "mine.py").write_text(text, errors="surrogatepass")
    changed = [new for new in text.splitlines() if new not in PLUGIN.splitlines()]
    words = dice.choice([["check", "mine.py"], RUN_PLUGIN, RUN_PLUGIN])
    env = {"SALRUN_PLUGINS": "mine.py"} if words is RUN_PLUGIN else {}
    return Attack(f"{words[0]}: {changed[:3]}", words, home, refused=refused, env=env)


RUN_PLUGIN = [w for w in SHIPPED if not w.startswith(("methods", "metrics"))]
RUN_PLUGIN += ["methods=[mine,smerf/edge]", "metrics=[yours]", "report=false", "dataset.groups=[1]"]
RUN_PLUGIN[RUN_PLUGIN.index("dataset.n_per_bucket=1")] = "dataset.n_per_bucket=2"  # x[:1] is less


def config_or_plugin(dice: random.Random, number: int, folder: Path) -> Attack:
    """A config file, or a plug-in."""
    return (config_file if dice.random() < 0.65 else plugin_file)(dice, number, folder)


# -- damaged runs ------------------------------------------------------------------------------------------------------


def damaged(data: bytes, dice: random.Random) -> tuple[str, bytes]:
    """How, and what is left."""
    how = dice.choice(["empty", "cut", "flipped", "noise", "list", "null", "object", "text", "twice", "json"])
    at = dice.randrange(len(data) or 1)
    if how == "json":
        try:
            content = json.loads(data)
            key = dice.choice(list(content))
            content[key] = dice.choice([None, 3, "x", [], {}, [3], {"a": 3}, [[]], 1e400, -1])
            return f"{key} = {content[key]}", json.dumps(content).encode()
        except (ValueError, TypeError, KeyError, IndexError):
            how = "cut"
    return how, {
        "empty": b"",
        "cut": data[:at],
        "flipped": data[:at] + bytes([(data[at : at + 1] or b"\0")[0] ^ (1 << dice.randrange(8))]) + data[at + 1 :],
        "noise": dice.randbytes(200),
        "list": b"[]",
        "null": b"null",
        "object": b"{}",
        "text": b"hello, world\n",
        "twice": data * 2,
    }[how]


def whole_run(folder: Path) -> Path:
    home = folder / "whole"
    trials.reference(home, SHIPPED)
    return trials.run_of(home)


READERS = [
    *(
        ["status"],
        ["collect", "outputs", "-o", "joint"],
        ["report", "outputs/bad"],
        ["report", "outputs", "-o", "r.html"],
    ),
    *(["reliability", "outputs/bad", "draws=20"], ["status", "outputs/bad", "outputs/good"]),
]


SWEEP = {
    "multirun.yaml": "hydra: {overrides: {task: [+experiment=smerf_simple_fr, 'seed=0,1']}}",
    "jobs.json": '{"0": {"id": "4711", "kind": "local"}, "1": {"ended": "TIMEOUT"}}',
}


def damaged_run(dice: random.Random, number: int, folder: Path) -> Attack:
    """One file of one of two runs or of a sweep, and a verb that reads them."""
    run, home = whole_run(folder), folder / "runs"
    shutil.rmtree(home, ignore_errors=True)
    for name in ("bad", "good", "sweep/0"):
        shutil.copytree(run, home / "outputs" / name)
    sweep = [home / "outputs" / "sweep" / name for name in SWEEP]
    for path in sweep:
        path.write_text(SWEEP[path.name])
    files = sorted(p for p in (home / "outputs" / "bad").rglob("*") if p.is_file() and p.suffix != ".png")
    victim = dice.choice([*files, *[p for p in files if p.suffix in (".json", ".parquet", ".csv")] * 3, *sweep * 5])
    if dice.random() < 0.1:
        how = "missing"
        victim.unlink()
    else:
        how, left = damaged(victim.read_bytes(), dice)
        victim.write_bytes(left)
    words = dice.choice(READERS)
    told = f"{words[:2]}: {victim.relative_to(home)} {how}"
    return Attack(told, words, home, shown="outputs/good" if words[0] == "status" else "")


# -- weights, pictures and entries -------------------------------------------------------------------------------------

NET = """from torch import nn

def net():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(64, 2))
"""


def weights(dice: random.Random, number: int, folder: Path) -> Attack:
    """Weights of a network, as safetensors or torch file, damaged or with tensors of another kind."""
    home = folder / "weights"
    home.mkdir(parents=True, exist_ok=True)
    (home / "mynet.py").write_text(NET)
    space: dict[str, Any] = {}
    exec(NET, space)
    tensors = {k: v.clone() for k, v in space["net"]().state_dict().items()}
    name = dice.choice(list(tensors))
    refused = ["bool", "int32", "complex64", "nan", "inf", "shape", "missing", "extra", "scalar", "empty"]
    change = dice.choice([*refused, "none", "float64", "float16"])
    value = tensors[name]
    if isinstance(kind := getattr(torch, change, None), torch.dtype):
        tensors[name] = value.to(kind)
    elif change in ("nan", "inf"):
        tensors[name] = value * 0 + float(change)
    elif change in ("shape", "scalar", "empty"):
        tensors[name] = {"shape": value[..., None], "scalar": torch.ones(()), "empty": torch.zeros(0)}[change].clone()
    elif change == "missing":
        del tensors[name]
    elif change == "extra":
        tensors["more"] = torch.ones(3)
    suffix = dice.choice([".safetensors", ".pth"])
    if suffix == ".pth":
        buffer = io.BytesIO()
        torch.save(dice.choice([tensors, {"state_dict": tensors}, list(tensors.values()), {"model": 3}, 3]), buffer)
        data = buffer.getvalue()
    else:
        data = save(tensors)
    how = "whole"
    if dice.random() < 0.5:
        how, data = damaged(data, dice)
    file = home / f"net{dice.choice([suffix, suffix, '.bin', '.safetensors'])}"
    file.write_bytes(data)
    words = [w for w in SHIPPED if not w.startswith(("methods", "metrics", "+exp", "dataset.n", "fit"))]
    words = ["dataset=textbox", "reasoning=simple_fr", "model=own", "model.arch._target_=mynet.net", *words]
    words += ["methods=[edge]", "metrics=[sparseness]", "report=false", "dataset.n_per_bucket=1", "dataset.groups=[1]"]

    words += [f"model.weights={file.name}", "dataset.reasoning.validation_per_bucket=1"]
    return Attack(f"{file.name}: {name} {change}, {how}", words, home, refused=change in refused and how == "whole")


def picture(dice: random.Random, number: int, folder: Path) -> Attack:
    """A folder of pictures of which one is odd or damaged."""
    home = folder / "pictures"
    shutil.rmtree(home / "data", ignore_errors=True)
    draw = np.random.default_rng(dice.randrange(1 << 30))
    for label in "ab":
        (home / "data" / label).mkdir(parents=True)
        for k in range(2):
            noise = draw.integers(0, 256, (40, 40, 3), dtype=np.uint8)
            Image.fromarray(noise).save(home / "data" / label / f"{k}.png")
    victim = home / "data" / dice.choice("ab") / "0.png"
    mode = dice.choice(["L", "1", "P", "RGBA", "LA", "CMYK", "I;16", "F", "I", "tiny", "long", *["damaged"] * 3])
    buffer = io.BytesIO()
    shape = {"tiny": (1, 1), "long": (1, 3000)}.get(mode, (40, 40))
    plain = Image.fromarray(draw.integers(0, 256, (*shape, 3), dtype=np.uint8))
    try:
        if mode == "I;16":
            plain = Image.fromarray(draw.integers(0, 65536, shape).astype(np.uint16))
        elif mode not in ("tiny", "long", "damaged"):
            plain = plain.convert(mode)
        plain.save(buffer, format=dice.choice(["PNG", "TIFF", "GIF", "BMP", "JPEG"]) if mode != "damaged" else "PNG")
    except (OSError, ValueError):
        buffer.write(b"not a picture")
    data, how = buffer.getvalue(), "whole"
    if mode == "damaged":
        how, data = damaged(data, dice)
    victim.write_bytes(data)
    (home / "mynet.py").write_text(NET)
    words = ["dataset=folder", "dataset.root=data", "model=own", "model.arch._target_=mynet.net", "methods=[edge]"]
    words += ["metrics=[sparseness]", "device=cpu", "scale=smoke", "compile=off", "threads=1", "report=false"]
    words += ["dataset.size=32"]
    refused = how in ("empty", "noise", "list", "null", "object", "text")
    return Attack(f"{victim.relative_to(home)}: {mode}, {how}", words, home, refused=refused)


def entry(dice: random.Random, number: int, folder: Path) -> Attack:
    """An entry of the store with a right checksum and a wrong content: computed again, or what it was."""
    whole_run(folder)
    home = folder / "entries"
    shutil.rmtree(home, ignore_errors=True)
    shutil.copytree(folder / "whole" / "store", home / "store")
    stages = [s for s in ("verification", "fit", "maps", "planes", "shared", "scores") if (home / "store" / s).exists()]
    stage = dice.choice(stages)
    path = dice.choice(sorted((home / "store" / stage).rglob("*.safetensors")))
    tensors, meta = load_state(path)
    name = dice.choice(list(tensors))
    how = dice.choice(["missing", "shape", "type", "flags", "notes", "other notes", "none"])
    if how == "missing":
        del tensors[name]
        tensors["x"] = torch.ones(1)
    elif how == "shape":
        tensors[name] = tensors[name][..., None].clone()
    elif how == "type":
        tensors[name] = torch.zeros(tensors[name].shape, dtype=torch.int32)
    elif how == "flags":
        tensors = {k: torch.full_like(v, 99) if k.endswith("flag") else v for k, v in tensors.items()}
    elif how in ("notes", "other notes"):
        meta = {} if how == "notes" else {key: [3] for key in meta}
    save_state(path, tensors, meta)
    return Attack(f"{stage} {name}: {how}", [*SHIPPED, "report=false"], home, like=folder / "whole")


def weight_or_picture(dice: random.Random, number: int, folder: Path) -> Attack:
    """Weights, a picture, or an entry of the store."""
    return dice.choice([weights, weights, picture, picture, entry])(dice, number, folder)


# -- all of it ---------------------------------------------------------------------------------------------------------

KINDS: dict[str, tuple[Callable[[random.Random, int, Path], Attack], int]] = {
    "lines": (line, 1000),
    "yaml": (config_or_plugin, 300),
    "runs": (damaged_run, 300),
    "weights": (weight_or_picture, 100),
}


def attacks(kind: str, n: int, seed: int, work: Path, known: set[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """What came of the attacks that were not made yet."""
    make, _ = KINDS[kind]
    for number in range(n):
        if (kind, str(number)) not in known:
            attack = make(random.Random(f"{seed}/{kind}/{number}"), number, work)
            yield {"kind": kind, "number": number, **attack.row()}


def killed(n: int, seed: int, work: Path) -> list[Finding]:
    """What came of n kills; they keep their own log and go on from it."""
    return list(kills(work / "kills", n, seed)) if n else []


ABOUT = {
    "lines": "command lines",
    "yaml": "YAML and plug-in files",
    "runs": "damaged runs",
    "weights": "weights, pictures and entries",
}


def found(kind: str, rows: list[dict[str, str]]) -> Finding:
    """One line for the page."""
    wrong = [f"{row['fault']}: {row['attack']}" for row in rows if row["fault"]]
    ends = Counter(row["exit"] for row in rows)
    told = f"{ends['2']} refused by a line, {ends['0']} carried out" + (f", {ends['1']} told" if ends["1"] else "")
    return Finding(f"campaign: {ABOUT[kind]}", len(rows), len(wrong), "; ".join(wrong[:3]) or told)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=300, help="processes killed at random moments of all stages")
    for kind, (make, n) in KINDS.items():
        parser.add_argument(f"--{kind}", type=int, default=n, help=(make.__doc__ or "").split("\n")[0])
    place = Path(tempfile.gettempdir()) / "salrun-campaign"
    parser.add_argument("--work", type=Path, default=place, help="kept to go on")
    parser.add_argument("--record", action="store_true", help="write docs/results/torture.csv and torture.md")
    given = parser.parse_args(argv)
    work = given.work / str(given.seed)
    work.mkdir(parents=True, exist_ok=True)
    log = work / "attacks.csv"
    rows = list(csv.DictReader(log.open(newline=""))) if log.exists() else []
    import_all()
    with log.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if not rows:
            writer.writeheader()
        known = {(row["kind"], row["number"]) for row in rows}
        for kind in KINDS:
            for row in attacks(kind, getattr(given, kind), given.seed, work, known):
                writer.writerow(row)
                file.flush()
                rows.append({key: str(value) for key, value in row.items()})
                if row["fault"]:
                    print(f"{row['fault']}: {kind} {row['number']}: {row['attack']!r}: {row['said']}", flush=True)
    by_kind = {kind: [row for row in rows if row["kind"] == kind] for kind in KINDS}
    counts = {kind: Counter(row["fault"] for row in mine if row["fault"]) for kind, mine in by_kind.items()}
    made = {kind: len(mine) for kind, mine in by_kind.items()}
    told = [found(kind, mine) for kind, mine in by_kind.items() if mine]
    of_kills = killed(given.kills, given.seed, work)
    counts["kills"] = Counter({OF_KILLS.get(f.trial.partition(": ")[2], "other"): f.failed for f in of_kills})
    made["kills"] = given.kills
    print(f"{'':<10}{'attacks':>8}" + "".join(f"{fault:>12}" for fault in FAULTS))
    for kind, faults in counts.items():
        print(f"{kind:<10}{made[kind]:>8}" + "".join(f"{faults[fault]:>12}" for fault in FAULTS))
    told += of_kills
    for f in told:
        print(f"{f.trial}: {f.failed} of {f.tried} failed; {f.detail}")
    if given.record:
        record([replace(f, trial=f"{f.trial}, seed {given.seed}") for f in told], RESULTS)
    return 1 if sum(map(Counter.total, counts.values())) else 0


OF_KILLS = {"corrupt": "corrupt", "repeated": "repeated", "status": "status", "hang": "hang", "tables": "lost"}


if __name__ == "__main__":
    sys.exit(main())
