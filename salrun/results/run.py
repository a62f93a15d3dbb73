"""A run directory, read: the only place that knows where a fact, a table or a map of a run stands.

    run = Run(Path("outputs/smerf_simple_fr/latest"))
    run.facts["deviations"], run.scores, run.cells, run.maps

Tables of another schema are refused in one line. A run that was collected from others has the same layout; its kept
maps are those of its members.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from salrun.errors import SalrunError
from salrun.results.maps import KeptMaps
from salrun.results.record import misshapen
from salrun.results.tables import CELLS, CURVES, IMAGES, MODEL, NUMERICS, SCHEMA, SCORES, SUMMARY, unquoted

LADDER = "salrun.methods.ladder.Ladder"
MODEL_BLIND = ("salrun.methods.baselines.", "salrun.methods.cam.FakeCAM", LADDER)  # beginnings of classes
TEXT = {"cell": str, "group": str, "role": str}  # columns of CSV files that may look like numbers


class MissingFile(SalrunError):
    """A run directory lacks a file; `name` is its path below the directory."""

    def __init__(self, run: Path, name: str) -> None:
        super().__init__(f"{run} has no {name}: is it a finished run?")
        self.name = name


class UnreadableFile(SalrunError):
    """A file of a run directory is damaged, or not what it is called."""

    def __init__(self, run: Path, name: str, fault: Exception | str) -> None:
        kind = f"{type(fault).__name__}: " if isinstance(fault, Exception) else ""
        super().__init__(f"{run}/{name} cannot be read ({kind}{fault})")
        self.name = name


class Run:
    """One run directory. Every property reads its file once, when it is asked for."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    # -- run.json and config.yaml --------------------------------------------------------------------------------------

    @cached_property
    def facts(self) -> dict[str, Any]:
        """run.json; a run of another schema is refused."""
        try:
            facts = json.loads(self._file("run.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as fault:
            raise UnreadableFile(self.path, "run.json", fault) from fault
        if wrong := misshapen(facts):
            raise UnreadableFile(self.path, "run.json", wrong)
        schema = facts.get("schema", 1)
        if schema != SCHEMA:
            raise SalrunError(
                f"{self.path} has tables of schema {schema}, this salrun reads schema {SCHEMA}: run it again, or read "
                f"it with the version that wrote it ({facts.get('salrun', 'unknown')})"
            )
        return facts

    @property
    def experiment(self) -> str:
        return str(self.facts.get("experiment") or self.path.name)

    @property
    def overrides(self) -> list[str]:
        """The words of its command line, one entry each."""
        return [str(word) for word in self.facts.get("overrides") or []]

    @property
    def done(self) -> bool:
        """Whether the run ended with everything it was to make."""
        return self.facts.get("status") == "done" and not self.facts.get("planned_only")

    @property
    def numerics(self) -> str:
        """exact, or the mode in which something of it was computed in half precision."""
        return str(self.facts.get("numerics", {}).get("mode", "exact"))

    @cached_property
    def config(self) -> str:
        """config.yaml, as text."""
        try:
            return self._file("config.yaml").read_text(encoding="utf-8")
        except (OSError, ValueError) as fault:
            raise UnreadableFile(self.path, "config.yaml", fault) from fault

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """metric, mode, view, direction, turned and options of every metric of the run."""
        return list(self.facts.get("metrics") or [])

    @property
    def methods(self) -> dict[str, dict[str, Any]]:
        """Method -> label, view, target, signed, options."""
        return dict(self.facts.get("methods") or {})

    @property
    def controls(self) -> list[str]:
        """The methods that are there to be compared with: those the run names so, and maps that see no model."""
        named = self.facts.get("controls") or ()
        classes = {name: str((about.get("options") or {}).get("_target_")) for name, about in self.methods.items()}
        return [name for name, target in classes.items() if name in named or target.startswith(MODEL_BLIND)]

    @property
    def ladders(self) -> list[str]:
        """The methods that are maps of known order."""
        return [n for n, about in self.methods.items() if (about.get("options") or {}).get("_target_") == LADDER]

    # -- tables --------------------------------------------------------------------------------------------------------

    @cached_property
    def scores(self) -> pd.DataFrame:
        """One row per image, method and named score of a metric."""
        return self.read_scores()

    def read_scores(self, columns: Sequence[str] | None = None, images: Iterable[str] | None = None) -> pd.DataFrame:
        """Some columns, or the rows of some images, of the scores."""
        chosen = None if images is None else [("image_id", "in", list(images))]
        return self._parquet("scores", columns or SCORES, chosen)

    @cached_property
    def curves(self) -> pd.DataFrame:
        """Curves behind scores; none where no metric has them."""
        there = (self.path / "tables" / "curves.parquet").is_file()
        return self._parquet("curves", CURVES) if there else pd.DataFrame(columns=CURVES)

    @cached_property
    def images(self) -> pd.DataFrame:
        """One row per model and image: group, label, prediction, confidence, and what the data set says of it."""
        return self._parquet("images", needed=IMAGES)

    @cached_property
    def summary(self) -> pd.DataFrame:
        """Means over images with intervals and directions."""
        return self._parquet("summary", SUMMARY)

    @cached_property
    def cells(self) -> pd.DataFrame:
        """One row per model of the run, with every fact it was made with; text facts that are absent are empty."""
        return self._csv("tables/cells.csv", CELLS, dtype=TEXT)

    @cached_property
    def models(self) -> pd.DataFrame:
        """Accuracy of every model, overall and by group; runs made before it was asked have no `in_doubt`."""
        needed = [name for name in MODEL if name != "in_doubt"]
        return self._csv("tables/model.csv", needed, dtype=TEXT).reindex(columns=MODEL)

    @cached_property
    def effects(self) -> pd.DataFrame:
        """What half precision does to its numbers, measured on a probe; nothing where it is exact."""
        there = (self.path / "tables" / "numerics.csv").is_file()
        text = dict.fromkeys(["metric", "mode", "score"], str)
        table = (
            self._csv("tables/numerics.csv", NUMERICS, dtype=TEXT | text) if there else pd.DataFrame(columns=NUMERICS)
        )
        return table.fillna(dict.fromkeys(text, ""))

    @cached_property
    def claims(self) -> pd.DataFrame:
        """Verdicts, as text."""
        return self._csv("claims.csv", dtype=str, keep_default_na=False)

    @cached_property
    def claim_parts(self) -> pd.DataFrame:
        """The parts of every claim, its controls and the printed numbers it is about, as text."""
        return self._csv("claim_parts.csv", dtype=str, keep_default_na=False)

    def table(self, name: str) -> pd.DataFrame | None:
        """A further table of single images, tables/<name>.parquet; None where the run has none."""
        there = (self.path / "tables" / f"{name}.parquet").is_file()
        return self._parquet(name) if there else None

    def _file(self, name: str) -> Path:
        path = self.path / name
        if not path.is_file():
            raise MissingFile(self.path, name)
        return path

    def _check_schema(self) -> None:
        """Refuse tables of another schema; a run.json that is gone or damaged says nothing of them."""
        with contextlib.suppress(MissingFile, UnreadableFile):
            _ = self.facts

    def _parquet(
        self, name: str, columns: Sequence[str] | None = None, filters: Any = None, needed: Sequence[str] = ()
    ) -> pd.DataFrame:
        file = f"tables/{name}.parquet"
        path = self._file(file)
        self._check_schema()
        try:
            table = _read_parquet(path, columns, filters).to_pandas()
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as fault:
            raise UnreadableFile(self.path, file, fault) from fault
        return self._with_columns(table, columns or needed, file)

    def _with_columns(self, table: pd.DataFrame, needed: Sequence[str], name: str) -> pd.DataFrame:
        """The table; refused where it lacks columns, or has text in those that are numbers."""
        if lacking := [column for column in needed if column not in table]:
            raise UnreadableFile(self.path, name, f"it has no column {', '.join(lacking[:3])}")
        for column in {"seed", "value", "label", "prediction", "confidence"} & {*needed}:
            if len(table) and not pd.api.types.is_numeric_dtype(table[column]):
                raise UnreadableFile(self.path, name, f"its column {column} holds no numbers")
        return table

    def _csv(self, name: str, needed: Sequence[str] = (), **options: Any) -> pd.DataFrame:
        path = self._file(name)
        self._check_schema()
        try:
            table = unquoted(pd.read_csv(path, **options))
        except (OSError, ValueError) as fault:
            raise UnreadableFile(self.path, name, fault) from fault
        return self._with_columns(table, needed, name)

    # -- maps and members ----------------------------------------------------------------------------------------------

    @cached_property
    def members(self) -> list[Run]:
        """The run itself, or the runs it was collected from as far as they are still there."""
        if "runs" not in self.facts:
            return [self]
        return [Run(path) for path in map(Path, self.facts["runs"]) if (path / "run.json").is_file()]

    @cached_property
    def maps(self) -> list[KeptMaps]:
        """Kept maps: its own, or its members', each of those that kept some."""
        with_maps = [run for run in self.members if (run.path / "maps" / "index.json").is_file()]
        return [KeptMaps(run.path / "maps", run.cells) for run in with_maps]


def _read_parquet(path: Path, columns: Sequence[str] | None, filters: Any) -> pa.Table:
    """A table whose text was decoded once for each word of a column, not once for each row: half of the time."""
    text = [field.name for field in pq.read_schema(path) if field.type == pa.string()]
    table = pq.read_table(path, columns=columns, filters=filters, read_dictionary=text)
    for place, name in enumerate(table.column_names):
        if pa.types.is_dictionary(table.schema.field(name).type):
            words = [chunk.dictionary.cast(pa.large_string()).take(chunk.indices) for chunk in table[name].chunks]
            table = table.set_column(place, name, pa.chunked_array(words, pa.large_string()))
    return table


def runs_below(paths: Iterable[Path], none: bool = False) -> list[Path]:
    """Run directories among or below the given folders (those with a run.json), oldest first; `none`: may be none."""
    paths = list(paths)
    folders: list[Path] = []
    for path in paths:
        if not path.exists():
            raise SalrunError(f"{path} is not there")
        path = path.resolve()
        folders += [path] if (path / "run.json").exists() else sorted(p.parent for p in path.rglob("run.json"))
    if not folders and not none:
        raise SalrunError(f"no runs in {', '.join(map(str, paths))}: a run has a run.json")
    return list(dict.fromkeys(p.resolve() for p in folders))
