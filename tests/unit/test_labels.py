"""Names of points: inside the frame, none over another, near what they name."""

from __future__ import annotations

from itertools import combinations

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.transforms import Bbox

from salrun.papers.labels import label_points
from salrun.papers.style import figure, styled
from tests.toys import rng


@pytest.mark.parametrize("points", ["crowd", "corner", "same"])
def test_names_do_not_cover_each_other_and_stay_inside(points):
    xy = {
        "crowd": rng(0).random((25, 2)),
        "corner": [(1.0, 1.0), (0.0, 0.0), (0.99, 0.99), (0.01, 0.01)],
        "same": [(0.5, 0.5)] * 12,
    }[points]
    with styled():
        fig, axes = figure(1, 1, height=4.2)
        (ax,) = axes.flat
        ax.set_xlim(-0.1, 1.1)
        ax.set_ylim(-0.1, 1.1)
        fig.draw_without_rendering()
        names = [f"a rather long name {k}" for k in range(len(xy))]
        texts = label_points(ax, [tuple(p) for p in xy], names, [30.0] * len(xy), [Bbox.from_extents(0, 0, 0.01, 1)])
        renderer = FigureCanvasAgg(fig).get_renderer()
        fig.draw(renderer)
    assert sorted(text.get_text() for text in texts) == sorted(names)
    boxes = [text.get_window_extent(renderer) for text in texts]
    for a, b in combinations(boxes, 2):
        both = Bbox.intersection(a, b)
        assert both is None or min(both.width, both.height) < 1  # a pixel of rounding
    for box in boxes:
        assert ax.bbox.x0 - 1 <= box.x0 and box.x1 <= ax.bbox.x1 + 1
        assert ax.bbox.y0 - 1 <= box.y0 and box.y1 <= ax.bbox.y1 + 1


def test_a_point_alone_has_its_name_beside_it():
    with styled():
        fig, axes = figure(1, 1)
        (ax,) = axes.flat
        fig.draw_without_rendering()
        (text,) = label_points(ax, [(0.5, 0.5)], ["alone"], [16.0], [])
    x, y = text.get_position()
    assert 0 < x < 12 and abs(y) < 12 and len(ax.texts) == 1  # no leader
