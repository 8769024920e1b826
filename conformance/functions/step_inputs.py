"""The inputs of a step: positions, lengths, token IDs and logits, from the state of requests."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from hypothesis import strategies as st

from conformance.harness.contract import Arguments, Contract
from conformance.harness.sizes import fit, rngs, sizes, vectors
from conformance.laws.batches import MAX_INT32, IntArray, choices, deferred

UNREAD: Final = (77, -1, -(2**31), MAX_INT32)
"""What lies in entries that must not be read."""

MOST: Final = (1, 1, 0, 3, 9, 70, 1300)
"""The most new tokens of a row."""


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """The rows of a step and the request slots around them."""

    idx_mapping: IntArray  # int32 or int64[num_reqs], -1 for dummy rows
    num_slots: int
    query_lens: IntArray  # int64[num_reqs]
    unread: int  # the value of entries that must not be read
    more: int  # the entries past those that are read or written

    @property
    def num_tokens(self) -> int:
        return int(self.query_lens.sum())

    def starts(self, lens: IntArray) -> IntArray:
        """Return int32[at least num_reqs + 1], where rows of these lengths start."""
        starts = np.concatenate([[0], np.cumsum(lens)])
        return np.concatenate([starts, np.full(self.more, self.unread)]).astype(np.int32)

    def by_row(self, values: IntArray) -> IntArray:
        """Return int32[at least num_reqs]."""
        return np.concatenate([values, np.full(self.more, self.unread)]).astype(np.int32)

    def by_slot(self, values: IntArray, dtype: Any = np.int32) -> IntArray:
        """Return the rows' values in the order of request slots; others must not be read."""
        found = np.full((self.num_slots, *values.shape[1:]), self.unread).astype(dtype)
        is_request = self.idx_mapping >= 0
        found[self.idx_mapping[is_request]] = values[is_request]
        return found

    def written(self, length: int) -> IntArray:
        return np.full(length + self.more, 77, np.int32)

    def rows(self) -> Arguments:
        query_start_loc = self.starts(self.query_lens)
        return {"idx_mapping": self.idx_mapping, "query_start_loc": query_start_loc}


