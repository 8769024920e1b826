"""The coverage goals of the stateful test: hard cases, all of which a run must reach."""

from __future__ import annotations

import enum


class Goal(enum.Enum):
    """What may happen; a run reports goals by their values."""

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
"""All of them, by name."""
