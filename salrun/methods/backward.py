"""One mechanism for every modified backward pass: the operators of a network, swapped while it runs.

A `TorchFunctionMode` sees each operator the network applies to a tensor that depends on the image, whether a module, a
function or a tensor method calls it, in place or not, once or many times. A rule set says what happens to the signal on
its way back through each kind of operator; autograd then carries the signal, sums it where a tensor is used twice, and
routes it through reshaping. The module itself is never touched. An operator without a rule is an error, and so is one
the mode cannot see (scripted code, a custom autograd function): nothing falls back to the plain gradient silently.

In-place operators are computed out of place, because rules look at what was there before; the overwritten tensor then
stands for the new value wherever the network uses it again. Attention, in whichever way a network calls it, is taken
apart into products, sums and a softmax unless the rule set has a rule for it as a whole (`composed.py`).
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from salrun.errors import SalrunError
from salrun.methods.chunking import chunks, gather_chunked
from salrun.methods.composed import COMPOSED
from salrun.methods.dense import dense
from salrun.models.classifier import check_targets, not_a_number, pick

if TYPE_CHECKING:
    from salrun.models.classifier import Classifier, Space

Start = Literal["value", "one"]

# Kind of operator -> the names torch gives its members (an in-place `name_` counts as `name`).
_MEMBERS = {
    "affine": "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d linear matmul mm bmm addmm",
    "relu": "relu relu6",
    "clip": "clamp clip clamp_min threshold _threshold hardtanh",
    "activation": "leaky_relu prelu elu selu celu gelu silu mish hardswish tanh softsign hardshrink softshrink "
    "tanhshrink",
    "gate": "sigmoid hardsigmoid",
    "function": "logsigmoid softplus exp expm1 log log1p sqrt rsqrt square abs pow erf sin cos reciprocal __rdiv__ "
    "__rpow__ clamp_max",
    "max_pool": "max_pool1d max_pool2d max_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d",
    "max": "amax max maximum max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices",
    "average": "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d mean sum "
    "interpolate upsample",
    "batch_norm": "batch_norm",
    "layer_norm": "layer_norm rms_norm",
    "norm": "group_norm instance_norm local_response_norm normalize",
    "attention": "scaled_dot_product_attention",
    "composed": "multi_head_attention_forward baddbmm",
    "einsum": "einsum",
    "softmax": "softmax",
    "log_softmax": "log_softmax",
    "add": "add sub subtract rsub __rsub__",
    "scale": "mul multiply div divide true_divide neg negative",
    "dropout": "dropout dropout1d dropout2d dropout3d alpha_dropout feature_dropout feature_alpha_dropout",
    "constant": "zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty new_tensor",
    "shape": "flatten unflatten view view_as reshape reshape_as permute transpose swapaxes movedim t T mT squeeze "
    "unsqueeze contiguous clone detach expand expand_as repeat tile repeat_interleave __getitem__ select narrow "
    "index_select chunk split split_with_sizes tensor_split unbind cat concat concatenate stack hstack vstack flip "
    "roll pad pixel_shuffle pixel_unshuffle channel_shuffle unfold to type type_as float double half bfloat16 cpu "
    "cuda requires_grad_",
}
_KINDS = {name: kind for kind, names in _MEMBERS.items() for name in names.split()}
_VIEWS = ("view", "view_as", "reshape", "reshape_as", "flatten", "unflatten", "contiguous")
_RESHAPED = ("view", "view_as", "reshape", "reshape_as", "flatten", "unflatten")
_SIZED = (*_RESHAPED, "expand", "expand_as", "squeeze", "repeat", "tile")
_JOINED = ("cat", "concat", "concatenate", "stack", "hstack", "vstack")
_POINTWISE = ("scale", "add", "shape")  # what may lie between the image and its first layer

_CONV = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_CONV_TRANSPOSE = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
_LANE = "_salrun_lane"
_BLOCK = 1 << 17  # elements, few enough to stay in a processor's cache
_FEW = 4  # channels


class Step(NamedTuple):
    """An operator's value and, given the signal at it, the signals at `inputs`."""

    value: Tensor
    inputs: list[Tensor]
    back: Callable[[Tensor], tuple[Tensor, ...]]


Rule = Callable[["Op"], Step | None]  # None: this call of a composed operator is taken apart


@dataclass
class Lane:
    """What is known of a tensor that depends on the image."""

    run: Tape
    node: Any = None  # its grad_fn, as the engine made it
    now: Tensor | None = None  # what an in-place operator made of it
    shares: Tensor | None = None  # whose memory it would share, had that not been laid out anew
    overwritten: weakref.ref[Tensor] | None = None  # who of all that share its memory was written to
    reference: Tensor | None = None  # the same activation for the references: a row for each image, or one for all
    first: bool = False  # it is the image itself, up to scaling, shifting and reshaping
    box: tuple[Tensor, Tensor] | None = None  # the least and the greatest image, in the same form
    affine: tuple[Affine, Tensor] | None = None  # the layer that made it, and that layer's input
    positive: bool = False  # it has no negative entries, whatever the image
    gate: str = ""  # it is what a "gate" (sigmoid) or a "softmax" made, up to reshaping and constant factors


