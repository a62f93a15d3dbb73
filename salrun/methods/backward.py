"""One mechanism for every modified backward pass: the operators of a network, swapped while it runs.

A `TorchFunctionMode` sees each operator the network applies to a tensor that depends on the image, whether a module, a
function or a tensor method calls it, in place or not, once or many times. A rule set says what happens to the signal on
its way back through each kind of operator; autograd then carries the signal, sums it where a tensor is used twice, and
routes it through reshaping. The module itself is never touched. An operator without a rule is an error, and so is one
the mode cannot see (scripted code, a custom autograd function): nothing falls back to the plain gradient silently.

In-place operators are computed out of place, because rules look at what was there before; the overwritten tensor then
stands for the new value wherever the network uses it again.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from salrun.errors import SalrunError
from salrun.methods.chunking import gather_chunked
from salrun.models.classifier import check_targets, not_a_number, pick

if TYPE_CHECKING:
    from salrun.models.classifier import Classifier, Space

Start = Literal["value", "one"]

# Kind of operator -> the names torch gives its members (an in-place `name_` counts as `name`).
_MEMBERS = {
    "affine": "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d linear matmul mm addmm",
    "relu": "relu relu6",
    "clip": "clamp clip clamp_min threshold _threshold hardtanh",
    "activation": "leaky_relu prelu elu selu celu gelu silu mish hardswish hardsigmoid sigmoid logsigmoid tanh "
    "softplus softsign hardshrink softshrink tanhshrink exp expm1 log log1p sqrt rsqrt square abs pow erf sin cos "
    "reciprocal __rdiv__ __rpow__ clamp_max",
    "max_pool": "max_pool1d max_pool2d max_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d",
    "max": "amax max maximum max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices",
    "average": "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d mean sum "
    "interpolate upsample",
    "batch_norm": "batch_norm",
    "norm": "layer_norm group_norm instance_norm local_response_norm normalize rms_norm",
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
_SIZED = ("view", "view_as", "reshape", "reshape_as", "expand", "expand_as", "unflatten", "squeeze", "repeat", "tile")
_JOINED = ("cat", "concat", "concatenate", "stack", "hstack", "vstack")
_POINTWISE = ("scale", "add", "shape")  # what may lie between the image and its first layer

_CONV = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_CONV_TRANSPOSE = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
_LANE = "_salrun_lane"
_BLOCK = 1 << 17  # elements, few enough to stay in a processor's cache


class Step(NamedTuple):
    """An operator's value and, given the signal at it, the signals at `inputs`."""

    value: Tensor
    inputs: list[Tensor]
    back: Callable[[Tensor], tuple[Tensor, ...]]


Rule = Callable[["Op"], Step]


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
            return F.linear(x, weight, bias)
        return torch.convolution(x, weight, bias, *self.conv)

    def transpose(self, signal: Tensor, weight: Tensor, x: Tensor) -> Tensor:
        """W^T signal, in the shape of the layer's input `x`."""
        if self.conv is None:
            return signal @ weight
        mask = [True, False, False]
        return torch.ops.aten.convolution_backward(signal, x, weight, None, *self.conv, mask)[0]

    def pull(self, signal: Tensor, x: Tensor) -> Tensor:
        """W^T signal without W: the scale goes to the signal, which is overwritten."""
        if self.scale is not None:
            signal.mul_(self.scale.view(-1, *[1] * (signal.dim() - 2)))
        return self.transpose(signal, self.kernel, x)

    def scaled(self, scale: Tensor, shift: Tensor) -> Affine:
        """scale * (W x + b) + shift per output channel: this layer with a batch norm folded in."""
        bias = shift if self.bias is None else self.bias * scale + shift
        return Affine(self.kernel, bias, self.conv, scale if self.scale is None else self.scale * scale)


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
    reference: Any = None  # the operator's value for the reference image, once it is known

    def __call__(self) -> Any:
        return self.func(*self.args, **self.kwargs)

    @property
    def x(self) -> Tensor:
        return self.operands[0]

    def at(self, place: Callable[[Tensor], Tensor]) -> Any:
        """The operator applied to `place(t)` for each operand t, the constants as they are."""
        chosen = {id(t): place(t) for t in self.operands}
        args, kwargs = _map((self.args, self.kwargs), lambda t: chosen.get(id(t), t))
        return self.func(*args, **kwargs)

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)

    def depends(self, value: Any) -> bool:
        return any(value is t for t in self.operands)


@dataclass
class Rules:
    """A rule per kind of operator; a kind that is not named has none.

    `folds`: remember which affine layer made a tensor, so that a rule can see a layer together with what follows it.
    """

    name: str
    rules: dict[str, Rule]
    folds: bool = False


