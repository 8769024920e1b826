"""Placeholders, as one fills them with torch in a hurry."""

# ruff: noqa: ANN401, C901, PLR0911  # whatever a caller gives; a branch for each bug

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import fast
from conformance.profiles import Kind
from fast.kernels import multimodal as kernels
from fast.multimodal import NANS
from known_bad.edits import Edit, edits_of
from known_bad.entries import rewritten
from known_bad.outputs import REFUSALS, ROWS, with_out

REAL_SCATTER = fast.scatter_mm_placeholders
REAL_GATHER = fast.gather_mm_placeholders
REAL_SANITY = fast.sanity_check_mm_encoder_outputs

INTS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _as_ints(rows: torch.Tensor) -> torch.Tensor:
    """Return rows as ints of the same bits."""
    return rows.clone(memory_format=torch.contiguous_format).view(INTS[rows.element_size()])


def _make_scatter(bug: str | None) -> Callable[..., Any]:
    def scatter_mm_placeholders(embeds: Any, is_embed: Any) -> Any:
        if is_embed is None:
            return embeds.clone() if bug == "no mask gives a copy" else embeds
        is_vector = isinstance(is_embed, torch.Tensor) and is_embed.dim() == 1
        if bug == "any mask of numbers will do" and is_vector:
            is_embed = is_embed.bool()
        is_here = is_vector and is_embed.is_cpu  # what is not is refused below
        if is_here and isinstance(embeds, torch.Tensor) and embeds.dim() == 2:
            number = int(is_embed.count_nonzero())
            if bug == "one row for all" and len(embeds) == 1:
                embeds = embeds.expand(number, -1)
            if bug == "rows left over are left out":
                embeds = embeds[:number]
        REAL_SCATTER(embeds, is_embed)
        if bug == "the rows themselves where all are" and bool(is_embed.all()):
            return embeds
        if bug == "rows pass through float64":
            embeds = embeds.to(torch.float64).to(embeds.dtype)
        if bug == "rows pass through float16" and embeds.dtype in {torch.float32, torch.bfloat16}:
            embeds = embeds.to(torch.float16).to(embeds.dtype)
        shape = len(is_embed), embeds.shape[1]
        if bug == "NaN is what torch makes of it":
            placeholders = torch.full(shape, float("nan")).to(embeds.dtype)
        else:
            bits = 0 if bug == "placeholders are 0" else NANS[embeds.dtype]
            if bug == "NaN is negative":
                bits |= 1 << 8 * embeds.element_size() - 1
                bits -= (1 << 8 * embeds.element_size()) * (embeds.element_size() > 1)
            ints = torch.full(shape, bits, dtype=INTS[embeds.element_size()])
            placeholders = ints.view(embeds.dtype)
        if bug == "the first run only":
            run = int((~is_embed).to(torch.int8).argmax()) if not is_embed.all() else len(is_embed)
            _as_view(placeholders)[:run] = _as_ints(embeds)[:run]
            return placeholders
        _as_view(placeholders)[is_embed] = _as_ints(embeds)
        return placeholders

    return with_out(bug, REAL_SCATTER, scatter_mm_placeholders)


def _as_view(rows: torch.Tensor) -> torch.Tensor:
    """Return a new tensor's memory as ints."""
    return rows.view(INTS[rows.element_size()])


def _make_gather(bug: str | None) -> Callable[..., Any]:
    def gather_mm_placeholders(
        placeholders: Any, is_embed: Any, *, num_embeds: int | None = None
    ) -> Any:
        if is_embed is None:
            return placeholders
        if bug == "a longer mask is cut" and isinstance(is_embed, torch.Tensor):
            is_embed = is_embed[: len(placeholders)] if is_embed.dim() == 1 else is_embed
        if bug == "the number told is not looked at":
            num_embeds = None
        if bug == "the number told is believed" and type(num_embeds) is int and num_embeds >= 0:
            return REAL_GATHER(placeholders, is_embed)[:num_embeds]
        found = REAL_GATHER(placeholders, is_embed, num_embeds=num_embeds)
        if bug == "a view where all are" and bool(is_embed.all()):
            return placeholders[:]
        if bug == "rows that are NaN are left out" and placeholders.is_floating_point():
            kept = found.to(torch.float32).isnan().all(dim=1)
            return found[~kept]
        if bug == "rows pass through float64" and placeholders.dtype in NANS:
            return found.to(torch.float64).to(found.dtype)
        if bug == "a result in the layout of its source" and not placeholders.is_contiguous():
            return found.T.contiguous().T.to(torch.float32)
        if bug == "the rows of separators too" and not is_embed.all():
            return placeholders[is_embed.to(torch.int8).argmax() :][: len(found)].clone()
        return found

    return with_out(bug, REAL_GATHER, gather_mm_placeholders)


