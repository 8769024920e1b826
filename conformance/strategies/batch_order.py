"""Calls of the functions that split a batch into decodes and prefills, or reorder it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from conformance.coverage.presets import Preset
from conformance.strategies import cached as st
from conformance.strategies.batches import batches
from conformance.strategies.large_batches import COMPUTED_TOKENS, REQUESTS, TOKENS
from conformance.strategies.repeated import long_lists
from conformance.values.call import Arguments, Call

THRESHOLD = "decode_threshold"
PROMPT = "prompt tokens"
SPARE = "spare rows of the batch"

MAX_TOKENS = 2**63 - 1
"""The most tokens that a scheduler may give a request: the largest int64."""


@st.composite
def split_decodes_and_prefills_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `split_decodes_and_prefills`, of batches in any order."""
    is_uniform = draw(st.sampled_from((None, False, True, True)))
    # `require_uniform` is about short requests: draw them often if it is set.
    kinds = (None, "short extend", "speculative decode", "short extend", "none")
    kind = draw(st.sampled_from(kinds)) if is_uniform else None
    is_first_idle = draw(st.booleans()) if is_uniform else None
    batch = draw(batches(preset, kind=kind, is_first_idle=is_first_idle))
    arguments: Arguments = {"common_attn_metadata": batch.metadata()}
    longest = max(batch.query_lens, default=0)
    usual = st.sampled_from((None, 1, 2, 4, max(longest, 1), max(longest, 1)))
    threshold = draw(preset.sizes(THRESHOLD, usual))
    if threshold is not None:
        arguments["decode_threshold"] = threshold
    if is_uniform is not None:
        arguments["require_uniform"] = is_uniform
    return Call("split_decodes_and_prefills", arguments, batch)


@st.composite
def split_decodes_prefills_and_extends_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `split_decodes_prefills_and_extends`, of batches in any order."""
    batch = draw(batches(preset))
    arguments: Arguments = {"common_attn_metadata": batch.metadata()}
    if draw(st.booleans()) or preset.axis == THRESHOLD:
        arguments["decode_threshold"] = draw(preset.sizes(THRESHOLD, st.integers(1, 5)))
    return Call("split_decodes_prefills_and_extends", arguments, batch)


@dataclasses.dataclass
class InputBatch:
    """The part of a runner's persistent batch that the reordering function uses.

    Attributes:
        req_ids: Names of the requests, by position.
        num_computed_tokens_cpu: Tokens in the cache, by position; longer than the batch.
        num_prompt_tokens: Tokens of the prompt, by position; longer than the batch.
        swaps: Every swap that was requested, in order.
    """

    req_ids: list[str]
    num_computed_tokens_cpu: Any
    num_prompt_tokens: Any
    swaps: list[tuple[int, int]] = dataclasses.field(default_factory=list)

    def swap_states(self, i: int, j: int) -> None:
        """Swap all state of two positions."""
        self.swaps.append((int(i), int(j)))
        self.req_ids[i], self.req_ids[j] = self.req_ids[j], self.req_ids[i]
        for array in (self.num_computed_tokens_cpu, self.num_prompt_tokens):
            array[[i, j]] = array[[j, i]]


@dataclasses.dataclass
class SchedulerOutput:
    """The scheduler's output: the number of new tokens of each request, by its name."""

    num_scheduled_tokens: dict[str, int]


