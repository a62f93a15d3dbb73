"""The report: what it says, what it survives, and that packed maps unpack to what was measured."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
import subprocess
import sys
import zlib
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from safetensors.numpy import load_file, save_file

from salrun.errors import SalrunError
from salrun.papers.captions import captions
from salrun.report import gallery, page, write_joint_report, write_report
from salrun.report.answer import bar, six_maps
from salrun.report.pictures import coloured, data_uri
from salrun.results.comparison import compare_runs
from salrun.results.run import Run
from tests.fake_run import METRICS, make_run

SOME = ["gradient", "grad_cam", "random"]
HOSTILE = '<img src=x onerror="hacked=1"> </script><script>hacked=1</script> \' " & {{ 7*7 }}'


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("made") / "run", n_images=24, methods=SOME, side=16)


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "run")


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def meta(html: str) -> dict:
    return json.loads(re.search(r'<script type="application/json">(.*?)</script>', html, re.S)[1])


def unpack(html: str, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The slow twin of the browser: inflate, then add up the differences along the last axis but one."""
    packed = re.search(rf'data-blob="{name}">([^<]*)<', html)[1]
    data = np.frombuffer(zlib.decompress(base64.b64decode(packed)), np.uint8).reshape(shape)
    if meta(html)["delta"][name]:
        data = np.cumsum(data, axis=-2, dtype=np.uint8)
    return data


# --- packing ---------------------------------------------------------------------------------------------------------


def test_packed_maps_unpack_to_the_planes(run: Path) -> None:
    html = text(write_report(run))
    info = meta(html)
    assert [m["name"] for m in info["methods"]] == SOME
    for number, method in enumerate(info["methods"]):
        plane = load_file(run / "maps" / f"{method['name']}.safetensors")["plane"].astype(np.float64)
        codes = unpack(html, f"map{number}", (24, 16, 16, 1))[..., 0].view(np.int8)
        scale = np.array(method["scale"])[:, None, None]
        np.testing.assert_allclose(scale[:, 0, 0], np.abs(plane).max((1, 2)), rtol=1e-4)
        assert np.abs(codes / info["levels"] * scale - plane).max() <= (0.51 / info["levels"] * scale).max()
    assert (unpack(html, "images", (24, 16, 16, 3)) == load_file(run / "maps" / "images.safetensors")["x"]).all()


def test_packed_scores_are_those_of_the_table(run: Path) -> None:
    html = text(write_report(run))
    info = meta(html)
    labels = [m["label"] for m in info["metrics"]]
    assert labels == [*sorted(METRICS), "confidence"]
    assert [m["direction"] for m in info["metrics"]] == [*(METRICS[m] for m in sorted(METRICS)), "none"]
    values = unpack(html, "values", (7, 4, 24 * 4, 1))[..., 0].copy().view("<f4")
    flags = unpack(html, "flags", (7, 4, 24, 1))[..., 0]
    seen = 0
    for row in Run(run).scores.itertuples():
        at = labels.index(row.metric), SOME.index(row.method), info["image_id"].index(row.image_id)
        np.testing.assert_allclose(values[at], np.float32(row.value))
        assert info["flags"][flags[at]] == row.flag
        seen += 1
    assert seen == 24 * 3 * 6
    for row in Run(run).images.itertuples():
        at = labels.index("confidence"), len(SOME), info["image_id"].index(row.image_id)
        np.testing.assert_allclose(values[at], np.float32(row.confidence))
    assert np.isnan(values[labels.index("confidence"), 0]).all()  # not a score of a map
    assert "degenerate_map" in info["flags"]


def test_a_confidence_that_is_no_number_is_undefined(run: Path) -> None:
    images = Run(run).images
    images.loc[images["image_id"] == images["image_id"][3], "confidence"] = np.nan
    images.to_parquet(run / "tables" / "images.parquet")
    html = text(write_report(run))
    info = meta(html)
    number = [m["label"] for m in info["metrics"]].index("confidence")
    flags = unpack(html, "flags", (7, 4, 24, 1))[number, len(SOME), :, 0]
    told = {name: info["flags"][flag] for name, flag in zip(info["image_id"], flags, strict=True)}
    assert [name for name, flag in told.items() if flag == "undefined"] == [images["image_id"][3]]


