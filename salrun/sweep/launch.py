"""How the jobs of a sweep are started, so that one that dies takes no other with it.

Hydra's launchers do the work. A job that raises, is killed or times out never raises in its launcher: its files tell
(`salrun.sweep.jobs`). Where workers are shared (serial, joblib, ray) each job is a process of its own; where jobs are
submitted (submitit) they are processes already, and are watched (`salrun.sweep.submit`).
"""

from __future__ import annotations

import _thread
import contextlib
import logging
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from salrun.config.catalogue import conf_dir, names
from salrun.config.check import check
from salrun.errors import SalrunError, unknown
from salrun.pipeline.job import perform, prepare_imports
from salrun.results.record import code_of, reason_of, record_failure
from salrun.sweep.jobs import finished

log = logging.getLogger(__name__)

OF_HYDRA = ("basic", "joblib", "submitit_local", "submitit_slurm", "ray")  # its own launchers and its plug-ins'
NEEDS = {"salrun_launchers": "hydra_submitit_launcher", "salrun_ray_launcher": "hydra_ray_launcher"}  # ours are theirs
GRACE = 15.0  # seconds that a job has to end when its parent has


def check_launcher(overrides: Sequence[str], folders: tuple[Path, ...] = ()) -> None:
    """Whether the launcher asked for exists and is installed."""
    chosen = [o.partition("=")[2] for o in overrides if o.startswith("hydra/launcher=")]
    if not chosen or chosen[-1] in OF_HYDRA:
        return
    name = chosen[-1]
    known = names("hydra/launcher", folders)
    if name not in known:
        raise unknown("launcher", name, known, f"hydra/launcher={name}")
    preset = conf_dir() / "hydra" / "launcher" / f"{name}.yaml"
    if not preset.exists():
        return
    plugin = OmegaConf.load(preset)._target_.split(".")[1]
    if not _installed(f"hydra_plugins.{NEEDS.get(plugin, plugin)}"):
        extra = "ray" if "ray" in plugin else "cluster"
        raise SalrunError(f"hydra/launcher={name} needs a plug-in: pip install 'salrun[{extra}]'")
    if name.startswith("slurm") and shutil.which("sbatch") is None:
        raise SalrunError(f"hydra/launcher={name}: no sbatch here; type this on a login node of the cluster")


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


# -- a job ------------------------------------------------------------------------------------------------------------


def job(cfg: DictConfig) -> None:
    """One job of a sweep, as Hydra calls it in a launcher's process. It never raises: run.json tells."""
    from hydra.core.hydra_config import HydraConfig

    prepare_imports()
    logging.getLogger("salrun").setLevel(logging.INFO)
    settings = HydraConfig.get()
    out = Path(settings.runtime.output_dir)
    overrides = [*settings.overrides.task, *(o for o in settings.overrides.hydra if o.startswith("hydra.searchpath"))]
    try:
        config = check(cfg)
    except SalrunError as fault:
        record_failure(out, reason_of(fault), overrides)
        return
    if finished(out, config, code_of(config)):
        log.info("done already: %s", out)
    elif "salrun_launchers" in settings.launcher._target_ or "submitit" in settings.launcher._target_:
        perform(config, out, overrides, told=False)
    else:
        in_own_process(config, out, overrides, settings.runtime.cwd)


def in_own_process(config: dict[str, Any], out: Path, overrides: Sequence[str], cwd: str) -> None:
    """Run a cell in a new process. It ends with this one, and if it is killed its run.json says so."""
    words = [sys.executable, "-P", "-m", "salrun.sweep.launch"]  # -P: a torch.py in the current folder is not torch
    with subprocess.Popen(words, stdin=subprocess.PIPE, cwd=cwd) as child:
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            pickle.dump((config, out, list(overrides)), child.stdin)
            child.stdin.flush()
        code = child.wait()
    if code == 130:
        raise KeyboardInterrupt
    if code < 0:
        about = {key: config[key] for key in ("seed", "scale", "shard")}
        why = f"killed by {signal.Signals(-code).name}"
        record_failure(out, why, overrides, experiment=config["name"], **about)


def main() -> None:
    config, out, overrides = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("salrun").setLevel(logging.INFO)
    prepare_imports()
    try:
        sys.exit(1 if perform(config, out, overrides, told=False) else 0)
    except KeyboardInterrupt:
        sys.exit(130)


def _end_with_parent() -> None:
    """The parent never writes again: the end of the pipe is the end of the parent."""
    os.read(sys.stdin.fileno(), 1)  # not through the buffer: a thread that holds its lock cannot be shut down
    _thread.interrupt_main()
    time.sleep(GRACE)
    os._exit(1)


if __name__ == "__main__":
    main()
