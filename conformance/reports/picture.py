"""Pictures of a batch as SVG: requests as rows, tokens as cells, and a frame where it is wrong.

A picture is drawn in the process of the failing test, and sent to the one that writes the report.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import accumulate, groupby
from typing import Any, Final, NamedTuple

import numpy as np

from conformance.messages.mismatch import Mismatch
from conformance.messages.places import PER_REQUEST, PER_TOKEN, flat_arguments
from conformance.strategies.batch import Batch, Layout
from conformance.values.call import Call, calls_in
from conformance.values.comparison import field_name
from conformance.values.differences import Difference, Verdict

MAX_CELLS: Final = 32
"""The maximum number of tokens in a row; of longer rows, those around the mark are shown."""
MAX_ROWS: Final = 16
"""The maximum number of requests in a picture."""

CELL, GAP, ROW, LEFT = 30, 3, 58, 92  # pixels
HUES: Final = (212, 30, 150, 285, 55, 185, 330, 95)  # of blocks

RENUMBERING: Final = frozenset(
    {
        "make_local_attention_virtual_batches",
        "make_kv_sharing_fast_prefill_common_attn_metadata",
        "compute_causal_conv1d_metadata",
        "split_attn_metadata",
        "_make_metadata_with_slice",
    }
)
"""Functions whose results number requests and tokens differently than the batch."""


class Mark(NamedTuple):
    """The position of a difference in a batch; what is None is not limited to one."""

    request: int | None = None
    token: int | None = None  # in the batch
    column: int | None = None  # of the block table

    def has(self, token: int, column: int | None) -> bool:
        """Return whether a token of the request, which lies in a column, is marked."""
        return self.token in {None, token} and self.column in {None, column}


class _Contents(NamedTuple):
    query_lens: Sequence[int]
    contexts: Sequence[int]  # computed tokens of each request
    num_padding_tokens: int = 0
    rows: Sequence[Sequence[int]] = ()  # of the block table
    layout: Layout | None = None


@dataclasses.dataclass(frozen=True)
class _Cell:
    kind: str  # context, new, padding, gap
    number: int  # the position; of padding the token; of a gap the tokens left out
    tooltip: str = ""
    block: int | None = None
    is_wrong: bool = False


def pictures_of_failure(example: Any, error: BaseException) -> list[str]:
    """Return the pictures of a failed check's example and exception; none without a batch."""
    try:
        if isinstance(error, Mismatch):
            return pictures_of(error.call, error.difference)
        return [picture for call in [*calls_in(example)][:1] for picture in pictures_of(call)]
    except Exception:  # noqa: BLE001  # the arguments of an invalid call may be anything
        return []


def pictures_of(call: Call, difference: Difference | None = None) -> list[str]:
    """Return pictures of a call's batch: one for each KV cache group, one, or none.

    Args:
        call: The call. Its batch is its source, or is read from its arguments.
        difference: The first difference, whose token, request or table entries are framed.

    >>> starts, seq_lens = np.array([0, 1, 1], np.int32), np.array([3, 0], np.int32)
    >>> [picture] = pictures_of(Call("f", {"query_start_loc": starts, "seq_lens": seq_lens}))
    >>> picture.count('class="context"'), picture.count('class="new"'), "no tokens" in picture
    (2, 1, True)
    """
    groups = getattr(call.source, "batches", None)
    if groups is not None:
        pairs = enumerate(map(_of_batch, groups))
        return [_drawn(shown, None, f"KV cache group {group}") for group, shown in pairs]
    shown = _of_batch(call.source) if isinstance(call.source, Batch) else _of_arguments(call)
    if shown is None:
        return []
    mark = None if difference is None else mark_of(call, difference)
    return [_drawn(shown, mark, "The batch")]


def mark_of(call: Call, difference: Difference) -> Mark | None:
    """Return the position of a difference in the batch of a call, or None if it has none.

    >>> difference = Difference(Verdict.VALUE, "result.seq_lens", (1,), 4, 5)
    >>> mark_of(Call("CommonAttentionMetadata.unpadded", {}), difference)
    Mark(request=1, token=None, column=None)
    """
    is_outside = difference.path.startswith("memory around") or call.function in RENUMBERING
    has_values = difference.verdict in {Verdict.VALUE, Verdict.CHANGE}
    if is_outside or not has_values or not difference.index:
        return None
    name, (first, *rest) = field_name(difference.path), difference.index
    if name in PER_REQUEST:
        return Mark(first, column=rest[0] if rest and name.startswith("block_table") else None)
    if name in PER_TOKEN or call.function == "compute_slot_mapping":
        return Mark(token=first)
    return None


