"""The coverage goals of the stateful test: hard cases, and the steps that reach them."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from itertools import pairwise

from conformance.engine.request import Request
from conformance.model_runner.runner import Runner
from conformance.stateful.setup import Setup
from conformance.stateful.snapshot import Snapshot


class Goal(enum.Enum):
    """A case that the test should reach; a run reports goals by their values."""

    # The pool of blocks.
    SHARED_WITH_LIVE = "a prefix is shared with a live request"
    SHARED_WITH_GONE = "a prefix is shared with a request that has gone"
    SHARED_BLOCK_FREED = "a shared block is freed by one request and held by another"
    PREFIX_FORGOTTEN = "a block of a remembered prefix is handed out again"
    FREED_AND_TAKEN = "a block is freed and handed out in one step"
    OTHER_GROUP = "a block of one group becomes another's"
    # Requests.
    DRAFTS_REJECTED = "drafts are rejected"
    REJECTED_ACROSS_BLOCKS = "rejected drafts lie across a block boundary"
    WRITTEN_AGAIN = "slots of rejected drafts are written again"
    ALL_ACCEPTED = "all drafts are accepted"
    POOL_DRY = "preempted because the pool is dry"
    PREEMPTED_IN_PREFILL = "preempted in mid-prefill"
    PREEMPTED_DECODE = "preempted while it decodes"
    PREEMPTED_AFTER_REJECTION = "preempted with rejected drafts after it"
    RESUMED_ELSEWHERE = "resumed into other blocks"
    RESUMED_AT_ONCE = "preempted and resumed in one step"
    RESUMED_SHARING = "resumed with a shared prefix"
    ENDED_IN_PREFILL = "ended in mid-prefill"
    CHUNK_INSIDE_BLOCK = "a chunk of a prompt ends inside a block"
    CHUNK_WITH_BLOCK = "a chunk of a prompt ends with a block"
    SITS_OUT = "a request sits a step out"
    COMES_BACK = "a request that sat out comes back"
    # The engine.
    UNLIKE_BLOCK_SIZES = "groups of different block sizes"
    THREE_GROUPS = "three groups"
    CHUNKED_GROUP = "a group of chunked local attention"
    # The batch, as a runner puts it together.
    ROW_MOVED = "compaction moved a row"
    ROWS_SWAPPED = "reordering swapped rows"
    FULL_ROW = "a row is full"
    ROW_OVERWRITTEN = "a row with leftovers is overwritten"
    PADDED_REQUESTS = "padded requests"
    PADDED_AFTER_MORE = "padded requests after more requests"
    PADDED_TOKENS = "padded tokens"
    ALL_KINDS = "decodes, extends and prefills in one batch"
    CUT = "a request cut by a micro-batch"
    CUT_TWICE = "a request cut at both ends"
    CUT_SHARING = "a cut request reads a shared prefix"
    ACROSS_CHUNKS = "new tokens across a chunk boundary"


GOALS = tuple(goal.value for goal in Goal)
"""The values of all goals."""


def of_setup(setup: Setup) -> Iterator[Goal]:
    """Yield the goals that an engine's setup reaches."""
    if len(set(setup.block_sizes)) > 1:
        yield Goal.UNLIKE_BLOCK_SIZES
    if len(setup.block_sizes) > 2:
        yield Goal.THREE_GROUPS
    if any(group.attention_chunk_size for group in setup.groups):
        yield Goal.CHUNKED_GROUP


def of_preempted(request: Request) -> Iterator[Goal]:
    """Yield the goals that are reached when a request is preempted."""
    if request.is_in_prefill:
        yield Goal.PREEMPTED_IN_PREFILL
    if request.is_decoding:
        yield Goal.PREEMPTED_DECODE
    if request.num_rejected_tokens:
        yield Goal.PREEMPTED_AFTER_REJECTION


