"""Scores of a run of Tomsett et al. 2020, read once: what a name stands for, seeds, subsets, what is refused."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from salrun.errors import SalrunError
from salrun.papers.tomsett.evidence import F, Key, read, score_names
from salrun.results.run import Run
from tests.fake_run import save_maps
from tests.tomsett_run import CLASSES, METRICS, about_images, made_run, matrix, run_scores


@pytest.fixture(scope="module")
def scores() -> pd.DataFrame:
    return run_scores(40)


def test_scores_are_read_by_series(tmp_path: Path) -> None:
    scores = run_scores()
    (s,) = read(made_run(tmp_path, scores), draws=20).scores.values()
    assert len(s.scores) == 2 + 2 * 2 * 5
    key = Key("LeRF", 40, "random_rgb")
    expected = matrix(scores, "aopc_lerf", "random_rgb_L40")
    pd.testing.assert_frame_equal(s.scores[key], expected, check_names=False)
    assert (s.baseline[key] == 40 / 500).all()
    assert set(s.group) == set(CLASSES)
    assert s.subsets()["low confidence"].sum() == 50


def test_a_name_means_what_the_metric_was_asked_for() -> None:
    of_run = [{**METRICS[0], "options": {"perturbations": ["mean"], "levels": [7, 30]}}, METRICS[2]]
    names = score_names([*of_run, {**METRICS[1], "mode": "mine"}])
    assert names.loc[("aopc_morf", "", "mean_L7_random")].tolist() == ["MoRF", 7, "mean", "random"]
    assert names.loc[("faithfulness", "", "random_rgb")].tolist() == [*F["random_rgb"], "map"]
    assert len(names) == 2 * 3 + 2  # a variant of the user's own is none of the paper's series
    assert len(score_names([*of_run, *of_run])) == len(names)  # runs that were collected say it twice
    assert score_names([]).empty


def test_seeds_are_read_apart(tmp_path: Path, scores: pd.DataFrame) -> None:
    second = run_scores(40, seed=1)
    e = read(made_run(tmp_path, pd.concat([scores, second])), draws=20)
    assert list(e.scores) == list(e.draws) == [0, 1]
    expected = matrix(second, "aopc_morf", "mean_L100")
    pd.testing.assert_frame_equal(e.scores[1].scores[Key("MoRF", 100, "mean")], expected, check_names=False)


def test_a_run_without_the_papers_metrics_has_no_evidence_but_no_fault(tmp_path: Path, scores: pd.DataFrame) -> None:
    e = read(made_run(tmp_path, scores.assign(metric="insertion", score="").drop_duplicates(["image_id", "method"])))
    assert not e.draws[0].tables
    assert e.scores[0].cases() == []


def test_two_models_are_not_one(tmp_path: Path, scores: pd.DataFrame) -> None:
    both = pd.concat([scores, scores.assign(model="other", cell="other")])
    with pytest.raises(SalrunError, match="cifar10/other, cifar10/tomsett_cnn"):
        read(made_run(tmp_path, both))


def test_two_views_of_one_score_are_refused(tmp_path: Path, scores: pd.DataFrame) -> None:
    other = scores[scores["metric"] == "faithfulness"].assign(view="abs")
    with pytest.raises(SalrunError, match="one view at a time"):
        read(made_run(tmp_path, pd.concat([scores, other])))


def test_a_collected_run_is_read_without_what_is_of_no_paper(tmp_path: Path, scores: pd.DataFrame) -> None:
    mine = scores.assign(experiment="mine", cell="mine", model="other")
    first, second = made_run(tmp_path / "a", scores), made_run(tmp_path / "b", mine)
    (tmp_path / "b" / "run.json").write_text((second.path / "run.json").read_text().replace('"tomsett"', "null"))
    runs = [str(first.path), str(second.path)]
    e = read(made_run(tmp_path / "both", pd.concat([scores, mine]), runs=runs), draws=20)
    assert e.scores[0].images == 40


def test_a_collected_run_has_the_maps_of_its_first_seed(tmp_path: Path, scores: pd.DataFrame) -> None:
    about = about_images(10).drop(columns="confidence").to_dict("list")
    parts = {seed: run_scores(40, seed) for seed in (1, 0)}
    for seed, part in parts.items():
        save_maps(made_run(tmp_path / f"of{seed}", part).path, about, ["edge"], {"model": f"seed{seed}"})
    runs = [str(tmp_path / name) for name in ("gone", "of1", "of0")]
    e = read(made_run(tmp_path / "both", pd.concat(parts.values()), runs=runs), draws=20)
    assert e.maps is not None
    assert e.maps.folder == tmp_path / "of0" / "maps"
    alone = read(made_run(tmp_path / "without", pd.concat(parts.values()), runs=runs[:2]), draws=20)
    assert alone.maps is None


def test_no_scores_is_a_sentence(tmp_path: Path, scores: pd.DataFrame) -> None:
    run = made_run(tmp_path, scores)
    (run.path / "tables" / "scores.parquet").unlink()
    with pytest.raises(SalrunError, match=r"no tables/scores\.parquet"):
        read(Run(tmp_path))
