"""Compose the config as Hydra will, and say what is wrong with it in one sentence. Needs no torch."""

from __future__ import annotations

import difflib
import itertools
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

from hydra import compose, initialize_config_dir
from hydra._internal.sources_registry import SourcesRegistry
from hydra.conf import HydraConf
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from salrun.config.catalogue import conf_dir, names
from salrun.config.check import check
from salrun.config.command import Command, of_hydra
from salrun.config.files import check_files
from salrun.config.read_once import FileConfigSource
from salrun.config.settings import SETTINGS, Settings
from salrun.config.signatures import UnknownKey
from salrun.errors import SalrunError, near, unknown

LISTS = ("methods", "metrics", "logger")  # groups of which a run has several
MOST_COMBINATIONS = 64  # of a sweep that are checked before it starts
MOST_JOBS = 100_000

SourcesRegistry.instance().register(FileConfigSource)  # Hydra keeps the first class of this name


def check_command(command: Command) -> None:
    """Raise SalrunError if any job of this command has a bad config (the first jobs of a large sweep)."""
    combinations = _combinations(command)
    for combination in itertools.islice(combinations, MOST_COMBINATIONS):
        checked(compose_config(combination, command.folders), combination, command.folders)


def composed_run(command: Command) -> tuple[dict[str, Any], DictConfig]:
    """(the checked config of a single run, all that was composed: Hydra's own part too)."""
    _combinations(command)
    whole = _composed(command.overrides, command.folders)
    HydraConfig.instance().set_config(whole)  # what `${hydra:...}` reads
    _check_resolved(whole, command.overrides)
    return checked(_without_hydra(whole, command.overrides, command.folders), command.overrides, command.folders), whole


def _combinations(command: Command) -> Iterator[list[str]]:
    """Of a sweep; a single run is told what in it is one."""
    check_files(command.folders)
    parsed = _all_parsed(command.overrides)
    for override in parsed:
        if override.key_or_group == "hydra.verbose" and not _verbosity(override.value()):
            raise SalrunError(f"'{override.input_line}': hydra.verbose must be true, false or names of loggers")
        if override.key_or_group == "hydra.output_subdir" and not _a_name(override.value()):
            raise SalrunError(f"'{override.input_line}': hydra.output_subdir must be a name, or null; no / $ and no ..")
        if override.key_or_group == "hydra.searchpath" and not _folders(override.value()):
            raise SalrunError(f"'{override.input_line}': hydra.searchpath must be a list of folders that are there")
        if of_hydra(override.key_or_group) and (override.is_add() or override.is_force_add()):
            _check_hydras_key(override)
    if not command.multirun:
        _check_one_job(parsed)
    return expand(command.overrides, command.folders)


def _verbosity(value: Any) -> bool:
    """Whether Hydra can read it: true, false, or names of loggers. A sweep's values are looked at as it begins."""
    listed = value if isinstance(value, list) else getattr(value, "list", None)
    if listed is not None:
        return all(isinstance(getattr(name, "text", name), str) for name in listed)
    return type(value) not in (dict, int, float, NoneType) and "${" not in str(value)


def _a_name(value: Any) -> bool:
    """Whether it names something in a folder, nothing beside or above it."""
    return value is None or (str(value).strip() not in ("", ".", "..") and not set("/\\$") & set(str(value)))


def _folders(value: Any) -> bool:
    """Whether it lists folders; what another scheme names is for Hydra to find."""
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        return False
    listed = [entry.removeprefix("file://") for entry in value]
    return all("://" in entry or os.path.isdir(entry) for entry in listed)


def _check_hydras_key(override: Override) -> None:
    """Hydra itself takes any key that is added to its own, and reads it nowhere."""
    kind: Any = HydraConf
    for name in override.key_or_group.split(".")[1:]:
        if not is_dataclass(kind):
            return
        kinds = {field.name: field.type for field in fields(kind)}
        if name not in kinds:
            raise SalrunError(f"unknown key '{override.key_or_group}' in '{override.input_line}'{near(name, kinds)}")
        kind = kinds[name]


