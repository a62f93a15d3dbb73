"""What a figure shows, in words for a reader who has not read the paper: from items.csv, abbreviations explained."""

from __future__ import annotations

import re
from collections.abc import Iterable

from salrun.papers.evidence import published

WORDS = {
    "PAFL": "PAFL: share of the attribution that lies on primary objects (those that decide the label)",
    "SAFL": "SAFL: the same of secondary objects (shown, but without a say)",
    "PIOU": "PIOU: overlap of the brightest pixels with primary objects, as intersection over union",
    "SIOU": "SIOU: the same of secondary objects",
    "PMAFL": "PMAFL: mean share per pixel of primary objects",
    "SMAFL": "SMAFL: the same of secondary objects",
    "AOPC": "AOPC: how far the class probability falls as pixels are removed in the map's order, on average",
    "L": "L: steps of removal",
    "AG": "AG: gain of the class probability where only salient pixels are kept",
    "AD": "AD: its drop",
    "insertion": "insertion, deletion: area under the probability as salient pixels are added or removed",
    "IG": "IG: integrated gradients",
    "LRP-z": "LRP-z: layer-wise relevance propagation, z rule",
    "G": "G: gradient",
    "faithfulness": "faithfulness: correlation of a pixel's attribution with the drop as it is removed",
    "vanilla": "vanilla: gradient",
    "guided": "guided: guided backpropagation",
}


def captions(paper: str, stems: Iterable[str]) -> dict[str, str]:
    """Name of a figure's file -> what it shows; of figures that the paper's list of items has."""
    items = published(paper, file="items.csv", keep_default_na=False, dtype=str)
    shows = {
        number: row.shows
        for row in items.itertuples()
        if row.item.startswith("Figure")
        for number in re.findall(r"\d+[a-z]?", row.item)
    }
    made = {}
    for stem in stems:
        found = re.search(r"figure(\d+)([a-z]?)", stem)
        about = found and (shows.get(found[1] + found[2]) or shows.get(found[1]))
        if about:
            made[stem] = explained(about)
    return made


def explained(text: str) -> str:
    """The text as a sentence, then what its abbreviations stand for."""
    known = [told for word, told in WORDS.items() if re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text)]
    return " ".join(f"{sentence[0].upper()}{sentence[1:]}." for sentence in [text, "; ".join(known)] if sentence)
