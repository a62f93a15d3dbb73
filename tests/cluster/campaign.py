"""Kills on a Slurm of one node and on Ray: what the queue, its operator and a dying machine do to the jobs of a sweep.

    python -m tests.cluster.campaign --seed 3                     # 50 kills; interrupted, it goes on
    python -m tests.cluster.campaign --seed 3 --record            # and docs/results/torture.* have it
    python -m tests.cluster.campaign --only requeue ray_worker    # some of it

A round is a sweep on a store of its own; its jobs are hit, mostly while they are at work, and then the same command
does what is left. It fails where a table differs from a serial run's, an entry is made twice, or status is wrong.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from salrun.store.leases import gone
from tests.cluster.one_node_slurm import Slurm, one_node_slurm, why_not
from tests.cluster.place import METHODS, TILES, Place, until
from tests.torture.trials import RESULTS, Finding, record

ACTIVE = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "REQUEUED", "SUSPENDED")
COLUMNS = ["round", "attack", "kills", "fault"]


@dataclass
class Round:
    """A sweep and what it runs on."""

    place: Place
    slurm: Slurm | None
    dice: random.Random
    launcher: str = "slurm_cpu"
    seen: dict[str, int] = field(default_factory=dict)  # entries of the store, and since when

    # -- what there is -------------------------------------------------------------------------------------------------

    def submit(self, *words: str) -> None:
        """Jobs that stay in the queue when this returns, and do not end before they are hit."""
        self.place.hold.touch()
        self.place.run(*self.place.sweep(self.launcher, "hydra.launcher.wait=false", *words))

    def queue(self) -> dict[int, str]:
        """Job -> its state in Slurm's queue."""
        assert self.slurm is not None
        words = ["squeue", "--me", "--noheader", "--array", "--states=all", "--format=%i|%T"]
        states = dict(line.strip().split("|", 1) for line in self.slurm.answer(*words).splitlines() if "|" in line)
        return {n: states.get(name, "") for n, name in self.names().items()}

    def names(self) -> dict[int, str]:
        notes = json.loads((self.place.sweeps[-1] / "jobs.json").read_text())
        return {int(number): note["id"] for number, note in notes.items()}

    def accounts(self, *names: str) -> dict[str, str]:
        """Job -> its state in Slurm's database, of those submitted last or of others; nothing where it is silent."""
        assert self.slurm is not None
        ids = ",".join({name.partition("_")[0] for name in names or self.names().values()})
        words = ["sacct", "--noheader", "--allocations", "--parsable2", "--format=JobID,State", "--jobs", ids]
        return dict(line.split("|", 1) for line in self.slurm.answer(*words).splitlines())

    def order(self, *words: str) -> None:
        assert self.slurm is not None
        done = subprocess.run(words, env=self.slurm.env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{words}: {done.stderr}"

    def running(self) -> list[int]:
        return [n for n, state in self.queue().items() if state == "RUNNING"]

    def some_at_work(self, n: int) -> list[int]:
        """Jobs that wait for the hold to go; half of the time: whatever they do a random moment after they began."""
        self.place.hold.touch()
        if self.slurm is not None and self.dice.random() < 0.5:
            until(lambda: len(self.running()) >= n)
            time.sleep(self.dice.random() * 15)
            return self.running()
        until(lambda: len(self.at_work()) >= n)
        return self.at_work()

    def at_work(self) -> list[int]:
        """Jobs that wait for the hold to go; a requeued one may still do so while it is pending again: not that one."""
        there = self.place.at_work()
        return there if self.slurm is None else [n for n in self.running() if n in there]

    def ended(self) -> bool:
        """Whether no job is in the queue; one that Slurm holds after a refused launch is let go."""
        assert self.slurm is not None
        states, names = self.queue(), self.names()
        for n in (n for n, state in states.items() if state == "PENDING"):
            self.slurm.answer("scontrol", "release", names[n])
        return not any(state in ACTIVE for state in states.values())

    def die(self) -> None:
        """Every process of the sweep's jobs ends, as on a machine that does."""
        mine = str(self.place.sweeps[-1]).encode()
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                if mine in path.read_bytes():
                    os.kill(int(path.parent.name), signal.SIGKILL)

    def attempts(self) -> dict[int, int]:
        return {n: self.place.facts(n).get("attempts", 0) for n in range(self.place.jobs)}

    def status(self) -> str:
        """What `salrun status` says; what the store held before it holds still."""
        now = self.place.entries()
        again = [name for name, when in self.seen.items() if now.get(name) != when]
        assert not again, f"made twice: {again}"
        self.seen = now
        return self.place.run("status", str(self.place.sweeps[-1]))

    # -- how it must end -----------------------------------------------------------------------------------------------

    def finish(self, serial: bytes) -> None:
        """Let them go on, let the same command do the rest, and look at everything."""
        place = self.place
        place.hold.unlink(missing_ok=True)
        if self.slurm is not None:
            until(self.ended, seconds=900)
            time.sleep(1)
        for _ in range(3):
            if f"{place.jobs} done" in (said := self.status()):
                break
            place.run(*place.sweep(self.launcher), code=None)
        assert f"{place.jobs} done" in said, said
        assert len(place.sweeps) == 1, f"{len(place.sweeps)} sweeps"
        maps = sum(name.startswith("maps/") for name in self.seen)
        assert maps == TILES * METHODS, f"{maps} maps"
        broken = [*(place.folder / "store").rglob("*.broken"), *(place.folder / "store").rglob("*.lease")]
        assert not broken, f"left over: {broken}"
        place.run("collect", str(place.sweeps[-1]), "-o", "outputs/joined")
        assert place.scores("outputs/joined") == serial, "the tables differ"


# -- attacks: each hits jobs and says how many; what must be so at once is asserted here -------------------------------


def requeue(trial: Round) -> int:
    """`scontrol requeue`: they end, wait in the queue again and go on."""
    return _back_in_the_queue(trial, lambda name: trial.order("scontrol", "requeue", name))


def preempted(trial: Round) -> int:
    """The signal that a preempted job gets, and that submitit answers by requeueing."""
    return _back_in_the_queue(trial, lambda name: trial.order("scancel", "--signal=USR2", name))


def _back_in_the_queue(trial: Round, hit: Callable[[str], None]) -> int:
    trial.submit()
    kills = 0
    for _ in range(2):
        victims = trial.some_at_work(1)
        begun = trial.attempts()
        for n in victims:
            hit(trial.names()[n])
        kills += len(victims)
        if all(begun.values()):  # they had written who they are: they come back as the next attempt
            until(lambda: any(word in trial.status() for word in ("again", "attempt")), seconds=240)
        said = trial.status()
        assert "failed" not in said, said
    return kills


def timed_out(trial: Round) -> int:
    """Three minutes are all that a job gets: warned before its end, it goes on in another three."""
    # Slurm may warn a minute early, and a job that is not ready to hear it dies.
    trial.submit("hydra.launcher.timeout_min=3", "hydra.launcher.signal_delay_s=60")
    until(lambda: min(trial.attempts().values()) >= 2, seconds=500)
    assert "failed" not in trial.status()
    return sum(n - 1 for n in trial.attempts().values())


def node_down(trial: Round) -> int:
    """The node dies under its jobs, and comes back; then it is drained, and comes back."""
    trial.submit()
    node = f"nodename={socket.gethostname()}"
    victims = trial.some_at_work(1)
    trial.order("scontrol", "update", node, "state=down", "reason=campaign")
    trial.die()
    until(lambda: not trial.running(), seconds=120)
    said = trial.status()
    assert "failed" not in said, said
    assert trial.slurm is not None
    trial.slurm.answer("scontrol", "update", node, "state=resume")  # it may have come back by itself (ReturnToService)
    trial.some_at_work(1)
    trial.order("scontrol", "update", node, "state=drain", "reason=campaign")
    trial.place.hold.unlink()
    until(lambda: not trial.running(), seconds=300)
    waiting = [n for n, state in trial.queue().items() if state == "PENDING"]
    said = trial.status()
    assert "failed" not in said and said.count("PENDING") == len(waiting), said
    trial.order("scontrol", "update", node, "state=resume")
    return len(victims)


def cancelled(trial: Round) -> int:
    """`scancel` of half of the jobs, some at work and some that wait; those Slurm forgets at once."""
    trial.submit()
    trial.some_at_work(1)
    victims = trial.dice.sample(sorted(trial.names()), trial.place.jobs // 2)
    trial.order("scancel", *(trial.names()[n] for n in victims))
    until(lambda: all(trial.queue()[n] not in ACTIVE for n in victims), seconds=120)
    until(lambda: f"{len(victims)} failed" in trial.status(), seconds=60)
    trial.place.hold.unlink(missing_ok=True)
    until(lambda: not any(state in ACTIVE for state in trial.queue().values()), seconds=600)
    said = trial.status()
    assert f"{trial.place.jobs - len(victims)} done, {len(victims)} failed" in said, said
    return len(victims)


def killed(trial: Round) -> int:
    """SIGKILL of the jobs' processes, as the kernel does where memory is short."""
    trial.submit()
    trial.place.hold.touch()
    until(lambda: trial.place.at_work())
    time.sleep(trial.dice.random() * 3)
    return _kill(trial, [trial.place.facts(n)["pid"] for n in trial.place.at_work()])


def controller_killed(trial: Round) -> int:
    """Slurm's controller dies while a sweep waits for its jobs, and comes back; nobody gives up."""
    assert trial.slurm is not None
    trial.place.hold.touch()
    process = trial.place.start(*trial.place.sweep(trial.launcher))
    until(trial.place.at_work, process)
    trial.slurm.kill("slurmctld")
    trial.place.hold.unlink()
    time.sleep(8 + trial.dice.random() * 8)
    said = trial.status()
    assert "failed" not in said, said
    trial.slurm.start("slurmctld")
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0 and f"{trial.place.jobs} done" in out, out + err
    return 1


def database_down(trial: Round) -> int:
    """Slurm's database dies under a sweep, as does a job, and comes back; then for a whole sweep, with its daemon."""
    slurm, place = trial.slurm, trial.place
    assert slurm is not None
    place.hold.touch()
    process = place.start(*place.sweep(trial.launcher))
    until(lambda: len(place.at_work()) == 2, process)
    until(lambda: "RUNNING" in trial.accounts().values(), seconds=60)  # it was there
    first = trial.names()
    slurm.kill("mariadbd")
    assert not trial.accounts(), "sacct answers without a database"
    victim = trial.dice.choice(trial.at_work())
    os.kill(place.facts(victim)["pid"], signal.SIGKILL)
    until(lambda: len([n for n in trial.at_work() if n != victim]) == 2, process)  # one began without it
    said = trial.status()
    assert "2 running, 1 failed, 1 missing" in said and "killed" in said, said
    time.sleep(trial.dice.random() * 10)
    slurm.start("mariadbd")
    slurm.until_counted()
    place.hold.unlink()
    out, err = process.communicate(timeout=600)
    assert process.returncode == 1 and f"job {victim}" in err and "Traceback" not in err, out + err
    assert "3 done, 1 failed" in out and "keeps no accounting" not in err, out + err
    for daemon in ("slurmdbd", "mariadbd"):
        slurm.kill(daemon)
    said = place.run(*place.sweep(trial.launcher))
    assert "keeps no accounting" in said and f"{place.jobs} done" in said, said
    slurm.start("mariadbd")
    slurm.start("slurmdbd")
    slurm.until_counted()
    known = {**{name: "COMPLETED" for name in [*first.values(), *trial.names().values()]}, first[victim]: "FAILED"}
    until(lambda: trial.accounts(*known) == known, seconds=120)  # what it missed it was told since
    return 4


def ray_job(trial: Round) -> int:
    """SIGKILL of the jobs' processes under Ray."""
    return _under_ray(trial, lambda pid: pid)


def ray_worker(trial: Round) -> int:
    """SIGKILL of Ray's workers, of which the jobs are children."""
    return _under_ray(trial, lambda pid: int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]))


