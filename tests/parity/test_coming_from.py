"""docs/coming_from.md: what it calls theirs exists, what it calls ours runs."""

from __future__ import annotations

import re

import pytest
import torch
import yaml

import salrun
from salrun.config.parts import method_part, metric_parts
from salrun.models.vit import VisionTransformer
from tests.conftest import ROOT
from tests.toys import images, network, seeded

PAGE = (ROOT / "docs" / "coming_from.md").read_text(encoding="utf-8")
METHODS, METRICS = PAGE.split("## Metrics")
ROW = re.compile(r"^\| `([\w.]+)` \| `([^`]+)` \|", re.MULTILINE)
CHEAP = {"n_samples": 8, "n_masks": 8, "n_segments": 4, "steps": 4, "copies": 2, "samples": 2}
CHEAP |= {"n_draws": 4, "measures": ["spearman"]}  # HOG needs larger maps
MASK = {"object": torch.arange(256).view(1, 16, 16).expand(2, 16, 16) < 80}
ROLE = {"object": torch.ones(2, dtype=torch.int64)}


def ours(text: str) -> tuple[str, dict]:
    name, *options = text.split()
    return name, {key: yaml.safe_load(value) for key, value in (option.split("=") for option in options)}


@pytest.mark.parametrize("theirs", sorted({theirs for theirs, _ in ROW.findall(PAGE)}))
def test_theirs_exists(theirs: str) -> None:
    module, _, name = theirs.rpartition(".")
    if module.startswith("xplique"):
        pytest.skip("needs TensorFlow")
    assert hasattr(pytest.importorskip(module), name)


@pytest.mark.parametrize("text", sorted({here for _, here in ROW.findall(METHODS)}))
def test_our_method_runs(text: str) -> None:
    name, options = ours(text)
    declared = vars(method_part(name).method)
    few = {key: value for key, value in CHEAP.items() if key in declared and key not in options}
    x = images(2, 16).float()
    reads_attention = "attention" in method_part(name).method.needs
    net = seeded(lambda: VisionTransformer(16, 4, 8, 2, 2, 8)) if reads_attention else network(16).eval()
    layer = None if reads_attention else "1"
    raw = salrun.explain(net, x, [1, 0], name, background=images(4, 16).float(), layer=layer, **few, **options)
    assert raw.shape[0] == 2 and raw.shape[2:] == (16, 16) and raw.isfinite().all()


@pytest.mark.parametrize("text", sorted({here for _, here in ROW.findall(METRICS)}))
def test_our_metric_runs(text: str) -> None:
    name, options = ours(text)
    declared = vars(metric_parts(name)[0].metric)
    few = {key: value for key, value in CHEAP.items() if key in declared and key not in options}
    x = images(2, 16).float()
    scores = salrun.evaluate(
        network(16).eval(),
        x,
        [1, 0],
        x.sum(1, keepdim=True),
        name,
        masks=MASK,
        roles=ROLE,
        method="gradient",
        other_maps={"random": x[:, :1]},
        **few,
        **options,
    )
    assert len(scores.flags) == 2


def test_every_toolkit_of_the_page_is_there() -> None:
    rows = ROW.findall(PAGE)
    assert len(rows) >= 50
    assert {theirs.split(".")[0] for theirs, _ in rows} == {
        *("captum", "pytorch_grad_cam", "torchcam", "zennit", "quantus", "xplique", "pnpxai", "lxt")
    }
