"""Hooks of mkdocs.yml: a page per method and metric, the pages outside docs/, the notebook as a page, the schemas.

Links that leave docs/ for a file of the code become its name; for a page that the site has, the page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = ("CONTRIBUTING.md", "CHANGELOG.md")  # pages that the site has beside docs/
SCHEMAS = "salrun/results/schemas/"  # files that the site has too
CATALOGUES = {"methods.md": "methods", "metrics.md": "metrics"}
NOTEBOOK, WALKTHROUGH = ROOT / "docs" / "notebook.ipynb", "walkthrough.md"


def on_files(files: Files, config: Any) -> Files:
    """Add what is not in docs/ as it is."""
    made = {name: (ROOT / name).read_text(encoding="utf-8") for name in OUTSIDE}
    made[WALKTHROUGH] = "\n\n".join(["# From install to comparison, run", *cells(json.loads(NOTEBOOK.read_text()))])
    for page, folder in CATALOGUES.items():
        for name, text in sections((ROOT / "docs" / page).read_text(encoding="utf-8")).items():
            made[f"{folder}/{name}.md"] = f"# {name}\n{deeper(text)}"
    made |= {f"schemas/{path.name}": path.read_text(encoding="utf-8") for path in (ROOT / SCHEMAS).glob("*.json")}
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(text: str, page: Page, config: Any, files: Files) -> str:
    """Catalogues without their sections, which are pages; links as the site has them."""
    name = page.file.src_uri
    if name in CATALOGUES:
        text = re.sub(r"\]\(#(\w+)\)", rf"]({CATALOGUES[name]}/\1.md)", re.split(r"(?m)^## ", text)[0])
    return re.sub(r"\[([^\]]*)\]\(([^)\s]+)\)", lambda link: led(link[1], link[2], name, files), text)


def on_nav(nav: Navigation, config: Any, files: Files) -> Navigation:
    """A section per catalogue: its index, then a page for each name."""
    for place, item in enumerate(nav.items):
        folder = CATALOGUES.get(item.file.src_uri) if isinstance(item, Page) else None
        if folder is not None:
            pages = [file for file in files.documentation_pages() if file.src_uri.startswith(f"{folder}/")]
            below = [Page(Path(file.src_uri).stem, file, config) for file in sorted(pages, key=lambda f: f.src_uri)]
            nav.items[place] = Section(str(item.title), [item, *below])
            for page in (item, *below):
                page.parent = nav.items[place]
            nav.pages.extend(below)
    return nav


def sections(text: str) -> dict[str, str]:
    """`## name` -> what is below it."""
    parts = re.split(r"(?m)^## (\S+)\n", text)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def deeper(text: str) -> str:
    """The links of a page as they are one folder further down, and its headings one level up."""
    moved = re.sub(r"\]\((?!#|\w+://)([^)]+)\)", r"](../\1)", text)
    return re.sub(r"(?m)^##(#+) ", r"#\1 ", moved)


def led(text: str, target: str, page: str, files: Files) -> str:
    """A link of this page: to another page, or only its text where it leads out of the site."""
    path, mark, anchor = target.partition("#")
    if "://" in target or not path:
        return f"[{text}]({target})"
    there = (ROOT / "docs" / page).parent / path
    try:
        inside = Path(re.sub(r"/[^/]+/\.\.(?=/)", "", there.as_posix())).resolve().relative_to(ROOT).as_posix()
    except ValueError:
        return f"[{text}]({target})"  # leads nowhere: strict says so
    inside = inside.replace(SCHEMAS, "schemas/", 1).removeprefix("docs/")
    if inside in OUTSIDE or files.get_file_from_path(inside) is not None:
        up = "../" * page.count("/")
        return f"[{text}]({up}{inside}{mark}{anchor})"
    return f"{text} (`{inside}`)" if (ROOT / inside).exists() or there.is_dir() else f"[{text}]({target})"


def cells(notebook: dict[str, Any]) -> Iterator[str]:
    """A notebook's cells and what they gave, as Markdown."""
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield re.sub(r"(?m)^# ", "## ", source)
            continue
        yield f"```python\n{source}\n```"
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                yield f'<img alt="output" src="data:image/png;base64,{"".join(data["image/png"]).strip()}">'
            elif text := "".join(output.get("text", data.get("text/plain", ""))).strip():
                yield f"```text\n{text}\n```"
