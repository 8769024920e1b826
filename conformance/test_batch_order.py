"""Splitting a batch by request kind, and reordering it for the split."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.contracts.check import property_check
from conformance.contracts.contract import Contract
from conformance.coverage.size_axes import Axis
from conformance.execution.invocations import Invocation
from conformance.invalid_inputs.batch_order import (
    EXTENDS_INVALID_INPUTS,
    REORDER_INVALID_INPUTS,
    SPLIT_INVALID_INPUTS,
    UNIFORM_INVALID_INPUTS,
)
from conformance.laws.access import Access
from conformance.laws.changes import Change, in_order, names_in_order
from conformance.laws.interpretation import (
    Interpretation,
    Reader,
    changing,
    requests_of,
    with_batch,
)
from conformance.strategies.batch_order import (
    MAX_TOKENS,
    PROMPT,
    SPARE,
    THRESHOLD,
    InputBatch,
    SchedulerOutput,
    regions_of,
    reorder_calls,
    reordered_batches,
    split_decodes_and_prefills_calls,
    split_decodes_prefills_and_extends_calls,
)
from conformance.strategies.batches import of_batch
from conformance.strategies.large_batches import (
    COMPUTED_TOKENS,
    REQUESTS,
    TOKENS,
    metadata_axes,
)
from conformance.targets.target import Target
from conformance.values.call import Call, plain


def _kinds_of_batch(reader: Reader, call: Call) -> Iterator[Access]:
    """Yield the access relation of each kind's requests: the batch cut at the returned counts."""
    answer, metadata = reader.answer(call), call.source.metadata()
    middle = len(answer) // 2
    request = token = 0
    for num_reqs, num_tokens in zip(answer[:middle], answer[middle:], strict=True):
        requests, tokens = slice(request, request + num_reqs), slice(token, token + num_tokens)
        starts = metadata.query_start_loc[request : requests.stop + 1]
        starts = starts - starts[0]  # a wrong token count shows as wrong slots
        piece = requests_of(metadata, requests, starts, tokens)
        yield reader.access(piece, call.source.layout).shifted(token)
        request, token = requests.stop, tokens.stop


KINDS = Interpretation(
    _kinds_of_batch, changing(common_attn_metadata=lambda batch: batch.metadata())
)
"""Interprets the functions that split a batch by kind: one part for each kind."""


def made_order(target: Target, call: Call) -> list[int]:
    """Return the old index of each request, in the order after a target reordered them."""
    return _order_of(_reorder(target, call))


def _reorder(target: Target, call: Call) -> InputBatch:
    """Return the input batch after a target has reordered it."""
    invocation = Invocation(target, call)
    with target.running(checked=True):
        invocation.run()
    batch: InputBatch = invocation.arguments["input_batch"]
    return batch


def _order_of(batch: InputBatch) -> list[int]:
    return [int(name[1:]) for name in batch.req_ids]


def _reordered(reader: Reader, call: Call) -> Iterator[Access]:
    """Yield the access relation of the reordered batch, with the old token numbers.

    Tokens and blocks follow the request ID; the reordered arrays give the context lengths.
    """
    after = _reorder(reader.target, call)
    order = _order_of(after)
    batch = in_order(call.source, order)
    computed = after.num_computed_tokens_cpu[: len(order)].tolist()
    lens = [c + q for c, q in zip(computed, batch.query_lens, strict=True)]
    seq_lens = np.array(lens, np.int32)
    metadata = dataclasses.replace(
        batch.metadata(),
        seq_lens=seq_lens,
        seq_lens_cpu=seq_lens,
        max_seq_len=max(lens, default=0),
    )
    access = reader.access(metadata, batch.layout)
    yield access.renamed(names_in_order(call.source, order))