@dataclass(frozen=True)
class Affine:
    """z = W x + b: a dense layer, or a convolution with the arguments `conv` of torch.convolution.

    W_ij = kernel_ij scale_j, without `scale` the kernel itself.
    """

    kernel: Tensor
    bias: Tensor | None = None
    conv: tuple[Any, ...] | None = None
    scale: Tensor | None = None

    @cached_property
    def weight(self) -> Tensor:
        """W, made when a rule asks for it."""
        if self.scale is None:
            return self.kernel
        return self.kernel * self.scale.view(-1, *[1] * (self.kernel.dim() - 1))

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """The layer with other parameters."""
        if self.conv is None:
            return dense(x, weight, bias)
        return torch.convolution(x, weight, bias, *self.conv)

    def transpose(self, signal: Tensor, weight: Tensor, x: Tensor) -> Tensor:
        """W^T signal, in the shape of the layer's input `x`."""
        if self.conv is None:
            return dense(signal, weight.mT)
        if self.few(x):
            return _gathered(signal, weight, x, *self.conv[:3])
        mask = [True, False, False]
        return torch.ops.aten.convolution_backward(signal, x, weight, None, *self.conv, mask)[0]

    def few(self, x: Tensor) -> bool:
        """Whether it is a convolution on a processor of so few channels as an image has."""
        if self.conv is None or self.kernel.dim() != 4 or x.dim() != 4 or x.device.type != "cpu":
            return False
        return self.kernel.shape[1] <= _FEW and self.conv[3:] == (False, [0, 0], 1)

    def quicker(self, x: Tensor) -> bool:
        """Whether `transpose` may take less time than torch's own gradient."""
        return self.few(x) if self.conv else x.device.type == "cpu"

    def pull(self, signal: Tensor, x: Tensor) -> Tensor:
        """W^T signal without W: the scale goes to the signal, which is overwritten."""
        if self.scale is not None:
            signal.mul_(self.scale.view(-1, *[1] * (signal.dim() - 2)))
        return self.transpose(signal, self.kernel, x)

    def scaled(self, scale: Tensor, shift: Tensor) -> Affine:
        """scale * (W x + b) + shift per output channel: this layer with a batch norm folded in."""
        bias = shift if self.bias is None else self.bias * scale + shift
        return Affine(self.kernel, bias, self.conv, scale if self.scale is None else self.scale * scale)


@dataclass(frozen=True)
class Bilinear:
    """y = f(a, b), linear in each factor: an elementwise product, a product of matrices, an einsum.

    `to_a(s, b)` is the signal at a that a signal s at y gives, b standing for the other factor; `to_b(s, a)` likewise.
    """

    a: Tensor
    b: Tensor
    to_a: Callable[[Tensor, Tensor], Tensor]
    to_b: Callable[[Tensor, Tensor], Tensor]


@dataclass
class Op:
    """One call of an operator, made functional, with at least one operand that depends on the image."""

    run: Tape
    name: str
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    operands: list[Tensor]
    in_place: bool = False  # the network asked for its first operand to be overwritten
    kind: str | None = None
    cap: float = float("inf")  # where a ReLU saturates (ReLU6)
    terms: list[tuple[Tensor, float]] = field(default_factory=list)  # operands and coefficients of a sum
    affine: tuple[Affine, Tensor] | None = None
    bilinear: Bilinear | None = None
    reference: Any = None  # the operator's value for the reference image, once it is known

    def __call__(self) -> Any:
        return self.func(*self.args, **self.kwargs)

    @property
    def x(self) -> Tensor:
        return self.operands[0]

    def at(self, place: Callable[[Tensor], Tensor], constant: Callable[[Tensor], Tensor] = lambda t: t) -> Any:
        """The operator applied to `place(t)` for each operand t and `constant(t)` for every other tensor."""
        chosen = {id(t): place(t) for t in self.operands}
        args, kwargs = _map((self.args, self.kwargs), lambda t: chosen[id(t)] if id(t) in chosen else constant(t))
        return self.func(*args, **kwargs)

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)

    def depends(self, value: Any) -> bool:
        return any(value is t for t in self.operands)


@dataclass
class Rules:
    """A rule per kind of operator; a kind that is not named has none.

    `folds`: remember which affine layer made a tensor, so that a rule can see a layer together with what follows it.
    `why`: the reason for which a kind has no rule, where there is one to tell.
    """

    name: str
    rules: dict[str, Rule]
    folds: bool = False
    why: dict[str, str] = field(default_factory=dict)