def _under_ray(trial: Round, victim_of: Callable[[int], int]) -> int:
    trial.place.hold.touch()
    process = trial.place.start(*trial.place.sweep(trial.launcher))
    until(lambda: len(trial.place.at_work()) == 2, process)
    time.sleep(trial.dice.random() * 3)
    kills = _kill(trial, [victim_of(trial.place.facts(n)["pid"]) for n in trial.place.at_work()])
    trial.place.hold.unlink(missing_ok=True)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 1 and "Traceback" not in err, out + err
    said = trial.status()
    assert f"{trial.place.jobs - kills} done, {kills} failed" in said and "killed" in said, said
    return kills


def _kill(trial: Round, pids: list[int]) -> int:
    owners = [trial.place.facts(n) for n in trial.place.at_work()]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    until(lambda: all(gone(owner) for owner in owners), seconds=60)
    return len(pids)


# attack -> (rounds of the whole campaign, jobs)
ATTACKS: dict[Callable[[Round], int], tuple[int, int]] = {
    requeue: (2, 2),
    preempted: (2, 2),
    timed_out: (1, 2),
    node_down: (3, 3),
    cancelled: (3, 4),
    killed: (3, 2),
    controller_killed: (2, 2),
    database_down: (2, 4),
    ray_job: (2, 4),
    ray_worker: (3, 4),
}
ACCOUNTED = (database_down,)  # need a Slurm that keeps accounts


