"""What `salrun status|collect|report|reliability|cache` do."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator
from pathlib import Path

from salrun.errors import SalrunError


def status(words: list[str]) -> int:
    """One line per run: status, what, where, why."""
    from salrun.tables import read_run, runs_below

    paths = [Path(w) for w in words] or [Path("outputs")]
    for run in runs_below(paths):
        facts = read_run(run)
        state = facts.get("status", "?")
        if state == "running" and not _alive(facts):
            state = "killed"
        reason = facts.get("reason", "") if state == "failed" else facts.get("stage", "") if state == "running" else ""
        what = f"{facts.get('experiment', '?')} seed={facts.get('seed')} scale={facts.get('scale')}"
        what += f" shard={facts.get('shard', '-')}"
        print(f"{state:<12}{what:<58}{_shown(run)}  {reason}")
    for job, overrides in _missing_jobs(paths):
        print(f"{'missing':<12}{' '.join(overrides):<58}{_shown(job)}")
    return 0


def _missing_jobs(paths: list[Path]) -> Iterator[tuple[Path, list[str]]]:
    """Jobs of sweeps that never began: (folder, overrides)."""
    from omegaconf import OmegaConf

    from salrun.composing import expand

    for path in paths:
        for sweep in sorted(path.resolve().rglob("multirun.yaml")):
            overrides = list(OmegaConf.load(sweep).hydra.overrides.task)
            for number, combination in enumerate(expand(overrides)):
                if not (sweep.parent / str(number) / "run.json").exists():
                    yield sweep.parent / str(number), combination


def _alive(facts: dict) -> bool:
    """Whether the process of a run is still there (only known on its own machine)."""
    import platform

    if facts.get("host") != platform.node():
        return True
    try:
        os.kill(int(facts["pid"]), 0)
    except (ProcessLookupError, KeyError, ValueError):
        return False
    except PermissionError:
        return True
    return True


def _shown(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def collect(words: list[str]) -> int:
    """Join runs into the layout of one run, with the figures and claims that span them."""
    from salrun.collecting import collect_runs

    out: Path | None = None
    if "-o" in words:
        at = words.index("-o")
        if at + 1 >= len(words):
            raise SalrunError("salrun collect: -o needs a folder")
        out = Path(words[at + 1])
        words = words[:at] + words[at + 2 :]
    if not words:
        raise SalrunError("salrun collect needs runs: salrun collect outputs/smerf_*/latest -o outputs/smerf/all")
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    return collect_runs([Path(w) for w in words], out, stamp)


def report(words: list[str]) -> int:
    """Write the report of a run again, or one report of several."""
    from salrun.report import write_joint_report, write_report
    from salrun.tables import runs_below

    out = Path("outputs") / "report.html"
    if "-o" in words:
        at = words.index("-o")
        out = Path(words[at + 1])
        words = words[:at] + words[at + 2 :]
    if not words:
        raise SalrunError("salrun report needs runs: salrun report outputs/smerf_simple_fr/latest")
    runs = runs_below([Path(w).resolve() for w in words])
    print(write_report(runs[0]) if len(runs) == 1 else write_joint_report(runs, out))
    return 0


def reliability(words: list[str]) -> int:
    """Krippendorff's alpha, inter-method and internal consistency of any run's metrics."""
    from salrun.stats.report import reliability_report
    from salrun.tables import runs_below

    if not words:
        raise SalrunError("salrun reliability needs runs: salrun reliability outputs/<experiment>/latest")
    runs = runs_below([Path(w).resolve() for w in words])
    print(reliability_report(runs, runs[-1] / "reliability"))
    return 0


def cache(words: list[str]) -> int:
    """Show or clear the store."""
    from salrun.plan import size
    from salrun.store import Store

    root = Path(os.path.expanduser(os.environ.get("SALRUN_CACHE", "~/.cache/salrun/store")))
    store = Store(root)
    if words[:1] == ["clear"]:
        store.clear(words[1] if len(words) > 1 else None)
    elif words:
        raise SalrunError(f"salrun cache takes nothing or 'clear [STAGE]', got '{' '.join(words)}'")
    print(f"store {root}")
    for stage, (entries, used) in store.usage().items():
        print(f"  {stage:<10}{entries:>8} entries {size(used):>10}")
    return 0
