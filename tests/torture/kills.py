"""SIGKILL at random moments of all stages: nothing is corrupt, nothing is done twice, the tables are the same.

They belong to `python -m tests.torture.campaign`, which says how to run them.
"""

from __future__ import annotations

import csv
import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from salrun.models import checkpoint, training
from salrun.results.record import read_facts
from salrun.store.entries import Store
from salrun.sweep.jobs import job_in
from tests.torture.trials import RUN, WITH_FIGURES, Finding, Life, damage, entries, reference, run_of, tables

# Where the kills are aimed at, and how often; the first kills of a store, which has no model yet, at its training.
AIMS = {"start": 1, "data": 1, "model": 1, "plan": 1, "maps and scores": 6, "tables": 2, "figures and claims": 2}
AIMS |= {"comparison": 1, "report": 5}
WAIT = 30.0  # seconds in which a life computes nothing: it hangs
BUSY = 600.0  # seconds of computing
JOURNAL = "journal.txt"
COLUMNS = ["kill", "campaign", "stage", "entries", "corrupt", "repeated", "status", "hang", "tables"]


def keep_journal(path: Path) -> None:
    """Note every epoch that is begun or kept, every trained model and every entry that is written, as it happens."""

    def noted(owner: Any, name: str, before: Callable[..., object], after: Callable[..., object]) -> None:
        plain = getattr(owner, name)

        def call(*given: Any, **named: Any) -> Any:
            _note(path, before(*given))
            result = plain(*given, **named)
            _note(path, after(*given))
            return result

        setattr(owner, name, call)

    nothing = lambda *_: ""
    noted(training, "_epoch", lambda *given: f"epoch {given[5]}", nothing)
    noted(training, "_save", nothing, lambda *given: f"kept {given[4]}")
    noted(checkpoint, "save_checkpoint", nothing, lambda *_: "trained")
    noted(Store, "write", nothing, lambda store, stage, key, *_: f"wrote {stage}/{key}")


def _note(path: Path, text: object) -> None:
    if text:
        with path.open("a") as file:
            file.write(f"{text}\n")


def repeated(journal: Path, after: dict[str, Any]) -> list[str]:
    """What the lives of a store did twice; `after`: what run.json says that a finished one computed."""
    kept, trained, done, wrong = 0, False, set(), []
    lines = journal.read_text().splitlines() if journal.exists() else []
    for line in lines:
        what, _, name = line.partition(" ")
        if what == "epoch" and (trained or int(name) < kept):
            wrong.append(line)
        elif what == "kept":
            kept = max(kept, int(name))
        elif what == "wrote" and name in done:
            wrong.append(name)
        trained |= what == "trained"
        done.add(name)
    for stage, computed in after.get("model", {}).items():
        written = sum(line.startswith(f"wrote {stage}/") for line in lines)
        if computed > written:
            wrong.append(f"{computed} {stage} computed, {written} ever written")
    return wrong


def told_wrong(home: Path, pid: int) -> str:
    """What `salrun status` would say of the run of a killed process, if that is wrong."""
    for path in (home / "outputs").glob("*/2*/run.json"):
        facts = read_facts(path.parent)
        if facts.get("pid") != pid:
            continue
        page = path.with_name("report.html")
        whole = page.exists() and page.read_text().rstrip().endswith("</html>") and (path.parent / "tables").exists()
        state = job_in(path.parent).state
        if state != ("done" if facts.get("status") == "done" and whole else "failed"):
            return f"{state}, {'whole' if whole else 'not whole'}"
    return ""


def one_life(words: list[str], home: Path, aim: str, delay: float) -> tuple[Life, str]:
    """A life, and where it was killed; `end` where it had finished."""
    life = Life(words, home, before=partial(keep_journal, home / JOURNAL))
    if aim:
        return life, life.kill_in(aim, delay, WAIT) or "end"
    life.end(BUSY, WAIT)
    return life, "end"