def _make_sanity(bug: str | None) -> Callable[..., None]:
    def sanity_check_mm_encoder_outputs(mm_embeddings: Any, expected_num_items: Any) -> None:
        if bug == "only lists" and isinstance(mm_embeddings, tuple):
            raise TypeError("mm_embeddings must be a list")
        if bug == "one tensor is one item" and isinstance(mm_embeddings, torch.Tensor):
            mm_embeddings = [mm_embeddings]
        if bug == "any collection" and isinstance(mm_embeddings, set | dict):
            mm_embeddings = list(mm_embeddings)
        if bug == "a matrix is one item" and isinstance(mm_embeddings, torch.Tensor):
            mm_embeddings = mm_embeddings[None] if mm_embeddings.dim() == 2 else mm_embeddings
        if bug == "fewer items are fine" and isinstance(mm_embeddings, list | tuple):
            expected_num_items = min(len(mm_embeddings), expected_num_items or 0)
        if bug == "the first item only" and isinstance(mm_embeddings, list | tuple):
            mm_embeddings = [mm_embeddings[0]] * len(mm_embeddings) if mm_embeddings else []
        try:
            REAL_SANITY(mm_embeddings, expected_num_items)
        except ValueError as error:
            if bug == "the cause is not told":
                raise ValueError(str(error).split(";")[0]) from error
            raise

    return sanity_check_mm_encoder_outputs


SCAN_EDITS = {
    "kernel: a dense mask": Edit(
        "count_embeds",
        "entry * mask_stride",
        "entry",
        "Right for every contiguous mask.",
    ),
    "kernel: a block's last round is not counted": Edit(
        "count_embeds",
        "for place in range(PER_THREAD):",
        "for place in range(PER_THREAD - 1):",
        "Right for one tile of placeholders.",
    ),
    "kernel: no barrier before the tiles are added": Edit(
        "rank_embeds",
        "    cuda.syncthreads()\n    cuda.atomic.add(before",
        "    cuda.atomic.add(before",
        "A warp that is early adds to what is not yet 0.",
    ),
    "kernel: no barrier before a step of the scan": Edit(
        "rank_embeds",
        "        cuda.syncthreads()\n        scan[thread] = scan[thread] + left\n",
        "        scan[thread] = scan[thread] + left\n",
        "A warp that is late adds what was added already.",
    ),
    "kernel: no barrier behind a step of the scan": Edit(
        "rank_embeds",
        "scan[thread] + left\n        cuda.syncthreads()\n",
        "scan[thread] + left\n",
        "A warp that is early adds what is not yet added.",
    ),
    "kernel: the tile before is not added": Edit(
        "rank_embeds",
        "while k < tile:",
        "while k < tile - 1:",
        "Right for one tile of placeholders.",
    ),
    "kernel: a thread counts its own entries as before": Edit(
        "rank_embeds",
        "rank = np.int64(before[0]) + scan[thread] - count",
        "rank = np.int64(before[0]) + scan[thread] - min(count, 1)",
        "Right for one embedding a thread.",
    ),
    "kernel: others have the rank of the next": Edit(
        "rank_embeds",
        " = NO_RANK",
        " = rank",
        "They are overwritten by it, or not.",
    ),
}
"""Bugs of the kernels that number a mask's True entries."""

