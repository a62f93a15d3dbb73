"""Area over the perturbation curve (Samek et al. 2017), as Tomsett et al. 2020 evaluate it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from salrun.errors import SalrunError
from salrun.metrics.perturbation import answer, curve, flagged, shared_rank, substrate
from salrun.models.classifier import Classifier
from salrun.ranges import Above, AtLeast
from salrun.types import OK, Metric, Scene, Score
from salrun.views import map_flags

TEN = 10  # orders that are drawn and kept at a time
SUBSTRATES: dict[str, Literal["grey", "random_rgb", "black", "blur"]] = {
    "mean": "grey",
    "random_rgb": "random_rgb",
    "black": "black",
    "blur": "blur",
}


@dataclass
class AOPC(Metric):
    """AOPC(L) = 1/(L+1) sum_{k=0..L} [f(x^(0)) - f(x^(k))], x^(k) the image with its first k pixels replaced.

    f is the softmax probability of the class explained, fixed over k (`output: max_probability` takes the top class
    of each step instead). A replaced pixel takes the data's mean colour, a random one that is the same for all methods
    and orders, black, or its colour in the blurred image. One pass gives every L: score `<perturbation>_L<L>`, and the
    curve f(x^(k)), k = 0..steps, comes with the largest L.

    With `n_random` > 0 the baseline of Tomsett et al. comes along, computed once for all methods: as many random
    pixel orders, each the same for every image. `<perturbation>_L<L>_random` is the image's mean over the orders (the
    mean curve with the largest L); `.._orderings` is their standard deviation, with AOPC(L) of each order as its
    curve, from which the interval over orders follows. The store keeps the orders in tens: who asks for more of the
    same images and model draws the rest.

    `random_error: e` stops early, image by image: after every ten orders an image is done if for every L the standard
    error of its mean over the orders, s_L / sqrt(n), is at most e times the standard deviation over the run's methods
    of their AOPC(L) on that image. `n_random` stays the most that is drawn, as for a run of one method, which has no
    such deviation. `<perturbation>_orders` is the number n of orders drawn, the curve of `.._orderings` NaN beyond it.
    What it decides by belongs to the image, so neither tile-mates nor shards matter; the methods of the run do.
    """

    perturbations: list[Literal["mean", "random_rgb", "black", "blur"]] = field(
        default_factory=lambda: ["mean", "random_rgb"]
    )
    levels: list[Annotated[int, AtLeast(1)]] = field(default_factory=lambda: [20, 40, 60, 80, 100])
    pixels_per_step: Annotated[int, AtLeast(1)] = 1
    divide_by: Literal["L+1", "L"] = "L+1"
    output: Literal["probability", "max_probability"] = "probability"
    ties: Literal["random", "raster", "raster_reversed"] = "random"
    n_random: Annotated[int, AtLeast(0)] = 0
    random_error: Annotated[float, Above(0)] | None = None

    ascending: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"model"})
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    source: ClassVar[str] = "Samek et al. 2017, TNNLS 28(11); Tomsett et al. 2020, AAAI"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.levels or not self.perturbations:
            raise SalrunError("aopc: levels and perturbations must name at least one each, got none")

    @property
    def steps(self) -> int:
        return max(self.levels)

    def passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return len(self.perturbations) * self.steps

    def shared_passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        """The most: `random_error` may stop earlier."""
        return self.n_random * self.passes(model, shape) + 1

    def shared_as(self) -> str:
        return "aopc, random orders"

    def compares(self) -> bool:
        return bool(self.n_random and self.random_error)

    def __call__(self, plane: Tensor, scene: Scene) -> dict[str, Score]:
        rank = shared_rank(plane, scene, self.ties, self.ascending, "aopc")
        if self.steps * self.pixels_per_step > rank.shape[1]:
            raise SalrunError(
                f"aopc: the largest level times pixels_per_step must be at most the image's {rank.shape[1]} pixels, "
                f"got {self.steps} times {self.pixels_per_step}"
            )
        flags = map_flags(plane)
        whole = answer("image", scene.model.normalise(scene.x), scene, self.output)
        suite = self._suite(scene) if self.compares() else []
        scores = dict(suite[0]) if suite else {}
        for name in self.perturbations:
            if not suite:
                scores |= self._scores(name, self._curve(name, rank, scene, whole), flags)
            if self.n_random:
                scores |= self._baseline(name, scene, whole, torch.full_like(flags, OK), suite)
        return scores

    def aopc(self, probability: Tensor, level: int) -> Tensor:
        """AOPC(level) of curves (.., steps + 1)."""
        fall = probability[..., :1] - probability[..., : level + 1]
        return fall.sum(-1) / (level + 1 if self.divide_by == "L+1" else level)

    def _curve(self, name: str, rank: Tensor, scene: Scene, whole: Tensor) -> Tensor:
        """(R, steps + 1) f(x^(k)) for each row of `rank`, (R, P) as `curve` has it; `whole` (B,) is f(x^(0))."""
        counts = torch.arange(1, self.steps + 1, device=rank.device) * self.pixels_per_step
        start, finish = scene.model.normalise(scene.x), substrate(SUBSTRATES[name], scene)
        f = curve(scene.model, start, finish, rank, counts, scene.target, output=self.output, chunk=scene.chunk)
        return torch.cat([whole.repeat(len(rank) // len(whole)).unsqueeze(1), f], 1)

    def _scores(self, name: str, probability: Tensor, flags: Tensor) -> dict[str, Score]:
        k = torch.arange(self.steps + 1, dtype=torch.float64, device=probability.device)
        scores = {f"{name}_L{level}": flagged(self.aopc(probability, level), flags) for level in self.levels}
        scores[f"{name}_L{self.steps}"] = flagged(self.aopc(probability, self.steps), flags, probability, k)
        return scores

    def _suite(self, scene: Scene) -> list[dict[str, Score]]:
        """The scores of every method of the run without the baseline; those of the map asked about come first."""
        if scene.suite is None:
            raise SalrunError("aopc: random_error looks at the methods of a run, and there is none")
        return list(scene.suite(replace(self, n_random=0, random_error=None)).values())

    def _baseline(
        self, name: str, scene: Scene, whole: Tensor, flags: Tensor, suite: Sequence[Mapping[str, Score]]
    ) -> dict[str, Score]:
        """It depends on nothing but the image and the model, and on `suite` how far it is drawn."""
        enough = None
        if self.random_error is not None and len(suite) > 1:
            of_method = [torch.stack([s[f"{name}_L{level}"].value.cpu() for level in self.levels], 1) for s in suite]
            enough = self.random_error * torch.stack(of_method).std(0)
        total, each, drawn = self._random_orders(name, scene, whole, enough)
        scores = {f"{k}_random": s for k, s in self._scores(name, total / drawn.unsqueeze(1), flags).items()}
        order = torch.arange(self.n_random, dtype=torch.float64, device=each.device)
        beyond = order >= drawn.view(-1, 1, 1)
        each = each.movedim(2, 1)  # (B, levels, n_random)
        mean = each.masked_fill(beyond, 0).sum(2) / drawn.unsqueeze(1)
        variance = (each - mean.unsqueeze(2)).square().masked_fill(beyond, 0).sum(2) / drawn.unsqueeze(1)
        for level, deviation, of_level in zip(self.levels, variance.sqrt().unbind(1), each.unbind(1), strict=True):
            scores[f"{name}_L{level}_orderings"] = flagged(deviation, flags, of_level, order)
        if suite:
            scores[f"{name}_orders"] = flagged(drawn, flags)
        return scores

    def _random_orders(
        self, name: str, scene: Scene, whole: Tensor, enough: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Over the orders drawn: sum of the curves (B, steps + 1), each AOPC(L) (B, n_random, levels), how many (B,).

        `enough` (B, levels): the standard error of the mean at which an image needs no more; None: all are drawn.
        """
        what = f"aopc_random/{name}/{self.levels}/{self.pixels_per_step}/{self.divide_by}/{self.output}"
        total = whole.new_zeros(len(whole), self.steps + 1)
        each = total.new_full((len(total), self.n_random, len(self.levels)), torch.nan)
        drawn = total.new_zeros(len(total))
        rows = torch.arange(len(total), device=total.device)
        for first in range(0, self.n_random, TEN):
            orders = range(first, min(first + TEN, self.n_random))
            draw = partial(self._orders, name, scene, whole, orders)
            found = scene.shared_rows(f"{what}/{orders.start}-{orders.stop}", rows, draw)
            total[rows] += found["total"]
            each[rows, orders.start : orders.stop] = found["aopc"]
            drawn[rows] = orders.stop
            if enough is not None:
                error = each[rows, : orders.stop].std(1) / orders.stop**0.5
                rows = rows[~(error <= enough.to(rows.device)[rows]).all(1)]
                if not len(rows):
                    break
        return total, each, drawn

    def _orders(self, name: str, scene: Scene, whole: Tensor, orders: Sequence[int], rows: Tensor) -> dict[str, Tensor]:
        """Of some images: total (r, steps + 1), the sum of their curves over some orders; aopc (r, orders, levels)."""
        place = rows.to(scene.x.device)
        some = replace(scene, x=scene.x[place], target=scene.target[place], rng=scene.rng[place])
        ranks = [scene.rng.permutation(scene.x[0, 0].numel(), f"random_order/{i}", shared=True) for i in orders]
        rank = torch.stack(ranks).to(torch.int32).repeat_interleave(len(rows), 0)
        curves = self._curve(name, rank, some, whole[rows])
        curves = curves.unflatten(0, (len(orders), len(rows)))
        return {"total": curves.sum(0), "aopc": torch.stack([self.aopc(curves, at).T for at in self.levels], 2)}


@dataclass
class AOPCMoRF(AOPC):
    """AOPC, most relevant pixels first: a good map makes the probability fall at once."""

    direction: ClassVar[Literal["higher", "lower", "none"]] = "higher"


@dataclass
class AOPCLeRF(AOPC):
    """AOPC, least relevant pixels first (for signed maps the most negative ones): a good map keeps the probability."""

    ascending: ClassVar[bool] = True
    direction: ClassVar[Literal["higher", "lower", "none"]] = "lower"
