"""The corridor: data -> model -> fit -> maps -> scores -> tables -> figures -> claims -> report."""

from __future__ import annotations

import json
import logging
import os
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from omegaconf import OmegaConf
from tqdm import tqdm

from salrun import papers
from salrun.build import Cell, MetricPart, build
from salrun.errors import SalrunError
from salrun.files import write_atomic
from salrun.logbook import Logbook, code_of, own_settings
from salrun.mapfiles import write_maps
from salrun.models.recipe import Obtained, Recipe
from salrun.plan import Line, Plan, plan
from salrun.report import write_report
from salrun.stages import Result, Stages, Tile, tiles
from salrun.tables import score_rows, variant_name, write_csv, write_scores
from salrun.views import NamedView

log = logging.getLogger(__name__)

LONG = 60.0  # seconds: a run expected to take longer says so first
MAP_BUDGET = 4 << 30  # bytes: `keep_maps=auto` stores the raw maps up to this


def run(config: dict[str, Any], out: Path, command: str = "") -> Path:
    """Run one cell from checked config to report; what it makes is in `out`, what it computed in the store."""
    own = {"experiment": config["name"], "paper": config["paper"], "scale": config["scale"], "seed": config["seed"]}
    with Logbook(out, command=command, **own, shard=config["shard"] or "0/1", code=code_of(config)) as book:
        write_atomic(out / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(config)).encode())
        settle_numerics(config)
        cell = build(config)
        with book.stage("data"):
            work = tiles(cell.dataset.explained(), cell.tile, cell.shard)
            check_groups(cell, work)
        if config["plan"]:
            with book.stage("plan"):
                print(preview(cell, work).table())
            book.write(planned_only=True)
            return out
        with book.stage("model"):
            obtained = obtain_models(cell)
            stages = open_stages(cell, obtained)
        book.write(**facts(cell, obtained, command))
        with book.stage("plan"):
            cost = plan(cell, stages["model"], work)
        book.write(plan={"images": cost.images, "passes": cost.passes, "seconds": round(cost.seconds, 1)})
        announce(cell, cost)
        keep = cell.keep_maps == "all" or (cell.keep_maps == "auto" and cost.map_bytes <= MAP_BUDGET)
        with book.stage("maps and scores"):
            rows = [score_rows(cell, r) for s in stages.values() for r in explain_and_score(cell, s, work, keep)]
        book.write(computed={name: s.computed for name, s in stages.items()})
        with book.stage("tables"):
            scores, curves = (pd.concat(parts, ignore_index=True) for parts in zip(*rows, strict=True))
            write_scores(out / "tables", scores, curves)
            write_csv(out / "tables" / "model.csv", model_table(cell, obtained))
            write_maps(cell, stages["model"], work, out)
        with book.stage("figures and claims"):
            claims, problems = papers.conclude(cell.paper, out)
        book.write(problems=problems)
        if config["report"]:
            book.write(status="done")
            with book.stage("report"):
                write_report(out)
    link_latest(out)
    tell(out, claims)
    return out


def check_groups(cell: Cell, work: list[Tile]) -> None:
    """A view that clips by group sees one tile at a time: every tile must be a whole group."""
    views = [part.view for part in cell.methods] + [m.view for m in cell.metrics if isinstance(m.view, NamedView)]
    clipping = next((view.name for view in views if view.needs_clip), None)
    if clipping is None:
        return
    sizes = Counter(cell.dataset.groups_of(cell.dataset.explained()))
    for tile in work:
        inside = Counter(cell.dataset.groups_of(tile.ids))
        if len(inside) > 1 or any(n < sizes[group] for group, n in inside.items()):
            wanted = sizes.most_common(1)[0][1] if len(set(sizes.values())) == 1 else "<images per group>"
            raise SalrunError(f"view '{clipping}' clips by group, so a tile must be a whole group: set tile={wanted}")


