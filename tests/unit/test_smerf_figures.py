"""The figures of smerf: what is drawn from what."""

import json

import numpy as np
import pandas as pd
import pytest

from salrun import papers
from salrun.papers.evidence import NotTestable
from salrun.papers.smerf import figures
from salrun.papers.smerf.terms import LABELS
from tests.smerf_runs import CONDITIONS, evidence, made_up, paper_like, write_maps, write_run


def only(monkeypatch, *names):
    """Draw these figures, from few resamples: no interval is looked at."""
    monkeypatch.setattr("salrun.papers.smerf.evidence.read.__defaults__", (100,))
    monkeypatch.setattr(figures, "PLOTS", {n: figures.PLOTS[n] for n in names})


def test_figures_of_what_is_there(tmp_path, monkeypatch):
    cr1 = made_up(("complex_cr1",), value=paper_like)
    member = write_run(tmp_path / "member", cr1)
    write_maps(member.path, cr1.cells["cell"].iloc[0])
    out = tmp_path / "collected"
    run = write_run(out, made_up(("simple_fr",), value=paper_like) + cr1, runs=[str(member.path)])
    only(monkeypatch, "figure2", "figure6a", "figure7", "figure8a", "figure12", "figure21", "figure22")
    _, problems = papers.conclude("smerf", run)
    assert problems == []
    made = {p.name for p in (out / "figures").iterdir()}
    drawn = {
        f"smerf_{n}{m}" for n in ("figure2", "figure6a", "figure7", "figure8a", "figure22") for m in ("", "_paper")
    }
    pictures = {f"smerf_figure{n}" for n in (9, 13, 14, 15, 16, 25)}
    named = {f"{n}.{kind}" for n in drawn | pictures for kind in ("png", "svg", "csv")}
    assert made == {*named, "smerf_captions.json"}
    assert set(json.loads((out / "figures" / "smerf_captions.json").read_text())) == drawn | pictures
    plotted = pd.read_csv(out / "figures" / "smerf_figure6a.csv")
    mean = plotted[(plotted["panel"] == "simple") & (plotted["line"] == "PAFL")].set_index("method")["value"]
    own = [paper_like("simple_fr", b, "pafl", "code", "lrp_z") for b in ("7", "8", "9", "10", "11", "12")]
    assert mean["lrp_z"] == pytest.approx(np.mean(own))
    matrix = pd.read_csv(out / "figures" / "smerf_figure7.csv").set_index(["setting", "method"])
    assert matrix.loc[("simple_fr", "lrp_z"), "success"] == 1.0
    assert matrix.loc[("simple_fr", "gradient"), "success"] == 0.0


def test_every_plot_draws_or_declines():
    assert len(figures.PLOTS) == 28
    e = evidence(made_up(("simple_fr",), methods=("gradient",))).seeds[0]
    drawn = set()
    for name, draw in figures.PLOTS.items():
        try:
            draw(e)
            drawn.add(name)
        except NotTestable:
            continue
    assert drawn == {"figure6a", "figure6b", "figure7", "figure17a", "figure17b", "figure19", "figure23"}


def test_every_condition_is_drawn(tmp_path, monkeypatch):
    some = {"methods": tuple(LABELS), "value": paper_like, "n": 2, "accuracy": lambda s, b: 0.95}
    settings = ("simple_fr", "complex_cr2")
    world = made_up(settings, **some)
    for facts in CONDITIONS:
        world += made_up(settings, **some, **facts)
    numbers = ("10", "11", "12", "26", "27", "28", "30", "33")
    drawn = [f"figure{n}" for n in numbers] + [f"figure{n}_{p}" for n in (29, 32) for p in ("simple", "complex")]
    only(monkeypatch, *drawn)
    _, problems = papers.conclude("smerf", write_run(tmp_path, world))
    assert problems == []
    made = {p.stem for p in (tmp_path / "figures").glob("*.png")}
    assert {f"smerf_{n}{m}" for n in drawn for m in ("", "_paper")} <= made
    three = pd.read_csv(tmp_path / "tables" / "smerf_table3.csv")
    assert three.groupby("condition").size().nunique() == 1  # as many buckets of every condition
    assert len(set(three["condition"])) == 6
