"""Submitted jobs (submitit: processes of this machine, or Slurm), watched until each has ended.

Hydra's submitit launchers give up at the first job that was killed; ours (`hydra_plugins/salrun_launchers`) submit
through here: a job is watched by its result and by the queue, and what became of it is noted for `salrun status`.
"""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import open_dict

from salrun.config.check import check
from salrun.errors import SalrunError
from salrun.results.record import code_of, read_facts
from salrun.store.files import shown
from salrun.sweep.jobs import AT_WORK, WAITING, finished, note_submitted, slurm_queue

log = logging.getLogger(__name__)

SHARED = ("name", "timeout_min", "cpus_per_task", "gpus_per_node", "tasks_per_node", "mem_gb", "nodes")
POLL = {"local": 0.5, "slurm": 5.0}  # seconds
GRACE = 15.0  # seconds a job may be out of the queue before its result shows up on a slow file system
REMIND = 600.0
GONE = {"local": "its process is gone", "slurm": "it left the queue without a result"}


def submit(launcher: Any, job_overrides: Sequence[Sequence[str]], first: int) -> list[JobReturn]:
    """Submit the jobs that are not done, at most `n_jobs` at once on this machine; `wait`: until all have ended."""
    kind = launcher._EXECUTOR
    params = {key: value for key, value in launcher.params.items() if value is not None}
    wait, at_once = params.pop("wait", True), params.pop("n_jobs", 0)
    sweep = Path(str(launcher.config.hydra.sweep.dir))
    state = Singleton.get_state()
    calls = [
        (list(overrides), "hydra.sweep.dir", number, f"job_id_for_{number}", state)
        for number, overrides in enumerate(job_overrides, first)
        if not _done(launcher, overrides, sweep / str(number))
    ]
    if kind == "slurm":
        tell_accounting()
    else:
        at_once = at_once if at_once > 0 else os.cpu_count() or 1
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // at_once)))
    os.environ.setdefault("PYTHONSAFEPATH", "1")  # jobs begin by `python -m`, which would put the current folder first
    queue = executor(kind, params)
    todo = deque(calls)
    running: dict[int, Any] = {}
    watch = Watch(sweep, kind, len(calls))
    try:
        while todo or running:
            while todo and (kind == "slurm" or len(running) < at_once):
                batch = [todo.popleft() for _ in range(len(todo) if kind == "slurm" else 1)]
                jobs = _submit(queue, launcher, batch)
                running |= {call[2]: job for call, job in zip(batch, jobs, strict=True)}
                note_submitted(sweep, {call[2]: _note(job, kind) for call, job in zip(batch, jobs, strict=True)})
            if not wait:
                noun = "job" if len(running) == 1 else "jobs"
                log.info("%d %s submitted; see salrun status %s", len(running), noun, shown(sweep))
                break
            time.sleep(POLL[kind])
            running = watch.still_running(running, waiting=len(todo))
    except KeyboardInterrupt:
        if kind == "slurm":
            ids = {str(job.job_id).partition("_")[0] for job in running.values()}
            log.warning("the jobs stay in the queue; to end them: scancel %s", " ".join(sorted(ids)))
        raise
    return [JobReturn(overrides=overrides, status=JobStatus.COMPLETED) for overrides in job_overrides]


def _done(launcher: Any, overrides: Sequence[str], folder: Path) -> bool:
    """Whether this very job was done before."""
    if read_facts(folder).get("status") != "done":
        return False
    cfg = launcher.hydra_context.config_loader.load_sweep_config(launcher.config, list(overrides))
    with open_dict(cfg):
        del cfg["hydra"]
    try:
        config = check(cfg)
    except SalrunError:  # the job will say it
        return False
    return finished(folder, config, code_of(config))


def executor(kind: str, params: dict[str, Any]) -> Any:
    """submitit's executor with the settings of a launcher."""
    import submitit

    params = dict(params)
    folder, timeouts = params.pop("submitit_folder"), params.pop("max_num_timeout", 0)
    queue = submitit.AutoExecutor(cluster=kind, folder=folder, **{f"{kind}_max_num_timeout": timeouts})
    queue.update_parameters(**{k if k in SHARED else f"{kind}_{k}": v for k, v in params.items()})
    return queue


def _submit(queue: Any, function: Any, calls: list[tuple]) -> list[Any]:
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    try:
        return queue.map_array(function, *zip(*calls, strict=True))
    except (FailedJobError, FailedSubmissionError) as fault:
        raise SalrunError(f"the queue did not take the jobs: {str(fault).strip().splitlines()[-1]}") from fault


def _note(job: Any, kind: str) -> dict[str, Any]:
    return {"id": str(job.job_id), "kind": kind, "log": str(job.paths.stderr)}


def tell_accounting() -> None:
    """Say so where sacct does not answer: that jobs ended is seen all the same, why they were killed is not."""
    try:
        subprocess.run(["sacct", "--noheader", "--allocations"], capture_output=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        log.warning(
            "this Slurm keeps no accounting (sacct does not answer): jobs are watched by their results and by squeue; "
            "why a job ended is known only for the minutes that squeue remembers it"
        )


class Watch:
    """Which submitted jobs are still at work; says what changes, and at times that nothing does."""

    def __init__(self, sweep: Path, kind: str, total: int) -> None:
        self.sweep = sweep
        self.kind = kind
        self.total = total
        self._missed: dict[int, float] = {}  # job -> since when it is nowhere to be seen
        self._said = ""
        self._when = time.monotonic()

    def still_running(self, running: dict[int, Any], waiting: int = 0) -> dict[int, Any]:
        queue = slurm_queue() if self.kind == "slurm" else None
        left, ended, states = {}, {}, Counter({"not yet started": waiting})
        for number, job in running.items():
            state = self._state(job, queue)
            states[state.lower()] += 1
            if state == "ENDED" or self._lost(number, state):
                if state != "ENDED":
                    ended[number] = {**_note(job, self.kind), "ended": GONE[self.kind] if state == "GONE" else state}
            else:
                left[number] = job
        if ended:
            note_submitted(self.sweep, ended)
        self._tell(len(left) + waiting, states)
        return left

    def _state(self, job: Any, queue: dict[str, str] | None) -> str:
        """ENDED with a result; a state of the queue; UNKNOWN where it does not answer; GONE."""
        if job.paths.result_pickle.exists():
            return "ENDED"
        if self.kind == "local":
            return "RUNNING" if job.state == "RUNNING" else "GONE"
        return "UNKNOWN" if queue is None else queue.get(str(job.job_id), "GONE")

    def _lost(self, number: int, state: str) -> bool:
        """Ended without a result, for longer than a slow file system explains."""
        if state in (*WAITING, *AT_WORK, "UNKNOWN"):
            self._missed.pop(number, None)
            return False
        since = self._missed.setdefault(number, time.monotonic())
        return time.monotonic() - since > (GRACE if self.kind == "slurm" else 1.0)

    def _tell(self, left: int, states: Counter[str]) -> None:
        parts = [f"{n} {state}" for state, n in sorted(states.items()) if n and state != "ended"]
        text = ", ".join([f"{self.total - left} of {self.total} jobs have ended", *parts])
        if text != self._said or time.monotonic() - self._when > REMIND:
            self._said, self._when = text, time.monotonic()
            unanswered = " (squeue does not answer; still trying)" if states["unknown"] else ""
            log.info("%s%s", text, unanswered)
