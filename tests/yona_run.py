"""Runs of Yona & Greenfeld 2021 with chosen means, written as a run leaves them."""

from __future__ import annotations

from itertools import product
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

    def __init__(self, experiment: str, kind: str, own: str, seed: int = 0, explained: int | None = None) -> None:
        self.called = {"experiment": experiment, "dataset": kind, "seed": seed, "scale": "smoke"}
        self.noise = np.random.default_rng(1).normal(0, 0.02, IMAGES)
        self.noise -= self.noise.mean()
        self.rows: list[dict[str, Any]] = []  # a mean over images each
        self.cells: list[dict[str, Any]] = []
        self.metrics: dict[tuple[str, str], dict[str, Any]] = {}
        self.own = own
        self.explained = explained
        self.model("model")

    def model(self, role: str, **facts: Any) -> None:
        """A model of the run with its facts (`copy=0` is model.copy)."""
        facts = {name if "." in name else f"model.{name}": value for name, value in facts.items()}
        name = self.own if role == "model" else role
        cell = "/".join(map(str, (*self.called.values(), name)))
        kind: dict[str, Any] = {"dataset.kind": self.called["dataset"], "source": "shipped"}
        kind |= {} if self.explained is None else {"dataset.explained_seed": self.explained}
        self.cells.append({"cell": cell, **self.called, "model": name, "role": role, **kind, **facts})

    def add(self, model: str, method: str, metric: str, score: str, mean: float, **options: Any) -> None:
        mode = " ".join(str(o) for o in options.values())
        cell = next(c for c in self.cells if c["role"] == model)
        about = {"cell": cell["cell"], "model": cell["model"], **self.called, "group": "g", "method": method}
        self.rows.append({**about, "metric": metric, "mode": mode, "score": score, "view": "sum", "value": mean})
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
        means = pd.DataFrame(self.rows)
        table = means.loc[means.index.repeat(IMAGES)].reset_index(drop=True)
        ids = np.tile([f"test-{i:05d}" for i in range(IMAGES)], len(means))
        return table.assign(image_id=ids, value=table["value"] + np.tile(self.noise, len(means)))


def made_run(folder: Path, *parts: Made, scores: pd.DataFrame | None = None, **facts: Any) -> Run:
    """One run of these parts, as if they had been collected; `scores`: other ones than theirs."""
    scores = pd.concat([part.scores for part in parts]) if scores is None else scores
    cells = pd.DataFrame([cell for part in parts for cell in part.cells])
    metrics = [entry for part in parts for entry in part.metrics.values()]
    return Run(save_run(folder, scores, cells=cells, metrics=metrics, **{"paper": "yona", **facts}))


def halves(
    on_t: float = 0.9,
    aware: float = 0.5,
    between: float = 0.9,
    mass: float = 0.8,
    vbp: float = 0.5,
    copies: int = 3,
    cascades: int = 1,
    **of: Any,
) -> Made:
    """Similarity to untrained maps on t and on t~ (of guided, vanilla), and of untrained ones in a ring."""
    made = Made(HALVES, "mnist_halves", "mnist_cnn", **of)
    made.model("digits", **DIGITS)
    for task, facts in {"": {}, "digits_": DIGITS}.items():
        for k in range(copies):
            made.model(f"{task}random_{k}", **UNTRAINED, copy=k, **facts)
        for step, k in product(range(1, 5), range(cascades)):
            made.model(f"{task}top_{step}_{k}", randomised="cascading", top=step, copy=k, **facts)
    for method, on_halves in zip(METHODS, (vbp, aware), strict=True):
        for k in range(copies):
            made.alike("model", method, f"random_{k}", on_halves + 0.01 * (k - (copies - 1) / 2))
            made.alike("digits", method, f"digits_random_{k}", on_t + 0.01 * (k - (copies - 1) / 2))
            made.mass(f"random_{k}", method, 0.5, 0.5)
            made.mass(f"digits_random_{k}", method, 0.5, 0.5)
            following = (k + 1) % copies
            made.alike(f"random_{k}", method, f"random_{following}", between)
            made.alike(f"digits_random_{k}", method, f"digits_random_{following}", between)
            made.causal("model", method, f"random_{k}", 0.8)
            made.causal(f"random_{k}", method, f"random_{following}", 0.3)
        for step, k in product(range(1, 5), range(cascades)):
            made.alike("model", method, f"top_{step}_{k}", 0.9 - 0.1 * step)
            made.alike("digits", method, f"digits_top_{step}_{k}", 0.95)
        made.mass("model", method, mass, 0.5)
        made.mass("digits", method, 0.55, 0.5)
    return made


def shapes(vbp: float = 0.6, gbp: float = 0.6, **of: Any) -> Made:
    made = Made(SHAPES, "mnist_shapes", "mnist_cnn", **of)
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


def pairs(
    finetuned: float = 0.8, random: float = 0.5, pretrained: float = 0.55, vbp: float = 0.8, kind: str = "tinyimagenet",
    **of: Any,
) -> Made:  # fmt: skip
    """Mass on the half that decides: fine-tuned (guided; vanilla), random and pretrained networks."""
    made = Made(PAIRS, f"{kind}_pairs", "resnet50_pairs", **of)
    made.model("pretrained", **UNTRAINED, copy=0, starts_from="resnet50.safetensors")
    for k in range(3):
        made.model(f"random_{k}", **UNTRAINED, copy=k)
    for method, mass in zip(METHODS, (vbp, finetuned), strict=True):
        made.mass("model", method, mass, 0.5)
        made.mass("pretrained", method, pretrained, 0.5)
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
