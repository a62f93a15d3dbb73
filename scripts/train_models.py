"""Train the checkpoints that ship with salrun, each by name; resumable, one after the other.

    python scripts/train_models.py --list
    python scripts/train_models.py smerf-complex_cr2 tomsett_cnn
    python scripts/train_models.py --missing

A name that is given is always trained. Where its shipped checkpoint is whole, the new weights (float16 safetensors) and
their card go to `outputs/trained/`, and a line says whether they are the shipped ones. Where it is damaged or missing,
they go to `salrun/papers/<paper>/checkpoints/`, or to its folder `failed`, where no run looks, if the model fails its
gate. `--missing` trains all whose shipped checkpoint is damaged or missing. Models too large to ship go to the store,
where runs find them, and are trained only if they are not in it.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path
from typing import Any

import torch

from salrun.config.catalogue import names
from salrun.config.check import check
from salrun.config.compose import compose_config
from salrun.config.parts import dataset_part, recipe_part
from salrun.errors import SalrunError, unknown
from salrun.models.checkpoint import PAPERS, read_card, whole
from salrun.pipeline.build import device_of
from salrun.store.entries import Store

SETTINGS = [n for n in names("reasoning") if n.startswith(("simple_", "complex_"))]
READINGS = {
    "": ["dataset.labels=paper", "model.loss=bce_logits"],
    "-clipped": ["dataset.labels=code", "model.loss=keras_clipped"],
}

# Simple-FR is robust after an eighth of the steps Simple-NR needs.
SHORT_PGD = [f"model.recipes.fast_pgd.{k}" for k in ("lr=1.0e-3", "epochs=12", "epoch_images=3072")]
# The shipped halves and shapes were trained before the recipe was made longer for the digits.
SHORT_MNIST = [f"model.recipes.fast.{k}" for k in ("lr=2.0e-3", "batch=128", "epochs=4")]
TOO_LARGE = ("resnet50_pairs",)
TRAINED = Path("outputs") / "trained"


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
    for setting in SETTINGS:
        smerf(f"smerf-{setting}-vit", setting, "model=smerf_vit")
    jobs["tomsett_cnn"] = ["dataset=cifar10", "model=tomsett_cnn"]
    jobs["cifar10_vit"] = ["dataset=cifar10", "model=cifar10_vit"]
    jobs["mnist_cnn-digits"] = ["dataset=mnist", "model=mnist_cnn"]
    jobs["mnist_cnn-halves"] = ["dataset=mnist_halves", "model=mnist_cnn", "model.arch.classes=2", *SHORT_MNIST]
    jobs["mnist_cnn-shapes"] = [
        "dataset=mnist_shapes",
        "model=mnist_cnn",
        "model.arch.classes=3",
        "dataset.labels_of=shape",
        *SHORT_MNIST,
    ]
    jobs["mnist_cnn-digits_with_shapes"] = ["dataset=mnist_shapes", "model=mnist_cnn", "dataset.labels_of=digit"]
    jobs["resnet50_pairs"] = ["dataset=tinyimagenet_pairs", "model=resnet50_pairs"]
    return jobs


def config_of(overrides: list[str]) -> dict[str, Any]:
    return check(compose_config([*overrides, "methods=[gradient]"]))


def shipped_path(name: str, config: dict[str, Any]) -> Path:
    """Where the checkpoint of this name is shipped, there or not."""
    return PAPERS / config["model"]["paper"] / "checkpoints" / f"{name}.safetensors"


def missing(jobs: dict[str, list[str]]) -> list[str]:
    """The names whose shipped checkpoint is damaged or missing; those too large to ship among them."""
    found = []
    for name, overrides in jobs.items():
        if whole(shipped_path(name, config_of(overrides))):
            print(f"{name}: there already")
        else:
            found.append(name)
    return found


def train(name: str, overrides: list[str], device: torch.device) -> bool:
    """Train one checkpoint, beside the shipped one where that is whole; True if it passed its gate."""
    config = config_of(overrides)
    data = dataset_part(config["dataset"])
    recipe: Any = recipe_part(config["model"])  # one that trains
    store = Store(Path(config["cache_dir"]))
    if name in TOO_LARGE:
        found = recipe.obtain(data, config["seed"], store, device)
        print(f"{name}: accuracy {found.verification.accuracy:.4f}, {found.source}, kept in the store")
        return found.verification.passed
    shipped = shipped_path(name, config)
    again = whole(shipped)
    path = TRAINED / shipped.name if again else shipped
    begun = time.monotonic()
    verdict = recipe.train_to(path, data, config["seed"], device, store)["verification"]
    outcome = "passed" if verdict["passed"] else f"FAILED: {verdict['reason']}"
    print(
        f"{name}: accuracy {verdict['accuracy']}, worst group {min(verdict['groups'].values())}, "
        f"flips {verdict['flip_rate']}, {time.monotonic() - begun:.0f} s, {outcome}"
    )
    if again:
        print(f"{name}: {compared(path, shipped)}")
    elif not verdict["passed"]:
        set_aside(path)
    return bool(verdict["passed"])


def compared(path: Path, shipped: Path) -> str:
    """Whether a training gave the shipped weights."""
    new, old = read_card(path), read_card(shipped)
    if new["sha256"] == old["sha256"]:
        return "the same weights as shipped"
    accuracies = f"accuracy {new['verification']['accuracy']}, shipped {old['verification']['accuracy']}"
    return f"other weights than shipped ({accuracies}): see {path}"


def set_aside(path: Path) -> None:
    """Move a checkpoint that failed its gate to where no run looks."""
    folder = path.parent / "failed"
    folder.mkdir(exist_ok=True)
    for made in (path, path.with_suffix(".json")):
        made.replace(folder / made.name)
    print(f"kept in {folder}; model.weights=... model.accept_unverified=true explains it all the same")


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--missing", action="store_true", help="all that are damaged or missing")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args(words)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    jobs = catalogue()
    if args.list:
        print("\n".join(jobs))
        return 0
    try:
        for name in args.names:
            if name not in jobs:
                raise unknown("checkpoint", name, jobs)
        wanted = dict.fromkeys([*args.names, *(missing(jobs) if args.missing else [])])
        return 0 if all([train(name, jobs[name], device_of(args.device)) for name in wanted]) else 1
    except SalrunError as fault:
        print(f"train_models: {fault}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("train_models: interrupted; the same command goes on after the last whole epoch", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