def ordinary(op: Op) -> Step:
    """The operator's own gradient: the engine leaves the operator to autograd."""
    raise NotImplementedError


def unchanged(op: Op) -> Step:
    """The signal passes as it is."""
    return Step(op(), [op.x], lambda signal: (signal,))


def transposed(op: Op) -> Step:
    """The gradient of a layer by `Affine.transpose`."""
    layer, x = op.affine  # type: ignore[misc]
    if layer.conv is not None:
        return Step(op(), [x], lambda signal: (layer.transpose(signal, layer.kernel, x),))
    return Step(layer(x, layer.kernel, layer.bias), [x], lambda signal: (dense(signal, layer.kernel.mT),))  # without x


class _Attach(torch.autograd.Function):
    """A value computed elsewhere, tied to the inputs it came from by a rule's way back."""

    @staticmethod
    def forward(ctx: Any, back: Callable[[Tensor], tuple[Tensor, ...]], value: Tensor, *inputs: Tensor) -> Tensor:
        ctx.back = back
        return value.detach()

    @staticmethod
    def backward(ctx: Any, signal: Tensor) -> Any:
        return None, None, *ctx.back(signal)


class Activations:
    """What the operators of a network give for a reference, in the order of a forward pass; it may serve another pass.

    As long as that asks for the same operators with the same weights: one that goes another way gets none.
    """

    def __init__(self) -> None:
        self.known: list[tuple[tuple[str, int], Any]] = []
        self.next = 0

    def of(self, op: Op, compute: Callable[[], Any]) -> Any:
        """The next operator's."""
        name = op.name, 0 if op.affine is None else op.affine[0].kernel.data_ptr()
        if self.next == len(self.known) or self.known[self.next][0] != name:
            del self.known[self.next :]
            self.known.append((name, compute()))
        self.next += 1
        return self.known[self.next - 1][1]


