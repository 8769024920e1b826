"""Pictures of a batch, as plain values: requests as rows, tokens as cells, each in its block.

A picture is made in the process of the failing test and sent to the one that writes the report,
where `picture_layout` and `parts.html.j2` draw it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import reference
from conformance.messages.places import PER_REQUEST, PER_TOKEN, flat_arguments
from conformance.strategies.batch import Batch, Layout
from conformance.values.call import Call
from conformance.values.comparison import field_name
from conformance.values.differences import Difference, Verdict

MAX_CELLS = 32
"""The maximum number of cells in a row; longer rows are shortened."""
MAX_ROWS = 16
"""The maximum number of requests in a picture."""

RENUMBERING = frozenset(
    {
        "make_local_attention_virtual_batches",
        "make_kv_sharing_fast_prefill_common_attn_metadata",
        "compute_causal_conv1d_metadata",
    }
)
"""Functions whose results number requests and tokens differently than the batch."""


@dataclasses.dataclass(frozen=True)
class Mark:
    """The position of a difference in a batch.

    Attributes:
        request: The request; None if only the token is known.
        token: The token in the batch; None for all tokens of a request.
        column: The column of the block table; None for all.
    """

    request: int | None = None
    token: int | None = None
    column: int | None = None


def mark_of(call: Call, difference: Difference) -> Mark | None:
    """Return the position of a difference in the batch of a call, or None if it has none.

    >>> difference = Difference(Verdict.VALUE, "result.seq_lens", (1,), 4, 5)
    >>> mark_of(Call("CommonAttentionMetadata.unpadded", {}), difference)
    Mark(request=1, token=None, column=None)
    """
    is_outside = difference.path.startswith("memory around") or call.function in RENUMBERING
    if (
        difference.verdict not in {Verdict.VALUE, Verdict.CHANGE}
        or not difference.index
        or is_outside
    ):
        return None
    name, (first, *rest) = field_name(difference.path), difference.index
    part = _part(call, difference.path)
    if part is None:
        return None
    if name in PER_REQUEST:
        request = first + part.request_slice.start
        return Mark(request, column=rest[0] if rest and name.startswith("block_table") else None)
    if name in PER_TOKEN or call.function == "compute_slot_mapping":
        return Mark(token=first + part.token_slice.start)
    return None


WHOLE = reference.UBatchSlice(slice(0, None), slice(0, None))
"""The slice of the whole batch."""


def _part(call: Call, path: str) -> reference.UBatchSlice | None:
    """Return the part of the batch that a part of the result is about."""
    parts = [value for value in call.arguments.values() if _is_slice(value)]
    many = [
        value
        for value in call.arguments.values()
        if isinstance(value, list) and value and all(map(_is_slice, value))
    ]
    if not path.startswith("result["):
        return parts[0] if parts else WHOLE
    number = path.removeprefix("result[").partition("]")[0]
    return many[0][int(number)] if many and number.isdigit() else None


def _is_slice(value: object) -> bool:
    return isinstance(value, reference.UBatchSlice)


def pictures_of(call: Call, difference: Difference | None = None) -> list[dict[str, Any]]:
    """Return pictures of a call's batch: one for each KV cache group, one, or none.

    Args:
        call: The call. Its batch is its source, or is read from its arguments.
        difference: The first difference, whose cell is marked.

    >>> starts, seq_lens = np.array([0, 1, 1], np.int32), np.array([3, 0], np.int32)
    >>> call = Call("f", {"query_start_loc": starts, "seq_lens": seq_lens})
    >>> [[cell["kind"] for cell in row["cells"]] for row in pictures_of(call)[0]["rows"]]
    [['context', 'context', 'new'], []]
    """
    mark = mark_of(call, difference) if difference is not None else None
    groups = getattr(call.source, "batches", None)
    if groups is not None:
        return [
            _drawn(_of_batch(batch), None, f"KV cache group {group}")
            for group, batch in enumerate(groups)
        ]
    shown = _of_batch(call.source) if isinstance(call.source, Batch) else _of_arguments(call)
    return [] if shown is None else [_drawn(shown, mark)]


@dataclasses.dataclass(frozen=True)
class _Contents:
    """The contents of a picture.

    Attributes:
        query_lens: New tokens of each request.
        contexts: Computed tokens of each request.
        num_padding_tokens: Padding tokens at the end.
        rows: The block IDs of each request; None without a table.
        layout: The layout of positions in blocks.
        slots: The slot of each token; None if the call has none.
    """

    query_lens: Sequence[int]
    contexts: Sequence[int]
    num_padding_tokens: int = 0
    rows: Sequence[Sequence[int]] | None = None
    layout: Layout | None = None
    slots: Sequence[int] | None = None


def _of_batch(batch: Batch) -> _Contents:
    return _Contents(
        batch.query_lens,
        batch.num_computed_tokens,
        batch.num_padding_tokens,
        batch.rows,
        batch.layout,
        batch.slot_mapping().tolist(),
    )


def _of_arguments(call: Call) -> _Contents | None:
    """Read the batch from a call's arguments; return None if there is none."""
    values = flat_arguments(call)
    starts = _ints(values.get("query_start_loc"))
    lens = np.diff(starts).tolist() if starts else _ints(values.get("num_scheduled_tokens"))
    totals = _ints(values.get("seq_lens"))
    if lens is None:
        lens = [0] * len(totals or [])
    if not lens or min(lens) < 0:
        return None
    if totals is None or len(totals) < len(lens):
        totals = None
    contexts = [0] * len(lens) if totals is None else [t - q for t, q in zip(totals, lens)]  # noqa: B905  # a table may have more rows
    positions = _ints(values.get("positions"))
    if totals is None and positions and len(positions) >= sum(lens):
        firsts = np.cumsum([0, *lens])
        contexts = [positions[s] if q else 0 for s, q in zip(firsts, lens)]  # noqa: B905  # one more start
    if min(contexts) < 0:
        return None
    table = values.get("block_table", values.get("block_table_tensor"))
    size = values.get("block_size")
    has_table = isinstance(size, int) and size > 0 and getattr(table, "ndim", 0) == 2
    names = {field.name for field in dataclasses.fields(Layout)} & values.keys()
    layout = Layout(**{name: values[name] for name in names}) if has_table else None
    number = len(positions) if positions else int(values.get("num_actual_tokens", 0) or 0)
    rows = table.tolist() if table is not None and layout is not None else None
    slots = _ints(values.get("slot_mapping"))
    return _Contents(lens, contexts, max(number - sum(lens), 0), rows, layout, slots)


