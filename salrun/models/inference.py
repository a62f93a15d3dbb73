"""Faster copies of a classifier: BatchNorm folded, attention with images first, channels last; one that only runs
forward compiled where it pays.

Every step proves itself on a probe: where the copy's probabilities (of a differentiable copy: its gradients too) would
be further from the exact ones (the network in float64) than a tolerance, or where the step fails, it is not taken and a
warning says so. With `numerics="fast"` the
copy computes in half precision (bfloat16) up to its last layer; that this is no matter is shown by the scores
themselves (`salrun.pipeline.numerics`), here it must only give the same answers.
"""

from __future__ import annotations

import copy
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from salrun.errors import SalrunError
from salrun.models.batch_first import images_first
from salrun.models.classifier import Classifier, Space

log = logging.getLogger(__name__)

SAME_ANSWERS = 0.75  # of the probe's images, whose class half precision must not change


@dataclass(frozen=True)
class Network:
    """How the copy's module is run. Compiled, it serves one batch size only, so that it compiles once."""

    module: nn.Module
    channels_last: bool = False
    dtype: torch.dtype | None = None  # what it computes in; none: what it is given
    tf32: bool = False  # whether a CUDA device may round the factors of float32 products to 10 bits
    compiled: Callable[[Tensor], Tensor] | None = None
    batch: int = 0
    compile_seconds: float = 0.0

    def __call__(self, z: Tensor) -> Tensor:
        with tf32_allowed() if self.tf32 else nullcontext():
            if self.dtype is None:
                return self._logits(z)
            return self._logits(z.to(self.dtype)).to(z.dtype)

    def _logits(self, z: Tensor) -> Tensor:
        if self.channels_last:
            z = z.contiguous(memory_format=torch.channels_last)
        if self.compiled is None:
            return self.module(z)
        parts = [self._part(part) for part in z.split(self.batch)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _part(self, z: Tensor) -> Tensor:
        """A batch more than half full is filled up with copies of its own images; a smaller one runs uncompiled."""
        missing = self.batch - len(z)
        if self.compiled is None or missing > len(z):
            return self.module(z)
        return self.compiled(torch.cat([z, z[:missing]]) if missing else z)[: len(z)]


class InferenceCopy(Classifier):
    """The forward pass of `original`; `gradients`: that of the input can be asked for.

    `steps` names what was done; it is in the fingerprint. Layers of a forward-only copy are read off the original
    (`exact`): here they may be folded into each other or compiled.
    """

    def __init__(self, original: Classifier, network: Network, steps: list[str], gradients: bool = False) -> None:
        fingerprint = f"{original.fingerprint}|{'+'.join(['inference', *steps])}"
        super().__init__(network.module, layers=original.layers, name=original.name, fingerprint=fingerprint)
        self.mean, self.std = original.mean, original.std
        self.eval()
        self.steps = tuple(steps)
        self.network = network
        self.gradients = gradients
        self._original = (original,)  # in a tuple it is no submodule
        self.frozen = True

    @property
    def exact(self) -> Classifier:
        return self if self.gradients and not self.reduced else self._original[0]

    @property
    def reduced(self) -> bool:
        """Whether it computes in half precision, or in TF32."""
        return self.network.dtype is not None or self.network.tf32

    @property
    def computes_in(self) -> str:
        """bfloat16, float16, tf32; float32 or float64 where it is not reduced."""
        if self.network.tf32 and self.network.dtype is None:
            return "tf32"
        return _word(self.network.dtype or self.mean.dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.normalise(x), "norm")

    def head(self, point: Tensor, space: Space) -> Tensor:
        with torch.set_grad_enabled(self.gradients and torch.is_grad_enabled()):
            return self.network(point) if space == "norm" else self.forward(point)


@dataclass(frozen=True)
class Trial:
    """The images (normalised) on which every step proves itself, and the probabilities it must keep there."""

    name: str
    images: Tensor
    truth: Tensor  # of the network in float64
    noise: float  # how far the network itself is from it
    tolerance: float
    slope: Trial | None = None  # the same for the gradients

    def agrees(self, network: Callable[[Tensor], Tensor], what: str) -> bool:
        """Whether every probability is within the tolerance, or four times the network's own noise.

        Gradients, where they are asked for, in the same way: relative to the largest of each image.
        """
        logits = self._logits(network, what)
        if logits is None:
            return False
        gap = _gap(_answers(logits), self.truth)
        if not gap <= max(self.tolerance, 4 * self.noise):
            log.warning("%s: not %s: a probability would be off by %.1e of itself", self.name, what, gap)
            return False
        log.info("%s: %s: probabilities within %.1e (original %.1e)", self.name, what, gap, self.noise)
        return self.slope is None or self.slope.gradients_agree(network, what)

    def gradients_agree(self, network: Callable[[Tensor], Tensor], what: str) -> bool:
        """Whether every gradient is within the tolerance, or four times the network's own noise, in a trial of them."""
        slopes = self._logits(lambda z: _slopes(network, z), what)
        if slopes is None:
            return False
        gap = _steepest(slopes, self.truth)
        if not gap <= max(self.tolerance, 4 * self.noise):
            log.info("%s: not %s: a gradient would be off by %.1e of the largest", self.name, what, gap)
            return False
        return True

    def answers(self, network: Callable[[Tensor], Tensor], what: str) -> bool:
        """Whether the logits are numbers, and the classes of most images the same."""
        logits = self._logits(network, what)
        if logits is None:
            return False
        if not logits.isfinite().all():
            log.warning("%s: not %s: a logit would be no finite number", self.name, what)
            return False
        same = float((logits.argmax(1) == self.truth.argmax(1)).double().mean())
        if same < SAME_ANSWERS:
            log.warning("%s: not %s: only %.0f%% of the probe would keep its class", self.name, what, 100 * same)
            return False
        gap = float((_answers(logits) - self.truth).abs().max())
        log.info("%s: %s: probabilities within %.1e, absolutely", self.name, what, gap)
        return True

    def _logits(self, network: Callable[[Tensor], Tensor], what: str) -> Tensor | None:
        """In float64; none where the step fails: a layout, a type or a compiler may be refused in any way."""
        try:
            return network(self.images).cpu().double()
        except Exception as fault:
            first_line = str(fault).strip().partition("\n")[0]
            log.warning("%s: not %s: %s: %s", self.name, what, type(fault).__name__, first_line)
            return None


@torch.no_grad()
def inference_copy(
    classifier: Classifier,
    probe: Tensor,
    compile: Literal["on", "off"] = "off",
    batch: int | None = None,
    tolerance: float = 1e-5,
    numerics: Literal["exact", "fast"] = "exact",
    gradients: bool = False,
) -> InferenceCopy:
    """A faster forward-only copy of `classifier`, whose probabilities on `probe` (raw images) agree to `tolerance`.

    `batch`: the batch size to compile for, by default the probe's. The tolerance is relative and holds for every class.
    Where the original's own rounding is coarser (a deep float32 network is 1e-5 off its float64 self), four times that
    is allowed.

    `numerics="fast"`: in half precision, where this device is faster in it, and what stays float32 in TF32 where it has
    that; `gradients`: differentiable, not compiled, no TF32.
    """
    if compile not in ("on", "off"):
        raise SalrunError(f"inference.compile must be on or off, got '{compile}'")
    probe = classifier.normalise(probe)
    module = copy.deepcopy(classifier.module).eval().requires_grad_(False)
    trial = Trial(classifier.name, probe, *_exact(module, probe, _probabilities, _gap), tolerance)
    accepted = trial.agrees
    network, steps = _laid_out(module, probe, trial)
    if numerics == "fast":
        other = _halved(network, probe, classifier.name)
        if other.dtype is not None and trial.answers(other, _word(other.dtype)):
            network, accepted = other, trial.answers
            steps.append(_word(other.dtype))
        other = replace(network, tf32=has_tf32(probe.device) and not gradients)
        if other.tf32 and trial.answers(other, "tf32"):
            network, accepted = other, trial.answers
            steps.append("tf32")
    if compile == "on" and not gradients:
        frozen = probe.device.type == "cpu"
        other = replace(network, compiled=_compiled(network.module, frozen), batch=batch or len(probe))
        begun = time.monotonic()
        if accepted(_filled(other), "compiled"):
            network = replace(other, compile_seconds=time.monotonic() - begun)
            steps += ["compiled", "frozen"] if frozen else ["compiled"]
    return InferenceCopy(classifier, network, steps, gradients)


@torch.no_grad()
def folded_copy(
    classifier: Classifier, probe: Tensor, keep: Collection[str] = (), tolerance: float = 1e-5
) -> Classifier:
    """The same network, faster there and back: BatchNorm folded, channels last; itself where no step proves itself.

    `keep`: layers whose outputs are read, and that no BatchNorm is folded into. Probabilities and gradients on `probe`
    (raw images) agree to `tolerance`, or to four times the original's own rounding.
    """
    probe = classifier.normalise(probe)
    module = copy.deepcopy(classifier.module).eval().requires_grad_(False)
    try:
        slope = Trial(classifier.name, probe, *_exact(module, probe, _slopes, _steepest), tolerance)
    except Exception:  # a network without gradients, or one that must not be copied: methods say so themselves
        return classifier
    trial = Trial(classifier.name, probe, *_exact(module, probe, _probabilities, _gap), tolerance, slope)
    network, steps = _laid_out(module, probe, trial, keep)
    return InferenceCopy(classifier, network, steps, gradients=True) if steps else classifier


def _laid_out(module: nn.Module, probe: Tensor, trial: Trial, keep: Collection[str] = ()) -> tuple[Network, list[str]]:
    """BatchNorms folded, attention with images first, channels last, as far as each proves itself; what was done."""
    module, steps = _folded(module, probe, trial.agrees, keep)
    attending = copy.deepcopy(module)
    if images_first(attending) and trial.agrees(attending, "images_first"):
        module, steps = attending, [*steps, "images_first"]
    if probe.ndim == 4:
        other = Network(copy.deepcopy(module).to(memory_format=torch.channels_last), channels_last=True)
        if trial.agrees(other, "channels_last"):
            return other, [*steps, "channels_last"]
    return Network(module), steps


def fast_dtype(device: torch.device) -> torch.dtype | None:
    """The half precision that a device computes faster in than in float32; None where it has none."""
    if device.type == "cpu":
        told = (getattr(torch.cpu, f"_is_{unit}_supported", bool) for unit in ("avx512_bf16", "amx_tile"))
        return torch.bfloat16 if any(supported() for supported in told) else None
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else None
    return torch.float16 if device.type == "mps" else None


def has_tf32(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


@contextmanager
def tf32_allowed() -> Iterator[None]:
    """Float32 products and convolutions of CUDA in TF32; as before afterwards."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = True
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _halved(network: Network, probe: Tensor, name: str) -> Network:
    """The network in half precision, but for the layer that gives the logits: its output would lose the last digits.

    The same network where the device has no such precision.
    """
    dtype = fast_dtype(probe.device)
    if dtype is None:
        log.warning("%s: stays %s: no bfloat16 here", name, _word(probe.dtype))
        return network
    module = copy.deepcopy(network.module).to(dtype)
    last = _last_linear(network.module, probe)
    if last is not None:
        layer = module.get_submodule(last)
        layer.to(probe.dtype).load_state_dict(network.module.get_submodule(last).state_dict())
        layer.register_forward_pre_hook(lambda layer, inputs: (inputs[0].to(layer.weight.dtype),))
    return replace(network, module=module, dtype=dtype)


def _last_linear(module: nn.Module, probe: Tensor) -> str | None:
    """The name of the linear layer whose output the logits are."""
    outputs: dict[str, Tensor] = {}

    def note(name: str) -> Callable[..., None]:
        def hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            outputs[name] = output

        return hook

    linear = {name: layer for name, layer in module.named_modules() if isinstance(layer, nn.Linear)}
    handles = [layer.register_forward_hook(note(name)) for name, layer in linear.items()]
    try:
        logits = module(probe)
    finally:
        for handle in handles:
            handle.remove()
    return next((name for name, output in outputs.items() if output is logits), None)


def _compiled(module: nn.Module, frozen: bool) -> Callable[[Tensor], Tensor]:
    """`frozen`: the weights are constants of the program, laid out for the processor once."""
    options: dict[str, Any] = {"freezing": True} if frozen else {}
    return torch.compile(module, dynamic=False, options=options)


def _filled(network: Network) -> Callable[[Tensor], Tensor]:
    """The probe repeated to a full batch: alone it may be too small for the compiled program."""

    return lambda z: network(filled(z, network.batch))[: len(z)]


def filled(z: Tensor, batch: int) -> Tensor:
    """The images, repeated where they are fewer than a batch."""
    copies = -(-batch // len(z))
    return z.repeat(copies, *[1] * (z.ndim - 1))[: max(batch, len(z))]


def _probabilities(network: Callable[[Tensor], Tensor], probe: Tensor) -> Tensor:
    return _answers(network(probe).cpu().double())


def _answers(logits: Tensor) -> Tensor:
    """The probabilities; where there is one output, that."""
    return logits.softmax(1) if logits.shape[1] > 1 else logits


def _slopes(network: Callable[[Tensor], Tensor], probe: Tensor) -> Tensor:
    """The gradient of each image's largest logit at the image, in float64."""
    with torch.enable_grad():
        point = probe.detach().requires_grad_(True)
        return torch.autograd.grad(network(point).amax(1).sum(), point)[0].cpu().double()


def _exact(
    module: nn.Module,
    probe: Tensor,
    quantity: Callable[[Callable[[Tensor], Tensor], Tensor], Tensor],
    gap: Callable[[Tensor, Tensor], float],
) -> tuple[Tensor, float]:
    """A quantity in float64, and how far the module's own is from it; its own where it has no float64."""
    plain = quantity(module, probe)
    try:
        exact = quantity(copy.deepcopy(module).cpu().double(), probe.cpu().double())
    except RuntimeError:  # a float32 constant inside
        return plain, 0.0
    return exact, gap(plain, exact)


def _gap(p: Tensor, truth: Tensor) -> float:
    """The largest difference of a probability, relative to itself."""
    return float(((p - truth).abs() / truth).max())


def _steepest(slopes: Tensor, truth: Tensor) -> float:
    """The largest difference of a gradient, relative to the largest gradient of its image."""
    each = truth.abs().flatten(1).amax(1).clamp(min=1e-300)
    return float(((slopes - truth).abs().flatten(1).amax(1) / each).max())


def _folded(
    module: nn.Module,
    probe: Tensor,
    agrees: Callable[[Callable[[Tensor], Tensor], str], bool],
    keep: Collection[str] = (),
) -> tuple[nn.Module, list[str]]:
    """A copy with every BatchNorm folded that directly follows a convolution or a linear layer, and what was done.

    Not into the layers `keep`. Where folding all of them changes the result, each is tried alone.
    """
    pairs = _pairs(module, probe)
    wanted = [(layer, norm) for layer, norm in pairs if layer not in keep]
    if not wanted:
        return module, []
    folded = copy.deepcopy(module)
    for layer, norm in wanted:
        _fold(folded, layer, norm)
    if not agrees(folded, f"folded at once ({len(wanted)} BatchNorms)"):
        folded, tried, wanted = module, wanted, []
        for layer, norm in tried:
            candidate = copy.deepcopy(folded)
            _fold(candidate, layer, norm)
            if agrees(candidate, f"folded ({norm} into {layer})"):
                folded = candidate
                wanted.append((layer, norm))
    left = [norm for layer, norm in pairs if (layer, norm) not in wanted]
    return folded, [" but ".join(["folded", *left])] if wanted else []


def _pairs(module: nn.Module, probe: Tensor) -> list[tuple[str, str]]:
    """(layer, BatchNorm) where, in the forward pass of `probe`, the norm received that layer's untouched output.

    Both must be called exactly once: a reused layer feeds others too. Norms are checked to be the affine map they seem.
    """
    calls: Counter[str] = Counter()
    pairs: list[tuple[str, str]] = []
    handles = []

    def made(name: str) -> Callable[..., None]:
        def hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            calls[name] += 1
            if not isinstance(layer, nn.Linear) or output.ndim == 2:
                # The tensor carries its maker; an in-place change of it in between shows in its version.
                output._salrun_maker = (name, output._version)  # type: ignore[attr-defined]

        return hook

    def met(name: str) -> Callable[..., None]:
        def hook(norm: _BatchNorm, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            calls[name] += 1
            maker, version = getattr(inputs[0], "_salrun_maker", (None, None))
            if maker is None or version != inputs[0]._version or norm.running_mean is None:
                return
            scale, shift = (t.view(1, -1, *[1] * (output.ndim - 2)) for t in _affine(norm))
            expected = (inputs[0].double() * scale + shift).to(output.dtype)
            if torch.allclose(output, expected, rtol=1e-4, atol=1e-5):
                pairs.append((maker, name))

        return hook

    for name, part in module.named_modules():
        if isinstance(part, (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)) and "weight" in part._parameters:
            handles.append(part.register_forward_hook(made(name)))
        elif isinstance(part, _BatchNorm):
            handles.append(part.register_forward_hook(met(name)))
    try:
        module(probe)
    finally:
        for handle in handles:
            handle.remove()
    return [(layer, norm) for layer, norm in pairs if calls[layer] == calls[norm] == 1]


def _affine(norm: _BatchNorm) -> tuple[Tensor, Tensor]:
    """scale, shift in float64: norm(x) = scale x + shift."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = (norm.running_var.double() + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * norm.weight.double()
    shift = -norm.running_mean.double() * scale
    return scale, shift if norm.bias is None else shift + norm.bias.double()


def _fold(module: nn.Module, layer_name: str, norm_name: str) -> None:
    """W' = scale W, b' = scale b + shift; the norm becomes the identity."""
    layer, norm = module.get_submodule(layer_name), module.get_submodule(norm_name)
    assert isinstance(norm, _BatchNorm)
    scale, shift = _affine(norm)
    weight: Tensor = layer.weight  # type: ignore[assignment]
    bias: Tensor | None = layer.bias  # type: ignore[assignment]
    if bias is not None:
        shift = shift + scale * bias.double()
    folded = weight.double() * scale.view(-1, *[1] * (weight.ndim - 1))
    layer.weight = nn.Parameter(folded.to(weight.dtype), requires_grad=False)
    layer.bias = nn.Parameter(shift.to(weight.dtype), requires_grad=False)
    for parent in list(module.modules()):
        for name, child in parent._modules.items():
            if child is norm:
                parent._modules[name] = nn.Identity()