class Tape(TorchFunctionMode):
    """One forward pass of `module` under `rules`."""

    def __init__(self, module: nn.Module, rules: Rules, kept: Activations | None = None) -> None:
        super().__init__()
        self.module = module
        self.rules = rules
        self.beside = kept or Activations()
        self.pair: Tensor | None = None  # row b of the signal belongs to row pair[b] of the references (None: b)
        self.compared: list[Tensor] | None = None  # what `paired` was asked for, for who wants to know
        self.written: list[Lane] = []

    def lane(self, t: Tensor) -> Lane | None:
        lane = getattr(t, _LANE, None)
        return lane if lane is not None and lane.run is self else None

    def known(self, t: Tensor) -> Lane:
        """The lane of a tensor that depends on the image."""
        return getattr(t, _LANE)

    def enter(self, t: Tensor, **facts: Any) -> Lane:
        lane = Lane(self, t.grad_fn, **facts)
        setattr(t, _LANE, lane)
        return lane

    def reference(self, t: Tensor) -> Tensor:
        """The activation `t` has for the reference."""
        reference = self.known(t).reference
        if reference is None:
            raise RuntimeError("this rule compares with a reference, and the run has none")
        return reference

    def paired(self, reference: Tensor) -> Tensor:
        """Something of the references (an activation, an index), for each row of the signal."""
        if self.compared is not None:
            self.compared.append(reference)
        if self.pair is None:
            return reference
        if len(reference) != len(self.pair):
            raise SalrunError(f"{self.rules.name} needs the batch to stay the first axis throughout the model")
        if _is_laid_out(reference):
            return reference.movedim(1, -1)[self.pair].movedim(-1, 1)
        return reference[self.pair]

    def refuse(self, op: Op | str, why: str | None = None) -> SalrunError:
        """The error for an operator: which, in which layer, under which rule set."""
        name = op if isinstance(op, str) else op.name
        what = f"{self.rules.name} has no rule for the operator '{name}'"
        return SalrunError(f"{what} in {self.where()}" + (f": {why}" if why else ""))

    @cached_property
    def names(self) -> dict[int, str]:
        return {id(module): name for name, module in self.module.named_modules()}

    def where(self) -> str:
        """The innermost module on the call stack."""
        names = self.names
        frame = sys._getframe(1)
        while frame is not None:
            owner = frame.f_locals.get("self")
            if isinstance(owner, nn.Module) and names.get(id(owner)):
                return f"layer '{names[id(owner)]}' ({type(owner).__name__})"
            frame = frame.f_back  # type: ignore[assignment]
        return f"the model ({type(self.module).__name__})"

    def close(self) -> None:
        """Forget overwritten tensors: they and their new values hold each other alive."""
        for lane in self.written:
            lane.now = None
        self.written.clear()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = list(_tensors((args, kwargs)))
        if not given:
            return func(*args, **kwargs)
        name, functional, in_place = _read(func)
        if not any([self._depends(t, name) for t in given]):
            with torch.no_grad():  # what comes of parameters alone is a constant
                return func(*args, **kwargs)
        target = given[0] if in_place else None
        args, kwargs = _map((args, kwargs), self._current)
        position = _inplace_position(func)
        if position is not None and (args[position] if len(args) > position else kwargs.get("inplace")):
            target = given[0]
            args = args[:position] + (False,) * (len(args) > position) + args[position + 1 :]
            kwargs = {key: value for key, value in kwargs.items() if key != "inplace"}
        operands = [t for t in _tensors((args, kwargs)) if self.lane(t) is not None]
        op = Op(self, name, functional, args, kwargs, operands, target is not None)
        value = self._apply(op)
        if target is None or value is self._current(target):
            return value
        return self._overwrite(target, value)

    def _depends(self, t: Tensor, name: str) -> bool:
        lane = self.lane(t)
        known = t.grad_fn is lane.node if lane is not None else t.is_leaf
        if t.requires_grad and not known:
            raise self.refuse(name, "its operand comes from code that cannot be seen (scripted or a custom function)")
        if lane is None:
            return False
        base = self.lane(self._base(t))
        if base is not None and base.overwritten is not None and base.overwritten() is not t:
            raise self.refuse(name, "it reads memory that was overwritten in place through another view")
        return True

    def _current(self, t: Tensor) -> Tensor:
        lane = self.lane(t)
        return t if lane is None or lane.now is None else lane.now

    def _base(self, t: Tensor) -> Tensor:
        """The tensor whose memory `t` looks at, in the network as it was written."""
        lane = self.lane(t)
        below = t._base if t._base is not None or lane is None else lane.shares
        return t if below is None else self._base(below)

    def _overwrite(self, target: Tensor, value: Tensor) -> Tensor:
        lane = self.lane(target) or self.enter(target)
        lane.now = value
        base = self._base(target)
        (self.lane(base) or self.enter(base)).overwritten = weakref.ref(target)
        self.written.append(lane)
        return target

    def _apply(self, op: Op) -> Any:
        _classify(op)
        if op.kind == "dropout":
            return op.x
        if op.kind == "constant":
            return op()
        if op.kind not in (None, "shape") and not all(t.is_floating_point() for t in op.operands):
            raise self.refuse(op, "it computes with a mask or an index that depends on the image")
        rule: Rule | None = ordinary if op.kind == "shape" else self.rules.rules.get(op.kind or "")
        if rule is None and op.name not in COMPOSED:
            return self._look(op)
        if rule is ordinary and op.kind == "affine" and op.affine is not None and op.affine[0].quicker(op.affine[1]):
            rule = transposed
        if rule is ordinary:
            value = op()
        else:
            with torch.no_grad():
                step = None if rule is None else rule(op)
            if step is None:
                with self:
                    return COMPOSED[op.name](*op.args, **op.kwargs)
            value = _Attach.apply(step.back, step.value, *step.inputs)
        with torch.no_grad():
            if op.reference is None and self.known(op.x).reference is not None:
                op.reference = self.beside.of(op, lambda: self._beside(op, value))
            self._mark(op, value)
        return value

    def _beside(self, op: Op, value: Any) -> Any:
        """The operator's value for the reference.

        A reference that all images share has one row and broadcasts. Reshaping may name the number of images, and what
        it is joined with may have as many rows: if these are all the same (a class token) one of them is taken.
        Otherwise the reference is spread out first, and gathered again where the copy was avoided (stride 0).
        """
        references = [self.reference(t) for t in op.operands]
        constants = [t for t in _tensors((op.args, op.kwargs)) if not op.depends(t)] if op.name in _JOINED else []
        same = all(r.shape == t.shape for r, t in zip(references, op.operands, strict=True))
        if same or (op.name not in _SIZED and not constants):
            return op.at(self.reference)
        if all(len(r) == 1 for r in references):
            if op.name in _RESHAPED and len(value) == len(op.x):  # each row by itself
                return references[0].reshape(1, *value.shape[1:])
            if op.argument(1, "dim", 0) != 0 and constants and all(len(t) == 1 or t.stride(0) == 0 for t in constants):
                return op.at(self.reference, lambda t: t[:1])
        spread = op.at(lambda t: self.reference(t).contiguous().expand(t.shape))
        return _map(spread, lambda v: v[:1] if v.stride(0) == 0 else v)

    def _look(self, op: Op) -> Any:
        """An operator without a rule may only ask (for a shape, a comparison), not compute."""
        if op.kind is None:
            with torch.no_grad():
                answer = op()
            tensors = list(_tensors(answer))
            if not any(t.is_floating_point() for t in tensors) and (answer is not None or op.name == "grad"):
                for t in tensors:
                    self.enter(t)
                return answer
        raise self.refuse(op, self.rules.why.get(op.kind or ""))

    def _mark(self, op: Op, value: Any) -> None:
        lanes = [self.known(t) for t in op.operands]
        first = op.kind in _POINTWISE and all(lane.first for lane in lanes)
        corners: list[Any] = [None, None]
        if first and lanes[0].box is not None:
            corners = [op.at(partial(self._corner, side)) for side in range(2)]
        outputs = list(_tensors(value))
        beside = [list(_tensors(v)) if v is not None else [None] * len(outputs) for v in (op.reference, *corners)]
        for t, reference, low, high in zip(outputs, *beside, strict=True):
            if op.depends(t):  # e.g. `contiguous` of what is contiguous
                continue
            box = None if low is None else (torch.minimum(low, high), torch.maximum(low, high))
            affine = op.affine if self.rules.folds else None
            lane = self.enter(t, reference=reference, first=first, box=box, affine=affine)
            lane.positive = _positive(op, lanes)
            lane.gate = _gate(op, lanes)
            lane.shares = op.x if op.name in _VIEWS and not op.x.is_contiguous() and _is_laid_out(op.x) else None

    def _corner(self, side: int, t: Tensor) -> Tensor:
        box = self.known(t).box
        return t if box is None else box[side]


