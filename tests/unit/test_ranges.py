"""Annotations as rules: what is admitted, what is said of the rest, from text as from a class that is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
import pytest

from salrun.config.signatures import check_parameters
from salrun.errors import SalrunError
from salrun.ranges import Above, AtLeast, AtMost, Between, Odd, check_declared, complaint, readable

MOST = 9


@dataclass
class Part:
    count: Annotated[int, AtLeast(1)] = 1
    share: Annotated[float, Above(0), AtMost(1)] = 0.5
    level: Annotated[float, Between(-1, 1)] | None = None
    sides: list[Annotated[int, Odd(), AtMost(MOST)]] = field(default_factory=lambda: [3])
    space: Literal["norm", "raw"] = "norm"
    free: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_declared(self)


WRONG = [
    ({"count": 0}, "must be at least 1, got 0"),
    ({"share": 0.0}, "must be above 0 and at most 1, got 0.0"),
    ({"share": float("nan")}, "must be a finite number, got nan"),
    ({"level": -2}, "must be between -1 and 1, got -2"),
    ({"sides": [3, 4]}, "must be odd each, got 4"),
    ({"space": "middle"}, "must be one of norm, raw, got 'middle'"),
]


@pytest.mark.parametrize(("given", "told"), WRONG)
def test_a_value_out_of_range_is_told_from_the_text_and_by_the_class(given: dict, told: str) -> None:
    (name,) = given
    with pytest.raises(SalrunError) as fault:
        check_parameters("tests.unit.test_ranges.Part", given, "methods.mine")
    assert str(fault.value) == f"methods.mine.{name} {told}"
    with pytest.raises(SalrunError) as fault:
        Part(**given)
    assert str(fault.value).startswith(f"{name} of Part {told.partition(' each')[0].partition(',')[0]}")


def test_a_limit_that_the_module_names_is_known_when_the_class_is_made() -> None:
    check_parameters("tests.unit.test_ranges.Part", {"sides": [11]}, "methods.mine")
    with pytest.raises(SalrunError, match="sides of Part must be odd and at most 9 each, got 11"):
        Part(sides=[11])


def test_types_are_a_configs_affair() -> None:
    Part(count=np.int64(3), share=np.float32(1), sides=(1, 3), level=None)  # type: ignore[arg-type]
    for given, told in (({"count": "few"}, "int, got 'few'"), ({"level": "high"}, "float or null, got 'high'")):
        with pytest.raises(SalrunError, match=f"must be {told}"):
            check_parameters("tests.unit.test_ranges.Part", given, "methods.mine")


@pytest.mark.parametrize(
    ("value", "annotation", "told"),
    [
        (None, "Annotated[int, AtLeast(1)] | None", None),
        (True, "Annotated[int, AtLeast(0)]", "must be int, got True"),
        (0, "Annotated[int, AtLeast(1)] | None", "must be at least 1, got 0"),
        ("x", "typing.Annotated[str, Unheard(3)]", None),
        (3, "Annotated[int, AtLeast(unheard)]", None),
        ([1, "a"], "list[int]", "must be int, got 'a'"),
        (3, "not an annotation", None),
        (3, "Tensor", None),
    ],
)
def test_annotations(value: object, annotation: str, told: str | None) -> None:
    wrong = complaint(value, annotation)
    assert (wrong and str(wrong)) == told


def test_annotations_that_are_no_text() -> None:
    """Of a module without `from __future__ import annotations`, as a user's may be."""
    names = {"Annotated": Annotated, "AtLeast": AtLeast, "Literal": Literal, "dataclass": dataclass}
    source = """@dataclass
class Plain:
    count: Annotated[int, AtLeast(1)] = 1
    some: Annotated[int, AtLeast(1)] | None = None
    space: Literal["norm", "raw"] = "norm"
    other: int = 3
"""
    exec(compile(source, "plain.py", "exec", dont_inherit=True), names | {"__name__": __name__}, scope := {})
    plain = scope["Plain"]
    check_declared(plain())
    for given, told in (
        ({"count": 0}, "at least 1"),
        ({"some": 0}, "at least 1"),
        ({"space": "x"}, "one of norm, raw"),
    ):
        with pytest.raises(SalrunError, match=f"of Plain must be {told}"):
            check_declared(plain(**given))


def test_in_words() -> None:
    assert readable("Annotated[int, AtLeast(1)] | None") == "int at least 1 or null"
    assert readable("list[Annotated[float, Above(0), AtMost(1)]]") == "list[float above 0 and at most 1]"
    assert readable("Literal['a', 'b']") == "one of a, b"
