"""The entrypoint. Owns all messages and exit codes: 0 done, 1 our fault, 2 something to correct, 130 interrupted."""

from __future__ import annotations

import errno
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from salrun import __version__
from salrun.cli.verbs import VERBS
from salrun.config.catalogue import names
from salrun.config.command import Command, read_command
from salrun.config.settings import GROUPS, help_lines
from salrun.console import EXIT, mend, take
from salrun.errors import SalrunError, interrupts, users_fault
from salrun.store.files import open_log

HELP = """salrun {version}: an experiment runner for evaluating saliency maps

usage: salrun +experiment=NAME [scale=smoke|laptop|paper] [key=value ...]
       salrun -m +experiment=A,B seed=0,1,2 [hydra/launcher=...]        a sweep
       salrun VERB ...                                                  salrun VERB --help says more

examples:
  salrun +experiment=smerf_simple_fr scale=laptop
  salrun +experiment=smerf_simple_fr 'methods=[gradient,edge]' 'metrics=[sparseness]' plan=true
  salrun dataset=textbox reasoning=simple_nr model=smerf_simple 'methods=[gradient]' 'metrics=[pafl]'

experiments (+experiment=...):
{experiments}

groups (salrun list GROUP): {groups}; several methods: 'methods=[a,b]'
scales: smoke (seconds, for tests), laptop (minutes), paper (the paper's protocol; the default)

verbs:
{verbs}

settings (key=value):
{settings}

your own YAML: --config-dir DIR; your own code: _target_: module.Class, or SALRUN_PLUGINS=file.py. Configs are code.
"""


def main(argv: Sequence[str] | None = None) -> None:
    """The console script."""
    sys.exit(run(list(sys.argv[1:] if argv is None else argv)))


def run(argv: list[str]) -> int:
    """Do what the command line says; the exit code."""
    take()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra re-raises instead of printing and exiting
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("salrun").setLevel(logging.INFO)
    try:
        return act(read_command(argv, (*VERBS, *HELPS, *VERSIONS)))
    except BaseException as fault:
        mend()
        if interrupts(fault):
            print("salrun: interrupted; what is done is kept, the same command goes on from there", file=sys.stderr)
            return 130
        known = fault if isinstance(fault, SalrunError) else users_fault(fault)
        if known is not None:
            print(f"salrun: {' '.join(str(known).split())}", file=sys.stderr)
            return 2
        if isinstance(fault, BrokenPipeError):
            return 0
        if isinstance(fault, OSError) and fault.errno in OF_THE_MACHINE:
            print(f"salrun: {fault.filename or f'cannot write below {os.getcwd()}'}: {fault.strerror}", file=sys.stderr)
            return 2
        if not isinstance(fault, Exception):
            raise
        return _fault(fault)
    finally:
        os._exit = EXIT  # whoever called this may end as he likes


HELPS, VERSIONS = ("help", "-h", "--help"), ("-V", "--version")
# What the user can correct: disk full, over quota, read-only, no permission, a name that cannot be, a file too large.
OF_THE_MACHINE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.EFBIG}


def act(command: Command) -> int:
    """Do what the command asks for; the exit code."""
    if command.verb in VERBS:
        return VERBS[command.verb].run(command.words)
    if command.verb in VERSIONS:
        from salrun.store.sources import commit  # here: help needs none of it

        print(f"salrun {__version__}{version_of(commit())}")
    elif command.verb in HELPS or command.flags.help:
        print(help_text())
    else:
        from salrun.cli.experiment import experiment  # here: Hydra is not needed for the rest

        return experiment(command)
    return 0


def version_of(known: str | None) -> str:
    """` (commit 0123456789ab+)`; nothing where no commit is known."""
    return f" (commit {known[:12]}{'+' if known.endswith('+') else ''})" if known else ""


def help_text() -> str:
    rows = [f"  {name:<28}{about}" for name, about in names("experiment").items()]
    verbs = [f"  {name:<14}{verb.about}: {verb.example}" for name, verb in VERBS.items()]
    return HELP.format(
        version=__version__,
        experiments="\n".join(rows),
        groups=", ".join(GROUPS),
        verbs="\n".join(verbs),
        settings="\n".join(help_lines()),
    )


def _fault(fault: Exception) -> int:
    """An unexpected fault: the traceback goes to a log, the user gets one line."""
    path = getattr(fault, "salrun_log", None)
    if path is None:
        path = Path("salrun-fault.log")
        try:
            path.unlink(missing_ok=True)
            with open_log(path) as file:
                file.write("".join(traceback.format_exception(fault)))
        except OSError:
            path = None
    where = f"; the traceback is in {path}" if path else ""
    print(
        f"salrun: unexpected {type(fault).__name__}: {str(fault).strip().partition(chr(10))[0]}{where}",
        file=sys.stderr,
    )
    return 1