def _of_batch(batch: Batch) -> _Contents:
    counts = batch.query_lens, batch.num_computed_tokens, batch.num_padding_tokens
    return _Contents(*counts, batch.rows, batch.layout)


def _of_arguments(call: Call) -> _Contents | None:
    """Read the batch from a call's arguments; return None if there is none."""
    values = flat_arguments(call)
    starts, totals, positions, scheduled = (
        _ints(values.get(name))
        for name in ("query_start_loc", "seq_lens", "positions", "num_scheduled_tokens")
    )
    lens = np.diff(starts).tolist() if starts else scheduled or [0] * len(totals)
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
    shown = _Contents(lens, contexts, max(number - sum(lens), 0))
    table: Any = values.get("block_table", values.get("block_table_tensor"))
    size = values.get("block_size")
    if not isinstance(size, int) or size < 1 or getattr(table, "ndim", 0) != 2:
        return shown
    names = {field.name for field in dataclasses.fields(Layout)} & values.keys()
    layout = Layout(**{name: values[name] for name in names})
    return shown._replace(rows=table.tolist(), layout=layout)


def _ints(value: Any) -> list[int]:
    """Return the elements of a one-dimensional integer array; none of anything else."""
    is_ints = isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iu"
    return value.tolist() if is_ints else []


def _drawn(shown: _Contents, mark: Mark | None, title: str) -> str:
    starts = list(accumulate(shown.query_lens, initial=0))
    number, layout = len(shown.query_lens), shown.layout
    framed = None if mark is None else mark.request
    if mark is not None and mark.token is not None:
        framed = next((i for i in range(number) if starts[i] <= mark.token < starts[i + 1]), None)
    first = max(0 if framed is None else framed - MAX_ROWS + 1, 0)
    last = min(first + MAX_ROWS, number)
    rows: dict[str, list[_Cell]] = {f"{first} more": []} if first else {}
    for i in range(first, last):
        label = f"▸ request {i}" if framed == i else f"request {i}"
        rows[label] = list(_cells(shown, i, starts[i], mark if framed == i else None))
    if last < number:
        rows[f"{number - last} more "] = []
    tokens = range(starts[-1], starts[-1] + shown.num_padding_tokens)[:MAX_CELLS]
    if tokens:
        rows["padding"] = [
            _Cell("padding", i, f"padding token {i}", None, mark == Mark(token=i)) for i in tokens
        ]
    if layout is not None:
        title += f", block size {layout.block_size}"
    if layout is not None and layout.cp_world_size > 1:
        title += f", rank {layout.cp_rank} of {layout.cp_world_size}, other ranks' tokens grey"
    return _svg(rows, title)


def _cells(shown: _Contents, i: int, start: int, mark: Mark | None) -> Iterator[_Cell]:
    """Yield the cells of a request, and gaps for those that are left out."""
    context = shown.contexts[i]
    stop = context + shown.query_lens[i]
    row = shown.rows[i] if i < len(shown.rows) else ()
    focus = context if mark is None or mark.token is None else context + mark.token - start
    first = max(min(focus - MAX_CELLS // 2, stop - MAX_CELLS), 0)
    last = min(first + MAX_CELLS, stop)
    if first:
        yield _Cell("gap", first)
    for position in range(first, last):
        token = start + position - context
        column = None if shown.layout is None else _column(shown.layout, position)
        block = row[column] if column is not None and column < len(row) else None
        is_new = position >= context
        is_wrong = mark is not None and mark.has(token, column)
        said = f"new token {token}" if is_new else "context"
        said += f", position {position}" + ("" if block is None else f", block {block}")
        yield _Cell("new" if is_new else "context", position, said, block, is_wrong)
    if last < stop:
        yield _Cell("gap", stop - last)


def _column(layout: Layout, position: int) -> int | None:
    """Return the table column of a position; None if another rank holds the position."""
    world, interleave = layout.cp_world_size, layout.cp_kv_cache_interleave_size
    virtual, inside = divmod(position, layout.block_size * world)
    if inside // interleave % world != layout.cp_rank:
        return None
    offset = inside // (world * interleave) * interleave + inside % interleave
    kernel = layout.kernel_block_size or layout.block_size
    return virtual * layout.blocks_per_kv_block + offset // kernel


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
    head = f'<svg {size} role="img" aria-label="{escape(title)}">'
    return "\n".join([head, *parts, "</svg>"])


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
            about = f"<title>{escape(cell.tooltip)}</title>"
            parts.append(f'<g class="{cell.kind}">{about}<rect {box}{style}/>{text}</g>')
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
