"""Runs of Tomsett et al. 2020 whose truth is known, written as a run leaves them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from salrun.papers.tomsett.evidence import METHODS, PERTURBATIONS
from salrun.results.run import Run
from tests.fake_run import save_run

LEVELS = (20, 40, 60, 80, 100)
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CALLED = {"experiment": "tomsett_cifar10", "dataset": "cifar10", "model": "tomsett_cnn", "scale": "smoke"}
METRICS = [
    {
        "metric": metric,
        "mode": "",
        "view": "method",
        "direction": direction,
        "turned": [],
        "options": {
            "perturbations": list(PERTURBATIONS),
            **({"levels": list(LEVELS)} if metric != "faithfulness" else {}),
        },
    }
    for metric, direction in {"aopc_morf": "higher", "aopc_lerf": "lower", "faithfulness": "higher"}.items()
]


def about_images(images: int) -> pd.DataFrame:
    """Every fourth image is one that the model is unsure of; the first dog is taken for an airplane."""
    number = np.arange(images)
    return pd.DataFrame(
        {
            "image_id": [f"test-{i:05d}" for i in number],
            "group": [CLASSES[i % 10] for i in number],
            "label": number % 10,
            "prediction": np.where(number == 5, 0, number % 10),
            "confidence": np.where(number % 4 == 0, 0.6, 0.995),
        }
    )


@dataclass(frozen=True)
class World:
    """What is true of a made-up run: means by perturbation and method (in the order of METHODS), what images share."""

    morf: dict[str, tuple[float, ...]]  # AOPC over random orders at L = 100
    lerf: dict[str, tuple[float, ...]]
    f: dict[str, tuple[float, ...]]
    sure: float = 0.2  # LeRF, of images that the model is sure of
    unsure: float = -0.5
    frog: float = 0.4
    shared: tuple[float, float, float] = (0.5, 0.15, 0.1)  # MoRF, LeRF, F: what all methods have of an image
    with_edge: float = 0.6  # of which edge detection has so much
    f_with_lerf: float = -1.0
    morf_with_lerf: tuple[float, ...] = (0.0, 0.1, 0.3, 0.05, 0.0)
    unsteady: int = METHODS.index("deep_taylor")  # is noisy under random RGB


PAPER = World(
    morf={"mean": (0.03, 0.19, 0.12, 0.036, -0.4), "random_rgb": (0.04, 0.08, 0.12, 0.065, -0.2)},
    lerf={"mean": (0.08, 0.13, 0.03, -0.05, -0.3), "random_rgb": (0.18, 0.26, 0.06, -0.12, -0.42)},
    f={"mean": (0.13, 0.08, 0.03, -0.02, -0.16), "random_rgb": (0.05, 0.03, 0.02, 0.01, -0.08)},
)
TURNED = World(
    morf={"mean": (0.15, -0.15, 0.1, 0.05, 0.2), "random_rgb": (0.3, -0.3, 0.15, -0.1, 0.05)},
    lerf={"mean": (-0.08, -0.12, -0.05, 0.05, 0.15), "random_rgb": (0.08, 0.12, 0.05, -0.05, 0.0)},
    f={"mean": (0.1, 0.09, 0.06, 0.03, 0.3), "random_rgb": (0.4, 0.2, 0.1, 0.0, 0.4)},
    sure=-0.2,
    unsure=0.2,
    frog=-0.2,
    shared=(0.05, 0.1, 0.5),
    with_edge=2.0,
    f_with_lerf=1.0,
    morf_with_lerf=(0.0,) * 5,
    unsteady=METHODS.index("sensitivity"),
)


def run_scores(
    images: int = 200, seed: int = 0, world: World = PAPER, methods: Sequence[str] = METHODS
) -> pd.DataFrame:
    """Scores of one seed, as `world` has it: means grow with L, noise does not."""
    rng = np.random.default_rng(seed)
    about = about_images(images)
    sure = np.where(about["confidence"] < 0.8, world.unsure, world.sure)
    frog = np.where(about["group"] == "frog", world.frog, 0.0)
    first, second = rng.normal(size=(2, images))
    frames = []

    def add(method: str, metric: str, score: str, value: Any) -> None:
        frames.append(about.assign(method=method, metric=metric, score=score, value=value))

    for k, method in enumerate(methods):
        mine = np.array(world.shared) * (world.with_edge if method == "edge" else 1.0)
        for perturbation in PERTURBATIONS:
            own = 0.12 * rng.normal(size=(3, images))
            own[0] *= 3 if perturbation == "random_rgb" and k == world.unsteady else 1
            morf = mine[0] * first + own[0]
            lerf = mine[1] * second + world.morf_with_lerf[k] * first + own[1]
            aopc = {
                "aopc_morf": (world.morf[perturbation][k] + frog, morf),
                "aopc_lerf": (world.lerf[perturbation][k] + frog + sure, lerf),
            }
            for metric, (mean, noise) in aopc.items():
                for level in LEVELS:
                    baseline = np.full(images, level / 500)
                    add(method, metric, f"{perturbation}_L{level}", baseline + level / 100 * mean + noise)
                    add(method, metric, f"{perturbation}_L{level}_random", baseline)
                    add(method, metric, f"{perturbation}_L{level}_orderings", 0.01)
            f = world.f[perturbation][k] + frog + mine[2] * world.f_with_lerf * second + own[2]
            f[7] = np.nan
            add(method, "faithfulness", perturbation, f)
    table = pd.concat(frames, ignore_index=True).drop(columns="confidence")
    return table.assign(**CALLED, seed=seed, cell=f"seed{seed}", view="sum", target=table["label"])


def run_curves(images: int = 12) -> pd.DataFrame:
    """Curves of a hundred steps: random falls, a random order that falls by a tenth, 21 orders around 0."""
    rng = np.random.default_rng(0)
    rows = []
    for method in METHODS:
        for metric in ("aopc_morf", "aopc_lerf"):
            for perturbation in PERTURBATIONS:
                for image in about_images(images)[["image_id", "group"]].to_dict("records"):
                    curves = {
                        "L100": 1 - rng.random() * np.arange(101) / 200,
                        "L100_random": 1 - np.arange(101) / 1_000,
                        "L100_orderings": np.linspace(-0.1, 0.1, 21),
                    }
                    for name, y in curves.items():
                        key = {**image, "method": method, "metric": metric, "score": f"{perturbation}_{name}"}
                        rows.append({**key, "x": np.arange(len(y), dtype=float), "y": y})
    return pd.DataFrame(rows).assign(**CALLED, seed=0, cell="seed0", mode="", view="sum")


def made_run(folder: Path, scores: pd.DataFrame, **more: Any) -> Run:
    """The run of these scores."""
    images = about_images(scores["image_id"].nunique())[["image_id", "confidence"]]
    return Run(save_run(folder, scores, images=images, metrics=METRICS, paper="tomsett", **more))


def matrix(scores: pd.DataFrame, metric: str, score: str) -> pd.DataFrame:
    """Images x methods of one named score."""
    part = scores[(scores["metric"] == metric) & (scores["score"] == score)]
    return part.pivot(index="image_id", columns="method", values="value")[list(METHODS)]
