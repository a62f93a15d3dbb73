"""Train the checkpoints that ship with salrun, each by name; resumable, one after the other.

    python scripts/train_models.py --list
    python scripts/train_models.py smerf-complex_cr2 tomsett_cnn
    python scripts/train_models.py --missing

The weights (float16 safetensors) and their card go to `salrun/papers/<paper>/checkpoints/`; those of models too large
to ship go to the store, where runs find them. A model that fails its gate goes
to a folder `failed` beside them, where no run looks.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path

import torch

from salrun.build import check, device_of, instantiate
from salrun.composing import compose_config
from salrun.errors import SalrunError, unknown
from salrun.models.recipe import PAPERS
from salrun.registry import names
from salrun.store import Store

SETTINGS = [n for n in names("reasoning") if n.startswith(("simple_", "complex_"))]
READINGS = {
    "": ["dataset.labels=paper", "model.loss=bce_logits"],
    "-clipped": ["dataset.labels=code", "model.loss=keras_clipped"],
}

# Simple-FR is robust after an eighth of the steps Simple-NR needs.
SHORT_PGD = [f"model.recipes.fast_pgd.{k}" for k in ("lr=1.0e-3", "epochs=12", "epoch_images=3072")]
TOO_LARGE = ("resnet50_pairs",)


def catalogue() -> dict[str, list[str]]:
    """Name -> overrides of everything we ship."""
    jobs: dict[str, list[str]] = {}

    def smerf(name: str, setting: str, *more: str) -> None:
        kind = setting.partition("_")[0]
        jobs[name] = ["dataset=textbox", f"reasoning={setting}", f"model=smerf_{kind}", *more]

    for suffix, reading in READINGS.items():
        for setting in SETTINGS:
            smerf(f"smerf-{setting}{suffix}", setting, *reading)
        for seed in (1, 2):
            for setting in ("simple_fr", "simple_nr"):
                smerf(f"smerf-{setting}{suffix}-seed{seed}", setting, *reading, f"seed={seed}")
    for background in ("noise", "places"):
        for setting in SETTINGS:
            smerf(f"smerf-{setting}-{background}", setting, f"dataset.background={background}")
    for setting in SETTINGS:
        smerf(f"smerf-{setting}-pgd", setting, "model.training=pgd")
    jobs["smerf-simple_fr-pgd"] += SHORT_PGD
    jobs["tomsett_cnn"] = ["dataset=cifar10", "model=tomsett_cnn"]
    jobs["mnist_cnn-digits"] = ["dataset=mnist", "model=mnist_cnn"]
    jobs["mnist_cnn-halves"] = ["dataset=mnist_halves", "model=mnist_cnn", "model.arch.classes=2"]
    jobs["mnist_cnn-shapes"] = [
        "dataset=mnist_shapes",
        "model=mnist_cnn",
        "model.arch.classes=3",
        "dataset.labels_of=shape",
    ]
    jobs["mnist_cnn-digits_with_shapes"] = ["dataset=mnist_shapes", "model=mnist_cnn", "dataset.labels_of=digit"]
    jobs["resnet50_pairs"] = ["dataset=tinyimagenet_pairs", "model=resnet50_pairs"]
    return jobs


def train(name: str, overrides: list[str], device: torch.device) -> bool:
    """Train one checkpoint unless it is there already; True if it passed its gate."""
    config = check(compose_config([*overrides, "methods=[gradient]"]))
    data = instantiate(config["dataset"], "dataset")
    recipe = instantiate(config["model"], "model")
    store = Store(Path(config["cache_dir"]))
    if name in TOO_LARGE:
        found = recipe.obtain(data, config["seed"], store, device)
        print(f"{name}: accuracy {found.verification.accuracy:.4f}, {found.source}, kept in the store")
        return found.verification.passed
    identity = recipe.identity(data, config["seed"])
    known = recipe.shipped(identity)
    if known is not None:
        print(f"{name}: there already ({known.name})")
        return True
    folder = PAPERS / recipe.paper / "checkpoints"
    path = folder / f"{name}.safetensors"
    begun = time.monotonic()
    card = recipe.train_to(path, data, config["seed"], device, store)
    verdict = card["verification"]
    outcome = "passed" if verdict["passed"] else f"FAILED: {verdict['reason']}"
    print(
        f"{name}: accuracy {verdict['accuracy']}, worst group {min(verdict['groups'].values())}, "
        f"flips {verdict['flip_rate']}, {time.monotonic() - begun:.0f} s, {outcome}"
    )
    if not verdict["passed"]:
        (folder / "failed").mkdir(exist_ok=True)
        for made in (path, path.with_suffix(".json")):
            made.rename(folder / "failed" / made.name)
        print(f"kept in {folder / 'failed'}; model.weights=... model.accept_unverified=true explains it all the same")
    return bool(verdict["passed"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--missing", action="store_true", help="all that are not there yet")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    jobs = catalogue()
    if args.list:
        print("\n".join(jobs))
        return 0
    try:
        for name in args.names:
            if name not in jobs:
                raise unknown("checkpoint", name, jobs)
        wanted = list(jobs) if args.missing else args.names
        return 0 if all([train(name, jobs[name], device_of(args.device)) for name in wanted]) else 1
    except SalrunError as fault:
        print(f"train_models: {fault}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
