"""A short version of the kill campaign on Slurm and Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cluster import campaign
from tests.cluster.one_node_slurm import Slurm, one_node_slurm, why_not
from tests.cluster.place import LAUNCHERS

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all: the serial run is made once."""
    return tmp_path_factory.mktemp("campaign")


@pytest.fixture(scope="module")
def slurm(folder: Path) -> Iterator[Slurm]:
    if why_not():
        pytest.skip(f"no Slurm here: {why_not()}")
    with one_node_slurm(folder / "slurm") as daemons:
        yield daemons


@pytest.fixture(scope="module")
def accounted(folder: Path) -> Iterator[Slurm]:
    if why_not(accounting=True):
        pytest.skip(f"no Slurm with accounting here: {why_not(accounting=True)}")
    with one_node_slurm(folder / "accounted", accounting=True) as daemons:
        yield daemons


ATTACKS = [campaign.requeue, campaign.cancelled, campaign.database_down, campaign.ray_worker]


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_round_leaves_nothing_wrong(
    attack: Callable[[campaign.Round], int], folder: Path, request: pytest.FixtureRequest
) -> None:
    launcher = "local_ray" if "ray" in attack.__name__ else "slurm_cpu"
    if find_spec(f"hydra_plugins.{LAUNCHERS[launcher][0]}") is None:
        pytest.skip(f"{LAUNCHERS[launcher][0]} is not installed: pip install 'salrun[cluster,ray]'")
    fixture = "accounted" if attack in campaign.ACCOUNTED else "slurm"
    daemons = request.getfixturevalue(fixture) if launcher == "slurm_cpu" else None
    row = campaign.one_round(attack, 0, 1, folder / attack.__name__, daemons)
    assert not row["fault"] and row["kills"] > 0, row
