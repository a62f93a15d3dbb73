"""The room of Tomsett et al. 2020: published tables through the claims, and tables of runs made up here."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import save_file
from scipy import stats

from salrun.errors import SalrunError
from salrun.papers.claims import claims_of, evaluate_claims, measure
from salrun.papers.tomsett import claims, figures, tables
from salrun.stats.reliability import alpha, rankings

METHODS = list(tables.METHODS)
LEVELS = (20, 40, 60, 80, 100)

PUBLISHED = {  # on the paper's own Tables 1 and 2
    **{"T1": "yes", "T2": "no", "T2a": "yes", "T3": "no", "T3a": "yes", "T4": "yes", "T4a": "yes", "T5": "yes"},
    **{"T10": "yes", "T11": "yes", "T12": "no", "T12a": "yes"},
}
TEXT = ["T6", "T7", "T8", "T9", "T13", "T14", "T15", "T15a", "T16"]
BY_ID = {c.id: c for c in claims_of("tomsett")}


def test_all_sixteen_claims_are_there():
    assert set(BY_ID) == {*PUBLISHED, *TEXT}
    assert {f"T{i}" for i in range(1, 17)} <= set(BY_ID)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_tables_give_the_published_truth(name):
    assert measure(BY_ID[name], [tables.published_evidence()]).holds == PUBLISHED[name]


@pytest.mark.parametrize("name", TEXT)
def test_what_is_only_said_has_no_table(name):
    assert BY_ID[name].text
    found = evaluate_claims([BY_ID[name]], tables.published_evidence(), tables.published_evidence()).iloc[0]
    assert found["published"] == "text"
    assert found["verdict"] == "not testable here"


def parts_on_published(name):
    return BY_ID[name].measure(tables.published_evidence()).iloc[0]


def test_the_rows_of_table_1_behind_each_truth():
    edge = parts_on_published("T2").round(10)
    false = {("LeRF", 20, "mean"), *(("LeRF", n, "random_rgb") for n in (20, 40, 60, 80))}
    assert {k for k, v in edge.items() if v < 0} == false
    assert {k for k, v in edge.items() if v == 0} == {("LeRF", 40, "mean"), ("LeRF", 100, "random_rgb")}
    assert len(edge) == 22
    random = parts_on_published("T3")
    assert {k for k, v in random.items() if v <= 0} == {("F", 0, "without")}
    assert len(parts_on_published("T5")) == 32  # eight series, four steps
    assert 0.65 - parts_on_published("T1").min() == pytest.approx(0.48)


def test_the_ranges_of_table_2():
    consistency = tables.published("consistency").groupby("pair")["spearman"]
    ranges = (consistency.max() - consistency.min()).round(2)
    assert ranges.to_dict() == {
        "F vs LeRF": 0.13,
        "F vs MoRF": 0.34,
        "MoRF random vs MoRF mean": 0.20,
        "MoRF vs LeRF": 0.66,
    }


def run_scores(images=200, seed=0, lerf_excess=0.1, unsure_excess=-0.1, edge_gain=0.05):
    """Scores of a made-up run whose truth is known."""
    rng = np.random.default_rng(seed)
    ids = [f"test-{i:05d}" for i in range(images)]
    label = np.arange(images) % 10
    confidence = np.where(np.arange(images) % 4 == 0, 0.6, 0.995)
    frames = []

    def add(method, metric, variant, value):
        frame = pd.DataFrame({"image_id": ids, "label": label, "group": label.astype(str), "value": value})
        frames.append(frame.assign(method=method, metric=metric, variant=variant))

    add("-", "confidence", "-", confidence)
    for k, method in enumerate(METHODS):
        for perturbation in tables.PERTURBATIONS:
            for metric in ("aopc_morf", "aopc_lerf"):
                noise = rng.normal(size=images)
                for level in LEVELS:
                    baseline = np.full(images, level / 500)
                    value = baseline + level / 100 * 0.02 * k + 0.05 * noise
                    if metric == "aopc_lerf":
                        value = value + np.where(confidence < 0.8, unsure_excess, lerf_excess) * level / 100
                    if perturbation == "random_rgb" and metric == "aopc_morf":
                        value = value + edge_gain * (method in ("edge", "deep_taylor"))
                    add(method, metric, f"{perturbation}_L{level}:sum", value)
                    add(method, metric, f"{perturbation}_L{level}_random:sum", baseline)
                    add(method, metric, f"{perturbation}_L{level}_orderings:sum", 0.01)
            faithfulness = 0.1 - 0.02 * k + 0.1 * rng.normal(size=images)
            faithfulness[7] = np.nan
            add(method, "faithfulness", f"{perturbation}:sum", faithfulness)
    table = pd.concat(frames, ignore_index=True)
    keys = {"experiment": "tomsett_cifar10", "dataset": "cifar10", "model": "tomsett_cnn", "seed": seed}
    return table.assign(**keys, scale="smoke", prediction=table["label"], target=table["label"], flag="ok")


@pytest.fixture(scope="module")
def scores():
    return run_scores()


@pytest.fixture(scope="module")
def cell(scores):
    return tables.cells(scores)[0]


def matrix(scores, metric, variant):
    part = scores[(scores["metric"] == metric) & (scores["variant"] == variant)]
    return part.pivot(index="image_id", columns="method", values="value")[METHODS]


def test_scores_are_read_by_series(scores, cell):
    assert len(cell.scores) == 2 + 2 * 2 * 5
    key = tables.Key("LeRF", 40, "random_rgb")
    pd.testing.assert_frame_equal(
        cell.scores[key], matrix(scores, "aopc_lerf", "random_rgb_L40:sum"), check_names=False
    )
    assert (cell.baseline[key] == 40 / 500).all()
    assert set(cell.group) == set(tables.CLASSES)
    assert cell.subsets()["low confidence"].sum() == 50


def test_table_1_is_alpha_of_the_rankings(scores, cell):
    table = tables.table_1(cell, draws=400).set_index(["metric", "steps", "perturbation", "edge"])
    assert len(table) == 44
    morf = matrix(scores, "aopc_morf", "mean_L100:sum")
    lerf = matrix(scores, "aopc_lerf", "random_rgb_L20:sum").drop(columns="edge")
    f = matrix(scores, "faithfulness", "mean:sum")
    assert table.loc[("MoRF", 100, "mean", "with"), "alpha"] == pytest.approx(alpha(rankings(morf)))
    assert table.loc[("LeRF", 20, "random_rgb", "without"), "alpha"] == pytest.approx(alpha(rankings(-lerf)))
    assert table.loc[("F", 0, "mean", "with"), "alpha"] == pytest.approx(alpha(rankings(f)))  # one image missing
    assert table.loc[("MoRF", 100, "mean", "with"), "published"] == 0.48
    assert (table["ci_low"] < table["alpha"]).all()
    assert (table["alpha"] < table["ci_high"]).all()


def test_table_2_is_spearman_raw_and_aligned(scores, cell):
    table = tables.table_2(cell, draws=100).set_index(["pair", "method"])
    assert len(table) == 20
    morf, lerf = (matrix(scores, m, "mean_L100:sum")["edge"] for m in ("aopc_morf", "aopc_lerf"))
    found = table.loc[("MoRF vs LeRF", "edge")]
    assert found["spearman"] == pytest.approx(stats.spearmanr(morf, lerf).statistic)
    assert found["aligned"] == -found["spearman"]
    f = matrix(scores, "faithfulness", "mean:sum")["edge"]
    known = f.notna()
    expected = stats.spearmanr(f[known], morf[known]).statistic
    assert table.loc[("F vs MoRF", "edge"), "spearman"] == pytest.approx(expected)
    assert table.loc[("F vs MoRF", "sensitivity"), "published"] == 0.34


def test_inter_method_has_four_cells_per_metric(scores, cell):
    table = tables.inter_method_table(cell)
    assert (table.groupby(["metric", "steps"]).size() == 4).all()
    kept = matrix(scores, "aopc_morf", "mean_L60:sum").drop(columns="edge")
    rho = stats.spearmanr(kept).statistic[np.triu_indices(4, k=1)]
    found = table.query("metric == 'MoRF' and steps == 60 and perturbation == 'mean' and edge == 'without'")
    assert found["spearman"].item() == pytest.approx(rho.mean())
    assert found["lowest_pair"].item() == pytest.approx(rho.min())


def test_subsets_are_means_of_their_images(scores, cell):
    table = tables.subset_table(cell, draws=300)
    keys = ["quantity", "subset", "metric", "perturbation", "method"]
    found = table.set_index(keys)
    lerf = matrix(scores, "aopc_lerf", "mean_L100:sum")["deep_shap"]
    frog = found.loc[("mean", "frog", "LeRF", "mean", "deep_shap")]
    assert frog["value"] == pytest.approx(lerf.iloc[6::10].mean())
    assert frog["images"] == 20
    unsure = found.loc[("excess", "low confidence", "LeRF", "mean", "deep_shap")]
    assert unsure["value"] == pytest.approx((lerf - 0.2).iloc[::4].mean())
    assert unsure["ci_low"] < unsure["value"] < unsure["ci_high"]
    alphas = tables.subset_alpha_table(cell).set_index(["subset", "metric", "steps", "perturbation", "edge"])["alpha"]
    expected = alpha(rankings(-matrix(scores, "aopc_lerf", "mean_L100:sum").iloc[6::10]))
    assert alphas[("frog", "LeRF", 100, "mean", "with")] == pytest.approx(expected)


def test_the_page_has_a_row_per_subset(cell, tmp_path):
    tables.subset_table(cell, draws=20).assign(seed=0).to_csv(tmp_path / "tomsett_subsets.csv", index=False)
    path = Path(__file__).resolve().parents[2] / "scripts" / "make_docs.py"
    spec = importlib.util.spec_from_file_location("make_docs", path)
    docs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(docs)
    lines = docs.subsets(tmp_path, "LeRF", "excess").splitlines()
    assert lines[0] == f"| subset | images | {' | '.join(METHODS)} |"
    assert [line.split(" | ")[0] for line in lines[2:5]] == ["| all", "| low confidence", "| airplane"]
    value = cell.excess(tables.LERF["mean"])[METHODS[0]].mean()
    assert lines[2].startswith(f"| all | {cell.images} | {value:.3f} |")


def test_std_draws_are_those_of_the_images(scores, cell):
    std = tables.mean_tables(cell, draws=50)["std"]
    expected = matrix(scores, "aopc_morf", "mean_L100:sum")["edge"].std(ddof=0)
    assert std[("MoRF", "mean", "edge")].iloc[0] == pytest.approx(expected)


def verdicts(scores, draws=600):
    return claims.evaluate(scores, draws).set_index("id")


def test_claims_follow_the_made_up_truth(scores):
    found = verdicts(scores)
    assert found.loc["T1", "verdict"] == "reproduced"
    assert found.loc["T6", "holds"] == "yes"  # AOPC grows with the method's number: best in MoRF, worst in LeRF
    assert found.loc["T13", "holds"] == "yes"
    assert found.loc["T14", "holds"] == "yes"
    assert found.loc["T15", "verdict"] == "not testable here"  # 200 images
    assert "needs 400 images" in found.loc["T15", "reason"]
    assert "CI over 200 images of one model" in found.loc["T1", "reason"]
    assert found["verdict"].isin(["reproduced", "not reproduced", "uncertain", "not testable here"]).all()


def test_claims_fail_where_the_truth_is_turned_round():
    found = verdicts(run_scores(lerf_excess=-0.1, unsure_excess=0.1, edge_gain=-0.1))
    assert found.loc["T13", "holds"] == "no"
    assert "better_if_unsure" in found.loc["T13", "reason"]
    assert found.loc["T14", "verdict"] == "not reproduced"


def test_three_seeds_are_an_interval_over_seeds():
    found = verdicts(pd.concat([run_scores(100, seed) for seed in range(3)]), draws=50)
    assert found["reason"].drop("T15").str.contains("CI over 3 seeds").all()


def test_a_run_without_edge_or_confidence_says_what_it_lacks(scores):
    less = scores[(scores["method"] != "edge") & (scores["metric"] != "confidence")]
    found = verdicts(less, draws=50)
    assert found.loc["T2", "reason"] == "needs edge with"
    assert "edge" in found.loc["T9", "reason"]
    assert found.loc["T13", "reason"] == "needs subset low confidence"
    assert found.loc["T5", "verdict"] != "not testable here"


def test_two_models_are_not_one(scores):
    with pytest.raises(SalrunError, match="cifar10/tomsett_cnn, cifar10/other"):
        tables.cells(pd.concat([scores, scores.assign(model="other")]))


def test_two_views_of_one_score_are_refused(scores):
    other = scores[scores["metric"] == "faithfulness"].replace({"mean:sum": "mean:abs"})
    with pytest.raises(SalrunError, match="one view at a time"):
        tables.cells(pd.concat([scores, other]))


def test_aopc_of_a_curve_by_hand():
    curve = np.array([[1.0, 0.5, 0.2]])
    np.testing.assert_allclose(figures.aopc(curve), [[0.0, 0.25, 1.3 / 3]])


def run_curves(images=12):
    rng = np.random.default_rng(0)
    rows = []
    for method in METHODS:
        for metric in ("aopc_morf", "aopc_lerf"):
            for perturbation in tables.PERTURBATIONS:
                for i in range(images):
                    key = {"seed": 0, "image_id": f"test-{i:05d}", "method": method, "metric": metric}
                    curves = {
                        "L100": 1 - rng.random() * np.arange(101) / 200,
                        "L100_random": 1 - np.arange(101) / 1_000,
                        "L100_orderings": np.linspace(-0.1, 0.1, 21),
                    }
                    for name, y in curves.items():
                        x = np.arange(len(y), dtype=float)
                        rows.append({**key, "variant": f"{perturbation}_{name}:sum", "x": x, "y": y})
    return pd.DataFrame(rows)


def test_curve_table_subtracts_the_baseline_and_keeps_its_spread():
    curves = run_curves()
    table = figures.curve_table(curves, draws=200)
    own = curves.query("method == 'edge' and metric == 'aopc_lerf' and variant == 'mean_L100:sum'")
    expected = np.mean([np.mean(y[0] - y[:61]) for y in own["y"]]) - np.mean(np.arange(61) / 1_000)
    at = table.query("method == 'edge' and metric == 'LeRF' and perturbation == 'mean' and L == 60")
    assert at["value"].item() == pytest.approx(expected)
    assert at["ci_low"].item() < expected < at["ci_high"].item()
    random = table.query("method == 'random orders' and metric == 'MoRF' and perturbation == 'mean'")
    assert random[["L", "ci_low", "ci_high"]].to_numpy().tolist() == [pytest.approx([100, -0.095, 0.095])]


def test_a_run_gets_its_figures_tables_and_claims(tmp_path, scores):
    (tmp_path / "tables").mkdir()
    scores.to_parquet(tmp_path / "tables" / "scores.parquet")
    run_curves().to_parquet(tmp_path / "tables" / "curves.parquet")
    maps = tmp_path / "maps"
    maps.mkdir()
    rng = np.random.default_rng(0)
    save_file({"x": rng.integers(0, 255, (20, 8, 8, 3), dtype=np.uint8)}, maps / "images.safetensors")
    for method in METHODS:
        save_file({"plane": rng.normal(size=(20, 8, 8)).astype(np.float16)}, maps / f"{method}.safetensors")
    label = [i % 10 for i in range(20)]
    wrong = [0 if i == 5 else i % 10 for i in range(20)]
    index = {"image_id": [f"test-{i:05d}" for i in range(20)], "label": label, "prediction": wrong}
    (maps / "index.json").write_text(json.dumps(index))

    made = {p.name for p in figures.write_figures(tmp_path)}
    assert made == {f"tomsett_figure{n}.{kind}" for n in ("1", "2a", "2b") for kind in ("png", "svg", "csv")}
    shown = pd.read_csv(tmp_path / "figures" / "tomsett_figure1.csv")
    picked = shown.drop_duplicates("class").set_index("class")["image_id"]
    assert picked["dog"] == "test-00015"  # the first dog is taken for something else
    assert "ship" in picked.index
    assert picked["ship"] == "test-00018"  # the model is unsure of the first ship
    assert (shown["confidence"] >= 0.99).all()
    distribution = pd.read_csv(tmp_path / "figures" / "tomsett_figure2b.csv")
    assert (distribution.query("item == 'undefined'")["value"] == 1).all()
    assert not list((tmp_path / "figures").glob(".*"))
    first = (tmp_path / "figures" / "tomsett_figure2b.svg").read_bytes()
    figures.figure_2b(tables.cells(scores)[0], tmp_path / "figures" / "tomsett_figure2b")
    assert (tmp_path / "figures" / "tomsett_figure2b.svg").read_bytes() == first

    names = {p.name for p in tables.write_tables(tmp_path, draws=50)}
    assert names == {f"tomsett_{n}.csv" for n in ("table1", "table2", "inter_method", "subsets", "subset_alpha")}
    written = pd.read_csv(claims.write_claims(tmp_path, draws=50))
    assert written["id"].tolist() == list(BY_ID)


def test_a_collected_run_shows_the_maps_of_its_parts(tmp_path):
    for name, seed in {"a": 1, "b": 0}.items():
        (tmp_path / name / "maps").mkdir(parents=True)
        (tmp_path / name / "maps" / "index.json").write_text("{}")
        (tmp_path / name / "run.json").write_text(json.dumps({"seed": seed}))
    runs = [str(tmp_path / name) for name in ("gone", "a", "b")]
    (tmp_path / "run.json").write_text(json.dumps({"runs": runs}))
    assert figures.kept_maps(tmp_path, 0) == tmp_path / "b" / "maps"
    assert figures.kept_maps(tmp_path, 2) is None


def test_names_are_broken_between_words():
    assert figures._title("sensitivity") == "Sensitivity"
    assert figures._title("edge") == "Edge\ndetection"


def test_no_scores_is_a_sentence(tmp_path):
    with pytest.raises(SalrunError, match=r"no tables/scores\.parquet"):
        tables.write_tables(tmp_path)
