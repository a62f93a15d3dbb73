"""`salrun compare RUN...`: the table, how far each method is behind the best, what the metrics agree on, a figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from salrun.papers.comparison import draw_comparison
from salrun.report.console import amber, answer, decimals, joined, rounded, width, wrapped
from salrun.results.collect import why_not
from salrun.results.comparison import Comparison, Judged, compare_runs, write_comparison
from salrun.results.run import Run
from salrun.store.files import shown

MOST = 5  # differences, or pairs of metrics, that are printed; the tables have all


def compare_and_tell(paths: Sequence[Path], folder: Path) -> int:
    """Print the comparison of these runs; its tables and its figure are written to `folder`."""
    runs = [Run(path) for path in paths]
    for run in runs:
        if not run.done:
            print(f"left out: {shown(run.path)} ({why_not(run)})")
    comparisons = compare_runs([run for run in runs if run.done])
    write_comparison(comparisons, folder)
    columns = width()
    for comparison in comparisons:
        for line in [*answer(comparison, columns), "", *differences(comparison, columns), *agreement(comparison)]:
            print(line)
        if comparison.doubts:
            print(amber(f"the model cannot be trusted: {'; '.join(comparison.doubts)}"))
        print()
    if len(comparisons) > 1:
        print("\n".join([*joined(comparisons, columns), ""]))
    pictures = draw_comparison(comparisons, folder)
    print(f"tables:  {shown(folder)} (methods.csv, pairs.csv, agreement.csv)")
    print(f"figure:  {', '.join(map(shown, pictures))}")
    return 0


def differences(comparison: Comparison, columns: int) -> Iterator[str]:
    """Per metric: the best method, and what it is ahead of each other on the images both have, with its interval."""
    if len(comparison.methods) < 2:
        return
    yield "ahead of the others by (paired, 95% interval; = not told apart, Holm over all pairs):"
    for judged in comparison.shown:
        if judged.ranking.methods[1:]:
            yield from wrapped(f"  {judged.metric} {judged.arrow} {_ahead(judged)}", columns, "      ")


def _ahead(judged: Judged) -> str:
    best = judged.ranking.methods[0].method
    rows = judged.ranking.pairs[judged.ranking.pairs["first"] == best]
    places = decimals(rows["difference"].tolist(), 2)
    said = []
    for row in rows[:MOST].itertuples():
        size, low, high = (rounded(float(v), places) for v in (row.difference, row.ci_low, row.ci_high))
        said.append(f"{row.second} {size} [{low}, {high}]{'' if row.significant else ' ='}")
    more = f", {len(rows) - MOST} more in pairs.csv" if len(rows) > MOST else ""
    return f"{best}: {', '.join(said)}{more}"


def agreement(comparison: Comparison) -> Iterator[str]:
    """Do the metrics rank the methods alike? All together, and the pairs that do least and most."""
    table = comparison.agreement.dropna(subset="on_average").sort_values("on_average", kind="stable")
    if not len(table):
        return
    yield f"do the metrics agree? Kendall's W {comparison.concordance:.2f} (1: one order of the methods); Spearman:"
    for row in (table if len(table) <= MOST else pd.concat([table[:2], table[-2:]])).itertuples():
        yield f"  {row.first} and {row.second}: {row.on_average:.2f} on average, {row.within_images:.2f} within images"
    if len(table) > MOST:
        yield f"  {len(table) - 4} more in agreement.csv"