def settle_numerics(config: dict[str, Any]) -> None:
    """Same numbers every time: full float32 products, no autotuned kernels; threads are set inside the job."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    threads = config["threads"] or int(os.environ.get("SLURM_CPUS_PER_TASK") or 0)
    if threads:
        torch.set_num_threads(threads)


def obtain_models(cell: Cell) -> dict[str, Obtained]:
    """The cell's model, and the others it is compared with, ready and verified."""
    recipes = {"model": cell.recipe, **cell.others}
    data = getattr(cell.dataset, "plain", cell.dataset)  # transforms are for explanations, not for training
    obtained = {}
    for name, recipe in recipes.items():
        found = recipe.obtain(data, cell.seed, cell.store, cell.device)
        found.classifier.to(getattr(torch, cell.precision))
        check = found.verification
        log.info("%s: %s, %s accuracy %.4f", name, found.source, check.split, check.accuracy)
        obtained[name] = found
    return obtained


def preview(cell: Cell, work: list[Tile]) -> Plan:
    """The plan, without training anything: a model that is not there yet is timed untrained, its training counted."""
    data = getattr(cell.dataset, "plain", cell.dataset)
    training = 0.0
    if isinstance(cell.recipe, Recipe) and not cell.recipe.at_hand(data, cell.seed, cell.store):
        model = cell.recipe.build(cell.seed).to(cell.device, getattr(torch, cell.precision))
        training = cell.recipe.training_passes(data)
    else:
        model = cell.recipe.obtain(data, cell.seed, cell.store, cell.device).classifier
    cost = plan(cell, Stages(cell, model.name, model), work)
    if training:
        cost.lines.insert(0, Line("model", "training (not in the store)", training, 0, 1, cost.lines[0].rate))
    return cost


def open_stages(cell: Cell, obtained: dict[str, Obtained]) -> dict[str, Stages]:
    """Stages per model, the cell's own first; a metric that compares models may look at the maps of all of them."""
    own = obtained["model"].classifier.name
    stages = {
        name: Stages(cell, own if name == "model" else name, found.classifier) for name, found in obtained.items()
    }
    for each in stages.values():
        each.others = stages
    return stages


def explain_and_score(cell: Cell, stages: Stages, work: list[Tile], keep: bool) -> Iterator[Result]:
    """Maps and scores tile by tile; what the store has is read, not computed. Tiles others work on come last."""
    metrics = [m for m in cell.metrics if scores_here(m, stages)]
    metrics.sort(key=lambda m: m.view_name)  # metrics of one view share their work
    todo = deque(work)
    passed_over = 0
    with tqdm(
        total=len(work) * len(cell.methods), desc=f"maps and scores {stages.name}", unit="map", disable=None
    ) as bar:
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
                yield score_tile(cell, stages, tile, metrics, keep, bar)
                stages.close(tile)


def scores_here(metric: MetricPart, stages: Stages) -> bool:
    """Every model is scored by every metric; one that compares models names in `of` whose maps it judges."""
    if "other_map" not in metric.metric.needs:
        return True
    return stages is stages.others[getattr(metric.metric, "of", "model")]


def score_tile(cell: Cell, stages: Stages, tile: Tile, metrics: list[MetricPart], keep: bool, bar: tqdm) -> Result:
    """Every method and metric on one tile."""
    result = stages.open(tile)
    # A pass back to the input serves methods of a layer too, a pass back to a layer only those: theirs come last.
    for part in sorted(cell.methods, key=lambda part: "layer" in part.method.needs):
        bar.set_postfix_str(part.name)
        if not metrics:
            stages.map(result, part, keep)
        for metric in metrics:
            view = metric.view_of(part)
            for name, score in stages.score(result, part, metric, keep).items():
                variant = variant_name(metric.variant, name, getattr(view, "name", None))
                result.scores[part.name, metric.name, variant] = score
        bar.update()
    return result


