"""Re-initialised copies of a network, layer by layer in the order in which it computes (Adebayo et al. 2018)."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from salrun.errors import SalrunError, unknown
from salrun.models.classifier import Classifier
from salrun.rng import hash64


@torch.no_grad()
def execution_order(classifier: Classifier, probe: Tensor) -> list[str]:
    """Names of the layers that own parameters, first to last as the forward pass of `probe` (raw images) finishes them.

    A layer called several times stands at its last call: coming from the output, that is where one meets it. A layer
    never called itself, because its parent reads its weights, stands with that parent.
    """
    module = copy.deepcopy(classifier.module).eval()
    finished: list[str] = []
    for name, part in module.named_modules():
        part.register_forward_hook(lambda *_, name=name: finished.append(name))
    module(classifier.normalise(probe))
    place = {name: i for i, name in enumerate(finished)}

    def position(name: str) -> int:
        while name not in place:
            name = name.rpartition(".")[0]
        return place[name]

    owners = [name for name, part in module.named_modules() if any(True for _ in part.parameters(recurse=False))]
    return sorted(owners, key=position)


def reinitialised(classifier: Classifier, layers: Sequence[str], seed: int) -> Classifier:
    """A deep copy whose `layers` are drawn anew by their own `reset_parameters`; BatchNorm forgets its statistics too.

    Each layer's numbers depend on (seed, its name) alone, so a layer looks the same in every copy that resets it.
    """
    module = copy.deepcopy(classifier.module)
    parts = dict(module.named_modules())
    for name in layers:
        if name not in parts:
            raise unknown("layer", name, filter(None, parts), f"model '{classifier.name}'")
        _reset(parts[name], name, hash64(seed, "reinitialise", name), classifier.name)
    note = f"reinitialised({seed}: {', '.join(layers)})"
    copied = Classifier(
        module,
        layers=classifier.layers,
        name=f"{classifier.name} {note}",
        fingerprint=f"{classifier.fingerprint}|{note}",
    )
    copied.mean, copied.std, copied.training = classifier.mean, classifier.std, classifier.training
    return copied


def cascade(classifier: Classifier, probe: Tensor, seed: int) -> Iterator[tuple[str, Classifier]]:
    """Cascading randomisation, top-down: (layer, the classifier with that layer and all later ones re-initialised)."""
    order = execution_order(classifier, probe)
    for i in reversed(range(len(order))):
        yield order[i], reinitialised(classifier, order[i:], seed)


def independent(classifier: Classifier, probe: Tensor, seed: int) -> Iterator[tuple[str, Classifier]]:
    """Independent randomisation: (layer, the classifier with that layer alone re-initialised), first layer first."""
    for name in execution_order(classifier, probe):
        yield name, reinitialised(classifier, [name], seed)


def _reset(part: nn.Module, name: str, seed: int, model: str) -> None:
    reset = getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None)
    if reset is None:
        raise SalrunError(
            f"layer '{name}' ({type(part).__name__}) of model '{model}' owns parameters but has no reset_parameters(): "
            f"give it one, or name the layers to re-initialise without it"
        )
    device = next(part.parameters(recurse=False)).device
    # On the CPU, with its generator lent and given back: the same numbers on every device, none taken from the caller.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed & ((1 << 63) - 1))
        part.cpu()
        reset()
        part.to(device)
