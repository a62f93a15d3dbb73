"""Write docs/settings.md, methods.md, metrics.md, peers.md, statements.md from code, configs and docs/parity.yaml.

    python scripts/make_reference.py            # write them
    python scripts/make_reference.py --check    # say which are out of date, exit 1

Needs the peers (pip install 'salrun[peers]') for the cost of the captum adapter only.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import math
import re
import sys
import textwrap
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import yaml
from torchvision.models import resnet50

from salrun.config.catalogue import conf_dir, names
from salrun.config.compose import LISTS
from salrun.config.parts import Entry, entries, locate, method_part, metric_parts
from salrun.config.settings import GROUPS, SETTINGS, default_of
from salrun.config.signatures import parameters
from salrun.models.architectures import TomsettCNN, smerf_cnn
from salrun.models.classifier import Classifier
from salrun.papers.claims import Evidence, claims_of
from salrun.papers.frozen import frozen
from salrun.papers.verdicts import on_print, quantifier_of
from salrun.ranges import readable
from salrun.types import Method, Metric

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PEERS = {"quantus": "Quantus", "captum": "Captum", "shap": "shap", "zennit": "zennit", "grad-cam": "pytorch-grad-cam"}
PEERS |= {"lxt": "lxt"}
PEERS |= {"pnpxai": "pnpxai"}
METHODS = """\
Every method gives a raw attribution of the class explained, (B, C, H, W) or (B, 1, H, W); a *view* reduces it to the
plane that metrics read (`salrun list views`). `x` is the image, `y_c` the class's logit, `p_c` its softmax probability.

`passes`: forward passes per image with the defaults; a backward pass counts two. Where they depend on the network:
SMERF's complex CNN at 64 x 64 / Tomsett's CNN at 32 x 32 / ResNet50 at 224 x 224. What needs `attention` explains
transformers alone.

LRP's authors claim a patent on it (WO 2016/150472, "Relevance score assignment for artificial neural networks"), and
free of charge is, they say, personal and scientific use: ask before any other (`lrp_*`, `attn_lrp`, `deep_taylor`).

How to add one: [add_a_method.md](add_a_method.md). Where other libraries answer differently: [peers.md](peers.md)."""
METRICS = """\
Every metric gives one value and one flag per image: `ok`, or why the value cannot be trusted (`degenerate_map nan_map
undefined saturated underflow no_mask`). NaN is never turned into 0; summaries count what is flagged. `m` is the plane
that the metric's `view` makes of the raw attribution.

`passes`: forward passes per image and method with the defaults (`maps`: explanations, each as dear as the method);
`shared`: forward passes per image, done once for all methods.

How to add one: [add_a_metric.md](add_a_metric.md). Where other libraries answer differently: [peers.md](peers.md)."""
REPRODUCTIONS = """\
and is run by [tests/parity/test_peer_cases.py](../tests/parity/test_peer_cases.py). These are good libraries: salrun is
tested against them wherever they agree ([methods.md](methods.md), [metrics.md](metrics.md)). This page is about numbers
that cannot be taken as they are."""
NOTE = "<!-- Written by scripts/make_reference.py from {source}: change those, then run it. -->"


@lru_cache(maxsize=1)
def networks() -> list[tuple[Classifier, tuple[int, int, int]]]:
    """The three of METHODS with the shapes of their images; without weights, on the device that knows shapes only."""
    with torch.device("meta"):
        modules = {"relu4": smerf_cnn("complex"), "block3.relu2": TomsettCNN(), "layer4": resnet50()}
    models = [Classifier(module.eval(), layers={"cam": cam}).to("meta") for cam, module in modules.items()]
    return [(model, (3, size, size)) for model, size in zip(models, (64, 32, 224), strict=True)]


class Part(Entry):
    """A method or metric as its config file has it."""

    @property
    def cls(self) -> Any:
        return locate(self.spec["_target_"], self.where)

    @property
    def bases(self) -> list[str]:
        """The config files that its own includes."""
        text = (conf_dir() / self.group / f"{self.name}.yaml").read_text(encoding="utf-8")
        return re.findall(r"^  - /(base/\w+)@", text, flags=re.MULTILINE)

    def make(self) -> Any:
        """With the defaults of the config file."""
        if self.group == "methods":
            return method_part(self.spec).method
        return metric_parts({**self.spec, "variants": None})[0].metric

    def cost(self, count: str) -> list[str]:
        """`passes` or `shared_passes` on each reference network."""
        part = self.make()
        return [f"{getattr(part, count)(model, shape):,.0f}" for model, shape in networks()]


def parts(group: str) -> list[Part]:
    plain = [name for name in names(group) if "/" not in name]
    return [Part(group, name, entry.spec) for name in plain for entry in entries(name, (group,))]


# -- what a section is made of -----------------------------------------------------------------------------------------


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    header = list(header)
    return [line(header), "|" + "---|" * len(header), *map(line, rows)]


def fenced(text: str, language: str) -> list[str]:
    return [f"```{language}", *text.strip("\n").splitlines(), "```"]


def definition(cls: type) -> list[str]:
    """The docstrings of the class and of those it derives from; a metric's family often has its symbols in common."""
    written = [c.__doc__ for c in cls.__mro__ if c not in (Method, Metric, object) and c.__doc__ != _automatic(c)]
    if issubclass(cls, Metric):
        written.append(sys.modules[cls.__module__].__doc__)
    return fenced("\n\n".join(inspect.cleandoc(doc) for doc in written if doc), "text")