@dataclass
class Trace:
    """A finished forward pass: its outputs, and the way back."""

    run: Tape
    point: Tensor
    output: Tensor

    def pull(self, seed: Tensor, pair: Tensor | None = None, last: bool = True) -> Tensor:
        """The signal at the input, given the signal `seed` at the output."""
        self.run.pair = pair
        with torch.inference_mode(False):
            signal = torch.autograd.grad(self.output, self.point, seed, retain_graph=not last)[0]
        return not_a_number(signal, (seed * self.output).sum(1))


def trace(
    model: Classifier,
    point: Tensor,
    rules: Rules,
    space: Space,
    reference: Tensor | None = None,
    box: tuple[Tensor, Tensor] | None = None,
    head: Callable[[Tensor], Tensor] = lambda logits: logits,
) -> Trace:
    """Run the network on `point` (in `space`) under `rules`, beside it on `reference` where one is given.

    `box`: the least and the greatest image, for rules that know the domain of the input. `head` is applied to logits.
    """
    with torch.inference_mode(False), torch.enable_grad():
        point = _laid_out(point).requires_grad_(True)
        reference = None if reference is None else _laid_out(reference)
        run = Tape(model.module, rules, _kept(model, point, space, reference))
        box = None if box is None else (_laid_out(box[0]), _laid_out(box[1]))
        run.enter(point, first=True, reference=reference, box=box)
        try:
            with run:
                output = head(model.head(point, space))
            output = run._current(output) if isinstance(output, Tensor) else output
        finally:
            run.close()
    lane = run.lane(output) if isinstance(output, Tensor) else None
    if lane is None or lane.node is not output.grad_fn or not output.requires_grad or output.dim() != 2:
        raise SalrunError(
            f"{rules.name} needs a model whose output is a (batch, classes) tensor computed from the image with "
            f"operators that torch can see; model '{model.name}' gives {_describe(output)}"
        )
    return Trace(run, point, output)


def _kept(model: Classifier, point: Tensor, space: Space, reference: Tensor | None) -> Activations | None:
    """The activations of the last reference, where it is that one again and nobody changes the network."""
    if not model.frozen or reference is None or len(reference) > 1:
        return None
    settings = space, point.shape, point.dtype, point.device
    last: Any = model.beside
    if last is None or last[0] != settings or not torch.equal(last[1], reference):
        last = model.beside = (settings, reference, Activations())
    last[2].next = 0
    return last[2]


def explain(
    model: Classifier,
    x: Tensor,
    target: Tensor,
    rules: Rules,
    space: Space,
    start: Callable[[Tensor], Tensor],
    chunk: int | None,
    box: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """The signal at the input when `start(y_c)` enters at the target's logit and zero at the others."""
    check_targets(x, target)

    def compute(part: slice) -> Tensor:
        corners = None if box is None else (box[0][part], box[1][part])
        run = trace(model, model.enter(x[part], space), rules, space, box=corners)
        value = pick(run.output.detach(), target[part])
        return run.pull(one_hot(run.output, target[part]) * start(value).unsqueeze(1))

    return gather_chunked(compute, len(x), chunk)


def starts(name: Start) -> Callable[[Tensor], Tensor]:
    """What enters at the target's logit y_c: its value, or 1."""
    return torch.ones_like if name == "one" else (lambda value: value)


def one_hot(output: Tensor, target: Tensor) -> Tensor:
    return torch.zeros_like(output).scatter_(1, target.view(-1, 1), 1.0)


def pullback(f: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """f(x), and the map that takes a signal s at f(x) to J^T s at x."""
    y, pull = pullbacks(f, x)
    return y, lambda s: pull(s)[0]


def pullbacks(f: Callable[..., Tensor], *points: Tensor) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, ...]]]:
    """f(*points), and the map that takes a signal s at it to J^T s at each point."""
    with torch.enable_grad():
        leaves = [point.detach().requires_grad_(True) for point in points]
        y = f(*leaves)
    return y.detach(), lambda s: torch.autograd.grad(y, leaves, s, retain_graph=True)


