"""A run: alone in this process, or handed over to Hydra as the jobs of a sweep."""

from __future__ import annotations

import errno
import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

from hydra._internal.callbacks import Callbacks
from hydra.core.utils import run_job
from hydra.errors import HydraException
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, read_write

from salrun.config.command import Command, of_hydra
from salrun.config.compose import check_command, composed_run, searchpath
from salrun.errors import SalrunError
from salrun.pipeline.job import perform, prepare_imports

OF_A_FOLDER = {errno.ENOENT, errno.ENOTDIR, errno.EEXIST}  # a file is in its way, or the place takes no folders


def experiment(command: Command) -> int:
    """Compose and check before anything is computed, then run; the exit code."""
    prepare_imports(command.folders)
    if command.asks_hydra or command.flags.cfg:
        if command.flags.cfg:
            check_command(command)
        logging.getLogger().handlers.clear()  # it logs its answers, to standard output
        from salrun.cli.sweep import hand_over

        hand_over(command)
        return 0
    if not command.multirun:
        config, whole = composed_run(command)
        if whole.hydra.mode is not RunMode.MULTIRUN:
            with passing_folder(whole) if config["plan"] else nullcontext():
                return single(config, whole, command)
    from salrun.cli.sweep import sweep  # here: what tells of jobs takes pandas

    return sweep(command)


def single(config: dict[str, Any], whole: DictConfig, command: Command) -> int:
    """One run in this process, in the folder and with the job settings that Hydra's part of the config names."""
    with read_write(whole.hydra):
        whole.hydra.mode = RunMode.RUN
    words = [o for o in command.overrides if not of_hydra(o)] + searchpath(command.overrides, command.folders)
    try:
        context = HydraContext(config_loader=cast(Any, None), callbacks=Callbacks(whole))  # the loader is a sweep's
    except HydraException as wrong:
        raise SalrunError(f"hydra.callbacks: {wrong}") from wrong

    def task(_: DictConfig) -> Exception | None:
        logging.getLogger("salrun").setLevel(logging.INFO)
        return perform(config, Path(whole.hydra.runtime.output_dir), words)

    try:
        fault = run_job(task, whole, "hydra.run.dir", None, context).return_value
    except OSError as raised:  # by Hydra as it made the folder: the task returns its faults
        if raised.errno not in OF_A_FOLDER:
            raise
        raise no_folder(raised, "hydra.run.dir") from raised
    if fault:
        raise fault
    return 0


@contextmanager
def passing_folder(whole: DictConfig) -> Iterator[None]:
    """A folder for what leaves none behind, as a plan: gone afterwards, unless something unexpected happened in it."""
    folder = Path(tempfile.mkdtemp(prefix="salrun-plan-"))
    with read_write(whole.hydra):
        whole.hydra.run.dir = whole.hydra.runtime.output_dir = str(folder)
    try:
        yield
    except (SalrunError, KeyboardInterrupt):
        shutil.rmtree(folder)
        raise
    shutil.rmtree(folder)


def no_folder(fault: OSError, key: str) -> SalrunError:
    return SalrunError(f"cannot make the folder {fault.filename}: {fault.strerror}; choose another by {key}=<folder>")
