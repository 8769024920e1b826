"""Draws a picture of a batch as SVG, for a page whose style sheet has the colours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from markupsafe import Markup

CELL, GAP, ROW, LEFT, TOP = 30, 3, 58, 92, 4
"""Sizes in pixels: of a cell, a gap between cells, a row with its labels, and the margins."""

MIN_WIDTH = 72
"""The width of a row without tokens, which has a text."""

NUM_COLOURS = 8
"""Colours of blocks, which the style sheet calls `b0`, `b1`, ..."""


def svg_of(picture: Mapping[str, Any], number: int) -> Markup:
    """Return a picture as an `<svg>` element.

    Args:
        picture: A picture from `pictures_of`.
        number: The number of the picture in its page, for unique element IDs.

    >>> row = {"label": "request 0", "is_marked": False, "cells": []}
    >>> str(svg_of({"title": "", "block_size": 2, "rows": [row]}, 1))[:28]
    '<svg class="batch" viewBox="'
    """
    colours = _colours(picture)
    width = LEFT + max([MIN_WIDTH, *map(_width, picture["rows"])]) + GAP
    height = TOP + ROW * len(picture["rows"])
    parts = [
        Markup(
            '<svg class="batch" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" '
            'aria-labelledby="picture-{n}"><title id="picture-{n}">{title}</title>'
        ).format(w=width, h=height, n=number, title=_description(picture))
    ]
    for i, row in enumerate(picture["rows"]):
        parts += _row(row, TOP + i * ROW, colours)
    return Markup("").join([*parts, Markup("</svg>")])


def _colours(picture: Mapping[str, Any]) -> dict[int, int]:
    """Return the colour of each block, by first occurrence."""
    blocks = [cell["block"] for row in picture["rows"] for cell in row["cells"] if "block" in cell]
    return {block: i % NUM_COLOURS for i, block in enumerate(dict.fromkeys(blocks))}


def _description(picture: Mapping[str, Any]) -> str:
    """Describe a picture, for screen readers."""
    rows = []
    for row in picture["rows"]:
        kinds = [cell["kind"] for cell in row["cells"]]
        counts = [(kind, kinds.count(kind)) for kind in ("context", "new", "padding")]
        text = ", ".join(f"{number} {kind}" for kind, number in counts if number) or "no tokens"
        rows.append(f"{row['label']}: {text}")
    return f"{picture['title'] or 'The batch'}. {'; '.join(rows)}."


def _cell_width(cell: Mapping[str, Any]) -> int:
    return CELL * 2 if cell["kind"] == "gap" else CELL


def _width(row: Mapping[str, Any]) -> int:
    return sum(_cell_width(cell) + GAP for cell in row["cells"])


def _row(row: Mapping[str, Any], y: int, colours: Mapping[int, int]) -> Iterator[Markup]:
    yield Markup('<text class="label{}" x="{}" y="{}">{}</text>').format(
        " marked" if row["is_marked"] else "", LEFT - 10, y + CELL / 2 + 4, row["label"]
    )
    if not row["cells"] and not row["label"].endswith(" more"):
        yield Markup('<text class="none" x="{}" y="{}">no tokens</text>').format(
            LEFT, y + CELL / 2 + 4
        )
    x = LEFT
    runs: list[tuple[int, int, int]] = []
    for cell in row["cells"]:
        yield from _cell(cell, x, y, colours)
        if "block" in cell:
            if runs and runs[-1][0] == cell["block"] and runs[-1][2] == x - GAP:
                runs[-1] = (runs[-1][0], runs[-1][1], x + CELL)
            else:
                runs.append((cell["block"], x, x + CELL))
        x += _cell_width(cell) + GAP
    for block, start, stop in runs:
        yield Markup(
            '<rect class="run b{c}" x="{x}" y="{y}" width="{w}" height="4" rx="2"/>'
            '<text class="block" x="{middle}" y="{below}"{fit}>{block}</text>'
        ).format(
            c=colours[block],
            x=start,
            y=y + CELL + 4,
            w=stop - start,
            middle=(start + stop) / 2,
            below=y + CELL + 19,
            block=block,
            fit=_fit(str(block), stop - start),
        )
    if row["is_marked"]:
        yield Markup('<rect class="mark" x="{}" y="{}" width="{}" height="{}" rx="6"/>').format(
            2, y - 4, LEFT + max(_width(row), MIN_WIDTH) - 2, CELL + 28
        )


def _cell(cell: Mapping[str, Any], x: int, y: int, colours: Mapping[int, int]) -> Iterator[Markup]:
    if cell["kind"] == "gap":
        yield Markup('<text class="gap" x="{}" y="{}">… {:,} …</text>').format(
            x + CELL, y + CELL / 2 + 4, cell["count"]
        )
        return
    colour = f" b{colours[cell['block']]}" if "block" in cell else ""
    text = "-" if cell["kind"] == "padding" else str(cell["position"])
    yield Markup(
        '<g class="{kind}{colour}"><title>{title}</title>'
        '<rect x="{x}" y="{y}" width="{s}" height="{s}" rx="4"/>'
        '<text x="{middle}" y="{base}"{fit}>{text}</text></g>'
    ).format(
        kind=cell["kind"],
        colour=colour,
        title=_tooltip(cell),
        x=x,
        y=y,
        s=CELL,
        middle=x + CELL / 2,
        base=y + CELL / 2 + 4,
        fit=_fit(text, CELL - 4),
        text=text,
    )
    if cell["is_marked"]:
        yield Markup('<rect class="mark" x="{}" y="{}" width="{}" height="{}" rx="5"/>').format(
            x - 1.5, y - 1.5, CELL + 3, CELL + 3
        )


def _fit(text: str, width: float) -> Markup:
    """Return the attributes that squeeze a text into a width, if it is longer."""
    if len(text) * 7 <= width:
        return Markup("")
    return Markup(' textLength="{}" lengthAdjust="spacingAndGlyphs"').format(max(width, 8))


def _tooltip(cell: Mapping[str, Any]) -> str:
    """Return the tooltip of a cell.

    >>> _tooltip({"kind": "new", "position": 3, "token": 0, "block": 9, "slot": 19})
    'new token 0, position 3, block 9, slot 19'
    """
    kind = cell["kind"] + (f" token {cell['token']}" if "token" in cell else "")
    facts = [f"{name} {cell[name]}" for name in ("position", "block", "slot") if name in cell]
    return ", ".join([kind, *facts])
