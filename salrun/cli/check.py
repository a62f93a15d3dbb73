"""`salrun check`: find the methods and metrics that words stand for, and put them through the conformance suite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from salrun.config.parts import OF_METHOD, OF_METRIC, Entry, entries, method_part, metric_parts
from salrun.config.signatures import check_parameters
from salrun.conformance import examine
from salrun.types import Method, Metric


def check_parts(words: Sequence[str], settings: Sequence[str], folders: tuple[Path, ...] = ()) -> int:
    """Print a verdict per check of every part, as a run at smoke scale would have it; 1 if any failed."""
    named = [entry for word in words for entry in entries(word, scale="smoke", folders=folders, where="salrun check")]
    chosen = [part for entry in named for part in instances(entry, settings)]
    failed = 0
    for title, part in chosen:
        print(title)
        results = []
        for verdict in examine(part):
            print(verdict, flush=True)
            results.append(verdict.result)
        passed, wrong, excused = (results.count(r) for r in ("ok", "FAIL", "-"))
        print(f"  {passed} passed, {wrong} failed, {excused} not applicable")
        failed += wrong
    return 1 if failed else 0


def instances(entry: Entry, settings: Sequence[str]) -> Iterator[tuple[str, Method | Metric]]:
    """(title, part) with the settings; a metric in all its variants."""
    given: Any = OmegaConf.to_container(OmegaConf.from_dotlist(list(settings)))
    of_methods = entry.group == "methods"
    check_parameters(entry.spec["_target_"], given, entry.where, OF_METHOD if of_methods else OF_METRIC)
    spec = {**entry.spec, **given}
    if of_methods:
        yield f"method {entry.name}", method_part(spec, name=entry.name).method
    else:
        for part in metric_parts(spec, name=entry.name):
            yield " ".join(filter(None, ["metric", entry.name, part.mode])), part.metric
