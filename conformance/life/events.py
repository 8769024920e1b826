"""Which hard cases a setup, a step or a runner's batch is."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from conformance.life.request import Request
from conformance.life.scene import Scene
from conformance.life.setup import Setup
from conformance.life.situations import Event
from conformance.traffic.runner import Runner


def of_setup(setup: Setup) -> Iterator[Event]:
    """Yield what a setup is.

    Args:
        setup: Of the engine.
    """
    if len(set(setup.block_sizes)) > 1:
        yield Event.UNLIKE_BLOCK_SIZES
    if len(setup.block_sizes) > 2:
        yield Event.THREE_GROUPS
    if any(group.attention_chunk_size for group in setup.groups):
        yield Event.CHUNKED_GROUP


def of_preempted(request: Request) -> Iterator[Event]:
    """Yield what it is that a request is preempted.

    Args:
        request: Before it has lost anything.
    """
    if request.is_in_prefill:
        yield Event.PREEMPTED_IN_PREFILL
    if request.is_decoding:
        yield Event.PREEMPTED_DECODE
    if request.num_rejected:
        yield Event.PREEMPTED_AFTER_REJECTION


def of_resumed(request: Request) -> Iterator[Event]:
    """Yield what it is that a request is resumed.

    Args:
        request: With its new blocks.
    """
    pairs = zip(request.former_block_ids, request.block_ids, strict=True)
    if any(old[: len(new)] != new[: len(old)] for old, new in pairs):
        yield Event.RESUMED_ELSEWHERE
    if request.num_shared_tokens:
        yield Event.RESUMED_SHARING


def of_computed(request: Request, num_tried: int, setup: Setup) -> Iterator[Event]:
    """Yield what a request's tokens of a step have come to.

    Args:
        request: After the step.
        num_tried: Drafts that it had.
        setup: Of the engine.
    """
    first = request.num_computed_tokens
    if first < request.num_prompt_tokens:
        ends_inside = any(first % size for size in setup.block_sizes)
        yield Event.CHUNK_INSIDE_BLOCK if ends_inside else Event.CHUNK_WITH_BLOCK
    if num_tried and not request.num_rejected:
        yield Event.ALL_ACCEPTED
    if request.num_rejected:
        yield Event.DRAFTS_REJECTED
        last = first + request.num_rejected - 1
        if any(first // size < last // size for size in setup.block_sizes):
            yield Event.REJECTED_ACROSS_BLOCKS


def of_step(setup: Setup, scene: Scene, runner: Runner, num_reqs_before: int) -> Iterator[Event]:
    """Yield what a step is, as the runner of `reference` carried it out.

    Args:
        setup: Of the engine.
        scene: The step.
        runner: After it.
        num_reqs_before: Requests of the step before it.
    """
    step, batch = scene.step, runner.batch
    if batch is None:
        return
    leavers = (*step.finished_ids, *step.preempted_ids)
    found = {
        Event.ROW_MOVED: bool(runner.rows.moved),
        Event.ROWS_SWAPPED: bool(runner.rows.swapped),
        Event.FULL_ROW: _has_full_row(setup, scene),
        Event.RESUMED_AT_ONCE: not set(step.preempted_ids).isdisjoint(step.resumed_ids),
        Event.ROW_OVERWRITTEN: bool(
            step.index % 2 and leavers and (step.new_ids or step.resumed_ids)
        ),
        Event.PADDED_REQUESTS: batch.num_padded_reqs > batch.num_reqs,
        Event.PADDED_AFTER_MORE: num_reqs_before > batch.num_reqs < batch.num_padded_reqs,
        Event.PADDED_TOKENS: batch.num_padded_tokens > batch.num_tokens,
        Event.ALL_KINDS: all(runner.results["decodes_extends_and_prefills"][1][:3]),
        Event.ACROSS_CHUNKS: _crosses_chunks(setup, scene),
    }
    yield from (event for event, happens in found.items() if happens)
    yield from _of_cuts(scene, runner)


def _of_cuts(scene: Scene, runner: Runner) -> Iterator[Event]:
    """Yield what the cuts of micro-batches are."""
    slices = runner.results.get("micro_batch_slices", ())
    req_ids = runner.results["order"]
    cut = [
        req_ids[after.request_slice.start]
        for before, after in pairwise(slices)
        if before.request_slice.stop > after.request_slice.start
    ]
    if cut:
        yield Event.CUT
    if len(set(cut)) < len(cut):
        yield Event.CUT_TWICE
    if any(scene.turns[req_id].num_shared_tokens for req_id in cut):
        yield Event.CUT_SHARING


def _has_full_row(setup: Setup, scene: Scene) -> bool:
    """Tell whether a request has as many blocks of a group as there can be."""
    return any(
        len(ids) * size >= setup.max_model_len
        for turn in scene.turns.values()
        for ids, size in zip(turn.block_ids, setup.block_sizes, strict=True)
    )


def _crosses_chunks(setup: Setup, scene: Scene) -> bool:
    """Tell whether a request's new tokens are in two chunks of a group."""
    chunks = [group.attention_chunk_size for group in setup.groups if group.attention_chunk_size]
    return any(
        turn.start // chunk < (turn.stop - 1) // chunk
        for turn in scene.turns.values()
        for chunk in chunks
    )
