"""Names beside the points of a scatter plot, placed so that none covers another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox
from numpy.typing import ArrayLike

from salrun.stats.bootstrap import Floats

DISTANCES = (5, 9, 14, 20, 28, 38, 50, 64)  # points between a marker and its name
LEADER = 6  # from which on a line leads to it
ANGLES = np.deg2rad([20, 340, 160, 200, 90, 270, 50, 310, 130, 230, 0, 180])  # the first of equally good ones is taken
OUTSIDE, NAME, MARK, LINE = 50.0, 20.0, 8.0, 1.0  # what it costs to cover a pixel of these
FAR = 3.0  # what a point of distance costs
NEIGHBOURS = 60  # points within which markers are in each other's way


def label_points(
    ax: Axes, points: Sequence[tuple[float, float]], names: Sequence[str], sizes: ArrayLike, lines: Sequence[Bbox]
) -> list[Annotation]:
    """Write each name near its point (data coordinates; `sizes`: markers' areas, as `scatter` has them).

    One after the other, those with the most neighbours first, each takes the place that covers the least: in this
    order of importance what is outside the frame, names placed before, markers, `lines` (boxes in data coordinates).
    The figure has to be laid out before.
    """
    figure = ax.get_figure(root=True)
    assert isinstance(figure, Figure)
    renderer, pixels = FigureCanvasAgg(figure).get_renderer(), figure.dpi / 72
    at = ax.transData.transform(np.asarray(points, dtype=float).reshape(-1, 2))
    radii = np.sqrt(np.asarray(sizes, dtype=float)) / 2 * pixels
    boxes = [np.concatenate([here - r, here + r]) for here, r in zip(at, radii, strict=True)]
    boxes += [np.array(ax.transData.transform_bbox(line).extents) for line in lines]
    weights = [MARK] * len(at) + [LINE] * len(lines)
    near = [(np.hypot(*(at - here).T) < NEIGHBOURS * pixels).sum() for here in at]
    made = []
    for k in sorted(range(len(at)), key=lambda k: -near[k]):
        text = ax.annotate(names[k], points[k], (0, 0), textcoords="offset points", fontsize=6, va="bottom")
        own = text.get_window_extent(renderer)
        tips, places = _places(radii[k], own.width, own.height, pixels)
        places = places + np.tile(at[k], 2)
        cost = FAR * np.hypot(*tips.T) / pixels + _shared(places, np.stack(boxes)) @ np.array(weights)
        cost += OUTSIDE * (own.width * own.height - _shared(places, np.array([ax.bbox.extents]))[:, 0])
        best = int(cost.argmin())
        boxes.append(places[best])
        weights.append(NAME)
        text.set_position(tuple((places[best, :2] - at[k]) / pixels))
        text.set_in_layout(False)
        if np.hypot(*tips[best]) > LEADER * pixels + radii[k]:
            style = {"arrowstyle": "-", "lw": 0.4, "color": "#555555"}
            leader = ax.annotate(
                "", points[k], tuple(tips[best] / pixels), textcoords="offset points", arrowprops=style
            )
            leader.set_in_layout(False)
        made.append(text)
    return made


def _places(radius: float, width: float, height: float, pixels: float) -> tuple[Floats, Floats]:
    """Where a name may be, seen from its point, nearest first: its near end (n, 2), its box (n, 4: x0, y0, x1, y1)."""
    reach, angle = (grid.ravel() for grid in np.meshgrid(radius + np.array(DISTANCES) * pixels, ANGLES, indexing="ij"))
    x, y = reach * np.cos(angle), reach * np.sin(angle)
    left = x - width * np.select([np.cos(angle) > 0.3, np.cos(angle) < -0.3], [0.0, 1.0], 0.5)
    low = y - height / 2
    return np.stack([x, y], 1), np.stack([left, low, left + width, low + height], 1)


def _shared(a: Floats, b: Floats) -> Floats:
    """(n, m) the area that boxes have in common."""
    low, high = np.maximum(a[:, None, :2], b[None, :, :2]), np.minimum(a[:, None, 2:], b[None, :, 2:])
    return np.clip(high - low, 0, None).prod(axis=2)
