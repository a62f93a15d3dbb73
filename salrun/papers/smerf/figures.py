"""The figures of Kim, Plumb, Talwalkar (ICML 2022), drawn from tables and kept maps; of the first seed of several.

`smerf_figure2` uses the metrics as the public code computes them, `smerf_figure2_paper` as the text defines them. Bars
and markers carry 95% intervals over images; error bars of Figures 6a, 8a, 17a, 18a, 29 and 32 are, as in the paper, the
standard deviation over buckets. Open diamonds are the published values. A figure whose data are absent is not drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from salrun.papers.claims import NotTestable, pick
from salrun.papers.smerf import maps
from salrun.papers.smerf.tables import (
    BOTH_PRESENT,
    BY_OBJECTS,
    CR2_LINES,
    DRAWS,
    FIFTEEN,
    LABELS,
    METHODS,
    MORE_LINES,
    NINE,
    POOLS,
    SETTINGS,
    TEN,
    TITLES,
    WITH_AND_WITHOUT,
    Lines,
    Measured,
    all_evidence,
    line,
    published,
)
from salrun.papers.style import MARKERS, PALETTE, figure, house, save
from salrun.stats.bootstrap import percentile_interval

POOL_NAMES = {
    "simple": "simple",
    "complex": "complex",
    "cr2_cr3": "CR2 and CR3 only",
    "fr_cr2_cr3": "C-FR, CR2 and CR3 only",
}
NETS = {"alexnet": "AlexNet", "vgg16": "VGG-16"}
BOXES = {"text": PALETTE[4], "box1": PALETTE[0], "box2": PALETTE[1]}
CLASSES = {"pafl": "PAFL", "safl": "SAFL", "piou": "PIOU", "siou": "SIOU", "pmafl": "PMAFL", "smafl": "SMAFL"}

Series = Mapping[str, pd.DataFrame]  # name -> draws x methods


def write_figures(run: Path, draws: int = DRAWS) -> list[Path]:
    """Every figure that the run's tables and maps allow, as figures/smerf_*."""
    folder = run / "figures"
    paths: list[Path] = []
    for e in all_evidence(run, draws)[:1]:
        for own, suffix in ((e, ""), (e.paper, "_paper")):
            if own is None or "mean" not in own.tables:
                continue
            for name, draw in PLOTS.items():
                try:
                    paths += draw(own, folder / f"smerf_{name}{suffix}")
                except NotTestable:  # the run has not all that the figure shows
                    continue
    paths += toy_figure(folder / "smerf_figure14") + toy_sweeps(folder / "smerf_figure16")
    kept = maps.kept_maps(run)
    plain = [k for k in kept if k.condition == "plain"]
    if plain:
        paths += map_grid(plain, ["integrated_gradients"], folder / "smerf_figure9")
        paths += map_grid(plain, ["gradient", "lrp_z", "deeplift_reveal_cancel"], folder / "smerf_figure25")
        paths += samples(plain, folder / "smerf_figure13")
        paths += iou_over_k(plain, folder / "smerf_figure15")
    others = [k for k in kept if k.condition in ("noise", "places")]
    return paths + (samples(others, folder / "smerf_figure31") if others else [])


# -- plots over methods ------------------------------------------------------------------------------------------------


def there(e: Measured, methods: Sequence[str] = tuple(LABELS)) -> list[str]:
    """Those of the methods that were run, in the paper's order."""
    run = set(e["mean"].columns.get_level_values("method"))
    found = [m for m in methods if m in run]
    if not found:
        raise NotTestable("none of the methods was run")
    return found


def pools(
    e: Measured, condition: str, metric: str, methods: Sequence[str], table: str = "mean"
) -> dict[str, pd.DataFrame]:
    """Of the two pools, those that the run has."""
    have = pick(e[table], condition=condition).columns.get_level_values("pool")
    return {
        pool: pick(e[table], condition=condition, pool=pool, metric=metric, method=list(methods))[list(methods)]
        for pool in ("simple", "complex")
        if pool in have
    }


