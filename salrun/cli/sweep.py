"""A sweep: many jobs through a launcher of Hydra's, and what became of them; and what else only Hydra can do."""

from __future__ import annotations

import argparse
import datetime
import logging
import os
import re
import shutil
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from hydra import version
from hydra._internal.utils import _run_hydra, get_args_parser
from hydra.errors import HydraException

from salrun.cli.experiment import no_folder
from salrun.config.catalogue import conf_dir
from salrun.config.command import Command, of_hydra
from salrun.config.compose import check_command, quoted, searchpath, typed_value
from salrun.errors import SalrunError, users_place
from salrun.pipeline.job import import_folders
from salrun.results.record import read_facts
from salrun.store.files import open_log, shown
from salrun.sweep.collect import collect_runs
from salrun.sweep.jobs import AGAIN, ENDED, counts, interrupted_sweep, jobs_of, lease_of
from salrun.sweep.launch import check_launcher, job

log = logging.getLogger(__name__)

SWEEPS = Path("outputs") / "sweeps"


def hand_over(command: Command, settings: Sequence[str] = ()) -> None:
    """Let Hydra do what it alone can: sweeps through a launcher, --cfg, --info, --hydra-help and shell completion."""
    try:
        search = searchpath(command.overrides, command.folders)
    except HydraException:  # half a word, as completion has it
        search = []
    plain = [o for o in command.overrides if not search or not o.startswith("hydra.searchpath=")]
    overrides = [*plain, *search, *settings]
    asked = {**vars(command.flags), "multirun": command.multirun, "config_dir": None, "overrides": overrides}
    version.setbase("1.3")
    try:
        _run_hydra(argparse.Namespace(**asked), get_args_parser(), job, str(conf_dir()), "config")
    except SystemExit as left:  # after --hydra-help
        if users_place(left):
            raise
    except (TypeError, ValueError, AttributeError) as fault:  # of words that completion does not expect
        if not command.flags.shell_completion:
            raise
        raise SalrunError(f"--shell-completion: {_first_line(fault)}") from fault
    except HydraException as fault:
        raise SalrunError(_as_swept(str(fault).splitlines()[0], command)) from fault


def _as_swept(line: str, command: Command) -> str:
    """Hydra composes a sweep once without what is swept: a key that only an experiment brings is not there yet."""
    key = re.match(r"Could not override '([^']+)'", line)
    typed = [o for o in command.overrides if key and o.startswith(f"{key[1]}=")]
    if not (command.multirun and typed):
        return line
    name, _, value = typed[-1].partition("=")
    return f"'{typed[-1]}' is only there with what is swept: write '{name}=choice({value})'"


def sweep(command: Command) -> int:
    """Many jobs, through a launcher. What an earlier sweep of the same command left undone is done in its folder."""
    check_command(command)
    check_launcher(command.overrides, command.folders)
    given = typed_value(command.overrides, "hydra.sweep.dir")
    words = [o for o in command.overrides if not of_hydra(o)]
    earlier = None if given else interrupted_sweep(SWEEPS, words)
    folder = Path(str(given)) if given else earlier or _new_sweep()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as raised:
        raise no_folder(raised, "hydra.sweep.dir") from raised
    lease = lease_of(folder)
    if not lease.try_acquire():
        if given:
            raise SalrunError(f"another salrun is at work on the sweep in {folder}")
        earlier, folder = None, _new_sweep()
        lease = lease_of(folder)
        lease.acquire()
    if earlier:
        log.info("going on with %s: %s", earlier, counts(jobs_of(earlier)))
        (earlier / "jobs.json").unlink(missing_ok=True)
    fault = None
    with lease:
        try:
            hand_over(command, [f"hydra.sweep.dir={quoted(str(folder.absolute()))}", *environment(command)])
        except SalrunError:
            raise
        except Exception as raised:
            fault = raised
            if not (folder / "multirun.yaml").exists():
                raise SalrunError(f"the sweep could not begin: {_first_line(fault)}") from fault
            with open_log(folder / "launcher.log") as file:
                file.write("".join(traceback.format_exception(fault)))
    jobs = jobs_of(folder)
    for number, each in enumerate(jobs):
        seen = f"; log: {shown(each.log)}" if each.log and each.state == "failed" else ""
        to = sys.stdout if each.state in ENDED else sys.stderr
        print(f"  {each.state:<9}job {number}: {each.what}  {each.reason}{seen}".rstrip(), file=to)
    if fault:
        print(f"salrun: the launcher gave up: {_first_line(fault)} ({shown(folder)}/launcher.log)", file=sys.stderr)
    left = [each for each in jobs if each.state in ("failed", "missing") and not each.at_work]
    if not given and all(each.state == "planned" for each in jobs):
        shutil.rmtree(folder)
        return 0
    if not any(each.at_work for each in jobs):
        join([each.folder for each in jobs if each.state == "done"], folder.name, "report=false" not in words)
    print(f"sweep:   {shown(folder)}  ({counts(jobs)}{f'; {AGAIN}' if left else ''})")
    return 1 if left or fault else 0


def join(done: Sequence[Path], stamp: str, drawn: bool) -> None:
    """The answer of the jobs together, paper by paper; one job has said it all in its own folder."""
    papers: dict[str, list[Path]] = {}
    for path in done:
        papers.setdefault(str(read_facts(path).get("paper") or ""), []).append(path)
    for paths in papers.values():
        try:
            collect_runs(paths, None, stamp, drawn)
        except SalrunError as fault:  # settings that a sweep varies may not fit into one table
            print(f"salrun: not joined: {fault}", file=sys.stderr)


def environment(command: Command) -> list[str]:
    """This process' settings for its jobs, wherever they run: not every queue hands the environment down."""
    plugins = filter(None, os.environ.get("SALRUN_PLUGINS", "").split(os.pathsep))
    values = {
        "SALRUN_PATH": os.pathsep.join(import_folders(command.folders)),
        "SALRUN_PLUGINS": os.pathsep.join(map(os.path.abspath, plugins)),
        **{name: os.environ.get(name, "") for name in ("SALRUN_DATA", "SALRUN_CACHE")},
    }
    return [f"++hydra.job.env_set.{name}={quoted(value)}" for name, value in values.items() if value]


def _first_line(fault: Exception) -> str:
    return f"{type(fault).__name__}: {(str(fault).strip().splitlines() or [''])[0]}"


def _new_sweep() -> Path:
    return SWEEPS / datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")
