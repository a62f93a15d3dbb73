"""`salrun court`: the metrics of runs with a ladder, judged; or a metric of the user's, before the court."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from salrun.config.catalogue import load_file, register_module
from salrun.config.command import read_command
from salrun.config.compose import composed_run
from salrun.config.parts import entries
from salrun.errors import SalrunError
from salrun.papers.court import draw_court
from salrun.pipeline.job import perform
from salrun.results.court import RULE, judge, short_tables, write_court
from salrun.results.run import Run, runs_below
from salrun.results.scored import read_runs
from salrun.store.files import shown

BENCH = {"simple_nr": "smerf_simple", "complex_cr1": "smerf_complex"}  # what a new metric is tried on, shipped models
BESIDE = ("pafl", "piou", "deletion")  # the truth of methods, and one that everybody knows


def court_and_tell(paths: Sequence[Path], folder: Path) -> int:
    """Print the judgement of these runs; its tables and figures are written to `folder`."""
    runs = [path for path in paths if Run(path).done]
    tables = judge(read_runs(runs))
    if not tables:
        raise SalrunError("these runs have no ladder, and no order of maps is known: salrun +experiment=court_textbox")
    write_court(tables, folder)
    pictures = draw_court(tables, folder)
    print("\n".join(verdicts(tables)))
    print(f"tables:  {shown(folder)} (court.csv, agreement.csv, preferences.csv, fooled.csv)")
    print(f"figures: {', '.join(map(shown, pictures))}")
    return 0


def verdicts(tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """The court's table, best first, a line per metric at its default setting, the worst setting beside it."""
    lines = [
        "Agreement: Spearman of score and known order within an image, mean over images [95% interval]; 0 = chance.",
        "Worse: how often the worse of two maps scores higher, doses .25 apart; chance .5. Passes: per image and map.",
    ]
    for title, table in short_tables(tables["court"]):
        lines += ["", title, table.to_string(index=False)]
    return [*lines, "", *(f"{advice}: {why}" for advice, why in RULE.items()), ""]


def try_metric(word: str, settings: Sequence[str], folder: Path) -> int:
    """Put the metrics of a user's file before the court: shipped models, a minute each."""
    named = [entry.name for entry in entries(word, ("metrics",), where="salrun court")]
    register_module(load_file(Path(word)))
    metrics = ",".join([*BESIDE, *named])
    made = []
    for reasoning, model in BENCH.items():
        place = folder / "runs" / reasoning
        words = ["+experiment=court_textbox", "scale=laptop", f"reasoning={reasoning}", f"model={model}"]
        words += [f"metrics=[{metrics}]", "report=false", *settings]
        config, _ = composed_run(read_command(words))
        if fault := perform(config, place, words, told=False):
            raise fault
        made.append(place)
    return court_and_tell(runs_below(made), folder)
