"""Results of a step: counts of sampled and rejected tokens, and the state of requests after it."""

from __future__ import annotations

import dataclasses
import random
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from hypothesis import strategies as st

from conformance.functions.step_inputs import Step, steps, two_rows_of_one_slot
from conformance.harness.compare import as_numpy
from conformance.harness.contract import Arguments, Contract
from conformance.harness.pair import Pair
from conformance.harness.sizes import rngs, sizes, vectors
from conformance.laws.batches import MAX_INT32, IntArray, choices, deferred

if TYPE_CHECKING:
    from conformance.harness.targets import Target


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


@dataclasses.dataclass(eq=False)
class Request:
    """A request, and what is true of it."""

    tokens: list[int]  # all that it will ever have
    num_prompt: int
    num_tokens: int  # its prompt and what was sampled
    num_prefill: int  # the tokens known when it was added, or resumed
    cached: list[int]  # the token that was computed at each position, without rejected ones


class Life:
    """Requests that live in a target's state; what `step_inputs` computes is plain Python here."""

    slots, length, drafts, vocab_size = 3, 40, 3, 4

    def __init__(self, target: Target, rng: np.random.Generator) -> None:
        self.target, self.rng = target, rng
        self.requests: dict[int, Request] = {}
        self.state: Arguments = {
            "num_computed_tokens": np.full(self.slots, 5, np.int32),
            "last_sampled_tokens": np.full(self.slots, 77),
            "output_bin_counts": np.zeros((self.slots, self.vocab_size), np.int32),
            "all_token_ids": np.full((self.slots, self.length), 77, np.int32),
            "total_len": np.full(self.slots, 6, np.int32),
            "draft_tokens_out": np.full((self.slots, self.drafts), 2),
        }

    def add(self, slot: int) -> None:
        """Begin a request, in the place of another one."""
        number = int(self.rng.integers(1, 9))
        tokens = self.rng.integers(0, self.vocab_size, self.length).tolist()
        self.requests[slot] = Request(tokens, number, number, number, [])
        self.state["all_token_ids"][slot, :number] = tokens[:number]
        self.state["output_bin_counts"][slot] = 0
        self.state["total_len"][slot], self.state["num_computed_tokens"][slot] = number, 0

    def preempt(self, slot: int) -> None:
        """Drop what is cached; what was sampled is prefilled again."""
        request = self.requests[slot]
        request.cached, request.num_prefill = [], request.num_tokens
        self.state["num_computed_tokens"][slot] = 0

    def call(self, function: str, arguments: Arguments) -> Any:
        """Call the target, and take over what it has changed."""
        [contract] = [one for one in CONTRACTS if one.function == function]
        pair = Pair(contract, self.target, arguments)
        outcome = pair.outcome()
        assert outcome.error is None, f"{function} raises {outcome.error!r}"
        for name in contract.written & arguments.keys():
            np.copyto(arguments[name], as_numpy(pair.theirs[name]))
        return outcome.value

    def inputs(self, slot: int) -> tuple[list[int], int]:
        """Return the tokens that a step computes for a request, and how many have logits."""
        request, number = self.requests[slot], int(self.state["num_computed_tokens"][slot])
        assert number == len(request.cached), f"{number} computed, not {len(request.cached)}"
        if number < request.num_prefill:
            end = int(self.rng.integers(number + 1, request.num_prefill + 1))
            return self.state["all_token_ids"][slot, number:end].tolist(), 1
        drafts = self.state["draft_tokens_out"][slot, : self.rng.integers(self.drafts + 1)]
        return [int(self.state["last_sampled_tokens"][slot]), *drafts.tolist()], 1 + len(drafts)

    def step(self) -> None:
        """Run a step of some requests, in any order, and of a dummy row."""
        rng, slots = self.rng, [-1, *self.requests]
        rows = [int(slot) for slot in rng.permutation(slots) if rng.random() < 0.8]
        number = len(rows)
        sampled = np.full((number, 1 + self.drafts), -1)
        drafts = rng.integers(0, self.vocab_size, (number, self.drafts))
        lens, query_lens, num_logits, num_sampled = np.zeros((4, number), np.int64)
        for row, slot in enumerate(rows):
            if slot < 0:
                continue
            request = self.requests[slot]
            tokens, logits = self.inputs(slot)
            begin = len(request.cached) + len(tokens) - logits + 1
            right, accepted = request.tokens[begin:], 0
            while accepted < logits - 1 and tokens[1 + accepted] == right[accepted]:
                accepted += 1
            request.cached += tokens[: len(tokens) - (logits - 1 - accepted)]
            lens[row], query_lens[row], num_logits[row] = begin + logits - 1, len(tokens), logits
            num_sampled[row] = accepted + 1
            sampled[row, : accepted + 1] = right[: accepted + 1]
            if rng.random() < 0.7:
                drafts[row] = right[accepted + 1 : accepted + 1 + self.drafts]
            if lens[row] >= request.num_prefill:
                request.num_tokens += accepted + 1
        self.update(
            np.array(rows, np.int32),
            lens,
            query_lens,
            num_logits,
            num_sampled,
            {"sampled_tokens": sampled, "draft_tokens": drafts},
        )

    def update(
        self,
        rows: IntArray,
        lens: IntArray,
        query_lens: IntArray,
        num_logits: IntArray,
        num_sampled: IntArray,
        tokens: Arguments,
    ) -> None:
        """Update the state after a step, at once or in two calls."""
        known = np.zeros(self.slots, np.int32)
        for slot, request in self.requests.items():
            known[slot] = request.num_prefill
        starts = {
            name: np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
            for name, counts in (("query", query_lens), ("logits", num_logits))
        }
        counts = {"num_sampled": num_sampled.astype(np.int32), "seq_lens": lens.astype(np.int32)}
        counts |= {"cu_num_logits": starts["logits"], "idx_mapping": rows, "prefill_len": known}
        found = self.call("get_num_sampled_and_rejected", counts)
        num_sampled, num_rejected = map(as_numpy, found)
        query: Arguments = {"query_start_loc": starts["query"]}
        if self.rng.random() < 0.5:
            computed = {"num_computed_tokens": self.state["num_computed_tokens"]}
            self.call("post_update_num_computed_tokens", {"idx_mapping": rows, **computed, **query})
            query["query_start_loc"] = None
        results = {"num_sampled": num_sampled, "num_rejected": num_rejected}
        self.call("post_update", {"idx_mapping": rows, **self.state, **tokens, **results, **query})

    def check(self) -> None:
        """Check that the state is that of the requests."""
        for slot, request in self.requests.items():
            number = self.state["total_len"][slot]
            assert number == request.num_tokens, f"{number} tokens, not {request.num_tokens}"
            tokens = self.state["all_token_ids"][slot, :number].tolist()
            right = request.tokens[:number]
            assert tokens == right, f"the tokens are {tokens}, not {right}"
            assert request.cached == right[: len(request.cached)], f"cached are {request.cached}"
            counted = self.state["output_bin_counts"][slot].tolist()
            right = np.bincount(right[request.num_prompt :], minlength=self.vocab_size).tolist()
            assert counted == right, f"tokens are counted as {counted}, not {right}"


def a_life_is_remembered(target: Target, arguments: Arguments) -> None:
    """Over chunks, decodes, drafts and preemptions the state has the prompt and what was sampled.

    Each position is computed once after its last rejection, with the token that belongs there.
    """
    names = [contract.function for contract in CONTRACTS]
    if len(arguments["idx_mapping"]) > 8 or not all(map(target.implementation.offers, names)):
        return
    rng = np.random.default_rng(arguments["total_len"].astype(np.uint32))
    life = Life(target, rng)
    for _ in range(10):
        slot = int(rng.integers(life.slots))
        request = life.requests.get(slot)
        if request is None or rng.random() < 0.1:
            life.add(slot)
        elif rng.random() < 0.3:
            life.preempt(slot)
        life.step()
        life.check()
        for done in [s for s, r in life.requests.items() if r.num_tokens > life.length - 5]:
            del life.requests[done]


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
        examples=1.6,
        calls=update_calls(),
        written=STATE,
        dense=STATE,
        specials=(overlapping, two_rows_of_one_slot, half_of_drafts),
        checked_only="shares memory",
        has_kernel=True,
        properties=(a_life_is_remembered,),
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