def _check_resolved(whole: DictConfig, overrides: Sequence[str]) -> None:
    """What is typed for Hydra itself must resolve: of the rest `check` sees to it."""
    for word, override in zip(overrides, _all_parsed(overrides), strict=True):
        try:
            if of_hydra(word):
                OmegaConf.select(whole, override.key_or_group, throw_on_missing=True)
        except OmegaConfBaseException as fault:
            raise SalrunError(f"cannot apply '{word}': {str(fault).splitlines()[0]}") from fault


def checked(cfg: DictConfig, overrides: Sequence[str], folders: tuple[Path, ...]) -> dict[str, Any]:
    """The checked config; of an unknown key SalrunError says whether the experiment has it, not the overrides."""
    try:
        return check(cfg)
    except UnknownKey as fault:
        raise SalrunError(_not_typed(fault.key, overrides, folders) or str(fault)) from fault


def _forget_replaced(cfg: DictConfig, overrides: Sequence[str], folders: tuple[Path, ...]) -> None:
    """Drop what an experiment sets of methods and metrics that the command line chose others for.

    A name that no file has, or that was chosen and makes no part, stays, to be refused: it is a slip.
    """
    parsed = [_parsed(override) for override in overrides if not of_hydra(override)]
    words = [override.key_or_group for override in parsed]
    chosen = {str(name).rpartition("/")[2] for override in parsed for name in _listed(override.value())}
    for group in ("methods", "metrics"):
        parts = cfg.get(group)
        if group in words and isinstance(parts, DictConfig):
            typed = {word.split(".")[1] for word in words if word.startswith(f"{group}.")}
            unused = [n for n, spec in parts.items() if isinstance(spec, DictConfig) and "_target_" not in spec]
            known = {name.rpartition("/")[2] for name in names(group, folders)} if unused else set()
            for name in unused:
                if name in known - typed - chosen:
                    del parts[name]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _check_one_job(overrides: Sequence[Override]) -> None:
    """Several values are a sweep's; of methods and metrics a list is meant more often."""
    for override in overrides:
        if override.is_sweep_override():
            line, key = str(override.input_line), override.get_key_element()
            value = line.partition("=")[2]
            if override.key_or_group in LISTS and not isinstance(override.value(), Glob) and override.is_choice_sweep():
                raise SalrunError(f"'{line}' is a sweep: write '{key}=[{value}]' to use all in one run, or add -m")
            raise SalrunError(f"'{line}' is a sweep: add -m to run one job for each value")


@lru_cache(maxsize=1024)
def _parsed(override: str) -> Override:
    return OverridesParser.create().parse_override(override)


def _all_parsed(overrides: Sequence[str]) -> list[Override]:
    try:
        return list(map(_parsed, overrides))
    except HydraException as fault:
        raise SalrunError(_parse_error(fault, overrides)) from fault


def expand(overrides: Sequence[str], folders: tuple[Path, ...] = ()) -> Iterator[list[str]]:
    """All combinations of a sweep's overrides."""
    choices = []
    for override in _all_parsed(overrides):
        if override.is_sweep_override():
            key = override.get_key_element()
            choices.append([f"{key}={value}" for value in _swept(override, folders)])
            if not choices[-1]:
                raise SalrunError(f"'{override.input_line}' has no values: nothing would run")
        else:
            choices.append([str(override.input_line)])
    if (jobs := math.prod(map(len, choices))) > MOST_JOBS:
        raise SalrunError(f"a sweep of {jobs:,} jobs; at most {MOST_JOBS:,}")
    return (list(c) for c in itertools.product(*choices))


def _swept(override: Override, folders: tuple[Path, ...]) -> Iterator[str]:
    """The values of a sweep; `glob(...)` stands for names of a group."""
    value = override.value()
    if isinstance(value, IntervalSweep):
        raise SalrunError(f"'{override.input_line}' has no end: name the values, as in choice(..) or range(..)")
    if isinstance(value, RangeSweep):
        length = abs((value.stop or 0) - (value.start or 0))
        if not (value.step and length <= MOST_JOBS * abs(value.step)):
            raise SalrunError(f"'{override.input_line}' must have an end, after at most {MOST_JOBS:,} steps")
    if not isinstance(value, Glob):
        return override.sweep_string_iterator()
    matches = value.filter(list(names(override.key_or_group, folders)))
    if not matches:
        raise SalrunError(f"'{override.input_line}' matches nothing: glob(...) stands for names of a group")
    return iter(matches)


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
    """The config of one job, whatever its launcher: overrides of Hydra itself are left out."""
    wanted = [o for o in overrides if not of_hydra(o) or o.startswith("hydra.searchpath=")]
    return _without_hydra(_composed(wanted, folders), wanted, folders)