def one_round(attack: Callable[[Round], int], number: int, seed: int, folder: Path, slurm: Slurm | None) -> dict:
    """One row of the log."""
    shutil.rmtree(folder, ignore_errors=True)
    of_ray = "ray" in attack.__name__
    env = {"SLURM_CONF": slurm.env["SLURM_CONF"]} if slurm and not of_ray else {}
    place = Place(folder, ATTACKS[attack][1], **env)
    dice = random.Random(f"{seed}/{attack.__name__}/{number}")
    trial = Round(place, None if of_ray else slurm, dice, "local_ray" if of_ray else "slurm_cpu")
    kills, fault = 0, ""
    try:
        kills = attack(trial)
        trial.finish(serial_of(folder.parent))
    except (AssertionError, subprocess.SubprocessError) as wrong:
        fault = str(wrong)[-1500:] or "assertion"
        if slurm is not None:
            slurm.answer("scancel", "--me")
    return {"round": f"{attack.__name__}/{number}", "attack": attack.__name__, "kills": kills, "fault": fault}


def serial_of(folder: Path) -> bytes:
    """The scores of one ordinary run, made once."""
    place = Place(folder / "serial")
    run = "outputs/smerf_simple_fr/latest"
    if not (place.folder / run / "tables" / "scores.parquet").exists():
        place.run(*place.cell)
    return place.scores(run)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = {attack.__name__: attack for attack in ATTACKS}
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=names, default=list(names), metavar="ATTACK")
    parser.add_argument("--rounds", type=int, help="of each attack; default: 50 kills together")
    place = Path(tempfile.gettempdir()) / "salrun-cluster"
    parser.add_argument("--work", type=Path, default=place, help="kept to go on")
    parser.add_argument("--record", action="store_true", help="write docs/results/torture.csv and torture.md")
    given = parser.parse_args(argv)
    work = given.work / str(given.seed)
    work.mkdir(parents=True, exist_ok=True)
    log = work / "rounds.csv"
    rows = list(csv.DictReader(log.open(newline=""))) if log.exists() else []
    todo = [
        (names[name], number)
        for name in given.only
        for number in range(given.rounds or ATTACKS[names[name]][0])
        if not any(row["round"] == f"{name}/{number}" and not row["fault"] for row in rows)
    ]
    serial_of(work)
    shutil.rmtree(work / "slurm", ignore_errors=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and the daemons end too
    for accounting in (False, True):
        mine = [(attack, number) for attack, number in todo if (attack in ACCOUNTED) == accounting]
        if mine and accounting and (why := why_not(accounting)):
            print(f"{', '.join(f'{attack.__name__}/{number}' for attack, number in mine)}: skipped: {why}", flush=True)
            continue
        of_slurm = any("ray" not in attack.__name__ for attack, _ in mine)
        with one_node_slurm(work / "slurm" / str(accounting), accounting) if of_slurm else nullcontext() as slurm:
            for attack, number in mine:
                row = one_round(attack, number, given.seed, work / f"{attack.__name__}-{number}", slurm)
                rows = [*(old for old in rows if old["round"] != row["round"]), {k: str(v) for k, v in row.items()}]
                with log.open("w", newline="") as file:
                    writer = csv.DictWriter(file, COLUMNS)
                    writer.writeheader()
                    writer.writerows(rows)
                print(f"{row['round']}: {row['kills']} kills {row['fault'] or 'ok'}", flush=True)
    found = [of_attack(attack, [r for r in rows if r["attack"] == attack.__name__]) for attack in ATTACKS]
    print(f"{sum(int(r['kills']) for r in rows)} kills, {sum(bool(r['fault']) for r in rows)} rounds with a fault")
    if given.record:
        record([replace(f, trial=f"{f.trial}, seed {given.seed}") for f in found if f.tried], RESULTS)
    return 1 if any(row["fault"] for row in rows) else 0


def of_attack(attack: Callable[[Round], int], rows: list[dict[str, str]]) -> Finding:
    wrong = [row["fault"].replace("\n", " ")[-200:] for row in rows if row["fault"]]
    about = (attack.__doc__ or "").split("\n")[0].replace("`", "")
    where = "Ray" if "ray" in attack.__name__ else "Slurm"
    kills = sum(int(row["kills"]) for row in rows)
    return Finding(f"{where}: {attack.__name__.replace('_', ' ')}", kills, len(wrong), "; ".join(wrong) or about)


if __name__ == "__main__":
    sys.exit(main())
