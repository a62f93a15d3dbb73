"""The figure of printed and measured numbers: each number once, coloured by whether it agrees."""

import pandas as pd
import pytest

from salrun.papers.against_print import against_print, printed_numbers

CLAIMS = pd.DataFrame({"id": ["a", "b"], "unit": ["AFL", "AFL"]})
PARTS = pd.DataFrame(
    [
        ("a", "number", "x", "0.5", "0.4", "0.6", "0.52", "yes"),
        ("b", "number", "x", "0.5", "0.4", "0.6", "0.52", "yes"),  # the same number, read by another claim
        ("b", "number", "y", "0.9", "0.8", "0.95", "0.1", "no"),
        ("b", "number", "z", "0.9", "", "", "", ""),  # not in print
        ("b", "part", "x", "0.5", "0.4", "0.6", "0.52", "yes"),
    ],
    columns=["id", "kind", "part", "measured", "ci_low", "ci_high", "published", "agrees"],
)


def test_a_number_counts_once() -> None:
    numbers = printed_numbers(CLAIMS, PARTS)
    assert numbers[["part", "agrees"]].to_numpy().tolist() == [["x", "yes"], ["y", "no"]]
    assert numbers["published"].tolist() == pytest.approx([0.52, 0.1])


def test_points_stand_at_their_numbers() -> None:
    (ax,) = against_print(printed_numbers(CLAIMS, PARTS), {"AFL": {"oracle": 0.8}}).axes
    places = {box.get_label(): box.lines[0].get_xydata().tolist() for box in ax.containers}
    assert places == {"agrees: 1": [[0.52, 0.5]], "uncertain: 0": [], "differs: 1": [[0.1, 0.9]]}
    assert "median difference +0.390" in ax.get_title()
    assert [text.get_text() for text in ax.texts] == ["oracle"]
