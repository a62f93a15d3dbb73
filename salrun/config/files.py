"""Users' config files, looked at before Hydra reads them: what would be ignored in silence, or never end."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import yaml

from salrun.config.catalogue import GROUPS, conf_dir
from salrun.errors import SalrunError

MOST = 100_000  # values in a file, each alias counted as what it stands for


def check_files(folders: Iterable[Path]) -> None:
    """Raise SalrunError at a file of our groups that is no plain mapping; what is no YAML is told when it is chosen."""
    for folder in folders:
        for path in sorted(p for group in GROUPS for p in (folder / group).rglob("*.yaml")):
            if not path.is_file():
                raise SalrunError(f"{path} is not a file")
            data = path.read_bytes()
            ours = conf_dir() / path.relative_to(folder)
            if ours.is_file() and ours.read_bytes() != data:
                raise SalrunError(f"{path} is not read, since salrun has a file of that name: give it another")
            if data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
                raise SalrunError(f"{path} begins with a byte order mark: save it as UTF-8 without one")
            try:
                node = yaml.compose(data, Loader=yaml.SafeLoader)
                size = _size(node, {})
            except RecursionError as fault:
                raise SalrunError(f"{path} is nested too deeply") from fault
            except (yaml.YAMLError, ValueError):
                continue
            if node is not None and not isinstance(node, yaml.MappingNode):
                raise SalrunError(f"{path} must be a mapping (key: value)")
            if size > MOST:
                raise SalrunError(f"{path} stands for {size:,} values, its aliases counted: at most {MOST:,}")


def _size(node: yaml.Node | None, known: dict[int, int]) -> int:
    """How many values a node is when its aliases are written out; one that contains itself recurses."""
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) not in known:
        parts = node.value if isinstance(node, yaml.SequenceNode) else [part for pair in node.value for part in pair]
        known[id(node)] = 1 + sum(_size(part, known) for part in parts)
    return known[id(node)]
