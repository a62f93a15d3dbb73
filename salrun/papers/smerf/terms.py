"""The terms of Kim, Plumb, Talwalkar (ICML 2022): settings and their buckets, pools of settings, methods, conditions.

The paper's unit is the *bucket*: a bucket's value is the mean over its images, a setting's or a pool's value the plain
mean over buckets (error bar: standard deviation over buckets; worst case: the lowest bucket). An image without a score
(a constant map) is left out and counted; a bucket of which fewer than half of the images have a score is left out.

A *condition* says what differs from the paper's main models (`plain`: black background, the CNN, plain training):
`noise`, `places`, `alexnet`, `vgg16`, `pgd`, `random` (untrained). Metrics come in two modes: `code` (what the public
code computes) and `paper` (what the text says).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import pandas as pd
from omegaconf import OmegaConf

from salrun.config.catalogue import conf_dir
from salrun.papers import evidence

PAPER = "smerf"
TITLES = {
    "simple_fr": "Simple-FR",
    "simple_nr": "Simple-NR",
    "complex_fr": "Complex-FR",
    "complex_cr1": "Complex-CR1",
    "complex_cr2": "Complex-CR2",
    "complex_cr3": "Complex-CR3",
    "complex_cr4": "Complex-CR4",
}
SETTINGS = tuple(TITLES)
SIMPLE, COMPLEX = SETTINGS[:2], SETTINGS[2:]
POOLS: dict[str, tuple[str, ...]] = {
    "simple": SIMPLE,
    "complex": COMPLEX,
    "cr2_cr3": ("complex_cr2", "complex_cr3"),  # all that the authors' plot of Figure 8b pools
    "fr_cr2_cr3": ("complex_fr", "complex_cr2", "complex_cr3"),  # and of Figure 12
    "simple_both": SIMPLE,
    "complex_both": COMPLEX,
}
WITH_BOTH = ("simple_both", "complex_both")  # pools of the buckets that have a primary and a secondary object
METHODS = {  # the 17 rows, in the paper's order, under its names
    "gradient": "G",
    "smoothgrad": "SG",
    "deconvnet": "DCN",
    "guided_backprop": "GBP",
    "deep_taylor": "DT",
    "input_x_gradient": "I*G",
    "integrated_gradients": "IG",
    "lrp_z": "LRP-z",
    "lrp_epsilon": "LRP-eps",
    "lrp_a_flat": "LRP-A-flat",
    "lrp_b_flat": "LRP-B-flat",
    "deeplift_reveal_cancel": "DL-RC",
    "deeplift_rescale": "DL-R",
    "grad_cam": "G-CAM",
    "deep_shap": "D-SHAP",
    "random": "Random",
    "edge": "Edge",
}
LABELS = METHODS | {"oracle": "Oracle", "all_lit": "All lit"}
FIFTEEN = list(METHODS)[:15]
WEAK, MID = FIFTEEN[:4], FIFTEEN[5:13]
TEN = [*WEAK, "deep_taylor", "integrated_gradients", "lrp_epsilon", "deeplift_reveal_cancel", "grad_cam", "deep_shap"]
NINE = [m for m in TEN if m != "deeplift_reveal_cancel"]  # what the authors ran on AlexNet and VGG-16
METRICS = {"pafl": "PAFL", "safl": "SAFL", "pmafl": "PMAFL", "smafl": "SMAFL", "piou": "PIOU", "siou": "SIOU"}
MODES = ("code", "paper")
PRINTED = ("noise", "places", "alexnet", "vgg16", "pgd", "random")  # conditions of the paper
CONDITIONS = (*PRINTED, "vit")  # and ours
RECOMMENDED = "recommended"  # the reading of the paper that departs from the recommended one in nothing

Buckets = Mapping[str, tuple[str, ...]]  # setting -> some of its buckets
BOTH_PRESENT: Buckets = {  # those with a primary and a secondary object
    "simple_fr": ("8", "9", "10", "11", "12"),
    "simple_nr": ("5", "6", "8", "9", "11", "12"),
    "complex_fr": ("11", "12"),
    "complex_cr1": ("5", "6", "8", "9", "11", "12"),
    "complex_cr2": ("5", "6", "8", "9", "11", "12"),
    "complex_cr3": ("8", "9", "11", "12"),
    "complex_cr4": ("5", "6", "11", "12"),
}
Lines = Mapping[str, Buckets]  # setting -> line of a plot -> the buckets it is the mean of
WITH_AND_WITHOUT: Lines = {  # Figure 6a: an irrelevant object there or not
    "simple_fr": {"with Text": ("8", "9", "11", "12"), "without Text": ("7", "10")},
    "simple_nr": {"with Box1": ("8", "9", "11", "12"), "without Box1": ("2", "3", "5", "6")},
}
BY_OBJECTS: Lines = {  # Figure 6b
    "simple_fr": {"1 object": ("7",), "2 objects": ("8", "9", "10"), "3 objects": ("11", "12")},
    "simple_nr": {"1 object": ("2", "3"), "2 objects": ("5", "6", "8", "9"), "3 objects": ("11", "12")},
}
CR2_LINES: Lines = {  # Figure 8a
    "complex_cr2": {"Text + Box1": ("8", "9"), "Text + Box2": ("5", "6"), "all three": ("11", "12")}
}
MORE_LINES: Lines = {  # Figure 22
    "complex_cr1": {"8, 9": ("8", "9"), "5, 6": ("5", "6"), "11, 12": ("11", "12")},
    "complex_cr3": {"8": ("8",), "9": ("9",), "11": ("11",), "12": ("12",)},
    "complex_cr4": {"5": ("5",), "6": ("6",), "11": ("11",), "12": ("12",)},
    "complex_fr": {"2, 3": ("2", "3"), "8, 9": ("8", "9"), "5, 6": ("5", "6"), "11, 12": ("11", "12")},
}
SHOWN = ("12", "11", "8", "9")  # the buckets of Figures 9 and 25, in their order
SHOWN_LINES = {"8, 9": ("8", "9"), "11, 12": ("11", "12")}


def settings_of(name: str) -> tuple[str, ...]:
    """The settings of a pool; a setting is a pool of its own."""
    return POOLS.get(name, (name,))


def objects_of(setting: str, bucket: str, role: str) -> list[str]:
    """The primary or the secondary objects of a bucket; none where the setting does not define it."""
    return list(reasonings()[setting]["buckets"].get(int(bucket), {}).get(role, ()))


@cache
def buckets_of(setting: str, metric: str) -> tuple[str, ...]:
    """The buckets of a setting in which a metric is defined: those that have its kind of object."""
    role = "primary" if metric in ("pafl", "pmafl", "piou") else "secondary"
    return tuple(b for b in map(str, reasonings()[setting]["buckets"]) if objects_of(setting, b, role))


def has_both(setting: pd.Series | pd.Index, bucket: pd.Series | pd.Index) -> list[bool]:
    """Whether these buckets have a primary and a secondary object."""
    return [b in BOTH_PRESENT[s] for s, b in zip(setting, bucket, strict=True)]


def published(name: str = "") -> pd.DataFrame:
    """The paper's numbers as data: main values (digitised from the authors' plots), accuracy, table1, table2, lines."""
    return evidence.published(PAPER, name, dtype={"bucket": str})


@cache
def reasonings() -> dict[str, dict[str, Any]]:
    """The seven reasonings, as the data are made from them."""
    folder = conf_dir() / "reasoning"
    return {s: OmegaConf.to_container(OmegaConf.load(folder / f"{s}.yaml")) for s in SETTINGS}  # type: ignore[misc]


def validation_images() -> dict[str, int]:
    """Setting -> how many validation images its models' accuracy is measured on."""
    return {s: r["validation_per_bucket"] * len(r["buckets"]) for s, r in reasonings().items()}