@st.composite
def steps(draw: st.DrawFn, cells: int = 2**31) -> st.SearchStrategy[Step]:
    """Draw steps whose rows are in any slots, of which there are at most `cells`."""
    num_reqs, num_others = draw(sizes()), draw(sizes(0, 300))
    most, dummies, order, dtype, unread, more = choices(
        *(draw, MOST, (0.0, 0.2, 0.0, 1.0), ("ascending", "shuffled", "shuffled")),
        *((np.int32, np.int64), UNREAD, (0, 0, 1, 9)),
    )
    num_reqs = min(num_reqs, cells, 8192 // max(most, 1))
    num_slots = min(num_reqs + num_others, cells)

    def contents(draw: st.DrawFn) -> Step:
        rng, least = draw(rngs()), 1 if most == 1 else 0
        slots = np.arange(num_slots) if order == "ascending" else rng.permutation(num_slots)
        is_dummy = rng.random(num_reqs) < dummies
        idx_mapping = np.where(is_dummy, -1, slots[:num_reqs]).astype(dtype)
        return Step(idx_mapping, num_slots, draw(vectors(num_reqs, least, most)), unread, more)

    return deferred(contents)


@st.composite
def position_calls(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    """Draw steps of requests up to the longest."""
    step_of_sizes, padding = draw(steps()), draw(sizes(0, 300))
    longest = draw(st.sampled_from((0, 20, MAX_INT32, MAX_INT32)))

    def contents(draw: st.DrawFn) -> Arguments:
        step = draw(step_of_sizes)
        computed = draw(vectors(len(step.query_lens), 0, longest, rare=(longest,)))
        computed = np.minimum(computed, MAX_INT32 - step.query_lens)
        return {
            **step.rows(),
            "num_computed_tokens": step.by_slot(computed),
            "pos": np.full(step.num_tokens + padding, 77),
            "seq_lens": step.written(len(computed) + padding),
        }

    return deferred(contents)


@st.composite
def prefill_calls(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    """Draw chunks of prompts that begin and end anywhere, and rows past their prompts."""
    width, num_lookahead = draw(sizes()), draw(sizes(0, 70))
    num_slots, width = fit(40_000, 1100, width)
    step_of_sizes = draw(steps(num_slots))
    kind, names = draw(st.sampled_from(("any", "decodes", "last chunks", "far"))), ("a", "b")

    def contents(draw: st.DrawFn) -> Arguments:
        step = draw(step_of_sizes)
        step = dataclasses.replace(step, query_lens=np.minimum(step.query_lens, width))
        number, rng = len(step.query_lens), draw(rngs())
        # Where each chunk begins, and how many tokens are known.
        computed, known = (draw(vectors(number, 0, width, rare=(0, width))) for _ in names)
        computed = np.minimum(computed, width - step.query_lens)
        if kind == "last chunks":  # or those that end a little before
            ends = computed + step.query_lens
            known = np.minimum(ends + rng.integers(-1, num_lookahead + 2, number), width)
        elif kind == "decodes":
            known = computed - rng.integers(0, 2, number)
        known = np.maximum(known, 0)
        if kind == "far":  # of a row that is not prefilling nothing is read
            computed = np.where(computed < known, computed, MAX_INT32)
        tokens = rng.integers(0, 2**31, (step.num_slots, width)).astype(np.int32)
        return {
            "input_ids": step.written(step.num_tokens),
            "next_prefill_tokens": np.full((num_lookahead, step.num_slots), 77, np.int32),
            **step.rows(),
            "all_token_ids": tokens,
            "prefill_len": step.by_slot(known),
            "num_computed_tokens": step.by_slot(computed),
        }

    return deferred(contents)


@st.composite
def combination_calls(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    """Draw rows with several logits: decodes with drafts, and chunks within and past prompts."""
    step_of_sizes, max_drafts = draw(steps(1100)), draw(sizes(0, 30))
    num_new, kind, shape, *dtypes = choices(
        *(draw, (1, 1, 0, None), ("decodes", "any", "any", "chunks"), ((-1,), (-1, 1))),
        *[(np.int64, np.int32)] * 2,
    )

    def contents(draw: st.DrawFn) -> Arguments:
        step, number_of_new = draw(step_of_sizes), 1 if num_new is None else num_new
        number, rng = len(step.query_lens), draw(rngs())
        most = max_drafts + number_of_new
        logits = draw(vectors(number, int(kind != "any" and most > 0), most))
        logits = np.minimum(logits, step.query_lens)
        num_drafts = np.maximum(logits - number_of_new, 0)
        # How far the sequence ends past what is known.
        past = num_drafts + draw(vectors(number, 0, 3))
        is_chunk = rng.random(number) < {"decodes": 0.0, "any": 0.4, "chunks": 1.0}[kind]
        past = np.where(is_chunk, -draw(vectors(number, 0, 3)), past)
        known = draw(vectors(number, 3, 2**20))
        sampled = rng.integers(-1, 2**31, number)
        drafts = rng.integers(-1, 2**31, (number, max_drafts))
        given = {} if num_new is None else {"num_new_sampled_tokens": num_new}
        return {
            "input_ids": step.written(step.num_tokens),
            **step.rows(),
            "last_sampled_tokens": step.by_slot(sampled, dtypes[0]).reshape(shape),
            "seq_lens": step.by_row(known + past),
            "prefill_len": step.by_slot(known),
            "draft_tokens": step.by_slot(drafts, dtypes[1]),
            "cu_num_logits": step.starts(logits),
            "num_logits": int(logits.sum()),
            **given,
        }

    return deferred(contents)


@st.composite
def expansion_calls(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    """Draw rows with any numbers of logits."""
    step_of_sizes, most = draw(steps()), draw(st.sampled_from((1, 1, 2, 30)))

    def contents(draw: st.DrawFn) -> Arguments:
        step = draw(step_of_sizes)
        logits = draw(vectors(len(step.query_lens), 0, most))
        return {
            "idx_mapping": step.idx_mapping,
            "total_num_logits": int(logits.sum()),
            "cu_num_logits": step.starts(logits),
            "max_expand_len": most,
        }

    return deferred(contents)


def shares_memory(written: str, read: str) -> Callable[[Arguments, random.Random], Any]:
    """Let what is written overlap what is read, all of it or a part."""

    def change(arguments: Arguments, rng: random.Random) -> Arguments | None:
        shape, entries = arguments[written].shape, arguments[written].size
        memory = np.pad(arguments[read].reshape(-1), (0, entries + 1))
        out = memory[rng.randrange(2) :][:entries].reshape(shape)
        # What is written is first, so that a change is said to be of it.
        given = memory[: arguments[read].size].reshape(arguments[read].shape)
        change = {written: out, read: given}
        return {**change, **arguments, **change}

    return change


def two_rows_of_one_slot(arguments: Arguments, rng: random.Random) -> Arguments | None:
    slots = arguments["idx_mapping"].copy()
    if len(slots) < 2:
        return None
    slots[rng.randrange(1, len(slots))] = slots[0]
    return {**arguments, "idx_mapping": slots}


def one_more(name: str) -> Callable[[Arguments, random.Random], Any]:
    """Let one row have a token or logit more, and those after it start later."""

    def change(arguments: Arguments, rng: random.Random) -> Arguments:
        starts = arguments[name].copy()
        num_reqs = len(arguments["idx_mapping"])
        starts[rng.randrange(num_reqs + 1) : num_reqs + 1] += rng.choice((1, 1, 2**20))
        return {**arguments, name: starts}

    return change


def _requests(args: Arguments) -> IntArray:
    slots: IntArray = args["idx_mapping"]
    return slots[slots >= 0]


def _num_logits(args: Arguments) -> IntArray:
    return np.diff(args["cu_num_logits"][: len(args["idx_mapping"]) + 1])


def _is_past(args: Arguments) -> IntArray:
    """Return whether each row is a request that ends past what is known."""
    slots = args["idx_mapping"]
    lens = args["seq_lens"][: len(slots)]
    found: IntArray = (slots >= 0) & (lens > args["prefill_len"][slots])
    return found


def _is_small(name: str) -> Callable[[Arguments], bool]:
    return lambda args: not isinstance(args[name], int) or not 10**6 < args[name] < 2**31


CASES: Final[dict[str, Callable[[Arguments], bool]]] = {
    "int64 slots in any order, with dummies": lambda args: bool(
        args["idx_mapping"].dtype == np.int64
        and (args["idx_mapping"] < 0).any()
        and (np.diff(_requests(args)) < 0).any()
    ),
    "more than 256 rows": lambda args: len(args["idx_mapping"]) > 256,
}

CONTRACTS = [
    Contract(
        function="prepare_pos_seq_lens",
        calls=position_calls(),
        written=frozenset({"pos", "seq_lens"}),
        dense=frozenset({"pos", "seq_lens"}),
        checked_only="shares memory",
        specials=(
            shares_memory("seq_lens", "query_start_loc"),
            shares_memory("seq_lens", "num_computed_tokens"),
            two_rows_of_one_slot,
            one_more("query_start_loc"),
        ),
        has_kernel=True,
        hard_cases=CASES
        | {
            "a row of more than 128 tokens": lambda args: bool(
                (np.diff(args["query_start_loc"][: len(args["idx_mapping"]) + 1]) > 128).any()
            ),
            "more than 128 lengths past the rows": lambda args: (
                len(args["seq_lens"]) > len(args["idx_mapping"]) + 128
            ),
        },
    ),
    Contract(
        function="prepare_prefill_inputs",
        calls=prefill_calls(),
        written=frozenset({"input_ids", "next_prefill_tokens"}),
        dense=frozenset({"input_ids", "next_prefill_tokens"}),
        checked_only="shares memory",
        specials=(
            shares_memory("input_ids", "all_token_ids"),
            shares_memory("next_prefill_tokens", "prefill_len"),
            two_rows_of_one_slot,
            one_more("query_start_loc"),
        ),
        has_kernel=True,
        hard_cases=CASES
        | {
            "some rows are prefilling": lambda args: bool(
                0 < (args["num_computed_tokens"] < args["prefill_len"])[_requests(args)].sum()
                and (args["num_computed_tokens"] >= args["prefill_len"])[_requests(args)].any()
            ),
            "more than 32 tokens ahead": lambda args: (
                len(args["next_prefill_tokens"]) > 32 and len(_requests(args)) > 1
            ),
        },
    ),
    Contract(
        function="combine_sampled_and_draft_tokens",
        examples=1.3,
        calls=combination_calls(),
        written=frozenset({"input_ids"}),
        dense=frozenset({"input_ids"}),
        checked_only="shares memory",
        specials=(
            shares_memory("input_ids", "query_start_loc"),
            shares_memory("input_ids", "seq_lens"),
            two_rows_of_one_slot,
            one_more("query_start_loc"),
            one_more("cu_num_logits"),
        ),
        is_affordable=_is_small("num_logits"),
        has_kernel=True,
        hard_cases=CASES
        | {
            "drafts, but no sampled token": lambda args: bool(
                args.get("num_new_sampled_tokens") == 0 and _num_logits(args)[_is_past(args)].any()
            ),
            "rows with and without drafts": lambda args: bool(
                args.get("num_new_sampled_tokens") != 0
                and (_num_logits(args)[_is_past(args)] > 1).any()
                and (_num_logits(args)[_is_past(args)] == 1).any()
            ),
        },
    ),
    Contract(
        function="expand_idx_mapping",
        examples=0.6,
        calls=expansion_calls(),
        is_affordable=_is_small("total_num_logits"),
        specials=(two_rows_of_one_slot, one_more("cu_num_logits")),
        has_kernel=True,
        hard_cases=CASES,
    ),
]
