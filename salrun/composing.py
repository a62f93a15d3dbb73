"""Compose the config as Hydra will, and say what is wrong with it in one sentence. Needs no torch."""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf

from salrun.build import KEYS, check
from salrun.errors import SalrunError, near, unknown
from salrun.registry import GROUPS, conf_dir, names
from salrun.signatures import UnknownKey

FLAGS_WITH_VALUE = frozenset(
    {"--config-dir", "-cd", "--config-name", "-cn", "--config-path", "-cp", "--package", "-p"}
    | {"--info", "-i", "--cfg", "-c", "--experimental-rerun"}
)
LISTS = ("methods", "metrics")  # groups of which a run has several
MOST_COMBINATIONS = 64  # of a sweep that are checked before it starts


def check_command(argv: Sequence[str]) -> None:
    """Raise SalrunError if any job of this command line has a bad config (the first jobs of a large sweep)."""
    asked = read_flags(argv)
    overrides, folders = read_command(argv)
    combinations = expand(overrides, folders)
    if not asked.multirun and not any(o.startswith("hydra.mode=") for o in overrides):
        _check_one_job(overrides)
    for combination in itertools.islice(combinations, MOST_COMBINATIONS):
        check_job(combination, folders)


def check_job(overrides: Sequence[str], folders: tuple[Path, ...] = ()) -> None:
    """Raise SalrunError if this job has a bad config."""
    cfg = compose_config(overrides, folders)
    try:
        check(cfg)
    except UnknownKey as fault:
        raise SalrunError(_not_typed(fault.key, overrides, folders) or str(fault)) from fault