def _to_reorder(call: Call, change: Change) -> Call:
    """Return the call that reorders a changed batch."""
    batch = change(call.source)
    ids = [f"r{i}" for i in range(batch.num_reqs)]
    computed = np.array(batch.num_computed_tokens, np.int32)
    return with_batch(
        call,
        batch,
        input_batch=InputBatch(ids, computed, np.zeros_like(computed)),
        scheduler_output=SchedulerOutput(dict(zip(ids, batch.query_lens, strict=True))),
    )


REORDERED = Interpretation(_reordered, _to_reorder, calls=reordered_batches)
"""Interprets the function that reorders a batch: the reordered batch."""


def _threshold(call: Call) -> int:
    found: int = call.get("decode_threshold", 1)
    return found


def _first_long(call: Call) -> int:
    """Return the index of the first request above the threshold, or the number of requests."""
    lens = call.source.query_lens
    return next((i for i, q in enumerate(lens) if q > _threshold(call)), len(lens))


THRESHOLDS = Axis(lambda call: call.get("decode_threshold", 1), 2**31 - 1, first=1)


def _own_tokens(call: Call) -> list[int]:
    """Return the tokens of each request of a reordering call."""
    scheduled = call["scheduler_output"].num_scheduled_tokens
    return [scheduled[name] for name in call["input_batch"].req_ids]


test_split_decodes_and_prefills = Contract(
    "split_decodes_and_prefills",
    split_decodes_and_prefills_calls,
    {
        **of_batch(),
        "all are decodes": lambda call: _first_long(call) == call.source.num_reqs > 0,
        "none is a decode": lambda call: _first_long(call) == 0 < call.source.num_reqs,
        "a decode after a prefill": lambda call: any(
            0 < q <= _threshold(call) for q in call.source.query_lens[_first_long(call) :]
        ),
        "uniform is required": lambda call: bool(call.get("require_uniform")),
        "a query length is the threshold": lambda call: _threshold(call) in call.source.query_lens,
        "a query length is one more": lambda call: _threshold(call) + 1 in call.source.query_lens,
        "the first request has no tokens": lambda call: call.source.query_lens[:1] == (0,),
        "decodes after a first request of no tokens": lambda call: (
            call.source.query_lens[:1] == (0,)
            and 0 < next(filter(None, call.source.query_lens), 0) <= _threshold(call)
        ),
        "short lengths differ, and none is long": lambda call: (
            _first_long(call) == call.source.num_reqs
            and call.source.raised == 0
            and len(set(call.source.query_lens) - {0}) > 1
        ),
        "short lengths differ": lambda call: (
            len({q for q in call.source.query_lens if 0 < q <= _threshold(call)}) > 1
        ),
    },
    pairs=(
        ("uniform is required", "padded requests at the end"),
        ("uniform is required", "short lengths differ"),
        ("uniform is required", "short lengths differ, and none is long"),
        ("uniform is required", "decodes after a first request of no tokens"),
    ),
    invalid_inputs=[*SPLIT_INVALID_INPUTS, *UNIFORM_INVALID_INPUTS],
    takes_objects=True,
    laws=("split_partitions", "padding_adds_nothing"),
    interpretation=KINDS,
    on_device=("common_attn_metadata.query_start_loc_cpu",),
    axes={**metadata_axes(), THRESHOLD: THRESHOLDS},
    has_arrays=True,
    returns=("num_decodes", "num_prefills", "num_decode_tokens", "num_prefill_tokens"),
)


def _kinds(call: Call) -> set[str]:
    batch = call.source
    return {
        "decode" if q <= _threshold(call) else "extend" if c else "prefill"
        for q, c in zip(batch.query_lens, batch.num_computed_tokens, strict=True)
    }


