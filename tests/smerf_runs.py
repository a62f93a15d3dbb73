"""Invented runs of the smerf experiments: tables of the real columns, in memory or written by the real writers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd

from salrun.papers.claims import claims_of
from salrun.papers.smerf import claims as _registered  # noqa: F401
from salrun.papers.smerf.evidence import SmerfEvidence, published_evidence, read
from salrun.papers.smerf.terms import LABELS, METRICS, MODES, SETTINGS, SIMPLE, WEAK, reasonings
from salrun.papers.verdicts import judge
from salrun.results.run import Run
from salrun.results.tables import ALL, IMAGES, KEY
from tests.fake_run import save_maps, save_run

Value = Callable[[str, str, str, str, str], float]  # setting, bucket, metric, mode, method -> a bucket's mean
RECIPE = {"name": None, "training": "plain", "loss": "bce_logits", "paper": "smerf", "randomised": None}
DATA = {"background": "black", "labels": "paper", "placement": "code", "kind": "textbox"}
CONDITIONS: list[dict[str, str]] = [{"background": b} for b in ("noise", "places")]
CONDITIONS += [{"training": "pgd"}, {"name": "smerf_alexnet"}, {"name": "smerf_vgg16"}]


@dataclass
class World:
    """The tables of some models."""

    scores: pd.DataFrame
    cells: pd.DataFrame
    models: pd.DataFrame

    def __add__(self, other: World) -> World:
        pairs = ((self.scores, other.scores), (self.cells, other.cells), (self.models, other.models))
        return World(*(pd.concat(pair, ignore_index=True) for pair in pairs))

    def where(self, chosen: Callable[[pd.DataFrame], pd.Series]) -> World:
        """The same models with some of the scores."""
        return World(self.scores[chosen(self.scores)], self.cells, self.models)

    def assign(self, **columns: object) -> World:
        """The same models with other scores."""
        return World(self.scores.assign(**columns), self.cells, self.models)


def made_up(
    settings: Sequence[str] = SETTINGS,
    n: int = 3,
    seed: int = 0,
    scale: str = "paper",
    value: Value | None = None,
    methods: Sequence[str] = tuple(LABELS),
    accuracy: Callable[[str, str], float] = lambda setting, bucket: 1.0,
    **facts: str | None,
) -> World:
    """Invented models, one per setting, with `facts` that differ from those of the plain one."""
    value = value or (lambda setting, bucket, metric, mode, method: 0.3)
    jitter = 0.01 * (np.arange(n) - (n - 1) / 2)
    scores, cells, models = [], [], []
    for setting in settings:
        name = "smerf_simple" if setting in SIMPLE else "smerf_complex"
        data = {k: facts.get(k, v) for k, v in DATA.items()}
        recipe = {k: facts.get(k, v) for k, v in (RECIPE | {"name": name}).items()}
        key = {"experiment": f"smerf_{setting}", "dataset": "textbox", "model": str(recipe["name"])}
        key |= {"seed": seed, "scale": scale}
        cell = f"{setting} {sorted(map(str, [*data.values(), *recipe.values()]))} {seed} {scale}"
        about = {f"dataset.{k}": v for k, v in data.items()} | {f"model.{k}": v for k, v in recipe.items()}
        about |= {"dataset.reasoning": setting, "dataset.explained_seed": seed}
        cells.append({"cell": cell, **key, "role": "model", **about})
        for bucket, rule in reasonings()[setting]["buckets"].items():
            row = {"cell": cell, **key, "source": "shipped", "verified": True, "what": "accuracy"}
            models.append({**row, "group": str(bucket), "value": accuracy(setting, str(bucket))})
            for metric in METRICS:
                has = rule["primary" if metric in ("pafl", "pmafl", "piou") else "secondary"]
                for mode in MODES:
                    for method in methods:
                        base = value(setting, str(bucket), metric, mode, method) if has else np.nan
                        names = (cell, *key.values(), str(bucket), method, metric, mode, "ok" if has else "no_mask")
                        scores += [(*names, f"v-b{bucket}-{k}", base + jitter[k]) for k in range(n)]
    names = [*KEY, "group", "method", "metric", "mode", "flag", "image_id", "value"]
    table = pd.DataFrame(scores, columns=names).assign(label=0, prediction=0, target=0, score="", view="x")
    return World(table, pd.DataFrame(cells), pd.DataFrame(models))


def random_world() -> World:
    """All settings and methods, every score drawn at random."""
    world = made_up()
    noise = np.random.default_rng(0).uniform(-0.3, 0.6, len(world.scores))
    return world.assign(value=world.scores["value"] + noise)


def paper_like(setting: str, bucket: str, metric: str, mode: str, method: str) -> float:
    """A world in which the paper's main statements hold; the oracle's maps are perfect, blind ones see little."""
    focus = metric in ("pafl", "piou", "pmafl")
    if method == "oracle":
        return 0.95 if focus else 0.01
    blind = method in ("random", "edge", "all_lit")
    weak = blind or method in WEAK
    extra = {"1": 0, "2": 0, "3": 0, "7": 0}.get(bucket, 1) + (bucket in ("11", "12"))
    complex_ = setting not in SIMPLE
    if metric in ("pmafl", "smafl"):
        return 0.3 if focus else 0.4 if complex_ or blind else 0.35 if setting == "simple_nr" else 0.2
    if focus:
        top = 0.06 if weak else (0.46 if complex_ else 0.9)
        return max(top - (0.01 if weak else 0.12) * extra - (0.02 if weak and complex_ else 0), 0.01)
    return 0.07 if blind else 0.02 if weak else 0.05 + 0.1 * extra + 0.1 * complex_


def evidence(world: World, draws: int = 40) -> SmerfEvidence:
    """What is read of these tables, without a run directory."""
    tables: Any = {"scores": world.scores, "cells": world.cells, "models": world.models, "maps": []}
    return read(cast(Run, SimpleNamespace(**tables, table=lambda name: None)), draws)


def verdicts(world: World, draws: int = 40, only: Sequence[str] = ()) -> pd.DataFrame:
    """The rows of claims.csv by id, of some claims or all."""
    chosen = [claim for claim in claims_of("smerf") if claim.id in only or not only]
    return judge(chosen, evidence(world, draws).seeds, published_evidence()).claims.set_index("id")


def write_run(folder: Path, world: World, overrides: Sequence[str] = ("x",), **facts: object) -> Run:
    """A run directory with these tables."""
    images = world.scores.drop_duplicates(["cell", "image_id"]).assign(confidence=1.0)[IMAGES]
    overall = world.models.groupby([*KEY, "source", "verified", "what"], as_index=False)["value"].mean()
    models = pd.concat([overall.assign(group=ALL), world.models], ignore_index=True)
    tables = {"images": images, "cells": world.cells, "accuracies": models}
    told = {"experiment": "smerf", "paper": "smerf", "metrics": [], **facts}
    return Run(save_run(folder, world.scores, overrides=overrides, **tables, **told))


def write_maps(folder: Path, cell: str) -> None:
    """Maps of three images of bucket 9 and one of bucket 8, in which the letter is primary and Box1 secondary.

    IG lights Box1 with 0.6 of the letter's weight, the gradient Box1 alone, the oracle the letter alone.
    """
    groups = ["9", "9", "8", "9"]
    boxes = {"text": np.s_[:, 20:39, 5:18], "box1": np.s_[:, 40:50, 40:50]}
    roles = {"text": ["primary"] * 4, "box1": ["secondary"] * 4, "box2": [""] * 4}
    masks = {name: np.zeros((4, 64, 64), dtype=bool) for name in roles}
    both, one, perfect = np.zeros((3, 4, 64, 64), dtype=np.float16)
    for name, box in boxes.items():
        masks[name][box] = True
    both[boxes["text"]], both[boxes["box1"]], one[boxes["box1"]], perfect[boxes["text"]] = 1.0, -0.6, 1.0, 1.0
    planes = {"integrated_gradients": both, "gradient": one, "oracle": perfect}
    methods = [{"name": m, "label": m, "signed": m != "gradient", "plane": "sum", "view": "x"} for m in planes]
    about = {"image_id": [f"v-b{g}-{k}" for k, g in enumerate(groups)], "group": groups}
    about |= {"label": [1, 1, 0, 1], "prediction": [1, 1, 0, 1]}
    shown = {"planes": planes, "images": np.zeros((4, 64, 64, 3), np.uint8)}
    shown |= {"masks": masks, "roles": roles, "classes": ["0", "1"]}
    save_maps(folder, about, methods, {"model": cell}, **shown)