def _without_hydra(whole: DictConfig, overrides: Sequence[str], folders: tuple[Path, ...]) -> DictConfig:
    """The config as our own code reads it, open to changes."""
    cfg = OmegaConf.masked_copy(whole, [str(key) for key in whole if key != "hydra"])
    OmegaConf.set_readonly(cfg, False)
    OmegaConf.set_struct(cfg, False)
    _forget_replaced(cfg, overrides, folders)
    return cfg


def _composed(overrides: Sequence[str], folders: tuple[Path, ...]) -> DictConfig:
    """All that the overrides compose to, Hydra's own part too; SalrunError says which of them is wrong."""
    plain = [o for o in overrides if not o.startswith("hydra.searchpath=")]
    search = searchpath(overrides, folders)
    typed = [entry.removeprefix("file://") for entry in _typed_path(overrides)]
    folders = (*folders, *(Path(entry) for entry in typed if "://" not in entry))
    _check_names(plain, folders)
    try:
        whole = _compose([*plain, *search])
    except MissingConfigException as fault:
        raise SalrunError(_missing(fault, folders)) from fault
    except OverrideParseException as fault:
        raise SalrunError(_parse_error(fault, plain)) from fault
    except SalrunError:
        raise
    except Exception as fault:  # whatever Hydra raises at a config it did not expect, and the YAML reader's errors
        told = (
            _misspelt_addition(plain, search) or _composition(fault, plain, folders) or _culprit(fault, plain, search)
        )
        raise SalrunError(told) from fault
    _check_keys(whole, plain, search, folders)
    _check_given(plain, whole)
    _check_empty(plain, whole)
    _check_variants(plain, whole)
    _check_views(plain, whole)
    return whole


def searchpath(overrides: Sequence[str], folders: Iterable[Path]) -> list[str]:
    """The override by which Hydra looks for configs in the users' folders too; none where there are none."""
    entries = [*_typed_path(overrides), *(f"file://{folder}" for folder in folders)]
    return [f"hydra.searchpath=[{','.join(map(quoted, entries))}]"] if entries else []


def _typed_path(overrides: Sequence[str]) -> list[str]:
    value = typed_value(overrides, "hydra.searchpath")
    return [str(entry) for entry in value] if isinstance(value, list) else []


def typed_value(overrides: Sequence[str], key: str) -> Any:
    """The value that is typed for a key; the last one counts, None where there is none."""
    words = [o for o in overrides if o.startswith(f"{key}=")]
    return _parsed(words[-1]).value() if words else None


def quoted(text: str) -> str:
    """A text as a value of an override, whatever is in it: to Hydra a backslash is one but before a quote."""
    text = text.replace("${", "\\${")
    return "'" + re.sub(r"(\\*)('|$)", lambda m: 2 * m[1] + (m[2] and "\\'"), text) + "'"


def _compose(overrides: Sequence[str]) -> DictConfig:
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_dir()), job_name="salrun", version_base="1.3"):
        return compose("config", overrides=list(overrides), return_hydra_config=True)


def _culprit(fault: Exception, plain: Sequence[str], search: Sequence[str]) -> str:
    """Hydra's message, after the override without which the rest composes."""
    text = " ".join((str(fault) or str(fault.__cause__)).split())[:300]
    for number in reversed(range(len(plain))):
        try:
            _compose([*plain[:number], *plain[number + 1 :], *search])
        except Exception:
            continue
        return f"cannot apply '{plain[number]}': {text}"
    return text


