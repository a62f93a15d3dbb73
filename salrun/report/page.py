"""One page from what lies in a run directory. It only reads: every number shown was put in a table by the run."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import math
import os
import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup

from salrun.errors import SalrunError
from salrun.report.answer import Answer, Matrix, Shown, answer_of, matrix_of, sentence, six_maps
from salrun.report.gallery import Gallery, name_scores, pack_gallery
from salrun.results import claims as verdicts
from salrun.results import run as results
from salrun.results.comparison import Comparison, compare_runs
from salrun.results.maps import BadMaps
from salrun.results.tables import SUMMARY
from salrun.results.trust import doubts_about
from salrun.store.files import write_atomic

HERE = Path(__file__).parent
MAX_BYTES = 14_000_000  # of the whole page, so that it stays below 15 MB
MIN_GALLERY = 1_000_000
MAX_ROWS = 6000  # of a summary table; a browser sorts and filters that many at once
MAX_FIGURE_ROWS = 100
EVERYTHING = ("(all)", "all", "")  # names of the group that has all images
KEYS = ("experiment", "dataset", "model", "seed", "scale", "target")
UNUSABLE = (SalrunError, ValueError, KeyError, TypeError, AttributeError, IndexError)  # what broken files lead to
FIGURE = re.compile(r"figure(\d+)([a-z]?)")
PLACE = re.compile(r"Figures? ([\d a-z,]+)")


def write_report(run_dir: Path, comparisons: Sequence[Comparison] | None = None) -> Path:
    """Write `report.html` into a run directory and return its path. Missing pieces are named on the page.

    `comparisons`: of this run, where they were made already.
    """
    run_dir = Path(run_dir)
    return _write(run_dir / "report.html", [_read_run(run_dir, comparisons)], joint=False)


def write_joint_report(run_dirs: Sequence[Path], out: Path) -> Path:
    """Write one page about several runs to `out`, with a chapter per paper, and return its path."""
    if not run_dirs:
        raise SalrunError("a joint report needs at least one run directory, got none")
    return _write(Path(out), [_read_run(Path(d)) for d in run_dirs], joint=True)


@dataclass
class RunPage:
    """What a page says of one run; what could not be read of it is in `notes`."""

    run: results.Run
    info: dict[str, Any]
    title: str
    paper: str
    config: str | None
    claims: pd.DataFrame | None
    model: pd.DataFrame | None
    summary: pd.DataFrame | None
    n_images: int | None
    comparisons: Sequence[Comparison]
    court: list[tuple[str, pd.DataFrame]]  # of a run with a ladder: what becomes of its metrics
    doubts: list[str]
    notes: list[str]

    @property
    def path(self) -> Path:
        return self.run.path

    @property
    def status(self) -> str:
        """The state of the run in a word; the page is the last thing that a run makes."""
        status = self.info.get("status")
        if status == "running" and self.info.get("stage") == "report":
            return "done"
        return str(status) if status else "not recorded"

    @property
    def command(self) -> str | None:
        return self.info.get("command")

    @property
    def seeds(self) -> list[Any]:
        seeds = self.info.get("seeds")
        if isinstance(seeds, dict):  # of the model, of the data
            return list(dict.fromkeys(seed for seed in seeds.values() if seed is not None))
        return seeds if isinstance(seeds, list) else [] if seeds is None else [seeds]

    @property
    def checks(self) -> list[dict[str, Any]]:
        """The verification of each model in a row: its plain facts (tables by group are in model.csv)."""
        verification = self.info.get("verification")
        if not isinstance(verification, dict):
            return []
        by_model = all(isinstance(check, dict) for check in verification.values())
        models = verification if by_model else {"model": verification}
        rows = []
        for name, check in models.items():
            facts = {k: v for k, v in check.items() if not isinstance(v, dict | list) and v not in (None, "")}
            asked = check.get("gate")
            if isinstance(asked, dict):
                facts["required"] = ", ".join(f"{key} {number(value)}" for key, value in asked.items()) or "nothing"
            rows.append({"model": name, **facts})
        return rows

    @property
    def model_line(self) -> str:
        """Which model, how good, and whether that can be trusted."""
        own = next((check for check in self.checks if check["model"] == "model"), None)
        if own is None or "accuracy" not in own:
            return "What is known of the models"
        others = f", and {len(self.checks) - 1} more" if len(self.checks) > 1 else ""
        name = self.comparisons[0].about["model"] if self.comparisons else "model"
        measured = f"{name}: accuracy {number(own['accuracy'])} on {own.get('n', 'an unknown number of')} images"
        return f"{measured}, {self.model_state}{others}"

    @property
    def model_state(self) -> str:
        """The models in a word; empty where nothing is known of them."""
        if self.doubts:
            return "not verified"
        return "" if self.verified is None else "verified" if self.verified else "not verified"

    @property
    def verified(self) -> bool | None:
        passed = [check["passed"] for check in self.checks if isinstance(check.get("passed"), bool)]
        return all(passed) if passed else None

    @property
    def seconds(self) -> float | None:
        timings = self.info.get("timings")
        if not isinstance(timings, dict):
            return None
        stages = {k: float(v) for k, v in timings.items() if isinstance(v, int | float)}
        return stages.get("total", sum(stages.values())) if stages else None

    def counted(self, column: str) -> int:
        if self.summary is None:
            return 0
        return self.summary[column].nunique()


@dataclass
class Figure:
    title: str
    caption: str  # what is shown
    says: list[dict[str, Any]]  # the tested claims that are about it
    run: str
    uri: str
    file: str
    header: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    n_rows: int = 0


@dataclass
class Chapter:
    """The runs of one paper with what they say together."""

    title: str
    runs: list[RunPage]
    answers: list[Answer]
    matrix: Matrix | None  # of several comparisons
    maps: list[Shown]
    figure: Figure | None  # the one that stands for all
    deviations: dict[str, list[str]]
    headlines: dict[str, str]  # what each run says about the paper
    claims: dict[str, list[dict[str, Any]]]  # by what they are: counted, apart, not tested
    columns: list[str]
    rows: list[dict[str, Any]]
    n_rows: int
    filters: dict[str, list[str]]
    figures: list[Figure]


def _write(out: Path, runs: list[RunPage], joint: bool) -> Path:
    papers: dict[str, list[RunPage]] = {}
    for run in runs:
        papers.setdefault(run.paper, []).append(run)
    chapters = [_chapter(paper or "Other runs", members, joint) for paper, members in papers.items()]
    every = _comparisons(runs) if joint else []
    matrix = matrix_of(every) if len(every) > 1 else None
    places: list[tuple[str, RunPage, str, bool]] = []  # of the galleries, which take what space the rest leaves

    def place_of(run: RunPage, name: str, several: bool) -> str:
        places.append((uuid.uuid4().hex, run, name, several))
        return places[-1][0]

    rest = _render(chapters, matrix, joint, out, place_of)
    space = max(MAX_BYTES - len(rest.encode(errors="replace")), MIN_GALLERY) // len(runs)
    page = []
    for mark, run, name, several in places:
        before, _, rest = rest.partition(mark)
        page += [before, _gallery(run, space, name, joint, several)]
    write_atomic(out, "".join([*page, rest]).encode(errors="replace"))
    return out


def _gallery(run: RunPage, space: int, name: str, joint: bool, several: bool) -> str:
    """A run's maps in about so many characters, or a sentence why there are none."""
    pack: Gallery | None = None
    why_not = ""
    try:
        pack = pack_gallery(run.run, space)
    except BadMaps as fault:
        why_not = str(fault)
    macros: Any = _templates().get_template("gallery.html.j2").module
    return str(macros.shown(pack, why_not, run.title, name, joint, several))


