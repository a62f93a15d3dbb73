"""Training that can be stopped at any moment and gives the same weights as if it had not been.

Every epoch is a pure function of (state at its start, seed, epoch number): the order of images comes from counters, the
dropout noise from a generator seeded per epoch, and the state is saved after each epoch.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from salrun.errors import SalrunError
from salrun.rng import Draws, generator, hash64
from salrun.store.tensors import load_state, save_state

log = logging.getLogger(__name__)

Model = TypeVar("Model", bound=nn.Module)
Loss = Literal["bce_logits", "cross_entropy", "keras_clipped"]
Precision = Literal["float32", "bfloat16"]


class TrainingImages(Protocol):
    """What training reads: ids of a split, and (images, labels) of some ids; uint8 images are divided by 255."""

    def ids(self, split: str) -> list[str]: ...
    def images(self, ids: list[str]) -> tuple[Tensor, Tensor]: ...


@dataclass
class Training:
    """How a model is trained. Defaults are the SMERF paper's (section 3.3), without its restarts."""

    loss: Loss = "bce_logits"
    optimizer: Literal["adam", "adamw"] = "adam"
    lr: float = 1e-4
    weight_decay: float = 0.0
    schedule: Literal["constant", "one_cycle"] = "constant"
    clip_norm: float | None = None  # largest norm of a step's gradient
    batch: int = 128
    epochs: int = 50
    epoch_images: int | None = None  # images per epoch, a fresh random subset; null: all
    stop_loss: float | None = None  # stop at once when a batch's or an epoch's mean loss falls below
    dead_loss: float | None = None  # a start whose epoch loss exceeds this is given up
    patience: int | None = None  # epochs without a better validation accuracy before stopping
    augment: Literal["none", "flip_shift"] = "none"
    shift: int = 4  # pixels, for flip_shift
    dropout: bool = True  # false: the network's dropout layers pass everything on
    # {eps, step, iterations, ramp}: every batch replaced by adversarial examples; `ramp`: share of all steps over which
    # eps and step grow to their full size, without which training from plain weights ends in a constant output
    pgd: dict[str, float] | None = None
    threshold: float | None = None  # train on until this validation accuracy, within `epochs`
    restarts: int = 1  # fresh initialisations tried before giving up
    channels_last: bool = True
    precision: Precision = "float32"  # bfloat16: of the network's passes; weights, loss and optimiser stay float32


@dataclass
class History:
    """One line per epoch, and why training ended."""

    epochs: list[dict[str, float]] = field(default_factory=list)
    ended: str = "all epochs done"
    seconds: float = 0.0
    start: int = 0


def loss_of(name: str, logits: Tensor, y: Tensor) -> Tensor:
    """Mean loss of a batch.

    `keras_clipped`: Keras' binary_crossentropy on linear outputs, clipped to [1e-7, 1-1e-7] (zero gradient outside).
    """
    if name == "cross_entropy":
        return F.cross_entropy(logits, y)
    hot = F.one_hot(y, logits.shape[1]).to(logits.dtype)
    if name == "bce_logits":
        return F.binary_cross_entropy_with_logits(logits, hot)
    if name == "keras_clipped":
        clipped = logits.clamp(1e-7, 1 - 1e-7)
        return -(hot * clipped.log() + (1 - hot) * (1 - clipped).log()).mean()
    raise SalrunError(f"training.loss must be bce_logits, cross_entropy or keras_clipped, got '{name}'")


def pgd_attack(
    model: nn.Module, x: Tensor, y: Tensor, loss: str, noise: Tensor, eps: float, step: float, iterations: int
) -> Tensor:
    """Projected gradient descent in the L-infinity ball (Madry et al. 2018): one random start, clipped to [0, 1].

    `noise` in [0, 1) gives the start, uniform in [-eps, eps].
    """
    adversary = (x + eps * (2 * noise - 1)).clamp(0, 1)
    for _ in range(int(iterations)):
        adversary.requires_grad_(True)
        (gradient,) = torch.autograd.grad(loss_of(loss, model(adversary), y), adversary)
        adversary = (adversary.detach() + step * gradient.sign()).clamp(0, 1)
        adversary = torch.max(torch.min(adversary, x + eps), x - eps)
    return adversary.detach()


