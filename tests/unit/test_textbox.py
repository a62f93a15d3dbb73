"""TextBox against the constants of the paper and its public code."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from salrun.config.catalogue import part_config
from salrun.config.parts import dataset_part
from salrun.datasets.textbox import TextBox, glyph
from salrun.errors import SalrunError
from salrun.types import PRIMARY, SECONDARY

SETTINGS = ["simple_fr", "simple_nr", "complex_fr", "complex_cr1", "complex_cr2", "complex_cr3", "complex_cr4"]


def textbox(reasoning: str = "simple_fr", **changes) -> TextBox:
    return dataset_part("textbox", {"reasoning": part_config("reasoning", reasoning), "root": None, **changes})


def objects(bucket: str) -> tuple[str, bool, bool]:
    content = textbox().contents[bucket]
    return content.get("text", ""), "box1" in content, "box2" in content


def test_glyphs_have_arials_boxes_and_ink() -> None:
    for name, width, columns, pixels, ink in (("A", 15, (0, 13), 100, 69.5), ("B", 13, (1, 12), 130, 89.9)):
        bitmap = glyph(name)
        assert bitmap.shape == (19, width)
        rows, cols = np.nonzero(bitmap)
        assert (rows.min(), rows.max()) == (4, 18)
        assert (cols.min(), cols.max()) == columns
        assert len(rows) == pixels
        assert bitmap.sum() / 255 == pytest.approx(ink, rel=0.015)


# Table 1: label 1 of each setting (paper; code), number of defined buckets.
LABEL_1 = {
    "simple_fr": ({7, 8, 9, 10, 11, 12}, {7, 8, 9, 10, 11, 12}, 12),
    "simple_nr": ({3, 6, 9, 12}, {3, 6, 9, 12}, 8),
    "complex_fr": ({10, 11, 12}, {10, 11, 12}, 12),
    "complex_cr1": ({3, 9, 10, 11, 12}, {3, 9, 4, 5, 6}, 10),
    "complex_cr2": ({3, 6, 10, 11, 12}, {3, 6, 7, 8, 9}, 10),
    "complex_cr3": ({6, 7, 8, 9, 12}, {6, 12, 1, 2, 3}, 10),
    "complex_cr4": ({4, 5, 6, 9, 12}, {9, 12, 1, 2, 3}, 10),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_labels_follow_table_1_and_the_code(setting: str) -> None:
    paper, code, defined = LABEL_1[setting]
    for labels, ones in (("paper", paper), ("code", code)):
        data = textbox(setting, labels=labels)
        assert {int(b) for b in data.rules if data.label(b) == 1} == ones
        assert len(data.rules) == defined


def test_primary_and_secondary_counts() -> None:
    counts = {}
    for setting in SETTINGS:
        rules = textbox(setting).rules.values()
        counts[setting] = (sum(bool(r["primary"]) for r in rules), sum(bool(r["secondary"]) for r in rules))
    simple = [counts[s] for s in SETTINGS[:2]]
    hard = [counts[s] for s in SETTINGS[2:]]
    assert simple == [(6, 10), (8, 6)]
    assert hard == [(3, 8), (10, 6), (10, 6), (7, 6), (7, 6)]


def test_sizes() -> None:
    totals = {s: len(textbox(s).ids("train")) for s in SETTINGS}
    assert totals == {"simple_fr": 24000, "simple_nr": 16000, "complex_fr": 36000} | dict.fromkeys(SETTINGS[3:], 150000)
    assert [len(textbox(s).ids("validation")) for s in SETTINGS] == [6000, 4000, 6000, 4000, 4000, 4000, 4000]


def test_pictures_show_what_the_masks_say() -> None:
    data = textbox(n_per_bucket=20)
    batch = data.batch(data.explained())
    dark = torch.ones_like(batch.x[:, 0])
    for name in data.mask_names:
        ink = batch.masks[f"{name}_ink"]
        assert not ink[~batch.masks[name]].any()
        dark *= 1 - ink
    torch.testing.assert_close(1 - dark, batch.x.amax(1), rtol=0, atol=1.5 / 255)
    assert (batch.x[:, 0] == batch.x[:, 2]).all()
    for row, bucket in enumerate(batch.group):
        text, box1, box2 = objects(bucket)
        areas = [int(batch.masks[n][row].sum()) for n in ("text", "box1", "box2")]
        assert areas == [{"": 0, "A": 285, "B": 247}[text], 100 * box1, 16 * box2]
        assert bool(batch.masks["box1"][row].any()) == (batch.roles["box1"][row] == PRIMARY)
        assert bool(batch.masks["text"][row].any()) == (batch.roles["text"][row] == SECONDARY)


def corners(mask: torch.Tensor) -> torch.Tensor:
    """(B, 2) top-left corners."""
    return torch.stack([mask.any(2).int().argmax(1), mask.any(1).int().argmax(1)], 1)


def test_placement_of_the_code() -> None:
    data = textbox()
    ids = [i for i in data.ids("train") if "-b11-" in i][:1500]
    batch = data.batch(ids)
    text, box1, box2 = (corners(batch.masks[n]) for n in ("text", "box1", "box2"))
    assert text.min() == 6 and text.max() == 41
    assert box1.min() == 0 and box1.max() == 53 and box2.max() == 53
    anchor = text - 6  # the rules use the text's position without its offset
    assert ((anchor - box1) ** 2).sum(1).min() > 300
    assert ((anchor - box2) ** 2).sum(1).min() > 400
    assert ((box1 - box2) ** 2).sum(1).min() > 300
    touching = (batch.masks["text"] & batch.masks["box1"]).flatten(1).any(1).float().mean()
    assert 0.08 < touching < 0.16
    assert not (batch.masks["box1"] & batch.masks["box2"]).any()


def test_box1_keeps_away_from_a_text_that_is_not_there() -> None:
    """The code's phantom text: in bucket 7 the box is rarer in the middle of the text's range."""
    data = textbox()
    ids = [i for i in data.ids("train") if "-b7-" in i][:2000]
    position = corners(data.batch(ids).masks["box1"]).float()
    middle = ((position > 9) & (position < 27)).all(1).float().mean()
    assert middle < 0.75 * (17 / 54) ** 2


def test_strict_placement_has_no_overlap() -> None:
    data = textbox(placement="strict")
    batch = data.batch([i for i in data.ids("train") if "-b12-" in i][:800])
    for a, b in itertools.combinations(data.mask_names, 2):
        assert not (batch.masks[a] & batch.masks[b]).any()


def test_an_image_is_a_function_of_its_id() -> None:
    data = textbox("complex_cr3", background="noise")
    ids = data.ids("validation")[::97]
    whole = data.batch(ids)
    alone = data.batch([ids[5]])
    assert torch.equal(whole.x[5], alone.x[0])
    again = textbox("complex_cr3", background="noise").batch(ids[::-1])
    assert torch.equal(whole.x, again.x.flip(0))
    other = textbox("complex_cr3", background="noise", seed=1).batch(ids)
    assert not torch.equal(whole.x, other.x)
    pictures, labels = data.images(ids)
    assert torch.equal(pictures.float() / 255, whole.x) and torch.equal(labels, whole.y)


def test_noise_background() -> None:
    data = textbox("simple_fr", background="noise")
    pixels = (data.batch([i for i in data.ids("train") if "-b1-" in i][:200]).x * 255).round()
    assert pixels.min() == 0 and pixels.max() == 150
    assert pixels.mean().item() == pytest.approx(75, abs=0.3)
    assert textbox("simple_fr", background="noise", noise_max=99).batch(["train-b1-00000"]).x.max() * 255 <= 99.01


def test_real_backgrounds_need_pictures(tmp_path: Path) -> None:
    with pytest.raises(SalrunError, match=r"found 0 in .*places"):
        textbox("simple_fr", background="places", root=str(tmp_path)).batch(["train-b1-00000"])
    folder = tmp_path / "places" / "baseball_field"
    folder.mkdir(parents=True)
    for k in range(94):
        Image.new("RGB", (128, 128), (k, 200, 100)).save(folder / f"{k:03d}.png")
    data = textbox("simple_fr", background="places", root=str(tmp_path))
    x = data.batch([f"train-b1-{k:05d}" for k in range(60)]).x
    assert (x[:, 1] * 255).round().unique().tolist() == [140.0]  # 200 x 0.7
    assert x[:, 0].amax((1, 2)).unique().numel() > 10


def test_flips_differ_in_one_object_and_nothing_else() -> None:
    data = textbox("complex_cr1")
    pairs = list(data.flips(4))
    assert len(pairs) == sum(len(data._difference(a, b)) == 1 for a, b in itertools.combinations(data.rules, 2)) > 10
    for a, b, first, second in pairs:
        differ = (first != second).any(1).flatten(1).sum(1)
        assert (differ > 0).all() and (differ <= 300).all(), (a, b)


def test_explained_images_are_the_same_positions_in_every_bucket() -> None:
    data = textbox("simple_nr", n_per_bucket=20)
    positions = {}
    for name in data.explained():
        positions.setdefault(name.split("-")[1], []).append(name.split("-")[2])
    assert len(positions) == 8
    assert len({tuple(p) for p in positions.values()}) == 1
    assert set(data.explained()) >= set(textbox("simple_nr", n_per_bucket=5).explained())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_per_bucket": 0}, "n_per_bucket must be in"),
        ({"noise_max": 300}, "noise_max"),
        ({"groups": ["77"]}, "unknown bucket '77'"),
        ({"buckets": {"1": {"txt": "A"}}}, "bucket"),
    ],
)
def test_bad_settings_are_one_sentence(changes: dict, message: str) -> None:
    with pytest.raises(SalrunError, match=message):
        textbox(**changes)


def test_a_users_own_objects_colours_and_reasoning() -> None:
    """Beyond the paper: a red ring of a box, another letter, three classes; by data alone."""
    reasoning = {
        "name": "colour",
        "train_per_bucket": 10,
        "validation_per_bucket": 10,
        "buckets": {
            "x": {"label": 0, "primary": ["mark"], "secondary": []},
            "y": {"label": 1, "primary": ["letter"], "secondary": ["mark"]},
            "z": {"label": 2, "primary": [], "secondary": ["letter"]},
        },
    }
    things = {
        "letter": {"glyphs": {"C": "C", "D": "D"}, "anchor": [0, 40], "color": [0, 255, 0], "draw": 1},
        "mark": {"size": [6, 3], "anchor": [0, 50], "color": [255, 0, 0], "apart": {"letter": 500}, "draw": 2},
    }
    buckets = {"x": {"mark": "box"}, "y": {"mark": "box", "letter": "C"}, "z": {"letter": "D"}}
    data = TextBox(reasoning=reasoning, objects=things, buckets=buckets, n_per_bucket=3)
    assert data.classes == ("0", "1", "2")
    batch = data.batch(data.explained())
    red = (batch.x[:, 0] == 1) & (batch.x[:, 1] == 0)
    assert red.flatten(1).sum(1).tolist() == [18] * 6 + [0] * 3
    assert data.fingerprint() != TextBox(reasoning, things, buckets, n_per_bucket=3, seed=1).fingerprint()
