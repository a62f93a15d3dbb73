"""Mosaics: pictures of classes that the model is sure of, explained where its own cell matters most."""

from __future__ import annotations

import pytest
import torch

from salrun.config.parts import dataset_part
from salrun.datasets.grid import Grid
from salrun.errors import SalrunError
from salrun.types import PRIMARY, Deviating, ImageFacts, Selecting

CPU = torch.device("cpu")
SIDE, CLASSES, EACH = 8, 6, 5


class Colours:
    """Pictures of one brightness for each class."""

    name, mask_names, verification_split = "colours", (), "test"
    classes = tuple(f"class{c}" for c in range(CLASSES))
    shape = (1, SIDE, SIDE)

    def ids(self, split):
        return [f"{split}-{k}" for k in range(CLASSES * EACH)]

    def labels(self, ids):
        return torch.tensor([int(name.rpartition("-")[2]) % CLASSES for name in ids])

    def images(self, ids):
        y = self.labels(ids)
        return (40 * (y + 1)).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, *self.shape).clone(), y

    def identity(self):
        return {"dataset": self.name}

    fingerprint = identity


class Counts:
    """Logit c: 16 times the share of pixels that have the brightness of class c; that of `prefers` is 5 higher."""

    mean = torch.zeros(1, 1, 1, 1)

    def __init__(self, prefers=None):
        self.prefers = prefers

    def __call__(self, x):
        colours = 40 * torch.arange(1, CLASSES + 1) / 255
        logits = ((x[:, None, 0] - colours.view(1, -1, 1, 1)).abs() < 1e-3).float().mean((2, 3)) * 16
        if self.prefers is not None:
            logits[:, self.prefers] += 5
        return logits


def grid(model=None, **options):
    made = Grid(Colours(), **{"n_explained": 12, "asked": 1000, **options})
    if model is not None:
        made.select(model, CPU)
    return made


@pytest.mark.parametrize("cells", [2, 3])
@pytest.mark.parametrize("shrink", [True, False])
def test_a_mosaic_shows_different_classes_and_the_mask_of_the_explained_one(cells, shrink):
    if cells == 3:
        with pytest.raises(SalrunError, match="mosaics need 9 classes"):
            grid(Counts(), cells=3, shrink=shrink)
        return
    data = grid(Counts(prefers=2), cells=cells, shrink=shrink)
    ids = data.explained()
    batch = data.batch(ids)
    side = SIDE if shrink else 2 * SIDE
    assert batch.x.shape == (len(ids), 1, side, side) and data.shape == (1, side, side)
    for b, name in enumerate(ids):
        members, place = data.members(name)
        labels = data.plain.labels(members)
        assert len(set(labels.tolist())) == 4 and batch.y[b] == labels[place] == 2
        own = batch.masks[f"cell{place + 1}"][b]
        assert own.sum() == side * side / 4
        torch.testing.assert_close(batch.x[b, 0][own], torch.full((int(own.sum()),), 120 / 255))
        roles = {mask: int(batch.roles[mask][b]) for mask in data.mask_names}
        assert [mask for mask, role in roles.items() if role == PRIMARY] == [f"cell{place + 1}"]
    covered = torch.stack([batch.masks[mask] for mask in data.mask_names]).sum(0)
    assert (covered == 1).all()


def test_effects_are_measured_and_mosaics_that_fail_are_counted():
    data = grid(Counts(prefers=2))
    ids = data.explained()
    assert len(ids) == 12 and data.facts()["tried"] > 12  # class 2 is predicted where it is not, too
    facts = data.image_facts(ids[:1])
    place = data.members(ids[0])[1]
    assert float(facts[f"effect_cell{place + 1}"][0]) == pytest.approx(4)
    assert isinstance(data, Selecting) and isinstance(data, ImageFacts) and isinstance(data, Deviating)
    assert data.deviations()[0].startswith(f"{data.facts()['tried'] - 12} of {data.facts()['tried']} mosaics left out")


def test_the_choice_is_the_same_again_and_another_with_another_seed():
    first, again, other = (grid(Counts(), explained_seed=seed).explained() for seed in (0, 0, 1))
    assert first == again != other


def test_what_cannot_be_is_said():
    with pytest.raises(SalrunError, match="chosen by a model"):
        grid().explained()
    with pytest.raises(SalrunError, match="the model saw none"):
        grid(lambda_model())
    with pytest.raises(SalrunError, match="no mosaic 'x'"):
        grid().members("x")
    with pytest.raises(SalrunError, match="cells of Grid must be between 2 and 3"):
        grid(cells=4)


def lambda_model():
    """Sure of every single picture, whatever is masked."""

    class Stubborn(Counts):
        def __call__(self, x):
            logits = super().__call__(x)
            whole = (logits.amax(1) > 15).float()  # a single picture fills the image
            return torch.where(whole[:, None] > 0, logits, torch.zeros_like(logits))

    return Stubborn()


def test_a_grid_is_made_of_a_data_set_by_name(tmp_path):
    data = dataset_part("grid", {"plain": "cifar10", "root": str(tmp_path)})
    assert data.plain.root == str(tmp_path) and data.name == "grid_cifar10" and data.shape == (3, 32, 32)