def _render(
    chapters: list[Chapter],
    matrix: Matrix | None,
    joint: bool,
    out: Path,
    place_of: Callable[[RunPage, str, bool], str],
) -> str:
    css, js = ((HERE / f"report.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    return (
        _templates()
        .get_template("page.html.j2")
        .render(
            chapters=chapters,
            matrix=matrix,
            joint=joint,
            css=Markup(css),
            js=Markup(js),
            css_hash=_csp_hash(css),
            js_hash=_csp_hash(js),
            beside=lambda path: os.path.relpath(path, out.parent).replace(os.sep, "/"),
            place_of=place_of,
        )
    )


@cache
def _templates() -> jinja2.Environment:
    # Autoescape is on whatever a template is called: names in a run may be hostile.
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=number, duration=duration, slug=slug, margin=margin, pretty=pretty, sentence=sentence
    )
    environment.globals.update(whisker=whisker, everything=EVERYTHING)
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment


def _csp_hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


# --- reading a run ---------------------------------------------------------------------------------------------------


def _read_run(path: Path, comparisons: Sequence[Comparison] | None = None) -> RunPage:
    if not path.is_dir():
        raise SalrunError(f"no run directory at {path}; `salrun status` lists the runs")
    run = results.Run(path)
    notes: list[str] = []

    def part(read: Callable[[], Any]) -> Any:
        """What `read` gives, or None with a note for the page."""
        try:
            return read()
        except results.MissingFile as fault:
            notes.append(f"{fault.name} is missing.")
        except (results.UnreadableFile, ValueError, KeyError) as fault:
            notes.append(f"{fault}.")
        return None

    info = part(lambda: run.facts) or {}
    paper = str(info.get("paper") or "")
    if comparisons is None:
        comparisons = _attempt(lambda: compare_runs([run], none=True)) or []
    named = comparisons[0].title if comparisons and not paper else ""
    return RunPage(
        run=run,
        info=info,
        title=named or str(info.get("experiment") or path.name),
        paper=paper,
        config=part(lambda: run.config),
        claims=part(lambda: _claims(run.claims)) if paper else None,
        model=part(lambda: _varying(run.models)),
        summary=part(lambda: _summary(run.summary)),
        n_images=part(lambda: int(run.images["image_id"].nunique())),
        comparisons=comparisons,
        court=_attempt(lambda: _court(run)) or [],
        doubts=_attempt(lambda: doubts_about(run)) or [],
        notes=notes,
    )


