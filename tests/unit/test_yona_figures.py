"""Figures of Yona & Greenfeld 2021 from made-up maps of runs that were collected."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from salrun.papers import conclude
from salrun.papers.evidence import NotTestable
from salrun.papers.yona.evidence import GBP, VBP, read
from salrun.papers.yona.figures import cascade_table, figures, spread
from salrun.papers.yona.tables import EFFECTS
from salrun.results.run import Run
from tests.fake_run import save_maps
from tests.yona_run import METHODS, halves, made_run, pairs, sanity, shapes


def keep_maps(run: Run, groups: list[str], roles: list[str], size: tuple[int, int] = (8, 8)) -> None:
    n = len(groups)
    about = {"image_id": [f"i{k}" for k in range(n)], "group": groups, "label": [0] * n, "prediction": [0] * n}
    cells = run.cells.set_index("role")["cell"]
    save_maps(run.path, about, list(METHODS), {role: cells[role] for role in roles}, size)


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("yona")
    made = {"halves": halves(), "shapes": shapes(), "pairs": pairs()}
    runs = {name: made_run(folder / name, part) for name, part in made.items()}
    keep_maps(runs["halves"], ["intact"] * 5, ["model", "random_0"])
    shown = ["circle", "nothing", "circle", "rectangle"]
    keep_maps(runs["shapes"], shown, ["model", "digits", "random_0"])
    keep_maps(runs["pairs"], ["acorn", "banana"], ["model", "pretrained", "random_0"], (8, 16))
    both = made_run(folder / "joined", *made.values(), runs=[str(run.path) for run in runs.values()])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("salrun.papers.yona.evidence.read.__defaults__", (100,))  # no interval is looked at
        _, problems = conclude("yona", both)
    assert not problems
    return both.path / "figures"


def test_figures_1_to_7_of_collected_runs(joined: Path) -> None:
    stems = {*(f"yona_figure{k}" for k in range(1, 8)), "yona_effects", "yona_cascade_halves"}
    figures = {f"{s}.{kind}" for s in stems for kind in ("png", "svg", "csv")}
    assert {path.name for path in joined.iterdir()} == {*figures, "yona_captions.json"}


def test_figures_say_which_maps_they_show(joined: Path) -> None:
    drawn = pd.read_csv(joined / "yona_figure2.csv")
    assert set(drawn["group"]) == {"circle", "rectangle"}
    assert len(drawn) == 3 * 3 * 2  # images with a shape, models, methods
    assert set(drawn["model"]) == {"shapes", "digits", "random_0"}
    assert set(drawn["largest"]) == {1, 3, 4}  # of the images with a shape


def test_methods_and_columns_are_the_papers(joined: Path) -> None:
    """Figures 4 and 6 are vanilla, 5 and 7 guided; from left to right as in print."""
    shown = {k: pd.read_csv(joined / f"yona_figure{k}.csv") for k in range(2, 8)}
    methods = {k: list(table["method"].unique()) for k, table in shown.items()}
    assert methods == {2: [GBP, VBP], 3: [GBP, VBP], 4: [VBP], 5: [GBP], 6: [VBP], 7: [GBP]}
    columns = {k: list(table["model"].unique()) for k, table in shown.items()}
    assert columns[2] == ["random_0", "digits", "shapes"]
    assert columns[4] == columns[5] == ["random_0", "shapes", "digits"]
    assert columns[3] == columns[6] == columns[7] == ["random_0", "pretrained", "finetuned"]


def test_every_effect_is_shown_for_every_method(joined: Path) -> None:
    effects = pd.read_csv(joined / "yona_effects.csv")
    assert len(effects) == len(EFFECTS) * len(METHODS)


def test_a_cascade_counts_what_its_models_say(tmp_path: Path) -> None:
    table, unit = cascade_table(read(made_run(tmp_path / "a", halves()), 20), 0, "yona_mnist_halves", ["halves"])
    assert unit == "layers"
    assert sorted(table["step"].unique()) == [1, 2, 3, 4]
    battery = read(made_run(tmp_path / "b", sanity({"gradient": (0.2, 0.4)}, experiment="mine")), 20)
    table, unit = cascade_table(battery, 0, "yona_sanity_checks", ["trained"])
    assert unit == "%"
    assert table[["experiment", "against", "step"]].to_numpy().tolist() == [
        ["mine", "cascading_50", 50.0],
        ["mine", "random", 100.0],
    ]


def test_a_run_without_maps_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotTestable, match="needs kept maps of yona_mnist_shapes"):
        figures(read(made_run(tmp_path, shapes()), 20))["figure2"]()


def test_examples_are_spread_over_the_groups() -> None:
    groups = pd.Series(["a", "a", "a", "b", "c"])
    assert spread(groups, 3) == [0, 3, 4]
    assert spread(groups.iloc[1:], 4) == [1, 2, 3, 4]
