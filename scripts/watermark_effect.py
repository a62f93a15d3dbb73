"""What the watermark does to a class, paired with and without, beside its controls, on the same pictures.

    python scripts/watermark_effect.py                                60 pictures, ResNet-50, ImageNet's carton
    python scripts/watermark_effect.py seed=1 model=efficientnet_lite0 dataset.n_explained=100

Words are those of `salrun`. Per form: how many pictures the overlay turns into the class, in how many it raises the
class's logit, and by how much on average (95% interval, bootstrap over pictures); last a row of Latin letters.
"""

from __future__ import annotations

import sys

import numpy as np

from salrun.config.command import read_command
from salrun.config.compose import composed_run
from salrun.datasets.watermark import Watermark
from salrun.pipeline.build import build
from salrun.stats.bootstrap import mean_draws, percentile_interval

WORDS = ("dataset=watermark", "model=resnet50_v1", "methods=[random]", "metrics=[]", "dataset.n_explained=60")
EVERY = ("dataset.least=null", "dataset.turned=false")  # no picture is left out
FORMS = {form: f"dataset.form={form}" for form in ("text", "flipped", "mirrored", "scattered")}
FORMS["latin"] = "dataset.glyphs=[A,B,C,D,A,B,C,D]"


def main(words: list[str]) -> None:
    print("form       turned     raised     rise of the logit [95%]")
    model = None
    for form, word in FORMS.items():
        cell = build(composed_run(read_command([*WORDS, *words, *EVERY, word]))[0])
        data = cell.dataset
        assert isinstance(data, Watermark)
        model = model or cell.recipe.obtain(data.plain, cell.seed, cell.store, cell.device).classifier
        data.select(model, cell.device)
        rise = np.array([float(value) for value in data.image_facts(data.explained())["effect"]])
        low, high = (end[0] for end in percentile_interval(mean_draws(rise, np.random.default_rng(0))))
        turned, raised = (f"{k} of {len(rise)}" for k in (data.facts()["turned"], (rise > 0).sum()))
        print(f"{form:10} {turned:10} {raised:10} {rise.mean():+.2f} [{low:+.2f}, {high:+.2f}]", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
