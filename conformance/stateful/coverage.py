"""Which coverage goals are reached by a setup, a request, a step or a runner's batch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from conformance.engine.request import Request
from conformance.stateful.goals import Goal
from conformance.stateful.setup import Setup
from conformance.stateful.snapshot import Snapshot
from conformance.traffic.runner import Runner


def of_setup(setup: Setup) -> Iterator[Goal]:
    """Yield what a setup meets.

    Args:
        setup: Of the engine.
    """
    if len(set(setup.block_sizes)) > 1:
        yield Goal.UNLIKE_BLOCK_SIZES
    if len(setup.block_sizes) > 2:
        yield Goal.THREE_GROUPS
    if any(group.attention_chunk_size for group in setup.groups):
        yield Goal.CHUNKED_GROUP


def of_preempted(request: Request) -> Iterator[Goal]:
    """Yield what is reached by preempting a request.

    Args:
        request: Before it is preempted.
    """
    if request.is_in_prefill:
        yield Goal.PREEMPTED_IN_PREFILL
    if request.is_decoding:
        yield Goal.PREEMPTED_DECODE
    if request.num_rejected_tokens:
        yield Goal.PREEMPTED_AFTER_REJECTION


def of_resumed(request: Request, former_block_ids: tuple[list[int], ...]) -> Iterator[Goal]:
    """Yield what is reached by resuming a request.

    Args:
        request: With its new blocks.
        former_block_ids: Those that it had before it was preempted.
    """
    pairs = zip(former_block_ids, request.block_ids, strict=True)
    if any(old[: len(new)] != new[: len(old)] for old, new in pairs):
        yield Goal.RESUMED_ELSEWHERE
    if request.num_cached_tokens:
        yield Goal.RESUMED_SHARING


def of_computed(request: Request, num_tried: int, setup: Setup) -> Iterator[Goal]:
    """Yield what is reached by a request's results of a step.

    Args:
        request: After the step.
        num_tried: Drafts that it had.
        setup: Of the engine.
    """
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
    """Yield what a step meets, as the runner of `reference` executed it.

    Args:
        setup: Of the engine.
        snapshot: The step.
        runner: After it.
        num_reqs_before: Requests of the step before it.
    """
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
    """Yield what the cuts of micro-batches meet."""
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