def ordinary(op: Op) -> Step:
    """The operator's own gradient: the engine leaves the operator to autograd."""
    raise NotImplementedError


def unchanged(op: Op) -> Step:
    """The signal passes as it is."""
    return Step(op(), [op.x], lambda signal: (signal,))


class _Attach(torch.autograd.Function):
    """A value computed elsewhere, tied to the inputs it came from by a rule's way back."""

    @staticmethod
    def forward(ctx: Any, back: Callable[[Tensor], tuple[Tensor, ...]], value: Tensor, *inputs: Tensor) -> Tensor:
        ctx.back = back
        return value.detach()

    @staticmethod
    def backward(ctx: Any, signal: Tensor) -> Any:
        return None, None, *ctx.back(signal)


class Tape(TorchFunctionMode):
    """One forward pass of `module` under `rules`."""

    def __init__(self, module: nn.Module, rules: Rules) -> None:
        super().__init__()
        self.module = module
        self.rules = rules
        self.pair: Tensor | None = None  # row b of the signal belongs to row pair[b] of the references (None: b)
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

    def where(self) -> str:
        """The innermost module on the call stack."""
        names = {id(module): name for name, module in self.module.named_modules()}
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
        if rule is None:
            return self._look(op)
        if rule is ordinary:
            value = op()
        else:
            with torch.no_grad():
                step = rule(op)
            value = _Attach.apply(step.back, step.value, *step.inputs)
        with torch.no_grad():
            if op.reference is None and self.known(op.x).reference is not None:
                op.reference = self._beside(op)
            self._mark(op, value)
        return value

    def _beside(self, op: Op) -> Any:
        """The operator's value for the reference.

        A reference that all images share has one row and broadcasts. Reshaping may name the number of images, and what
        it is joined with may have as many rows (a class token), so there it is spread out first, and gathered again
        where the copy was avoided (stride 0).
        """
        beside_constants = len(list(_tensors((op.args, op.kwargs)))) > len(op.operands)
        if op.name not in _SIZED and not (op.name in _JOINED and beside_constants):
            return op.at(self.reference)
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
        raise self.refuse(op)

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
    run = Tape(model.module, rules)
    with torch.inference_mode(False), torch.enable_grad():
        point = _laid_out(point).requires_grad_(True)
        reference = None if reference is None else _laid_out(reference)
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
    with torch.enable_grad():
        leaf = x.detach().requires_grad_(True)
        y = f(leaf)
    return y.detach(), lambda s: torch.autograd.grad(y, leaf, s, retain_graph=True)[0]


def by_blocks(f: Callable[..., tuple[Tensor, ...]], x: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """f(x, *others), each of the form of x, for an f that goes element by element; the others may have one row for all.

    On a processor a piece at a time, so small that what f makes on its way stays in the cache.
    """
    if x.device.type != "cpu" or x.dim() < 2 or any(t.shape[1:] != x.shape[1:] for t in others):
        return f(x, *others)
    last = _is_laid_out(x)
    rows = [(t.movedim(1, -1) if last else t).flatten(1) for t in (x, *others)]
    width = max(1, _BLOCK // max(1, len(x)))
    values: list[Tensor] = []
    for start in range(0, max(1, rows[0].shape[1]), width):
        found = f(*(t[:, start : start + width] for t in rows))
        values = values or [torch.empty_like(rows[0]) for _ in found]
        for value, piece in zip(values, found, strict=True):
            value[:, start : start + width] = piece
    if last:
        return tuple(value.view(x.movedim(1, -1).shape).movedim(-1, 1) for value in values)
    return tuple(value.view(x.shape) for value in values)


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
        op.kind = "bilinear" if op.affine is None else "affine"
    elif op.kind == "relu" and op.name == "relu6":
        op.cap = 6.0
    elif op.kind == "clip":
        low, high = _clip_range(op)
        op.kind = "relu" if low == 0 else "activation"
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
        op.kind = "quotient" if quotient else "product" if both else "scale"
    elif op.kind == "max" and any(isinstance(a, Tensor) and not op.depends(a) for a in op.args):
        op.kind = "max with a constant"
    if op.kind == "activation" and len(op.operands) > 1:
        op.kind = "unknown"


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
    """The layer and its input; None where the weights, too, depend on the image."""
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
        if op.depends(x) and not op.depends(weight) and weight.dim() != 2:
            raise op.run.refuse(op, "the constant factor must be a matrix")
        weight = weight.mT if weight.dim() >= 2 else weight
    if len(op.operands) > 1:
        return None
    if not op.depends(x):
        raise op.run.refuse(op, "the image's side must be the left factor")
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
