"""MLflow: a run in a local folder or on a server, a sweep as the parent of its jobs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from salrun.store.leases import Lease
from salrun.tracking import Finished, plain

if TYPE_CHECKING:
    from mlflow import MlflowClient

BATCH = {"metrics": 1000, "params": 100}  # the most that one request takes
LONGEST = 6000  # characters of a parameter
# What MLflow's environment is where a user says nothing. At first: not minutes for a server that does not answer.
FIRST = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": "5"}
THEN = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
ALWAYS = {"MLFLOW_ALLOW_FILE_STORE": "true"}  # a folder takes no database; new versions ask whether one means it


@dataclass
class MLflow:
    """`uri`: a folder, sqlite:///file.db or http://server:5000; `experiment`: None takes the name of salrun's."""

    uri: str = "outputs/mlruns"
    experiment: str | None = None
    groups: bool = False

    def write(self, finished: Finished) -> str:
        from mlflow import MlflowClient

        name = self.experiment or finished.experiment
        with unless_set(ALWAYS | FIRST):
            client = MlflowClient(self.uri)
            client.get_experiment_by_name(name)
        with unless_set(ALWAYS | THEN):
            return self._tell(client, self._experiment(client, name), finished)

    def _tell(self, client: MlflowClient, experiment: str, finished: Finished) -> str:
        from mlflow.entities import Metric, Param

        tags = {f"salrun.{key}": text for key, text in finished.tags.items()}
        if finished.sweep is not None:
            tags |= {"salrun.sweep": finished.sweep.name, "mlflow.parentRunId": _parent(client, experiment, finished)}
        run = client.create_run(experiment, tags=tags, run_name=finished.name).info
        try:
            metrics = [Metric(name, value, run.start_time, 0) for name, value in finished.metrics.items()]
            params = [Param(plain(name), str(value)[:LONGEST]) for name, value in finished.parameters.items()]
            batches: dict[str, Any] = {"metrics": metrics, "params": params}
            for kind, entries in batches.items():
                for first in range(0, len(entries), BATCH[kind]):
                    some: dict[str, Any] = {kind: entries[first : first + BATCH[kind]]}
                    client.log_batch(run.run_id, **some)
            for name, path in finished.files.items():
                client.log_artifact(run.run_id, str(path), name.rpartition("/")[0] or None)
        except BaseException:
            client.set_terminated(run.run_id, "FAILED")
            raise
        client.set_terminated(run.run_id)
        return f"run {run.run_id} of experiment {experiment} in {self.uri}"

    @staticmethod
    def _experiment(client: MlflowClient, name: str) -> str:
        """Its id; made where there is none, which jobs of a sweep may do at once."""
        from mlflow.exceptions import MlflowException

        known = client.get_experiment_by_name(name)
        if known is not None:
            return str(known.experiment_id)
        try:
            return str(client.create_experiment(name))
        except MlflowException:
            known = client.get_experiment_by_name(name)
            if known is None:
                raise
            return str(known.experiment_id)


@contextmanager
def unless_set(variables: Mapping[str, str]) -> Iterator[None]:
    """Set those environment variables that are not set."""
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def _parent(client: MlflowClient, experiment: str, finished: Finished) -> str:
    """The run that stands for the sweep, made by the first of its jobs that is done."""
    assert finished.sweep is not None
    wanted = f"tags.`salrun.sweep` = '{finished.sweep.name}' and tags.`salrun.kind` = 'sweep'"
    with Lease(finished.sweep / ".mlflow.lease", f"sweep {finished.sweep.name}"):
        runs: list[Any] = list(client.search_runs([experiment], wanted, max_results=1))
        if not runs:
            tags = {"salrun.sweep": finished.sweep.name, "salrun.kind": "sweep", "salrun.folder": str(finished.sweep)}
            runs = [client.create_run(experiment, tags=tags, run_name=f"sweep {finished.sweep.name}")]
            client.set_terminated(runs[0].info.run_id)
    return str(runs[0].info.run_id)