def _check_names(overrides: Sequence[str], folders: tuple[Path, ...]) -> None:
    """Names of groups, with near matches: for lists of methods Hydra's own error does not show the options."""
    for override in overrides:
        match = re.match(
            r"\+?(experiment|dataset|model|methods|metrics|reasoning|logger)=(.*)$", override, flags=re.DOTALL
        )
        if not match:
            continue
        group, value = match[1], match[2].strip()
        if value.startswith("{"):
            continue
        options = names(group, folders)
        chosen = [name for name in (v.strip(" '\"") for v in value.strip("[]").split(",")) if name]
        for name in chosen:
            if name not in options and name != "null":
                raise unknown(group.rstrip("s") if group != "metrics" else "metric", name, options, f"{group}={value}")
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


def _check_keys(whole: DictConfig, plain: Sequence[str], search: Sequence[str], folders: Iterable[Path]) -> None:
    """Refuse a key that nothing reads: it is neither declared, nor a group, nor used by an interpolation."""
    content: Any = OmegaConf.to_container(whole)
    free = {key: value for key, value in content.items() if key not in {*SETTINGS, "hydra"} or key == "budget"}
    here = _interpolated(str(content))
    if all(_read(path, here) for path in _paths(free)):
        return
    files = (path.read_text("utf-8", "replace") for folder in (conf_dir(), *folders) for path in folder.rglob("*.yaml"))
    known = {*SETTINGS, *_groups(search), *map(str, whole)} - {"hydra"}
    typed, elsewhere = _additions(plain), here | _interpolated("".join(files))  # a part not chosen may read it
    for key in sorted(k for k in free if k not in SETTINGS and not _read(k, here)):
        if key in typed or not _read(key, elsewhere):
            told = f"unknown key '{key}' in '{typed[key]}'" if key in typed else f"nothing reads the key '{key}'"
            raise SalrunError(f"{told}{near(key, known - {key})}")
    paths = list(_paths(free))
    for path in (path for path in paths if not _read(path, elsewhere)):
        raise SalrunError(f"unknown key '{path}': nothing reads it{near(path, {*paths} - {path}, n=1)}")


def _check_given(plain: Sequence[str], whole: DictConfig) -> None:
    """`???` stands for a value that somebody has to give; merged into one that is there, it changes nothing."""
    content: Any = OmegaConf.to_container(whole)
    typed = [(override.key_or_group, override.value()) for override in map(_parsed, plain)]
    for key, part in (*content.items(), *typed):
        for path, value in _values(part, str(key)) if key != "hydra" else ():
            if "???" in _listed(value):
                raise SalrunError(f"{path} is ???, which says that a value is missing: give it one")


def _interpolated(text: str) -> set[str]:
    """Patterns of the keys that interpolations read; one in another stands for any name, `${scale}` for the scales."""
    scales = "|".join(get_args(get_type_hints(Settings)["scale"]))
    found = re.findall(r"\$\{(?=(?:oc\.select:)?((?:[\w.]|\$\{[^{}]*\})+))", text)
    known = {re.escape(path).replace(re.escape("${scale}"), f"({scales})") for path in found}
    return {re.sub(r"\\\$\\\{[^}]*\}", "[^.]+", pattern) for pattern in known}


