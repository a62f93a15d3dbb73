"""Transformed images: what each transform does, names, independence of the batch, calibration of the cache."""

from __future__ import annotations

import pytest
import torch

from salrun.datasets.imagenet import ImageNet
from salrun.datasets.tinyimagenet import TinyImageNet
from salrun.datasets.transforms import Transformed, coarser, cropped, rotated, rotated_reflected
from salrun.errors import SalrunError
from tests.fake_data import WNIDS, write_imagenet, write_tiny


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_imagenet(folder)
    return str(folder)


@pytest.fixture(scope="module")
def plain(root):
    return ImageNet(root, n_explained=3, size=32, short_side=36, reserved=4)


@pytest.fixture(scope="module")
def seen(plain):
    return Transformed(plain)


VARIATIONS = {
    "clean",
    *(f"mixup/{w}" for w in ("0.8", "0.6", "0.4", "0.2")),
    *(f"resize/{s}" for s in (128, 96, 64, 32)),
    *(f"rotation/{d}" for d in (45, 90, 135, 180)),
    *(f"crop/{s}" for s in ("0.9", "0.8", "0.7", "0.6")),
}


def test_every_image_is_itself_and_in_sixteen_variations(seen, plain):
    ids = seen.explained()
    assert len(ids) == len(set(ids)) == 17 * 3
    batch = seen.batch(ids)
    assert set(batch.group) == VARIATIONS
    first = plain.explained()[0]
    assert ids[:2] == [first, f"{first}@mixup/0.8"]
    assert batch.id == tuple(ids)
    assert batch.x.shape == (51, 3, 32, 32)
    assert (batch.x.amin() >= 0) & (batch.x.amax() <= 1)
    torch.testing.assert_close(batch.y, plain.labels([i.split("@")[0] for i in ids]))
    torch.testing.assert_close(batch.x[::17], plain.batch(plain.explained()).x, rtol=0, atol=0)


def test_an_image_does_not_depend_on_its_batch(plain):
    seen = Transformed(plain, rotation_reflected=[45, 30])
    ids = seen.explained()
    assert sum("@rotation_reflected/" in i for i in ids) == 2 * 3
    whole = seen.batch(ids).x
    turned = seen.batch(ids[::-1]).x.flip(0)
    alone = torch.cat([seen.batch([i]).x for i in ids])
    assert torch.equal(whole, turned)
    assert torch.equal(whole, alone)


def test_mixup_adds_an_image_of_another_class(seen, plain):
    ids = plain.ids("test")
    partners = seen.partners(ids)
    assert (plain.labels(ids) != plain.labels(partners)).all()
    first = ids[0]
    own, other = plain.batch([first]).x, plain.batch([partners[0]]).x
    for w in (0.8, 0.2):
        torch.testing.assert_close(seen.batch([f"{first}@mixup/{w}"]).x, w * own + (1 - w) * other)


def test_partners_are_the_seeds(plain):
    ids = plain.ids("test")
    assert Transformed(plain, seed=1).partners(ids) != Transformed(plain, seed=0).partners(ids)
    few = ImageNet(plain.root, n_explained=1, size=32, short_side=36, reserved=4)
    assert Transformed(few).partners(ids) == Transformed(plain).partners(ids)


def test_where_all_classes_differ_partners_are_a_cycle(root):
    one_each = ImageNet(root, size=32, short_side=36, reserved=4)
    ids = one_each.ids("test")[::2]

    class OneEach:
        name, shape, mask_names = "one", (3, 32, 32), ()
        labels, batch = one_each.labels, one_each.batch

        def ids(self, split):
            return ids

    partners = Transformed(OneEach()).partners(ids)
    assert sorted(partners) == sorted(ids)
    assert all(a != b for a, b in zip(ids, partners, strict=True))


def test_the_partners_label_can_count(plain):
    seen = Transformed(plain, mixup_label="partner")
    first = plain.explained()[0]
    batch = seen.batch([f"{first}@mixup/0.8", f"{first}@crop/0.9"])
    assert batch.y.tolist() == plain.labels([*seen.partners([first]), first]).tolist()


def test_rotation_by_right_angles_moves_pixels():
    x = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(rotated(x, 90), torch.rot90(x, 1, (2, 3)), atol=1e-5, rtol=0)
    torch.testing.assert_close(rotated(x, 180), torch.rot90(x, 2, (2, 3)), atol=1e-5, rtol=0)
    corner = rotated(torch.ones(1, 1, 32, 32), 45)[0, 0]
    assert corner[0, 0] == 0
    assert corner[16, 16] == pytest.approx(1)


