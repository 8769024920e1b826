"""Computes the positions of a picture's parts, which `parts.html.j2` draws as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby
from typing import Any

CELL, GAP, ROW, LEFT, TOP = 30, 3, 58, 92, 4
"""Sizes in pixels: of a cell, a gap between cells, a row with its labels, and the margins."""

MIN_WIDTH = 72
"""The width of a row without tokens, which has a text."""

NUM_COLOURS = 8
"""Colours of blocks, which the style sheet calls `b0`, `b1`, ..."""


def arrange_picture(picture: Mapping[str, Any]) -> dict[str, Any]:
    """Return a picture from `pictures_of` with the positions, colours and tooltips of its parts.

    Neighbouring cells of one block form a run, which has the block's id.

    >>> row = {"label": "request 0", "is_marked": False, "cells": []}
    >>> arrange_picture({"title": "", "rows": [row]})["description"]
    'The batch. request 0: no tokens.'
    """
    blocks = [cell["block"] for row in picture["rows"] for cell in row["cells"] if "block" in cell]
    colours = {block: i % NUM_COLOURS for i, block in enumerate(dict.fromkeys(blocks))}
    rows = [_arrange_row(row, colours) for row in picture["rows"]]
    return {
        "width": LEFT + max((row["width"] for row in rows), default=MIN_WIDTH) + GAP,
        "height": TOP + ROW * len(rows),
        "description": _description(picture),
        "rows": [{**row, "y": TOP + i * ROW} for i, row in enumerate(rows)],
    }


def _arrange_row(row: Mapping[str, Any], colours: Mapping[int, int]) -> dict[str, Any]:
    widths = [CELL * 2 if cell["kind"] == "gap" else CELL for cell in row["cells"]]
    lefts = list(accumulate((width + GAP for width in widths), initial=LEFT))
    cells = []
    for cell, x in zip(row["cells"], lefts, strict=False):  # the last one is the row's end
        text = str(cell.get("position", "-"))
        placed = {**cell, "x": x, "text": text, "fit": _fit(text, CELL - 4)}
        cells.append(
            {**placed, "colour": colours.get(cell.get("block")), "tooltip": _tooltip(cell)}
        )
    return {
        **row,
        "width": max(lefts[-1] - LEFT, MIN_WIDTH),
        "cells": cells,
        "runs": _runs(cells),
    }


def _runs(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    runs = []
    for block, run in groupby(cells, key=lambda cell: cell.get("block")):
        if block is not None:
            members = list(run)
            x, width = members[0]["x"], members[-1]["x"] + CELL - members[0]["x"]
            fit = _fit(str(block), width)
            runs.append({**members[0], "x": x, "width": width, "fit": fit})
    return runs


def _fit(text: str, width: float) -> float:
    """Return the width into which a text is squeezed; 0 if it fits."""
    return max(width, 8) if len(text) * 7 > width else 0


def _description(picture: Mapping[str, Any]) -> str:
    """Describe a picture, for screen readers."""
    rows = []
    for row in picture["rows"]:
        kinds = [cell["kind"] for cell in row["cells"]]
        counts = [(kind, kinds.count(kind)) for kind in ("context", "new", "padding")]
        text = ", ".join(f"{number} {kind}" for kind, number in counts if number) or "no tokens"
        rows.append(f"{row['label']}: {text}")
    return f"{picture['title'] or 'The batch'}. {'; '.join(rows)}."


def _tooltip(cell: Mapping[str, Any]) -> str:
    """Return the tooltip of a cell.

    >>> _tooltip({"kind": "new", "position": 3, "token": 0, "block": 9, "slot": 19})
    'new token 0, position 3, block 9, slot 19'
    """
    kind = cell["kind"] + (f" token {cell['token']}" if "token" in cell else "")
    facts = [f"{name} {cell[name]}" for name in ("position", "block", "slot") if name in cell]
    return ", ".join([kind, *facts])