def _read(path: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns is this key, in it or above it."""
    names = path.split(".")
    above = [".".join(names[:n]) for n in range(1, len(names) + 1)]
    return any(
        pattern.startswith(re.escape(path) + r"\.") or any(re.fullmatch(pattern, key) for key in above)
        for pattern in patterns
    )


def _paths(content: Any, where: str = "") -> Iterator[str]:
    """Every key that has a value, with its place."""
    return (path for path, _ in _values(content, where))


def _values(content: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """(key with its place, its value)"""
    if not isinstance(content, dict) or not content:
        yield where, content
        return
    for key, value in content.items():
        yield from _values(value, f"{where}.{key}" if where else str(key))


def _additions(plain: Sequence[str]) -> dict[str, str]:
    """Top-level key -> the override that adds it: `+key=value` makes any key for Hydra."""
    added = [o for o in map(_parsed, plain) if o.is_add() or o.is_force_add()]
    return {re.split(r"[./@]", o.key_or_group)[0]: str(o.input_line) for o in added}


def _misspelt_addition(plain: Sequence[str], search: Sequence[str]) -> str:
    """Of overrides that do not compose: one that adds what is nearly a setting or a group; else nothing."""
    added = _additions(plain)
    readable = {*SETTINGS, *(_groups(search) if added.keys() - {*SETTINGS, "experiment"} else ())}
    for key, override in added.items():
        if key not in {*readable, "experiment"} and difflib.get_close_matches(key, readable, n=1, cutoff=0.75):
            return f"unknown key '{key}' in '{override}'{near(key, readable)}"
    return ""


def _groups(search: Sequence[str]) -> set[str]:
    """Hydra's config groups: ours, the users' folders' and what plug-ins registered. Campaigns are for scripts."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        return set(loader.get_group_options("", ObjectType.GROUP, "config", list(search))) - {"hydra", "campaign"}


def _check_empty(plain: Sequence[str], cfg: DictConfig) -> None:
    """`methods={}` takes nothing away: Hydra merges a mapping into the one that is there."""
    for override in map(_parsed, plain):
        if override.value() == {} and OmegaConf.select(cfg, override.key_or_group, throw_on_resolution_failure=False):
            raise SalrunError(f"'{override.input_line}' changes nothing: {override.key_or_group} stays as it was")


def _check_variants(plain: Sequence[str], cfg: DictConfig) -> None:
    """A metric's setting that each of its variants makes for itself cannot be made for all of them."""
    metrics: Any = OmegaConf.to_container(cfg, resolve=False).get("metrics")  # type: ignore[union-attr]
    for name, key in _metric_settings(map(_parsed, plain)):
        spec = metrics.get(name) if isinstance(metrics, dict) else None
        variants = spec.get("variants") if isinstance(spec, dict) else None
        if isinstance(variants, dict) and variants and all(isinstance(v, dict) and key in v for v in variants.values()):
            raise SalrunError(
                f"metrics.{name}.{key} has no effect: each variant sets its own; use metrics.{name}.variants.<name>."
                f"{key} (variants: {', '.join(map(str, variants))})"
            )


def _check_views(plain: Sequence[str], cfg: DictConfig) -> None:
    """A view that is typed for one method is read only where methods keep their own."""
    for override in map(_parsed, plain):
        if re.fullmatch(r"methods\.\w+\.view", override.key_or_group) and cfg.get("view") != "method":
            raise SalrunError(
                f"{override.key_or_group} has no effect: all methods are read through view={cfg.get('view')}; add "
                "view=method to give each its own"
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
    words = [_parsed(o).key_or_group for o in overrides if "=" in o]
    typed = any(f"{word}.".startswith(f"{key}.") or (word != group and key.startswith(f"{word}.")) for word in words)
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
        options = names(folder, folders) if folder else {}
        if options:
            return f"unknown {folder} '{wanted.removeprefix(folder + '/')}'{near(name, options)}"
    return f"config '{wanted}' not found"


def _composition(fault: Exception, overrides: Sequence[str], folders: tuple[Path, ...]) -> str:
    """Of a key that does not exist: the key, and the keys that do; else nothing."""
    text = " ".join((str(fault) or str(fault.__cause__)).split())
    key = re.search(r"Could not override '([^']+)'", text) or re.search(r"Key '([^']+)' is not in struct", text)
    if key and not of_hydra(key[1]) and ("not in struct" in text or "To append" in text):
        full = key[1]
        parent, _, last = full.rpartition(".")
        given = [o for o in overrides if o.lstrip("+~").split("=")[0] != full]
        try:
            rest = compose_config(given, folders)
            siblings = OmegaConf.select(rest, parent) if parent else rest
            options = list(siblings) if isinstance(siblings, DictConfig) else []
        except SalrunError:
            options = []
        if parent and not options:
            group, _, name = parent.partition(".")
            if group in ("methods", "metrics"):
                hint = near(name, names(group, folders))
                return f"{full} is set but '{name}' is not selected: add it to '{group}=[...]'{hint}"
        return f"unknown key '{full}'{near(last, map(str, options))}"
    return ""
