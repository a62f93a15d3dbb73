"""Writes the commit that a package is built of into it, for `salrun --version` and run.json."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface):
    """salrun/commit.txt; of a source archive, which is no checkout, the one it has."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or not (Path(self.root) / ".git").exists():
            return
        git = ["git", "-C", self.root]
        try:
            head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
            dirty = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.SubprocessError):
            return
        self._folder = tempfile.TemporaryDirectory()
        path = Path(self._folder.name) / "commit.txt"
        path.write_text(head.strip() + ("+" if dirty.strip() else "") + "\n")
        build_data["force_include"][str(path)] = "salrun/commit.txt"
