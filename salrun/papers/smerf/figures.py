"""The figures of Kim, Plumb, Talwalkar (ICML 2022), drawn from tables and kept maps; of the first seed of several.

`figure2` uses the metrics as the public code computes them, `figure2_paper` as the text defines them. Bars and markers
carry 95% intervals over images; error bars of Figures 6a, 8a, 17a, 18a, 29 and 32 are, as in the paper, the standard
deviation over buckets. Open diamonds are the published values. A figure whose data are absent raises NotTestable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from salrun.papers.evidence import NotTestable, interval, pick, tidy
from salrun.papers.smerf import maps
from salrun.papers.smerf.evidence import Measured, ModelMaps, SmerfEvidence, share
from salrun.papers.smerf.terms import (
    BOTH_PRESENT,
    BY_OBJECTS,
    COMPLEX,
    CR2_LINES,
    FIFTEEN,
    LABELS,
    METHODS,
    METRICS,
    MORE_LINES,
    NINE,
    POOLS,
    SETTINGS,
    SHOWN,
    SIMPLE,
    TEN,
    TITLES,
    WITH_AND_WITHOUT,
    Lines,
    published,
)
from salrun.papers.style import MARKERS, PALETTE, figure, styled

POOL_NAMES = {
    "simple": "simple",
    "complex": "complex",
    "cr2_cr3": "CR2 and CR3 only",
    "fr_cr2_cr3": "C-FR, CR2 and CR3 only",
}
NETS = {"alexnet": "AlexNet", "vgg16": "VGG-16"}
OBJECT_COLOURS = {"text": PALETTE[4], "box1": PALETTE[0], "box2": PALETTE[1]}

Series = Mapping[str, pd.DataFrame]  # name -> draws x methods
Drawn: TypeAlias = tuple[Figure, pd.DataFrame]


def figures(e: SmerfEvidence) -> dict[str, Callable[[], Drawn]]:
    """Name -> a function that draws it."""
    plots: dict[str, Callable[[], Drawn]] = {}
    first = next(iter(e.seeds.values()), Measured())
    for measured, suffix in ((first, ""), (first.paper, "_paper")):
        if measured is not None and "mean" in measured.tables:
            plots |= {f"{name}{suffix}": partial(draw, measured) for name, draw in PLOTS.items()}
    plots |= {"figure14": toy_figure, "figure16": toy_sweeps}
    plain = [m for m in e.maps if m.condition == "plain"]
    plots["figure9"] = partial(map_grid, plain, ["integrated_gradients"])
    plots["figure25"] = partial(map_grid, plain, ["gradient", "lrp_z", "deeplift_reveal_cancel"])
    plots["figure13"] = partial(samples, plain)
    plots["figure15"] = partial(iou_over_k, plain)
    plots["figure31"] = partial(samples, [m for m in e.maps if m.condition in ("noise", "places")])
    return {name: styled()(draw) for name, draw in plots.items()}


# -- plots over methods ------------------------------------------------------------------------------------------------


def there(e: Measured, methods: Sequence[str] = tuple(LABELS)) -> list[str]:
    """Those of the methods that were run, in the paper's order."""
    run = set(e["mean"].columns.get_level_values("method"))
    chosen = [m for m in methods if m in run]
    if not chosen:
        raise NotTestable("none of the methods was run")
    return chosen


def some(e: Measured, settings: Sequence[str] | Lines) -> list[str]:
    """Those of the settings that plain models were run in."""
    chosen = [s for s in settings if s in e.settings()]
    if not chosen:
        raise NotTestable(f"needs one of {', '.join(settings)}")
    return chosen


def conditions_of(e: Measured, statistic: str = "mean") -> pd.Index:
    return e[statistic].columns.get_level_values("condition")


def pools(
    e: Measured, condition: str, metric: str, methods: Sequence[str], statistic: str = "mean"
) -> dict[str, pd.DataFrame]:
    """Of the two pools, those that the run has."""
    run = pick(e[statistic], condition=condition).columns.get_level_values("pool")
    return {p: e.pool(p, metric, methods, statistic, condition) for p in ("simple", "complex") if p in run}