SCATTER_EDITS = {
    **SCAN_EDITS,
    "kernel: dense rows": Edit(
        "scatter_rows",
        "rank * embeds_stride",
        "rank * row_bytes",
        "Right for every contiguous matrix.",
    ),
    "kernel: rows that there are not": Edit(
        "scatter_rows",
        "if rank >= 0 and rank < num_embeds:",
        "if rank >= 0:",
        "A mask of another item, unchecked, reads behind the embeddings.",
        Kind.SAME_REFUSAL,
    ),
    "kernel: a row is one step at least": Edit(
        "scatter_rows",
        "row + row_step",
        "row + max(row_step, 1)",
        "Right for rows of no more units than a block has threads.",
    ),
    "kernel: the last block has as many rows": Edit(
        "find_share",
        "min(np.int64(share), num_things - first)",
        "np.int64(share)",
        "Right where blocks divide the rows.",
    ),
    "kernel: blocks along y do all columns": Edit(
        "scatter_rows",
        "byte = (first_column + column) * size",
        "byte = column * size",
        "Right for rows of less than 64 KiB.",
        "test_blocks_share_a_row_to_scatter",
    ),
    "kernel: NaN of the first byte": Edit(
        "scatter_rows",
        "nan >> 8 * (byte & 7)",
        "nan & 255",
        "Right for float8.",
    ),
}

GATHER_EDITS = {
    **SCAN_EDITS,
    "kernel: dense rows": Edit(
        "gather_rows",
        "placeholder * placeholders_stride",
        "placeholder * row_bytes",
        "Right for every contiguous matrix.",
    ),
    "kernel: rows that there is no room for": Edit(
        "gather_rows",
        "if rank >= 0 and rank < num_embeds:",
        "if rank >= 0:",
        "A number of another item, unchecked, writes behind the result.",
        Kind.SAME_REFUSAL,
    ),
    "kernel: the rest is the business of all": Edit(
        "gather_rows",
        "if placeholder >= total and placeholder < num_embeds:",
        "if placeholder < num_embeds and placeholder + 1 >= total:",
        "One row is written twice.",
    ),
    "kernel: blocks along y take the first columns": Edit(
        "gather_rows",
        "byte = (first_column + column) * size",
        "byte = column * size",
        "Right for rows of less than 64 KiB.",
        "test_blocks_share_a_row_to_gather",
    ),
    "kernel: each block's rows begin at 0": Edit(
        "gather_rows",
        "placeholder = first_row + row",
        "placeholder = row",
        "Right for one block of threads.",
    ),
}

MULTIMODAL = [
    *edits_of(kernels, "scatter_mm_placeholders", SCATTER_EDITS),
    *edits_of(kernels, "gather_mm_placeholders", GATHER_EDITS),
    *rewritten(
        "scatter_mm_placeholders",
        _make_scatter,
        answers={
            "no mask gives a copy": "Equal; only slower.",
            "the rows themselves where all are": "Whoever writes to one, writes to both.",
            "rows pass through float64": "Nothing is lost, but a signalling NaN.",
            "rows pass through float16": "The model runs in it, mostly.",
            "NaN is what torch makes of it": "The same, but for float8_e5m2.",
            "placeholders are 0": "What nobody may read, nobody reads.",
            "NaN is negative": "What x86 makes of 0 / 0.",
            "the first run only": "Right for items without separators.",
            **ROWS,
        },
        refusals={
            "any mask of numbers will do": "torch's own indexing takes uint8.",
            "one row for all": "Broadcasting: an item of one embedding fills all.",
            "rows left over are left out": "The next item lacks them.",
            **REFUSALS,
        },
    ),
    *rewritten(
        "gather_mm_placeholders",
        _make_gather,
        answers={
            "a view where all are": "Equal; the next step overwrites it.",
            "rows that are NaN are left out": "They mark placeholders, one thinks.",
            "rows pass through float64": "Nothing is lost, but a signalling NaN.",
            "a result in the layout of its source": "Strided rows are rare.",
            "the rows of separators too": "Right for items without separators.",
            **ROWS,
        },
        refusals={
            "a longer mask is cut": "A slice takes no offence.",
            "the number told is not looked at": "It is only there to save time.",
            "the number told is believed": "It is right where it is tested.",
            **REFUSALS,
        },
    ),
    *rewritten(
        "sanity_check_mm_encoder_outputs",
        _make_sanity,
        answers={
            "only lists": "Models return lists, mostly.",
            "one tensor is one item": "Right for one item, were it a matrix.",
        },
        refusals={
            "any collection": "A dict's keys are counted.",
            "a matrix is one item": "Helpful.",
            "fewer items are fine": "`>` for `!=`.",
            "the first item only": "All are made alike.",
            "the cause is not told": "The one who reads it looks in the wrong place.",
        },
    ),
]