def _ints(value: Any) -> list[int] | None:
    """Return the elements of a one-dimensional integer array; None for anything else."""
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iu":
        found: list[int] = value.tolist()
        return found
    return None


def _drawn(shown: _Contents, mark: Mark | None, title: str = "") -> dict[str, Any]:
    """Return a picture as plain values."""
    starts = np.cumsum([0, *shown.query_lens]).tolist()
    is_of = [_is_of(mark, i, *starts[i : i + 2]) for i in range(len(shown.query_lens))]
    first = max(is_of.index(True) - MAX_ROWS + 1, 0) if True in is_of else 0
    rows = []
    if first:
        rows.append({"label": f"{first} more", "is_marked": False, "cells": []})
    for i in range(first, min(first + MAX_ROWS, len(is_of))):
        cells = list(_cells(shown, i, starts[i], mark if is_of[i] else None))
        whole = is_of[i] and mark is not None and mark.token is None and mark.column is None
        rows.append({"label": f"request {i}", "is_marked": whole, "cells": cells})
    left = len(is_of) - first - MAX_ROWS
    if left > 0:
        rows.append({"label": f"{left} more", "is_marked": False, "cells": []})
    if shown.num_padding_tokens:
        cells = list(_padding(shown, starts[-1], mark))
        rows.append({"label": "padding", "is_marked": False, "cells": cells})
    layout = shown.layout
    if layout is not None and layout.cp_world_size > 1:
        rank = f"rank {layout.cp_rank} of {layout.cp_world_size}, other ranks' tokens grey"
        title = f"{title}, {rank}" if title else f"The batch, {rank}"
    size = None if layout is None else layout.block_size
    return {"title": title, "block_size": size, "rows": rows}


def _is_of(mark: Mark | None, request: int, start: int, stop: int) -> bool:
    """Return whether a mark is in a request."""
    if mark is None:
        return False
    if mark.token is not None:
        return start <= mark.token < stop
    return mark.request == request


def _cells(shown: _Contents, i: int, start: int, mark: Mark | None) -> Iterator[dict[str, Any]]:
    """Yield the cells of a request, and gaps between them."""
    context, query = shown.contexts[i], shown.query_lens[i]
    focus = context if mark is None or mark.token is None else context + mark.token - start
    for positions in _spans(context + query, focus):
        if isinstance(positions, int):
            yield {"kind": "gap", "count": positions}
            continue
        for position in positions:
            column = None if shown.layout is None else _column(shown.layout, position)
            cell: dict[str, Any] = {"kind": "context", "position": position}
            is_marked = mark is not None and mark.column is not None and mark.column == column
            if position >= context:
                cell |= {"kind": "new", "token": start + position - context}
                cell |= _slot(shown, cell["token"])
                is_marked = is_marked or (mark is not None and mark.token == cell["token"])
            row = shown.rows[i] if shown.rows is not None and i < len(shown.rows) else ()
            if column is not None and column < len(row):
                cell["block"] = int(row[column])
            yield {**cell, "is_marked": is_marked}


def _padding(shown: _Contents, start: int, mark: Mark | None) -> Iterator[dict[str, Any]]:
    """Yield the cells of padding tokens."""
    for token in range(start, start + min(shown.num_padding_tokens, MAX_CELLS)):
        is_marked = mark is not None and mark.token == token
        yield {
            "kind": "padding",
            "token": token,
            **_slot(shown, token),
            "is_marked": is_marked,
        }
    if shown.num_padding_tokens > MAX_CELLS:
        yield {"kind": "gap", "count": shown.num_padding_tokens - MAX_CELLS}


def _slot(shown: _Contents, token: int) -> dict[str, int]:
    is_there = shown.slots is not None and token < len(shown.slots)
    return {"slot": shown.slots[token]} if is_there and shown.slots is not None else {}


def _spans(stop: int, focus: int) -> Iterator[range | int]:
    """Yield the positions to show around a focus, and how many are left out between them.

    >>> list(_spans(4, 2)), list(_spans(1002, 1001))
    ([range(0, 4)], [970, range(970, 1002)])
    """
    if stop <= MAX_CELLS:
        yield range(stop)
        return
    # By default the focus is the end of the context.
    first = min(max(focus - MAX_CELLS // 2, 0), stop - MAX_CELLS)
    last = first + MAX_CELLS
    if first:
        yield first
    yield range(first, last)
    if stop > last:
        yield stop - last


def _column(layout: Layout, position: int) -> int | None:
    """Return the table column of a position; None if another rank holds the position."""
    world, interleave = layout.cp_world_size, layout.cp_kv_cache_interleave_size
    virtual, inside = divmod(position, layout.block_size * world)
    if inside // interleave % world != layout.cp_rank:
        return None
    offset = inside // (world * interleave) * interleave + inside % interleave
    kernel = layout.kernel_block_size or layout.block_size
    return virtual * layout.blocks_per_kv_block + offset // kernel