def numbers(series: Series, **keys: object) -> pd.DataFrame:
    """The plotted numbers: one row per name and method, with the interval over images."""
    rows = pd.concat([tidy(table).assign(line=name, **keys) for name, table in series.items()], ignore_index=True)
    return rows[[*keys, "line", "method", "value", "ci_low", "ci_high"]]


def name_methods(ax: Axes, methods: Sequence[str]) -> None:
    names = [LABELS.get(m, m) for m in methods]
    ax.set_xticks(range(len(methods)), names, rotation=60, ha="right", rotation_mode="anchor")


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
            low, high = interval(table)
            reach = np.stack([value - low, high - value]).clip(min=0)
        else:
            reach = np.zeros((2, len(value)))
        shift = 0.0 if joined else 0.22 * (k - (len(series) - 1) / 2)
        style: dict[str, Any] = {"color": PALETTE[k % len(PALETTE)], "marker": MARKERS[k % len(MARKERS)]}
        style |= {"linestyle": "-" if joined else "none", "linewidth": 1, "elinewidth": 0.8, "capsize": 1.5}
        ax.errorbar(x + shift, value, reach, label=name, markersize=4, **style)
    name_methods(ax, methods)
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


def mean_and_min(metric: str, methods: Sequence[str], conditions: Mapping[str, str], e: Measured) -> Drawn:
    """Figure 2 and its kin: mean over buckets (top) and lowest bucket (bottom), simple beside complex."""
    shown = {c: title for c, title in conditions.items() if c in conditions_of(e)}
    if not shown:
        raise NotTestable(f"needs models under {', '.join(conditions)}")
    chosen = there(e, methods)
    fig, axes = figure(2 * len(shown), 1, height=2.3, sharex=True, sharey=True)
    data = []
    for (condition, title), pair in zip(shown.items(), axes.reshape(-1, 2), strict=True):
        for ax, (statistic, words) in zip(pair, {"mean": "mean over", "min": "lowest of the"}.items(), strict=True):
            series = pools(e, condition, metric, chosen, statistic)
            over_methods(ax, chosen, series, joined=False)
            printed(ax, e, condition, metric, statistic, chosen)
            half(ax)
            ax.set_title(", ".join(filter(None, [title, f"{words} buckets"])))
            ax.set_ylabel(METRICS[metric])
            data.append(numbers(series, condition=condition, statistic=statistic, metric=metric))
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return fig, pd.concat(data, ignore_index=True)


def focus_panels(metrics: tuple[str, str], pool: str, lines: Lines, condition: str, e: Measured) -> Drawn:
    """Figures 6a, 8a, 17a, 18a, 29, 32: both metrics over a pool's buckets (top), then lines over some of them."""
    methods = there(e)
    mean, spread = (
        {METRICS[m]: e.pool(pool, m, methods, statistic, condition) for m in metrics} for statistic in ("mean", "std")
    )
    settings = [s for s in lines if s in e.settings()] if condition == "plain" else []
    fig, axes = figure(1 + len(settings), 1, height=2.3, sharex=True, sharey=True)
    over_methods(axes[0, 0], methods, mean, spread)
    used = " + ".join(TITLES[s] for s in POOLS[pool] if s in e.settings(condition))
    axes[0, 0].set_title(f"{used}{'' if condition == 'plain' else f', {condition}'}: mean and deviation over buckets")
    data = [numbers(mean, panel=pool, metric="", condition=condition)]
    data[0]["std_over_buckets"] = np.concatenate([t.iloc[0].to_numpy() for t in spread.values()])
    for ax, setting in zip(axes[1:, 0], settings, strict=True):
        series = {n: e.line(setting, b, metrics[0], methods) for n, b in lines[setting].items()}
        over_methods(ax, methods, series)
        ax.set_title(f"{TITLES[setting]}: {METRICS[metrics[0]]}")
        ax.legend(ncols=3, loc="upper right")
        data.append(numbers(series, panel=setting, metric=metrics[0], condition=condition))
    for ax in axes[:, 0]:
        half(ax)
    axes[0, 0].set_ylabel(" / ".join(mean))
    axes[0, 0].legend(ncols=2, loc="upper right")
    return fig, pd.concat(data, ignore_index=True)