test_split_decodes_prefills_and_extends = Contract(
    "split_decodes_prefills_and_extends",
    split_decodes_prefills_and_extends_calls,
    {
        **of_batch(),
        "all are decodes": lambda call: _kinds(call) == {"decode"},
        "extends and no prefill": lambda call: (
            "extend" in _kinds(call) and "prefill" not in _kinds(call)
        ),
        "prefills and no extend": lambda call: (
            "prefill" in _kinds(call) and "extend" not in _kinds(call)
        ),
        "all three": lambda call: len(_kinds(call)) == 3,
        "a query length is the threshold": lambda call: _threshold(call) in call.source.query_lens,
    },
    pairs=(
        ("extends and no prefill", "padded tokens at the end"),
        ("all are decodes", "padded tokens at the end"),
    ),
    invalid_inputs=[*SPLIT_INVALID_INPUTS, *EXTENDS_INVALID_INPUTS],
    takes_objects=True,
    laws=("split_partitions", "padding_adds_nothing"),
    interpretation=KINDS,
    on_device=(
        "common_attn_metadata.query_start_loc_cpu",
        "common_attn_metadata.num_computed_tokens_cpu",
    ),
    axes={**metadata_axes(), THRESHOLD: THRESHOLDS},
    has_arrays=True,
    returns=(
        "num_decodes",
        "num_extends",
        "num_prefills",
        "num_decode_tokens",
        "num_extend_tokens",
        "num_prefill_tokens",
    ),
)


def _observed(arguments: Any) -> dict[str, Any]:
    """Return the fields of a reordered batch that its caller sees."""
    batch = arguments["input_batch"]
    return {
        "req_ids": batch.req_ids,
        "num_computed_tokens_cpu": plain(batch.num_computed_tokens_cpu),
        "num_prompt_tokens": plain(batch.num_prompt_tokens),
        "num_scheduled_tokens": arguments["scheduler_output"].num_scheduled_tokens,
    }


def _scheduled(call: Call) -> Any:
    return call["scheduler_output"].num_scheduled_tokens.values()


def _most(call: Call, name: str) -> int:
    """Return the largest entry of a per-request array of token counts."""
    batch = call["input_batch"]
    return max(getattr(batch, name)[: len(batch.req_ids)], default=0)


def _misplaced(call: Call) -> int:
    found = regions_of(call)
    return sum(a != b for a, b in zip(found, sorted(found), strict=True))


test_reorder = Contract(
    "reorder_batch_to_split_decodes_and_prefills",
    reorder_calls,
    {
        "no requests": lambda call: not call["input_batch"].req_ids,
        "already in order": lambda call: _misplaced(call) == 0 < len(call["input_batch"].req_ids),
        "two change places": lambda call: _misplaced(call) == 2,
        "two requests change places": lambda call: (
            _misplaced(call) == 2 == len(call["input_batch"].req_ids)
        ),
        "three or more are misplaced": lambda call: _misplaced(call) > 2,
        "four regions": lambda call: call.get("regions") == 4,
        "every region of three": lambda call: (
            call.get("regions", 3) == 3 and len(set(regions_of(call))) == 3
        ),
        "every region of four": lambda call: len(set(regions_of(call))) == 4,
        "tokens at the threshold": lambda call: _threshold(call) in _scheduled(call),
        "as many tokens as an int64 holds": lambda call: MAX_TOKENS in _scheduled(call),
    },
    axes={
        REQUESTS: Axis(
            lambda call: len(call["input_batch"].req_ids), 4097, "65,537 swaps take half a minute"
        ),
        TOKENS: Axis(lambda call: max(_own_tokens(call), default=0), 2**63 - 1),
        COMPUTED_TOKENS: Axis(lambda call: _most(call, "num_computed_tokens_cpu"), 2**63 - 1),
        PROMPT: Axis(lambda call: _most(call, "num_prompt_tokens"), 2**63 - 1),
        SPARE: Axis(
            lambda call: (
                len(call["input_batch"].num_prompt_tokens) - len(call["input_batch"].req_ids)
            )
        ),
        THRESHOLD: THRESHOLDS,
    },
    invalid_inputs=REORDER_INVALID_INPUTS,
    changes=frozenset({"input_batch"}),
    observe=_observed,
    laws=("reordering_renames", "padding_adds_nothing", "any_order_means_the_same"),
    interpretation=REORDERED,
)


