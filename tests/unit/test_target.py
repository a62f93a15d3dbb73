"""A function of the output as the target, in Python and in configs; what reads probabilities says that it cannot."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import salrun
from salrun.cli import main as cli
from salrun.errors import SalrunError
from tests.toys import close, images, network, seeded

FILE = '''
def margin(logits, other=0):
    """How far class 1 is above another."""
    return logits[:, 1] - logits[:, other]

def both(logits):
    return logits
'''
WORDS = [
    *("dataset=textbox", "reasoning=simple_fr", "model=smerf_simple", "device=cpu", "paper=null", "report=false"),
    *("dataset.n_per_bucket=1", "controls=[]"),
]


def margin(logits):
    return logits[:, 2] - logits[:, 0]


def net():
    return network().double().eval()


def test_the_gradient_of_a_difference_is_the_difference_of_gradients():
    model, x = net(), images()
    one, other = (salrun.explain(model, x, c, "gradient") for c in (2, 0))
    close(torch.Tensor(salrun.explain(model, x, margin, "gradient")), torch.Tensor(one - other), 1e-10)


def test_integrated_gradients_of_a_cosine_are_complete():
    """An embedding's cosine to a reference, per image: the gain over the black image is shared out."""
    model, x = seeded(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softplus(), nn.Flatten())).double(), images()
    reference = torch.rand(4 * 36, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    cosine = lambda features: F.cosine_similarity(features, reference.expand_as(features))
    maps = salrun.explain(model, x, cosine, "integrated_gradients", steps=40)
    with torch.no_grad():
        gain = cosine(model(x)) - cosine(model(0 * x))
    close(torch.Tensor(maps).sum((1, 2, 3)), gain, 1e-6)


def test_segmentation_networks_and_dictionaries():
    """The mean logit of class 1 over a mask, of a network that gives a dictionary."""

    class Segmenter(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Conv2d(3, 2, 1)

        def forward(self, x):
            return {"out": self.layer(x), "aux": None}

    model, x = seeded(Segmenter).double(), images()
    mask = torch.zeros(8, 8, dtype=torch.float64)
    mask[2:5, 3:] = 1
    over_mask = lambda output: (output["out"][:, 1] * mask).sum((1, 2)) / mask.sum()
    expected = model.layer.weight[1].detach() * mask / mask.sum()
    close(torch.Tensor(salrun.explain(model, x, over_mask, "gradient")), expected.expand(3, -1, -1, -1), 1e-10)


@pytest.mark.parametrize("method", ["grad_cam", "occlusion", "smoothgrad", "score_cam", "lrp_epsilon", "vargrad"])
def test_other_methods_take_it_per_image(method):
    model, x = net(), images()
    few = {"n_samples": 4} if method in ("smoothgrad", "vargrad") else {}
    together = torch.Tensor(salrun.explain(model, x, margin, method, layer="1", **few))
    alone = torch.Tensor(salrun.explain(model, x[1:2], margin, method, layer="1", ids=["1"], **few))
    close(together[1:2], alone, 1e-9)


@pytest.mark.parametrize("method", ["rise", "lime", "kernel_shap", "iba"])
def test_methods_that_read_probabilities_say_so(method):
    with pytest.raises(SalrunError, match="probabilities need two classes or more"):
        salrun.explain(net(), images(), margin, method, background=images(4), layer="1")


def test_metrics_of_the_logit_take_it_and_others_say_so():
    model, x = net(), images()
    maps = salrun.explain(model, x, margin, "input_x_gradient")
    assert len(salrun.evaluate(model, x, margin, maps, "sensitivity_n").flags) == 3
    expected = (margin(model(x)) - margin(model(0 * x))).abs()
    close(salrun.evaluate(model, x, margin, 0 * maps[:, :1], "local_accuracy", output="logit").values, expected)
    masked = ("average_drop", "average_increase", "average_gain", "local_accuracy", "adcc")
    for metric in (*masked, "insertion", "irof", "road", "saco", "sufficiency"):
        with pytest.raises(SalrunError, match="probabilities need two classes or more"):
            salrun.evaluate(model, x, margin, maps, metric, method="input_x_gradient")


@pytest.mark.parametrize("wrong", [lambda out: out, lambda out: 3.0, lambda out: out.sum()])
def test_what_is_no_number_per_image_is_refused(wrong):
    with pytest.raises(SalrunError, match="must give one number per image"):
        salrun.explain(net(), images(), wrong, "gradient")


def test_in_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(FILE)
    more = ["methods=[gradient,grad_cam]", "metrics=[pafl,sensitivity_n]", f"cache_dir={tmp_path / 'store'}"]
    tables = []
    for target in ("{_target_: 'mine.py:margin'}", "{_target_: mine.margin, other: 0}", "predicted"):
        folder = tmp_path / str(len(tables))
        assert cli.run([*WORDS, *more, f"target={target}", f"hydra.run.dir={folder}"]) == 0
        tables.append(pd.read_parquet(folder / "tables" / "scores.parquet"))
    assert set(tables[0]["target"]) == {-1} and set(tables[2]["target"]) <= {0, 1}
    pd.testing.assert_series_equal(tables[0]["value"], tables[1]["value"])
    assert not tables[0]["value"].equals(tables[2]["value"])
    assert tables[0]["prediction"].equals(tables[2]["prediction"])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["target={_target_: 'mine.py:nothing'}"], "unknown name in mine.py 'nothing'"),
        (["target={_target_: 'there.py:f'}"], "there.py is not there"),
        (["target={_target_: 'mine.py:margin', othr: 1}"], "cannot be called so"),
        (["target={_target_: 'mine.py:both'}"], "must give one number per image"),
        (["target={_target_: 'mine.py:margin'}", "+methods.gradient.target=label"], "explains no class"),
        (["target={_target_: 'mine.py:margin'}", "metrics=[insertion]"], "probabilities need two classes or more"),
    ],
)
def test_mistakes_are_one_line(words, complaint, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(FILE)
    more = ["methods=[gradient]", f"cache_dir={tmp_path / 'store'}", f"hydra.run.dir={tmp_path / 'run'}"]
    asked = [] if any(w.startswith("metrics=") for w in words) else ["metrics=[pafl]"]
    assert cli.run([*WORDS, *more, *asked, *words]) == 2
    assert complaint in capsys.readouterr().err.strip().splitlines()[-1]
