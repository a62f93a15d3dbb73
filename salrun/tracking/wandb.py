"""Weights & Biases: a run that is kept offline unless one asks for more, a sweep as its group."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from salrun.tracking import Finished, plain


@dataclass
class WandB:
    """`mode`: offline keeps the run in `folder`/wandb, `wandb sync <run>` uploads it; online does at once."""

    project: str = "salrun"
    entity: str | None = None
    mode: Literal["offline", "online"] = "offline"
    folder: str = "outputs"
    groups: bool = False

    def write(self, finished: Finished) -> str:
        import wandb

        Path(self.folder).mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(silent=True, console="off", disable_git=True)
        if "WANDB_INIT_TIMEOUT" not in os.environ:
            settings.init_timeout = 20  # seconds for a server that does not answer; wandb's own 90
        wandb.setup(settings)  # silent from here on: it does not ask who one is, and wait
        run = wandb.init(
            project=self.project,
            entity=self.entity,
            mode=self.mode,
            dir=self.folder,
            name=finished.name,
            group=finished.sweep.name if finished.sweep else None,
            job_type=finished.experiment,
            config={**finished.parameters, **{f"salrun.{key}": text for key, text in finished.tags.items()}},
            settings=settings,
        )
        try:
            run.summary.update(dict(finished.metrics))
            run.log({f"figures/{name}": wandb.Image(str(path)) for name, path in finished.figures.items()})
            files = wandb.Artifact(plain(finished.name), type="run")
            for name, path in finished.files.items():
                files.add_file(str(path), name)
            run.log_artifact(files)
        except BaseException:
            run.finish(exit_code=1)
            raise
        run.finish()
        return run.url or str(Path(run.dir).parent)
