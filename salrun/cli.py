"""The entrypoint. Owns all messages and exit codes: 0 done, 1 our fault, 2 something to correct, 130 interrupted."""

from __future__ import annotations

import datetime
import errno
import itertools
import logging
import os
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from salrun import __version__
from salrun.errors import SalrunError, near
from salrun.registry import GROUPS, conf_dir, load_plugins, names

log = logging.getLogger(__name__)

VERBS = {
    "list": "what there is: salrun list methods | metrics | experiment | dataset | model | reasoning | views",
    "check": "does a method or metric do what all must? salrun check my_method.py | module:Class | NAME [key=value]",
    "status": "what is done, running, failed, missing: salrun status [outputs/...]",
    "collect": "join runs into one: salrun collect RUNS... -o outputs/<paper>/<name>",
    "report": "write report.html of one run, or one for several: salrun report RUNS...",
    "reliability": "are the metrics reliable here? salrun reliability RUNS... [draws=N] [nan_to_zero=true]",
    "cache": "what the store holds: salrun cache [clear [STAGE]]",
}

HELP = """salrun {version}: an experiment runner for evaluating saliency maps

usage: salrun +experiment=NAME [scale=smoke|laptop|paper] [key=value ...]
       salrun -m +experiment=A,B seed=0,1,2 [hydra/launcher=...]        a sweep
       salrun VERB ...

examples:
  salrun +experiment=smerf_simple_fr scale=laptop
  salrun +experiment=smerf_simple_fr 'methods=[gradient,edge]' 'metrics=[sparseness]' plan=true
  salrun dataset=textbox reasoning=simple_nr model=smerf_simple 'methods=[gradient]' 'metrics=[pafl]'

experiments (+experiment=...):
{experiments}

groups (salrun list GROUP): dataset, reasoning, model, methods, metrics; several methods: 'methods=[a,b]'
scales: smoke (seconds, for tests), laptop (minutes), paper (the paper's protocol; the default)

verbs:
{verbs}

other settings: seed device precision tile chunk shard target keep_maps plan data_root cache_dir
your own YAML: --config-dir DIR; your own code: _target_: module.Class, or SALRUN_PLUGINS=file.py. Configs are code.
"""


def main(argv: Sequence[str] | None = None) -> None:
    """The console script."""
    sys.exit(run(list(sys.argv[1:] if argv is None else argv)))


def run(argv: list[str]) -> int:
    """Do what the command line says; the exit code."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra re-raises instead of printing and exiting
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("salrun").setLevel(logging.INFO)
    try:
        if not argv or argv[0] in ("-h", "--help", "help"):
            print(help_text())
            return 0
        if argv[0] in ("-V", "--version"):
            print(f"salrun {__version__}")
            return 0
        if argv[0] in VERBS:
            return verb(argv[0], argv[1:])
        _check_shape(argv)
        return experiment(argv)
    except SalrunError as fault:
        print(f"salrun: {' '.join(str(fault).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("salrun: interrupted; what is done is kept, the same command goes on from there", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0
    except OSError as fault:
        if fault.errno not in OF_THE_MACHINE:
            return _fault(fault)
        print(f"salrun: {fault.filename or f'cannot write below {os.getcwd()}'}: {fault.strerror}", file=sys.stderr)
        return 2
    except Exception as fault:
        return _fault(fault)


# What the user can correct: disk full, over quota, read-only, no permission, a name that cannot be, a file too large.
OF_THE_MACHINE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.EFBIG}


def help_text() -> str:
    rows = [f"  {name:<28}{about}" for name, about in names("experiment").items()]
    verbs = [f"  {name:<14}{about}" for name, about in VERBS.items()]
    return HELP.format(version=__version__, experiments="\n".join(rows), verbs="\n".join(verbs))


def _check_shape(argv: list[str]) -> None:
    """Slips that Hydra would answer less clearly."""
    for word in argv:
        if re.match(r"experiment=", word):
            raise SalrunError(f"write +{word} (with a plus): experiments are added on top of the defaults")
    first = argv[0]
    if not first.startswith(("-", "+", "~", "'")) and "=" not in first:
        raise SalrunError(f"unknown verb '{first}'{near(first, VERBS)} (an experiment is +experiment=<name>)")


def _fault(fault: Exception) -> int:
    """An unexpected fault: the traceback goes to a log, the user gets one line."""
    path = getattr(fault, "salrun_log", None)
    if path is None:
        path = Path("salrun-fault.log")
        try:
            path.write_text("".join(traceback.format_exception(fault)))
        except OSError:
            path = None
    where = f"; the traceback is in {path}" if path else ""
    print(
        f"salrun: unexpected {type(fault).__name__}: {str(fault).strip().partition(chr(10))[0]}{where}",
        file=sys.stderr,
    )
    return 1


# -- an experiment ----------------------------------------------------------------------------------------------------


def experiment(argv: list[str]) -> int:
    """Check the composed config in this process, then hand over to Hydra, which runs it here or through a launcher."""
    from hydra.errors import HydraException

    from salrun.composing import check_command, read_flags

    asked = read_flags(argv)
    prepare_imports(argv)
    check_command(argv)
    if asked.cfg or asked.info or asked.hydra_help or asked.shell_completion:
        logging.getLogger("hydra").setLevel(logging.INFO)
    elif asked.multirun:
        return sweep(argv)
    try:
        hand_over(argv)
    except HydraException as fault:
        raise SalrunError(str(fault).splitlines()[0]) from fault
    except OSError as fault:
        if fault.errno not in OF_A_FOLDER or _within_job(fault):
            raise
        raise _no_folder(fault, "hydra.run.dir") from fault
    if FAILED:
        raise FAILED.pop()
    return 0


OF_A_FOLDER = {errno.ENOENT, errno.ENOTDIR, errno.EEXIST}  # a file is in its way, or the place takes no folders


def _within_job(fault: OSError) -> bool:
    """Whether it was raised by the job, not by Hydra as it made the job's folder."""
    return any(frame.f_code is job.__code__ for frame, _ in traceback.walk_tb(fault.__traceback__))