def kills(folder: Path, n: int, seed: int = 7) -> Iterator[Finding]:
    """A campaign is a store, some lives that are killed, and one that is left alone."""
    runs = {"plain": RUN, "figures": WITH_FIGURES}
    expected = {name: reference(folder / f"whole-{name}", words) for name, words in runs.items()}
    timings = json.loads((run_of(folder / "whole-figures") / "run.json").read_text())["timings"]
    seconds = {**timings, "training": 0.9 * timings["model"]}
    log = folder / "kills.csv"
    rows = list(csv.DictReader(log.open())) if log.exists() else []
    campaign = 1 + max((int(r["campaign"]) for r in rows), default=0)
    while (left := n - sum(r["stage"] != "end" for r in rows)) > 0:
        dice = random.Random(f"{seed}/{campaign}")
        name = dice.choice(["plain", "plain", "figures"])
        home, seen = folder / f"campaign-{campaign}", {}
        shutil.rmtree(home, ignore_errors=True)  # of a campaign that was itself killed
        aims = ["training"] * dice.randint(0, 4) + dice.choices(list(AIMS), list(AIMS.values()), k=dice.randint(2, 8))
        mine = []
        for aim in [*aims[:left], ""]:
            if aim == "training" and list((home / "store" / "model").rglob("*.safetensors")):
                continue  # a kill came too late: nobody will train here again
            life, where = one_life(runs[name], home, aim, dice.random() * max(seconds.get(aim, 0.5), 0.05))
            now = entries(home / "store")
            out = run_of(home) if where == "end" and life.code == 0 else None
            again = repeated(home / JOURNAL, read_facts(out).get("computed", {}) if out else {})
            row = {
                "kill": len(rows) + len(mine) + 1,
                "campaign": campaign,
                "stage": where,
                "entries": len(now),
                "corrupt": " ".join(damage(home)),
                "repeated": " ".join([*again, *(k for k, v in seen.items() if now.get(k) != v)]),
                "status": told_wrong(home, life.pid),
                "hang": "hang" if life.hung else "",
                "tables": "",
            }
            seen = now
            if where == "end":
                same = life.code == 0 and tables(home) == expected[name]
                row["tables"] = "identical" if same else f"differ or exit {life.code}: {life.last_line}"
            mine.append({k: str(v) for k, v in row.items()})
            if where == "end":
                break
        rows += mine
        with log.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
        if not any(fault_of(r) for r in mine):
            shutil.rmtree(home)
        campaign += 1
    yield from findings(rows)


def fault_of(row: dict[str, str]) -> str:
    """The first thing that is wrong with a kill, by the name of its column."""
    wrong = [column for column in ("corrupt", "repeated", "status", "hang") if row[column]]
    return next(iter(wrong), "tables" if row["tables"] not in ("", "identical") else "")


def findings(rows: list[dict[str, str]]) -> Iterator[Finding]:
    killed = [r for r in rows if r["stage"] != "end"]
    finished = [r for r in rows if r["stage"] == "end"]
    where = ", ".join(f"{count} {stage}" for stage, count in Counter(r["stage"] for r in killed).most_common())
    least = min(int(r["entries"]) for r in finished)
    early = sum(int(r["entries"]) < least for r in killed)
    fine = {
        "corrupt": f"in {where}",
        "repeated": f"{early} of the kills left something to compute; no kept epoch, entry or model was made again",
        "status": "a killed run is failed, or done with its report and tables",
        "hang": f"none waited for {WAIT:.0f} s",
    }
    for column, seen in fine.items():
        wrong = [r[column] for r in rows if r[column]]
        yield Finding(f"SIGKILL: {column}", len(killed), len(wrong), "; ".join(wrong[:3]) or seen)
    wrong = [r["tables"] for r in finished if r["tables"] != "identical"]
    yield Finding("SIGKILL: tables", len(finished), len(wrong), "; ".join(wrong[:3]) or "identical byte for byte")
