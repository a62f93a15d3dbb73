"""What the benches share: taking turns, medians and quartiles, peak memory, the load of the machine, tables."""

from __future__ import annotations

import argparse
import contextlib
import csv
import ctypes
import gc
import io
import os
import platform
import re
import sys
import time
import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from salrun.models.inference import fast_dtype
from salrun.pipeline.heap import keep_freed_memory

Job = Callable[[], object]
Name = TypeVar("Name", bound=Hashable)  # of a contestant
Rows = dict[tuple[str, str], dict[str, Any]]  # by network and method (or metric)
GOAL = 0.95  # of the floor
LEAST, MOST = 3, 5  # rounds that a row should have, times the limit that they may take
IDLE = 0.1  # cores that others may use of a machine that counts as idle
PEERS = ("captum", "quantus", "grad-cam", "torchcam", "zennit", "shap", "lime")


# -- time --------------------------------------------------------------------------------------------------------------


@dataclass
class Times:
    """Seconds of a job, round by round."""

    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))

    @property
    def quartiles(self) -> tuple[float, float]:
        low, high = np.percentile(self.seconds, (25, 75))
        return float(low), float(high)

    def times(self, factor: float) -> Times:
        return Times([factor * s for s in self.seconds])

    def over(self, other: Times) -> tuple[float, float]:
        """The quartiles, over rounds, of this time in units of the other's in the same round."""
        return Times(np.divide(self.seconds, other.seconds).tolist()).quartiles

    def rates(self, name: str, images: float) -> dict[str, float]:
        """Images per second: the median, and the quartiles."""
        low, high = self.quartiles
        return {name: images / self.median, f"{name}_low": images / high, f"{name}_high": images / low}


def device_of(word: str) -> str:
    """`auto`: CUDA where it is."""
    return ("cuda" if torch.cuda.is_available() else "cpu") if word == "auto" else word


def synchronise(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def seconds(job: Job, device: str) -> float:
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):  # peers' progress bars
        synchronise(device)
        start = time.perf_counter()
        job()
        synchronise(device)
        return time.perf_counter() - start


def take_turns(
    jobs: dict[Name, Job], repeats: int, device: str, limit: float = float("inf")
) -> tuple[dict[Name, Times], dict[Name, str]]:
    """The times of each job and, for those that fail, why.

    The first round is a rehearsal and counts only where it stays the only one. No round begins after `limit` seconds,
    but for the first three that count: they may begin until `MOST` times as long.
    """
    times = {name: Times() for name in jobs}
    faults: dict[Name, str] = {}
    began = time.perf_counter()
    for done in range(repeats + 1):
        for name, job in jobs.items():
            if name in faults:
                continue
            try:
                times[name].seconds.append(seconds(job, device))
            except Exception as fault:  # a peer may refuse a network in any way; the table says so
                faults[name] = said(fault)
        spent = time.perf_counter() - began
        if spent > MOST * limit or (spent > limit and done >= LEAST):
            break
    return {name: Times(t.seconds[1:] or t.seconds) for name, t in times.items() if name not in faults}, faults


def said(fault: Exception) -> str:
    """Kind and first line of a fault, with files by their names: the tables are published."""
    line = re.sub(r"(?<![\w.:/])/(?:[^\s/()']+/)+", "", str(fault).strip().partition("\n")[0])
    return f"{type(fault).__name__}: {line[:100]}"


# -- memory ------------------------------------------------------------------------------------------------------------


def peak_memory(job: Job, device: str) -> float | None:
    """MiB that one call needs at its peak, above what was there before it: libraries, network and images.

    CUDA: of torch's allocator. CPU (Linux): the high-water mark of the resident set, which the kernel is told to set
    back just before the call (/proc/self/clear_refs), once freed memory is given back to it (malloc_trim): else the
    call would find room that an earlier one left. None where there is no such thing.
    """
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        seconds(job, device)
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    except (OSError, AttributeError):
        return None
    resident = _status("VmRSS")
    seconds(job, device)
    return (_status("VmHWM") - resident) / 1024


def _status(name: str) -> int:
    """KiB, of this process."""
    found = re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) if found else 0


# -- the machine -------------------------------------------------------------------------------------------------------


class Watch:
    """What the processors did since it began, and how much of that was not this process and its children."""

    def __init__(self) -> None:
        self.load = os.getloadavg()[0]
        self._began = time.perf_counter(), _busy(), _own()

    def others(self) -> float | None:
        """Cores that others used, on average; None where the system does not tell."""
        began, busy, own = self._began
        now = _busy()
        if busy is None or now is None:
            return None
        return max(0.0, (now - busy) - (_own() - own)) / max(1e-9, time.perf_counter() - began)

    def facts(self) -> dict[str, str]:
        others = self.others()
        idle = "not known" if others is None else "yes" if others < IDLE else "NO: the figures are not to be quoted"
        return {
            "load at start": f"{self.load:.2f}",
            "load at end": f"{os.getloadavg()[0]:.2f} (this bench itself uses all cores)",
            "cores used by others meanwhile": "not known" if others is None else f"{others:.2f}",
            "idle machine": idle,
        }