def model_table(cell: Cell, obtained: dict[str, Obtained]) -> pd.DataFrame:
    """Accuracy in all and per group, paired flips, and shares of sure and unsure answers, of every model."""
    rows = []
    for name, found in obtained.items():
        check = found.verification
        title = found.classifier.name if name == "model" else name
        own = {"experiment": cell.name, "dataset": cell.dataset.name, "model": title, "seed": cell.seed}
        own |= {"source": found.source, "verified": check.passed if check.gate else None}
        rows.append({**own, "what": "accuracy", "group": "(all)", "value": check.accuracy})
        rows += [{**own, "what": "accuracy", "group": g, "value": v} for g, v in check.groups.items()]
        rows += [{**own, "what": "flips", "group": g, "value": v} for g, v in check.flips.items()]
        rows += [{**own, "what": "confidence", "group": g, "value": v} for g, v in check.confidence.items()]
        if "pgd_accuracy" in found.card:
            rows.append({**own, "what": "accuracy under attack", "group": "(all)", "value": found.card["pgd_accuracy"]})
    return pd.DataFrame(rows)


def facts(cell: Cell, obtained: dict[str, Obtained], command: str) -> dict[str, Any]:
    """What run.json says about the cell."""
    deviations = [d for found in obtained.values() for d in found.deviations]
    deviations += own_settings(command) if cell.paper else []
    if cell.scale != "paper":
        deviations.insert(0, f"scale={cell.scale}: a reduced run, not the paper's protocol")
    if getattr(cell.dataset, "background", None) == "places":
        deviations.append(f"substitute background: Places class '{cell.dataset.places_folder}', not stadium/baseball")
    if cell.shard != (0, 1):
        deviations.append(f"shard {cell.shard[0]}/{cell.shard[1]} of the images: collect the shards before reading")
    return {
        "deviations": list(dict.fromkeys(deviations)),
        "device": cell.device.type,
        "device_name": torch.cuda.get_device_name() if cell.device.type == "cuda" else None,
        "precision": cell.precision,
        "threads": torch.get_num_threads(),
        "seeds": {"model": cell.seed, "data": getattr(cell.dataset, "seed", None)},
        "shard": f"{cell.shard[0]}/{cell.shard[1]}",
        "verification": {n: f.verification.as_dict() for n, f in obtained.items()},
        "models": {n: {"source": f.source, "fingerprint": f.classifier.fingerprint} for n, f in obtained.items()},
        "methods": {p.name: {**p.config, "view": p.view.name, "target": p.target} for p in cell.methods},
        "metrics": {
            "/".join(filter(None, [m.name, m.variant])): {
                **m.config,
                "view": m.view_name,
                "direction": m.metric.direction,
                **({"turned": sorted(m.metric.turned)} if m.metric.turned else {}),
            }
            for m in cell.metrics
        },
    }


def announce(cell: Cell, cost: Plan) -> None:
    if cost.seconds > LONG:
        log.info("%s, scale=%s: %s", cell.name, cell.scale, cost.short())


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


def flagged_scores(out: Path) -> dict[str, int]:
    """How many scores carry which flag; an image without the masks a metric reads is no fault and not counted."""
    flags = pd.read_parquet(out / "tables" / "scores.parquet", columns=["flag"])["flag"].value_counts()
    return {str(f): int(n) for f, n in flags.items() if f not in ("ok", "no_mask")}


def tell(out: Path, claims: pd.DataFrame | None) -> None:
    """The last lines a user sees: verdicts, flagged scores, where everything is."""
    flagged = flagged_scores(out)
    for deviation in json.loads((out / "run.json").read_text())["deviations"]:
        print(f"  note: {deviation}")
    if claims is not None and len(claims):
        for _, claim in claims[claims["verdict"] != "not testable here"].iterrows():
            print(f"  {claim['verdict']:<18} {claim['id']:<12} {claim['statement']}")
        counts = claims["verdict"].value_counts()
        print("claims: " + ", ".join(f"{n} {v}" for v, n in counts.items()))
    for flag, n in flagged.items():
        print(f"  {n} scores are flagged {flag} (column n_flagged of tables/summary.csv)")
    print(f"tables:  {out / 'tables'}")
    if (out / "report.html").exists():
        print(f"report:  {out / 'report.html'}")
