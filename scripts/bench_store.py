"""How many entries a second the store takes and gives with many processes at once, on the file system it lies on.

    python scripts/bench_store.py --root $SALRUN_CACHE/bench --processes 1 4 16

Every process does what a job does for a score: take a lease, look for the entry, write it (fsync, rename), read it,
release. Prints entries per second of all processes together, and of each step the median and the 99th percentile.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import time
from pathlib import Path

import numpy as np


def work(root: str, number: int, seconds: float, out: multiprocessing.Queue) -> None:
    import torch

    from salrun.store.entries import Store, key_of

    torch.set_num_threads(1)
    store = Store(Path(root))
    tensors = {"/value": torch.zeros(20, dtype=torch.float64), "/flag": torch.zeros(20, dtype=torch.uint8)}
    spent: dict[str, list[float]] = {"lease": [], "look": [], "write": [], "read": []}
    count, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        key = key_of("bench", process=number, count=count)
        marks = [time.monotonic()]
        lease = store.lease_of("tiles", key, "bench")
        lease.acquire()
        marks.append(time.monotonic())
        store.has("scores", key)
        marks.append(time.monotonic())
        store.write("scores", key, tensors)
        marks.append(time.monotonic())
        store.read("scores", key)
        marks.append(time.monotonic())
        lease.release()
        for name, begun, ended in zip(spent, marks, marks[1:], strict=False):
            spent[name].append(ended - begun)
        count += 1
    out.put(spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="an empty folder on the file system in question")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    steps = ("lease", "look", "write", "read")
    print(f"{'processes':>9}{'entries/s':>11}" + "".join(f"{f'{step} ms (99%)':>20}" for step in steps))
    for count in options.processes:
        out = context.Queue()
        jobs = [context.Process(target=work, args=(str(options.root), n, options.seconds, out)) for n in range(count)]
        for job in jobs:
            job.start()
        results = [out.get() for _ in jobs]
        for job in jobs:
            job.join()
        shutil.rmtree(options.root, ignore_errors=True)
        rate = sum(len(r["write"]) for r in results) / options.seconds
        row = f"{count:>9}{rate:>11.0f}"
        for name in steps:
            times = 1000 * np.concatenate([r[name] for r in results])
            row += f"{f'{np.median(times):.2f} ({np.percentile(times, 99):.1f})':>20}"
        print(row, flush=True)


if __name__ == "__main__":
    main()
