"""The pictures of the documentation, drawn from results of `reference`.

`python -m tools.site --pictures` writes them to `docs/pictures`, where GitHub shows them too.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

import reference
from conformance.reports.picture import pictures_of
from conformance.reports.picture_layout import arrange_picture
from conformance.reports.rendering import HERE as REPORTS
from conformance.reports.rendering import make_environment
from conformance.values.call import Call

FOLDER: Final = Path(__file__).resolve().parents[2] / "docs" / "pictures"

BLOCK_SIZE: Final = 4

MARGIN, TITLE = 16, 28
"""Sizes in pixels: the margin, and the line of a title."""

Picture = Mapping[str, Any]


def make_batch() -> reference.CommonAttentionMetadata:
    """Return the batch of the pictures: two decodes, a prefill in its second chunk, and a new one.

    Request 2 computed 6 of its tokens in an earlier step.
    """
    query_lens = np.array([1, 1, 5, 6], np.int32)
    computed = np.array([9, 3, 6, 0], np.int32)
    starts = np.concatenate([[0], np.cumsum(query_lens)]).astype(np.int32)
    seq_lens = computed + query_lens
    table = np.array([[7, 2, 9], [4, 0, 0], [1, 5, 8], [3, 6, 0]], np.int32)
    positions = positions_of(query_lens, computed)
    slots = reference.compute_slot_mapping(table, starts, positions, BLOCK_SIZE)
    return reference.CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=seq_lens,
        seq_lens_cpu=seq_lens,
        num_computed_tokens_cpu=computed,
        num_reqs=4,
        num_actual_tokens=len(positions),
        max_query_len=int(query_lens.max()),
        max_seq_len=int(seq_lens.max()),
        block_table_tensor=table,
        slot_mapping=slots,
    )


def positions_of(query_lens: Sequence[int], computed: Sequence[int]) -> np.ndarray[Any, Any]:
    """Return the position of each new token in its sequence.

    >>> positions_of([2, 1], [0, 5]).tolist()
    [0, 1, 5]
    """
    pairs = zip(computed, query_lens, strict=True)
    return np.concatenate([np.arange(first, first + count) for first, count in pairs])


def write_pictures() -> None:
    """Write all pictures to `docs/pictures`."""
    FOLDER.mkdir(exist_ok=True)
    for name, picture in draw_all().items():
        (FOLDER / f"{name}.svg").write_text(picture, encoding="utf-8")


def draw_all() -> dict[str, str]:
    """Return each picture, as SVG, by its name."""
    batch = make_batch()
    chunks = reference.make_local_attention_virtual_batches(BLOCK_SIZE, batch, BLOCK_SIZE)
    halves = reference.split_attn_metadata(
        reference.create_ubatch_slices(np.diff(batch.query_start_loc), 5), batch
    )
    return {
        "batch": draw([tokens_of(batch, "A step with 13 new tokens of 4 requests")]),
        "block-table": draw(
            [tokens_of(batch, "The same step; colours are blocks", with_table=True)]
        ),
        "slots": draw([cache_of(batch)]),
        "virtual-batches": draw(
            [
                tokens_of(batch, "The batch, with chunks of 4 positions"),
                tokens_of(chunks, "One virtual request for each chunk that a request touches"),
            ]
        ),
        "micro-batches": draw(
            [tokens_of(half, f"Micro-batch {i}") for i, half in enumerate(halves)]
        ),
        "ranks": draw([rank_of(batch, rank) for rank in (0, 1)]),
    }


def tokens_of(
    batch: reference.CommonAttentionMetadata, title: str, *, with_table: bool = False
) -> Picture:
    """Return a picture of a batch: requests as rows, positions as cells."""
    arguments = {"query_start_loc": batch.query_start_loc, "seq_lens": batch.seq_lens}
    if with_table:
        arguments |= {"block_table": batch.block_table_tensor, "block_size": BLOCK_SIZE}
    [picture] = pictures_of(Call("", arguments))
    return {**picture, "title": title}


def rank_of(batch: reference.CommonAttentionMetadata, rank: int) -> Picture:
    """Return a picture of the part of a batch that one of two context-parallel ranks holds."""
    arguments = {
        "query_start_loc": batch.query_start_loc,
        "seq_lens": batch.seq_lens,
        "block_table": batch.block_table_tensor,
        "block_size": BLOCK_SIZE,
        "cp_world_size": 2,
        "cp_rank": rank,
        "cp_kv_cache_interleave_size": 1,
    }
    [picture] = pictures_of(Call("", arguments))
    return {**picture, "title": f"What rank {rank} of 2 holds; the other's tokens are grey"}


def cache_of(batch: reference.CommonAttentionMetadata) -> Picture:
    """Return a picture of the physical cache: blocks as rows, slots as cells."""
    place = {
        int(block) * BLOCK_SIZE + position % BLOCK_SIZE: (request, position)
        for request, row in enumerate(batch.block_table_tensor)
        for column, block in enumerate(row)
        for position in range(column * BLOCK_SIZE, (column + 1) * BLOCK_SIZE)
        if position < batch.seq_lens[request]
    }
    new = set(batch.slot_mapping.tolist())
    rows = []
    for block in range(1, 1 + int(batch.block_table_tensor.max())):
        cells = [
            {
                "kind": "new" if slot in new else "context",
                "position": slot,
                "block": f"request {place[slot][0]}",
                "is_marked": False,
            }
            for slot in range(block * BLOCK_SIZE, (block + 1) * BLOCK_SIZE)
            if slot in place
        ]
        rows.append({"label": f"block {block}", "is_marked": False, "cells": cells})
    return {"title": "The cache: the numbers are slots", "block_size": BLOCK_SIZE, "rows": rows}


def draw(pictures: Sequence[Picture]) -> str:
    """Return pictures of batches, one below the other, as one SVG file."""
    environment = make_environment(Path(__file__).parent)
    environment.globals["next_number"] = itertools.count(1).__next__
    sizes = [arrange_picture(picture) for picture in pictures]
    tops = [*itertools.accumulate((size["height"] + TITLE for size in sizes), initial=MARGIN)]
    return environment.get_template("picture.svg.j2").render(
        parts=[*zip(pictures, tops, strict=False)],  # the last top is the end
        width=max(size["width"] for size in sizes) + 2 * MARGIN,
        height=tops[-1],
        margin=MARGIN,
        style=_style(),
    )


def _style() -> str:
    """Return the rules for pictures from the reports' style sheet, in its light colours."""
    lines = (REPORTS / "report.css").read_text(encoding="utf-8").splitlines()
    variables = lines[: lines.index("}") + 1]
    rules = [line for line in lines if line.startswith("svg")]
    return "\n".join([*variables, *rules]).replace(
        "color-scheme: light dark", "color-scheme: light"
    )
