"""A whole step at once: the same as its parts, whatever the state of the requests is."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from hypothesis import strategies as st

from conformance.engine.runner import Inputs, one_by_one
from conformance.harness.contract import Arguments, Contract
from conformance.harness.objects import Device, Operation, Twin, frozen
from conformance.harness.pair import Found, Pair
from conformance.harness.sizes import fit, rngs, sizes
from conformance.harness.targets import Target
from conformance.harness.values import Drawn
from conformance.laws.batches import MAX_INT32, IntArray, choices, deferred

STATE: Final = (
    *("num_computed_tokens", "prefill_len", "all_token_ids", "last_sampled_tokens", "draft_tokens"),
)
"""The attributes of `StepBuffers` that a caller writes."""

DTYPES: Final = {"last_sampled_tokens": np.int64, "draft_tokens": np.int64}
"""The dtypes of those that are not int32."""

WRITTEN: Final = (
    *("next_prefill_tokens", "idx_mapping", "query_start_loc", "cu_num_logits", "seq_lens"),
    *("positions", "input_ids", "logits_indices"),
)
"""Those that a step writes."""


@dataclasses.dataclass
class PreparedStep(Drawn):
    """What happens before a step, and the step."""

    appends: list[Operation]  # to the block tables
    state: dict[str, IntArray]  # by attribute of the buffers
    host_rows: list[IntArray]  # its request slots, and where tokens and logits start
    options: dict[str, int]  # the other arguments of `prepare_step`


class Requests:
    """Makes steps of random states, each valid after those before it."""

    def __init__(self, made: Arguments, max_drafts: int, unread: int) -> None:
        self.made, self.max_drafts, self.unread = made, max_drafts, unread
        self.lengths = np.zeros((len(made["block_sizes"]), made["max_num_reqs"]), np.int64)
        self.width = made["max_model_len"]

    def step(self, rng: Any, kind: str, dummies: float, num_new: int | None) -> PreparedStep:
        num_slots, max_tokens = self.made["max_num_reqs"], self.made["max_num_batched_tokens"]
        number = num_slots if rng.random() < 0.3 else rng.integers(num_slots, endpoint=True)
        slots = rng.permutation(num_slots) if rng.random() < 0.8 else np.arange(num_slots)
        slots = np.where(rng.random(num_slots) < dummies, -1, slots)[:number]
        most = {"decodes": 1 + self.max_drafts, "chunks": max(max_tokens, 1), "mixed": 7}[kind]
        query_lens = rng.integers(0, min(most, self.width), number, endpoint=True)
        if kind == "chunks" and number:
            query_lens[rng.integers(number, size=number - number // 3)] = 1
        query_lens = np.minimum(query_lens, max(max_tokens - number, 0) // max(number, 1) + 1)
        query_lens[np.cumsum(query_lens) > max_tokens] = 0
        computed = rng.integers(0, self.width - query_lens, endpoint=True)
        ends = computed + query_lens
        # How far each row ends past what is known: at most by its new tokens, if it is a chunk.
        past = rng.integers(-1 if kind == "decodes" else -5, query_lens + 2)
        known = np.clip(ends - past, 0, self.width)
        drafts = np.minimum(self.max_drafts, np.maximum(ends - known, 0))
        of_logits = drafts + (1 if num_new is None else num_new)
        logits = np.minimum(rng.integers(0, of_logits, endpoint=True), query_lens)
        if rng.random() < 0.5:
            logits = np.minimum(of_logits, query_lens)
        by_slot = {"num_computed_tokens": computed, "prefill_len": known}
        state = {name: self.by_slot(slots, values) for name, values in by_slot.items()}
        state["all_token_ids"] = rng.integers(0, 2**31, (num_slots, self.width)).astype(np.int32)
        state["last_sampled_tokens"] = rng.integers(-1, 2**31, num_slots)
        state["draft_tokens"] = rng.integers(-1, 2**31, (num_slots, self.max_drafts))
        total, room = int(query_lens.sum()), rng.random(2) < 0.5
        options = {
            "num_reqs_padded": int(rng.integers(number, num_slots, endpoint=True)),
            "num_tokens_padded": int(rng.integers(total, max_tokens, endpoint=True)),
        }
        options["num_reqs_padded"] = number if room[0] else options["num_reqs_padded"]
        options["num_tokens_padded"] = total if room[1] else options["num_tokens_padded"]
        if num_new is not None:
            options["num_new_sampled_tokens"] = num_new
        more = [self.unread] * int(rng.integers(3))
        starts = [np.cumsum([0, *lens]).tolist() for lens in (query_lens, logits)]
        return PreparedStep(
            self.appends(rng),
            state,
            [slots.astype(np.int32), *(np.array([*x, *more], np.int32) for x in starts)],
            options,
        )

    def by_slot(self, slots: IntArray, values: IntArray) -> IntArray:
        """Return the rows' values in the order of request slots; others must not be read."""
        found = np.full(self.made["max_num_reqs"], self.unread, np.int32)
        found[slots[slots >= 0]] = values[slots >= 0]
        return found

    def appends(self, rng: Any) -> list[Operation]:
        found = []
        for slot in rng.integers(self.made["max_num_reqs"], size=rng.integers(5)).tolist():
            is_new = bool(rng.random() < 0.4)
            blocks = []
            for lengths, width in zip(
                self.lengths, self.made["max_num_blocks_per_group"], strict=True
            ):
                used = 0 if is_new else int(lengths[slot])
                most = width - used if rng.random() < 0.5 else min(width - used, 1)
                number = int(rng.integers(most, endpoint=True))
                lengths[slot] = used + number
                blocks.append(rng.integers(1, 2**31, number).tolist())
            arguments = {"req_index": slot, "new_block_ids": blocks, "overwrite": is_new}
            found.append(Operation("append_block_ids", arguments))
        return found