def _busy() -> float | None:
    """Seconds that all processors worked since the system's start, or were taken away by the host."""
    try:
        user, nice, system, _, _, irq, soft, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


def _own() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def machine(device: str) -> dict[str, str]:
    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), cpu)
    half = fast_dtype(torch.device(device))
    return {
        "processor": cpu,
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else device,
        "exact": f"float32, TF32 {'on' if torch.backends.cuda.matmul.allow_tf32 else 'off'}",
        "fast": str(half or "float32: no half precision here").removeprefix("torch."),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "peers": ", ".join(f"{name} {_version(name)}" for name in PEERS),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "(not installed)"


# -- rows --------------------------------------------------------------------------------------------------------------


def measured(
    head: dict[str, Any],
    images: int,
    floor: dict[str, float],
    jobs: dict[str, Job],
    peers: Sequence[str],
    limits: Limits,
    faults: dict[str, str],
) -> dict[str, Any]:
    """A row: `exact`, `fast` and the peers among the jobs, against the sum of those that make the floor.

    `floor`: how many times each of its jobs, which are among the jobs too.
    """
    watch = Watch()
    times, failed = take_turns(jobs, limits.repeats, limits.device, limits.seconds)
    faults = faults | failed
    least = _sum(times[kind].times(count) for kind, count in floor.items()) if floor else None
    known = [peer for peer in peers if peer in times]
    fastest = min(known, key=lambda peer: times[peer].median) if known else ""
    sides = {"": times.get("exact"), "fast_": times.get("fast")}
    memory = {name: peak_memory(jobs[name], limits.device) for name in ("exact", "fast", fastest) if name in times}
    row = {**head, "images": images}
    for name, key in {"exact": "exact", "fast": "fast", "peer": fastest}.items():
        row |= times[key].rates(name, images) if key in times else dict.fromkeys((name, f"{name}_low", f"{name}_high"))
    row["peer_name"] = fastest
    row["floor"] = images / least.median if least else None
    for column, other in {"of_floor": least, "times_peer": times.get(fastest)}.items():
        for side, ours in sides.items():
            name = f"{side}{column}"
            row |= dict.fromkeys((name, f"{name}_low", f"{name}_high"))
            if other is not None and ours is not None:
                row[name] = other.median / ours.median
                row[f"{name}_low"], row[f"{name}_high"] = other.over(ours)
    row |= {f"{side}_mib": memory.get(key) for side, key in (("exact", "exact"), ("fast", "fast"), ("peer", fastest))}
    row["rounds"] = max((len(t.seconds) for t in times.values()), default=0)
    row["others"] = watch.others()
    slower = {peer: images / times[peer].median for peer in known if peer != fastest}
    row["slower_peers"] = ", ".join(f"{peer} {shown(rate)}" for peer, rate in slower.items())
    row["note"] = "; ".join(f"{who} fails: {why}" for who, why in faults.items())
    return row


def _sum(parts: Iterable[Times]) -> Times:
    """Round by round."""
    return Times([sum(each) for each in zip(*(part.seconds for part in parts), strict=True)])


# -- tables ------------------------------------------------------------------------------------------------------------

ABOUT = (
    "`MiB`: what one call needs at its peak beside network and images (CPU: the high-water mark of resident memory,",
    "set back before the call; CUDA: of torch's allocator). `others`: cores that other processes used meanwhile.",
)
COLUMNS = (
    "images/s", "fast images/s", "floor images/s", "of floor", "fast of floor", "peer", "peer images/s", "x peer",
    "fast x peer", "MiB", "fast MiB", "peer MiB",
)  # fmt: skip
LAST = ("rounds", "others", "slower_peers", "note")


def compact(row: dict[str, Any], heads: Sequence[str]) -> list[str]:
    """The row as the page has it: medians with their quartiles."""

    def spread(name: str) -> str:
        if row.get(name) is None:
            return ""
        return f"{shown(row[name])} [{shown(row[f'{name}_low'])}, {shown(row[f'{name}_high'])}]"

    cells = [spread("exact"), spread("fast"), shown(row["floor"]), spread("of_floor"), shown(row["fast_of_floor"])]
    cells += [shown(row["peer_name"]), spread("peer"), spread("times_peer"), shown(row["fast_times_peer"])]
    cells += [shown(row[f"{side}_mib"]) for side in ("exact", "fast", "peer")]
    return [*(shown(row.get(name, "")) for name in heads), *cells, *(shown(row[name]) for name in LAST)]


def told(row: dict[str, Any]) -> str:
    """The row as it is printed while the bench runs."""
    names = [name for name, value in row.items() if value and not name.endswith(("_low", "_high"))]
    return ", ".join(f"{name} {shown(row[name])}" for name in names)


def shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return "" if value is None else str(value).replace("|", "/")


def write_rows(
    stem: Path, title: list[str], rows: list[dict[str, Any]], heads: Sequence[str], facts: dict[str, str]
) -> None:
    """stem.csv (all columns) and stem.md, with what is below a floor or slower than a peer at its end."""
    slow = [r for r in rows if (r["of_floor"] or 1) < GOAL or (r["times_peer"] or 1) < 1]
    end = [f"## Below {GOAL} of the floor, or slower than a peer (exact)", ""]
    end += [
        f"- {r['model']}, {r[heads[-1]]}: {shown(r['of_floor']) or 'no'} of the floor, "
        f"{shown(r['times_peer']) or 'no'} x peer"
        for r in slow
    ] or ["None."]
    columns = [*heads, *COLUMNS, *LAST]
    write_table(stem, title, rows, facts, columns, [compact(row, heads) for row in rows], end)


def write_table(
    stem: Path,
    title: list[str],
    rows: list[dict[str, Any]],
    facts: dict[str, str],
    columns: Sequence[str] = (),
    cells: Sequence[Sequence[str]] = (),
    end: Sequence[str] = (),
) -> None:
    """stem.csv, and stem.md: the title, the machine, the table (`cells`, or the rows as they are), the end."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    with stem.with_suffix(".csv").open("w", newline="") as file:
        table = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
        table.writeheader()
        table.writerows(rows)
    columns = columns or list(rows[0])
    text = [*title, "", *(f"- {key}: {value}" for key, value in facts.items()), ""]
    text += ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    text += ["| " + " | ".join(row) + " |" for row in cells or [[shown(v) for v in row.values()] for row in rows]]
    stem.with_suffix(".md").write_text("\n".join([*text, "", *end]).rstrip() + "\n")


def read_table(stem: Path, columns: Iterable[str]) -> list[dict[str, Any]]:
    """The rows of stem.csv, if it is there; none of a table that has not these columns."""
    path = stem.with_suffix(".csv")
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows = [{key: _number(value) for key, value in row.items()} for row in csv.DictReader(file)]
    return [row for row in rows if set(columns) <= row.keys()]


def read_rows(stem: Path, name: str) -> Rows:
    """The rows of the table that is there, by network and `name`."""
    return {(str(row["model"]), str(row[name])): row for row in read_table(stem, ["exact", *LAST])}


def _number(text: str) -> Any:
    try:
        return float(text) if "." in text or "e" in text else int(text)
    except ValueError:
        return text or None


# -- options -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Limits:
    """How long to measure, and on what."""

    device: str
    repeats: int
    seconds: float
    ends: float  # by the clock of time.perf_counter: no row begins after it

    def over(self) -> bool:
        return time.perf_counter() > self.ends


def parser(about: str | None, seconds: float) -> argparse.ArgumentParser:
    """The options that all benches have."""
    given = argparse.ArgumentParser(description=(about or "").split("\n")[0])
    given.add_argument("--out", type=Path, required=True, help="folder for the tables")
    given.add_argument("--quick", action="store_true", help="a tiny network, one repetition: does it run at all?")
    given.add_argument("--repeats", type=int, default=7, help="rounds of a row, after a rehearsal")
    given.add_argument("--seconds", type=float, default=seconds, help="no round of a row begins after this time")
    given.add_argument("--minutes", type=float, default=float("inf"), help="no row begins after this time")
    given.add_argument("--missing", action="store_true", help="only what the tables in --out do not have")
    given.add_argument("--threads", type=int, help="of torch; default: all")
    given.add_argument("--device", default="auto", help="auto: CUDA where it is")
    return given


def start(options: argparse.Namespace) -> tuple[Limits, Watch]:
    """Sets what the options say; prints the load."""
    if options.threads:
        torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    keep_freed_memory()  # as in a run; floors and peers gain as much
    watch = Watch()
    print(f"load at start: {watch.load:.2f}", flush=True)
    repeats = 1 if options.quick else options.repeats
    ends = time.perf_counter() + 60 * options.minutes
    return Limits(device_of(options.device), repeats, options.seconds, ends), watch


def finish(watch: Watch, left: list[str], broken: list[str]) -> int:
    """Prints the load, what was left out and what failed; the exit code."""
    for name, value in watch.facts().items():
        print(f"{name}: {value}", flush=True)
    if left:
        print(f"out of time, not measured (--missing goes on): {', '.join(left)}", file=sys.stderr)
    for line in broken:
        print(line, file=sys.stderr)
    return 1 if left or broken else 0