def _no_folder(fault: OSError, key: str) -> SalrunError:
    return SalrunError(f"cannot make the folder {fault.filename}: {fault.strerror}; choose another by {key}=<folder>")


def hand_over(argv: list[str]) -> None:
    import hydra

    from salrun.composing import split_command

    overrides, flags = split_command(argv)
    sys.argv = ["salrun", *overrides, *flags]  # Hydra's parser refuses overrides on both sides of a flag
    hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")(job)()


def sweep(argv: list[str]) -> int:
    """Many jobs, through a launcher. What an earlier sweep of the same command left undone is done in its folder."""
    from salrun.composing import read_command
    from salrun.launching import check_launcher, watched_submission
    from salrun.sweeps import AGAIN, counts, interrupted_sweep, jobs_of, lease_of

    overrides, folders = read_command(argv)
    check_launcher(overrides, folders)
    given = [o.partition("=")[2] for o in overrides if o.startswith("hydra.sweep.dir=")]
    earlier = None if given else interrupted_sweep(SWEEPS, [o for o in overrides if not _of_hydra(o)])
    folder = Path(given[-1]) if given else earlier or _new_sweep()
    _make_sweep(folder)
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
    with lease, watched_submission():
        try:
            hand_over([*argv, f"hydra.sweep.dir={folder.absolute()}", *_preparation()])
        except SalrunError:
            raise
        except Exception as raised:
            fault = raised
            if not (folder / "multirun.yaml").exists():
                raise SalrunError(f"the sweep could not begin: {_first_line(fault)}") from fault
            (folder / "launcher.log").write_text("".join(traceback.format_exception(fault)))
    jobs = jobs_of(folder)
    for number, each in enumerate(jobs):
        if each.state != "done":
            seen = f"; log: {each.log}" if each.log else ""
            print(f"  {each.state:<9}job {number}: {each.what}  {each.reason}{seen}", file=sys.stderr)
    if fault:
        print(f"salrun: the launcher gave up: {_first_line(fault)} ({folder}/launcher.log)", file=sys.stderr)
    left = [each for each in jobs if each.state in ("failed", "missing") and "in the queue" not in each.reason]
    print(f"sweep:   {folder}  ({counts(jobs)}{f'; {AGAIN}' if left else ''})")
    return 1 if left or fault else 0


SWEEPS = Path("outputs") / "sweeps"


def _first_line(fault: Exception) -> str:
    return f"{type(fault).__name__}: {(str(fault).strip().splitlines() or [''])[0]}"


def _new_sweep() -> Path:
    return SWEEPS / datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")


