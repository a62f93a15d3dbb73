"""Runs of Tomsett et al. 2020 whose truth is known, written as a run leaves them."""

from __future__ import annotations

from collections.abc import Sequence
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


def run_scores(
    images: int = 200,
    seed: int = 0,
    lerf_excess: float = 0.1,
    unsure_excess: float = -0.1,
    edge_gain: float = 0.05,
    methods: Sequence[str] = METHODS,
) -> pd.DataFrame:
    """Scores of one seed: AOPC grows with the method's number, LeRF by the excess, MoRF by the gain of edges."""
    rng = np.random.default_rng(seed)
    about = about_images(images)
    unsure = about["confidence"] < 0.8
    frames = []

    def add(method: str, metric: str, score: str, value: Any) -> None:
        frames.append(about.assign(method=method, metric=metric, score=score, value=value))

    for k, method in enumerate(methods):
        for perturbation in PERTURBATIONS:
            for metric in ("aopc_morf", "aopc_lerf"):
                noise = rng.normal(size=images)
                for level in LEVELS:
                    baseline = np.full(images, level / 500)
                    value = baseline + level / 100 * 0.02 * k + 0.05 * noise
                    if metric == "aopc_lerf":
                        value = value + np.where(unsure, unsure_excess, lerf_excess) * level / 100
                    if perturbation == "random_rgb" and metric == "aopc_morf":
                        value = value + edge_gain * (method in ("edge", "deep_taylor"))
                    add(method, metric, f"{perturbation}_L{level}", value)
                    add(method, metric, f"{perturbation}_L{level}_random", baseline)
                    add(method, metric, f"{perturbation}_L{level}_orderings", 0.01)
            faithfulness = 0.1 - 0.02 * k + 0.1 * rng.normal(size=images)
            faithfulness[7] = np.nan
            add(method, "faithfulness", perturbation, faithfulness)
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
