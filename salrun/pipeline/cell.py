"""The pipeline: data -> model -> fit -> maps -> scores -> tables -> figures -> claims -> report."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from tqdm import tqdm

from salrun.metrics.common import undefined
from salrun.models.recipe import Obtained, Recipe
from salrun.models.verification import check_fit
from salrun.pipeline.build import Cell, build
from salrun.pipeline.conclusions import conclude_once
from salrun.pipeline.facts import cell_table, run_facts
from salrun.pipeline.heap import keep_freed_memory
from salrun.pipeline.measured import Measured
from salrun.pipeline.numerics import Numerics, measure, probe_seconds, refuse_large
from salrun.pipeline.plan import Line, Plan, check_costs, duration, judged, plan
from salrun.pipeline.stages import OWN, Result, Stages, Tile, tiles_of
from salrun.pipeline.telling import tell
from salrun.progress import watched
from salrun.report import write_report
from salrun.results.comparison import compare_runs, write_comparison
from salrun.results.record import RunRecord, code_of, refuse_what_is_no_runs
from salrun.results.run import Run
from salrun.results.tables import write_numerics
from salrun.store.files import write_atomic
from salrun.tracking import track, trackers
from salrun.types import Selecting

log = logging.getLogger(__name__)
log_of_models = logging.getLogger("salrun.models")  # how a model came to be: with verbose=true, and in run.log

LONG = 60.0  # seconds: a run expected to take longer says so first
PATIENCE = 60.0  # seconds: a plan does not take a longer probe of `numerics`
MAP_BUDGET = 4 << 30  # bytes: `keep_maps=auto` stores the raw maps up to this


def run(config: dict[str, Any], out: Path, overrides: Sequence[str] = (), told: bool = True) -> Path:
    """Run one cell from checked config to report; what it makes is in `out`, what it computed in the store.

    `told`: print the answer; a job of a sweep does not, its sweep does.
    """
    about = {"experiment": config["name"], "paper": config["paper"], "scale": config["scale"], "seed": config["seed"]}
    refuse_what_is_no_runs(out)
    with RunRecord(out, overrides, **about, shard=config["shard"] or "0/1", code=code_of(config)) as record:
        write_atomic(out / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(config)).encode())
        settle_numerics(config)
        keep_freed_memory()
        cell = build(config)
        loggers = trackers(config)
        with record.stage("data"):
            choose_images(cell)
            work = tiles_of(cell)
        if config["plan"]:
            with record.stage("plan"):
                print(preview(cell, work).table())
            record.write(planned_only=True)
            return out
        with record.stage("model"):
            obtained = obtain_models(cell)
        check_costs(cell, obtained[OWN].classifier)
        record.write(**run_facts(cell, obtained, overrides))
        stages = Stages(cell, {role: model.classifier for role, model in obtained.items()})
        record.write(halved=stages.halved)  # the list itself: what is halved later stands in it
        doubts = [doubt for role in stages.models for doubt in stages.soundness(role).doubts(role)]
        record.write(deviations=[*record.facts["deviations"], *doubts])
        with record.stage("plan"):
            cost = plan(cell, stages, work)
        counts = {"images": cost.images, "passes": cost.passes, "entries": cost.entries}
        record.write(plan={**counts, "seconds": round(cost.seconds, 1)})
        stages.keep_maps = cell.keep_maps == "all" or (cell.keep_maps == "auto" and cost.map_bytes <= MAP_BUDGET)
        with record.stage("numerics"):
            numerics = measure(cell, stages)
        record.write(numerics=numerics.facts(), deviations=numerics.deviations + record.facts["deviations"])
        refuse_large(cell, numerics)
        announce(cell, cost, numerics)
        measured = Measured(cell, stages, work, cell_table(cell, obtained, numerics))
        with record.stage("maps and scores"):
            for result in explain_and_score(cell, stages, work, cost):
                measured.add(result)
        record.write(computed=stages.computed)
        with record.stage("tables"):
            measured.write(out, obtained, record.facts)
            write_numerics(out / "tables", measured.cells, numerics.rows())
        with record.stage("figures and claims"):
            _, problems = conclude_once(cell.store, cell.paper, Run(out))
        record.write(problems=problems)
        with record.stage("comparison"):
            comparisons = compare_runs([Run(out)], none=True)
            if comparisons:
                write_comparison(comparisons, out / "comparison")
        if config["report"]:
            with record.stage("report"):
                write_report(out, comparisons)
        record.write(made=made(out))
        if loggers:
            record.write(status="done")  # whatever becomes of the trackers
            with record.stage("tracking"):
                record.write(tracked=track(Run(out), loggers))
    link_latest(out)
    if told:
        tell(Run(out), comparisons, config["verbose"])
    return out


def settle_numerics(config: dict[str, Any]) -> None:
    """Same numbers every time: full float32 products, no autotuned kernels; threads are set inside the job."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    threads = config["threads"] or int(os.environ.get("SLURM_CPUS_PER_TASK") or 0)
    if threads:
        torch.set_num_threads(threads)


def choose_images(cell: Cell) -> None:
    """Let a data set that chooses its images by the model's answers do so."""
    if isinstance(cell.dataset, Selecting):
        model = cell.recipe.obtain(cell.dataset.plain, cell.seed, cell.store, cell.device).classifier
        cell.dataset.select(model, cell.device)