def of_resumed(request: Request, former_block_ids: tuple[list[int], ...]) -> Iterator[Goal]:
    """Yield the goals that are reached when a request is resumed, given its former blocks."""
    pairs = zip(former_block_ids, request.block_ids, strict=True)
    if any(old[: len(new)] != new[: len(old)] for old, new in pairs):
        yield Goal.RESUMED_ELSEWHERE
    if request.num_cached_tokens:
        yield Goal.RESUMED_SHARING


def of_computed(request: Request, num_tried: int, setup: Setup) -> Iterator[Goal]:
    """Yield the goals that a request reaches after a step that verified so many drafts."""
    first = request.num_computed_tokens
    if first < request.num_prompt_tokens:
        ends_inside = any(first % size for size in setup.block_sizes)
        yield Goal.CHUNK_INSIDE_BLOCK if ends_inside else Goal.CHUNK_WITH_BLOCK
    if num_tried and not request.num_rejected_tokens:
        yield Goal.ALL_ACCEPTED
    if request.num_rejected_tokens:
        yield Goal.DRAFTS_REJECTED
        last = first + request.num_rejected_tokens - 1
        if any(first // size < last // size for size in setup.block_sizes):
            yield Goal.REJECTED_ACROSS_BLOCKS


def of_step(
    setup: Setup, snapshot: Snapshot, runner: Runner, num_reqs_before: int
) -> Iterator[Goal]:
    """Yield the goals that a step reaches, as the runner of `reference` executed it."""
    step, batch = snapshot.step, runner.batch
    if batch is None:
        return
    found = {
        Goal.ROW_MOVED: bool(runner.rows.moved),
        Goal.ROWS_SWAPPED: bool(runner.rows.swapped),
        Goal.FULL_ROW: _has_full_row(setup, snapshot),
        Goal.RESUMED_AT_ONCE: not set(step.preempted_req_ids).isdisjoint(step.resumed_req_ids),
        Goal.ROW_OVERWRITTEN: bool(
            step.step_index % 2 and step.removed_req_ids and step.admitted_req_ids
        ),
        Goal.PADDED_REQUESTS: batch.num_padded_reqs > batch.num_reqs,
        Goal.PADDED_AFTER_MORE: num_reqs_before > batch.num_reqs < batch.num_padded_reqs,
        Goal.PADDED_TOKENS: batch.num_padded_tokens > batch.num_tokens,
        Goal.ALL_KINDS: all(runner.results["decodes_extends_and_prefills"][1][:3]),
        Goal.ACROSS_CHUNKS: _crosses_chunks(setup, snapshot),
    }
    yield from (event for event, happens in found.items() if happens)
    yield from _of_cuts(snapshot, runner)


def _of_cuts(snapshot: Snapshot, runner: Runner) -> Iterator[Goal]:
    """Yield the goals that the cuts of micro-batches reach."""
    slices = runner.results.get("micro_batch_slices", ())
    req_ids = runner.results["order"]
    cut = [
        req_ids[after.request_slice.start]
        for before, after in pairwise(slices)
        if before.request_slice.stop > after.request_slice.start
    ]
    if cut:
        yield Goal.CUT
    if len(set(cut)) < len(cut):
        yield Goal.CUT_TWICE
    if any(snapshot.requests[req_id].num_cached_tokens for req_id in cut):
        yield Goal.CUT_SHARING


def _has_full_row(setup: Setup, snapshot: Snapshot) -> bool:
    """Return whether a request has as many blocks of a group as there can be."""
    return any(
        len(ids) * size >= setup.max_model_len
        for request in snapshot.requests.values()
        for ids, size in zip(request.block_ids, setup.block_sizes, strict=True)
    )


def _crosses_chunks(setup: Setup, snapshot: Snapshot) -> bool:
    """Return whether a request's new tokens are in two chunks of a group."""
    chunks = [group.attention_chunk_size for group in setup.groups if group.attention_chunk_size]
    return any(
        request.start // chunk < (request.stop - 1) // chunk
        for request in snapshot.requests.values()
        for chunk in chunks
    )
