"""Verifications that were measured once for a whole test session: stores of tests are new, their models are not.

The memory is asked where a store knows nothing, by what a store would be asked by, and for TextBox's shipped and
trained models alone; a store is written as ever. What it saves is a second or two in each of some hundred runs.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from salrun.datasets.textbox import TextBox
from salrun.models import verification
from salrun.models.verification import Verification
from salrun.store.files import write_atomic
from salrun.types import Dataset

PLACE = "SALRUN_TESTS_VERIFIED"  # the folder of the session; unset: nothing is remembered
HASH = 16  # characters at least of a fingerprint that says which weights they are


def remember() -> None:
    """Let `verify` look into the session's folder, if there is one."""
    if PLACE in os.environ and verification.verify is VERIFY:
        verification.verify = _verify


def _verify(model: nn.Module, data: Dataset, gate: Mapping[str, float], device: torch.device) -> Verification:
    weights = str(getattr(model, "fingerprint", ""))
    if type(data) is not TextBox or len(weights) < HASH or PLACE not in os.environ:
        return VERIFY(model, data, gate, device)
    asked = [weights, data.fingerprint(), "flips" in gate, gate.get("images"), device.type]
    path = Path(os.environ[PLACE], hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest())
    if not path.exists():
        write_atomic(path, pickle.dumps(VERIFY(model, data, gate, device)))
    return replace(pickle.loads(path.read_bytes()), gate=dict(gate))


VERIFY = verification.verify
