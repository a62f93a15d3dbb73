"""A job: users' code is made importable, one cell runs, and a fault is returned. The same alone and in a sweep."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from salrun.config.catalogue import load_plugins
from salrun.errors import SalrunError, catch_exits, users_fault
from salrun.store.files import open_log


def import_folders(folders: Iterable[Path] = ()) -> list[str]:
    """Where users' code may be: what SALRUN_PATH says (a sweep tells its jobs so), the current folder, and these."""
    told = filter(None, os.environ.get("SALRUN_PATH", "").split(os.pathsep))
    return list(dict.fromkeys([*told, os.getcwd(), *map(str, folders)]))


def prepare_imports(folders: Iterable[Path] = ()) -> None:
    """Put the folders of users' code on the path and load the plug-ins. Done again inside every job.

    They come last: a torch.py among a user's files is not torch.
    """
    for folder in import_folders(folders):
        if folder not in sys.path:
            sys.path.append(folder)
    catch_exits()
    load_plugins()


OF_MODELS = ("salrun.models", "salrun.models.inference", "salrun.models.compiling")  # what few want to read


def hush(verbose: bool) -> None:
    """Keep from the console, not from run.log, how the model was made ready and made faster; `verbose`: nothing."""
    for handler in logging.getLogger().handlers:
        if type(handler) is logging.StreamHandler:
            handler.filters = [] if verbose else [lambda record: record.name not in OF_MODELS]
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.WARNING if verbose else logging.ERROR)  # no CUDA


def perform(config: dict[str, Any], out: Path, overrides: Sequence[str], told: bool = True) -> Exception | None:
    """Run one cell; a fault is returned, and is in the run's own files. `told`: print its answer."""
    try:
        hush(config["verbose"])
        from salrun.pipeline.cell import run

        run(config, out, overrides, told)
    except SalrunError as fault:
        return fault
    except BaseException as fault:
        theirs = users_fault(fault)
        if theirs is None and not isinstance(fault, Exception):
            raise
        with open_log(out / "run.log") as file:
            file.write("".join(traceback.format_exception(fault)))
        if isinstance(fault, Exception) and theirs is None:
            fault.salrun_log = out / "run.log"  # type: ignore[attr-defined]
            return fault
        return SalrunError(f"{theirs}; the traceback is in {out / 'run.log'}")
    return None
