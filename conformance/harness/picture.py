"""Pictures of a batch as SVG: requests as rows, tokens as cells, and a frame where it is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import accumulate, groupby
from typing import Any, Final, NamedTuple

import numpy as np

from conformance.harness.show import PER_REQUEST, PER_TOKEN, batch_of
from conformance.harness.story import Failure

MAX_CELLS: Final = 32
"""The most tokens in a row; of longer rows, those around the frame are shown."""

MAX_ROWS: Final = 16
CELL, GAP, ROW, LEFT = 30, 3, 58, 92  # pixels
HUES: Final = (212, 30, 150, 285, 55, 185, 330, 95)  # of blocks

RENUMBERING: Final = ("make_", "compute_causal", "split_attn", "_make_metadata")
"""How functions begin whose results number requests and tokens otherwise than the batch."""


class _Batch(NamedTuple):
    query_lens: Sequence[int]
    contexts: Sequence[int]  # computed tokens of each request
    num_padding_tokens: int
    rows: Sequence[Sequence[int]]  # of the block table; none if it is not shown
    block_size: int


class _Cell(NamedTuple):
    kind: str  # context, new, padding, gap
    number: int  # the position; of padding the token; of a gap the tokens left out
    block: int | None = None
    is_wrong: bool = False


class _Mark(NamedTuple):
    request: int | None = None
    token: int | None = None  # in the batch
    column: int | None = None  # of the block table

    def has(self, token: int, column: int) -> bool:
        return self.token in {None, token} and self.column in {None, column}


def picture_of(failure: Failure) -> str:
    try:
        batch = _read(failure.arguments)
    except Exception:  # noqa: BLE001  # the arguments of an invalid call may be anything
        return ""
    return "" if batch is None else _drawn(batch, _mark(failure))


def _mark(failure: Failure) -> _Mark:
    difference, function = failure.difference, failure.story.function
    name = difference.where.rpartition(".")[2]
    if not difference.index or function.startswith(RENUMBERING) or "[" in difference.where:
        return _Mark()
    first, *rest = difference.index
    if PER_REQUEST.fullmatch(name):
        return _Mark(first, column=rest[0] if rest and name.startswith("block_table") else None)
    is_slots = function == "compute_slot_mapping"
    return _Mark(token=first) if PER_TOKEN.fullmatch(name) or is_slots else _Mark()


def _read(arguments: Mapping[str, Any]) -> _Batch | None:
    values, starts = batch_of(arguments)
    totals, positions = (_ints(values.get(name)) for name in ("seq_lens", "positions"))
    lens = np.diff(starts).tolist() if starts else _ints(values.get("num_scheduled_tokens"))
    lens = lens or [0] * len(totals)
    if not lens or min(lens) < 0:
        return None
    contexts = [0] * len(lens)
    if len(totals) >= len(lens):
        contexts = [total - query for total, query in zip(totals, lens, strict=False)]
    elif positions and len(positions) >= sum(lens):
        firsts = accumulate(lens, initial=0)
        contexts = [positions[i] if n else 0 for i, n in zip(firsts, lens, strict=False)]
    if min(contexts) < 0:
        return None
    number = len(positions) or int(values.get("num_actual_tokens", 0) or 0)
    table: Any = values.get("block_table", values.get("block_table_tensor"))
    size: Any = values.get("block_size")
    is_shown = isinstance(size, int) and size > 0 and getattr(table, "ndim", 0) == 2
    is_shown &= values.get("cp_world_size", 1) == 1 and "kernel_block_size" not in values
    rows = table.tolist() if is_shown else []
    return _Batch(lens, contexts, max(number - sum(lens), 0), rows, size if rows else 1)


def _ints(value: Any) -> list[int]:
    is_ints = isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iu"
    return value.tolist() if is_ints else []


def _drawn(batch: _Batch, mark: _Mark) -> str:
    starts = list(accumulate(batch.query_lens, initial=0))
    number, framed = len(batch.query_lens), mark.request
    if mark.token is not None:
        framed = next((i for i in range(number) if starts[i] <= mark.token < starts[i + 1]), None)
    first = max(0 if framed is None else framed - MAX_ROWS + 1, 0)
    last = min(first + MAX_ROWS, number)
    rows: dict[str, list[_Cell]] = {f"{first} more": []} if first else {}
    for i in range(first, last):
        label = f"▸ request {i}" if framed == i else f"request {i}"
        rows[label] = list(_cells(batch, i, starts[i], mark if framed == i else None))
    if last < number:
        rows[f"{number - last} more "] = []
    tokens = range(starts[-1], starts[-1] + batch.num_padding_tokens)[:MAX_CELLS]
    if tokens:
        rows["padding"] = [_Cell("padding", i, None, mark.token == i) for i in tokens]
    return _svg(rows, "The batch" + f", block size {batch.block_size}" * bool(batch.rows))


def _cells(batch: _Batch, i: int, start: int, mark: _Mark | None) -> Iterator[_Cell]:
    context = batch.contexts[i]
    stop = context + batch.query_lens[i]
    row = batch.rows[i] if i < len(batch.rows) else ()
    focus = context if mark is None or mark.token is None else context + mark.token - start
    first = max(min(focus - MAX_CELLS // 2, stop - MAX_CELLS), 0)
    last = min(first + MAX_CELLS, stop)
    if first:
        yield _Cell("gap", first)
    for position in range(first, last):
        column = position // batch.block_size
        block = row[column] if column < len(row) else None
        token = start + position - context
        is_wrong = mark is not None and mark.has(token, column)
        yield _Cell("new" if position >= context else "context", position, block, is_wrong)
    if last < stop:
        yield _Cell("gap", stop - last)


def _svg(rows: Mapping[str, Sequence[_Cell]], title: str) -> str:
    blocks = dict.fromkeys(cell.block for cells in rows.values() for cell in cells)
    blocks.pop(None, None)
    hues = {block: HUES[i % len(HUES)] for i, block in enumerate(blocks)}
    parts = [f'<text class="title" x="2" y="14">{escape(title)}</text>']
    width, height = 640, 26
    for label, cells in rows.items():
        drawn, right = _drawn_row(label, cells, hues)
        parts.append(f'<g transform="translate(0 {height})">{drawn}</g>')
        width, height = max(width, right), height + ROW
    size = f'width="{width + 8}" height="{height}"'
    return "\n".join([f'<svg {size} role="img" aria-label="{escape(title)}">', *parts, "</svg>"])


def _drawn_row(label: str, cells: Sequence[_Cell], hues: dict[Any, int]) -> tuple[str, int]:
    """Return a row as SVG, and where it ends. A bar and a number below mark each block."""
    parts, x = [f'<text class="label" x="{LEFT - 10}" y="19">{label}</text>'], LEFT
    for block, run in groupby(cells, key=lambda cell: cell.block):
        first, style = x, "" if block is None else f' style="fill: hsl({hues[block]} 60% 72%)"'
        for cell in run:
            if cell.kind == "gap":
                parts.append(_text(f"… {cell.number:,} …", x, 19, 2 * CELL))
                x += 2 * CELL + GAP
                continue
            box = f'x="{x}" width="{CELL}" height="{CELL}" rx="4"'
            text = _text(str(cell.number), x, 19, CELL)
            parts.append(f'<g class="{cell.kind}"><rect {box}{style}/>{text}</g>')
            if cell.is_wrong:
                parts.append(f'<rect class="wrong" {box}/>')
            x += CELL + GAP
        if block is not None:
            width = x - GAP - first
            parts.append(f'<rect x="{first}" y="34" width="{width}" height="4"{style}/>')
            parts.append(_text(str(block), first, 49, width))
    if not cells and "request" in label:
        parts.append(_text("no tokens", x, 19, 72))
    return "".join(parts), x


def _text(text: str, x: int, y: int, width: int) -> str:
    """Return a text in the middle of a width, squeezed if it is longer."""
    fit = f' textLength="{width - 2}" lengthAdjust="spacingAndGlyphs"'
    return f'<text x="{x + width / 2:g}" y="{y}"{fit * (len(text) * 8 > width)}>{text}</text>'