def tidy(series: Series, **keys: object) -> pd.DataFrame:
    """The plotted numbers: one row per name and method, with the interval over images."""
    blocks = []
    for name, table in series.items():
        draws = table.iloc[1:]
        low, high = percentile_interval(draws) if len(draws) else (np.nan, np.nan)
        values = {
            "line": name,
            "method": table.columns,
            "value": table.iloc[0].to_numpy(),
            "ci_low": low,
            "ci_high": high,
        }
        blocks.append(pd.DataFrame(keys | values))
    return pd.concat(blocks, ignore_index=True)


def over_methods(
    ax: Axes, methods: Sequence[str], series: Series, error: Series | None = None, joined: bool = True
) -> None:
    """One marker per method and series; error bars: the interval over images, or what is given."""
    x = np.arange(len(methods))
    for k, (name, table) in enumerate(series.items()):
        value = table.iloc[0].to_numpy()
        if error is not None:
            reach = np.stack([error[name].iloc[0].to_numpy()] * 2)
        elif len(table) > 1:
            low, high = percentile_interval(table.iloc[1:])
            reach = np.stack([value - low, high - value]).clip(min=0)
        else:
            reach = np.zeros((2, len(value)))
        shift = 0.0 if joined else 0.22 * (k - (len(series) - 1) / 2)
        style: dict[str, Any] = {
            "color": PALETTE[k % len(PALETTE)],
            "marker": MARKERS[k % len(MARKERS)],
            "markersize": 4,
        }
        style |= {"linestyle": "-" if joined else "none", "linewidth": 1, "elinewidth": 0.8, "capsize": 1.5}
        ax.errorbar(x + shift, value, reach, label=name, **style)
    ax.set_xticks(x, [LABELS.get(m, m) for m in methods], rotation=60, ha="right", rotation_mode="anchor")
    ax.set_xlim(-0.6, len(methods) - 0.4)


def half(ax: Axes) -> None:
    """The line of success, on an axis from 0 to 1."""
    ax.axhline(0.5, color="#888888", linewidth=0.8, linestyle=":")
    ax.set_ylim(0, 1)


def printed(ax: Axes, e: Measured, condition: str, metric: str, statistic: str, methods: Sequence[str]) -> None:
    """The published values, as open diamonds."""
    if e.mode != "code":
        return
    known = published().query("condition == @condition and metric == @metric and statistic == @statistic")
    for k, pool in enumerate(("simple", "complex")):
        values = known[known["pool"] == pool].set_index("method")["value"].reindex(list(methods))
        shift = 0.22 * (k - 0.5)
        look: dict[str, Any] = {"linestyle": "none", "marker": "D", "markerfacecolor": "none", "markersize": 5}
        if values.notna().any():
            ax.plot(np.arange(len(methods)) + shift, values, color=PALETTE[k], label=f"{pool}, published", **look)


@house()
def mean_and_min(
    e: Measured, stem: Path, metric: str, methods: Sequence[str], conditions: Mapping[str, str]
) -> list[Path]:
    """Figure 2 and its kin: mean over buckets (top) and lowest bucket (bottom), simple beside complex."""
    shown = {c: title for c, title in conditions.items() if c in e["mean"].columns.get_level_values("condition")}
    if not shown:
        raise NotTestable(f"needs models under {', '.join(conditions)}")
    chosen = there(e, methods)
    fig, axes = figure(2 * len(shown), 1, height=2.3, sharex=True, sharey=True)
    data = []
    for k, (condition, title) in enumerate(shown.items()):
        for ax, statistic in zip(axes[2 * k : 2 * k + 2, 0], ("mean", "min"), strict=True):
            series = pools(e, condition, metric, chosen, statistic)
            over_methods(ax, chosen, series, joined=False)
            printed(ax, e, condition, metric, statistic, chosen)
            half(ax)
            ax.set_title(
                f"{title}{', ' if title else ''}{'mean over' if statistic == 'mean' else 'lowest of the'} buckets"
            )
            ax.set_ylabel(CLASSES[metric])
            data.append(tidy(series, condition=condition, statistic=statistic, metric=metric))
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return save(fig, pd.concat(data, ignore_index=True), stem)