def _court(run: results.Run) -> list[tuple[str, pd.DataFrame]]:
    """What becomes of the metrics of a run with a ladder; of other runs nothing."""
    if not run.ladders:
        return []
    from salrun.results.court import court_of  # here: it takes scipy, which few runs need

    return court_of(run)


def _attempt(read: Callable[[], Any]) -> Any:
    """What `read` gives; None where a run is so broken that nothing can be made of it: other parts say what is."""
    try:
        return read()
    except UNUSABLE:
        return None


def _lacking(table: pd.DataFrame, name: str, needed: Sequence[str]) -> None:
    if lacking := set(needed) - set(table.columns):
        raise ValueError(f"{name} cannot be read: it lacks the columns {', '.join(sorted(lacking))}")


def _claims(table: pd.DataFrame) -> pd.DataFrame:
    _lacking(table, "claims.csv", verdicts.CLAIMS)
    return table


def _varying(table: pd.DataFrame) -> pd.DataFrame:
    """The table as text, without names of the cell that never vary."""
    text = table.astype(object).where(table.notna(), "").astype(str)
    return text.drop(columns=[key for key in text if key == "cell" or (key in KEYS and text[key].nunique() <= 1)])


def _summary(table: pd.DataFrame) -> pd.DataFrame:
    _lacking(table, "tables/summary.parquet", SUMMARY)
    names = [c for c in table.columns if c not in ("n", "n_flagged", "mean", "std", "ci_low", "ci_high")]
    return table.assign(**{name: table[name].astype("string").fillna("") for name in names})


