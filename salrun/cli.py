"""The entrypoint. Owns all messages and exit codes: 0 done, 1 our fault, 2 something to correct, 130 interrupted."""

from __future__ import annotations

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

VERBS = {
    "list": "what there is: salrun list methods | metrics | experiment | dataset | model | reasoning | views",
    "status": "what is done, running, failed, missing: salrun status [outputs/...]",
    "collect": "join runs into one: salrun collect RUNS... -o outputs/<paper>/<name>",
    "report": "write report.html of one run, or one for several: salrun report RUNS...",
    "reliability": "are the metrics reliable here? salrun reliability RUNS...",
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
        print(f"salrun: {fault}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("salrun: interrupted; what is done is kept, the same command goes on from there", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0
    except Exception as fault:
        return _fault(fault)


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
        f"salrun: unexpected {type(fault).__name__}: {str(fault).splitlines()[0] if str(fault) else ''}{where}",
        file=sys.stderr,
    )
    return 1


# -- an experiment ----------------------------------------------------------------------------------------------------


def experiment(argv: list[str]) -> int:
    """Check the composed config in this process, then hand over to Hydra, which runs it here or through a launcher."""
    from salrun.composing import check_command

    prepare_imports(argv)
    check_command(argv)
    if any(word in ("--cfg", "-c", "--info", "-i", "--hydra-help", "--shell-completion", "-sc") for word in argv):
        logging.getLogger("hydra").setLevel(logging.INFO)
    import hydra

    sys.argv = ["salrun", *argv]
    hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")(job)()
    if FAILED:
        raise FAILED.pop()
    return 0


FAILED: list[Exception] = []  # of a single run: Hydra would print a line of its own about a raised one


def prepare_imports(argv: Sequence[str] = ()) -> None:
    """Users' code: the current folder and --config-dir on the path, plug-ins loaded. Done again inside every job."""
    folders = [os.getcwd(), *config_dirs(argv)]
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
    """What Hydra calls, in this process or in a launcher's: one cell."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode
    from omegaconf import DictConfig

    from salrun.build import check

    assert isinstance(cfg, DictConfig)
    prepare_imports()
    logging.getLogger("salrun").setLevel(logging.INFO)
    settings = HydraConfig.get()
    out = Path(settings.runtime.output_dir)
    overrides = [*settings.overrides.task, *(o for o in settings.overrides.hydra if not o.startswith("hydra.mode"))]
    try:
        config = check(cfg)
        from salrun.cell import run as run_cell

        run_cell(config, out, "salrun " + " ".join(map(_quoted, overrides)))
    except Exception as fault:
        if not isinstance(fault, SalrunError):
            with open(out / "run.log", "a", encoding="utf-8") as log:
                log.write("".join(traceback.format_exception(fault)))
            fault.salrun_log = out / "run.log"  # type: ignore[attr-defined]
        if settings.mode is not RunMode.RUN:
            raise
        FAILED.append(fault)


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
