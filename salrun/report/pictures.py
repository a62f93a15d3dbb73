"""Maps as pictures, by the rules of the report's gallery (report.js): for its first screen and for `salrun.show`."""

from __future__ import annotations

import base64
import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]

STOPS = {  # the colours of report.js
    True: ("0b3c7d", "2f79b5", "8bbbdc", "f5f5f5", "eda587", "cc4c3f", "7f0d22"),  # signed: against to for
    False: ("0a0822", "3c1066", "82206c", "c53f53", "f0752e", "fbb61f", "fcfba6"),  # none to most
}


def ramp(signed: bool) -> NDArray[np.float64]:
    """256 colours between the stops."""
    stops = np.array([[int(stop[k : k + 2], 16) for k in (0, 2, 4)] for stop in STOPS[signed]], dtype=np.float64)
    place = np.linspace(0, len(stops) - 1, 256)
    return np.floor(np.stack([np.interp(place, np.arange(len(stops)), channel) for channel in stops.T], axis=1))


def coloured(plane: NDArray[np.floating], signed: bool, picture: Pixels | None = None) -> Pixels:
    """A plane (H, W) over its own largest magnitude, in colours; with a picture (H, W, 3), over it in grey.

    Over a picture, opacity says how much and only the strong half of the colours is used. NaN is a pattern.
    """
    plane = np.asarray(plane, dtype=np.float64)
    missing = np.isnan(plane)
    x = np.where(missing, 0.0, plane)
    most = np.abs(np.where(np.isfinite(x), x, 0.0)).max(initial=0.0)
    x = np.clip(x / most, -1, 1) if most > 0 else np.zeros_like(x)
    size = np.abs(x) if picture is None else 0.5 + 0.5 * np.abs(x)
    at = np.floor((1 + np.sign(x) * size) * 127.5 + 0.5) if signed else np.floor(size * 255 + 0.5)
    out = ramp(signed)[at.astype(int)]
    if picture is not None:
        grey = 24 + 0.55 * (picture.astype(np.float64) @ (0.3, 0.59, 0.11))[..., None]
        out = grey + (0.95 * np.abs(x) ** 0.6)[..., None] * (out - grey)
    stripes = np.where(np.add.outer(np.arange(x.shape[0]), np.arange(x.shape[1])) % 4 < 2, 128, 190)
    return np.where(missing[..., None], stripes[..., None], np.rint(out)).astype(np.uint8)


def data_uri(pixels: Pixels) -> str:
    """A PNG for the `src` of an image."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"
