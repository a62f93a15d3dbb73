"""Render glyph bitmaps once, from an open font, into `salrun/datasets/glyphs/` (plain PGM files).

    python scripts/make_glyphs.py --font LiberationSans-Regular.ttf --size 20.8 --gamma 0.67 A:15 B:13
    python scripts/make_glyphs.py --font NotoSerifCJK-Regular.ttc --face 2 --size 72 --gamma 1 --height 72 --up 19 \\
        捷:72 径:72

TextBox's letters: each file is the whole text box, 19 rows (Arial's ascender at size 20) by the glyph's advance box.
The paper's font is Arial 20, which is not free. Liberation Sans has Arial's widths but a lower cap height, so 20.8
gives Arial's ink box (rows 4..18) and pixel counts (A 100, B 130); the gamma brings the sum of ink to Arial's (A 69.5,
B 89.9) within 1%. The watermark's characters are em squares (`--up`: what the font has above them), large enough to be
shrunk; their files are called by code point (u6377.pgm). Both fonts have the SIL Open Font License, as each file says.
Glyphs are committed so that pixels never depend on the installed FreeType or Pillow.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

OVERSAMPLE = 32


def coverage(
    font: str, size: float, character: str, height: int, width: int, face: int = 0, up: float = 0
) -> np.ndarray:
    """Unhinted anti-aliasing: the exact share of each pixel that the outline covers."""
    drawn = ImageFont.truetype(font, size * OVERSAMPLE, index=face, layout_engine=ImageFont.Layout.BASIC)
    image = Image.new("L", (width * OVERSAMPLE, height * OVERSAMPLE))
    ImageDraw.Draw(image).text((0, -up * OVERSAMPLE), character, font=drawn, fill=255)
    blocks = np.asarray(image, dtype=np.float64).reshape(height, OVERSAMPLE, width, OVERSAMPLE)
    return np.round(blocks.mean(axis=(1, 3))) / 255


def write_pgm(path: Path, pixels: np.ndarray, comment: str) -> None:
    rows = "\n".join(" ".join(f"{v:3d}" for v in row) for row in pixels)
    path.write_text(f"P2\n# {comment}\n{pixels.shape[1]} {pixels.shape[0]}\n255\n{rows}\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("glyphs", nargs="+", help="character:width, e.g. A:15")
    parser.add_argument("--font", required=True)
    parser.add_argument("--face", type=int, default=0, help="which of a collection (.ttc)")
    parser.add_argument("--size", type=float, default=20.8)
    parser.add_argument("--gamma", type=float, default=0.67)
    parser.add_argument("--height", type=int, default=19)
    parser.add_argument("--up", type=float, default=0, help="rows by which it is moved up")
    parser.add_argument("--out", type=Path, default=Path("salrun/datasets/glyphs"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for spec in args.glyphs:
        character, width = spec.split(":")
        ink = coverage(args.font, args.size, character, args.height, int(width), args.face, args.up) ** args.gamma
        note = f"{character}, from {Path(args.font).stem} (SIL Open Font License 1.1), size {args.size}"
        stem = character if character.isascii() else f"u{ord(character):x}"
        write_pgm(args.out / f"{stem}.pgm", np.round(255 * ink).astype(int), note)


if __name__ == "__main__":
    main()
