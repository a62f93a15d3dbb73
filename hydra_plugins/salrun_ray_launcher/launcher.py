"""Ray's launcher, but waiting for every job: its own gives up at the first whose worker was killed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

log = logging.getLogger("salrun.sweep")

if find_spec("hydra_plugins.hydra_ray_launcher"):  # pip install 'salrun[ray]'; Hydra imports this file always
    from hydra_plugins.hydra_ray_launcher import ray_launcher

    class RayLauncher(ray_launcher.RayLauncher):
        """A worker of Ray for each job; what became of it is in the job's own files."""

        def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[Any]:
            from hydra_plugins.hydra_ray_launcher import _core

            _core.ray = SimpleNamespace(get=_result)  # the one thing that it asks of ray
            return super().launch(job_overrides, initial_job_idx)


def _result(job: Any) -> Any:
    import ray
    from hydra.core.utils import JobReturn, JobStatus

    try:
        return ray.get(job)
    except ray.exceptions.RayError as fault:
        log.warning("a job's worker ended: %s", str(fault).strip().splitlines()[0])
        return JobReturn(status=JobStatus.COMPLETED)
