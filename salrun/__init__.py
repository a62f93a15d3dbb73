"""salrun: an experiment runner for evaluating saliency maps."""

from __future__ import annotations

from typing import Any

__version__ = "0.2.0"
__all__ = ["compare", "evaluate", "explain", "list_methods", "list_metrics", "show"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: `salrun --help` must not import torch.
    if name in __all__:
        from salrun import api

        return getattr(api, name)
    raise AttributeError(f"module 'salrun' has no attribute '{name}'")
