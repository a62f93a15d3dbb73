"""The command line, read once: which verb, or which run with which overrides, flags and config folders."""

from __future__ import annotations

import argparse
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from salrun.errors import SalrunError, near, unknown


@dataclass(frozen=True)
class Command:
    """What a command line asks for: a verb with its words, or a run or sweep with overrides and Hydra's flags."""

    verb: str = ""
    words: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    folders: tuple[Path, ...] = ()  # users' config folders
    flags: argparse.Namespace = field(default_factory=argparse.Namespace)

    @property
    def multirun(self) -> bool:
        return self.flags.multirun or "hydra.mode=MULTIRUN" in self.overrides

    @property
    def asks_hydra(self) -> bool:
        """Whether it is a question that Hydra answers without a config."""
        return bool(self.flags.info or self.flags.hydra_help or self.flags.shell_completion)


def of_hydra(override: str) -> bool:
    return re.match(r"[+~]*hydra([./@=]|$)", override) is not None


def read_command(argv: Sequence[str], verbs: Collection[str] = ()) -> Command:
    """The command of these words. Raises SalrunError where it is neither a verb nor overrides with flags."""
    if not argv or argv[0] in verbs:
        return Command(argv[0] if argv else "help", tuple(argv[1:]))
    for word in argv:
        if word.startswith("experiment="):
            raise SalrunError(f"write +{word} (with a plus): experiments are added on top of the defaults")
    if not argv[0].startswith(("-", "+", "~", "'")) and "=" not in argv[0]:
        hint = near(argv[0], [verb for verb in verbs if not verb.startswith("-")])
        raise SalrunError(f"unknown verb '{argv[0]}'{hint} (an experiment is +experiment=<name>)")
    flags = _flags(argv)
    overrides, folders = tuple(flags.overrides), tuple(Path(folder).resolve() for folder in flags.config_dir)
    for folder in folders:
        if not folder.is_dir():
            raise SalrunError(f"--config-dir {folder} is not a folder")
    return Command(overrides=overrides, folders=folders, flags=flags)


def _flags(argv: Sequence[str]) -> argparse.Namespace:
    """Hydra's flags, and the overrides among them; SalrunError where Hydra would print its usage."""
    from hydra._internal.utils import get_args_parser  # here: verbs need no Hydra

    parser = argparse.ArgumentParser(
        parents=[get_args_parser()], add_help=False, conflict_handler="resolve", exit_on_error=False, allow_abbrev=False
    )
    parser.add_argument("--config-dir", "-cd", action="append", default=[])  # Hydra's own takes one
    words = [f"{w}=all" if w in ("--info", "-i") and "=" in after else w for w, after in pairwise([*argv, ""])]
    try:
        flags, rest = parser.parse_known_intermixed_args(words)
    except argparse.ArgumentError as fault:
        raise SalrunError(str(fault)) from fault
    together = [name for name in ("run", "multirun", "cfg", "info", "shell_completion") if getattr(flags, name)]
    if len(together) > 1:
        raise SalrunError(f"--{together[0]} and --{together[1].replace('_', '-')} do not go together: choose one")
    if flags.resolve and not flags.cfg:
        raise SalrunError("--resolve goes with --cfg: add --cfg job")
    if flags.config_name or flags.config_path or flags.experimental_rerun:
        raise SalrunError(
            "every run starts from salrun's own config.yaml, none from a pickle: --config-name, --config-path and "
            "--experimental-rerun are refused; add files of yours by --config-dir <folder>"
        )
    for word in [*rest, *(o for o in flags.overrides if o.startswith("-"))]:
        raise unknown("flag", word, [flag for action in parser._actions for flag in action.option_strings])
    return flags