@house()
def focus_panels(
    e: Measured, stem: Path, metrics: tuple[str, str], pool: str, lines: Lines, condition: str = "plain"
) -> list[Path]:
    """Figures 6a, 8a, 17a, 18a, 29, 32: both metrics over a pool's buckets (top), then lines over some of them."""
    methods = there(e)
    mean = {CLASSES[m]: pools(e, condition, m, methods).get(pool) for m in metrics}
    if any(table is None for table in mean.values()):
        raise NotTestable(f"needs {pool} settings under {condition}")
    spread = {CLASSES[m]: pools(e, condition, m, methods, "std")[pool] for m in metrics}
    settings = [s for s in lines if s in e.settings("plain")] if condition == "plain" else []
    fig, axes = figure(1 + len(settings), 1, height=2.3, sharex=True, sharey=True)
    over_methods(axes[0, 0], methods, mean, spread)  # type: ignore[arg-type]
    used = " + ".join(TITLES[s] for s in POOLS[pool] if s in e.settings(condition))
    axes[0, 0].set_title(f"{used}{'' if condition == 'plain' else f', {condition}'}: mean and deviation over buckets")
    data = [tidy(mean, panel=pool, metric="", condition=condition)]  # type: ignore[arg-type]
    data[0]["std_over_buckets"] = np.concatenate([t.iloc[0].to_numpy() for t in spread.values()])
    for ax, setting in zip(axes[1:, 0], settings, strict=True):
        series = {n: line(e["bucket"], setting, b, metrics[0], methods) for n, b in lines[setting].items()}
        over_methods(ax, methods, series)
        ax.set_title(f"{TITLES[setting]}: {CLASSES[metrics[0]]}")
        ax.legend(ncols=3, loc="upper right")
        data.append(tidy(series, panel=setting, metric=metrics[0], condition=condition))
    for ax in axes[:, 0]:
        half(ax)
    axes[0, 0].set_ylabel(" / ".join(mean))
    axes[0, 0].legend(ncols=2, loc="upper right")
    return save(fig, pd.concat(data, ignore_index=True), stem)


@house()
def by_objects(e: Measured, stem: Path, metrics: tuple[str, str]) -> list[Path]:
    """Figures 6b, 17b: PAFL (left) and SAFL (right) with one, two and three objects."""
    settings = [s for s in BY_OBJECTS if s in e.settings("plain")]
    if not settings:
        raise NotTestable("needs a simple setting")
    methods = there(e)
    fig, axes = figure(len(settings) * 2, 1, height=2.1, sharex=True, sharey=True)
    data = []
    for k, setting in enumerate(settings):
        for ax, metric in zip(axes[2 * k : 2 * k + 2, 0], metrics, strict=True):
            chosen = {n: b for n, b in BY_OBJECTS[setting].items() if n != "1 object" or metric == metrics[0]}
            series = {n: line(e["bucket"], setting, b, metric, methods) for n, b in chosen.items()}
            over_methods(ax, methods, series)
            half(ax)
            ax.set_title(f"{TITLES[setting]}: {CLASSES[metric]}")
            data.append(tidy(series, setting=setting, metric=metric))
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return save(fig, pd.concat(data, ignore_index=True), stem)


