"""Spoilt maps: each defect does what it says, in the dose that is said, and no more than that."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from salrun.config.parts import method_part
from salrun.errors import SalrunError
from salrun.methods.baselines import Oracle
from salrun.methods.ladder import Ladder
from salrun.rng import Draws
from salrun.store.sources import source_of
from salrun.types import PRIMARY, SECONDARY, Fitted

SIDE = 32
X = torch.rand(2, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
BOX, OTHER = torch.zeros(2, SIDE, SIDE, dtype=torch.bool), torch.zeros(2, SIDE, SIDE, dtype=torch.bool)
BOX[:, 2:10, 2:10] = True
OTHER[0, 20:30, 20:30] = True  # the second image has no other object
FITTED = Fitted(
    masks={"box": BOX, "other": OTHER},
    roles={"box": torch.full((2,), PRIMARY), "other": torch.full((2,), SECONDARY)},
)
ORACLE = BOX.float().unsqueeze(1)


def spoilt(**options):
    return Ladder(**options)(None, X, torch.zeros(2, dtype=torch.long), Draws.of(0, ["a", "b"]), FITTED)


@pytest.mark.parametrize("mix", ["pixels", "values"])
@pytest.mark.parametrize("defect", ["noise", "shift", "blur", "permute", "flip", "inverse", "constant", "blank"])
def test_dose_0_is_the_base_and_dose_1_the_spoilt_map(defect, mix):
    assert torch.equal(spoilt(defect=defect, dose=0, mix=mix), ORACLE)
    ladder = Ladder(defect=defect, dose=1.0, mix=mix)
    rng = Draws.of(0, ["a", "b"])
    torch.testing.assert_close(spoilt(defect=defect, dose=1.0, mix=mix), ladder.spoilt(ORACLE, X, rng, FITTED))


def test_the_spoilt_maps_are_what_they_are_called():
    assert torch.equal(spoilt(defect="shift", dose=1.0)[:, 0, 18:26, 18:26], torch.ones(2, 8, 8))
    assert torch.equal(spoilt(defect="flip", dose=1.0), -ORACLE)
    assert torch.equal(spoilt(defect="inverse", dose=1.0), 1 - ORACLE)
    assert torch.equal(spoilt(defect="blank", dose=1.0), 0 * ORACLE)
    assert torch.allclose(spoilt(defect="constant", dose=1.0), ORACLE.mean((1, 2, 3), keepdim=True))
    permuted = spoilt(defect="permute", dose=1.0)
    assert torch.equal(permuted.flatten(1).sort().values, ORACLE.flatten(1).sort().values)
    assert not torch.equal(permuted, ORACLE)
    noise = spoilt(defect="noise", dose=1.0)
    assert 0 <= noise.min() and noise.max() <= 1 and abs(noise.mean() - 0.5) < 0.05
    blurred = spoilt(defect="blur", dose=1.0)
    assert blurred[0, 0, 6, 6] == pytest.approx(64 / 81) and blurred[0, 0, 31, 31] == 0
    assert torch.equal(spoilt(defect="others", dose=1.0)[0, 0], OTHER[0].float())


def test_a_dose_takes_that_share_of_the_pixels_and_what_is_wrong_stays_wrong():
    wrong = [spoilt(defect="inverse", dose=dose) != ORACLE for dose in (0.1, 0.25, 0.5, 0.75)]
    for dose, taken in zip((0.1, 0.25, 0.5, 0.75), wrong, strict=True):
        assert taken.float().mean().item() == pytest.approx(dose, abs=0.04)
    for lower, higher in pairwise(wrong):
        assert not (lower & ~higher).any()


def test_by_values_the_map_is_the_weighted_mean():
    torch.testing.assert_close(spoilt(defect="inverse", dose=0.25, mix="values"), 0.75 * ORACLE + 0.25 * (1 - ORACLE))


def test_there_is_no_ladder_without_a_truth_or_without_other_objects():
    others = spoilt(defect="others", dose=0.5)
    assert others[0].isfinite().all() and others[1].isnan().any()
    nothing = Fitted(masks={"box": BOX & False}, roles={"box": torch.full((2,), PRIMARY)})
    empty = Ladder(defect="noise", dose=0.5)(None, X, torch.zeros(2).long(), Draws.of(0, ["a", "b"]), nothing)
    assert empty.isnan().all()


def test_any_method_can_be_spoilt():
    part = method_part(
        {
            "_target_": "salrun.methods.ladder.Ladder",
            "base": {"_target_": "salrun.methods.cam.GradCAM", "layer": "cam"},
            "defect": "noise",
            "dose": 0.5,
        },
        name="x",
    )
    assert part.method.needs == {"layer"} and part.method.layer == "cam"
    assert Ladder(defect="others").needs == {"masks"}
    assert source_of(part.method) != source_of(Ladder(base=Oracle()))
    with pytest.raises(SalrunError, match="base of Ladder must be a method"):
        Ladder(base="oracle")
    with pytest.raises(SalrunError, match="dose of Ladder must be between 0 and 1"):
        Ladder(dose=1.5)