def _cycles(order: list[int]) -> int:
    """Return the number of cycles of length 2 or more in a permutation."""
    left, found = {i for i, j in enumerate(order) if i != j}, 0
    while left:
        found += 1
        at = next(iter(left))
        while at in left:
            left.remove(at)
            at = order[at]
    return found


@property_check("reorder_batch_to_split_decodes_and_prefills", reorder_calls)
def test_reordering_changes_as_little_as_possible(target: Target, call: Call) -> None:
    """Regions ascend, requests already in their region stay, and no swap is superfluous."""
    before = list(call["input_batch"].req_ids)
    expected = sorted(regions_of(call))
    region = dict(zip(before, regions_of(call), strict=True))
    invocation = Invocation(target, call)
    moved = invocation.answer()
    batch = invocation.arguments["input_batch"]
    assert sorted(batch.req_ids) == sorted(before)
    assert [region[name] for name in batch.req_ids] == expected
    for i, name in enumerate(before):
        if region[name] == expected[i]:
            assert batch.req_ids[i] == name
    order = [before.index(name) for name in batch.req_ids]
    assert len(batch.swaps) <= sum(i != j for i, j in enumerate(order)) - _cycles(order)
    assert all(i != j for i, j in batch.swaps)
    assert moved is (order != sorted(order))


@property_check(
    "reorder_batch_to_split_decodes_and_prefills",
    reorder_calls,
    goals={"a request that is not counted": lambda call: bool(call["input_batch"].req_ids)},
    tests_invalid_inputs=True,
)
def test_a_counter_needs_all_requests(target: Target, call: Call) -> None:
    """A `Counter` has a value for any key, but a request without an entry is refused."""
    step, names = call["scheduler_output"], call["input_batch"].req_ids
    if names:
        counts = Counter({n: c for n, c in step.num_scheduled_tokens.items() if n != names[-1]})
        step = dataclasses.replace(step, num_scheduled_tokens=counts)
        got = Invocation(target, call.replacing(scheduler_output=step)).answer_or_error()
        assert isinstance(got, KeyError), got


@property_check(
    "reorder_batch_to_split_decodes_and_prefills",
    reordered_batches,
    goals={"a batch out of order": lambda call: _misplaced(call) > 0},
)
def test_a_reordered_batch_can_be_split(target: Target, call: Call) -> None:
    """Splitting a reordered batch finds as many decodes as its first region has requests."""
    after = in_order(call.source, made_order(target, call))
    arguments = {
        "common_attn_metadata": after.metadata(),
        "decode_threshold": call["decode_threshold"],
    }
    decodes = Invocation(target, Call("split_decodes_and_prefills", arguments)).answer()[0]
    assert decodes == regions_of(call).count(0)


@property_check("split_decodes_and_prefills", split_decodes_and_prefills_calls)
def test_two_kinds_add_up(target: Target, call: Call) -> None:
    """Requests and tokens of the two kinds sum to the batch's, and all decodes are short."""
    decodes, prefills, decode_tokens, prefill_tokens = Invocation(target, call).answer()
    assert decodes + prefills == call.source.num_reqs
    assert decode_tokens + prefill_tokens == call.source.num_actual_tokens
    assert all(q <= _threshold(call) for q in call.source.query_lens[:decodes])


@property_check("split_decodes_prefills_and_extends", split_decodes_prefills_and_extends_calls)
def test_three_kinds_add_up(target: Target, call: Call) -> None:
    """The three kinds sum to the batch; extends have a context, or one of them is short."""
    answer = Invocation(target, call).answer()
    assert sum(answer[:3]) == call.source.num_reqs
    assert sum(answer[3:]) == call.source.num_actual_tokens
    first_prefill = answer[0] + answer[1]
    assert all(c > 0 for c in call.source.num_computed_tokens[answer[0] : first_prefill]) or any(
        q <= _threshold(call) for q in call.source.query_lens[answer[0] : first_prefill]
    )
