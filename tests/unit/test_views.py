"""Views: each against a plain numpy twin of its sentence, and what all of them share."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata

from salrun.errors import SalrunError
from salrun.types import DEGENERATE_MAP, NAN_MAP, OK
from salrun.views import VIEWS, group_clip, map_flags, view

quick = settings(max_examples=40, deadline=None, derandomize=True)


def scaled(a):
    return a / np.abs(a).max()


def minmax(a):
    return (a - a.min()) / (a.max() - a.min())


def bk(a, low, high):
    return ((scaled(np.clip(a, low, high)) + 1) / 2).max(0)


def seismic(a):
    from matplotlib import colormaps

    v = scaled(a.sum(0))
    picture = colormaps["seismic"](np.floor(127.5 * (v + 1)).astype(int))[..., :3]
    return 1 - picture.mean(-1)


def matched(m):
    return m * 0.5 / m.mean() if m.mean() > 0.5 else 1 - (1 - m) * 0.5 / (1 - m.mean())


def top(a):
    return minmax(np.abs(a).max(0))


# One image, (C, H, W) -> (H, W).
TWINS = {
    "raw": lambda a: a[0],
    "sum": lambda a: a.sum(0),
    "abs_sum": lambda a: np.abs(a.sum(0)),
    "mean": lambda a: a.mean(0),
    "max_abs": lambda a: np.abs(a).max(0),
    "minmax": top,
    "minmax_text_signed": lambda a: minmax(a).max(0),
    "minmax_text_abs": lambda a: minmax(np.abs(a)).max(0),
    "gray": lambda a: np.floor(255 * scaled(np.abs(a).sum(0))) / 255,
    "bk": lambda a: bk(a, np.percentile(a, 1), np.percentile(a, 99)),
    "bk_bucket": lambda a: bk(a, np.percentile(RAW, 1), np.percentile(RAW, 99)),
    "seismic": seismic,
    "cam": lambda a: np.maximum(a.sum(0), 0) / a.sum(0).max(),
    "shap": lambda a: minmax(a).max(0),
    "inverse": lambda a: 1 - a.mean(0),
    "ranks": lambda a: (rankdata(top(a)) / top(a).size).reshape(top(a).shape),
    "matched_mean": lambda a: matched(top(a)),
}
RAW = np.random.default_rng(0).standard_normal((5, 3, 8, 9))


def look(name: str, raw: torch.Tensor) -> torch.Tensor:
    chosen = view(name)
    return chosen(raw, group_clip(torch.tensor(RAW))) if chosen.needs_clip else chosen(raw)


def test_every_view_has_a_twin_and_a_description():
    assert set(TWINS) == set(VIEWS)
    assert len(VIEWS) == 17
    assert all(v.name == name and len(v.about) > 10 for name, v in VIEWS.items())


@pytest.mark.parametrize("name", TWINS)
def test_twin(name):
    images = RAW[:, :1] if name == "raw" else RAW
    got = look(name, torch.tensor(images))
    assert got.shape == (5, 1, 8, 9)
    for plane, image in zip(got, images, strict=True):
        np.testing.assert_allclose(plane[0].numpy(), TWINS[name](image), atol=1e-12)


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("mates", ["garbage", "nan", "inf", "alone"])
def test_batch_mates_do_not_matter(name, mates):
    raw = torch.tensor(RAW[:, :1] if name == "raw" else RAW, dtype=torch.float32)
    clip = group_clip(torch.tensor(RAW))
    alone = mates == "alone"
    other = raw[:1] if alone else raw.clone()
    if not alone:
        other[1:] = {"garbage": 1e6, "nan": torch.nan, "inf": -torch.inf}[mates]
    needs = VIEWS[name].needs_clip
    whole = view(name)(raw, clip if needs else None)
    part = view(name)(other, (clip[0][: len(other)], clip[1][: len(other)]) if needs else None)
    assert torch.equal(whole[0], part[0])
    assert whole.dtype == torch.float32


@pytest.mark.parametrize("name", VIEWS)
def test_nan_stays_nan(name):
    raw = torch.tensor(RAW[:, :1] if name == "raw" else RAW)
    raw[2, 0, 3, 4] = torch.nan
    plane = look(name, raw)
    assert plane[2].isnan().any()
    assert plane[[0, 1, 3, 4]].isfinite().all()


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("level", [0.0, 0.3, -2.0])
def test_constant_map_gives_a_constant_finite_plane(name, level):
    raw = torch.full((2, 1, 6, 6), level)
    clip = group_clip(raw) if VIEWS[name].needs_clip else None
    plane = view(name)(raw, clip)
    assert plane.isfinite().all()
    assert map_flags(raw, plane).tolist() == [DEGENERATE_MAP] * 2


def test_seismic_is_the_closed_form():
    """1 - mean RGB is 4/3 |v| up to 1/2, then flatter: half the peak already counts 80 %; the sign is lost."""
    levels = (torch.arange(255, dtype=torch.float64) + 0.5) / 127.5 - 1
    v = torch.cat([levels, torch.tensor([-1.0, 1.0])])
    got = view("seismic")(v.view(1, 1, 1, -1)).flatten()
    size = v.abs()
    form = torch.where(v > 0, 2 / 3 + (size - 0.5) / 3, 2 / 3 + 7 / 15 * (size - 0.5))
    form = torch.where(size <= 0.5, 4 / 3 * size, form)
    assert (got - form).abs().max() < 0.01
    zero = view("seismic")(torch.zeros(1, 1, 1, 2, dtype=torch.float64))
    torch.testing.assert_close(zero, torch.full_like(zero, 2 / 3 / 127.5))


def test_gray_has_256_levels():
    v = torch.linspace(0, 1, 100_000, dtype=torch.float64).view(1, 1, 250, 400)
    assert len(view("gray")(v).unique()) == 256


def test_bucket_clip_differs_from_image_clip_only_through_the_bounds():
    raw = torch.tensor(RAW)
    assert torch.equal(view("bk_bucket")(raw[:1], group_clip(raw[:1])), view("bk")(raw[:1]))
    assert not torch.equal(view("bk_bucket")(raw, group_clip(raw)), view("bk")(raw))
    with pytest.raises(SalrunError, match=r"bk_bucket.*needs clip"):
        view("bk_bucket")(raw)


def test_ranks_share_ties():
    plane = torch.tensor([[0.2, 0.2, 0.9], [0.0, 0.2, 0.5]]).view(1, 1, 2, 3)
    got = view("raw|ranks")(plane).flatten() * 6
    np.testing.assert_allclose(got, rankdata(plane.flatten()), atol=1e-6)


def test_chain_is_composition():
    raw = torch.tensor(RAW)
    assert torch.equal(view("max_abs|ranks")(raw), VIEWS["ranks"](VIEWS["max_abs"](raw)))
    assert torch.equal(view("ranks")(raw), view("minmax|ranks")(raw))
    assert torch.equal(view("sum | ranks | matched_mean")(raw), VIEWS["matched_mean"](view("sum|ranks")(raw)))
    signed = torch.tensor([[-3.0, 1.0], [0.0, 2.0]]).view(1, 1, 2, 2)
    assert (view("sum|ranks")(signed).flatten() * 4).tolist() == [1, 3, 2, 4]


def test_unknown_view_names_the_nearest():
    with pytest.raises(SalrunError, match="unknown view 'minmaxx'; did you mean minmax"):
        view("minmaxx")
    with pytest.raises(SalrunError, match="unknown view 'rank'"):
        view("sum|rank")


def test_raw_refuses_several_channels():
    with pytest.raises(SalrunError, match="single-channel attribution, got 3 channels"):
        view("raw")(torch.zeros(1, 3, 4, 4))


def test_map_flags():
    raw = torch.tensor(RAW)
    raw[0, 1, 2, 3] = torch.nan
    raw[1, 0, 0, 0] = torch.inf
    raw[2] = 0
    raw[3] = 7 + 1e-14 * raw[3]
    flags = map_flags(raw)
    assert flags.tolist() == [NAN_MAP, NAN_MAP, DEGENERATE_MAP, DEGENERATE_MAP, OK]
    assert flags.dtype == torch.uint8
    plane = torch.zeros(5, 1, 8, 9)
    assert map_flags(raw, plane).tolist() == [NAN_MAP, NAN_MAP, *[DEGENERATE_MAP] * 3]


planes = st.integers(0, 2**31).map(lambda s: torch.tensor(np.random.default_rng(s).standard_normal((3, 3, 5, 6))))


@quick
@given(planes, st.floats(1e-3, 1e3))
def test_scale_does_not_matter_after_normalisation(raw, factor):
    for name in ("minmax", "minmax_text_signed", "minmax_text_abs", "shap", "bk", "cam", "matched_mean"):
        torch.testing.assert_close(view(name)(raw * factor), view(name)(raw), atol=1e-9, rtol=0)


@quick
@given(planes)
def test_ranks_see_only_the_order(raw):
    plane = view("minmax")(raw)
    torch.testing.assert_close(view("raw|ranks")(plane.exp()), view("raw|ranks")(plane), atol=0, rtol=0)


@quick
@given(planes, st.floats(0.2, 5.0))
def test_matched_mean_has_the_mean_keeps_the_order_and_stays_in_the_unit_interval(raw, power):
    plane = view("minmax")(raw) ** power
    got = view("raw|matched_mean")(plane)
    torch.testing.assert_close(got.mean((1, 2, 3)), torch.full((3,), 0.5, dtype=torch.float64), atol=1e-12, rtol=0)
    assert got.min() >= 0
    assert got.max() <= 1
    assert torch.equal(got.flatten(1).argsort(1), plane.flatten(1).argsort(1))
