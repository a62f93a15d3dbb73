"""The reproductions of docs/peers.md, run: each peer answers what the page says."""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import textwrap
import warnings

import numpy as np
import pytest
import torch

import salrun
from tests.parity.peer_cases import CASES, SEEN_WITH, Case


def test_all_are_here_and_short() -> None:
    """Five statements at most between the imports and the answer."""
    assert len(CASES) == 31
    for name, case in CASES.items():
        (function,) = ast.parse(textwrap.dedent(inspect.getsource(case.run))).body
        assert isinstance(function, ast.FunctionDef)
        steps = [n for n in function.body[1:-1] if not isinstance(n, ast.Import | ast.ImportFrom)]
        assert len(steps) <= 5, name
        assert isinstance(function.body[-1], ast.Return), name


@pytest.mark.parametrize("name", CASES)
def test_the_peer_answers_as_the_page_says(name: str) -> None:
    case = CASES[name]
    try:
        version = importlib.metadata.version(case.peer)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{case.peer} is not installed")
    if version != SEEN_WITH[case.peer]:
        pytest.skip(f"seen with {case.peer} {SEEN_WITH[case.peer]}, here is {version}")
    assert answer(case) == case.answer


def test_ours_leaves_the_image_as_found() -> None:
    """Beside captum_guided_backprop_leaves_a_hook_on_the_image."""
    net, x = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Conv2d(1, 1, 1, bias=False)), torch.ones(1, 1, 1, 1)
    torch.nn.init.constant_(net[1].weight, -1.0)
    net, x = net.append(torch.nn.Flatten()), x.requires_grad_()
    assert salrun.explain(net, x, [0], "guided_backprop").tolist() == [[[[0.0]]]]
    assert torch.autograd.grad(net(x).sum(), x)[0].tolist() == [[[[-1.0]]]]


def answer(case: Case) -> str:
    state = np.random.get_state()  # noqa: NPY002 (quantus draws from the global generator)
    with warnings.catch_warnings(), np.errstate(all="ignore"), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        np.random.seed(0)  # noqa: NPY002
        try:
            return repr(case.run())
        except Exception as fault:
            return type(fault).__name__
        finally:
            np.random.set_state(state)  # noqa: NPY002