def test_a_factor_taken_out_of_the_maps_counts_for_the_shared_scale(run: Path) -> None:
    path = run / "maps" / "gradient.safetensors"
    plane = load_file(path)["plane"].astype(np.float32)
    largest = np.abs(plane).max((1, 2))
    factor = np.arange(1, 25, dtype=np.float32) * largest
    save_file({"plane": (plane / largest[:, None, None]).astype(np.float16), "scale": factor}, path)
    methods = meta(text(write_report(run)))["methods"]
    np.testing.assert_allclose(methods[0]["scale"], factor, rtol=1e-3)


def test_labels_that_are_numbers_get_the_names_of_the_classes(run: Path) -> None:
    path = run / "maps" / "index.json"
    index = json.loads(path.read_text())
    index |= {"label": [0, 1] * 12, "prediction": [1, 1] * 12, "classes": ["cat", "dog"]}
    path.write_text(json.dumps(index))
    info = meta(text(write_report(run)))
    assert info["label"][:2] == ["cat", "dog"]
    assert info["prediction"][:2] == ["dog", "dog"]


@pytest.mark.parametrize(
    ("verification", "said"),
    [
        ({"model": {"passed": True}, "other": {"passed": False, "reason": "flips 0.5 < 0.95"}}, "model not verified"),
        ({"passed": True, "accuracy": 0.99}, "model verified"),
        ({}, "No verification is recorded"),
        ("not an object", "No verification is recorded"),
    ],
)
def test_verification_of_one_or_several_models(run: Path, verification: object, said: str) -> None:
    info = json.loads((run / "run.json").read_text()) | {"verification": verification}
    (run / "run.json").write_text(json.dumps(info))
    html = text(write_report(run))
    assert said in html
    assert ("flips 0.5 &lt; 0.95" in html) == ("not verified" in said)


def test_scores_through_a_view_per_method_share_a_name() -> None:
    rows = [("pafl", "a", "code", "gray"), ("pafl", "b", "code", "seismic"), ("pafl", "a", "text", "gray"),
            ("gini", "a", "", "sum"), ("iou", "a", "", "gray"), ("iou", "a", "", "seismic"), ("iou", "b", "", "gray"),
            ("confidence", "", "", "")]  # fmt: skip
    table = pd.DataFrame(rows, columns=["metric", "method", "mode", "view"]).assign(score="")
    names, views = gallery.name_scores(table)
    expected = ["pafl · code", "pafl · code", "pafl · text", "gini"]
    assert list(names) == [*expected, "iou · gray", "iou · seismic", "iou · gray", "confidence"]
    assert list(views) == ["gray", "seismic", "gray", "sum", "", "", "", ""]


def test_quantise_keeps_nan_apart_and_survives_empty_and_infinite_maps() -> None:
    plane = np.zeros((4, 2, 2), np.float32)
    plane[1] = [[1, -2], [np.nan, 0.5]]
    plane[2] = [[np.inf, -np.inf], [1, 0]]
    plane[3] = np.nan
    codes, scale = gallery.quantise(plane, 127)
    assert scale.tolist() == [0, 2, 1, 0]
    assert codes[0].tolist() == [[0, 0], [0, 0]]
    assert codes[1].tolist() == [[64, -127], [gallery.NAN, 32]]
    assert codes[2].tolist() == [[127, -127], [127, 0]]
    assert (codes[3] == gallery.NAN).all()