@house()
def success_matrix(e: Measured, stem: Path) -> list[Path]:
    """Figure 7: share of buckets with PAFL > 0.5 (top); SAFL > PAFL in more than half of them (bottom)."""
    settings = [s for s in SETTINGS if s in e.settings("plain")]
    if not settings:
        raise NotTestable("needs a setting of the paper")
    methods = there(e, [*FIFTEEN, "oracle", "all_lit"])
    success, failure = (np.full((len(settings), len(methods)), np.nan) for _ in range(2))
    for i, setting in enumerate(settings):
        both = pick(e["bucket"], setting=setting, bucket=list(BOTH_PRESENT[setting])).iloc[:1]
        for j, method in enumerate(methods):
            focus, avoid = (pick(both, metric=metric, method=method).iloc[0] for metric in ("pafl", "safl"))
            success[i, j] = (focus > 0.5).mean()
            failure[i, j] = float((avoid > focus).mean() > 0.5)
    fig, axes = figure(2, 1, height=1.0 + 0.24 * len(settings))
    titles = ("share of buckets with PAFL > 0.5", "1: SAFL > PAFL in more than half of the buckets")
    for ax, matrix, title in zip(axes[:, 0], (success, failure), titles, strict=True):
        ax.imshow(matrix, cmap="Greens" if matrix is success else "Reds", vmin=0, vmax=1, aspect="auto")
        for (i, j), value in np.ndenumerate(matrix):
            colour = "white" if value > 0.6 else "black"
            ax.text(
                j,
                i,
                f"{value:.2f}" if matrix is success else f"{value:.0f}",
                ha="center",
                va="center",
                fontsize=6,
                color=colour,
            )
        ax.set_yticks(range(len(settings)), [TITLES[s] for s in settings])
        ax.set_xticks(
            range(len(methods)), [LABELS[m] for m in methods], rotation=60, ha="right", rotation_mode="anchor"
        )
        ax.set_title(title)
        ax.grid(False)
    keys = pd.MultiIndex.from_product([settings, methods], names=["setting", "method"]).to_frame(index=False)
    return save(fig, keys.assign(success=success.ravel(), failure=failure.ravel()), stem)


@house()
def minima(e: Measured, stem: Path, metric: str, conditions: Mapping[str, str], more: Sequence[str] = ()) -> list[Path]:
    """Figures 8b, 12, 18b, 30, 33: the lowest bucket of every method, simple and complex."""
    methods = there(e)
    shown = [c for c in conditions if c in e["min"].columns.get_level_values("condition")]
    if list(conditions)[-1] not in shown:
        raise NotTestable(f"needs models under {list(conditions)[-1]}")
    series = {}
    for condition in shown:
        have = pick(e["min"], condition=condition).columns.get_level_values("pool")
        for pool in ("simple", "complex", *(more if condition == "plain" else ())):
            if pool in have and (pool not in more or set(POOLS[pool]) <= set(e.settings(condition))):
                name = ", ".join(filter(None, [conditions[condition], POOL_NAMES[pool]]))
                series[name] = pick(e["min"], condition=condition, pool=pool, metric=metric, method=methods)[methods]
    fig, axes = figure(1, 1, height=3.2)
    over_methods(axes[0, 0], methods, series)
    half(axes[0, 0])
    axes[0, 0].set_ylabel(f"lowest {CLASSES[metric]} of a bucket")
    axes[0, 0].legend(ncols=2, loc="upper right")
    return save(fig, tidy(series, metric=metric), stem)


@house()
def more_lines(e: Measured, stem: Path) -> list[Path]:
    """Figure 22: lines over buckets of CR1, CR3, CR4 and C-FR; PAFL (left) and SAFL (right)."""
    settings = [s for s in MORE_LINES if s in e.settings("plain")]
    if not settings:
        raise NotTestable("needs one of these settings")
    methods = there(e, tuple(METHODS))
    fig, axes = figure(len(settings), 2, height=2.4, sharex=True, sharey=True)
    data = []
    have = e["bucket"].columns.droplevel("method").unique()
    for row, setting in zip(axes, settings, strict=True):
        for ax, metric in zip(row, ("pafl", "safl"), strict=True):
            chosen = {n: b for n, b in MORE_LINES[setting].items() if all((setting, k, metric) in have for k in b)}
            series = {f"buckets {n}": line(e["bucket"], setting, b, metric, methods) for n, b in chosen.items()}
            over_methods(ax, methods, series)
            half(ax)
            ax.tick_params(axis="x", labelsize=6)
            ax.set_title(f"{TITLES[setting]}: {CLASSES[metric]}")
            ax.legend(fontsize=6)
            data.append(tidy(series, setting=setting, metric=metric))
    return save(fig, pd.concat(data, ignore_index=True), stem)