def test_reflected_rotation_moves_pixels_as_the_other_does():
    x = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(rotated_reflected(x, 90), torch.rot90(x, 1, (2, 3)), atol=1e-5, rtol=0)
    torch.testing.assert_close(rotated_reflected(x, 180), torch.rot90(x, 2, (2, 3)), atol=1e-5, rtol=0)
    for shape in ((32, 32), (24, 40)):
        x = torch.rand(1, 3, *shape, generator=torch.Generator().manual_seed(1))
        inside = rotated(torch.ones(1, 3, *shape), 30) > 0.999
        assert inside.float().mean() > 0.5
        torch.testing.assert_close(rotated_reflected(x, 30)[inside], rotated(x, 30)[inside], atol=1e-4, rtol=0)


def test_reflected_corners_are_the_image_mirrored_at_its_edge():
    grey = torch.full((1, 3, 32, 48), 0.3)
    for degrees in (45, 135, 10):
        torch.testing.assert_close(rotated_reflected(grey, degrees), grey)
    x = torch.zeros(1, 1, 33, 33)
    x[..., :2, 15:18] = 1  # a mark in the middle of the upper edge
    turned = rotated_reflected(x, 45)[0, 0]
    along = turned.diagonal()  # from the upper left corner, where the upper edge now is, to the centre
    # The edge is 16.5 pixels from the centre, 11.7 steps of the diagonal: the mark is seen on both sides of it.
    assert along[3:6].amax() > 0.9 and along[:2].amax() == along[8:].amax() == 0
    bright = along.nonzero().flatten()
    assert float(bright.double().mean()) == pytest.approx(16 - 16.5 / 2**0.5, abs=0.5)
    assert len(rotated(x, 45)[0, 0].diagonal().nonzero()) < len(bright)


def test_resizing_keeps_place_and_loses_detail():
    stripes = (torch.arange(224) % 2).float().expand(1, 1, 224, 224)
    assert coarser(stripes, 32).std() < 0.05 * stripes.std()
    ramp = torch.linspace(0, 1, 224).expand(1, 1, 224, 224)
    torch.testing.assert_close(coarser(ramp, 64)[..., 8:-8], ramp[..., 8:-8], atol=1e-3, rtol=0)
    assert coarser(torch.rand(1, 3, 32, 32), 128).shape == (1, 3, 32, 32)


def test_crop_is_the_centre_enlarged():
    x = torch.zeros(1, 1, 40, 40)
    x[..., 8:32, 8:32] = 1  # 0.6 of the side
    assert (cropped(x, 0.6) == 1).all()
    assert cropped(x, 0.9)[0, 0, 0, 0] == 0


def test_models_and_statistics_see_plain_images(seen, plain):
    assert seen.ids("train") == plain.ids("train")
    assert seen.identity() == plain.identity()
    train = plain.ids("train")[:2]
    assert torch.equal(seen.images(train)[0], plain.images(train)[0])


def test_the_fingerprint_names_what_changes_an_image(plain):
    base = Transformed(plain).fingerprint()
    assert base != plain.fingerprint()
    assert Transformed(plain, crop=[0.5]).fingerprint() == base  # in the ids
    assert Transformed(plain, seed=1).fingerprint() != base
    assert Transformed(plain, mixup_label="partner").fingerprint() != base


def test_mistakes_are_sentences(plain):
    with pytest.raises(SalrunError, match=r"crop of Transformed must be above 0 and at most 1 each, got 1.5"):
        Transformed(plain, crop=[1.5])
    with pytest.raises(SalrunError, match="no image to explain"):
        Transformed(plain, clean=False, mixup=[], resize=[], rotation=[], crop=[])
    with pytest.raises(SalrunError, match="unknown variation 'crop/0.95'"):
        Transformed(plain).batch(["n00000000/x@crop/0.95"])


def test_tiny_imagenet_as_input_of_an_imagenet_classifier(tmp_path):
    write_tiny(tmp_path)
    names = sorted({*WNIDS, *(f"n9{i:07d}" for i in range(1000 - len(WNIDS)))})
    (tmp_path / "imagenet").mkdir()
    rows = "".join(f"{i}\t{wnid}\tclass {i}\n" for i, wnid in enumerate(names))
    (tmp_path / "imagenet" / "classes.tsv").write_text(rows)
    own, as_imagenet = TinyImageNet(str(tmp_path)), TinyImageNet(str(tmp_path), task="imagenet")
    ids = own.ids("test")
    assert as_imagenet.ids("test") == ids
    assert as_imagenet.ids("train") == own.ids("train")
    x, y = as_imagenet.images(ids[:3])
    assert x.shape == (3, 3, 224, 224)
    wnids = [own.wnids[c] for c in own.labels(ids[:3]).tolist()]
    assert y.tolist() == [names.index(w) for w in wnids]
    assert as_imagenet.groups_of(ids[:1]) == [f"class {names.index(wnids[0])}"]
    assert "task" not in own.identity()
    assert as_imagenet.identity()["task"] == "imagenet"


def test_a_wnid_that_imagenet_lacks_is_named(tmp_path):
    write_tiny(tmp_path)
    write_imagenet(tmp_path)
    with pytest.raises(SalrunError, match="is none of ImageNet's classes"):
        TinyImageNet(str(tmp_path), task="imagenet").ids("test")
