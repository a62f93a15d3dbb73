"""The HTML report people look at: verdicts, tables, figures and a gallery of maps in one self-contained file."""

from __future__ import annotations

from typing import Any

__all__ = ["write_joint_report", "write_report"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: pandas and jinja2 are not needed to answer `salrun --help`.
    if name in __all__:
        from salrun.report import page

        return getattr(page, name)
    raise AttributeError(f"module 'salrun.report' has no attribute '{name}'")