@house()
def mean_focus(e: Measured, stem: Path, settings: Sequence[str]) -> list[Path]:
    """Figures 23, 24: PMAFL and SMAFL of every bucket with both kinds of object."""
    cells = [(s, b) for s in settings if s in e.settings("plain") for b in BOTH_PRESENT[s]]
    if not cells:
        raise NotTestable("needs these settings")
    methods = there(e, tuple(METHODS))
    fig, axes = figure(-(-len(cells) // 3), 3, height=1.7, sharex=True, sharey=True)
    data = []
    for ax, (setting, bucket) in zip(axes.flat, cells, strict=False):
        series = {CLASSES[m]: line(e["bucket"], setting, [bucket], m, methods) for m in ("pmafl", "smafl")}
        over_methods(ax, methods, series)
        ax.tick_params(axis="x", labelsize=5)
        ax.tick_params(axis="y", labelsize=6)
        ax.set_title(f"{TITLES[setting]}, bucket {bucket}", fontsize=7)
        data.append(tidy(series, setting=setting, bucket=bucket))
    for ax in list(axes.flat)[max(0, len(cells) - 3) : len(cells)]:
        ax.tick_params(axis="x", labelbottom=True)
    for ax in list(axes.flat)[len(cells) :]:
        ax.set_axis_off()
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return save(fig, pd.concat(data, ignore_index=True), stem)


@house()
def worst_buckets(e: Measured, stem: Path, setting: str) -> list[Path]:
    """Figures 19-21: the bucket of lowest PAFL of every method, its number above the bar."""
    cells = pick(e["bucket"], setting=setting, metric="pafl").iloc[0]
    methods = there(e, FIFTEEN)
    rows = []
    for method in methods:
        own = cells.xs(method, level="method").dropna()
        rows.append({"setting": setting, "method": method, "worst_bucket": own.idxmin(), "pafl": own.min()})
    data = pd.DataFrame(rows)
    fig, axes = figure(1, 1, height=2.6)
    ax = axes[0, 0]
    ax.bar(range(len(methods)), data["pafl"], color=PALETTE[0])
    for k, row in enumerate(rows):
        ax.text(k, row["pafl"] + 0.01, row["worst_bucket"], ha="center", fontsize=7)
    ax.set_xticks(range(len(methods)), [LABELS[m] for m in methods], rotation=60, ha="right", rotation_mode="anchor")
    half(ax)
    ax.set_ylabel("PAFL")
    ax.set_title(f"{TITLES[setting]}: worst bucket of every method")
    return save(fig, data, stem)


PLAIN = {"plain": ""}
PLOTS: dict[str, Callable[[Measured, Path], list[Path]]] = {
    "figure2": lambda e, p: _if_there(e, "complex", mean_and_min, p, "piou", TEN, PLAIN),
    "figure6a": lambda e, p: focus_panels(e, p, ("pafl", "safl"), "simple", WITH_AND_WITHOUT),
    "figure6b": lambda e, p: by_objects(e, p, ("pafl", "safl")),
    "figure7": success_matrix,
    "figure8a": lambda e, p: focus_panels(e, p, ("pafl", "safl"), "complex", CR2_LINES),
    "figure8b": lambda e, p: _if_there(e, "complex", minima, p, "pafl", PLAIN, ["cr2_cr3"]),
    "figure10": lambda e, p: mean_and_min(e, p, "piou", NINE, NETS),
    "figure11": lambda e, p: _if_there(e, "pgd", mean_and_min, p, "piou", TEN, {"plain": "plain", "pgd": "robust"}),
    "figure12": lambda e, p: minima(e, p, "pafl", {"plain": "black", "places": "real"}, ["fr_cr2_cr3"]),
    "figure17a": lambda e, p: focus_panels(e, p, ("piou", "siou"), "simple", WITH_AND_WITHOUT),
    "figure17b": lambda e, p: by_objects(e, p, ("piou", "siou")),
    "figure18a": lambda e, p: focus_panels(e, p, ("piou", "siou"), "complex", CR2_LINES),
    "figure18b": lambda e, p: _if_there(e, "complex", minima, p, "piou", PLAIN),
    "figure19": lambda e, p: worst_buckets(e, p, "simple_fr"),
    "figure20": lambda e, p: worst_buckets(e, p, "simple_nr"),
    "figure21": lambda e, p: worst_buckets(e, p, "complex_cr2"),
    "figure22": more_lines,
    "figure23": lambda e, p: mean_focus(e, p, POOLS["simple"]),
    "figure24": lambda e, p: mean_focus(e, p, POOLS["complex"]),
    "figure26": lambda e, p: mean_and_min(e, p, "piou", NINE, NETS),
    "figure27": lambda e, p: mean_and_min(e, p, "pafl", NINE, NETS),
    "figure28": lambda e, p: _if_there(e, "pgd", mean_and_min, p, "pafl", TEN, {"plain": "plain", "pgd": "robust"}),
    "figure29_simple": lambda e, p: focus_panels(e, p, ("pafl", "safl"), "simple", {}, "noise"),
    "figure29_complex": lambda e, p: focus_panels(e, p, ("pafl", "safl"), "complex", {}, "noise"),
    "figure30": lambda e, p: minima(e, p, "pafl", {"plain": "black", "noise": "noise"}),
    "figure32_simple": lambda e, p: focus_panels(e, p, ("pafl", "safl"), "simple", {}, "places"),
    "figure32_complex": lambda e, p: focus_panels(e, p, ("pafl", "safl"), "complex", {}, "places"),
    "figure33": lambda e, p: minima(e, p, "pafl", {"plain": "black", "noise": "noise", "places": "real"}),
}


def _if_there(e: Measured, what: str, draw: Callable[..., list[Path]], stem: Path, *rest: Any) -> list[Path]:
    """Draw what compares two things only where both are there: plain and `what`, or simple and complex settings."""
    plain = set(e.settings("plain"))
    both = plain & {*POOLS["simple"]} and plain & {*POOLS["complex"]} if what == "complex" else e.settings(what)
    if not both:
        raise NotTestable(f"needs models under {what}")
    return draw(e, stem, *rest)


# -- pictures ----------------------------------------------------------------------------------------------------------


def _bare(axes: np.ndarray) -> None:
    for ax in axes.flat:
        ax.set_xticks([])
        ax.set_yticks([])
        ax.grid(False)


def _draw_boxes(ax: Axes, boxes: Mapping[str, Sequence[int]]) -> None:
    for name, (r0, c0, r1, c1) in boxes.items():
        edge = BOXES.get(name, PALETTE[2])
        ax.add_patch(Rectangle((c0 - 1, r0 - 1), c1 - c0 + 1, r1 - r0 + 1, fill=False, edgecolor=edge, linewidth=1))


@house()
def map_grid(kept: Sequence[maps.Kept], methods: Sequence[str], stem: Path) -> list[Path]:
    """Figures 9, 25: maps (after blur and min-max) of one image of buckets 12, 11, 8 and 9; one row per model."""
    lines = [(k, m) for m in methods for k in kept if k.has(m)]
    if not lines:
        return []
    height = 0.75 if len(lines) > 8 else 0.95
    fig, axes = figure(len(lines), 2 * len(maps.SHOWN), height=height)
    data = []
    for row, (k, method) in zip(axes, lines, strict=True):
        row[0].set_ylabel(f"{TITLES[k.setting]}\n{LABELS[method]}", fontsize=5)
        for pair, bucket in zip(row.reshape(-1, 2), maps.SHOWN, strict=True):
            found = k.rows((bucket,))[:1]
            if not len(found):
                continue
            picture = k.pictures(method, found)[0]
            pair[0].imshow(k.images[found[0]])
            pair[1].imshow(picture, cmap="gray", vmin=0, vmax=1)
            on = {f"mean_{n}": picture[r0:r1, c0:c1].mean() for n, (r0, c0, r1, c1) in k.boxes(found[0]).items()}
            name = k.index["image_id"][found[0]]
            data.append(
                {
                    "setting": k.setting,
                    "method": method,
                    "bucket": bucket,
                    "image_id": name,
                    "mean": picture.mean(),
                    **on,
                }
            )
    for pair, bucket in zip(axes[0].reshape(-1, 2), maps.SHOWN, strict=True):
        pair[0].set_title(f"bucket {bucket}", fontsize=7)
    _bare(axes)
    return save(fig, pd.DataFrame(data), stem)


@house()
def samples(kept: Sequence[maps.Kept], stem: Path) -> list[Path]:
    """Figures 13, 31: one image of every bucket with its objects' boxes and label; one row per setting."""
    fig, axes = figure(len(kept), 12, height=0.9)
    data = []
    for row, k in zip(axes, kept, strict=True):
        title = TITLES[k.setting] + ("" if k.condition == "plain" else f"\n{k.condition}")
        row[0].set_ylabel(title, fontsize=5)
        for ax, bucket in zip(row, map(str, range(1, 13)), strict=True):
            found = k.rows((bucket,))[:1]
            if not len(found):
                ax.spines[:].set_visible(False)
                continue
            ax.imshow(k.images[found[0]])
            _draw_boxes(ax, k.boxes(found[0]))
            label = k.index["label"][found[0]]
            ax.set_title(f"{bucket}: {label}", fontsize=5, pad=2)
            data.append({"setting": k.setting, "condition": k.condition, "bucket": bucket, "label": label})
    _bare(axes)
    return save(fig, pd.DataFrame(data), stem)


@house()
def iou_over_k(kept: Sequence[maps.Kept], stem: Path) -> list[Path]:
    """Figure 15: an image of CR1's bucket 9, its IG map, and the IOU with the letter's box for K of 100 to 400."""
    own = [k for k in kept if k.setting == "complex_cr1" and k.has("integrated_gradients")]
    if not own or not len(rows := own[0].rows(("9",))):
        return []
    k = own[0]
    curves = maps.iou_by_k(k, rows)
    fig, axes = figure(1, 3, height=2.3, width_ratios=[1, 1, 2])
    image, picture, ax = axes[0]
    image.imshow(k.images[rows[0]])
    _draw_boxes(image, k.boxes(rows[0]))
    picture.imshow(k.pictures("integrated_gradients", rows[:1])[0], cmap="gray")
    _bare(axes[:, :2])
    ax.plot(maps.KS, curves[0], color=PALETTE[0], marker="o", label="this image")
    ax.plot(maps.KS, curves.mean(axis=0), color=PALETTE[1], linestyle="--", label=f"mean of {len(rows)}")
    ax.set_xlabel("K")
    ax.set_ylabel("IOU")
    ax.legend()
    names = np.repeat(np.array(k.index["image_id"])[rows], len(maps.KS))
    return save(fig, pd.DataFrame({"image_id": names, "K": np.tile(maps.KS, len(rows)), "iou": curves.ravel()}), stem)


@house()
def toy_figure(stem: Path) -> list[Path]:
    """Figure 14: a toy map and its scores."""
    scores = pd.DataFrame([{"mode": mode, **maps.toy_scores(mode)} for mode in ("code", "paper")])
    fig, axes = figure(1, 1, height=2.6)
    axes[0, 0].imshow(maps.toy_map(), cmap="gray", vmin=0, vmax=1)
    said = [
        f"{r['mode']}: PAFL {r['PAFL']:.3f}, SAFL {r['SAFL']:.3f}, PIOU {r['PIOU']:.2f}" for _, r in scores.iterrows()
    ]
    axes[0, 0].set_title("\n".join(said))
    _bare(axes)
    return save(fig, scores, stem)


@house()
def toy_sweeps(stem: Path) -> list[Path]:
    """Figure 16: PAFL and SAFL while the secondary object brightens, on a dark and on a bright background."""
    fig, axes = figure(1, 2, sharey=True)
    data = []
    for ax, background in zip(axes[0], (0.001, 0.8), strict=True):
        for mode, dashes in (("code", "-"), ("paper", "--")):
            sweep = maps.toy_sweep(mode, background)
            for colour, name in zip(PALETTE, ("PAFL", "SAFL"), strict=False):
                ax.plot(sweep["value"], sweep[name], color=colour, linestyle=dashes, label=f"{name}, {mode}")
            data.append(sweep.assign(mode=mode, background=background))
        ax.set_title(f"background {background}")
        ax.set_xlabel("value of the secondary object")
    axes[0, 0].legend()
    return save(fig, pd.concat(data, ignore_index=True), stem)
