"""Numbers that nobody should believe are flagged, said of the model, or refused."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import salrun
from salrun.config.check import check
from salrun.config.compose import compose_config
from salrun.errors import SalrunError
from salrun.metrics.common import settled
from salrun.models.checkpoint import fill
from salrun.models.classifier import Classifier
from salrun.models.pretrained import OwnModel
from salrun.models.soundness import Soundness, soundness
from salrun.models.verification import check_fit, verify
from salrun.pipeline import cell as pipeline
from salrun.pipeline.cell import score_tile
from salrun.results.run import Run
from salrun.types import FLAGS, OK, UNDEFINED, Score
from tests.torture.attacks import NET, OWN, own_home
from tests.toys import images, network


class Changed(nn.Module):
    """A network whose logits are changed."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.plain, self.change = network(), change

    def forward(self, x: Tensor) -> Tensor:
        return self.change(self.plain(x))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda z: z, ""),
        (lambda z: z * float("nan"), "no finite numbers"),
        (lambda z: z / 0, "no finite numbers"),
        (lambda z: 0 * z + 3, "the same logits for every image"),
        (lambda z: nn.functional.dropout(z, training=True), "two passes over the same images differ"),
        (lambda z: z - z.mean(0), "an image has other logits with others in its batch"),
    ],
)
def test_what_a_model_does_is_said(change: Any, said: str) -> None:
    torch.manual_seed(0)
    doubts = soundness(Classifier(Changed(change)).eval(), images(4, dtype=torch.float32)).doubts("model")
    assert any(said in doubt for doubt in doubts) if said else doubts == []


def test_a_row_of_logits_for_each_image_or_it_is_told() -> None:
    with pytest.raises(SalrunError, match="gives 3 rows of logits for 4 images"):
        soundness(Classifier(Changed(lambda z: z[: max(1, len(z) - 1)])).eval(), images(4, dtype=torch.float32))


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, torch.bool])
def test_logits_are_floats_or_it_is_told(dtype: torch.dtype) -> None:
    data: Any = SimpleNamespace(name="d", shape=(3, 8, 8), classes=["a"] * 3)
    model = Classifier(Changed(lambda z: z.to(dtype)))
    with pytest.raises(SalrunError, match=rf"model 'net' gives {str(dtype).removeprefix('torch.')} \(.*, not logits"):
        check_fit(model, data, "net", torch.device("cpu"))


def test_a_network_that_cuts_the_way_back_is_told() -> None:
    model, x = Changed(lambda z: z.detach()), images(2, dtype=torch.float32)
    with pytest.raises(SalrunError, match="the logits of model 'Changed' have no gradient"):
        salrun.explain(model, x, 0, "gradient")
    assert salrun.explain(model, x, 0, "occlusion", window=4, stride=4).shape[0] == 2


def test_what_is_no_finite_number_is_never_ok() -> None:
    score = Score(torch.tensor([float("nan"), float("inf"), 1.0]).double(), torch.zeros(3, dtype=torch.uint8))
    final = settled(score, images(3))
    assert [FLAGS[flag] for flag in final.flag.tolist()] == ["undefined", "undefined", "ok"]
    assert final.value.isnan().tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("needs", "varied", "flag"), [({"model"}, False, UNDEFINED), ({"model"}, True, OK), ((), False, OK)]
)
def test_scores_that_ask_a_model_of_constant_output_are_undefined(needs: Any, varied: bool, flag: int) -> None:
    asked = SimpleNamespace(needs=frozenset(needs), reads=tuple)
    metric = SimpleNamespace(name="m", mode="", metric=asked, view_name="raw", view_of=lambda part: None)
    part = SimpleNamespace(name="p", method=SimpleNamespace(needs=frozenset()))
    score = Score(torch.ones(2), torch.zeros(2, dtype=torch.uint8))
    stages = SimpleNamespace(
        open=lambda tile, role: SimpleNamespace(scores={}),
        score=lambda result, part, metric: {"": score},
        soundness=lambda role: Soundness(True, True, varied),
    )
    cell = SimpleNamespace(metrics=[metric], methods=[part])
    progress = SimpleNamespace(work=lambda tile, role, name: nullcontext())
    result = score_tile(cell, stages, None, "model", progress)  # type: ignore[arg-type]
    assert [each.flag.tolist() for each in result.scores.values()] == [[flag, flag]]


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.complex64])
def test_weights_of_another_kind_are_not_cast(dtype: torch.dtype) -> None:
    net = network()
    tensors = {name: value.to(dtype) if name == "3.bias" else value.half() for name, value in net.state_dict().items()}
    with pytest.raises(SalrunError, match=f"net.safetensors: 3.bias is {dtype}, the model has torch.float32"):
        fill(net, tensors, Path("net.safetensors"))


@pytest.mark.parametrize(
    ("classes", "mean", "std", "said"),
    [
        (1, [0.0], [1.0], "has one output, which is probability 1"),
        (3, [0.0], [0.0], "model.std must be above 0"),
        (3, [0.0], [float("inf")], "model.std must be above 0"),
        (3, [0.0], [float("nan")], "model.std must be above 0"),
        (3, [0.0], [1.0, 1.0], "normalises 2 channels"),
        (3, [], [1.0], "normalises 0 channels"),
    ],
)
def test_a_model_that_can_say_nothing_is_refused(classes: int, mean: list, std: list, said: str) -> None:
    data: Any = SimpleNamespace(name="d", shape=(3, 8, 8), classes=["a"] * classes)
    model = Classifier(network(classes=classes), mean, std)
    with pytest.raises(SalrunError, match=said):
        check_fit(model, data, "net", torch.device("cpu"))


def test_an_answer_that_is_no_number_is_not_right() -> None:
    x = images(4, dtype=torch.float32)
    data: Any = SimpleNamespace(
        verification_split="test",
        ids=lambda split: list("abcd"),
        images=lambda ids: (x, torch.zeros(4, dtype=torch.int64)),
        groups_of=lambda ids: ["g"] * 4,
    )
    model = Classifier(Changed(lambda z: z * float("nan"))).eval()
    assert verify(model, data, {}, torch.device("cpu")).accuracy == 0


def test_a_run_says_that_two_passes_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = own_home(tmp_path)
    (home / "mynet.py").write_text(NET.replace("self.conv(x)", "self.conv(torch.nn.functional.dropout(x))"))
    monkeypatch.chdir(home)
    monkeypatch.syspath_prepend(home)
    monkeypatch.delitem(sys.modules, "mynet", raising=False)
    config = check(compose_config([*OWN, f"cache_dir={home / 'store'}", "compile=off"]))
    made = Run(pipeline.run(config, home / "run", told=False))
    (doubt,) = (told for told in made.facts["deviations"] if told.startswith("UNSOUND MODEL"))
    assert "two passes over the same images differ" in doubt


def scripted() -> nn.Module:
    return torch.jit.trace(network(), images(1, dtype=torch.float32))


def lazy() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(3))


class Quantised(nn.Linear):
    """As torch's: its state holds what is no tensor."""

    def get_extra_state(self) -> object:
        return torch.qint8


def quantised() -> nn.Module:
    return nn.Sequential(nn.Flatten(), Quantised(192, 3))


@pytest.mark.parametrize(
    ("arch", "told"),
    [(scripted, "whose layers cannot be read"), (lazy, "with lazy layers"), (quantised, "are not all tensors")],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_network_that_cannot_be_read_is_told(arch: Any, told: str) -> None:
    with pytest.raises(SalrunError, match=f"^model.arch gives a .*{told}"):
        OwnModel("net", arch).load()