def _read_numbers(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


# --- what a chapter says ---------------------------------------------------------------------------------------------


def _comparisons(runs: list[RunPage]) -> list[Comparison]:
    """Those of all runs, seeds joined; run by run where one of them is broken."""
    together = _attempt(lambda: compare_runs([run.run for run in runs], none=True))
    return [c for run in runs for c in run.comparisons] if together is None else together


def _chapter(title: str, runs: list[RunPage], joint: bool) -> Chapter:
    comparisons = _comparisons(runs) if joint else runs[0].comparisons
    spoken = [run for run in runs if run.claims is not None and len(run.claims)]
    headlines = {run.title: verdicts.headline(run.claims) for run in spoken if run.claims is not None}
    claims: dict[str, list[dict[str, Any]]] = {"counted": [], "apart": [], "not tested": []}
    for run in spoken:
        for claim in [] if run.claims is None else run.claims.to_dict("records"):
            tested = "counted" if claim["counted"] == "yes" else "apart"
            kind = verdicts.NOT_TESTED if claim["answer"] == verdicts.NOT_TESTED else tested
            claims[kind].append({**claim, "run": run.title})
    columns, rows, n_rows, filters = _summary_rows([run.summary for run in runs if run.summary is not None])
    figures = [figure for run in runs for figure in _figures(run)]
    deviations: dict[str, list[str]] = {}
    for run in runs:
        listed = run.info.get("deviations") or []
        for text in [listed] if isinstance(listed, str) else listed:
            deviations.setdefault(str(text), []).append(run.title)
    matrix = matrix_of(comparisons) if len(comparisons) > 1 and not joint else None
    first = next(iter(comparisons), None)
    maps = [] if joint else _attempt(lambda: six_maps(runs[0].run, first)) or []
    # The figure that most tested statements are about stands for all.
    leading = max(figures, key=lambda figure: len(figure.says), default=None) if not joint else None
    return Chapter(
        title=title,
        runs=runs,
        answers=[answer_of(c) for c in comparisons],
        matrix=matrix,
        maps=maps,
        figure=leading,
        deviations=deviations,
        headlines=headlines,
        claims=claims,
        columns=columns,
        rows=rows,
        n_rows=n_rows,
        filters=filters,
        figures=figures,
    )


def _summary_rows(
    tables: list[pd.DataFrame],
) -> tuple[list[str], list[dict[str, Any]], int, dict[str, list[str]]]:
    """Rows for the page with whiskers on one axis per metric; columns that never vary are left out."""
    if not tables:
        return [], [], 0, {}
    table = pd.concat(tables, ignore_index=True)
    keys = [key for key in KEYS if key in table and table[key].nunique() > 1]
    whole = table["group"].isin(EVERYTHING)
    table["score"], table["view"] = name_scores(table)
    shared = [table["score"], whole]  # means over all images are closer together than those over a group
    table["low"] = table[["ci_low", "mean"]].min(axis=1).groupby(shared).transform("min")
    table["high"] = table[["ci_high", "mean"]].max(axis=1).groupby(shared).transform("max")
    n_rows = len(table)
    table = table.assign(later=~whole).sort_values("later", kind="stable").head(MAX_ROWS)
    columns = ["method", *keys, "score", *(name for name in ("view", "group") if table[name].nunique() > 1)]
    filters = {name: list(dict.fromkeys(table[name])) for name in columns}
    rows: list[dict[str, Any]] = table[
        [*columns, "mean", "ci_low", "ci_high", "n", "n_flagged", "std", "low", "high"]
    ].to_dict("records")  # type: ignore[assignment]
    for row in rows:
        row["at"] = [filters[name].index(row[name]) for name in columns]
    return columns, rows, n_rows, {k: v for k, v in filters.items() if len(v) > 1}


def _figures(run: RunPage) -> list[Figure]:
    folder = run.path / "figures"
    stems = sorted({p.stem for p in folder.glob("*") if p.suffix in (".png", ".svg")}) if folder.is_dir() else []
    figures = []
    captions: dict[str, str] = {}
    for path in folder.glob("*_captions.json"):
        captions |= _attempt(lambda path=path: json.loads(path.read_text(encoding="utf-8"))) or {}  # type: ignore[misc]
    for stem in sorted(stems, key=_natural):
        pictures = [p for p in (folder / f"{stem}.svg", folder / f"{stem}.png") if p.is_file()]
        picture = min(pictures, key=lambda p: p.stat().st_size)
        kind = "image/svg+xml" if picture.suffix == ".svg" else "image/png"
        uri = f"data:{kind};base64,{base64.b64encode(picture.read_bytes()).decode('ascii')}"
        says = _about(stem, run.claims)
        figure = Figure(_title(stem), captions.get(stem, ""), says, run.title, uri, f"figures/{stem}.csv")
        try:
            figure.header, *rows = _read_numbers(folder / f"{stem}.csv")
            figure.rows, figure.n_rows = rows[:MAX_FIGURE_ROWS], len(rows)
        except FileNotFoundError:
            run.notes.append(f"figures/{stem}.csv is missing.")
        except (OSError, ValueError, csv.Error) as fault:
            run.notes.append(f"figures/{stem}.csv cannot be read ({type(fault).__name__}: {fault}).")
        figures.append(figure)
    return figures


def _natural(stem: str) -> list[tuple[int, str]]:
    """figure2 before figure10."""
    return [(int(digits or 0), word) for word, digits in re.findall(r"(\D+)(\d*)", stem)]


def _title(stem: str) -> str:
    """smerf_figure6a_paper -> Figure 6a, metrics as in the text."""
    found = FIGURE.search(stem)
    if found is None:
        return stem.replace("_", " ")
    rest = ["metrics as in the text" if word == "paper" else word for word in stem[found.end() :].split("_") if word]
    return ", ".join([f"Figure {found[1]}{found[2]}", *rest])


def _about(stem: str, claims: pd.DataFrame | None) -> list[dict[str, Any]]:
    """The counted claims, tested here, that stand at the figure's place in the paper."""
    found = FIGURE.search(stem)
    if found is None or claims is None or stem.endswith("_paper"):
        return []
    names = {found[1], f"{found[1]}{found[2]}"}

    def there(place: str) -> bool:
        return any(names & set(re.findall(r"\d+[a-z]?", listed)) for listed in PLACE.findall(place))

    tested = claims[(claims["counted"] == "yes") & (claims["answer"] != verdicts.NOT_TESTED)]
    rows: list[dict[str, Any]] = tested[tested["place"].astype(str).map(there)].to_dict("records")  # type: ignore[assignment]
    return rows


# --- how things are written ------------------------------------------------------------------------------------------


def number(value: Any) -> str:
    """Three decimals near one, three digits elsewhere; text stays text, nothing and NaN are `n/a`."""
    if value is None or value == "" or value is pd.NA:
        return "n/a"
    try:
        x = float(value)
    except (TypeError, ValueError):
        return str(value)
    if not math.isfinite(x):
        return "n/a" if math.isnan(x) else str(value)
    if not isinstance(value, float) and re.fullmatch(r"[+-]?\d+", str(value)):
        return f"{int(x):,}"
    if abs(x) < 1e-6 or 0.001 <= abs(x) < 1000:
        return f"{x:.3f}"
    return f"{x:,.0f}" if 1000 <= abs(x) < 1e7 else f"{x:.2e}"


def duration(seconds: Any) -> str:
    """`48 s`, `12 min 4 s`, `3 h 20 min`."""
    if not isinstance(seconds, int | float) or not math.isfinite(seconds):
        return str(seconds)
    if seconds < 10:
        return f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 1:
        return f"{rest} s"
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def slug(text: str) -> str:
    """A class or fragment name made of letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"


def whisker(value: Any, low: Any, high: Any, start: Any, end: Any) -> Markup:
    """A dot with its interval on the axis [start, end]."""
    start, end = _floats(start, end)
    return _draw(_floats(value, low, high), start, end)


def margin(claim: dict[str, str]) -> Markup:
    """A claim's deciding difference with its interval, the published one hollow, and a line at zero."""
    measured = _floats(claim["measured"], claim["ci_low"], claim["ci_high"])
    published = _floats(claim["published"])
    points = [x for x in (0.0, *measured, *published) if math.isfinite(x)]
    return _draw(measured, min(points), max(points), published[0], zero=True)


def _floats(*items: Any) -> list[float]:
    """The items as numbers, NaN where they are none."""
    numbers = []
    for item in items:
        try:
            numbers.append(float(item))
        except (TypeError, ValueError):
            numbers.append(math.nan)
    return numbers


def _draw(measured: list[float], start: float, end: float, published: float = math.nan, zero: bool = False) -> Markup:
    value, low, high = measured
    if not (math.isfinite(value) and math.isfinite(start) and math.isfinite(end)):
        return Markup("")

    def at(x: float) -> str:
        return f"{6 + 108 * ((x - start) / (end - start) if end > start else 0.5):.1f}"

    parts = [f'<path class="axis" d="M{at(0)} 0V14"/>' if zero else ""]
    if math.isfinite(low) and math.isfinite(high):
        parts.append(f'<path d="M{at(low)} 7H{at(high)}"/>')
    if math.isfinite(published):
        parts.append(f'<circle class="published" cx="{at(published)}" cy="7" r="3"/>')
    parts.append(f'<circle cx="{at(value)}" cy="7" r="3"/>')
    return Markup(f'<svg class="whisker" width="120" height="14" aria-hidden="true">{"".join(parts)}</svg>')
