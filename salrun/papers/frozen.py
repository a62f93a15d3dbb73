"""The predicates stand before the runs that test them: what was frozen, and whether it still is.

frozen.json names the commit after which no predicate changes, and the digest of the claims at it. A claim may be added
or changed later only with a new freeze, and what was measured before it is shown, and enters no verdict.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import json
import sys
from functools import cache
from importlib import resources

PAPERS = ("smerf", "tomsett", "yona", "zhang")
MODULES = ("salrun.stats.conjunction", "salrun.papers.claims", *(f"salrun.papers.{p}.claims" for p in PAPERS))
MODULES += ("salrun.papers.zhang.single_images",)


def digest() -> str:
    """The hash of the modules that say what a claim is and which there are, whatever their layout."""
    trees = []
    for name in MODULES:
        package, _, module = name.rpartition(".")
        source = resources.files(importlib.import_module(package)).joinpath(f"{module}.py").read_text(encoding="utf-8")
        trees.append(_written(ast.parse(source)))
    return hashlib.sha256("\n".join(trees).encode()).hexdigest()


def _written(tree: ast.AST) -> str:
    """As Python 3.11 writes it: 3.12 has parameters of types, 3.13 leaves out what is empty."""
    if sys.version_info >= (3, 13):
        text = ast.dump(tree, show_empty=True)
    else:
        text = ast.dump(tree)
    return text.replace(", type_params=[]", "")


@cache
def frozen() -> dict[str, str]:
    """`commit` and `digest` of the freeze."""
    return json.loads(resources.files("salrun.papers").joinpath("frozen.json").read_text(encoding="utf-8"))
