"""tests/verified.py: what tests remember of a model's verification is what was measured of these weights and data."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from salrun.config.check import check
from salrun.config.compose import compose_config
from salrun.config.parts import dataset_part
from salrun.models import verification
from salrun.models.verification import Verification
from tests import verified


def test_a_verification_is_remembered_by_weights_data_and_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["dataset=textbox", "reasoning=simple_nr", "model=smerf_simple", "methods=[edge]", "metrics=[pafl]"]
    data, other = (
        dataset_part(check(compose_config([*words, f"dataset.background={b}"]))["dataset"]) for b in ("black", "noise")
    )
    measured: list[float] = []

    def verify(model: object, *given: object) -> Verification:
        measured.append(len(measured) / 10)
        return Verification("validation", measured[-1])

    monkeypatch.setenv(verified.PLACE, str(tmp_path))
    monkeypatch.setattr(verified, "VERIFY", verify)
    cpu, gate = torch.device("cpu"), {"accuracy": 0.9}

    def accuracy(weights: str = "0123456789abcdef", data: object = data, gate: dict[str, float] = gate) -> float:
        found = verified._verify(SimpleNamespace(fingerprint=weights), data, gate, cpu)
        assert found.gate == gate or weights == "f"
        return found.accuracy

    assert accuracy() == accuracy(gate={"accuracy": 0.5}) == 0.0
    others = [accuracy("f" * 16), accuracy(data=other), accuracy(gate={"flips": 1.0}), accuracy(gate={"images": 9})]
    assert others == [0.1, 0.2, 0.3, 0.4]
    assert (accuracy("f"), accuracy("f")) == (0.5, 0.6), "a name is no hash: never remembered"


def test_tests_ask_the_memory() -> None:
    assert verification.verify is verified._verify
