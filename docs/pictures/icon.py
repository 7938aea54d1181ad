"""Draws `.claude-plugin/icon.png`: notebook cells as steps of a stair; two are done, one is running.

python docs/pictures/icon.py [FILE]
"""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image, ImageDraw

SIZE, FINER = 512, 4  # drawn larger, then scaled down for smooth edges
NIGHT, DUSK = (30, 27, 46), (58, 49, 92)
PAPER, LINE, FAINT = (250, 248, 242), (178, 172, 196), (222, 217, 232)
DONE, RUNS = (47, 158, 104), (243, 115, 33)
STEPS = ((58, 326), (130, 206), (202, 86))  # left, top: from the bottom up
WIDE, HIGH = 252, 100


def at(*numbers: float) -> list[float]:
    """Scale lengths of the finished picture to those of the larger one."""
    return [number * FINER for number in numbers]


def ground() -> Image.Image:
    """Return the rounded square, darker at the bottom."""
    height = SIZE * FINER
    column = Image.new("RGBA", (1, height))
    for y in range(height):
        share = y / height
        column.putpixel(
            (0, y),
            (
                *(round(a + (b - a) * share) for a, b in zip(DUSK, NIGHT, strict=True)),
                255,
            ),
        )
    mask = Image.new("L", (height, height))
    ImageDraw.Draw(mask).rounded_rectangle(
        at(0, 0, SIZE, SIZE), radius=112 * FINER, fill=255
    )
    picture = Image.new("RGBA", (height, height))
    picture.paste(column.resize((height, height)), mask=mask)
    return picture


def cell(draw: ImageDraw.ImageDraw, left: float, top: float, runs: bool) -> None:
    """Draw a cell: its mark and two lines of code."""
    color = RUNS if runs else DONE
    draw.rounded_rectangle(
        at(left, top, left + WIDE, top + HIGH), radius=22 * FINER, fill=PAPER
    )
    draw.rounded_rectangle(
        at(left, top, left + 44, top + HIGH), radius=22 * FINER, fill=color
    )
    draw.rectangle(at(left + 22, top, left + 44, top + HIGH), fill=color)
    middle = top + HIGH / 2
    if runs:
        draw.polygon(
            at(left + 14, middle - 16, left + 14, middle + 16, left + 36, middle),
            fill=PAPER,
        )
    else:
        tick = at(left + 11, middle + 1, left + 19, middle + 10, left + 34, middle - 11)
        draw.line(tick, fill=PAPER, width=7 * FINER, joint="curve")
    for below, right, tone in ((30, 232, LINE), (60, 176, LINE if runs else FAINT)):
        bar = at(left + 66, top + below - 6, left + right, top + below + 8)
        draw.rounded_rectangle(bar, radius=7 * FINER, fill=tone)


def drawn() -> Image.Image:
    """Return the icon."""
    picture = ground()
    draw = ImageDraw.Draw(picture)
    for number, (left, top) in enumerate(STEPS):
        cell(draw, left, top, runs=number == len(STEPS) - 1)
    return picture.resize((SIZE, SIZE), Image.Resampling.LANCZOS)


if __name__ == "__main__":
    root = Path(__file__).resolve().parent.parent.parent
    drawn().save(
        sys.argv[1] if len(sys.argv) > 1 else root / ".claude-plugin" / "icon.png",
        optimize=True,
    )