def split_command(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """(overrides, flags with their values) of a command line, whatever their order."""
    overrides: list[str] = []
    flags: list[str] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            overrides.append(word)
            continue
        flags.append(word)
        optional = word in ("--info", "-i") and words and "=" in words[0]
        if word in FLAGS_WITH_VALUE and words and not optional:
            flags.append(words.pop(0))
    return overrides, flags


def read_flags(argv: Sequence[str]) -> argparse.Namespace:
    """Hydra's flags. Raises SalrunError where Hydra would print its usage."""
    parser = get_args_parser()
    parser.exit_on_error = False
    parser.allow_abbrev = False  # `--multi` would be a sweep for Hydra and a single run for us
    try:
        asked, rest = parser.parse_known_args(split_command(argv)[1])
    except argparse.ArgumentError as fault:
        raise SalrunError(str(fault)) from fault
    for word in [*rest, *asked.overrides]:
        raise unknown("flag", word, [flag for action in parser._actions for flag in action.option_strings])
    return asked


def read_command(argv: Sequence[str]) -> tuple[list[str], tuple[Path, ...]]:
    """(overrides, users' config folders) of a command line."""
    overrides, flags = split_command(argv)
    folders: list[Path] = []
    words = iter(flags)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag in ("--config-dir", "-cd"):
            folders.append(Path(value if equals else next(words, "")).resolve())
    for folder in folders:
        if not folder.is_dir():
            raise SalrunError(f"--config-dir {folder} is not a folder")
    return overrides, tuple(folders)


def _check_one_job(overrides: Sequence[str]) -> None:
    """Several values are a sweep's; of methods and metrics a list is meant more often."""
    for override in map(_parsed, overrides):
        if override.is_sweep_override():
            line, key = str(override.input_line), override.get_key_element()
            value = line.partition("=")[2]
            if override.key_or_group in LISTS and override.is_choice_sweep():
                raise SalrunError(f"'{line}' is a sweep: write '{key}=[{value}]' to use all in one run, or add -m")
            raise SalrunError(f"'{line}' is a sweep: add -m to run one job for each value")


def _parsed(override: str) -> Override:
    return OverridesParser.create().parse_override(override)


def expand(overrides: Sequence[str], folders: tuple[Path, ...] = ()) -> Any:
    """All combinations of a sweep's overrides."""
    try:
        parsed = list(map(_parsed, overrides))
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
        _parsed(override)
    except HydraException:
        return True
    return False


def compose_config(overrides: Sequence[str], folders: tuple[Path, ...] = ()) -> DictConfig:
    """The config of one job."""
    extra = [f"hydra.searchpath=[{','.join(f'file://{f}' for f in folders)}]"] if folders else []
    own = [o for o in overrides if not re.match(r"[+~]*hydra([./@=]|$)", o)]
    _check_names(own, folders)
    search = [o for o in overrides if o.startswith("hydra.searchpath")] or extra
    try:
        _check_additions(own, search)
        cfg = _compose([*own, *search])
    except MissingConfigException as fault:
        raise SalrunError(_missing(fault, folders)) from fault
    except OverrideParseException as fault:
        raise SalrunError(_parse_error(fault, own)) from fault
    except SalrunError:
        raise
    except Exception as fault:  # whatever Hydra raises at a config it did not expect, and the YAML reader's errors
        raise SalrunError(_composition(fault, own, folders) or _culprit(fault, own, search)) from fault
    OmegaConf.set_struct(cfg, False)
    _check_variants(own, cfg)
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
        chosen = [name for name in (v.strip(" '\"") for v in value.strip("[]").split(",")) if name]
        for name in chosen:
            if name not in known and name != "null":
                raise unknown(group.rstrip("s") if group != "metrics" else "metric", name, known, f"{group}={value}")
        _check_distinct(group, chosen)


def _check_distinct(group: str, chosen: Sequence[str]) -> None:
    """A part is called by the last part of its name, and Hydra lets the later of two replace the earlier."""
    seen: dict[str, str] = {}
    for name in chosen:
        last = name.rpartition("/")[2]
        if seen.get(last) == name:
            raise SalrunError(f"{group}: '{name}' is in the list twice: take one out")
        if last in seen:
            raise SalrunError(
                f"{group}: '{seen[last]}' and '{name}' are both called '{last}' and cannot be in one run: give them "
                f"two (-m '{group}=[{seen[last]}],[{name}]'), or one of them another name in a {group}/<name>.yaml of "
                "your own (--config-dir)"
            )
        seen[last] = name


def _check_additions(own: Sequence[str], search: Sequence[str]) -> None:
    """`+key=value` makes any key for Hydra; of the top-level ones only those that something reads are let through."""
    added = {re.split(r"[./@]", o.key_or_group)[0]: o for o in map(_parsed, own) if o.is_add() or o.is_force_add()}
    if not set(added) - {*GROUPS, *KEYS}:
        return
    groups = _groups(search)
    selections = [o for o in own if _parsed(o).key_or_group in groups]
    for chosen in (selections, [o for o in selections if o.startswith("+")]):
        try:
            known = {*groups, *map(str, _compose([*chosen, *search]))} - {"hydra"}
        except Exception:  # its cause is told where the whole is composed
            continue
        for key, override in added.items():
            if key not in known:
                raise SalrunError(f"unknown key '{key}' in '{override.input_line}'{near(key, known)}")
        return


def _groups(search: Sequence[str]) -> set[str]:
    """Hydra's config groups: ours, the users' folders' and what plug-ins registered."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        return set(loader.get_group_options("", ObjectType.GROUP, "config", list(search)))


def _check_variants(own: Sequence[str], cfg: DictConfig) -> None:
    """A metric's setting that each of its variants makes for itself cannot be made for all of them."""
    metrics: Any = OmegaConf.to_container(cfg, resolve=False).get("metrics")  # type: ignore[union-attr]
    for name, key in _metric_settings(map(_parsed, own)):
        spec = metrics.get(name) if isinstance(metrics, dict) else None
        variants = spec.get("variants") if isinstance(spec, dict) else None
        if isinstance(variants, dict) and variants and all(isinstance(v, dict) and key in v for v in variants.values()):
            raise SalrunError(
                f"metrics.{name}.{key} has no effect: each variant sets its own; use metrics.{name}.variants.<name>."
                f"{key} (variants: {', '.join(map(str, variants))})"
            )


def _metric_settings(overrides: Iterable[Override]) -> Iterable[tuple[str, str]]:
    """(metric, key) of what the overrides set, also as `metrics.name={key: value}`."""
    for override in overrides:
        group, *path = override.key_or_group.split(".")
        if group != "metrics" or override.is_delete():
            continue
        value = override.value()
        if len(path) > 1:
            yield path[0], path[1]
        elif path and isinstance(value, dict):
            yield from ((path[0], str(key)) for key in value)


def _not_typed(key: str, overrides: Sequence[str], folders: tuple[Path, ...]) -> str:
    """Of an unknown key that the experiment sets for a part that was chosen instead of its own; else nothing."""
    group = key.partition(".")[0]
    experiment = next((o for o in overrides if re.match(r"\+\+?experiment=", o)), None)
    chosen = next((o for o in overrides if re.match(rf"\+*{group}=(?!\{{)", o)), None)
    typed = any(f"{_parsed(o).key_or_group}.".startswith(f"{key}.") for o in overrides)
    if typed or not experiment or not chosen:
        return ""
    try:
        alone = compose_config([chosen], folders)
    except SalrunError:
        return ""
    if OmegaConf.select(alone, key, default=None, throw_on_resolution_failure=False) is not None:
        return ""
    return (
        f"unknown key '{key}': {experiment} sets it, and {chosen} does not take it; choose a {group} that the "
        f"experiment is made for, or leave {experiment} out"
    )


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