@st.composite
def calls(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    groups, slots, width = draw(st.sampled_from((1, 2, 3, 0))), draw(sizes(1)), draw(sizes(1))
    slots, width = fit(10_000 // max(groups, 1), slots, width)
    tokens, lookahead = draw(sizes(1, 4097)), draw(sizes(0, 40))
    block, flag = st.sampled_from((1, 2, 3, 16, 16, 64, 2**20)), st.booleans()
    reach = st.sampled_from((0, 0, 1, 2, 7, 40, MAX_INT32))
    world, drafts, more, unread, dummies, num_new = choices(
        *(draw, (1, 1, 1, 2, 3), (0, 1, 2, 5, 20), (0, 0, 1, 30), (-1, 77, -(2**31), MAX_INT32)),
        *((0.0, 0.0, 0.2, 1.0), (None, None, 1, 0)),
    )
    block_sizes = [draw(block) for _ in range(groups)]
    made = {
        "block_sizes": block_sizes,
        "max_num_reqs": slots,
        "max_num_batched_tokens": tokens,
        "max_num_blocks_per_group": [-(-width // size) + more for size in block_sizes],
        "device": Device(),
        "sliding_window_reach": [draw(reach) for _ in range(groups)],
        "max_model_len": width,
        "num_speculative_tokens": drafts,
        "num_lookahead_tokens": lookahead,
    }
    if world > 1:
        made |= {
            "cp_size": world,
            "cp_rank": draw(st.integers(0, world - 1)),
            "slot_mapping_enabled": [draw(flag) for _ in range(groups)],
            "dcp_sharded": [draw(flag) for _ in range(groups)],
        }
    kinds = draw(st.lists(st.sampled_from(("mixed", "decodes", "chunks")), min_size=1, max_size=4))

    def contents(draw: st.DrawFn) -> Arguments:
        requests, rng = Requests(made, drafts, unread), draw(rngs())
        return {**made, "steps": [requests.step(rng, kind, dummies, num_new) for kind in kinds]}

    return deferred(contents)


PARTS: Final = (
    *("prepare_pos_seq_lens", "prepare_prefill_inputs", "combine_sampled_and_draft_tokens"),
)
"""The functions that a step consists of, beside the methods of the block tables."""


class Worker:
    """The tables and buffers of a twin."""

    def __init__(self, twin: Twin, options: dict[str, int], made: Arguments) -> None:
        self.twin = twin
        self.tables = twin.function("BlockTables")(**made)
        self.buffers = twin.function("StepBuffers")(self.tables, **options)

    def begin(self, step: PreparedStep) -> None:
        for append in step.appends:
            self.call(append.method, **append.arguments)
        for name, values in step.state.items():
            buffer, array = getattr(self.buffers, name), np.asarray(values)
            if array.dtype.kind != "i" or array.shape != tuple(buffer.shape):
                raise TypeError(f"{name} cannot be written")  # by no caller of a step
            buffer[...] = self.twin.array(array.astype(DTYPES.get(name, np.int32)))

    def call(self, method: str, **arguments: Any) -> Any:
        return self.twin.method("BlockTables", self.tables, method)(**arguments)

    def prepare(self, step: PreparedStep) -> Any:
        return self.twin.function("prepare_step")(self.buffers, *step.host_rows, **step.options)

    def state(self) -> dict[str, Any]:
        return {name: frozen(getattr(self.buffers, name)) for name in WRITTEN}


def run(
    twin: Twin,
    *,
    steps: list[PreparedStep],
    max_model_len: int,
    num_speculative_tokens: int,
    num_lookahead_tokens: int,
    prepare: Callable[[Worker, PreparedStep], Any] = lambda worker, step: worker.prepare(step),
    **made: Any,
) -> list[Any]:
    options = {
        "max_model_len": max_model_len,
        "num_speculative_tokens": num_speculative_tokens,
        "num_lookahead_tokens": num_lookahead_tokens,
    }
    worker, found, inputs = Worker(twin, options, made), list[Any](), None
    for step in steps:
        worker.begin(step)
        inputs = prepare(worker, step)
        found.append((frozen(inputs), worker.state()))
    return [*found, inputs]


def by_parts(worker: Worker, step: PreparedStep) -> Any:
    slots, starts, logits = step.host_rows
    return tuple(one_by_one(worker.twin, worker.buffers, slots, starts, logits, **step.options))


def a_step_is_its_parts(target: Target, arguments: Arguments) -> None:
    """The functions one by one give what `reference` gives, as the whole step does."""
    if not all(map(target.offers, PARTS)):
        return
    contract = dataclasses.replace(CONTRACTS[0], run=functools.partial(run, prepare=by_parts))
    pair = Pair(contract, target, arguments)
    whole, parts = Pair(CONTRACTS[0], target, arguments).expected(), pair.expected()
    for (inputs, state), (views, found) in zip(whole.value[:-1], parts.value[:-1], strict=True):
        np.testing.assert_equal(views, tuple(getattr(inputs, name) for name in Inputs._fields))
        np.testing.assert_equal(found, state)
    got = pair.outcome()
    assert got.error is None, f"the functions one by one raise {got.error!r}"
    if (difference := pair.comparison.difference(parts.value, got.value)) is not None:
        raise Found(difference)


def is_affordable(arguments: Arguments) -> bool:
    """Return whether buffers have few entries."""
    sizes = [arguments[f"max_{what}"] for what in ("num_reqs", "num_batched_tokens", "model_len")]
    widths = arguments["max_num_blocks_per_group"]
    more = [arguments[f"num_{what}_tokens"] for what in ("speculative", "lookahead")]
    columns = sum(max(one, 0) for one in (*widths, *more, sizes[2]))
    return bool(max(sizes[0], 0) * columns < 10**6 and sizes[1] < 10**6)


def two_rows_of_one_slot(arguments: Arguments, rng: random.Random) -> Arguments | None:
    steps = [*arguments["steps"]]
    at = rng.randrange(len(steps))
    slots = steps[at].host_rows[0].copy()
    if len(slots) < 2:
        return None
    slots[rng.randrange(1, len(slots))] = slots[0]
    steps[at] = dataclasses.replace(steps[at], host_rows=[slots, *steps[at].host_rows[1:]])
    return {**arguments, "steps": steps}


def bad_state(arguments: Arguments, rng: random.Random) -> Arguments | None:
    """Let a request of a step have computed, or know, more or fewer tokens than it can."""
    steps = [*arguments["steps"]]
    at, name = rng.randrange(len(steps)), rng.choice(("num_computed_tokens", "prefill_len"))
    slots = [slot for slot in steps[at].host_rows[0].tolist() if slot >= 0]
    if not slots:
        return None
    values = steps[at].state[name].copy()
    values[rng.choice(slots)] = rng.choice((-1, arguments["max_model_len"] + 1, MAX_INT32))
    steps[at] = dataclasses.replace(steps[at], state={**steps[at].state, name: values})
    return {**arguments, "steps": steps}


def _any_step(holds: Callable[[Arguments, PreparedStep], Any]) -> Callable[[Arguments], bool]:
    return lambda args: any(bool(holds(args, step)) for step in args["steps"])


CONTRACTS = [
    Contract(
        function="prepare_step",
        needs=("prepare_step", "StepBuffers", "BlockTables"),
        calls=calls(),
        run=run,
        has_objects=True,
        has_kernel=True,
        examples=0.5,
        host=frozenset({"host_rows", *STATE}),
        is_affordable=is_affordable,
        specials=(two_rows_of_one_slot, bad_state),
        properties=(a_step_is_its_parts,),
        hard_cases={
            "some rows are prefilling, others draft": _any_step(
                lambda _, step: (
                    (np.diff(step.host_rows[2][: len(step.host_rows[0]) + 1]) > 1).any()
                    and (step.state["num_computed_tokens"] < step.state["prefill_len"])[
                        step.host_rows[0][step.host_rows[0] >= 0]
                    ].any()
                )
            ),
            "blocks below a window": _any_step(
                lambda args, step: (
                    args.get("cp_size", 1) == 1
                    and any(
                        0 < w and (step.state["num_computed_tokens"] >= w + size).any()
                        for w, size in zip(
                            args["sliding_window_reach"], args["block_sizes"], strict=True
                        )
                    )
                )
            ),
            "more than 256 rows": _any_step(lambda _, step: len(step.host_rows[0]) > 256),
        },
    )
]