def by_objects(metrics: tuple[str, str], e: Measured) -> Drawn:
    """Figures 6b, 17b: PAFL (left) and SAFL (right) with one, two and three objects."""
    settings, methods = some(e, BY_OBJECTS), there(e)
    fig, axes = figure(len(settings) * 2, 1, height=2.1, sharex=True, sharey=True)
    data = []
    for setting, pair in zip(settings, axes.reshape(-1, 2), strict=True):
        for ax, metric in zip(pair, metrics, strict=True):
            chosen = {n: b for n, b in BY_OBJECTS[setting].items() if n != "1 object" or metric == metrics[0]}
            series = {n: e.line(setting, b, metric, methods) for n, b in chosen.items()}
            over_methods(ax, methods, series)
            half(ax)
            ax.set_title(f"{TITLES[setting]}: {METRICS[metric]}")
            data.append(numbers(series, setting=setting, metric=metric))
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return fig, pd.concat(data, ignore_index=True)


def success_matrix(e: Measured) -> Drawn:
    """Figure 7: share of buckets with PAFL > 0.5 (top); SAFL > PAFL in more than half of them (bottom)."""
    settings, methods = some(e, SETTINGS), there(e, [*FIFTEEN, "oracle", "all_lit"])
    success, failure = (np.full((len(settings), len(methods)), np.nan) for _ in range(2))
    for i, setting in enumerate(settings):
        buckets = BOTH_PRESENT[setting]
        focus, avoid = (e.buckets(setting, metric, methods, buckets)[0] for metric in ("pafl", "safl"))
        success[i] = share(focus, 0.5)
        failure[i] = share(avoid - focus, 0.0) > 0.5
    fig, axes = figure(2, 1, height=1.0 + 0.24 * len(settings))
    panels = (
        (success, "Greens", ".2f", "share of buckets with PAFL > 0.5"),
        (failure, "Reds", ".0f", "1: SAFL > PAFL in more than half of the buckets"),
    )
    for ax, (matrix, colours, digits, title) in zip(axes[:, 0], panels, strict=True):
        ax.imshow(matrix, cmap=colours, vmin=0, vmax=1, aspect="auto")
        for (i, j), value in np.ndenumerate(matrix):
            colour = "white" if value > 0.6 else "black"
            ax.text(j, i, format(value, digits), ha="center", va="center", fontsize=6, color=colour)
        ax.set_yticks(range(len(settings)), [TITLES[s] for s in settings])
        name_methods(ax, methods)
        ax.set_title(title)
        ax.grid(False)
    keys = pd.MultiIndex.from_product([settings, methods], names=["setting", "method"]).to_frame(index=False)
    return fig, keys.assign(success=success.ravel(), failure=failure.ravel())


def minima(metric: str, conditions: Mapping[str, str], more: Sequence[str], e: Measured) -> Drawn:
    """Figures 8b, 12, 18b, 30, 33: the lowest bucket of every method, simple and complex."""
    methods = there(e)
    shown = [c for c in conditions if c in conditions_of(e, "min")]
    if list(conditions)[-1] not in shown:
        raise NotTestable(f"needs models under {list(conditions)[-1]}")
    series = {}
    for condition in shown:
        run = pick(e["min"], condition=condition).columns.get_level_values("pool")
        whole = [p for p in more if condition == "plain" and set(POOLS[p]) <= set(e.settings(condition))]
        for pool in (p for p in ("simple", "complex", *whole) if p in run):
            name = ", ".join(filter(None, [conditions[condition], POOL_NAMES[pool]]))
            series[name] = e.pool(pool, metric, methods, "min", condition)
    fig, axes = figure(1, 1, height=3.2)
    over_methods(axes[0, 0], methods, series)
    half(axes[0, 0])
    axes[0, 0].set_ylabel(f"lowest {METRICS[metric]} of a bucket")
    axes[0, 0].legend(ncols=2, loc="upper right")
    return fig, numbers(series, metric=metric)


