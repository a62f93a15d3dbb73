"""Is a plan's estimate right? Whole runs with an empty store, and what their plans said before.

    python scripts/bench_plan.py --out docs/results/bench          # a few minutes on two idle cores

`planned` and `took` are seconds of maps and scores; passes are forward passes. Experiments whose data is not here are
left out, and the page says so.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench_common import Watch, finish, machine, parser, shown, start, write_table
from bench_growth import STAGE, watched

RUNS = (
    "+experiment=smerf_complex_cr2 scale=laptop",
    "+experiment=tomsett_cifar10 scale=smoke",
    "+experiment=yona_mnist_halves scale=laptop",
    "+experiment=zhang_fidelity dataset=cifar10 model=tomsett_cnn scale=laptop dataset.n_explained=5",
)
RIGHT = 1.5  # times too high or too low


def measure(command: str) -> dict[str, Any]:
    """One run from nothing."""
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "salrun", *command.split(), f"hydra.run.dir={folder}/run", "report=false"]
        watched(words, {"SALRUN_CACHE": f"{folder}/store"})
        facts = json.loads(Path(folder, "run", "run.json").read_text())
    planned, took = facts["plan"]["seconds"], facts["timings"][STAGE]
    return {
        "run": f"salrun {command}", "images": facts["plan"]["images"], "passes": facts["plan"]["passes"],
        "planned": planned, "took": took, "ratio": planned / took, "all": sum(facts["timings"].values()),
        "others": watch.others(),
    }  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    options = parser(__doc__, 0.0).parse_args(argv)
    limits, watch = start(options)
    rows, left = [], []
    for command in RUNS[: 1 if options.quick else None]:
        try:
            rows.append(measure(command))
        except RuntimeError as fault:  # no data, mostly: the run says which
            left.append(f"{command}: {str(fault).strip().splitlines()[-1]}")
            continue
        print(", ".join(f"{name} {shown(value)}" for name, value in rows[-1].items()), flush=True)
    wrong = [row["run"] for row in rows if not 1 / RIGHT <= row["ratio"] <= RIGHT]
    title = [
        "# Plans and what became of them",
        "",
        *(line.strip() for line in (__doc__ or "").split("\n\n")[2].splitlines()),
        "`all`: the seconds of all stages. `others`: cores that other processes used.",
        "",
        f"- more than {RIGHT} x off: {', '.join(wrong) or 'none'}",
        *(f"- left out: {line}" for line in left),
    ]
    write_table(options.out / "plan", title, rows, machine(limits.device) | watch.facts())
    return finish(watch, left, [])


if __name__ == "__main__":
    sys.exit(main())
