"""Runs of Yona & Greenfeld 2021 with chosen means, written as a run leaves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from salrun.papers.yona.evidence import GBP, HALVES, PAIRS, SHAPES, SIMILARITIES, VBP
from salrun.results.run import Run
from tests.fake_run import save_run

METHODS = (VBP, GBP)
IMAGES = 60
UNTRAINED = {"model.randomised": "untrained"}
DIGITS = {"model.task.kind": "mnist"}


class Made:
    """A run in the making: noise is the same for every quantity of an image, so differences are exact."""

    def __init__(self, experiment: str, kind: str, own: str, seed: int = 0) -> None:
        self.called = {"experiment": experiment, "dataset": kind, "seed": seed, "scale": "smoke"}
        self.noise = np.random.default_rng(1).normal(0, 0.02, IMAGES)
        self.noise -= self.noise.mean()
        self.frames: list[pd.DataFrame] = []
        self.cells: list[dict[str, Any]] = []
        self.metrics: dict[tuple[str, str], dict[str, Any]] = {}
        self.own = own
        self.model("model")

    def model(self, role: str, **facts: Any) -> None:
        """A model of the run with its facts (`copy=0` is model.copy)."""
        facts = {name if "." in name else f"model.{name}": value for name, value in facts.items()}
        name = self.own if role == "model" else role
        cell = "/".join(map(str, (*self.called.values(), name)))
        kind = {"dataset.kind": self.called["dataset"], "source": "shipped"}
        self.cells.append({"cell": cell, **self.called, "model": name, "role": role, **kind, **facts})

    def add(self, model: str, method: str, metric: str, score: str, mean: float, **options: Any) -> None:
        ids = [f"test-{i:05d}" for i in range(IMAGES)]
        mode = " ".join(str(o) for o in options.values())
        cell = next(c for c in self.cells if c["role"] == model)
        about = {"cell": cell["cell"], "model": cell["model"], **self.called, "group": "g", "method": method}
        frame = pd.DataFrame({"image_id": ids, "value": mean + self.noise})
        self.frames.append(frame.assign(**about, metric=metric, mode=mode, score=score, view="sum"))
        entry = {"metric": metric, "mode": mode, "view": "method", "direction": "none", "turned": []}
        self.metrics[metric, mode] = {**entry, "options": options}

    def alike(self, role: str, method: str, other: str, mean: float) -> None:
        for measure in (*SIMILARITIES, "relative_change"):
            self.add(role, method, "map_similarity", measure, mean, of=role, other=other)

    def mass(self, role: str, method: str, mean: float, chance: float = 0.1, region: str = "primary") -> None:
        self.add(role, method, "mass_share", "", mean, role=region)
        self.add(role, method, "mass_share", "chance", chance, role=region)

    def causal(self, of: str, method: str, untrained: str, mean: float) -> None:
        tasks = {"of": of, "tasks": {of: 1.0}, "untrained": {of: untrained}}
        self.add(of, method, "causal_quantity", "unit", mean, **tasks)

    @property
    def scores(self) -> pd.DataFrame:
        return pd.concat(self.frames, ignore_index=True)


def made_run(folder: Path, *parts: Made, scores: pd.DataFrame | None = None, **facts: Any) -> Run:
    """One run of these parts, as if they had been collected; `scores`: other ones than theirs."""
    scores = pd.concat([part.scores for part in parts]) if scores is None else scores
    cells = pd.DataFrame([cell for part in parts for cell in part.cells])
    metrics = [entry for part in parts for entry in part.metrics.values()]
    return Run(save_run(folder, scores, cells=cells, metrics=metrics, **{"paper": "yona", **facts}))


def halves(on_t: float = 0.9, aware: float = 0.5, between: float = 0.9, mass: float = 0.8, seed: int = 0) -> Made:
    made = Made(HALVES, "mnist_halves", "mnist_cnn", seed)
    made.model("digits", **DIGITS)
    for task, facts in {"": {}, "digits_": DIGITS}.items():
        for k in range(3):
            made.model(f"{task}random_{k}", **UNTRAINED, copy=k, **facts)
        for k in range(1, 5):
            made.model(f"{task}top_{k}", randomised="cascading", top=k, copy=0, **facts)
    for method in METHODS:
        for k in range(3):
            made.alike("model", method, f"random_{k}", aware + 0.01 * (k - 1))
            made.alike("digits", method, f"digits_random_{k}", on_t + 0.01 * (k - 1))
            made.mass(f"random_{k}", method, 0.5, 0.5)
            made.mass(f"digits_random_{k}", method, 0.5, 0.5)
        for k in (1, 2):
            made.alike("random_0", method, f"random_{k}", between)
            made.alike("digits_random_0", method, f"digits_random_{k}", between)
            made.causal("model", method, f"random_{k}", 0.8)
            made.causal(f"random_{k}", method, "random_0", 0.3)
        for k in range(1, 5):
            made.alike("model", method, f"top_{k}", 0.9 - 0.1 * k)
            made.alike("digits", method, f"digits_top_{k}", 0.95)
        made.mass("model", method, mass, 0.5)
        made.mass("digits", method, 0.55, 0.5)
    return made


def shapes(vbp: float = 0.6, gbp: float = 0.6) -> Made:
    made = Made(SHAPES, "mnist_shapes", "mnist_cnn")
    made.model("digits", **DIGITS)
    made.model("random_0", **UNTRAINED, copy=0)
    made.model("digits_random_0", **UNTRAINED, copy=0, **DIGITS)
    for method, of_task in zip(METHODS, (vbp, gbp), strict=True):
        on_objects = {
            "model": (of_task, 0.1),
            "digits": (0.1, of_task),
            "random_0": (0.1, 0.2),
            "digits_random_0": (0.1, 0.2),
        }
        for role, (shape, digit) in on_objects.items():
            made.mass(role, method, shape)
            made.mass(role, method, digit, region="secondary")
    return made


def pairs(finetuned: float = 0.8, random: float = 0.5) -> Made:
    made = Made(PAIRS, "tinyimagenet_pairs", "resnet50_pairs")
    made.model("pretrained", **UNTRAINED, copy=0, starts_from="resnet50.safetensors")
    for k in range(3):
        made.model(f"random_{k}", **UNTRAINED, copy=k)
    for method in METHODS:
        made.mass("model", method, finetuned, 0.5)
        made.mass("pretrained", method, 0.55, 0.5)
        made.causal("model", method, "pretrained", 0.4)
        for k in range(3):
            made.mass(f"random_{k}", method, random, 0.5)
    return made


def sanity(truth: dict[str, tuple[float, float]], names: dict[str, str] | None = None, **called: str) -> Made:
    """A battery on any data: method -> (similarity to re-initialised networks, mass); `names`: other roles."""
    named = names or {}
    first, half, last = (named.get(role, role) for role in ("random", "cascading_50", "independent_100"))
    made = Made(called.get("experiment", "yona_sanity_checks"), called.get("kind", "mine"), "resnet18")
    for k in range(3):
        made.model(f"{first}_{k}", randomised="all", copy=k)
    made.model(half, randomised="cascading", share=0.5, copy=0)
    made.model(last, randomised="independent", share=1.0, copy=0)
    for method, (alike, mass) in truth.items():
        for k in range(3):
            made.alike("model", method, f"{first}_{k}", alike)
            made.mass(f"{first}_{k}", method, 0.1)
        made.alike("model", method, half, 0.9)
        made.alike("model", method, last, 0.95)
        made.mass("model", method, mass)
    return made
