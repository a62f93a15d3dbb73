"""The verbs (`salrun list`, `salrun compare`, ...): each with its own parser, help and act."""

from __future__ import annotations

import argparse
import datetime
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from salrun.config.catalogue import GROUPS, load_plugins, names
from salrun.config.settings import folder_of
from salrun.errors import SalrunError, near, unknown
from salrun.store.files import shown


class Parser(argparse.ArgumentParser):
    """A parser that raises SalrunError where argparse prints its usage and exits."""

    def error(self, message: str) -> NoReturn:
        raise SalrunError(f"{self.prog}: {message}")


class Verb:
    """One verb. Its class docstring is its help; `words` says what it takes, `needs` what it cannot do without."""

    about = ""
    example = ""
    words: tuple[str, str] = ("", "")  # what the words are called, and what they are
    needs = ""

    @property
    def name(self) -> str:
        return type(self).__name__.lower()

    def parser(self) -> Parser:
        parser = Parser(
            prog=f"salrun {self.name}",
            description=self.__doc__,
            epilog=f"example: {self.example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.add_argument("words", nargs="*", metavar=self.words[0], help=self.words[1])
        return parser

    def run(self, words: Sequence[str]) -> int:
        """Read the words and act; the exit code."""
        parser = self.parser()
        if "-h" in words or "--help" in words:
            print(parser.format_help())
            return 0
        given = parser.parse_intermixed_args(list(words))
        if self.needs and all("=" in word for word in given.words):
            raise SalrunError(f"salrun {self.name} needs {self.needs}: {self.example}")
        return self.act(given)

    def act(self, given: argparse.Namespace) -> int:
        raise NotImplementedError("abstract")


_ABOUT_GROUPS = {
    "experiment": "settings of a paper, by name: +experiment=NAME",
    "dataset": "images to explain: dataset=NAME",
    "reasoning": "which objects decide the label of a TextBox image: reasoning=NAME",
    "model": "networks: model=NAME",
    "methods": "saliency methods: 'methods=[a,b]'",
    "metrics": "what their maps are scored by: 'metrics=[a,b]'",
    "logger": "trackers that finished runs are told to: logger=NAME",
    "hydra/launcher": "where the jobs of a sweep run: hydra/launcher=NAME",
    "views": "how a map becomes the plane that a metric reads: view=NAME",
}


class List(Verb):
    """Name and description of everything in a group, yours of SALRUN_PLUGINS included; without a group: the groups."""

    about = "what there is"
    example = "salrun list methods | metrics | experiment | dataset | model | reasoning | logger | views"
    words = ("GROUP", f"one of {', '.join([*GROUPS, 'views'])}")

    def act(self, given: argparse.Namespace) -> int:
        if len(given.words) > 1:
            raise SalrunError(f"salrun list takes one group: {', '.join([*GROUPS, 'views'])}")
        if not given.words:
            for group in (*GROUPS, "views"):
                print(f"salrun list {group:<16}{_ABOUT_GROUPS[group]}")
            return 0
        (word,) = given.words
        group = next((g for g in GROUPS if word == f"{g}s"), word)
        if group == "views":
            from salrun.views import VIEWS

            rows = {name: view.about for name, view in VIEWS.items()}
        elif group in GROUPS:
            load_plugins()
            rows = names(group)
        else:
            raise SalrunError(f"unknown group '{group}'{near(group, [*GROUPS, 'views'])}")
        width = max(map(len, rows), default=0) + 2
        for name, about in rows.items():
            print(f"{name:<{width}}{about}")
        return 0


class Check(Verb):
    """Put methods and metrics through the conformance suite, with settings of theirs; exit code 1 if one fails."""

    about = "does a method or metric do what all must?"
    example = "salrun check my_method.py | module:Class | NAME [key=value]"
    words = ("PART", "a Python file, module:Class, or a name of `salrun list methods|metrics`; key=value sets its keys")
    needs = "a file, module:Class or a name"

    def act(self, given: argparse.Namespace) -> int:
        from salrun.cli.check import check_parts

        return check_parts([w for w in given.words if "=" not in w], [w for w in given.words if "=" in w])


class Status(Verb):
    """One line per run: state, what, where, why, log; jobs of sweeps that never began come last.

    `--watch` shows it anew until no job runs or waits; Ctrl-C ends the watching, not the jobs.
    """

    about = "what is done, running, failed, missing"
    example = "salrun status [outputs/...] [--watch]"
    words = ("FOLDER", "runs, sweeps, or folders of them; default: outputs")

    def parser(self) -> Parser:
        parser = super().parser()
        parser.add_argument("--watch", action="store_true", help="again and again, until no job runs or waits")
        parser.add_argument("--every", type=float, default=5.0, metavar="SECONDS", help="of --watch (5)")
        return parser

    def act(self, given: argparse.Namespace) -> int:
        from salrun.cli.status import status, watch

        paths = [Path(w) for w in given.words] or [Path("outputs")]
        if given.watch:
            return watch(paths, given.every)
        return status(paths)


class Compare(Verb):
    """Which method is best under which metric, by how much, which cannot be told apart, which beat a random map.

    Runs that differ in their seed are compared together; other ones side by side. Writes methods.csv, pairs.csv,
    agreement.csv and comparison.png.
    """

    about = "which method is best, and by how much?"
    example = "salrun compare RUNS... [-o FOLDER]"
    words = ("RUN", "runs, sweeps, or folders of them")
    needs = "runs"

    def parser(self) -> Parser:
        parser = super().parser()
        parser.add_argument(
            "-o", "--output", type=Path, help="the folder; default: <run>/comparison, outputs/comparison"
        )
        return parser

    def act(self, given: argparse.Namespace) -> int:
        from salrun.cli.compare import compare_and_tell
        from salrun.results.run import runs_below

        runs = runs_below([Path(w) for w in given.words])
        folder = runs[0] / "comparison" if len(runs) == 1 else Path("outputs") / "comparison"
        return compare_and_tell(runs, given.output or folder)


class Collect(Verb):
    """Join runs into the layout of one run, with the figures and claims that span them."""

    about = "join runs into one"
    example = "salrun collect RUNS... -o outputs/<paper>/<name>"
    words = ("RUN", "runs, sweeps, or folders of them")
    needs = "runs"

    def parser(self) -> Parser:
        parser = super().parser()
        parser.add_argument("-o", "--output", type=Path, help="the folder; default: outputs/<paper>/<time>")
        return parser

    def act(self, given: argparse.Namespace) -> int:
        from salrun.sweep.collect import collect_runs

        stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")
        return collect_runs([Path(w) for w in given.words], given.output, stamp)


class Report(Verb):
    """Write the report of a run again, or one report of several."""

    about = "write report.html of one run, or one for several"
    example = "salrun report RUNS... [-o FILE]"
    words = ("RUN", "runs, or folders of them")
    needs = "runs"

    def parser(self) -> Parser:
        parser = super().parser()
        default = Path("outputs") / "report.html"
        parser.add_argument("-o", "--output", type=Path, default=default, help=f"of several: the file ({default})")
        return parser

    def act(self, given: argparse.Namespace) -> int:
        from salrun.report import write_joint_report, write_report
        from salrun.results.run import runs_below

        runs = runs_below([Path(w).resolve() for w in given.words])
        _check_page(given.output)
        print(shown(write_report(runs[0]) if len(runs) == 1 else write_joint_report(runs, given.output)))
        return 0


def _check_page(path: Path) -> None:
    """Refuse to write a page over what is none, or over the files of a run."""
    if path.exists() and (path.is_dir() or path.suffix != ".html"):
        raise SalrunError(f"-o {path} is there and is no page (.html): choose another name")
    if any((folder / "run.json").exists() for folder in path.resolve().parents):
        raise SalrunError(f"-o {path} is a file of a run: choose another place")


class Reliability(Verb):
    """Krippendorff's alpha, inter-method and internal consistency of any run's metrics.

    Settings: draws=N (resamples), test=NAME (of pairs of methods), nan_to_zero=true|false.
    """

    about = "are the metrics reliable here?"
    example = "salrun reliability RUNS... [draws=N] [nan_to_zero=true]"
    words = ("RUN", "runs, or folders of them; key=value: settings")

    def act(self, given: argparse.Namespace) -> int:
        settings = [w for w in given.words if "=" in w and not Path(w).exists()]
        paths = [Path(w).resolve() for w in given.words if w not in settings]
        if not paths:
            raise SalrunError("salrun reliability needs runs: salrun reliability outputs/<experiment>/latest")
        values = _reliability_settings(settings)

        from salrun.report.reliability import reliability_report
        from salrun.results.run import runs_below

        runs = runs_below(paths)
        out = runs[-1] / "reliability"
        print(reliability_report(runs, out, **values))
        print(f"tables:  {shown(out)}")
        return 0


def _reliability_settings(words: list[str]) -> dict[str, Any]:
    """`draws=10000 test=wilcoxon nan_to_zero=false` as values."""
    from salrun.stats.ranks import TESTS

    allowed = {"draws": "a number of at least 1", "test": " or ".join(TESTS), "nan_to_zero": "true or false"}
    values: dict[str, Any] = {}
    for word in words:
        key, _, text = word.partition("=")
        if key not in allowed:
            raise unknown("setting", key, allowed, "salrun reliability")
        read = {"true": True, "false": False} if key == "nan_to_zero" else {name: name for name in TESTS}
        values[key] = int(text) if key == "draws" and text.isdecimal() else read.get(text)
        if not values[key] and values[key] is not False:
            raise SalrunError(f"salrun reliability: {key} must be {allowed[key]}, got '{text}'")
    return values


class Court(Verb):
    """Which metric tells better maps from worse, where better is known? Of runs that have a ladder of spoilt maps
    (+experiment=court_textbox, court_grid), or of a metric of yours: it is tried on shipped models, in minutes.

    Writes court.csv, agreement.csv, preferences.csv, fooled.csv (each as .parquet too) and figures. docs/court.md
    """

    about = "which metric is right, where the truth is known?"
    example = "salrun court RUNS... | my_metric.py [key=value] [-o FOLDER]"
    words = ("RUN", "runs, or folders of them; or a Python file with metrics, and settings of its runs")
    needs = "runs, or a file with a metric"

    def parser(self) -> Parser:
        parser = super().parser()
        parser.add_argument("-o", "--output", type=Path, help="the folder; default: <run>/court, outputs/court")
        return parser

    def act(self, given: argparse.Namespace) -> int:
        from salrun.cli.court import court_and_tell, try_metric
        from salrun.results.run import runs_below

        settings = [w for w in given.words if "=" in w and not Path(w).exists()]
        words = [w for w in given.words if w not in settings]
        several = Path("outputs") / "court"
        if any(w.endswith(".py") for w in words):
            if len(words) > 1:
                raise SalrunError("salrun court takes one file with metrics, or runs")
            return try_metric(words[0], settings, given.output or several / Path(words[0]).stem)
        if settings:
            raise SalrunError(f"salrun court: '{settings[0]}' is for a metric's runs, and these runs are done")
        runs = runs_below([Path(w) for w in words])
        return court_and_tell(runs, given.output or (runs[0] / "court" if len(runs) == 1 else several))


class Cache(Verb):
    """Say what the store holds; `clear` empties it, or one stage of it."""

    about = "what the store holds"
    example = "salrun cache [clear [STAGE]]"
    words = ("clear [STAGE]", "nothing: show; clear: remove all; clear maps: remove one stage")

    def act(self, given: argparse.Namespace) -> int:
        from salrun.pipeline.plan import size
        from salrun.store.entries import Store

        root = Path(folder_of("cache_dir", os.environ.get("SALRUN_CACHE")))
        store = Store(root)
        match given.words:
            case []:
                pass
            case ["clear"] | ["clear", _]:
                files, freed = store.clear(*given.words[1:])
                print(f"removed {files} files, {size(freed)}")
            case words:
                raise SalrunError(f"salrun cache takes nothing or 'clear [STAGE]', got '{' '.join(words)}'")
        print(f"store {root}")
        for stage, (entries, used) in store.usage().items():
            print(f"  {stage:<10}{entries:>8} entries {size(used):>10}")
        return 0


SCHEMAS = Path(__file__).resolve().parents[1] / "results" / "schemas"


class Schema(Verb):
    """The JSON Schema of run.json, or of a row of claims.csv, cells.csv or the scores; without a word: all."""

    about = "JSON Schema of run.json and the tables"
    example = "salrun schema [run | scores | cells | claims]"
    words = ("NAME", "one of run, scores, cells, claims")

    def act(self, given: argparse.Namespace) -> int:
        import json

        files = {path.name.removesuffix(".schema.json"): path for path in sorted(SCHEMAS.glob("*.schema.json"))}
        for word in given.words:
            if word not in files:
                raise unknown("schema", word, files, "salrun schema")
        if len(given.words) > 1:
            raise SalrunError(f"salrun schema takes one of {', '.join(files)}")
        texts = {name: path.read_text(encoding="utf-8") for name, path in files.items()}
        for name, text in texts.items():
            if name in given.words:
                print(text, end="")
            elif not given.words:
                print(f"salrun schema {name:<8}{json.loads(text)['title']}: {shown(files[name])}")
        return 0


VERBS: dict[str, Verb] = {verb.name: verb for verb in (kind() for kind in Verb.__subclasses__())}
