"""Methods, families and columns of Zhang, Torres, Hermanns, "Saliency Maps Give a False Sense of Explanability to Image
Classifiers" (ACML 2024).

The paper's names and units: AI, AG, I (insertion) in percent, ADb = 100 - AD and Db = 100 - D, so that more is better;
Mono is monotonicity, MS and AS are max- and average sensitivity, Sparseness is the Gini index times 100, EC counts
pixels. I and Db take equal pixels from the bottom right, as the public code's sort and flip do (`raster_reversed`).
Further columns are ours: `I random ties` and `Db random ties` take them in random order, `AG clipped` leaves out images
with p > 0.999, `LA` is local accuracy, `Complete` the share of raw maps that sum to the logit's change, `Residual` the
part of it that they miss, `MS fixed` has the gradient explain the neighbours for every method, and `ranks` and
`matched_mean` are AI, ADb and AG of maps made equally bright.
"""

from __future__ import annotations

from dataclasses import dataclass

LABELS = {
    "fake_cam": "Fake-CAM",
    "gradient": "Gradient",
    "integrated_gradients": "IG",
    "guided_backprop": "GuidedBP",
    "grad_cam": "Grad-CAM",
    "grad_cam_pp": "Grad-CAM++",
    "score_cam": "Score-CAM",
    "rise": "RISE",
    "lime": "LIME",
    "iba": "IBA",
}
METHODS = list(LABELS)
REAL = [m for m in METHODS if m != "fake_cam"]
FAMILIES = {
    "gradient": ["gradient", "integrated_gradients", "guided_backprop"],
    "CAM": ["grad_cam", "grad_cam_pp", "score_cam"],
    "occlusion": ["rise", "lime"],
    "learning": ["iba"],
}
CLOSE = [*FAMILIES["CAM"], "rise", "iba"]  # the methods that the paper's fidelity metrics hardly tell apart
FIDELITY = ["AI", "ADb", "AG", "I", "Db", "Mono"]
MASKED = FIDELITY[:5]  # Tables 2 and 4
ROBUSTNESS = ["MS", "AS", "Sparseness", "Complexity", "EC"]
CONTROLS = ["ranks", "matched_mean"]
CONTROLLED = {  # of AI, ADb, AG: name of a column -> the metric, and what its maps are
    **{metric: (metric, "minmax") for metric in MASKED[:3]},
    **{f"{metric} {control}": (metric, control) for metric in MASKED[:3] for control in CONTROLS},
}
RANDOM_TIES = {metric: f"{metric} random ties" for metric in ("I", "Db")}
TARGETS = ["label", "predicted", "least_probable"]
CLEAN = "clean"
TRANSFORMS = ["mixup", "resize", "rotation", "crop"]
REFLECTED = "rotation_reflected"  # beside the paper's four: corners filled by reflection, where rotation has black ones
CORRELATED = {"AG": ("AG", 1, 0), "ADb": ("AD", -1, 100), "I": ("I", 1, 0), "Db": ("D", -1, 100)}  # sign, offset


@dataclass(frozen=True)
class Column:
    """A column of the paper's tables: value x scale + offset of one score of a metric, in one of these modes."""

    metric: str
    modes: tuple[str, ...] = ("", "all")
    scale: float = 1.0
    offset: float = 0.0
    score: str = ""
    digits: int = 1  # that the paper prints


REVERSED, RANDOM = ("raster_reversed",), ("random", "")  # how insertion and deletion break ties
COLUMNS = {
    "AI": Column("average_increase", scale=100),
    "ADb": Column("average_drop", scale=-100, offset=100),
    "AG": Column("average_gain", scale=100),
    "I": Column("insertion", REVERSED, 100),
    "Db": Column("deletion", REVERSED, -100, 100),
    "Mono": Column("monotonicity", digits=2),
    "I random ties": Column("insertion", RANDOM, 100),
    "Db random ties": Column("deletion", RANDOM, -100, 100),
    "AG clipped": Column("average_gain", ("clipped",), 100),
    "LA": Column("local_accuracy"),
    "Complete": Column("completeness", scale=100, score="complete"),
    "Residual": Column("completeness", score="relative", digits=2),
    "MS": Column("max_sensitivity", ("", "own"), digits=2),
    "AS": Column("avg_sensitivity", ("", "own"), digits=2),
    "MS fixed": Column("max_sensitivity", ("fixed",), digits=2),
    "AS fixed": Column("avg_sensitivity", ("fixed",), digits=2),
    "Sparseness": Column("sparseness", scale=100),
    "Complexity": Column("complexity"),
    "EC": Column("effective_complexity"),
    **{f"AI {mode}": Column("average_increase", (mode,), 100) for mode in CONTROLS},
    **{f"ADb {mode}": Column("average_drop", (mode,), -100, 100) for mode in CONTROLS},
    **{f"AG {mode}": Column("average_gain", (mode,), 100) for mode in CONTROLS},
}
