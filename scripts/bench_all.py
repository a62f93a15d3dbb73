"""`make bench`: methods, metrics and growth of cost in one run, their figures, and a page that sums them up.

python scripts/bench_all.py --out docs/results/bench --readme README.md            # at most 35 minutes
python scripts/bench_all.py --out docs/results/bench --readme README.md --missing  # go on where it stopped
python scripts/bench_all.py --out outputs/bench --quick
"""

from __future__ import annotations

import re
import statistics
import sys
from pathlib import Path
from typing import Any

import bench_growth
import bench_methods
import bench_metrics
from bench_common import GOAL, IDLE, finish, machine, parser, read_rows, read_table, shown, start
from bench_figures import speed_figure

Row = dict[str, Any]
SHARES = {bench_methods: 18.0, bench_metrics: 10.0, bench_growth: 4.0}  # minutes in which a row may begin
LAST_ROWS = 3.0  # minutes that those begun last may take
BLOCK = re.compile(r"(<!-- bench:begin -->\n).*?(<!-- bench:end -->)", re.DOTALL)


def middle(rows: list[Row], column: str) -> str:
    """The median of a column, and its range."""
    values = [row[column] for row in rows if row[column]]
    if not values:
        return "not measured"
    return f"{shown(float(statistics.median(values)))} ({shown(float(min(values)))} to {shown(float(max(values)))})"


def sentences(methods: list[Row], metrics: list[Row]) -> list[str]:
    """What README says: medians over rows, with the range."""
    names, networks = ({row[column] for row in methods} for column in ("method", "model"))
    return [
        f"- {len(names)} methods on {len(networks)} networks, median (range): {middle(methods, 'of_floor')} of the "
        f"rate of the eager passes they cannot avoid, {middle(methods, 'times_peer')} x the fastest peer at equal "
        f"work; those that `numerics` serves in half precision {middle(methods, 'fast_times_peer')} x.",
        f"- Metrics that ask the model: {middle(metrics, 'of_floor')} x the rate of their eager forward passes alone, "
        f"in half precision {middle(metrics, 'fast_of_floor')} x; against Quantus or grad-cam at equal work "
        f"{middle(metrics, 'times_peer')} x, in half precision {middle(metrics, 'fast_times_peer')} x.",
    ]


def look_for(rows: list[Row], device: str) -> list[str]:
    """What to look at before a figure is quoted."""

    def named(found: list[Row]) -> str:
        return ", ".join(f"{row['model']} {row.get('method') or row.get('metric')}" for row in found) or "none"

    wide = [row for row in rows if row["exact"] and row["exact_high"] > 1.2 * row["exact_low"]]
    lines = [
        f"- below {GOAL} of the floor: {named([row for row in rows if (row['of_floor'] or 1) < GOAL])}",
        f"- slower than a peer: {named([row for row in rows if (row['times_peer'] or 1) < 1])}",
        f"- half precision slower than exact: {named([r for r in rows if r['fast'] and r['fast'] < r['exact']])}",
        f"- quartiles more than a fifth apart: {named(wide)}",
        f"- others used more than {IDLE} cores: {named([row for row in rows if (row['others'] or 0) > IDLE])}",
        f"- fewer than three rounds: {named([row for row in rows if row['rounds'] < 3])}",
        f"- failures: {named([row for row in rows if row['note']])}",
    ]
    if device.startswith("cuda"):
        lines += [
            "- CUDA: batches are eight times those of a CPU; where rates still rise with `LARGER` (bench_methods.py),",
            "  the device waits for the host. `fast` should be well above `exact` from compute capability 8.0 on.",
            "  `others` counts processors: nvidia-smi shows other users of the device.",
        ]
    return lines


def write(out: Path, facts: dict[str, str], readme: Path | None, device: str) -> None:
    """README.md of the folder, the figures, and the block in the project's README."""
    methods = list(read_rows(out / "methods", "method").values())
    metrics = list(read_rows(out / "metrics", "metric").values())
    growth = read_table(out / "growth", ["axis", "mib"])
    speed_figure(methods, "method", out / "methods.svg")
    speed_figure(metrics, "metric", out / "metrics.svg")
    floored = [row for row in methods if row["floor"]]
    said = sentences(floored, metrics)
    text = ["# Bench", "", "By `make bench`; rows that a run does not measure again stay as they were:", ""]
    text += [*(f"- {key}: {value}" for key, value in facts.items()), ""]
    text += [*said, *bench_growth.verdicts(growth), "", "## Before quoting, look at", ""]
    text += [*look_for(methods + metrics, device), "", "## Tables", ""]
    text += [f"- [{name}]({name}.md)" for name in ("methods", "metrics", "engine", "growth")]
    text += ["", *(f"![{name}]({name}.svg)" for name in ("methods", "metrics", "growth"))]
    (out / "README.md").write_text("\n".join(text) + "\n")
    if readme is not None:
        block = [*said, "", f"![images per second, by method]({out}/methods.svg)", ""]
        block += [f"{facts['cores']} cores ({facts['processor']}), {facts['device']}, {facts['date']}; idle machine: "]
        block[-1] += f"{facts['idle machine']}."
        block += [f"All figures, memory and growth of cost: [{out}]({out}/README.md); again: `make bench`.", ""]
        readme.write_text(BLOCK.sub(lambda found: found[1] + "\n".join(block) + found[2], readme.read_text()))


def main(argv: list[str] | None = None) -> int:
    given = parser(__doc__, 15.0)
    given.add_argument("--readme", type=Path, help="the page whose bench block is written anew")
    options = given.parse_args(argv)
    total = sum(SHARES.values()) + LAST_ROWS
    print(f"at most {total:.0f} minutes on two idle cores; nothing else should run meanwhile", flush=True)
    limits, watch = start(options)
    code = 0
    for part, minutes in SHARES.items():
        words = ["--out", str(options.out), "--minutes", str(minutes), "--repeats", str(options.repeats)]
        words += ["--seconds", str(options.seconds)]
        words += ["--device", limits.device, *(["--threads", str(options.threads)] if options.threads else [])]
        words += [f"--{word}" for word in ("quick", "missing") if getattr(options, word)]
        code |= part.main(words)
    write(options.out, machine(limits.device) | watch.facts(), options.readme, limits.device)
    print((options.out / "README.md").read_text())
    return code | finish(watch, [], [])


if __name__ == "__main__":
    sys.exit(main())
