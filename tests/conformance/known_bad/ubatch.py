"""Micro-batches, as one writes them in a hurry."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import fast
from known_bad.entries import rewritten

REAL_CREATE = fast.create_ubatch_slices
REAL_STARTS = fast.slice_query_start_locs
REAL_MAKE = fast._make_metadata_with_slice
REAL_SPLIT = fast.split_attn_metadata

Metadata = fast.CommonAttentionMetadata
Slice = fast.UBatchSlice


def _make_slice(bug: str | None) -> type[Any]:
    @dataclasses.dataclass(frozen=bug != "it can be changed")
    class UBatchSlice:
        """A micro-batch, with a bug or without."""

        request_slice: slice
        token_slice: slice

        def is_empty(self) -> bool:
            """Tell whether it has no request or no token."""
            requests, tokens = self.request_slice, self.token_slice
            if bug == "empty without requests alone":
                return bool(requests.stop <= requests.start)
            if bug == "empty without both":
                return bool(requests.stop <= requests.start and tokens.stop <= tokens.start)
            if bug == "not empty if it runs backwards":
                return requests.stop == requests.start or tokens.stop == tokens.start
            return bool(requests.stop <= requests.start or tokens.stop <= tokens.start)

        @property
        def num_tokens(self) -> int:
            """Return its tokens."""
            return int(self.token_slice.stop - self.token_slice.start)

    return UBatchSlice


def _make_create(bug: str | None) -> Callable[..., list[Slice]]:
    def create_ubatch_slices(num_scheduled_tokens: Any, split_points: Any) -> list[Slice]:  # noqa: ANN401
        if bug == "equal split points pass" and isinstance(split_points, list):
            split_points = list(dict.fromkeys(split_points))
        REAL_CREATE(num_scheduled_tokens, split_points)
        points = split_points if isinstance(split_points, list) else [split_points]
        points = [int(point) for point in points]
        ends = np.cumsum(num_scheduled_tokens)
        edges = [0, *points, int(ends[-1])]
        if bug == "the last slice ends with the last request's start":
            edges[-1] = max(int(ends[-2]), edges[-2] + 1) if len(ends) > 1 else edges[-1]
        found = []
        for first, last in itertools.pairwise(edges):
            side = "left" if bug == "a request that ends at a cut is in both" else "right"
            r0 = int(np.searchsorted(ends, first, side=side))
            if bug == "a cut request is in the first alone" and first:
                r0 = int(np.searchsorted(ends, first - 1, side="right")) + 1
                r0 = min(r0, int(np.searchsorted(ends, last)))
            side = "right" if bug == "a request that starts at a cut is in both" else "left"
            r1 = min(int(np.searchsorted(ends, last, side=side)) + 1, len(ends))
            if bug == "idle requests at the end go with the last" and last == edges[-1]:
                r1 = len(ends)
            numbers = (r0, r1, first, last)
            if bug == "slices hold NumPy's ints":
                numbers = tuple(map(np.int64, numbers))
            found.append(Slice(slice(*numbers[:2]), slice(*numbers[2:])))
        return found

    return create_ubatch_slices


def _make_starts(bug: str | None) -> Callable[..., torch.Tensor]:
    def slice_query_start_locs(query_start_loc: torch.Tensor, request_slice: slice) -> torch.Tensor:
        REAL_STARTS(query_start_loc, request_slice)
        first, stop = request_slice.start, request_slice.stop
        found = query_start_loc[first : stop + (bug != "the last end is missing")]
        if bug == "no copy where nothing is to subtract" and not first:
            return found
        if bug == "subtracted in place" and len(found):
            return found.sub_(found[0].clone())
        return found - query_start_loc[first]

    return slice_query_start_locs


def _bounds(ubatch: Slice) -> tuple[int, int, int, int]:
    requests, tokens = ubatch.request_slice, ubatch.token_slice
    return int(requests.start), int(requests.stop), int(tokens.start), int(tokens.stop)


def _cut(bug: str | None, ubatch: Slice, batch: Metadata) -> Metadata:
    """Return the metadata of a micro-batch, with a bug."""
    r0, r1, t0, t1 = _bounds(ubatch)
    starts, lens = batch.query_start_loc_cpu, batch.seq_lens_cpu[r0:r1]
    old = starts[r0 : r1 + 1]
    begin, end = old[:-1], old[1:]
    cut = old.clamp(t0, t1) - t0
    behind = (end - begin.clamp(min=t1)).clamp(min=0)
    before = (end.clamp(max=t0) - begin).clamp(min=0)
    if bug == "cut at the front or at the back, not both" and before.any():
        behind = torch.zeros_like(behind)
        cut[-1] = old[-1] - t0
    if bug == "only the last request is cut at the back" and len(behind) > 1:
        behind[:-1] = 0
    lens = lens - behind
    if bug == "the batch's lengths are cut":
        lens = batch.seq_lens_cpu[r0:r1].sub_(behind)
    if bug == "lengths are those of the batch":
        lens = lens + behind
    computed = batch.num_computed_tokens_cpu[r0:r1]
    if bug == "computed is what is left of the length":
        computed = lens - cut.diff()
    elif bug != "tokens before it are not computed":
        computed = computed + before
    longest = int(cut.diff().max())
    tokens = t1 - t0
    if bug == "padded tokens are dropped":
        tokens = max(min(t1, int(starts[-1])) - t0, 0)
    encoder = batch.encoder_seq_lens
    return Metadata(
        query_start_loc=cut.clone(),
        query_start_loc_cpu=cut,
        seq_lens=batch.seq_lens[r0:r1].clone() if bug == "lengths are cut on the CPU" else lens,
        seq_lens_cpu=lens.clone(),
        num_computed_tokens_cpu=computed.clone(),
        num_reqs=r1 - r0,
        num_actual_tokens=tokens,
        max_query_len=_longest(bug, longest, batch),
        max_seq_len=int(lens.max() if bug == "max_seq_len is the true one" else batch.max_seq_len),
        block_table_tensor=batch.block_table_tensor[r0:r1],
        slot_mapping=_slots(bug, batch.slot_mapping[t0 : t0 + tokens]),
        causal=bug == "causal is the default again" or bool(batch.causal),
        encoder_seq_lens=None if encoder is None else encoder[r0:r1],
        dcp_local_seq_lens=_stale(bug, batch, r0, r1),
    )


def _slots(bug: str | None, slots: torch.Tensor) -> torch.Tensor:
    return slots.clone() if bug == "slots are copied" else slots


def _longest(bug: str | None, longest: int, batch: Metadata) -> int:
    if bug == "max_query_len is the longest sequence's":
        return int(batch.max_seq_len)
    if bug == "max_query_len is the batch's":
        return int(batch.max_query_len)
    is_kept = longest or bug == "nothing but padding is 0 long"
    return longest if is_kept else int(batch.max_query_len)


def _stale(bug: str | None, batch: Metadata, r0: int, r1: int) -> torch.Tensor | None:
    if bug != "local lengths are the batch's" or batch.dcp_local_seq_lens is None:
        return None
    return batch.dcp_local_seq_lens[r0:r1]


def _make_make(bug: str | None) -> Callable[..., Metadata]:
    def make_metadata_with_slice(ubatch_slice: Slice, attn_metadata: Metadata) -> Metadata:
        try:
            REAL_MAKE(ubatch_slice, attn_metadata)
        except ValueError as error:
            if bug != "tokens of later requests are let in" or "later requests" not in str(error):
                raise
        return _cut(bug, ubatch_slice, attn_metadata)

    return make_metadata_with_slice


def _make_split(bug: str | None) -> Callable[..., Any]:
    def split_attn_metadata(ubatch_slices: list[Slice], common_attn_metadata: Metadata) -> Any:  # noqa: ANN401
        batch = common_attn_metadata
        REAL_SPLIT(ubatch_slices, batch)
        found = [_cut(bug, ubatch, batch) for ubatch in ubatch_slices]
        if bug == "one in the middle is not cut at its front":
            for ubatch, part in zip(ubatch_slices[1:-1], found[1:-1], strict=True):
                r0, r1, _, _ = _bounds(ubatch)
                part.num_computed_tokens_cpu = batch.num_computed_tokens_cpu[r0:r1].clone()
        if bug == "one micro-batch is the batch" and len(found) == 1:
            found = [
                dataclasses.replace(batch, logits_indices_padded=None, num_logits_indices=None)
            ]
        if bug == "padded requests are dropped" and found:
            with contextlib.suppress(ValueError):
                busy = int((found[-1].query_start_loc_cpu.diff() > 0).sum())
                found[-1] = found[-1].unpadded(found[-1].num_actual_tokens, max(busy, 1))
        return tuple(found) if bug == "the list is a tuple" else found

    return split_attn_metadata


CUT = {
    "cut at the front or at the back, not both": "Right with two micro-batches: only one in the "
    "middle of a long prompt is cut at both ends.",
    "only the last request is cut at the back": "Right for the slices that "
    "`create_ubatch_slices` makes.",
    "the batch's lengths are cut": "A view: the first micro-batch is right, the next one is "
    "made of a batch that has changed.",
    "lengths are those of the batch": "Keys that are not written yet are read.",
    "lengths are cut on the CPU": "The GPU reads the others.",
    "tokens before it are not computed": "Nobody reads it in a decode.",
    "computed is what is left of the length": "The same, but for batches in which fewer are "
    "computed.",
    "max_query_len is the longest sequence's": "An upper bound too, and a grid a hundred "
    "times as large.",
    "max_query_len is the batch's": "An upper bound too.",
    "max_seq_len is the true one": "A bound that a graph capture raised is lost.",
    "nothing but padding is 0 long": "A dummy run launches an empty grid.",
    "padded tokens are dropped": "A graph's last micro-batch is shorter than captured.",
    "causal is the default again": "Encoder layers become causal.",
    "slots are copied": "The right values; a captured graph reads the other buffer.",
    "local lengths are the batch's": "Right for requests that are not cut.",
}


UBATCH = [
    *rewritten(
        "create_ubatch_slices",
        _make_create,
        answers={
            "a request that ends at a cut is in both": "`searchsorted` on the left: it has no "
            "token in the second.",
            "a request that starts at a cut is in both": "`searchsorted` on the right: it has no "
            "token in the first.",
            "a cut request is in the first alone": "Right between requests.",
            "the last slice ends with the last request's start": "Right while a cut follows.",
            "idle requests at the end go with the last": "They have no token in it.",
            "slices hold NumPy's ints": "Equal, and slicing works.",
        },
        refusals={"equal split points pass": "An empty micro-batch less, silently."},
    ),
    *rewritten(
        "UBatchSlice",
        _make_slice,
        laws={
            "test_a_micro_batch_knows_whether_it_is_empty": {
                "it can be changed": "Two who hold one find it moved.",
                "empty without requests alone": "A micro-batch of padding has requests.",
                "empty without both": "`and` for `or`.",
                "not empty if it runs backwards": "`==` for `<=`.",
            }
        },
    ),
    *rewritten(
        "slice_query_start_locs",
        _make_starts,
        answers={
            "the last end is missing": "Off by one.",
            "no copy where nothing is to subtract": "A view: the next step's starts appear in it.",
            "subtracted in place": "The result is right, the batch is not.",
        },
    ),
    *rewritten(
        "_make_metadata_with_slice",
        _make_make,
        answers=CUT,
        refusals={"tokens of later requests are let in": "They are nobody's, and get attention."},
    ),
    *rewritten(
        "split_attn_metadata",
        _make_split,
        answers={
            "one in the middle is not cut at its front": "Right with two micro-batches.",
            "one micro-batch is the batch": "No cut, no work; but local lengths and padding stay.",
            "padded requests are dropped": "They have no tokens; a graph counts them.",
            "the list is a tuple": "Indexed alike; not extended alike.",
        },
    ),
]