def by_blocks(
    f: Callable[..., object], x: Tensor, *others: Tensor, results: int = 1, over: bool = False
) -> tuple[Tensor, ...]:
    """What f(*results, x, *others) writes into its results, for an f that goes element by element.

    All have the form of x, but the others may have one row for all. On a processor a piece at a time, so small that
    what f makes on its way stays in the cache. `over`: the first result overwrites x.
    """
    if x.device.type != "cpu" or x.dim() < 2 or any(t.shape[1:] != x.shape[1:] for t in others):
        whole = tuple(x if over and not k else torch.empty_like(x) for k in range(results))
        f(*whole, x, *others)
        return whole
    last = _is_laid_out(x)
    flat = [(t.movedim(1, -1) if last else t).flatten(1) for t in (x, *others)]
    values = tuple(flat[0] if over and not k else torch.empty_like(flat[0]) for k in range(results))
    if flat[0].shape[1] <= _BLOCK:  # of whole images: memory is read in one go
        for some in few_images(flat[0]):
            f(*(rows(t, some) for t in (*values, *flat)))
    else:
        for some in chunks(flat[0].shape[1], max(1, _BLOCK // max(1, len(x)))):
            f(*(t[:, some] for t in (*values, *flat)))
    if last:
        return tuple(value.view(x.movedim(1, -1).shape).movedim(-1, 1) for value in values)
    return tuple(value.view(x.shape) for value in values)


def by_images(f: Callable[..., object], x: Tensor, *others: Tensor) -> Tensor:
    """What f(result, x, *others) writes into its result, of the form of x, for an f that takes each image by itself.

    The others may have one row for all. On a processor a few images at a time, as `by_blocks`.
    """
    value = torch.empty_like(x)
    for some in few_images(x):
        f(*(rows(t, some) for t in (value, x, *others)))
    return value


def few_images(x: Tensor) -> Iterator[slice]:
    """All images of `x`, on a processor a few at a time."""
    return chunks(len(x), max(1, _BLOCK // max(1, x[:1].numel())) if x.device.type == "cpu" else None)


def rows(t: Tensor, some: slice) -> Tensor:
    """Those of some images; t may have one row for all."""
    return t if len(t) == 1 else t[some]


def _gathered(
    signal: Tensor, weight: Tensor, x: Tensor, stride: list[int], padding: list[int], dilation: list[int]
) -> Tensor:
    """W^T signal of a convolution: one product of matrices, then what each place of the windows gets is added there.

    A half to a fifth of the time of torch's, which works on 16 channels at least.
    """
    n, _, *grid = signal.shape
    _, channels, *size = weight.shape
    given = weight.flatten(1).mT @ signal.movedim(1, -1).flatten(0, 2).mT
    given = given.view(channels, *size, n, *grid)
    padded = given.new_zeros(channels, n, *(side + 2 * p for side, p in zip(x.shape[2:], padding, strict=True)))
    for i, j in product(*map(range, size)):
        down, right = (
            slice(d * k, d * k + s * (g - 1) + 1, s) for d, k, s, g in zip(dilation, (i, j), stride, grid, strict=True)
        )
        padded[:, :, down, right] += given[:, i, j]
    top, left = padding
    return padded[:, :, top : top + x.shape[2], left : left + x.shape[3]].transpose(0, 1)


def _laid_out(image: Tensor) -> Tensor:
    """A copy with the channels last: the layout in which a processor's convolutions are fastest, there and back."""
    last = image.dim() == 4 and image.device.type == "cpu"
    return image.detach().clone(memory_format=torch.channels_last if last else torch.contiguous_format)


def _is_laid_out(t: Tensor) -> bool:
    return t.dim() == 4 and t.is_contiguous(memory_format=torch.channels_last)


def _describe(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)


def _map(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return type(value)(_map(item, change) for item in value)
    if isinstance(value, dict):
        return {key: _map(item, change) for key, item in value.items()}
    return value


@cache
def _inplace_position(func: Any) -> int | None:
    """Where a function of torch.nn.functional takes its argument `inplace`."""
    code = getattr(func, "__code__", None)
    if code is None or "inplace" not in code.co_varnames[: code.co_argcount]:
        return None
    return code.co_varnames.index("inplace")


@cache
def _read(func: Any) -> tuple[str, Callable[..., Any], bool]:
    """An operator's name, its out-of-place form, and whether it writes into its first operand."""
    name = getattr(func, "__name__", str(func))
    if name == "__get__":  # a property such as x.T
        return getattr(func.__self__, "__name__", name), func, False
    base = name[:-1]
    if name.endswith("_") and not name.endswith("__") and base in _KINDS:
        functional = next(getattr(home, base) for home in (torch, F, Tensor) if hasattr(home, base))
        return base, functional, True
    return name, func, False


def _classify(op: Op) -> None:
    """Find the operator's kind, and read off its arguments what the rules of that kind need."""
    op.kind = _KINDS.get(op.name)
    if op.name in ("view", "view_as"):  # what is one piece as the network was written need not be one as laid out here
        op.func = getattr(Tensor, op.name.replace("view", "reshape"))
    if op.kind == "affine":
        op.affine = _affine(op)
        if op.affine is None and op.name.startswith("conv"):
            op.kind = "filter"
        elif op.affine is None and op.name == "addmm":
            op.kind = "unknown"
        elif op.affine is None:
            op.kind = "bilinear" if len(op.operands) > 1 else "linear_map"
    elif op.kind == "einsum":
        factors = len(list(_tensors((op.args, op.kwargs))))
        op.kind = "linear_map" if len(op.operands) == 1 else "bilinear" if factors == 2 else "unknown"
    elif op.kind == "relu" and op.name == "relu6":
        op.cap = 6.0
    elif op.kind == "clip":
        low, high = _clip_range(op)
        op.kind = "relu" if low == 0 else "function"
        op.cap = high
    elif op.kind == "batch_norm":
        if op.argument(5, "training", False):
            raise op.run.refuse(op, "it is in training mode, where images of a batch mix; call model.eval()")
        op.affine = _folded(op)
    elif op.kind == "dropout":
        if op.argument(2, "training", True) and op.argument(1, "p", 0.5) > 0:
            raise op.run.refuse(op, "it is in training mode; call model.eval()")
    elif op.kind == "add":
        a, b = op.args[0], op.argument(1, "other")
        alpha = op.kwargs.get("alpha", 1)
        signs = {"add": (1, alpha), "rsub": (-alpha, 1), "__rsub__": (-1, 1)}.get(op.name, (1, -alpha))
        op.terms = [(t, sign) for t, sign in zip((a, b), signs, strict=True) if op.depends(t)]
    elif op.kind == "scale" and len(op.args) > 1 and op.depends(op.args[1]):
        both = op.depends(op.args[0])
        quotient = op.name not in ("mul", "multiply")
        op.kind = "quotient" if quotient else "bilinear" if both else "scale"
    elif op.kind == "max" and any(isinstance(a, Tensor) and not op.depends(a) for a in op.args):
        op.kind = "max with a constant"
    if op.kind in ("activation", "function") and len(op.operands) > 1:
        op.kind = "unknown"
    if op.kind == "bilinear":
        op.bilinear = _bilinear(op)


def _bilinear(op: Op) -> Bilinear:
    a, b = op.operands
    if op.name in ("mul", "multiply"):
        return Bilinear(a, b, lambda s, v: (s * v).sum_to_size(a.shape), lambda s, v: (s * v).sum_to_size(b.shape))
    if op.name == "einsum":
        f = partial(op.func, op.args[0])
        return Bilinear(
            a, b, lambda s, v: pullback(lambda t: f(t, v), a)[1](s), lambda s, v: pullback(lambda t: f(v, t), b)[1](s)
        )
    if min(a.dim(), b.dim()) < 2:
        raise op.run.refuse(op, "both factors must be matrices")
    if b.stride(-2) == 1:  # keys of attention: what goes back to them comes out in one piece

        def to_b(s: Tensor, v: Tensor) -> Tensor:
            return (s.mT @ v).mT
    else:

        def to_b(s: Tensor, v: Tensor) -> Tensor:
            return v.mT @ s

    return Bilinear(a, b, lambda s, v: (s @ v.mT).sum_to_size(a.shape), lambda s, v: to_b(s, v).sum_to_size(b.shape))


def _gate(op: Op, lanes: list[Lane]) -> str:
    """Which kind of gate made the operator's value, up to reshaping and constant factors."""
    if op.kind in ("gate", "softmax"):
        return op.kind
    kinds = {lane.gate for lane in lanes}
    return kinds.pop() if op.kind in ("shape", "scale") and len(kinds) == 1 else ""


def _positive(op: Op, lanes: list[Lane]) -> bool:
    """Whether the operator's value has no negative entries, whatever the image."""
    if op.kind == "relu":
        return True
    if op.kind == "add" and (len(op.terms) < 2 or min(sign for _, sign in op.terms) < 0):
        return False
    keeps_sign = op.kind in ("max_pool", "average", "max", "add", "shape")
    return keeps_sign and op.name not in ("pad", "interpolate") and all(lane.positive for lane in lanes)


def _clip_range(op: Op) -> tuple[Any, Any]:
    """[low, high] of a clamp-like operator; low = 0 only where values below become 0."""
    if op.name in ("threshold", "_threshold"):
        plain = op.argument(1, "threshold") == 0 and op.argument(2, "value") == 0
        return (0, float("inf")) if plain else (None, None)
    if op.name == "clamp_min":
        low, high = op.argument(1, "min"), None
    elif op.name == "hardtanh":
        low, high = op.argument(1, "min_val", -1.0), op.argument(2, "max_val", 1.0)
    else:
        low, high = op.argument(1, "min"), op.argument(2, "max")
    low = None if isinstance(low, Tensor) else low
    return low, float("inf") if high is None else high


def _affine(op: Op) -> tuple[Affine, Tensor] | None:
    """The layer and its input; None where the weights, too, depend on the image, or are no matrix on its right."""
    if op.name.startswith("conv"):
        return _convolution(op)
    if op.name == "linear":
        x, weight, bias = op.argument(0, "input"), op.argument(1, "weight"), op.argument(2, "bias")
    elif op.name == "addmm":
        bias, x, weight = op.argument(0, "input"), op.argument(1, "mat1"), op.argument(2, "mat2").mT
        if op.kwargs.get("beta", 1) != 1 or op.kwargs.get("alpha", 1) != 1:
            raise op.run.refuse(op, "only with alpha = beta = 1")
    else:
        x, weight, bias = op.args[0], op.argument(1, "other"), None
        if weight is None:
            weight = op.kwargs["mat2"]
        if not op.depends(x) or weight.dim() != 2:
            return None
        weight = weight.mT
    if len(op.operands) > 1 or not op.depends(x):
        return None
    return Affine(weight.detach(), None if bias is None else bias.detach()), x


def _convolution(op: Op) -> tuple[Affine, Tensor] | None:
    transposed = op.name.startswith("conv_transpose")
    given = dict(zip(_CONV_TRANSPOSE if transposed else _CONV, op.args, strict=False)) | op.kwargs
    x, weight, bias = given["input"], given["weight"], given.get("bias")
    if len(op.operands) > 1 or not op.depends(x):
        return None
    n = weight.dim() - 2
    stride, dilation = _each(given.get("stride", 1), n), _each(given.get("dilation", 1), n)
    padding = given.get("padding", 0)
    if padding == "same":  # lopsided for an even kernel, so done beforehand
        total = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
        sides = [side for t in reversed(total) for side in (t // 2, t - t // 2)]
        x = op.run.__torch_function__(F.pad, (), (x, sides))
    padding = 0 if isinstance(padding, str) else padding
    out = _each(given.get("output_padding", 0), n)
    conv = (stride, _each(padding, n), dilation, transposed, out, given.get("groups", 1))
    op.func, op.args, op.kwargs, op.operands = torch.convolution, (x, weight, bias, *conv), {}, [x]
    return Affine(weight.detach(), None if bias is None else bias.detach(), conv), x


def _each(value: Any, n: int) -> list[int]:
    return [value] * n if isinstance(value, int) else [int(v) for v in value] * (n if len(value) == 1 else 1)


def batch_norm_parts(op: Op) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(mean, scale, shift, beta) of y = scale (x - mean) + beta = scale x + shift, per channel."""
    mean, var = op.argument(1, "running_mean"), op.argument(2, "running_var")
    gamma, beta = op.argument(3, "weight"), op.argument(4, "bias")
    scale = torch.rsqrt(var + op.argument(7, "eps", 1e-5))
    scale = scale if gamma is None else scale * gamma.detach()
    beta = torch.zeros_like(mean) if beta is None else beta.detach()
    return mean, scale, beta - scale * mean, beta


def _folded(op: Op) -> tuple[Affine, Tensor] | None:
    """The preceding layer with this batch norm folded in, where one precedes."""
    x = op.argument(0, "input")
    made_by = op.run.known(x).affine
    if made_by is None:
        return None
    layer, source = made_by
    if layer.conv is None and x.dim() != 2:
        return None
    if layer.conv is not None and layer.conv[3]:
        return None
    _, scale, shift, _ = batch_norm_parts(op)
    return layer.scaled(scale, shift), source


def layer_norm_parts(op: Op) -> tuple[tuple[int, ...], Tensor | None, bool, float]:
    """(axes, gain, centred, eps) of y = gain (x - mean) / sqrt(var + eps) + shift; an RMS norm is not centred."""
    x, shape, gain = op.argument(0, "input"), op.argument(1, "normalized_shape"), op.argument(2, "weight")
    centred = op.name == "layer_norm"
    eps = op.argument(4, "eps", 1e-5) if centred else op.argument(3, "eps")
    axes = tuple(range(-len(shape), 0))
    return axes, None if gain is None else gain.detach(), centred, torch.finfo(x.dtype).eps if eps is None else eps
