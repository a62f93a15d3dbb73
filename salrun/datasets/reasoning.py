"""What a reasoning says (conf/reasoning/*.yaml): which objects decide the label, by bucket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from salrun.ranges import AtLeast


@dataclass
class Rule:
    """Of one bucket: its label (`code_label`: the public code's, where it differs) and the objects' roles."""

    label: int
    code_label: int | None = None
    primary: list[str] | None = None
    secondary: list[str] | None = None


@dataclass
class Reasoning:
    """The keys of `dataset.reasoning`; the data set checks what they mean."""

    buckets: dict[str, Annotated[dict[str, Any], Rule]]
    train_per_bucket: Annotated[int, AtLeast(1)] | dict[str, Annotated[int, AtLeast(1)]]  # of all, or by label
    validation_per_bucket: Annotated[int, AtLeast(1)]
    name: str = ""
