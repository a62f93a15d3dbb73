"""TensorBoard: event files with scalars, config, figures and the HParams table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from salrun.store.files import shown
from salrun.tracking import Finished


@dataclass
class TensorBoard:
    """Writes `<folder>/[<sweep>/]<run>/`; see it by `tensorboard --logdir <folder>`."""

    folder: str = "outputs/tensorboard"
    groups: bool = False

    def write(self, finished: Finished) -> str:
        from torch.utils.tensorboard.summary import hparams
        from torch.utils.tensorboard.writer import SummaryWriter

        folder = Path(self.folder).expanduser() / (finished.sweep.name if finished.sweep else "") / finished.name
        for earlier in folder.glob("events.out.tfevents.*"):  # of the same run: its points would show twice
            earlier.unlink()
        with SummaryWriter(str(folder)) as writer:
            for summary in hparams(dict(finished.parameters), dict(finished.metrics)):
                writer.file_writer.add_summary(summary)
            for name, value in finished.metrics.items():
                writer.add_scalar(name, value)
            for name, path in finished.figures.items():
                writer.add_image(name, np.asarray(Image.open(path).convert("RGB")), dataformats="HWC")
            for name, text in finished.tags.items():
                writer.add_text(name, f"`{text}`")
            if "report.html" in finished.files:
                writer.add_text("report", f"`{finished.files['report.html']}`")
        return shown(folder)
