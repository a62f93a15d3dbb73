"""Hydra's source of YAML files, which parses a file once: a sweep composes the same ones for each of its jobs."""

from __future__ import annotations

import copy
import os
from dataclasses import replace

from hydra._internal.core_plugins import file_config_source
from hydra.plugins.config_source import ConfigResult

_PARSED: dict[str, tuple[tuple[int, ...], ConfigResult]] = {}  # by path: the file's state, what is in it


class FileConfigSource(file_config_source.FileConfigSource):
    """A file is parsed again when its time, size or inode is another."""

    def load_config(self, config_path: str) -> ConfigResult:
        path = os.path.join(self.path, self._normalize_file_name(config_path))
        try:
            stat = os.stat(path)
        except OSError:
            return super().load_config(config_path)
        state = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        known = _PARSED.get(path)
        if known is None or known[0] != state:
            known = _PARSED[path] = state, super().load_config(config_path)
        parsed = known[1]  # a copy is given: Hydra takes the defaults list out, and merges into the config
        return replace(parsed, config=copy.deepcopy(parsed.config), header=dict(parsed.header), provider=self.provider)
