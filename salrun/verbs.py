"""What `salrun check|status|collect|report|reliability|cache` do."""

from __future__ import annotations

import datetime
import os
import sys
from pathlib import Path
from typing import Any

from salrun.errors import SalrunError, unknown


def check(words: list[str]) -> int:
    """Put methods and metrics through the conformance suite; 1 if one fails."""
    from salrun.checking import check_parts

    if all("=" in w for w in words):
        raise SalrunError("salrun check needs a file, module:Class or a name: salrun check my_method.py [key=value]")
    return check_parts([w for w in words if "=" not in w], [w for w in words if "=" in w])


def status(words: list[str]) -> int:
    """One line per run: state, what, where, why, log; those of sweeps that never began come last."""
    from salrun.sweeps import AGAIN, counts, job_in, jobs_of, sweeps_below
    from salrun.tables import runs_below

    paths = [Path(w) for w in words] or [Path("outputs")]
    asked = {job.folder: job for sweep in sweeps_below(paths) for job in jobs_of(sweep)}
    runs = runs_below(paths, none=bool(asked))
    jobs = [asked.pop(run) if run in asked else job_in(run) for run in runs] + list(asked.values())
    for job in jobs:
        log = f"  log: {_shown(job.log)}" if job.log and job.state == "failed" else ""
        print(f"{job.state:<12}{job.what:<58}{_shown(job.folder)}  {job.reason}{log}")
    hint = f"; of a sweep, {AGAIN}" if any(job.state in ("failed", "missing") for job in jobs) else ""
    print(f"{counts(jobs)}{hint}", file=sys.stderr)
    return 0


def _shown(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _output(words: list[str], missing: str) -> tuple[Path | None, list[str]]:
    """What follows -o, and the words without both."""
    if "-o" not in words:
        return None, words
    at = words.index("-o")
    if at + 1 >= len(words):
        raise SalrunError(f"salrun {missing}")
    return Path(words[at + 1]), words[:at] + words[at + 2 :]


def collect(words: list[str]) -> int:
    """Join runs into the layout of one run, with the figures and claims that span them."""
    from salrun.collecting import collect_runs

    out, words = _output(words, "collect: -o needs a folder")
    if not words:
        raise SalrunError("salrun collect needs runs: salrun collect outputs/smerf_*/latest -o outputs/smerf/all")
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    return collect_runs([Path(w) for w in words], out, stamp)


def report(words: list[str]) -> int:
    """Write the report of a run again, or one report of several."""
    from salrun.report import write_joint_report, write_report
    from salrun.tables import runs_below

    out, words = _output(words, "report: -o needs a file")
    out = out or Path("outputs") / "report.html"
    if not words:
        raise SalrunError("salrun report needs runs: salrun report outputs/smerf_simple_fr/latest")
    runs = runs_below([Path(w).resolve() for w in words])
    print(write_report(runs[0]) if len(runs) == 1 else write_joint_report(runs, out))
    return 0


def reliability(words: list[str]) -> int:
    """Krippendorff's alpha, inter-method and internal consistency of any run's metrics."""
    from salrun.stats.report import reliability_report
    from salrun.tables import runs_below

    given = [w for w in words if "=" in w and not Path(w).exists()]
    paths = [Path(w).resolve() for w in words if w not in given]
    if not paths:
        raise SalrunError("salrun reliability needs runs: salrun reliability outputs/<experiment>/latest")
    settings = _reliability_settings(given)
    runs = runs_below(paths)
    print(reliability_report(runs, runs[-1] / "reliability", **settings))
    return 0


def _reliability_settings(words: list[str]) -> dict[str, Any]:
    """`draws=10000 test=wilcoxon nan_to_zero=false` as values."""
    from salrun.stats.ranks import TESTS

    allowed = {"draws": "a number of at least 1", "test": " or ".join(TESTS), "nan_to_zero": "true or false"}
    values: dict[str, Any] = {}
    for word in words:
        key, _, text = word.partition("=")
        if key not in allowed:
            raise unknown("setting", key, allowed, "salrun reliability")
        read = {"true": True, "false": False} if key == "nan_to_zero" else {name: name for name in TESTS}
        values[key] = int(text) if key == "draws" and text.isdecimal() else read.get(text)
        if not values[key] and values[key] is not False:
            raise SalrunError(f"salrun reliability: {key} must be {allowed[key]}, got '{text}'")
    return values


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
