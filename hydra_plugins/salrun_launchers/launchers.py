"""submitit's launchers, but waiting for every job: its own give up at the first that was killed."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

if find_spec("hydra_plugins.hydra_submitit_launcher"):  # pip install 'salrun[cluster]'; Hydra imports this file always
    from hydra_plugins.hydra_submitit_launcher import submitit_launcher

    class LocalLauncher(submitit_launcher.LocalLauncher):
        """A fresh process of this machine for each job."""

        def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[Any]:
            from salrun.sweep.submit import submit

            return submit(self, job_overrides, initial_job_idx)

    class SlurmLauncher(submitit_launcher.SlurmLauncher):
        """One Slurm job array."""

        launch = LocalLauncher.launch
