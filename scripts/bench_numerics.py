"""What half precision does to each paper's metrics on their own data: the probe of `numerics=fast`, nothing refused.

    python scripts/bench_numerics.py --out docs/results/bench          # about ten minutes on two idle cores

Columns as in docs/scale.md. `small`: within the bounds at which a run of `numerics=fast` begins. yona's and smerf's
metrics show no image to the model, so there is nothing to measure. Experiments whose data is not here are left out.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench_common import finish, machine, parser, start, write_table

from salrun.config.check import check
from salrun.config.compose import compose_config
from salrun.errors import SalrunError
from salrun.pipeline.build import build
from salrun.pipeline.cell import obtain_models
from salrun.pipeline.numerics import measure
from salrun.pipeline.stages import Stages

ONE_PASS = "methods=[zhang/gradient,zhang/grad_cam,zhang/guided_backprop]"
COARSE = ("metrics.insertion.step=3584", "metrics.deletion.step=3584", "metrics.monotonicity.groups=14")
RUNS = {
    "smerf": ["+experiment=smerf_complex_cr2", "scale=laptop"],
    "tomsett": ["+experiment=tomsett_cifar10", "scale=smoke", "dataset.n_explained=64"],
    "yona": ["+experiment=yona_mnist_halves", "scale=smoke"],
    "zhang, CIFAR-10": [
        *("+experiment=zhang_fidelity", "scale=smoke", "dataset=cifar10", "model=tomsett_cnn"),
        *(ONE_PASS, "dataset.n_explained=64"),
    ],
    "zhang, ResNet-50": [
        *("+experiment=zhang_fidelity", "scale=laptop", "model=resnet50_v1", ONE_PASS, *COARSE),
        "dataset.n_explained=16",
    ],
}


def effects(words: list[str], store: Path) -> list[dict[str, Any]]:
    """What the probe of a run would find, and whether the run would begin."""
    cell = build(check(compose_config([*words, "numerics=fast", f"cache_dir={store}"])))
    stages = Stages(cell, {role: model.classifier for role, model in obtain_models(cell).items()})
    return [{**asdict(effect), "small": effect.small} for effect in measure(cell, stages).effects]


def main(argv: list[str] | None = None) -> int:
    options = parser(__doc__, 0.0).parse_args(argv)
    limits, watch = start(options)
    rows, lines, left = [], [], []
    for name, words in list(RUNS.items())[: 1 if options.quick else None]:
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = effects(words, Path(folder))
            except SalrunError as fault:  # no data, mostly
                left.append(f"{name}: {fault}")
                continue
        scored = [row for row in found if row["metric"]]
        rows += [{"run": name, **row} for row in found]
        line = f"- {name} (`salrun {' '.join(words)}`): "
        if scored:
            line += (
                f"{sum(row['small'] for row in scored)} of {len(scored)} scores within the bounds, largest shift "
                f"{max(row['shift'] for row in scored):.2g} standard errors, lowest rank "
                f"{min(row['rank'] for row in scored):.3f}, {max(row['images'] for row in scored)} images"
            )
        lines.append(line if scored else f"{line}nothing is computed in half precision")
        print(lines[-1], flush=True)
    title = ["# Effect of half precision", "", *(__doc__ or "").split("\n\n")[2].splitlines(), "", *lines]
    title += [f"- left out: {line}" for line in left]
    facts = machine(limits.device)  # without the load: nothing is timed here
    write_table(options.out / "numerics", title, rows or [{"run": "none"}], facts)
    return finish(watch, left, [])


if __name__ == "__main__":
    sys.exit(main())