@st.composite
def reorder_calls(draw: st.DrawFn, preset: Preset, *, regions: int | None = None) -> Call:
    """Draw calls of `reorder_batch_to_split_decodes_and_prefills`.

    Requests are in any order, or nearly in the target order, as in a running engine.
    """
    threshold = draw(st.integers(1, 4))
    maximum = 6 if preset.name == "minimal" else 40
    num_reqs = draw(st.one_of(st.integers(0, maximum), st.sampled_from((0, 2, 3, maximum))))
    small = st.integers(0, threshold + 2)
    each = st.tuples(small, st.integers(0, 3), st.integers(0, 5))
    if preset.axis:
        threshold = draw(preset.sizes(THRESHOLD, st.just(threshold)))
        num_reqs = draw(preset.sizes(REQUESTS, st.just(5)))
        kinds = draw(long_lists(each, num_reqs))
        largest = (
            draw(preset.sizes(TOKENS, st.just(threshold + 1))),
            draw(preset.sizes(COMPUTED_TOKENS, st.just(4))),
            draw(preset.sizes(PROMPT, st.just(6))),
        )
        tokens, computed, prompt = largest
        kinds = [(min(t, tokens), min(c, computed), min(p, prompt)) for t, c, p in kinds]
        kinds[-1:] = [largest] * len(kinds[-1:])
    else:
        kinds = draw(st.lists(each, min_size=num_reqs, max_size=num_reqs))
    if draw(st.booleans()):
        kinds.sort(key=lambda k: (k[0] > threshold, k[1] == 0))
        if num_reqs > 1:
            i, j = draw(st.integers(0, num_reqs - 1)), draw(st.integers(0, num_reqs - 1))
            kinds[i], kinds[j] = kinds[j], kinds[i]
    ids = [f"r{i}" for i in range(num_reqs)]
    dtype: Any = draw(st.sampled_from((np.int64,) if preset.axis else (np.int32, np.int64)))
    spare = [draw(st.integers(0, 3))] * draw(preset.sizes(SPARE, st.just(2)))
    batch = InputBatch(
        ids,
        np.array([computed for _, computed, _ in kinds] + spare, dtype),
        np.array([prompt for _, _, prompt in kinds] + spare, dtype),
    )
    scheduled = {name: kinds[i][0] for i, name in enumerate(ids)} | {"elsewhere": 1}
    if bool(ids) and not preset.axis and draw(st.RARELY):
        scheduled[draw(st.sampled_from(ids))] = draw(st.sampled_from((2**31, MAX_TOKENS)))
    arguments: Arguments = {"input_batch": batch, "scheduler_output": SchedulerOutput(scheduled)}
    if threshold > 1 or draw(st.booleans()):
        arguments["decode_threshold"] = threshold
    number = draw(st.sampled_from((3, 4))) if regions is None else regions
    if number != 3 or draw(st.booleans()):
        arguments["regions"] = number
    return Call("reorder_batch_to_split_decodes_and_prefills", arguments)


@st.composite
def reordered_batches(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw reordering calls for the requests of a batch; the source is the batch."""
    batch = draw(batches(preset))
    ids = [f"r{i}" for i in range(batch.num_reqs)]
    computed = np.array(batch.num_computed_tokens, np.int32)
    scheduled = SchedulerOutput(dict(zip(ids, batch.query_lens, strict=True)))
    arguments: Arguments = {
        "input_batch": InputBatch(ids, computed, np.zeros_like(computed)),
        "scheduler_output": scheduled,
        "decode_threshold": draw(st.integers(1, 4)),
    }
    return Call("reorder_batch_to_split_decodes_and_prefills", arguments, batch)


def regions_of(call: Call) -> list[int]:
    """Return the region of each request of a reordering call, by its position."""
    arguments = call.arguments
    batch, threshold = arguments["input_batch"], arguments.get("decode_threshold", 1)
    found = []
    for i, name in enumerate(batch.req_ids):
        tokens = arguments["scheduler_output"].num_scheduled_tokens[name]
        computed, prompt = batch.num_computed_tokens_cpu[i], batch.num_prompt_tokens[i]
        if arguments.get("regions", 3) == 3:
            found.append(0 if tokens <= threshold else 1 if computed > 0 else 2)
        elif computed == 0:
            found.append(3)
        elif tokens > threshold:
            found.append(2)
        else:
            found.append(0 if computed >= prompt else 1)
    return found
