"""Results of a step: counts of sampled and rejected tokens, and the state of requests after it."""

from __future__ import annotations

import random
from typing import Final

import numpy as np
from hypothesis import strategies as st

from conformance.functions.step_inputs import Step, steps, two_rows_of_one_slot
from conformance.harness.contract import Arguments, Contract
from conformance.harness.sizes import rngs, sizes, vectors
from conformance.laws.batches import MAX_INT32, IntArray, choices, deferred


def _unread_of_dummies(step: Step, values: IntArray) -> IntArray:
    return step.by_row(np.where(step.idx_mapping >= 0, values, step.unread))


@st.composite
def count_calls(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    """Draw rows with any number of logits, and chunks that end before or at the prompt's end."""
    step_of_sizes, most = draw(steps()), draw(sizes(0, 300, small=3))

    def contents(draw: st.DrawFn) -> Arguments:
        step = draw(step_of_sizes)
        number = len(step.query_lens)
        logits, sampled = (draw(vectors(number, 0, most)) for _ in range(2))
        lens = draw(vectors(number, 0, MAX_INT32, rare=(0, 1, MAX_INT32)))
        ahead = draw(vectors(number, -3, 3, rare=(0, 1, -(2**30), 2**30)))
        known = np.clip(lens + ahead, 0, MAX_INT32)
        sampled = np.where(known > lens, sampled, sampled % (logits + 1))
        return {
            "num_sampled": _unread_of_dummies(step, sampled)[:number].copy(),
            "seq_lens": _unread_of_dummies(step, lens),
            "cu_num_logits": step.starts(logits),
            "idx_mapping": step.idx_mapping,
            "prefill_len": step.by_slot(known),
        }

    return deferred(contents)


@st.composite
def update_calls(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    """Draw chunks, decodes and drafts, with all optional arguments or without some."""
    most, num_drafts = draw(sizes(0, 70, small=3)), draw(sizes(0, 70))
    width, vocab_size = most + draw(sizes(0, 300)), draw(sizes(1))
    step_of_sizes = draw(steps(40_000 // max(width, vocab_size, num_drafts, 1)))
    dtypes = (np.int32, np.int64)
    left_out, shape, last_dtype, token_dtype, draft_dtype = choices(
        draw, range(8), ((), (), (1,)), dtypes, dtypes, dtypes
    )

    def contents(draw: st.DrawFn) -> Arguments:
        step, rng = draw(step_of_sizes), draw(rngs())
        number = len(step.query_lens)
        query = step.query_lens * (left_out % 4 != 1)
        sampled, rejected = draw(vectors(number, 0, most)), draw(vectors(number, 0, 9))
        room = width - sampled
        lens = room - draw(vectors(number, 0, width, rare=(0, 1))) % (room + 1)
        computed = draw(vectors(number, 0, MAX_INT32, rare=(0, 1, MAX_INT32)))
        growth = query - rejected
        computed = np.clip(computed, np.maximum(-growth, 0), MAX_INT32 - np.maximum(growth, 0))
        last = vocab_size - 1 if left_out % 2 == 0 else MAX_INT32
        greatest = int(rng.choice((min(last, 3), last)))
        tokens = rng.integers(0, greatest, (number + step.more, most), endpoint=True)
        is_read = (np.arange(most) < sampled[:, None]) & (step.idx_mapping >= 0)[:, None]
        tokens[:number][~is_read] = tokens[number:] = step.unread
        drafts = rng.integers(-1, 2**40, (number + step.more, num_drafts))
        arguments: Arguments = {
            "idx_mapping": step.idx_mapping,
            "num_computed_tokens": step.by_slot(computed),
            "last_sampled_tokens": np.full((step.num_slots, *shape), 77, last_dtype),
            "output_bin_counts": rng.integers(0, 3, (step.num_slots, vocab_size), np.int32),
            "sampled_tokens": tokens.astype(token_dtype),
            "num_sampled": _unread_of_dummies(step, sampled),
            "num_rejected": _unread_of_dummies(step, rejected),
            "query_start_loc": step.starts(query),
            "all_token_ids": np.full((step.num_slots, width), 77, np.int32),
            "total_len": step.by_slot(lens),
            "draft_tokens": drafts.astype(draft_dtype),
            "draft_tokens_out": np.full((step.num_slots, num_drafts), 77, draft_dtype),
        }
        if left_out % 2:
            arguments["output_bin_counts"] = None
        if left_out % 4 == 1:
            arguments["query_start_loc"] = None
        if left_out // 4:
            del arguments["draft_tokens"], arguments["draft_tokens_out"]
        return arguments

    return deferred(contents)


@st.composite
def computed_calls(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    """Draw steps of requests up to the longest."""
    step_of_sizes, longest = draw(steps()), draw(st.sampled_from((20, MAX_INT32)))

    def contents(draw: st.DrawFn) -> Arguments:
        step = draw(step_of_sizes)
        computed = draw(vectors(len(step.query_lens), 0, longest, rare=(longest,)))
        computed = np.minimum(computed, MAX_INT32 - step.query_lens)
        return {**step.rows(), "num_computed_tokens": step.by_slot(computed)}

    return deferred(contents)


STATE: Final = frozenset(
    {
        "num_computed_tokens",
        "last_sampled_tokens",
        "output_bin_counts",
        "all_token_ids",
        "total_len",
        "draft_tokens_out",
    }
)
"""What is changed, by request slot."""


def overlapping(arguments: Arguments, rng: random.Random) -> Arguments | None:
    """Let what is changed share memory with another argument, or be strided."""
    vectors = [name for name, value in arguments.items() if np.ndim(value) == 1]
    written = STATE if STATE & arguments.keys() else {"num_sampled"}
    name = rng.choice([name for name in vectors if name in written])
    mine, read = arguments[name], [one for one in vectors if one not in written]
    others = [one for one in read if arguments[one].dtype == mine.dtype]
    if not others:
        return None
    theirs = arguments[rng.choice(others)]
    memory = np.zeros(2 * max(len(mine), len(theirs)) + 2, mine.dtype)
    views = memory[rng.randrange(2) :][: len(mine)], memory[: len(theirs)]
    if rng.random() < 0.5:
        views = memory[1::2][: len(mine)], memory[::2][: len(theirs)]
    views[0][...], views[1][...] = mine, theirs
    changed = {key: views[1] if value is theirs else value for key, value in arguments.items()}
    # What is changed is first, so that what is written is said to be written to it.
    return {name: views[0]} | changed | {name: views[0]}


def half_of_drafts(arguments: Arguments, rng: random.Random) -> Arguments | None:
    """Give draft tokens without their state, or the reverse, or other numbers of them."""
    if "draft_tokens" not in arguments:
        return None
    name = rng.choice(("draft_tokens", "draft_tokens_out"))
    wider = np.pad(arguments[name], ((0, 0), (0, 1)))
    return {**arguments, name: rng.choice((None, wider))}


def no_room(arguments: Arguments, rng: random.Random) -> Arguments | None:
    """Let a request that is given tokens have no room for all of them."""
    numbers = arguments["num_sampled"][: len(arguments["idx_mapping"])]
    rows = np.flatnonzero((arguments["idx_mapping"] >= 0) & (numbers > 0))
    if not len(rows):
        return None
    total_len, width = arguments["total_len"].copy(), arguments["all_token_ids"].shape[1]
    row = rng.choice(rows.tolist())
    total_len[arguments["idx_mapping"][row]] = width + rng.choice((0, 1 - numbers[row], 9))
    return {**arguments, "total_len": total_len}


def _has_dummy(arguments: Arguments) -> bool:
    return -1 in arguments["idx_mapping"]


def _has_equal_tokens(arguments: Arguments) -> bool:
    rows = zip(arguments["sampled_tokens"].tolist(), arguments["num_sampled"], strict=False)
    return any(len({*row[:number]}) < number <= len(row) for row, number in rows)


CONTRACTS = [
    Contract(
        function="get_num_sampled_and_rejected",
        calls=count_calls(),
        written=frozenset({"num_sampled"}),
        dense=frozenset({"num_sampled"}),
        specials=(overlapping, two_rows_of_one_slot),
        checked_only="shares memory",
        has_kernel=True,
        hard_cases={
            "a dummy row": _has_dummy,
            "more than 1,024 rows": lambda args: len(args["idx_mapping"]) > 1024,
        },
    ),
    Contract(
        function="post_update",
        examples=0.9,
        calls=update_calls(),
        written=STATE,
        dense=STATE,
        specials=(overlapping, two_rows_of_one_slot, half_of_drafts, no_room),
        checked_only="shares memory",
        has_kernel=True,
        hard_cases={
            "a dummy row": _has_dummy,
            "more than 1,024 rows": lambda args: len(args["idx_mapping"]) > 1024,
            "one token twice in a row": lambda args: (
                args["output_bin_counts"] is not None and _has_equal_tokens(args)
            ),
            "rejected, and no query_start_loc": lambda args: (
                args["query_start_loc"] is None and bool((args["num_rejected"] > 0).any())
            ),
            "drafts of 64 bits": lambda args: (
                "draft_tokens" in args
                and args["draft_tokens"].dtype == np.int64
                and args["draft_tokens"].size > 0
            ),
        },
    ),
    Contract(
        function="post_update_num_computed_tokens",
        examples=0.7,
        calls=computed_calls(),
        written=frozenset({"num_computed_tokens"}),
        dense=frozenset({"num_computed_tokens"}),
        specials=(overlapping, two_rows_of_one_slot),
        checked_only="shares memory",
        has_kernel=True,
        hard_cases={"a dummy row": _has_dummy},
    ),
]
