"""The README's picture: TextBox images and what some methods make of them, from a run's kept maps.

python scripts/make_picture.py outputs/smerf_simple_fr/latest docs/picture.png
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from safetensors.numpy import load_file

from salrun.papers.style import RC, SIGNED

BUCKETS = ("7", "9", "11", "12")
METHODS = ("gradient", "integrated_gradients", "lrp_epsilon", "grad_cam", "deep_shap", "edge", "oracle")


def main(run: Path, out: Path) -> None:
    index = json.loads((run / "maps" / "index.json").read_text())
    labels = {m["name"]: m["label"] for m in index["methods"]}
    rows = [index["group"].index(b) for b in BUCKETS]
    pictures = load_file(run / "maps" / "images.safetensors")["x"]
    planes = {m: load_file(run / "maps" / f"{m}.safetensors")["plane"].astype(float) for m in METHODS if m in labels}
    with mpl.rc_context({**RC, "axes.grid": False}):
        figure = Figure(figsize=(1.05 * (len(planes) + 1), 1.05 * len(rows) + 0.25), layout="constrained")
        axes = figure.subplots(len(rows), len(planes) + 1, squeeze=False)
        for line, row in zip(axes, rows, strict=True):
            line[0].imshow(pictures[row])
            for axis, (name, plane) in zip(line[1:], planes.items(), strict=True):
                top = np.abs(plane[row]).max() or 1.0
                axis.imshow(plane[row], cmap=SIGNED, vmin=-top, vmax=top)
                axis.set_title(labels[name] if row == rows[0] else "", fontsize=7)
            for axis in line:
                axis.set_axis_off()
        axes[0][0].set_title("image", fontsize=7)
        figure.savefig(out, dpi=130)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
