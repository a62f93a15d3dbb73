"""The benches run end to end on a tiny network, compare at equal work, and write tables and figures one can read."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from salrun.errors import SalrunError
from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import bench_all
import bench_common as common
import bench_growth as growth
import bench_methods as methods
import bench_metrics as metrics
import bench_numerics as numerics
import bench_plan as plans

MODEL_FREE = {"edge", "random", "oracle", "all_lit", "fake_cam"}


def table(path: Path, name: str) -> dict[str, dict[str, str]]:
    with path.open() as file:
        return {row[name]: row for row in csv.DictReader(file)}


def quick(module, out: Path, *words: str) -> int:
    return module.main(["--quick", "--out", str(out), "--device", "cpu", *words])


# -- what they share ---------------------------------------------------------------------------------------------------


def test_jobs_take_turns_and_a_failure_is_reported():
    order = []

    def refuse():
        order.append("bad")
        raise RuntimeError("no such layer\nsecond line")

    jobs = {"a": lambda: order.append("a"), "bad": refuse, "b": lambda: order.append("b")}
    times, faults = common.take_turns(jobs, 2, "cpu")
    assert order == ["a", "bad", "b", "a", "b", "a", "b"]
    assert {name: len(t.seconds) for name, t in times.items()} == {"a": 2, "b": 2}
    assert faults == {"bad": "RuntimeError: no such layer"}


def test_a_failure_names_no_folder_of_this_machine():
    fault = ImportError("cannot import name 'f' from 'transformers.utils' (/home/me/env/lib/transformers/utils.py)")
    assert common.said(fault) == "ImportError: cannot import name 'f' from 'transformers.utils' (utils.py)"
    assert common.said(ValueError("24 images/s at http://a/b, 1/2")) == "ValueError: 24 images/s at http://a/b, 1/2"


@pytest.mark.parametrize(
    ("each", "limit", "rounds"), [(1.0, 100.0, 7), (1.0, 2.0, 3), (30.0, 10.0, 1), (100.0, 1.0, 1)]
)
def test_rounds_end_with_the_limit_but_three_are_tried(monkeypatch, each, limit, rounds):
    """Past the limit only the first three that count begin, and none past five times the limit."""
    clock = iter(np.arange(0, 1e6, each / 3))  # a job is two looks at it, a round three
    monkeypatch.setattr(common.time, "perf_counter", lambda: float(next(clock)))
    times, _ = common.take_turns({"a": lambda: None}, 7, "cpu", limit)
    assert len(times["a"].seconds) == rounds


def test_rates_are_medians_with_quartiles_and_ratios_are_of_the_same_round():
    slow, fast = common.Times([4.0, 2.0, 8.0]), common.Times([2.0, 1.0, 4.0])
    assert slow.rates("exact", 8) == {
        "exact": 2.0,
        "exact_low": pytest.approx(8 / 6),
        "exact_high": pytest.approx(8 / 3),
    }
    assert slow.over(fast) == (2.0, 2.0)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux only")
def test_peak_memory_is_what_one_call_needs_whatever_came_before():
    def job(mib: int):
        return lambda: [torch.ones(mib, 2**18) for _ in range(2)]

    large, small, large_again = (common.peak_memory(job(mib), "cpu") for mib in (40, 4, 40))
    assert large == pytest.approx(80, rel=0.1)
    assert small == pytest.approx(8, abs=2)
    assert large_again == pytest.approx(80, rel=0.1)


def test_on_cuda_time_waits_for_the_device_and_memory_is_of_its_allocator(monkeypatch):
    told = []
    for name in ("synchronize", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda name=name: told.append(name))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 100 * 2**20)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 150 * 2**20)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert common.peak_memory(lambda: told.append("job"), common.device_of("auto")) == 50
    assert told[1] == "reset_peak_memory_stats" and told[-3:] == ["synchronize", "job", "synchronize"]


def test_own_work_is_not_that_of_others(monkeypatch):
    busy, own, clock = iter([100.0, 130.0]), iter([5.0, 25.0]), iter([0.0, 10.0])
    monkeypatch.setattr(common, "_busy", lambda: next(busy))
    monkeypatch.setattr(common, "_own", lambda: next(own))
    monkeypatch.setattr(common.time, "perf_counter", lambda: next(clock))
    assert common.Watch().others() == pytest.approx(1.0)  # 30 s of work in 10 s, 20 of them ours


def test_a_loaded_machine_is_told(monkeypatch):
    watch = common.Watch()
    monkeypatch.setattr(common.Watch, "others", lambda self: 0.5)
    assert "NO" in watch.facts()["idle machine"]
    monkeypatch.setattr(common.Watch, "others", lambda self: 0.05)
    assert watch.facts()["idle machine"] == "yes"


# -- methods -----------------------------------------------------------------------------------------------------------


def test_methods_give_exact_and_fast_rates_against_floor_and_peer(tmp_path):
    names = ["gradient", "rise", "lime", "integrated_gradients", "iba", "fake_cam", "attention_rollout"]
    assert quick(methods, tmp_path, "--methods", *names) == 0
    rows = table(tmp_path / "methods.csv", "method")
    assert list(rows) == names
    assert all(float(row["exact"]) > 0 for row in rows.values())
    assert rows["fake_cam"]["floor"] == "" and rows["fake_cam"]["family"] == "baseline"
    rise = {key: float(rows["rise"][key]) for key in ("exact", "floor", "of_floor")}
    assert rise["of_floor"] == pytest.approx(rise["exact"] / rise["floor"])
    halved = common.fast_dtype(torch.device("cpu")) is not None
    served = {name for name, row in rows.items() if row["fast"]}
    assert served == ({"rise", "lime", "integrated_gradients"} if halved else set())
    text = (tmp_path / "methods.md").read_text()
    assert all(word in text for word in ("- processor: ", "- load at start: ", "- load at end: ", "- idle machine: "))
    assert text.count("| tiny |") == len(names) - 1 and text.count("| tiny_vit |") == 1
    assert rows["attention_rollout"]["family"] == "attention"


def test_missing_goes_on_and_minutes_end_it(tmp_path, capsys):
    assert quick(methods, tmp_path, "--methods", "gradient", "edge", "--minutes", "0") == 1
    assert "not measured (--missing goes on): tiny gradient, tiny edge" in capsys.readouterr().err
    assert quick(methods, tmp_path, "--methods", "edge") == 0
    before = table(tmp_path / "methods.csv", "method")["edge"]
    assert quick(methods, tmp_path, "--methods", "gradient", "edge", "--missing") == 0
    rows = table(tmp_path / "methods.csv", "method")
    assert set(rows) == {"edge", "gradient"} and rows["edge"] == before


def test_every_method_with_a_network_has_a_floor():
    case = next(methods.quick_cases("cpu"))
    names = {path.stem for path in methods.CONF.glob("*.yaml")} - {"captum", "file"}
    for name in sorted(names):
        passes = methods.floor(name, methods.load_method(name, case.work.get(name, {})), case)
        assert (passes == {}) == (name in MODEL_FREE)
        assert all(kind in methods.PASSES and count > 0 for kind, count in passes.items())


PACKAGES = {"captum": "captum", "grad-cam": "pytorch_grad_cam", "torch-cam": "torchcam", "zennit": "zennit"}
PACKAGES |= {"shap": "shap", "lime": "lime", "pnpxai": "pnpxai", "lxt": "lxt.efficient"}
PAIRS = [(name, peer) for name, peers in methods.PEERS.items() for peer in peers]


def test_all_peers_are_there():
    assert {peer for _, peer in PAIRS} == set(PACKAGES)


@pytest.mark.parametrize(("name", "peer"), PAIRS)
def test_a_peer_runs_and_leaves_our_network_alone(name, peer):
    pytest.importorskip(PACKAGES[peer])
    if (name, peer) == ("lrp_epsilon", "captum"):
        pytest.skip("captum's LRP has no rule for Flatten: the table says so")
    case = next(case for case in methods.quick_cases("cpu") if case.takes(name))
    jobs, faults = methods.contestants(name, methods.load_method(name, case.work.get(name, {})), case)
    assert peer not in faults
    common.seconds(jobs[peer], "cpu")
    assert not any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in case.model.modules())


# -- metrics -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def metric_case():
    case = next(metrics.quick_cases("cpu"))
    case.model.n_logits(case.x)  # asked once, whatever the metrics
    return case


@pytest.mark.parametrize("name", metrics.FAMILIES)
def test_a_metric_and_its_peer_show_the_network_as_many_images(metric_case, name):
    case = metric_case
    shown: list[int] = []
    handle = case.model.module.register_forward_hook(lambda module, inputs, output: shown.append(len(inputs[0])))
    try:
        metric = metrics.metric_of(name, case)
        metrics.ours(case, metric, case.model)()
        ours = sum(shown)
        assert ours == case.batch * metrics.passes_of(metric, case) or name == "irof"  # superpixels are about as many
        if name in metrics.PEERS:
            pytest.importorskip("pytorch_grad_cam" if "grad-cam" in metrics.PEERS[name][0] else "quantus")
            job = metrics.PEERS[name][1](case)
            shown.clear()
            common.seconds(job, "cpu")
            assert sum(shown) > ours if name in metrics.MORE_WORK else sum(shown) == ours
    finally:
        handle.remove()


@pytest.mark.parametrize("name", metrics.SEVERAL)
def test_several_methods_share_what_no_map_has_a_part_in(metric_case, name):
    pytest.importorskip("quantus")
    case, metric, n = metric_case, metrics.metric_of(name, metric_case), metrics.METHODS
    shown: list[int] = []
    handle = case.model.module.register_forward_hook(lambda module, inputs, output: shown.append(len(inputs[0])))

    def counted(job):
        shown.clear()
        common.seconds(job, "cpu")
        return sum(shown)

    try:
        shared = case.batch * metric.shared_passes(case.model, case.shape)
        one = counted(metrics.ours(case, metric, case.model))
        assert counted(metrics.ours(case, metric, case.model, n)) == n * one - (n - 1) * shared
        build = metrics.PEERS[name][1]
        assert counted(metrics.one_by_one(build, n)(case)) == n * counted(build(case))
    finally:
        handle.remove()


def test_metrics_write_both_tables(tmp_path):
    pytest.importorskip("quantus")
    assert quick(metrics, tmp_path, "--metrics", "insertion", "average_drop", "engine") == 0
    rows = table(tmp_path / "metrics.csv", "metric")
    assert list(rows) == ["insertion", "average_drop"]
    assert rows["insertion"]["peer_name"] == "" and rows["insertion"]["passes"] == "6"
    engine = table(tmp_path / "engine.csv", "contestant")
    assert list(engine) == [
        "forward eager", "forward channels_last", "forward exact", "forward fast",
        "engine eager", "engine exact", "engine fast", "quantus PixelFlipping",
    ]  # fmt: skip
    assert all(float(row["rate"]) > 0 for row in engine.values())
    assert "of_best_forward" in (tmp_path / "engine.md").read_text()


# -- growth ------------------------------------------------------------------------------------------------------------


def test_methods_of_one_pass_share_it():
    case = next(methods.quick_cases("cpu"))
    shown: list[int] = []
    case.model.module.register_forward_hook(lambda module, inputs, output: shown.append(1))
    counts = {}
    for series, jobs in growth.methods(case, True):
        shown.clear()
        jobs[5]()
        counts[series] = len(shown)
    assert counts == {"together": 1, "each on its own": 5}


def test_memory_of_another_process_is_its_own(tmp_path):
    command = [sys.executable, "-c", "x = bytearray(200 * 2**20)"]
    assert 200 < growth.watched(command, {}) < 300
    with pytest.raises(RuntimeError, match="no such thing"):
        growth.watched([sys.executable, "-c", "raise SystemExit('no such thing')"], {})


def test_whole_runs_are_read_from_their_record(monkeypatch):
    commands = []

    def run(command, environment):
        commands.append(command)
        out = Path(command[-1].partition("=")[2])
        out.mkdir(parents=True)
        (out / "run.json").write_text('{"timings": {"maps and scores": 1.5}}')
        assert environment["SALRUN_CACHE"].startswith(str(out.parent))
        return 700.0

    monkeypatch.setattr(growth, "watched", run)
    rows = growth.images()
    assert [(row["n"], row["seconds"], row["mib"]) for row in rows] == [(24, 1.5, 700), (72, 1.5, 700), (240, 1.5, 700)]
    assert all(command[1:4] == ["-m", "salrun", "+experiment=smerf_simple_fr"] for command in commands)


def test_a_plan_that_was_wrong_is_named(tmp_path, monkeypatch):
    def run(command, environment):
        if "+experiment=tomsett_cifar10" in command:
            raise RuntimeError("salrun: \nno CIFAR-10 here")
        out = Path(next(word for word in command if word.startswith("hydra.run.dir=")).partition("=")[2])
        out.mkdir(parents=True)
        seconds = 20.0 if "+experiment=yona_mnist_halves" in command else 10.0
        facts = {"plan": {"images": 5, "passes": 100, "seconds": 12.0}, "timings": {"data": 1, growth.STAGE: seconds}}
        (out / "run.json").write_text(json.dumps(facts))
        return 700.0

    monkeypatch.setattr(plans, "watched", run)
    plans.main(["--out", str(tmp_path)])
    page = (tmp_path / "plan.md").read_text()
    assert "more than 1.5 x off: salrun +experiment=yona_mnist_halves scale=laptop\n" in page
    assert "left out: +experiment=tomsett_cifar10 scale=smoke: no CIFAR-10 here\n" in page
    assert [row["ratio"] for row in common.read_table(tmp_path / "plan", ["run"])] == [1.2, 0.6, 1.2]


def test_effects_of_half_precision_are_told_and_not_refused(tmp_path, monkeypatch):
    def found(words, store):
        if "+experiment=tomsett_cifar10" in words:
            raise SalrunError("no CIFAR-10 here")
        effect = {"metric": "deletion", "shift": 0.3, "rank": 0.97, "images": 16, "small": False}
        return [effect] if "+experiment=zhang_fidelity" in words else []

    monkeypatch.setattr(numerics, "effects", found)
    numerics.main(["--out", str(tmp_path)])
    page = (tmp_path / "numerics.md").read_text()
    assert "0 of 1 scores within the bounds, largest shift 0.3 standard errors, lowest rank 0.970, 16 images" in page
    assert "nothing is computed in half precision" in page and "- left out: tomsett: no CIFAR-10 here\n" in page
    assert len(common.read_table(tmp_path / "numerics", ["run"])) == 2


# -- all of it ---------------------------------------------------------------------------------------------------------


def test_one_run_gives_tables_figures_and_the_readme_block(tmp_path, monkeypatch, capsys):
    pytest.importorskip("quantus")
    few = {methods: "--methods gradient rise", metrics: "--metrics deletion engine", growth: "--axes masks"}
    for module, words in few.items():
        main = module.main
        monkeypatch.setattr(module, "main", lambda argv, main=main, words=words: main([*argv, *words.split()]))
    readme, out = tmp_path / "README.md", tmp_path / "bench"
    readme.write_text("before\n<!-- bench:begin -->\nold\n<!-- bench:end -->\nafter\n")
    assert quick(bench_all, out, "--readme", str(readme)) == 0
    for name in ("methods.svg", "metrics.svg", "growth.svg"):
        assert 0 < (out / name).stat().st_size < 200_000
    page, text = (out / "README.md").read_text(), readme.read_text()
    assert "below 0.95 of the floor: " in page and "masks x 4 (rise): time x " in page
    assert text.startswith("before\n<!-- bench:begin -->\n- 2 methods on 1 networks") and text.endswith("-->\nafter\n")
    assert "methods.svg" in text and "old" not in text
    printed = capsys.readouterr().out
    assert printed.startswith("at most 35 minutes") and "load at start: " in printed and "load at end: " in printed
