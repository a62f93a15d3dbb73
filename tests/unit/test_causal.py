"""Mass on objects and the causal quantity (Yona & Greenfeld 2021), by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from salrun.errors import SalrunError
from salrun.metrics.causal import CausalQuantity
from salrun.metrics.mass import MassShare
from salrun.types import DEGENERATE_MAP, NO_MASK, OK, PRIMARY, SECONDARY, Scene
from tests import toys


def scene(
    maps: dict[str, torch.Tensor], masks: dict[str, torch.Tensor] | None = None, roles: dict | None = None
) -> Scene:
    n = len(next(iter(maps.values()))) if maps else 3
    return toys.scene(n, masks=masks or {}, roles=roles or {}, other_map=maps.__getitem__)


def test_mass_share_and_its_chance_level() -> None:
    plane = torch.zeros(4, 1, 4, 4)
    plane[:, 0, 0, :2] = torch.tensor([-3.0, 1.0])
    plane[1, 0, 3, 3] = 4.0
    plane[3] = 0.0
    left = torch.zeros(4, 4, 4, dtype=torch.bool)
    left[:, :, :1] = True
    right = torch.zeros(4, 4, 4, dtype=torch.bool)
    right[:, 3, 3] = True
    roles = {"left": torch.tensor([PRIMARY, PRIMARY, 0, PRIMARY]), "right": torch.tensor([SECONDARY] * 4)}
    given = scene({"x": plane}, {"left": left, "right": right}, roles)
    share = MassShare("primary")(plane, given)
    assert share[""].value[:2].tolist() == pytest.approx([3 / 4, 3 / 8])
    assert share["chance"].value[:2].tolist() == pytest.approx([1 / 4, 1 / 4])
    assert share[""].value[2:].isnan().all()
    assert share[""].flag.tolist() == [OK, OK, NO_MASK, DEGENERATE_MAP]
    assert MassShare("secondary")(plane, given)[""].value[:3].tolist() == pytest.approx([0, 1 / 2, 0])
    nothing = MassShare()(plane[:3], scene({}))
    assert nothing[""].flag.tolist() == nothing["chance"].flag.tolist() == [NO_MASK] * 3


def test_the_causal_quantity_by_hand() -> None:
    rng = np.random.default_rng(0)
    maps = {name: rng.normal(size=(3, 1, 4, 4)) for name in ("model", "digits", "r", "dr")}
    metric = CausalQuantity({"model": 0.25, "digits": 0.75}, {"model": "r", "digits": "dr"})
    assert metric.reads() == ("digits", "r", "dr")
    tensors = {k: torch.from_numpy(v) for k, v in maps.items()}
    found = metric(tensors["model"], scene({k: v for k, v in tensors.items() if k != "model"}))

    def by_hand(m: dict[str, np.ndarray]) -> list[float]:
        change = 0.25 * (m["model"] - m["r"]) + 0.75 * (m["digits"] - m["dr"])
        length = lambda v: np.sqrt((v**2).sum(axis=(1, 2, 3)))
        return list(length(change) / (0.25 * length(m["model"]) + 0.75 * length(m["digits"])))

    assert found["raw"].value.tolist() == pytest.approx(by_hand(maps))
    unit = {k: v / np.sqrt((v**2).sum(axis=(1, 2, 3), keepdims=True)) for k, v in maps.items()}
    assert found["unit"].value.tolist() == pytest.approx(by_hand(unit))
    same = {"r": tensors["model"] * 2}
    alone = CausalQuantity({"model": 1.0}, {"model": "r"})(tensors["model"], scene(same))
    assert alone["unit"].value.tolist() == pytest.approx([0, 0, 0], abs=1e-12)
    assert alone["raw"].value.tolist() == pytest.approx([1, 1, 1])


def test_the_causal_quantity_refuses_half_a_specification() -> None:
    with pytest.raises(SalrunError, match="name a model for each of the tasks"):
        CausalQuantity({"model": 0.5, "digits": 0.5}, {"model": "random"})
    with pytest.raises(SalrunError, match="add up to 1"):
        CausalQuantity({"model": 0.5}, {"model": "random"})
