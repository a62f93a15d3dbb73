"""What methods and metrics are lent, watched: who spoils it for the others is named before anything is stored."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from salrun.errors import SalrunError, named, replacing
from salrun.surroundings import Surroundings

ROWS = 1021  # of a checksum; prime, so that numbers that change places change rows
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass
class Lent:
    """Something that several parts read: tensors, and whatever else must stay as it is."""

    what: str
    tensors: Callable[[], Sequence[Tensor]]
    others: Callable[[], object] = lambda: None
    role: str = ""  # the model that it belongs to; none: all models' parts are lent it
    seen: list[Tensor] = field(init=False)  # kept alive: none can be replaced by another of the same id
    state: object = field(init=False)
    sums: list[Tensor] | None = None  # once a user's part is about to get it

    def __post_init__(self) -> None:
        self.seen = list(self.tensors())
        self.state = self._look()

    def _look(self) -> object:
        return [
            (id(t), t.data_ptr(), version(t)) if torch.is_tensor(t) else id(t) for t in self.tensors()
        ], self.others()

    def add_up(self) -> None:
        """Know the numbers themselves, once."""
        self.sums = self.sums or [checksum(t) for t in self.seen]

    def spoilt(self, to_the_number: bool) -> bool:
        """Whether it was changed; `to_the_number`: also behind the back of the version counters."""
        try:
            if self._look() != self.state:
                return True
        except Exception:  # there is not even anything to look at
            return True
        return to_the_number and any(
            not torch.equal(known, checksum(t)) for known, t in zip(self.sums or [], self.seen, strict=False)
        )


class Guard:
    """Watches what is lent by the version counters of tensors, which every change in place advances.

    A user's part may go around them (`x.data`, `x.numpy()`) and reach anything: after its calls checksums of the
    numbers are compared too, and what belongs to every model; after our own, what belongs to the model at work.
    """

    def __init__(self) -> None:
        self._kept: list[Lent] = []
        self._of_tile: list[Lent] = []
        self._at_work: list[tuple[str, bool, str]] = []  # who, a user's or not, with which model; the innermost last
        self._around: Surroundings | None = None  # once a user's part is about to be called

    def lend(self, what: str, role: str, tensors: Callable[[], Sequence[Tensor]]) -> None:
        """Watch tensors of the open tile."""
        self._of_tile.append(Lent(what, tensors, role=role))

    def keep(self, what: str, *tensors: Tensor) -> None:
        """Watch tensors as long as the run."""
        self._kept.append(Lent(what, lambda: tensors))

    def keep_model(self, role: str, model: nn.Module) -> None:
        """Watch weights, buffers, modes and hooks of a model."""
        self._kept.append(Lent("the model", lambda: _weights(model), lambda: _anatomy(model), role))

    def close(self) -> None:
        """Forget the tile."""
        self._of_tile.clear()

    @contextmanager
    def call(self, who: str, users: bool, role: str, *given: Tensor) -> Iterator[None]:
        """Around a call of a part with the model `role`; `given`: what it alone is lent. Raises SalrunError if it
        spoils anything, or if it is a user's and raises."""
        self.check()
        own = Lent("what it was given", lambda: given), Lent("torch's settings", tuple, _numerics)
        if users:
            self._around = self._around or Surroundings()
            for lent in (*self._kept, *self._of_tile, *own):
                lent.add_up()
        self._at_work.append((who, users, role))
        try:
            with named(who, self._around) if users else nullcontext():
                yield
            self.check(*own)
        finally:
            self._at_work.pop()

    def check(self, *more: Lent) -> None:
        """Raise if what is lent was spoilt by the part at work, if any is."""
        if not self._at_work:
            return
        who, users, role = self._at_work[-1]
        if users and self._around and (replaced := self._around.mend()):
            raise replacing(who, replaced)
        for lent in (*self._kept, *self._of_tile, *more):
            if (users or lent.role in ("", role)) and lent.spoilt(users):
                raise SalrunError(
                    f"{who} changes {lent.what}, which others read after it: let it work on a copy (x.clone(), "
                    f"copy.deepcopy(model)); nothing of this was stored"
                )


def version(tensor: Tensor) -> int:
    """How often a tensor was changed in place; those of inference mode, which cannot be, do not count."""
    return 0 if tensor.is_inference() else tensor._version


def checksum(tensor: Tensor) -> Tensor:
    """Sums of a tensor's bits, row by row, and what is left over."""
    plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    data = plain.detach().contiguous().view(-1).view(torch.uint8)
    data = data.clone() if data.storage_offset() % 8 else data
    each = len(data) // (8 * ROWS)
    whole = 8 * ROWS * each
    return torch.cat([data[:whole].view(torch.int64).view(ROWS, each).sum(1), data[whole:].long()])


def _weights(model: nn.Module) -> list[Tensor]:
    held = (t for m in model.modules() for t in (*m._parameters.values(), *m._buffers.values()))
    return [tensor for tensor in held if tensor is not None and tensor.layout is torch.strided]


def _anatomy(model: nn.Module) -> list[object]:
    return [(id(m), m.training, "forward" in vars(m), [len(vars(m)[h]) for h in HOOKS]) for m in model.modules()]


def _numerics() -> tuple[object, ...]:
    """What torch computes by, for the whole process."""
    layers, cudnn, matmul = nn.modules.module, torch.backends.cudnn, torch.backends.cuda.matmul
    return (
        *(torch.get_default_dtype(), torch.get_default_device(), torch.get_float32_matmul_precision()),
        *(torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")),
        *(torch.get_num_threads(), torch.backends.mkldnn.enabled, torch.are_deterministic_algorithms_enabled()),
        *(cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32, matmul.allow_tf32),
        bool(torch.full((), 1e-40) * 1),  # whether the smallest numbers are 0
        *(len(hooks) for name, hooks in vars(layers).items() if re.fullmatch(r"_global_\w+_hooks", name)),
    )
