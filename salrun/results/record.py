"""A run's own record: run.json (what, with which versions, how long, how it ended) and run.log."""

from __future__ import annotations

import datetime
import hashlib
import json
import logging
import os
import platform
import re
import resource
import shlex
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any

from tqdm.contrib.logging import logging_redirect_tqdm

from salrun import __version__
from salrun.errors import SalrunError, users_fault
from salrun.results.tables import SCHEMA
from salrun.store.files import open_log, write_atomic
from salrun.store.leases import HEART, here
from salrun.store.sources import commit, source_of_module

PACKAGES = (
    *("torch", "torchvision", "timm", "transformers", "numpy", "pandas", "pyarrow", "scipy", "scikit-image"),
    *("hydra-core", "omegaconf"),
)
WRITTEN = ("config.yaml", "tables", "maps", "comparison", "figures", "report.html")  # by a run, below its folder


class LogFile(logging.FileHandler):
    """The handler of a log that is no link."""

    def _open(self) -> Any:
        return open_log(Path(self.baseFilename))


def refuse_what_is_no_runs(out: Path) -> None:
    """A run writes over the files of a run, not over others of the same names."""
    theirs = [name for name in WRITTEN if (out / name).exists()]
    if theirs and not (out / "run.json").exists():
        raise SalrunError(
            f"{out} has {theirs[0]} and no run.json: a run would write over what is no run's; choose another "
            "folder by hydra.run.dir=<folder>"
        )


class RunRecord:
    """Opens and closes run.json around a run; whatever happens, its status says so."""

    def __init__(self, out: Path, command: Sequence[str] = (), **facts: Any) -> None:
        self.out = out
        self.facts: dict[str, Any] = {
            "schema": SCHEMA,
            "status": "running",
            "command": shlex.join(["salrun", *command]),
            "overrides": list(command),
            "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            **here(),
            "queue": queue_id(),
            "attempts": read_facts(out).get("attempts", 0) + 1,
            "salrun": __version__,
            "commit": commit(),
            "python": platform.python_version(),
            "platform": platform.platform(),
            "processors": os.cpu_count(),
            "versions": {p: version(p) for p in PACKAGES},
            "timings": {},
            "deviations": [],
            **facts,
        }
        self._handler: logging.Handler | None = None

    def __enter__(self) -> RunRecord:
        self.out.mkdir(parents=True, exist_ok=True)
        self._handler = LogFile(self.out / "run.log", encoding="utf-8")
        self._handler.setLevel(logging.DEBUG)
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logging.getLogger("salrun").addHandler(self._handler)
        self._redirect = logging_redirect_tqdm()
        self._redirect.__enter__()
        self.write()
        HEART.start(self.out / "run.json")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if fault is None:
            self.facts["status"] = "done"
        elif not isinstance(fault, Exception) and not users_fault(
            fault
        ):  # Ctrl-C, or a queue that takes its machine back
            self.facts["status"] = "interrupted"
        else:
            self.facts |= {"status": "failed", "reason": reason_of(fault)}
            logging.getLogger("salrun").debug("".join(traceback.format_exception(fault)))
        HEART.stop(self.out / "run.json")
        self.facts["peak_memory_mib"] = peak_memory()
        self.write()
        self._redirect.__exit__(None, None, None)
        if self._handler is not None:
            logging.getLogger("salrun").removeHandler(self._handler)
            self._handler.close()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage."""
        begun = time.monotonic()
        self.write(stage=name)
        try:
            yield
        finally:
            self.facts["timings"][name] = round(self.facts["timings"].get(name, 0.0) + time.monotonic() - begun, 3)

    def write(self, **facts: Any) -> None:
        self.facts |= facts
        self.facts["updated"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        write_atomic(self.out / "run.json", (json.dumps(self.facts, indent=2, default=str) + "\n").encode())


def read_facts(out: Path) -> dict[str, Any]:
    """What run.json says; nothing where there is none, or where it is no record."""
    try:
        facts = json.loads((out / "run.json").read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return facts if not misshapen(facts) else {}


KINDS = {  # of what run.json says: anything else is no record of a run
    **dict.fromkeys(("deviations", "overrides", "metrics", "runs", "halved", "problems", "made"), list),
    **dict.fromkeys(
        ("methods", "models", "verification", "timings", "numerics", "versions", "seeds", "plan", "tracked"), dict
    ),
    **dict.fromkeys(("status", "reason", "stage", "command", "host", "experiment", "scale", "shard", "code"), str),
    **dict.fromkeys(("attempts", "pid", "schema"), int),
}


def misshapen(facts: Any) -> str:
    """What in a run.json is not of its kind; empty where all is."""
    if not isinstance(facts, dict):
        return "it is not an object"
    wrong = (k for k, kind in KINDS.items() if facts.get(k) is not None and not isinstance(facts[k], kind))
    parts = (k for k in ("metrics", "methods") for part in _parts(facts.get(k)) if not isinstance(part, dict))
    return next((f"'{name}' is not what a run writes" for name in (*wrong, *parts)), "")


def _parts(given: Any) -> list[Any]:
    return list(given.values()) if isinstance(given, dict) else given if isinstance(given, list) else []


def record_failure(out: Path, reason: str, command: Sequence[str], **facts: Any) -> None:
    """Say in run.json how a run ended that could not say so itself."""
    origin = {"schema": SCHEMA, "command": shlex.join(["salrun", *command]), "overrides": list(command)}
    content = {**origin, **facts, **read_facts(out)}
    if content.get("status") != "done":
        content |= {"status": "failed", "reason": reason}
        write_atomic(out / "run.json", (json.dumps(content, indent=2) + "\n").encode())


def reason_of(fault: BaseException) -> str:
    known = fault if isinstance(fault, SalrunError) else users_fault(fault)
    return f"{type(fault).__name__}: {fault}" if known is None else str(known)


def queue_id() -> str | None:
    """The name of this job in Slurm's queue."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID")


def code_of(config: dict[str, Any]) -> str:
    """Hash of the code behind a run: this package, the modules of users' parts and what those import."""
    files = sorted(Path(__file__).resolve().parents[1].rglob("*.py"))
    targets = re.findall(r'"_target_": "([\w.]+)\.\w+"', json.dumps(config, default=str))
    code = b"".join(f.read_bytes() for f in files)
    theirs = sorted({m for m in targets if not m.startswith("salrun.")})
    if theirs:
        code += "".join(map(source_of_module, theirs)).encode()
    return hashlib.sha256(code).hexdigest()[:16]


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def peak_memory() -> float:
    """Largest resident size of this process, MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (1024 * 1024 if sys.platform == "darwin" else 1024), 1)
