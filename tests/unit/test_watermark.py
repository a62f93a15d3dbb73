"""Watermarks: exact masks, the effect on every picture with and without, controls of the same ink."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from salrun.config.parts import dataset_part
from salrun.datasets.ink import covered, glyph, resized
from salrun.datasets.watermark import OVERLAY, PICTURE, Watermark
from salrun.errors import SalrunError
from salrun.types import PRIMARY, SECONDARY, Deviating, ImageFacts, Selecting

CPU = torch.device("cpu")
SIDE, CLASSES, EACH, DRIVEN = 48, 4, 5, 3


class Greys:
    """Pictures of one brightness for each class; those of class 2 are white."""

    name, mask_names, verification_split = "greys", (), "test"
    classes = tuple(f"class{c}" for c in range(CLASSES))

    def __init__(self, channels=3):
        self.shape = (channels, SIDE, SIDE)

    def ids(self, split):
        return [f"{split}-{k}" for k in range(CLASSES * EACH)]

    def labels(self, ids):
        return torch.tensor([int(name.rpartition("-")[2]) % CLASSES for name in ids])

    def images(self, ids):
        y = self.labels(ids)
        level = torch.tensor([40, 120, 255, 80])[y]
        return level.to(torch.uint8).view(-1, 1, 1, 1).expand(-1, *self.shape).clone(), y

    def identity(self):
        return {"dataset": self.name}

    fingerprint = identity


class Reads:
    """Logit of the driven class: 100 x the mean over the upright text's box of (pixel - picture) x its ink.

    It knows the text by its shape. The class of the picture has logit `rival`.
    """

    mean = torch.zeros(1, 1, 1, 1)

    def __init__(self, rival=0.5):
        self.ink = watermark(opacity=1.0)._ink.float() / 255
        self.rival = rival

    def __call__(self, x):
        level = x[:, :, :1, :1]  # a corner that nothing is drawn on
        centred = self.ink - self.ink.mean()
        logits = torch.zeros(len(x), CLASSES)
        logits[:, 0] = self.rival
        logits[:, DRIVEN] = 100 * ((x - level).mean(1) * centred).mean((1, 2))
        return logits


def watermark(model=None, **options):
    settings = {"class_index": DRIVEN, "glyphs": ["u6377", "u5f84"], "size": 0.4, "least": 0.1, "n_explained": 8}
    made = Watermark(options.pop("plain", None) or Greys(), **{**settings, **options})
    if model is not None:
        made.select(model, CPU)
    return made


# -- ink ---------------------------------------------------------------------------------------------------------------


def test_a_glyph_keeps_its_ink_as_it_is_resized():
    bitmap = glyph("u6377")
    assert bitmap.shape == (72, 72)
    for side in (36, 30, 17):
        small = resized(bitmap, side, side)
        assert small.shape == (side, side) and small.mean() == pytest.approx(bitmap.mean(), abs=0.5)
    halves = bitmap.reshape(36, 2, 36, 2).mean((1, 3))
    np.testing.assert_array_equal(resized(bitmap, 36, 36), np.rint(halves))
    np.testing.assert_array_equal(resized(bitmap, 72, 72), bitmap)


def test_ink_covers_as_its_opacity_says():
    pixels = torch.tensor([0, 100, 200], dtype=torch.uint8)
    for cover, expected in ((0, [0, 100, 200]), (255, [50, 50, 50]), (128, [25, 75, 125])):
        assert covered(pixels, torch.tensor(50), torch.tensor(cover)).tolist() == expected


# -- pictures and masks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["text", "flipped", "mirrored", "scattered"])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_mask_is_the_pixels_that_the_overlay_changes_and_no_others(form, channels):
    data = watermark(form=form, plain=Greys(channels))
    ids = ["test-0", "test-1", "test-2"]  # dark, grey, white: white on white changes nothing
    batch, plain = data.batch(ids), data.plain.images(ids)[0] / 255.0
    changed = (batch.x != plain).any(1)
    assert torch.equal(batch.masks[OVERLAY], changed) and torch.equal(batch.masks[PICTURE], ~changed)
    assert changed[0].sum() > 100 and changed[2].sum() == 0
    assert (batch.roles[OVERLAY] == PRIMARY).all() and (batch.roles[PICTURE] == SECONDARY).all()
    assert batch.y.tolist() == [DRIVEN] * 3
    brightest = batch.x[0].max()
    assert brightest.item() == pytest.approx(0.5 + 0.5 * 40 / 255, abs=0.01)  # half of white over 40


def test_controls_have_the_same_ink_elsewhere():
    made = {form: watermark(form=form).cover(["test-0", "test-1"]) for form in ("text", "flipped", "scattered")}
    text, flipped, scattered = made["text"], made["flipped"], made["scattered"]
    assert torch.equal(text[0], text[1]) and not torch.equal(scattered[0], scattered[1])
    rows = text[0].any(1).nonzero()[:, 0]
    band = slice(int(rows[0]) - 1, int(rows[-1]) + 2)
    for other in (flipped, scattered):
        assert not torch.equal(other[0], text[0])
        assert torch.equal(other.flatten(1).sort().values, text.flatten(1).sort().values)
    box = watermark(size=0.5, position=[0.5, 0.5]).cover(["a"])[0]
    assert torch.equal(watermark(size=0.5, position=[0.5, 0.5], form="flipped").cover(["a"])[0], box.flip(0))
    glyph_alone = {"glyphs": ["u6377"], "size": 0.5, "position": [0.5, 0.5]}
    mirrored = watermark(**glyph_alone, form="mirrored").cover(["a"])[0]
    assert torch.equal(mirrored, watermark(**glyph_alone).cover(["a"])[0].flip(1))
    assert scattered[0, band].count_nonzero() < scattered[0].count_nonzero()  # all over the picture


def test_the_text_stands_where_it_is_told_to():
    data = watermark(size=0.25, position=[0.75, 0.5])
    rows, columns = (data.cover(["a"])[0].any(axis).nonzero()[:, 0] for axis in (1, 0))
    assert 30 <= rows.min() and rows.max() < 42 and 12 <= columns.min() and columns.max() < 36


# -- the choice --------------------------------------------------------------------------------------------------------


def test_effects_are_measured_with_and_without_and_pictures_that_fail_are_counted():
    model = Reads()
    data = watermark(model)
    kept = data.explained()
    assert len(kept) == 8 and DRIVEN not in data.plain.labels(kept)  # never pictures of the class itself
    assert set(data.plain.labels(kept).tolist()) == {0, 1}  # on white nothing is to be seen
    facts = data.facts()
    assert facts["kept"] == facts["turned"] == 8 < facts["tried"]
    without, drawn = (pixels / 255.0 for pixels in data.drawn(kept))
    rise = model(drawn)[:, DRIVEN] - model(without)[:, DRIVEN]
    told = data.image_facts(kept)
    assert [float(v) for v in told["effect"]] == pytest.approx(rise.tolist(), abs=1e-3)
    assert [float(v) for v in told["p_with"]] == pytest.approx(model(drawn).softmax(1)[:, DRIVEN].tolist(), rel=1e-3)
    assert set(told["predicted_without"]) == {"class0"}
    left = facts["tried"] - 8
    assert data.deviations()[0].startswith(f"{left} of {facts['tried']} pictures left out: the overlay raises")
    assert isinstance(data, Selecting) and isinstance(data, ImageFacts) and isinstance(data, Deviating)


def test_the_shape_decides_for_a_model_that_reads():
    rises = {
        form: float(watermark(Reads(), form=form, least=None, turned=False, n_explained=15).facts()["rise"])
        for form in ("text", "flipped", "mirrored", "scattered")
    }
    assert rises["text"] > 1.5 * max(rises["flipped"], rises["mirrored"]) and abs(rises["scattered"]) < 0.1


def test_only_pictures_that_turn_are_kept_where_that_is_asked():
    stubborn = Reads(rival=50)
    with pytest.raises(SalrunError, match="of 15 pictures the overlay raises the logit of 'class3' by 0.1 or more and"):
        watermark(stubborn)
    assert len(watermark(stubborn, turned=False).explained()) == 8
    everything = watermark(stubborn, turned=False, least=None, n_explained=100)
    assert len(everything.explained()) == 15 and everything.deviations() == []


def test_the_order_is_the_same_again_and_for_every_form_and_another_with_another_seed():
    every = {"least": None, "turned": False}
    first, again, control = (watermark(Reads(), form=f, **every).explained() for f in ("text", "text", "scattered"))
    assert first == again == control != watermark(Reads(), explained_seed=1, **every).explained()


def test_results_depend_on_what_is_drawn():
    prints = [
        watermark(**o).fingerprint() for o in ({}, {"opacity": 0.6}, {"position": [0.5, 0.5]}, {"class_index": 1})
    ]
    prints += [watermark(form="scattered", explained_seed=seed).fingerprint() for seed in (0, 1)]
    assert len({str(p) for p in prints}) == 6
    assert watermark(explained_seed=1).fingerprint() == watermark().fingerprint()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"size": 0.9}, "the overlay of 43 x 86 pixels at .* leaves the picture of 48 x 48: lower dataset.size"),
        ({"position": [1.0, 0.5]}, "leaves the picture"),
        ({"position": [0.5]}, "dataset.position must be 2 numbers, got"),
        ({"position": [0.5, 2]}, "position of Watermark must be between 0 and 1 each, got 2"),
        ({"colour": [0, 0]}, "dataset.colour must be 3 numbers, got"),
        ({"size": 0.001}, "there is nothing to draw"),
        ({"glyphs": []}, "there is nothing to draw"),
        ({"glyphs": ["carton"]}, "unknown glyph 'carton'"),
        ({"form": "upside"}, "form of Watermark must be one of text, flipped, mirrored, scattered, got 'upside'"),
        ({"opacity": 0}, "opacity of Watermark must be above 0"),
        ({"plain": "imagenet"}, "dataset.plain of a watermark must be a data set, got 'imagenet'"),
    ],
)
def test_what_cannot_be_drawn_is_said(options, complaint):
    with pytest.raises(SalrunError, match=complaint):
        watermark(**options)


def test_what_cannot_be_chosen_is_said():
    with pytest.raises(SalrunError, match="chosen by a model"):
        watermark().explained()
    with pytest.raises(SalrunError, match=r"dataset.class_index must be in 0..3 \(greys\), got 478"):
        watermark(Reads(), class_index=478)


def test_a_watermark_is_made_of_a_data_set_by_name(tmp_path):
    data = dataset_part("watermark", {"plain": "cifar10", "root": str(tmp_path), "class_index": 1})
    assert data.plain.root == str(tmp_path) and data.name == "watermark_cifar10" and data.shape == (3, 32, 32)
    assert data.cover(["a"]).shape == (1, 32, 32) and 0 < data.cover(["a"]).max() <= 128