def _make_sweep(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise _no_folder(fault, "hydra.sweep.dir") from fault


def _of_hydra(override: str) -> bool:
    return override.lstrip("+~").startswith(("hydra.", "hydra/"))


def _preparation() -> list[str]:
    """This process' settings for its jobs, wherever they run: not every queue hands the environment down."""
    known = ("SALRUN_PATH", "SALRUN_PLUGINS", "SALRUN_DATA", "SALRUN_CACHE")
    quoted = {
        name: os.environ[name].replace("\\", "\\\\").replace("'", "\\'") for name in known if os.environ.get(name)
    }
    return [f"++hydra.job.env_set.{name}='{value}'" for name, value in quoted.items()]


FAILED: list[Exception] = []  # of a single run: Hydra would print a line of its own about a raised one


def prepare_imports(argv: Sequence[str] = ()) -> None:
    """Users' code: the current folder and --config-dir on the path, plug-ins loaded. Done again inside every job."""
    folders = [os.getcwd(), *config_dirs(argv)]
    plugins = filter(None, os.environ.get("SALRUN_PLUGINS", "").split(os.pathsep))
    os.environ["SALRUN_PLUGINS"] = os.pathsep.join(map(os.path.abspath, plugins))
    remembered = os.environ.get("SALRUN_PATH", "")
    os.environ["SALRUN_PATH"] = os.pathsep.join(dict.fromkeys([*filter(None, remembered.split(os.pathsep)), *folders]))
    for folder in os.environ["SALRUN_PATH"].split(os.pathsep):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    load_plugins()


def config_dirs(argv: Sequence[str]) -> list[str]:
    found = []
    for word, following in itertools.zip_longest(argv, argv[1:]):
        if word in ("--config-dir", "-cd") and following:
            found.append(os.path.abspath(following))
        elif word.startswith("--config-dir="):
            found.append(os.path.abspath(word.partition("=")[2]))
    return found


def job(cfg: object) -> None:
    """What Hydra calls, in this process or in a launcher's: one cell. Of a sweep's jobs none raises: run.json tells."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode
    from omegaconf import DictConfig

    from salrun.build import check
    from salrun.launching import in_own_process
    from salrun.logbook import code_of, reason_of, record_failure
    from salrun.sweeps import finished

    assert isinstance(cfg, DictConfig)
    prepare_imports()
    logging.getLogger("salrun").setLevel(logging.INFO)
    settings = HydraConfig.get()
    out = Path(settings.runtime.output_dir)
    overrides = [*settings.overrides.task, *(o for o in settings.overrides.hydra if o.startswith("hydra.searchpath"))]
    command = "salrun " + " ".join(map(_quoted, overrides))
    alone = settings.mode is RunMode.RUN
    try:
        config = check(cfg)
    except SalrunError as fault:
        record_failure(out, reason_of(fault), command=command)
        FAILED.append(fault)
        return
    if not alone and finished(out, config, code_of(config)):
        log.info("done already: %s", out)
    elif alone or "submitit" in settings.launcher._target_:
        failed = perform(config, out, command)
        FAILED.extend([failed] if failed and alone else [])
    else:
        in_own_process(config, out, command, settings.runtime.cwd)


def perform(config: dict, out: Path, command: str) -> Exception | None:
    """Run one cell; a fault is returned, and is in the run's own files."""
    try:
        from salrun.cell import run as run_cell

        run_cell(config, out, command)
    except Exception as fault:
        if not isinstance(fault, SalrunError):
            with open(out / "run.log", "a", encoding="utf-8") as file:
                file.write("".join(traceback.format_exception(fault)))
            fault.salrun_log = out / "run.log"  # type: ignore[attr-defined]
        return fault
    return None


def _quoted(word: str) -> str:
    return f"'{word}'" if re.search(r"[\[\]{}\s$]", word) else word


# -- verbs ------------------------------------------------------------------------------------------------------------


def verb(name: str, words: list[str]) -> int:
    if words[:1] in (["-h"], ["--help"]):
        print(VERBS[name])
        return 0
    if name == "list":
        return _list(words)
    from salrun import verbs

    return getattr(verbs, name)(words)


def _list(words: list[str]) -> int:
    if len(words) != 1:
        raise SalrunError(f"salrun list takes one group: {', '.join([*GROUPS, 'views'])}")
    group = {"experiments": "experiment", "datasets": "dataset", "models": "model", "reasonings": "reasoning"}.get(
        words[0], words[0]
    )
    if group == "views":
        from salrun.views import VIEWS

        rows = {name: view.about for name, view in VIEWS.items()}
    elif group in GROUPS:
        load_plugins()
        rows = names(group)
    else:
        raise SalrunError(f"unknown group '{group}'{near(group, [*GROUPS, 'views'])}")
    width = max(map(len, rows), default=0) + 2
    for name, about in rows.items():
        print(f"{name:<{width}}{about}")
    return 0