def obtain_models(cell: Cell) -> dict[str, Obtained]:
    """The cell's model, and the others it is compared with, ready and verified."""
    recipes = {"model": cell.recipe, **cell.others}
    data = getattr(cell.dataset, "plain", cell.dataset)  # transforms are for explanations, not for training
    obtained = {}
    for name, recipe in recipes.items():
        model = recipe.obtain(data, cell.seed, cell.store, cell.device)
        model.classifier.to(getattr(torch, cell.precision))
        verification = model.verification
        log_of_models.info("%s: %s, %s accuracy %.4f", name, model.source, verification.split, verification.accuracy)
        obtained[name] = model
    return obtained


def preview(cell: Cell, work: list[Tile]) -> Plan:
    """The plan, without training anything: a model that is not there yet is timed untrained, its training counted."""
    data = getattr(cell.dataset, "plain", cell.dataset)
    training = 0.0
    if isinstance(cell.recipe, Recipe) and not cell.recipe.at_hand(data, cell.seed, cell.store):
        model = cell.recipe.build(cell.seed).to(cell.device)
        check_fit(model, data, cell.recipe.name, cell.device)
        model.to(getattr(torch, cell.precision))
        training = cell.recipe.training_passes(data)
    else:
        model = cell.recipe.obtain(data, cell.seed, cell.store, cell.device).classifier
    check_costs(cell, model)
    stages = Stages(cell, {OWN: model})
    cost = replace(plan(cell, stages, work), numerics=foretold(cell, stages, trained=not training))
    if training:
        cost.lines.insert(0, Line("model", "training (not in the store)", training, 0, 1, cost.lines[0].rate))
    return cost


def foretold(cell: Cell, stages: Stages, trained: bool) -> str:
    """What half precision does, for the plan: measured or known to the store, unless the probe would take long."""
    if cell.numerics == "exact":
        return ""
    later = f"numerics={cell.numerics}: its effect is measured"
    if not trained:
        return f"{later} once the model is trained"
    seconds = probe_seconds(cell, stages)
    if seconds > PATIENCE:
        return f"{later} when the run starts (about {duration(seconds * (1 + len(cell.others)))})"
    numerics = measure(cell, stages)
    refuse_large(cell, numerics)
    return numerics.line()


class Progress:
    """A bar of the passes that are planned. Within a method it moves with the images that go through the model; what
    else its passes stand for (backward passes, those of others' stored work) is made up for when it is done."""

    def __init__(self, cost: Plan) -> None:
        self._due = cost.due
        self._left = 0.0
        total = round(cost.passes)
        self.bar = tqdm(total=total, desc="maps and scores", unit="pass", unit_scale=True, disable=None)

    @contextmanager
    def work(self, tile: Tile, role: str, method: str) -> Iterator[None]:
        """One method with all metrics on a tile."""
        self.bar.set_postfix_str(method if role == OWN else f"{method}, {role}")
        self._left = self._due.get((tile.index, role, method), 0.0)
        with watched(self._passed):
            yield
        self.bar.update(self._left)

    def _passed(self, images: int) -> None:
        step = min(images, self._left)
        self._left -= step
        self.bar.update(step)


def explain_and_score(cell: Cell, stages: Stages, work: list[Tile], cost: Plan) -> Iterator[Result]:
    """Maps and scores tile by tile, with every model; what the store has is read. Tiles others work on come last."""
    todo = deque(work)
    passed_over = 0
    progress = Progress(cost)
    with closing(stages.reader), progress.bar:
        while todo:
            tile = todo.popleft()
            lease = cell.store.lease_of("tiles", stages.tile_key(tile), f"tile {tile.index}")
            if not lease.try_acquire():
                passed_over += 1
                if passed_over <= len(todo):
                    todo.append(tile)
                    continue
                lease.acquire()
            passed_over = 0
            with lease:
                stages.open(tile)
                if todo:
                    stages.reader.ahead(todo[0].ids)
                for role in stages.models:
                    yield score_tile(cell, stages, tile, role, progress)
                stages.close()


def score_tile(cell: Cell, stages: Stages, tile: Tile, role: str, progress: Progress) -> Result:
    """Every method and metric on one tile with one model."""
    metrics = [m for m in cell.metrics if judged(m, role)]
    metrics.sort(key=lambda m: m.view_name)  # metrics of one view share their work
    result = stages.open(tile, role)
    # A pass back to the input serves methods of a layer too, a pass back to a layer only those: theirs come last.
    for part in sorted(cell.methods, key=lambda part: "layer" in part.method.needs):
        with progress.work(tile, role, part.name):
            if not metrics:
                stages.map(result, part)
            for metric in metrics:
                view = metric.view_of(part)
                blind = "model" in metric.metric.needs and not stages.soundness(role).varied
                for name, score in stages.score(result, part, metric).items():
                    result.scores[part.name, metric.name, metric.mode, name, view.name if view else "raw"] = (
                        undefined(score) if blind else score
                    )
    return result


def announce(cell: Cell, cost: Plan, numerics: Numerics) -> None:
    if cost.seconds > LONG:
        log.info("%s, scale=%s: %s", cell.name, cell.scale, cost.short())
    if numerics.line():
        log.info("%s", numerics.line())


def made(out: Path) -> list[str]:
    """What must be there for the run to be done: its tables, and its report where there is one."""
    return [str(path.relative_to(out)) for path in sorted((*out.glob("tables/*"), *out.glob("report.html")))]


def link_latest(out: Path) -> None:
    """outputs/<experiment>/latest -> the newest run."""
    link = out.parent / "latest"
    if link.exists() and not link.is_symlink():
        return
    draft = out.parent / f".latest.{os.getpid()}"
    try:
        draft.unlink(missing_ok=True)
        draft.symlink_to(out.name)
        os.replace(draft, link)
    except OSError as fault:
        log.warning("could not link %s: %s", link, fault.strerror)