@pytest.mark.parametrize("shape", [(2, 224, 224), (1, 150, 113), (1, 7, 300), (1, 113, 226, 3), (1, 64, 64)])
def test_pool_is_the_mean_of_blocks(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    block = -(-max(shape[1:3]) // 112)
    pooled = gallery.pool(x)
    assert max(pooled.shape[1:3]) <= 112
    assert pooled.shape[1:3] == (-(-shape[1] // block), -(-shape[2] // block))
    for row in range(0, pooled.shape[1], 5):
        for col in range(0, pooled.shape[2], 5):
            part = x[:, row * block : (row + 1) * block, col * block : (col + 1) * block]
            np.testing.assert_allclose(pooled[:, row, col], part.mean(axis=(1, 2)), atol=1e-5)


def test_spread_takes_from_the_groups_in_turn() -> None:
    assert gallery.spread(list("aaabbc"), 4).tolist() == [0, 1, 3, 5]
    assert gallery.spread(list("aaab"), 99).tolist() == [0, 1, 2, 3]


def test_a_large_gallery_shrinks_to_fit_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MAX_BYTES", 450_000)
    monkeypatch.setattr(page, "MIN_GALLERY", 100_000)
    folder = make_run(tmp_path / "run", n_images=96, methods=["random", "gradient", "lime"])
    report = write_report(folder)
    info = meta(text(report))
    assert report.stat().st_size < 500_000
    assert info["levels"] == 31
    assert 12 <= len(info["image_id"]) < 96
    assert len(set(info["group"])) == 12  # every group keeps some
    assert f"{len(info['image_id'])} of 96 images are shown" in text(report)
    unpack(text(report), "flags", (7, 4, len(info["image_id"]), 1))  # the scores went with the images


def test_large_pictures_are_averaged_down_and_outlines_keep_their_coordinates(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", n_images=4, methods=["gradient"], side=224)
    html = text(write_report(folder))
    assert (meta(html)["width"], meta(html)["source"]) == (112, [224, 224])
    assert "averaged down from 224 x 224" in html
    boxes = json.loads((folder / "maps" / "index.json").read_text())["masks"]
    assert meta(html)["masks"] == boxes


# --- what the page says ----------------------------------------------------------------------------------------------


def plain(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", html))


def test_the_first_screen_is_the_answer(run: Path) -> None:
    """The sentence, the table with bars and the controls apart, what is said of the paper, six maps: then the rest."""
    html = text(write_report(run))
    (answer,) = compare_runs([Run(run)])
    first = html.split("What it says about the paper")[0].split("<main")[1]
    assert plain(first).index(answer.sentence[1:]) < plain(first).index("pafl ↑")
    assert "On this model: 2 hold, 1 fail, 1 uncertain of 4 statements it can speak about" in plain(first)
    own, controls = re.findall(r"<tbody.*?</tbody>", first.split('class="comparison"')[1].split("</table>")[0], re.S)
    assert re.findall(r'scope="row">([^<]*)<', own) == list(answer.methods) == ["gradient", "grad_cam"]
    assert re.findall(r'scope="row">([^<]*)<', controls) == ["random"]
    shown = {judged.metric: judged for judged in answer.shown}
    assert own.count('<svg class="bar"') == 2 * len(shown) == 2 * 5
    best = shown["pafl"].ranking["gradient"]
    assert f"{best.mean:.3f}*" in own and f"95% interval {best.low:.3f} to {best.high:.3f}" in own
    assert first.count("data:image/png") == 2 * (1 + 3)
    order = ["Answer", "What it says about the paper", "Gallery", "Figures", "All scores", "Models", "Details"]
    assert re.findall(r"<h2[^>]*>([^<]*)<", html) == order


def test_a_bar_goes_from_zero_to_the_mean(run: Path) -> None:
    (comparison,) = compare_runs([Run(run)])
    standing = replace(comparison.shown[0].ranking.methods[0], mean=0.5, low=0.25, high=0.75)
    drawn = str(bar(standing, 0.0, 1.0, 0.1))
    assert '<rect x="1.0" y="1" width="31.0"' in drawn
    assert 'd="M16.5 3.5H47.5"' in drawn
    assert 'class="axis" d="M7.2 0V7"' in drawn
    assert bar(replace(standing, mean=np.nan), 0.0, 1.0, 0.1) == ""


def test_the_maps_on_top_are_the_run_s_own(run: Path) -> None:
    shown = six_maps(Run(run), compare_runs([Run(run)])[0])
    assert [[name for name, _ in image.maps] for image in shown] == [["gradient", "grad_cam", "random"]] * 2
    pictures = load_file(run / "maps" / "images.safetensors")["x"]
    decoded = np.array(Image.open(io.BytesIO(base64.b64decode(shown[0].picture.split(",")[1]))))
    at = next(k for k, picture in enumerate(pictures) if (picture == decoded).all())
    index = json.loads((run / "maps" / "index.json").read_text())
    assert index["label"][at] == index["prediction"][at]
    plane = load_file(run / "maps" / "gradient.safetensors")["plane"][at].astype(np.float32)
    assert shown[0].maps[0][1] == data_uri(coloured(plane, True, decoded))


def test_details_say_command_scale_and_deviations_in_words(run: Path) -> None:
    said = plain(text(write_report(run)).split("<main")[1])
    assert "salrun +experiment=smerf_complex_cr2 scale=laptop seed=0" in said
    assert "repeats the smerf paper at scale laptop, seed 0, on cpu in float32." in said
    assert "3 methods were measured with 6 metrics on 24 images. It took 12 min 4 s." in said
    assert "RISE uses 1,000 masks." in said
    assert "Missing from this report" not in said
    assert "<summary>smerf_cnn: accuracy 0.993 on 6000 images, verified</summary>" in text(run / "report.html")


def test_verdicts_tables_model_and_figures_are_there(run: Path) -> None:
    html = text(write_report(run))
    for answer in ("yes", "no", "uncertain"):
        assert f'v-{answer}">{answer} (one model)</span>' in html
    assert "Listed apart, not counted (1)" in html and "not informative: a perfect map (oracle) does too" in html
    assert "Not tested here (1)" in html and "needs AlexNet and VGG16" in html
    assert "[0.170, 0.250]" in html
    assert html.count("data-at=") == 13 * 3 * 6  # 12 groups and all of them
    assert "0.993" in html  # model.csv
    assert "data:image/svg+xml;base64," in html  # the smaller of svg and png
    assert "<summary>Plotted numbers</summary>" in html


def test_a_run_of_one_s_own_has_no_paper_and_misses_nothing(run: Path) -> None:
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(facts | {"paper": None, "experiment": "custom", "deviations": []}))
    for path in [run / "claims.csv", *(run / "figures").glob("*")]:
        path.unlink(missing_ok=True)
    html = text(write_report(run))
    assert "<h1>smerf_cnn on textbox</h1>" in html
    assert not re.search(
        r"Missing|missing|verdicts|[Dd]eviations|about the paper", plain(html.split("<main")[1].split("Everything")[0])
    )
    assert "Figures" not in re.findall(r"<h2[^>]*>([^<]*)<", html)


def test_a_model_in_doubt_is_amber_and_said_on_top(run: Path) -> None:
    facts = json.loads((run / "run.json").read_text())
    facts["verification"]["model"] |= {"accuracy": 0.5, "n": 20, "gate": {}}
    (run / "run.json").write_text(json.dumps(facts))
    html = text(write_report(run))
    assert "model verified" not in html
    assert '<span class="state s-model-in-doubt">model in doubt</span>' in html.split("<nav")[0]
    assert "The model cannot be trusted: accuracy 0.50 is chance level (2 classes); its accuracy is of 20" in html


def test_a_figure_says_what_it_shows_and_what_to_see(run: Path) -> None:
    folder = run / "figures"
    for path in sorted(folder.glob("smerf_fig3.*")):
        shutil.copy(path, folder / f"smerf_figure2{path.suffix}")
        shutil.copy(path, folder / f"smerf_figure10_paper{path.suffix}")
    (folder / "smerf_captions.json").write_text(json.dumps({"smerf_figure2": "Mean and lowest PIOU."}))
    html = text(write_report(run))
    first, rest = html.split("What it says about the paper")
    assert "<strong>Figure 2.</strong> Mean and lowest PIOU." in first  # what most statements are about stands on top
    assert "What to see:" in rest and "Grad-CAM spares the secondary object" in rest.split("What to see:")[1]
    named = ["Figure 2.", "smerf fig3.", "Figure 10, metrics as in the text."]
    assert re.findall(r"<figcaption><strong>([^<]*)<", rest) == named
    assert captions("smerf", ["smerf_figure20"]) == {
        "smerf_figure20": "Worst bucket of every method on Simple-FR, Simple-NR, CR2."
    }
    assert captions("smerf", ["smerf_figure6a_paper"])["smerf_figure6a_paper"].startswith(
        "PAFL and SAFL, simple settings. PAFL: "
    )
    assert captions("smerf", ["smerf_pools"]) == {}


def test_nothing_is_fetched(run: Path) -> None:
    html = text(write_report(run))
    assert not re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', html)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)[1]
    assert policy.startswith("default-src &#39;none&#39;") or policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "@import" not in html
    assert "url(" not in html


def test_two_writings_are_the_same_bytes_and_nothing_is_left_behind(run: Path) -> None:
    before = set(run.iterdir())
    first = write_report(run).read_bytes()
    assert write_report(run).read_bytes() == first
    assert set(run.iterdir()) - before == {run / "report.html"}


def test_a_failed_writing_keeps_the_old_report(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = write_report(run)
    before = report.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(SalrunError, match="No space left"):
        write_report(run)
    assert not list(run.glob(".report*"))
    assert report.read_bytes() == before


# --- missing, broken and hostile -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("run.json", "run.json is missing."),
        ("config.yaml", "config.yaml is missing."),
        ("claims.csv", "No claim of a paper was tested here"),
        ("tables/summary.parquet", "There is no summary table"),
        ("tables/scores.parquet", "There are no scores under the maps: tables/scores.parquet is missing."),
        ("tables/model.csv", "There is no table of accuracies"),
        ("maps/index.json", "This run kept no maps"),
        ("maps/images.safetensors", "maps/images.safetensors is missing."),
        ("maps/gradient.safetensors", "gradient is not shown: maps/gradient.safetensors is missing."),
        ("figures/smerf_fig3.csv", "figures/smerf_fig3.csv is missing."),
    ],
)
@pytest.mark.parametrize("how", ["missing", "broken"])
def test_a_missing_or_broken_piece_is_named_and_the_rest_stands(run: Path, name: str, said: str, how: str) -> None:
    if how == "missing":
        (run / name).unlink()
    else:
        (run / name).write_bytes(b"\x80\x00{not it")
    html = text(write_report(run))
    assert "<h2" in html
    if how == "missing":
        assert said in html
    else:
        assert "cannot be read" in html
        assert Path(name).name in html


def test_an_empty_directory_makes_a_page_that_says_so(tmp_path: Path) -> None:
    html = text(write_report(tmp_path))
    for said in (
        "run.json is missing",
        "The command was not recorded",
        "not recorded.",
        "kept no maps",
        "nothing to compare",
    ):
        assert said in html


def test_no_directory_is_an_error_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SalrunError, match="no run directory at"):
        write_report(tmp_path / "nowhere")
    with pytest.raises(SalrunError, match="at least one run"):
        write_joint_report([], tmp_path / "x.html")


@pytest.mark.parametrize("wrong", ["short", "twice", "shape", "grey"])
def test_maps_that_do_not_fit_together_are_refused_in_words(run: Path, wrong: str) -> None:
    index = json.loads((run / "maps" / "index.json").read_text())
    if wrong == "short":
        index["masks"]["text"].pop()
    if wrong == "twice":
        index["image_id"][1] = index["image_id"][0]
    if wrong == "shape":
        small = {"plane": np.zeros((24, 8, 8), np.float16), "scale": np.ones(24, np.float32)}
        save_file(small, run / "maps" / "gradient.safetensors")
    if wrong == "grey":
        save_file({"x": np.zeros((24, 16, 16, 1), np.uint8)}, run / "maps" / "images.safetensors")
    (run / "maps" / "index.json").write_text(json.dumps(index))
    said = {"short": "does not have 24 entries in text", "twice": "names an image twice",
            "shape": "its maps have shape (8, 8)", "grey": "has 1 channels, expected 3"}  # fmt: skip
    assert said[wrong] in text(write_report(run))


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    folder = make_run(
        tmp_path / "run", n_images=12, methods=["gradient"], side=8, labels={"gradient": HOSTILE},
        command=f"salrun {HOSTILE}", experiment=HOSTILE, paper=HOSTILE, deviations=[HOSTILE], status=HOSTILE,
        versions={HOSTILE: HOSTILE}, verification={HOSTILE: [HOSTILE]}, scale=HOSTILE, device=HOSTILE,
    )  # fmt: skip
    index = json.loads((folder / "maps" / "index.json").read_text())
    for key in ("image_id", "group", "label", "prediction"):
        index[key] = [f"{HOSTILE}{i}" for i in range(12)]
    index["masks"] = {HOSTILE: index["masks"]["text"]}
    (folder / "maps" / "index.json").write_text(json.dumps(index))
    summary = pd.read_parquet(folder / "tables" / "summary.parquet")
    summary.assign(method=HOSTILE, mode=HOSTILE).to_parquet(folder / "tables" / "summary.parquet")
    claims = pd.read_csv(folder / "claims.csv", dtype=str)
    claims.assign(sentence=HOSTILE, holds=HOSTILE, measured=HOSTILE, counted=HOSTILE).to_csv(
        folder / "claims.csv", index=False
    )
    (folder / "tables" / "model.csv").write_text(f'"{HOSTILE.replace(chr(34), chr(34) * 2)}"\n1\n')
    (folder / "config.yaml").write_text(HOSTILE)
    html = text(write_report(folder))
    assert HOSTILE not in html
    assert "<img src=x" not in html
    assert "<script>hacked" not in html
    assert "49" not in re.findall(r"&amp; (\S+)", html)  # a template inside a name is not run
    assert html.count("<script") == html.count("</script>")
    assert meta(html)["methods"][0]["label"] == HOSTILE


def test_scores_of_several_models_are_not_mixed(run: Path) -> None:
    path = run / "tables" / "scores.parquet"
    scores = pd.read_parquet(path)
    pd.concat([scores, scores.assign(cell="ba9876543210", model="other", value=9.0)]).to_parquet(path)
    html = text(write_report(run))
    assert "those of model smerf_cnn, seed 0; the tables also have those of 1 more" in html
    values = unpack(html, "values", (7, 4, 24 * 4, 1))[..., 0].copy().view("<f4")
    assert np.nanmax(values) <= 1


def test_the_page_of_a_run_that_is_writing_it_says_done(tmp_path: Path) -> None:
    small = {"n_images": 12, "methods": ["gradient"], "side": 8}
    folder = make_run(tmp_path / "run", status="running", stage="report", **small)
    assert page._read_run(folder).status == "done"
    folder = make_run(tmp_path / "run", status="running", stage="maps and scores", **small)
    assert page._read_run(folder).status == "running"


def test_tables_of_another_schema_are_refused_in_one_line(run: Path) -> None:
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({k: v for k, v in facts.items() if k != "schema"}))
    with pytest.raises(SalrunError, match="has tables of schema 1, this salrun reads schema 2: run it again"):
        write_report(run)
    for table in ("scores", "summary", "cells", "images", "models", "claims", "curves"):
        with pytest.raises(SalrunError, match="schema 1") if table != "curves" else nullcontext():
            getattr(Run(run), table)


# --- several runs ----------------------------------------------------------------------------------------------------


def test_joint_report_has_a_chapter_per_paper(tmp_path: Path) -> None:
    small = {"n_images": 12, "methods": ["gradient"], "side": 8}
    runs = [
        make_run(tmp_path / "a b", experiment="smerf_simple_fr", **small),
        make_run(tmp_path / "b", experiment="smerf_complex_cr1", **small),
        make_run(tmp_path / "c", experiment="tomsett_cifar10", paper="tomsett", **small),
        make_run(tmp_path / "d", experiment="custom", paper=None, **small),
    ]
    for folder, name in zip(runs, ("smerf_simple_fr", "smerf_complex_cr1", "tomsett_cifar10", "custom"), strict=True):
        table = pd.read_parquet(folder / "tables" / "summary.parquet").assign(experiment=name)
        table.to_parquet(folder / "tables" / "summary.parquet")
    out = write_joint_report(runs, tmp_path / "joint" / "report.html")
    html = text(out)
    assert re.findall(r'<h2 class="paper"[^>]*>([^<]*)<', html) == ["smerf", "tomsett", "Other runs"]
    smerf, tomsett = html.split('<article class="chapter"')[1:3]
    assert "smerf_simple_fr" in smerf
    assert "smerf_complex_cr1" in smerf
    assert "smerf_simple_fr" not in tomsett
    assert "smerf_simple_fr: on this model: 2 hold" in smerf and "smerf_complex_cr1: on this model" in smerf
    assert "on this model: 2 hold" in tomsett and "tomsett_cifar10: on" not in tomsett
    assert ">experiment\n" in smerf  # a column, since it varies
    assert html.count("data-gallery>") == 4
    top = html.split('<article class="chapter"')[0]
    rows = re.findall(r'<tr[^>]*><th scope="row">([^<]*)<', top)
    own = "smerf_cnn on textbox, experiment=custom"  # the others are on that model and data set too
    assert rows == ["smerf_simple_fr", "smerf_complex_cr1", "tomsett_cifar10", own, "mean"]
    assert '<th scope="col"><span>gradient</span></th>' in top
    assert "<summary><strong>smerf_simple_fr</strong>: " in smerf
    assert 'href="../a%20b/report.html"' in smerf
    assert len(set(re.findall(r' id="([^"]*)"', html))) == len(re.findall(r' id="([^"]*)"', html))


def test_a_huge_summary_is_cut_and_says_so(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MAX_ROWS", 50)
    html = text(write_report(run))
    assert html.count("data-at=") == 50
    assert "The first 50 of 234 rows are here" in html


# --- small things ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0.12345, "0.123"), (1.0, "1.000"), (0.0, "0.000"), (3, "3"), (12345, "12,345"), (12345.6, "12,346"),
        (1.5e-5, "1.50e-05"), (-0.25, "-0.250"), (float("nan"), "n/a"), (None, "n/a"), ("", "n/a"), ("text", "text"),
        ("0.5", "0.500"), ("250", "250"), (np.int64(7), "7"), (np.float64(0.5), "0.500"), (float("inf"), "inf"),
        (2.5e9, "2.50e+09"),
    ],
)  # fmt: skip
def test_numbers(value: object, written: str) -> None:
    assert page.number(value) == written


@pytest.mark.parametrize(
    ("seconds", "written"), [(0.25, "0.25 s"), (48.4, "48 s"), (724, "12 min 4 s"), (12000, "3 h 20 min")]
)
def test_durations(seconds: float, written: str) -> None:
    assert page.duration(seconds) == written


def test_whisker_puts_the_dot_where_the_value_is() -> None:
    drawn = str(page.whisker(0.5, 0.25, 0.75, 0, 1))
    assert 'cx="60.0"' in drawn
    assert 'd="M33.0 7H87.0"' in drawn
    assert page.whisker(float("nan"), 0, 1, 0, 1) == ""


def test_the_package_is_light() -> None:
    code = "import sys, salrun.report; print(sorted({'pandas', 'jinja2', 'torch', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_writing_a_report_needs_no_torch(run: Path) -> None:
    code = (
        f"import sys; from salrun.report import write_report; write_report({str(run)!r}); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
