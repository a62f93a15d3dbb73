"""What became of the jobs of a sweep: told from the files they leave, and from Slurm's queue where there is one.

A sweep is a folder with Hydra's multirun.yaml (what was asked for), one folder per job with its run.json (what the job
says of itself), and, where jobs were submitted, jobs.json (what the launcher knows: queue ids, logs, how they ended).
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from salrun.config.compose import expand
from salrun.errors import SalrunError
from salrun.results.record import read_facts
from salrun.store.files import write_atomic
from salrun.store.leases import SILENT, Lease, gone

WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SUSPENDED", "SPECIAL_EXIT", "RESIZING")
AT_WORK = ("RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "STOPPED")
NOTHING: Mapping[str, Any] = MappingProxyType({})
ENDED = ("done", "planned")  # did what was asked of them
AGAIN = "the same command again does the rest"


@dataclass(frozen=True)
class Job:
    """One run, alone or of a sweep, as it stands."""

    state: str  # done | planned | running | failed | missing
    what: str
    folder: Path
    reason: str = ""
    log: Path | None = None

    @property
    def at_work(self) -> bool:
        """Whether it runs, or waits in a queue."""
        return self.state == "running" or "in the queue" in self.reason


def jobs_of(sweep: Path, queue: dict[str, str] | None = None) -> list[Job]:
    """The jobs a sweep asked for, in order; where that cannot be read, one that says so."""
    submitted = read_submitted(sweep)
    queue = slurm_queue() if queue is None and submitted else queue
    try:
        asked = list(expand(typed(sweep)))
    except SalrunError:
        return [
            Job("failed", f"sweep {sweep.name}", sweep, "what it asked for cannot be read: multirun.yaml is damaged")
        ]
    shared = set(asked[0]).intersection(*asked) if len(asked) > 1 else set()
    return [
        job_in(
            sweep / str(number),
            " ".join(o for o in overrides if o not in shared),
            submitted.get(str(number), {}),
            queue,
        )
        for number, overrides in enumerate(asked)
    ]


def typed(sweep: Path) -> list[str]:
    """The overrides of a sweep, as they were typed."""
    try:
        words = _content(sweep / "multirun.yaml")["hydra"]["overrides"]["task"]
    except (KeyError, TypeError):
        words = None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise SalrunError(f"{sweep / 'multirun.yaml'} has no list of overrides")
    return words


def _content(path: Path) -> Any:
    """What is in a YAML file that Hydra or a run wrote."""
    try:
        return OmegaConf.to_container(OmegaConf.load(path))
    except (OSError, ValueError, YAMLError, OmegaConfBaseException, RecursionError) as fault:
        raise SalrunError(f"{path} cannot be read") from fault


def job_in(
    folder: Path, what: str = "", submitted: Mapping[str, Any] = NOTHING, queue: Mapping[str, str] | None = None
) -> Job:
    """The job of a folder; `submitted`: what its launcher noted; `queue`: what Slurm says, None where it is silent."""
    facts = read_facts(folder)
    in_slurm = submitted.get("kind") == "slurm"
    known = [submitted.get("id"), facts.get("queue")] if in_slurm else [facts.get("queue"), submitted.get("id")]
    number = str(next(filter(None, known), ""))
    queued = (queue or {}).get(number, "")
    logs = [folder / "run.log", *([Path(submitted["log"])] if "log" in submitted else [])]
    log = next((path for path in logs if path.exists()), None)
    if not facts and (folder / "run.json").exists():
        return Job("failed", what, folder, "run.json cannot be read", log)
    if not facts:
        if queued in WAITING + AT_WORK:
            return Job("missing", what, folder, f"in the queue: {queued}", log)
        ended = submitted.get("ended") or queued
        if not ended and in_slurm and queue is not None:  # Slurm forgets at once an array's task that never began
            ended = "it left the queue"
        return Job("failed", what, folder, f"never began: {ended}", log) if ended else Job("missing", what, folder)
    what = what or described(facts)
    if queued in WAITING + AT_WORK and facts.get("queue") != number:  # this run.json is of an earlier submission
        return Job("running", what, folder, f"in the queue: {queued}", log)
    status = facts.get("status")
    if status == "done":
        if file := lacking(folder, facts):
            return Job("failed", what, folder, f"it was done, but {file} is gone", log)
        return Job("planned" if facts.get("planned_only") else "done", what, folder, "", log)
    if queued in WAITING:
        return Job("running", what, folder, f"stopped, and in the queue again: {queued}", log)
    if status == "interrupted" and queued in AT_WORK:  # the queue has not yet heard of it
        return Job("running", what, folder, "stopping", log)
    if status == "running":
        why = lost(folder, facts, queued, submitted)
        if not why:
            begins = queued in AT_WORK and gone(facts)  # this run.json is of the attempt before
            return Job("running", what, folder, f"in the queue: {queued}" if begins else stage(facts), log)
        return Job("failed", what, folder, f"killed: {why}", log)
    return Job("failed", what, folder, facts.get("reason", str(status)), log)


def described(facts: dict[str, Any]) -> str:
    return " ".join(
        [
            str(facts.get("experiment", "?")),
            *(f"{key}={facts.get(key, '-')}" for key in ("seed", "scale", "shard")),
        ]
    )


def stage(facts: dict[str, Any]) -> str:
    again = f", attempt {facts['attempts']}" if facts.get("attempts", 1) > 1 else ""
    return f"{facts.get('stage', 'starting')}{again}"


def lacking(folder: Path, facts: Mapping[str, Any]) -> str:
    """The first of the files that a run made which is not there any more, or empty."""
    made = facts.get("made")
    paths = [folder / str(name) for name in made] if isinstance(made, list) else []
    lost = (path for path in paths if not path.is_file() or not path.stat().st_size)
    return next((str(path.relative_to(folder)) for path in lost), "")


def lost(folder: Path, facts: dict[str, Any], queued: str, submitted: Mapping[str, Any]) -> str:
    """Why a run that says it is running is not; empty while it lives."""
    owner = f"process {facts.get('pid')} on {facts.get('host')}"
    ended = submitted.get("ended") or (queued if queued not in AT_WORK else "")
    if ended:
        return ended
    if facts.get("host") == socket.gethostname() and queued not in AT_WORK:  # else it was requeued and comes back
        return f"{owner} is gone" if gone(facts) else ""
    silent = abs(time.time() - (folder / "run.json").stat().st_mtime)
    return f"no sign of {owner} for {silent / 60:.0f} min" if silent > SILENT else ""


def slurm_queue() -> dict[str, str] | None:
    """Queue id -> state of one's own jobs, also of those that ended a moment ago; None where no Slurm answers."""
    ask = ["squeue", "--me", "--noheader", "--array", "--states=all", "--format=%i|%T"]
    try:
        answer = subprocess.run(ask, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return dict(line.strip().split("|", 1) for line in answer.splitlines() if "|" in line)


# -- notes of a launcher ----------------------------------------------------------------------------------------------


def read_submitted(sweep: Path) -> dict[str, dict[str, Any]]:
    """Job number -> {id, kind, log, ended}; what is garbage of it is left out."""
    try:
        notes = json.loads((sweep / "jobs.json").read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    pairs = notes.items() if isinstance(notes, dict) else ()
    noted = {number: note.items() for number, note in pairs if isinstance(note, dict)}
    return {number: {k: v for k, v in note if isinstance(v, str)} for number, note in noted.items()}


def note_submitted(sweep: Path, notes: dict[int, dict[str, Any]]) -> None:
    jobs = read_submitted(sweep)
    jobs.update({str(number): note for number, note in notes.items()})
    write_atomic(sweep / "jobs.json", (json.dumps(jobs, indent=2) + "\n").encode())


# -- many -------------------------------------------------------------------------------------------------------------


def sweeps_below(paths: Iterable[Path]) -> list[Path]:
    folders = [p.parent for path in paths for p in path.resolve().rglob("multirun.yaml")]
    return sorted(dict.fromkeys(folders))


def counts(jobs: Iterable[Job]) -> str:
    """`3 done, 1 failed`."""
    number = Counter(job.state for job in jobs)
    return ", ".join(f"{number[s]} {s}" for s in ("done", "planned", "running", "failed", "missing") if number[s])


def interrupted_sweep(root: Path, overrides: Sequence[str]) -> Path | None:
    """The newest sweep of these very overrides, if some of its jobs are not done and nobody is at work on it."""
    sweeps = (path.parent for path in sorted(root.glob("*/multirun.yaml"), reverse=True))
    sweep = next((each for each in sweeps if _asks_for(each, overrides)), None)
    if sweep is None:
        return None
    queue = slurm_queue()
    jobs = jobs_of(sweep, queue)
    waits = any((queue or {}).get(n.get("id", "")) in WAITING + AT_WORK for n in read_submitted(sweep).values())
    at_work = waits or lease_of(sweep).held() or any(job.state == "running" for job in jobs)
    return None if at_work or all(job.state in ENDED for job in jobs) else sweep


def _asks_for(sweep: Path, overrides: Sequence[str]) -> bool:
    text = (sweep / "multirun.yaml").read_text(errors="replace")
    try:
        return all(word in text for word in overrides) and typed(sweep) == list(overrides)  # cheap before it is parsed
    except SalrunError:
        return False


def lease_of(sweep: Path) -> Lease:
    """Held by the process that launches the jobs of a sweep, for as long as it does."""
    return Lease(sweep / ".lease", f"sweep {sweep.name}")


def finished(folder: Path, config: dict[str, Any], code: str) -> bool:
    """Whether this very job, config and code, is done already."""
    facts = read_facts(folder)
    if facts.get("status") != "done" or facts.get("code") != code or not facts.get("made") or lacking(folder, facts):
        return False
    try:
        return _content(folder / "config.yaml") == config
    except SalrunError:
        return False
