"""The programs of convolutions, as one lists them with torch in a hurry."""

# ruff: noqa: C901  # a branch for each bug

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import fast
from conformance.profiles import Kind
from fast.kernels import causal_conv1d as kernels
from known_bad.edits import Edit, edits_of
from known_bad.entries import rewritten

REAL = fast.compute_causal_conv1d_metadata


def _make(bug: str | None) -> Callable[..., Any]:
    def compute_causal_conv1d_metadata(
        query_start_loc_p: torch.Tensor, *, query_start_loc_p_cpu: torch.Tensor | None = None
    ) -> Any:  # noqa: ANN401  # a dict and two tensors
        if bug == "the copy on the CPU is not looked at":
            query_start_loc_p_cpu = None
        REAL(query_start_loc_p, query_start_loc_p_cpu=query_start_loc_p_cpu)
        lengths = query_start_loc_p.diff().clamp(min=0)
        nums = (lengths + 7) // 8
        if bug == "a program more at a multiple":
            nums = lengths // 8 + (lengths > 0)
        if bug == "a program for no tokens":
            nums = nums.clamp(min=1)
        if bug == "what is left has no program":
            nums = torch.where(lengths > 8, lengths // 8, nums)
        total = int(nums.sum())
        mlist = torch.repeat_interleave(torch.arange(len(nums)), nums.to(torch.int64))
        first = nums.cumsum(0) - nums
        offsets = (torch.arange(total) - first[mlist]).to(torch.int32)
        if bug == "offsets run on":
            offsets = torch.arange(total, dtype=torch.int32)
        room = 2 * max(1024, total)
        if bug == "room for 1024 programs":
            room = max(2 * 1024, total)
        if bug == "room for half":
            room = max(1024, total)
        if bug == "room for twice the programs":
            room = 2 * total
        filler = 0 if bug == "padding is sequence 0" else fast.PAD_SLOT_ID
        dtype = torch.int64 if bug == "pointers are int64" else torch.int32
        pointers = [torch.full((room,), filler, dtype=dtype) for _ in range(2)]
        pointers[0][:total], pointers[1][:total] = mlist, offsets
        batch_ptr, offset_ptr = pointers
        is_copied = bug == "the dict holds copies"
        described = {
            "nums": nums.to(torch.int64 if bug == "numbers are int64" else torch.int32),
            "tot": nums.sum() if bug == "the sum is a tensor" else total,
            "mlist": mlist.to(torch.int32 if bug == "the list is int32" else torch.int64),
            "mlist_len": total,
            "offsetlist": offsets,
            "batch_ptr": batch_ptr.clone() if is_copied else batch_ptr,
            "token_chunk_offset_ptr": offset_ptr.clone() if is_copied else offset_ptr,
        }
        if bug == "the list is what the pointer holds":
            described["offsetlist"] = offset_ptr[:total]
        return {8: described}, batch_ptr, offset_ptr

    return compute_causal_conv1d_metadata


EDITS = {
    "kernel: no barrier before the sums": Edit(
        "fill_programs",
        "    cuda.syncthreads()\n    cuda.atomic.add(sums, 0, before)",
        "    cuda.atomic.add(sums, 0, before)",
        "A warp that is early adds to what is not yet 0.",
    ),
    "kernel: no barrier behind the sums": Edit(
        "fill_programs",
        "    cuda.syncthreads()\n\n    first = sums[0]",
        "    first = sums[0]",
        "A warp that is early reads part of the sums.",
    ),
    "kernel: its own sequence counts as one before": Edit(
        "fill_programs",
        "if sequence < own:",
        "if sequence <= own:",
        "`<=` for `<`.",
    ),
    "kernel: what is left has no program": Edit(
        "count_programs",
        " + BLOCK_M - 1) // BLOCK_M",
        ") // BLOCK_M",
        "Right for multiples of 8.",
    ),
    "kernel: a program more at a multiple": Edit(
        "count_programs",
        " + BLOCK_M - 1) // BLOCK_M",
        " + BLOCK_M) // BLOCK_M",
        "An empty program does no harm, mostly.",
    ),
    "kernel: dense starts": Edit(
        "count_programs",
        "np.uint64(sequence * stride)",
        "np.uint64(sequence)",
        "Right for every contiguous vector.",
    ),
    "kernel: as many programs as the starts say": Edit(
        "fill_programs",
        "min(count, length - first)",
        "count",
        "Starts that differ from those on the CPU, unchecked, write behind the lists.",
        Kind.SAME_REFUSAL,
    ),
    "kernel: each block pads behind its own": Edit(
        "fill_programs",
        "end = sums[1]",
        "end = first",
        "Right for the last block.",
    ),
    "kernel: one block pads": Edit(
        "fill_programs",
        "while padding < length - end:",
        "while padding < min(length - end, cuda.gridsize(1)):",
        "Right for lists as long as there are threads.",
    ),
    "kernel: numbers of programs for sequences": Edit(
        "fill_programs",
        "] = sequence",
        "] = own + program * 0 + min(sequence, 1)",
        "Right for two sequences.",
    ),
    "kernel: offsets run on": Edit(
        "fill_programs",
        "] = program",
        "] = first + program",
        "Right for one sequence.",
    ),
}
"""Bugs of the kernel that lists programs."""

CAUSAL_CONV1D = [
    *edits_of(kernels, "compute_causal_conv1d_metadata", EDITS),
    *rewritten(
        "compute_causal_conv1d_metadata",
        _make,
        answers={
            "a program more at a multiple": "`n // 8 + 1`: an empty program does no harm, mostly.",
            "a program for no tokens": "It reads the next sequence's tokens.",
            "what is left has no program": "Right for multiples of 8.",
            "offsets run on": "Right for one sequence.",
            "room for 1024 programs": "Twice that many programs are rare; only padding is missing.",
            "room for half": "Graphs captured with more are replayed past the end.",
            "room for twice the programs": "Right for large batches.",
            "padding is sequence 0": "The convolution skips -1, and nothing else.",
            "pointers are int64": "`mlist` is; the kernel reads halves.",
            "numbers are int64": "`cumsum` makes them so.",
            "the list is int32": "As the pointers are.",
            "the sum is a tensor": "It prints like an int.",
            "the dict holds copies": "Equal; but a graph was captured over the others.",
            "the list is what the pointer holds": "On a GPU that is not on the host.",
        },
        refusals={"the copy on the CPU is not looked at": "It is right where it is tested."},
    ),
]