def _automatic(cls: type) -> str:
    """What `dataclass` writes where there is no docstring."""
    return cls.__name__ + str(inspect.signature(cls)).removesuffix(" -> None")


def defaults(part: Part) -> list[str]:
    """The config file without its description."""
    page = []
    for name in (f"{part.group}/{part.name}", *part.bases):
        lines = (conf_dir() / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
        page += [f"Defaults (`conf/{name}.yaml`):", "", *fenced("\n".join(lines[1:]), "yaml"), ""]
    return [*page[:-1], *allowed(part.spec["_target_"])]


def allowed(target: str) -> list[str]:
    """What the parameters may be, where that is more than a type."""
    taken = {name: p.annotation for name, p in (parameters(target) or {}).items()}
    told = [f"`{name}` {readable(text)}" for name, text in taken.items() if "Annotated" in text or "Literal" in text]
    return ["", f"Allowed: {'; '.join(told)}."] if told else []


def variants(part: Part) -> list[str]:
    """The papers' variants: what each changes."""
    about = names(part.group)
    rows = []
    for name in sorted(n for n in about if n.endswith(f"/{part.name}")):
        changes = yaml.safe_load((conf_dir() / part.group / f"{name}.yaml").read_text(encoding="utf-8"))[part.name]
        said = ", ".join(f"`{key}: {_short(value)}`" for key, value in changes.items() if key != "label")
        rows.append([f"`{name}`", about[name], said])
    return ["Papers' variants:", "", *table(["name", "what it is", "sets"], rows), ""] if rows else []


def _short(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000).strip()
    return text.removesuffix("...").strip()


@lru_cache(maxsize=1)
def parity() -> dict[str, dict[str, list[dict[str, str]]]]:
    return yaml.safe_load((DOCS / "parity.yaml").read_text(encoding="utf-8"))


def agreement(part: Part) -> list[str]:
    rows = [[str(e["peer"]), str(e["to"]), e["where"], _test(e["test"])] for e in parity()[part.group][part.name]]
    return ["Agrees with:", "", *table(["peer", "to", "where", "shown by"], rows)]


def _test(test: str) -> str:
    path, _, name = test.partition("::")
    return f"[{name}](../tests/{path})"


def listed(values: Iterable[str]) -> str:
    return ", ".join(f"`{v}`" for v in sorted(values)) or "nothing"


def interval(low: float, high: float) -> str:
    """Mathematical notation, open where infinite."""
    start = "(-inf" if math.isinf(low) else f"[{low:g}"
    return f"{start}, inf)" if math.isinf(high) else f"{start}, {high:g}]"


# -- the pages ---------------------------------------------------------------------------------------------------------


def opening(kind: str, introduction: str, overview: Iterable[str]) -> list[str]:
    note = NOTE.format(source=f"salrun/{kind}, conf/{kind} and docs/parity.yaml")
    return [note, f"# {kind.capitalize()}", "", *introduction.splitlines(), "", *overview]


def methods_page() -> str:
    found = parts("methods")
    rows = ([f"[`{p.name}`](#{p.name})", names("methods")[p.name], _costs(p, "passes")] for p in found)
    page = opening("methods", METHODS, table(["method", "what it is", "passes"], rows))
    for part in found:
        cls = part.cls
        page += [
            "",
            f"## {part.name}",
            "",
            names("methods")[part.name],
            "",
            *definition(cls),
            "",
            f"- In the papers: {cls.paper_name}",
            f"- Source: {cls.source}",
            f"- Needs beyond the image: {listed(cls.needs)}",
            f"- Signed: {'yes' if cls.signed else 'no'}",
            f"- Passes per image: {_costs(part, 'passes')}",
            f"- Half precision: {_half(cls)}",
            "",
            *defaults(part),
            "",
            *variants(part),
            *agreement(part),
        ]
    return "\n".join(page) + "\n"


def metrics_page() -> str:
    found = parts("metrics")
    columns = ["metric", "what it is", "better", "range", "passes", "shared"]
    rows = ([f"[`{p.name}`](#{p.name})", names("metrics")[p.name], *_facts(p), *_both(p)] for p in found)
    page = opening("metrics", METRICS, table(columns, rows))
    for part in found:
        cls = part.cls
        (better, reach), (own, shared) = _facts(part), _both(part)
        page += [
            "",
            f"## {part.name}",
            "",
            names("metrics")[part.name],
            "",
            *definition(cls),
            "",
            f"- Better: {better}",
            f"- Range: {reach}",
            f"- Chance level: {'none that holds for every model' if cls.chance is None else f'{cls.chance:g}'}",
            f"- Looks at: {listed(cls.needs)}",
            f"- Source: {cls.source}",
            f"- Passes per image and method: {own}; shared by all methods: {shared}",
            "",
            *defaults(part),
            "",
            *variants(part),
            *agreement(part),
        ]
    return "\n".join(page) + "\n"


def _facts(part: Part) -> tuple[str, str]:
    cls = part.cls
    direction = part.make().direction
    return "neither" if direction == "none" else direction, interval(*cls.range)


def _half(cls: Any) -> str:
    mode = "fast" if cls.forward_only else "fast_gradients" if cls.averages_passes else ""
    return f"with `numerics={mode}`" if mode else "never"


def _costs(part: Part, count: str) -> str:
    """One number, or one per reference network."""
    costs = part.cost(count)
    return costs[0] if len(set(costs)) == 1 else " / ".join(costs)


def _both(part: Part) -> tuple[str, str]:
    unit = " maps" if "explain" in part.cls.needs else ""
    return _costs(part, "passes") + unit, _costs(part, "shared_passes")


SETTINGS_PAGE = """\
`salrun key=value` sets one; an experiment's file may set it too, and the command line wins. What is marked deviates
from the paper when it is set on the command line of a paper's experiment: run.json and the report list it as such.
An experiment may add keys of its own (SMERF: `background`, `training`, `reading`), as long as something reads them."""


def settings_page() -> str:
    rows = []
    for name, declared in SETTINGS.items():
        text = "i/n" if name == "shard" else "one or several names" if name in LISTS else readable(str(declared.type))
        text = "a name" if name in GROUPS and name not in LISTS else text
        default = "" if name in GROUPS else f"`{_short(default_of(name))}`"
        deviates = "deviation" if declared.metadata["deviates"] else ""
        rows.append([f"`{name}`", declared.metadata["about"], text, default, deviates])
    note = NOTE.format(source="salrun/config/settings.py")
    columns = ["key", "what it is", "may be", "default", "on the command line"]
    return "\n".join([note, "# Settings", "", *SETTINGS_PAGE.splitlines(), "", *table(columns, rows)]) + "\n"


def peers_page() -> str:
    sys.path.insert(0, str(ROOT))
    from tests.parity.peer_cases import CASES, SEEN_WITH

    seen = ", ".join(f"{PEERS[peer]} {version}" for peer, version in SEEN_WITH.items())
    page = [
        NOTE.format(source="tests/parity/peer_cases.py"),
        "# Where peers answer differently",
        "",
        f"Seen with {seen}. Each reproduction starts with",
        "",
        *fenced("import numpy as np\nimport torch\nfrom torch import nn", "python"),
        "",
        *REPRODUCTIONS.splitlines(),
    ]
    for peer, title in PEERS.items():
        page += ["", f"## {title}"]
        for name, case in CASES.items():
            if case.peer == peer:
                page += ["", f"### {name.replace('_', ' ')}", "", inspect.cleandoc(case.run.__doc__ or ""), ""]
                page += [*fenced(script(case.run), "python"), "", f"Answer: `{case.answer}`. Ours: {_test(case.ours)}"]
    return "\n".join(page) + "\n"


def script(run: Callable[[], Any]) -> str:
    """The body of a reproduction as a script: its docstring left out, its result printed."""
    source = textwrap.dedent(inspect.getsource(run))
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    *_, last = function.body
    assert isinstance(last, ast.Return)
    assert last.value is not None
    lines = source.splitlines()[function.body[1].lineno - 1 : last.lineno - 1]
    value = ast.get_source_segment(source, last.value)
    shown = f"({value})" if isinstance(last.value, ast.Tuple) else value
    return textwrap.dedent("\n".join(lines)) + f"\nprint({shown})"


STATEMENTS = """\
Every empirical sentence of the four papers that has a predicate here: what the paper says, what is measured for it, and
whether it is counted. What a verdict is, and how it is reached: [verdicts.md](verdicts.md); what came out: the papers'
pages. Words in quotation marks are the paper's; the rest of a sentence is our paraphrase.

A *part* of a claim is one signed difference, > 0 where it holds; `every`, `most`, `some` of the parts, or a number of
them, must hold; `average`: the claim is one part. `equal within b`: a part holds inside +-b. `in print`: whether the
paper's own numbers support its sentence, up to the error of print; empty where it prints none."""
TITLES = {
    "smerf": "Kim, Plumb, Talwalkar, *Sanity Simulations for Saliency Methods* (ICML 2022)",
    "tomsett": "Tomsett et al., *Sanity Checks for Saliency Metrics* (AAAI 2020)",
    "yona": "Yona, Greenfeld, *Revisiting Sanity Checks for Saliency Maps* (2021)",
    "zhang": "Zhang, Torres Figueroa, Hermanns, *Saliency Maps Give a False Sense of Explanability to Image Classifiers"
    ": An Empirical Evaluation across Methods and Metrics* (ACML 2024)",
}


def statements_page() -> str:
    """Every claim with its predicate, counted or why not."""
    freeze = frozen()
    said = f"The predicates are frozen: commit `{freeze['commit'][:12]}`, digest `{freeze['digest'][:12]}`."
    page = ["# Statements", "", *STATEMENTS.splitlines(), "", said]
    for paper, title in TITLES.items():
        importlib.import_module(f"salrun.papers.{paper}.claims")
        evidence = importlib.import_module(f"salrun.papers.{paper}.evidence")
        claims = claims_of(paper)
        printed = on_print(claims, getattr(evidence, "published_evidence", Evidence)())
        counted = sum(not claim.apart for claim in claims)
        page += ["", f"## {paper}", "", f"{title}: {counted} counted, {len(claims) - counted} listed apart."]
        page += ["", "| id | sentence | place | a part is | parts that must hold | unit | counted | in print |"]
        page += ["|---|---|---|---|---|---|---|---|"]
        for claim in claims:
            cells = [claim.id, claim.sentence, claim.place, claim.predicate, quantifier_of(claim), claim.unit]
            cells += [f"no: {claim.why_apart}" if claim.apart else "yes", printed[claim.id]]
            page.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(page) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings_page,
    "methods.md": methods_page,
    "metrics.md": metrics_page,
    "peers.md": peers_page,
    "statements.md": statements_page,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is out of date")
    check = parser.parse_args().check
    stale = 0
    for name, make in PAGES.items():
        path, text = DOCS / name, make()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale += 1
        if not check:
            path.write_text(text, encoding="utf-8")
        print(f"docs/{name} is out of date" if check else f"wrote docs/{name}")
    return int(check and stale > 0)


if __name__ == "__main__":
    sys.exit(main())
