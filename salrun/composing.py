"""Compose the config as Hydra will, and say what is wrong with it in one sentence. Needs no torch."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf

from salrun.build import check
from salrun.errors import SalrunError, near, unknown
from salrun.registry import conf_dir, names

FLAGS_WITH_VALUE = frozenset(
    {"--config-dir", "-cd", "--config-name", "-cn", "--config-path", "-cp", "--package", "-p"}
    | {"--info", "-i", "--cfg", "-c", "--experimental-rerun"}
)
MOST_COMBINATIONS = 64  # of a sweep that are checked before it starts


def check_command(argv: Sequence[str]) -> None:
    """Raise SalrunError if any job of this command line has a bad config (the first jobs of a large sweep)."""
    overrides, folders = read_command(argv)
    for combination in itertools.islice(expand(overrides, folders), MOST_COMBINATIONS):
        check(compose_config(combination, folders))


def read_command(argv: Sequence[str]) -> tuple[list[str], tuple[Path, ...]]:
    """(overrides, users' config folders) of a command line."""
    overrides: list[str] = []
    folders: list[Path] = []
    words = iter(argv)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag in FLAGS_WITH_VALUE:
            value = value if equals else next(words, "")
            if flag in ("--config-dir", "-cd"):
                folders.append(Path(value).resolve())
        elif not word.startswith("-"):
            overrides.append(word)
    for folder in folders:
        if not folder.is_dir():
            raise SalrunError(f"--config-dir {folder} is not a folder")
    return overrides, tuple(folders)


def expand(overrides: Sequence[str], folders: tuple[Path, ...] = ()) -> Any:
    """All combinations of a sweep's overrides."""
    try:
        parsed = [OverridesParser.create().parse_override(o) for o in overrides]
    except HydraException as fault:
        raise SalrunError(_parse_error(fault, overrides)) from fault
    choices = []
    for override in parsed:
        if override.is_sweep_override():
            key = override.get_key_element()
            choices.append([f"{key}={value}" for value in override.sweep_string_iterator()])
        else:
            choices.append([str(override.input_line)])
    return (list(c) for c in itertools.product(*choices))


def _parse_error(fault: HydraException, overrides: Sequence[str]) -> str:
    text = getattr(fault, "override", None) or next(filter(_unreadable, overrides), " ".join(overrides))
    hint = "quote lists, braces and spaces, e.g. 'methods=[gradient,rise]'"
    return f"cannot read '{text}' as key=value; {hint}"


def _unreadable(override: str) -> bool:
    try:
        OverridesParser.create().parse_override(override)
    except HydraException:
        return True
    return False


def compose_config(overrides: Sequence[str], folders: tuple[Path, ...] = ()) -> DictConfig:
    """The config of one job."""
    extra = [f"hydra.searchpath=[{','.join(f'file://{f}' for f in folders)}]"] if folders else []
    own = [o for o in overrides if not o.lstrip("+~").startswith("hydra")]
    _check_names(own, folders)
    search = [o for o in overrides if o.startswith("hydra.searchpath")] or extra
    try:
        cfg = _compose([*own, *search])
    except MissingConfigException as fault:
        raise SalrunError(_missing(fault, folders)) from fault
    except OverrideParseException as fault:
        raise SalrunError(_parse_error(fault, own)) from fault
    except Exception as fault:  # whatever Hydra raises at a config it did not expect, and the YAML reader's errors
        raise SalrunError(_composition(fault, own, folders) or _culprit(fault, own, search)) from fault
    OmegaConf.set_struct(cfg, False)
    return cfg


def _compose(overrides: Sequence[str]) -> DictConfig:
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return compose("config", overrides=list(overrides))


def _culprit(fault: Exception, own: Sequence[str], search: Sequence[str]) -> str:
    """Hydra's message, after the override without which the rest composes."""
    text = " ".join((str(fault) or str(fault.__cause__)).split())[:300]
    for number in reversed(range(len(own))):
        try:
            _compose([*own[:number], *own[number + 1 :], *search])
        except Exception:
            continue
        return f"cannot apply '{own[number]}': {text}"
    return text


def _check_names(overrides: Sequence[str], folders: tuple[Path, ...]) -> None:
    """Names of groups, with near matches: for lists of methods Hydra's own error does not show the options."""
    for override in overrides:
        match = re.match(r"\+?(experiment|dataset|model|methods|metrics|reasoning)=(.*)$", override, flags=re.DOTALL)
        if not match:
            continue
        group, value = match[1], match[2].strip()
        if value.startswith("{"):
            continue
        known = names(group, folders)
        for name in filter(None, (v.strip(" '\"") for v in value.strip("[]").split(","))):
            if name not in known and name != "null":
                raise unknown(group.rstrip("s") if group != "metrics" else "metric", name, known, f"{group}={value}")


def _missing(fault: MissingConfigException, folders: tuple[Path, ...]) -> str:
    wanted = str(fault.missing_cfg_file or "?")
    group, _, name = wanted.rpartition("/")
    for folder in (group, group.split("/")[0]):
        known = names(folder, folders) if folder else {}
        if known:
            return f"unknown {folder} '{wanted.removeprefix(folder + '/')}'{near(name, known)}"
    return f"config '{wanted}' not found"


def _composition(fault: Exception, overrides: Sequence[str], folders: tuple[Path, ...]) -> str:
    """Of a key that does not exist: the key, and the keys that do; else nothing."""
    text = " ".join((str(fault) or str(fault.__cause__)).split())
    key = re.search(r"Could not override '([^']+)'", text) or re.search(r"Key '([^']+)' is not in struct", text)
    if key and ("not in struct" in text or "To append" in text):
        full = key[1]
        parent, _, last = full.rpartition(".")
        given = [o for o in overrides if o.lstrip("+~").split("=")[0] != full]
        try:
            rest = compose_config(given, folders)
            siblings = OmegaConf.select(rest, parent) if parent else rest
            known = list(siblings) if isinstance(siblings, DictConfig) else []
        except SalrunError:
            known = []
        if parent and not known:
            group, _, name = parent.partition(".")
            if group in ("methods", "metrics"):
                hint = near(name, names(group, folders))
                return f"{full} is set but '{name}' is not selected: add it to '{group}=[...]'{hint}"
        return f"unknown key '{full}'{near(last, map(str, known))}"
    return ""