def more_lines(e: Measured) -> Drawn:
    """Figure 22: lines over buckets of CR1, CR3, CR4 and C-FR; PAFL (left) and SAFL (right)."""
    settings, methods = some(e, MORE_LINES), there(e, tuple(METHODS))
    fig, axes = figure(len(settings), 2, height=2.4, sharex=True, sharey=True)
    data = []
    run = e["bucket"].columns.droplevel("method").unique()
    for row, setting in zip(axes, settings, strict=True):
        for ax, metric in zip(row, ("pafl", "safl"), strict=True):
            chosen = {n: b for n, b in MORE_LINES[setting].items() if all((setting, k, metric) in run for k in b)}
            series = {f"buckets {n}": e.line(setting, b, metric, methods) for n, b in chosen.items()}
            over_methods(ax, methods, series)
            half(ax)
            ax.tick_params(axis="x", labelsize=6)
            ax.set_title(f"{TITLES[setting]}: {METRICS[metric]}")
            ax.legend(fontsize=6)
            data.append(numbers(series, setting=setting, metric=metric))
    return fig, pd.concat(data, ignore_index=True)


def mean_focus(settings: Sequence[str], e: Measured) -> Drawn:
    """Figures 23, 24: PMAFL and SMAFL of every bucket with both kinds of object."""
    panels = [(s, b) for s in some(e, settings) for b in BOTH_PRESENT[s]]
    methods = there(e, tuple(METHODS))
    fig, axes = figure(-(-len(panels) // 3), 3, height=1.7, sharex=True, sharey=True)
    data = []
    for ax, (setting, bucket) in zip(axes.flat, panels, strict=False):
        series = {METRICS[m]: e.line(setting, [bucket], m, methods) for m in ("pmafl", "smafl")}
        over_methods(ax, methods, series)
        ax.tick_params(axis="x", labelsize=5)
        ax.tick_params(axis="y", labelsize=6)
        ax.set_title(f"{TITLES[setting]}, bucket {bucket}", fontsize=7)
        data.append(numbers(series, setting=setting, bucket=bucket))
    for ax in list(axes.flat)[max(0, len(panels) - 3) : len(panels)]:
        ax.tick_params(axis="x", labelbottom=True)
    for ax in list(axes.flat)[len(panels) :]:
        ax.set_axis_off()
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return fig, pd.concat(data, ignore_index=True)


def worst_buckets(setting: str, e: Measured) -> Drawn:
    """Figures 19-21: the bucket of lowest PAFL of every method, its number above the bar."""
    means = pick(e["bucket"], setting=setting, metric="pafl").iloc[0]
    methods = there(e, FIFTEEN)
    of_method = {method: means.xs(method, level="method").dropna() for method in methods}
    rows = [
        {"setting": setting, "method": method, "worst_bucket": buckets.idxmin(), "pafl": buckets.min()}
        for method, buckets in of_method.items()
    ]
    fig, axes = figure(1, 1, height=2.6)
    ax = axes[0, 0]
    ax.bar(range(len(methods)), [row["pafl"] for row in rows], color=PALETTE[0])
    for k, row in enumerate(rows):
        ax.text(k, row["pafl"] + 0.01, row["worst_bucket"], ha="center", fontsize=7)
    name_methods(ax, methods)
    half(ax)
    ax.set_ylabel("PAFL")
    ax.set_title(f"{TITLES[setting]}: worst bucket of every method")
    return fig, pd.DataFrame(rows)


def if_there(what: str, draw: Callable[[Measured], Drawn]) -> Callable[[Measured], Drawn]:
    """Draw what compares two things only where both are there: plain and `what`, or simple and complex settings."""

    def drawn(e: Measured) -> Drawn:
        plain = set(e.settings())
        both = plain & {*SIMPLE} and plain & {*COMPLEX} if what == "complex" else e.settings(what)
        if not both:
            raise NotTestable(f"needs models under {what}")
        return draw(e)

    return drawn


FOCUS, OVERLAP = ("pafl", "safl"), ("piou", "siou")
PLAIN, ROBUST = {"plain": ""}, {"plain": "plain", "pgd": "robust"}
PLOTS: dict[str, Callable[[Measured], Drawn]] = {
    "figure2": if_there("complex", partial(mean_and_min, "piou", TEN, PLAIN)),
    "figure6a": partial(focus_panels, FOCUS, "simple", WITH_AND_WITHOUT, "plain"),
    "figure6b": partial(by_objects, FOCUS),
    "figure7": success_matrix,
    "figure8a": partial(focus_panels, FOCUS, "complex", CR2_LINES, "plain"),
    "figure8b": if_there("complex", partial(minima, "pafl", PLAIN, ["cr2_cr3"])),
    "figure10": partial(mean_and_min, "piou", NINE, NETS),
    "figure11": if_there("pgd", partial(mean_and_min, "piou", TEN, ROBUST)),
    "figure12": partial(minima, "pafl", {"plain": "black", "places": "real"}, ["fr_cr2_cr3"]),
    "figure17a": partial(focus_panels, OVERLAP, "simple", WITH_AND_WITHOUT, "plain"),
    "figure17b": partial(by_objects, OVERLAP),
    "figure18a": partial(focus_panels, OVERLAP, "complex", CR2_LINES, "plain"),
    "figure18b": if_there("complex", partial(minima, "piou", PLAIN, [])),
    "figure19": partial(worst_buckets, "simple_fr"),
    "figure20": partial(worst_buckets, "simple_nr"),
    "figure21": partial(worst_buckets, "complex_cr2"),
    "figure22": more_lines,
    "figure23": partial(mean_focus, SIMPLE),
    "figure24": partial(mean_focus, COMPLEX),
    "figure26": partial(mean_and_min, "piou", NINE, NETS),
    "figure27": partial(mean_and_min, "pafl", NINE, NETS),
    "figure28": if_there("pgd", partial(mean_and_min, "pafl", TEN, ROBUST)),
    "figure29_simple": partial(focus_panels, FOCUS, "simple", {}, "noise"),
    "figure29_complex": partial(focus_panels, FOCUS, "complex", {}, "noise"),
    "figure30": partial(minima, "pafl", {"plain": "black", "noise": "noise"}, []),
    "figure32_simple": partial(focus_panels, FOCUS, "simple", {}, "places"),
    "figure32_complex": partial(focus_panels, FOCUS, "complex", {}, "places"),
    "figure33": partial(minima, "pafl", {"plain": "black", "noise": "noise", "places": "real"}, []),
}


# -- pictures ----------------------------------------------------------------------------------------------------------


def no_ticks(axes: np.ndarray) -> None:
    for ax in axes.flat:
        ax.set_xticks([])
        ax.set_yticks([])
        ax.grid(False)


def draw_boxes(ax: Axes, boxes: Mapping[str, Sequence[int]]) -> None:
    for name, (r0, c0, r1, c1) in boxes.items():
        edge = OBJECT_COLOURS.get(name, PALETTE[2])
        ax.add_patch(Rectangle((c0 - 1, r0 - 1), c1 - c0 + 1, r1 - r0 + 1, fill=False, edgecolor=edge, linewidth=1))


def map_grid(models: Sequence[ModelMaps], methods: Sequence[str], shown: Sequence[str] = SHOWN) -> Drawn:
    """Figures 9, 25: maps (after blur and min-max) of one image of buckets 12, 11, 8 and 9; one row per model."""
    lines = [(m, method) for method in methods for m in models if m.kept.has(method)]
    if not lines:
        raise NotTestable("needs kept maps")
    fig, axes = figure(len(lines), 2 * len(shown), height=0.75 if len(lines) > 8 else 0.95)
    data = []
    for row, (m, method) in zip(axes, lines, strict=True):
        row[0].set_ylabel(f"{TITLES[m.setting]}\n{LABELS[method]}", fontsize=5)
        measured = m.objects[m.objects["method"] == method].set_index(["image_id", "object"])
        for pair, bucket in zip(row.reshape(-1, 2), shown, strict=True):
            for at in maps.rows_of(m.kept, [bucket])[:1]:
                pair[0].imshow(m.kept.pictures[at])
                pair[1].imshow(maps.pictures(m.kept, method, np.array([at]))[0], cmap="gray", vmin=0, vmax=1)
                name = m.kept.index["image_id"][at]
                values = measured.loc[name].loc[list(m.kept.boxes(at))]
                about = {"setting": m.setting, "method": method, "bucket": bucket, "image_id": name}
                data.append({**about, "mean": values["mean"].iloc[0], **values["on"].add_prefix("mean_")})
    for pair, bucket in zip(axes[0].reshape(-1, 2), shown, strict=True):
        pair[0].set_title(f"bucket {bucket}", fontsize=7)
    no_ticks(axes)
    return fig, pd.DataFrame(data)


def samples(models: Sequence[ModelMaps]) -> Drawn:
    """Figures 13, 31: one image of every bucket with its objects' boxes and label; one row per setting."""
    if not models:
        raise NotTestable("needs kept maps")
    fig, axes = figure(len(models), 12, height=0.9)
    data = []
    for row, m in zip(axes, models, strict=True):
        row[0].set_ylabel(TITLES[m.setting] + ("" if m.condition == "plain" else f"\n{m.condition}"), fontsize=5)
        for ax, bucket in zip(row, map(str, range(1, 13)), strict=True):
            rows = maps.rows_of(m.kept, [bucket])
            if not len(rows):
                ax.spines[:].set_visible(False)
                continue
            ax.imshow(m.kept.pictures[rows[0]])
            draw_boxes(ax, m.kept.boxes(rows[0]))
            label = m.kept.index["label"][rows[0]]
            ax.set_title(f"{bucket}: {label}", fontsize=5, pad=2)
            data.append({"setting": m.setting, "condition": m.condition, "bucket": bucket, "label": label})
    no_ticks(axes)
    return fig, pd.DataFrame(data)


def iou_over_k(models: Sequence[ModelMaps]) -> Drawn:
    """Figure 15: an image of CR1's bucket 9, its IG map, and the IOU with the letter's box for K of 100 to 400."""
    chosen = [m for m in models if len(m.iou_by_k)]
    if not chosen:
        raise NotTestable("needs kept maps of complex_cr1")
    kept, table = chosen[0].kept, chosen[0].iou_by_k
    curves = table.pivot(index="image_id", columns="k", values="iou")
    curves = curves.loc[[name for name in kept.row if name in curves.index]]
    first = kept.row[curves.index[0]]
    fig, axes = figure(1, 3, height=2.3, width_ratios=[1, 1, 2])
    image, picture, ax = axes[0]
    image.imshow(kept.pictures[first])
    draw_boxes(image, kept.boxes(first))
    picture.imshow(maps.pictures(kept, maps.K_METHOD, np.array([first]))[0], cmap="gray")
    no_ticks(axes[:, :2])
    ax.plot(curves.columns, curves.iloc[0], color=PALETTE[0], marker="o", label="this image")
    ax.plot(curves.columns, curves.mean(), color=PALETTE[1], linestyle="--", label=f"mean of {len(curves)}")
    ax.set_xlabel("K")
    ax.set_ylabel("IOU")
    ax.legend()
    return fig, curves.stack().rename("iou").rename_axis(["image_id", "K"]).reset_index()


def toy_figure() -> Drawn:
    """Figure 14: a toy map and its scores."""
    scores = pd.DataFrame([{"mode": mode, **maps.toy_scores(mode)} for mode in ("code", "paper")])
    fig, axes = figure(1, 1, height=2.6)
    axes[0, 0].imshow(maps.toy_map(), cmap="gray", vmin=0, vmax=1)
    said = [
        f"{r['mode']}: PAFL {r['PAFL']:.3f}, SAFL {r['SAFL']:.3f}, PIOU {r['PIOU']:.2f}" for _, r in scores.iterrows()
    ]
    axes[0, 0].set_title("\n".join(said))
    no_ticks(axes)
    return fig, scores


def toy_sweeps() -> Drawn:
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
    return fig, pd.concat(data, ignore_index=True)