def _augmented(x: Tensor, draws: Draws, shift: int) -> Tensor:
    """Random horizontal flip and shift by up to `shift` pixels (zero padding), from the images' own counters."""
    n, _, height, width = x.shape
    flip = draws.integer(2, "flip", 1)[:, 0].bool()
    offset = draws.integer(2 * shift + 1, "shift", 2)
    x = torch.where(flip.view(-1, 1, 1, 1), x.flip(-1), x)
    padded = F.pad(x, (shift,) * 4)
    rows = offset[:, 0, None] + torch.arange(height, device=x.device)
    columns = offset[:, 1, None] + torch.arange(width, device=x.device)
    image = torch.arange(n, device=x.device).view(-1, 1, 1)
    return padded.permute(0, 2, 3, 1)[image, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def _learning_rate(how: Training, step: int, total: int) -> float:
    """Constant, or one cycle: linear warm-up over 30% of the steps, cosine down to zero (Smith 2018)."""
    if how.schedule == "constant":
        return how.lr
    position = step / max(total, 1)
    if position < 0.3:
        return how.lr * max(position / 0.3, 0.04)
    return how.lr * 0.5 * (1 + math.cos(math.pi * (position - 0.3) / 0.7))


def _as_float(x: Tensor, device: torch.device, channels_last: bool) -> Tensor:
    x = x.to(device)
    x = x.float() / 255 if x.dtype == torch.uint8 else x
    return x.contiguous(memory_format=torch.channels_last) if channels_last else x


@torch.no_grad()
def predictions(
    model: nn.Module, data: TrainingImages, ids: list[str], device: torch.device, batch: int = 500
) -> tuple[Tensor, Tensor]:
    """Correct or not, and the largest softmax probability, per image in the order of `ids`."""
    model.eval()
    right, confidence = [], []
    for k in range(0, len(ids), batch):
        x, y = data.images(ids[k : k + batch])
        top, predicted = model(_as_float(x, device, False)).softmax(1).cpu().max(1)
        right.append(predicted == y)
        confidence.append(top)
    return torch.cat(right), torch.cat(confidence)


def accuracy(model: nn.Module, data: TrainingImages, ids: list[str], device: torch.device) -> float:
    """Share of correct answers."""
    return predictions(model, data, ids, device)[0].float().mean().item()


def fit(
    model: nn.Module,
    data: TrainingImages,
    how: Training,
    seed: int,
    device: torch.device,
    state: Path | None = None,
    name: str = "train",
    beat: Callable[[], None] = lambda: None,
) -> History:
    """Train `model` (raw images -> logits) in place; continue from `state` if that file is there and of this training.

    `beat` is called at every step; what it raises ends the training, which a later call goes on with.
    """
    ids = data.ids("train")
    per_epoch = min(how.epoch_images or len(ids), len(ids))
    steps_per_epoch = -(-per_epoch // how.batch)
    if how.channels_last:
        model.to(memory_format=torch.channels_last)
    trained = [p for p in model.parameters() if p.requires_grad]
    kind = torch.optim.AdamW if how.optimizer == "adamw" else torch.optim.Adam
    optimizer = kind(trained, lr=how.lr, weight_decay=how.weight_decay, eps=1e-7)
    history = History()
    first, best, best_weights = 0, -1.0, None
    job = {"how": asdict(how), "seed": seed, "images": len(ids)}
    if state is not None and state.exists():
        resumed = _restore(state, model, optimizer, job)
        if resumed is None:
            log.warning("%s: %s is of another recipe, seed or data: starting anew", name, state)
        else:
            first, history, best, best_weights = resumed
            log.info("%s: continuing after epoch %d", name, first)
    validation = data.ids("validation") if how.patience or how.threshold else []
    for epoch in range(first, how.epochs):
        begun = time.monotonic()
        order = Draws.of(seed, [f"epoch-{epoch}"]).permutation(len(ids), "order")[0][:per_epoch].tolist()
        ended = _epoch(
            model, data, [ids[i] for i in order], how, seed, epoch, optimizer, steps_per_epoch, device, name, beat
        )
        line = {"epoch": epoch, "loss": ended["loss"]}
        if validation:
            line["validation"] = accuracy(model, data, validation, device)
        history.epochs.append(line)
        history.seconds += time.monotonic() - begun
        log.info(
            "%s: epoch %d/%d %s",
            name,
            epoch + 1,
            how.epochs,
            " ".join(f"{k}={v:.4f}" for k, v in line.items() if k != "epoch"),
        )
        if validation and line["validation"] > best:
            best, best_weights = line["validation"], {k: v.clone() for k, v in model.state_dict().items()}
        stop = _stop(how, history, ended, line, best)
        if state is not None and not stop:
            _save(state, model, optimizer, job, epoch + 1, history, best, best_weights)
        if stop:
            history.ended = stop
            break
    if how.patience and best_weights is not None:
        model.load_state_dict(best_weights)
    model.eval()
    return history


def train(
    build: Callable[[int], Model],
    data: TrainingImages,
    how: Training,
    seed: int,
    device: torch.device,
    accepted: Callable[[Model], bool],
    state: Callable[[int], Path | None],
    name: str = "train",
) -> tuple[Model, History]:
    """Train from fresh starts, `build(0)`, `build(1)`, .., until one is accepted or `how.restarts` are used up."""
    for start in range(how.restarts):
        model = build(start).to(device)
        history = fit(model, data, how, seed, device, state(start), name)
        history.start = start
        if start + 1 == how.restarts or accepted(model):
            break
        log.info("%s: start %d not accepted (%s); trying another", name, start, history.ended)
    return model, history


# -- where training starts ---------------------------------------------------------------------------------------------


def fresh(arch: Callable[[], nn.Module], seed: int, start: int = 0, init: str = "torch") -> nn.Module:
    """A newly initialised network: torch's own initialisation or `glorot`, drawn by `seed`; `start` counts restarts."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator(seed, f"init/{start}").initial_seed())
        module = made(arch)
    if init == "glorot":
        glorot(module, generator(seed, f"init/{start}"))
    return module


def made(arch: Callable[[], nn.Module]) -> nn.Module:
    """The network; an error inside the user's code is told in one line."""
    name = getattr(getattr(arch, "func", arch), "__qualname__", str(arch))
    try:
        module = arch()
    except SalrunError:
        raise
    except Exception as fault:
        raise SalrunError(f"model.arch: {name} cannot be made: {type(fault).__name__}: {fault}") from fault
    if not isinstance(module, nn.Module):
        raise SalrunError(f"model.arch: {name} gives a {type(module).__name__}, not a torch.nn.Module")
    return module


def glorot(module: nn.Module, generator: torch.Generator) -> None:
    """Keras' default initialisation: Glorot-uniform kernels, zero biases."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight, generator=generator)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


# -- epochs ------------------------------------------------------------------------------------------------------------


def _set_training(model: nn.Module, how: Training) -> None:
    model.train()
    if not how.dropout:
        for module in model.modules():
            if isinstance(module, nn.modules.dropout._DropoutNd):
                module.eval()


def _stop(how: Training, history: History, ended: dict[str, float], line: dict[str, float], best: float) -> str:
    """Why training ends after this epoch; empty if it goes on."""
    if how.stop_loss is not None and (ended["stopped"] or ended["loss"] < how.stop_loss):
        return f"loss below {how.stop_loss}"
    if how.dead_loss is not None and ended["loss"] > how.dead_loss:
        return "dead start"
    if how.threshold is not None and line.get("validation", 0.0) >= how.threshold:
        return f"validation accuracy {how.threshold} reached"
    if how.patience is not None:
        scores = [e["validation"] for e in history.epochs]
        if len(scores) - 1 - scores.index(max(scores)) >= how.patience:
            return f"no better validation accuracy than {best:.4f} in {how.patience} epochs"
    return ""


def _epoch(
    model: nn.Module,
    data: TrainingImages,
    ids: list[str],
    how: Training,
    seed: int,
    epoch: int,
    optimizer: torch.optim.Optimizer,
    steps: int,
    device: torch.device,
    name: str,
    beat: Callable[[], None],
) -> dict[str, float]:
    _set_training(model, how)
    total, seen, stopped = 0.0, 0, 0.0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(hash64(seed, epoch, "dropout") & ((1 << 63) - 1))
        bar = tqdm(range(steps), desc=f"{name} epoch {epoch + 1}/{how.epochs}", disable=None, leave=False)
        for step in bar:
            chosen = ids[step * how.batch : (step + 1) * how.batch]
            x, y = data.images(chosen)
            x, y = _as_float(x, device, how.channels_last), y.to(device)
            draws = (
                Draws.of(seed, [f"{epoch}/{i}" for i in chosen], device) if how.augment != "none" or how.pgd else None
            )
            if how.augment == "flip_shift" and draws is not None:
                x = _augmented(x, draws, how.shift)
            if how.pgd and draws is not None:
                model.eval()
                strength = attack(how.pgd, (epoch * steps + step + 1) / (how.epochs * steps))
                x = pgd_attack(model, x, y, how.loss, draws.uniform("pgd", tuple(x.shape[1:])), **strength)
                _set_training(model, how)
            for group in optimizer.param_groups:
                group["lr"] = _learning_rate(how, epoch * steps + step, how.epochs * steps)
            with torch.autocast(device.type, torch.bfloat16, enabled=how.precision == "bfloat16"):
                logits = model(x)
            loss = loss_of(how.loss, logits.float(), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            if how.clip_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), how.clip_norm)
            optimizer.step()
            value = loss.item()
            total, seen = total + value * len(chosen), seen + len(chosen)
            bar.set_postfix(loss=f"{total / seen:.4f}")
            beat()
            if how.stop_loss is not None and value < how.stop_loss:
                stopped = 1.0
                break
    return {"loss": total / max(seen, 1), "stopped": stopped}


def attack(spec: dict[str, float], position: float = 1.0) -> dict[str, Any]:
    """The parameters of `pgd_attack` from a recipe's `pgd`, at this share of all training steps (see `ramp`)."""
    size = min(1.0, position / spec["ramp"]) if spec.get("ramp") else 1.0
    return {"eps": size * spec["eps"], "step": size * spec["step"], "iterations": int(spec["iterations"])}


# -- mid-training state ------------------------------------------------------------------------------------------------


def _save(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    job: dict[str, Any],
    epoch: int,
    history: History,
    best: float,
    best_weights: dict[str, Tensor] | None,
) -> None:
    tensors = {f"model/{k}": v for k, v in model.state_dict().items()}
    tensors |= {f"best/{k}": v for k, v in (best_weights or {}).items()}
    moments = optimizer.state_dict()["state"]
    tensors |= {f"adam/{i}/{k}": torch.as_tensor(v) for i, slot in moments.items() for k, v in slot.items()}
    meta = {"job": job, "epoch": epoch, "history": history.epochs, "seconds": history.seconds, "best": best}
    save_state(path, tensors, meta)


def _restore(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, job: dict[str, Any]
) -> tuple[int, History, float, dict[str, Tensor] | None] | None:
    """Epoch, history, best accuracy and its weights; None if the file is of another job."""
    tensors, meta = load_state(path)
    if meta.get("job") != job:
        return None
    part = lambda prefix: {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}  # noqa: E731
    model.load_state_dict(part("model/"))
    slots: dict[int, dict[str, Tensor]] = {}
    for key, value in part("adam/").items():
        index, field_name = key.split("/")
        slots.setdefault(int(index), {})[field_name] = value
    optimizer.load_state_dict({"state": slots, "param_groups": optimizer.state_dict()["param_groups"]})
    history = History(epochs=meta["history"], seconds=meta["seconds"])
    return meta["epoch"], history, meta["best"], part("best/") or None
