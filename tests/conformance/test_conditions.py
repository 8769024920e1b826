"""Conditions under which a function must answer as it does alone; bugs are in the catalogue."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

import fast
import reference
from conformance.calls import Call
from conformance.comparison import Verdict
from conformance.conditions.condition_checks import OTHER_BATCH, in_any_memory
from conformance.conditions.interleaving import (
    at_each_line,
    check_interleaved_calls,
    check_parallel_calls,
)
from conformance.conditions.known_answer import KnownAnswer
from conformance.conditions.layouts import LAYOUTS
from conformance.conditions.lifetimes import _watched
from conformance.conditions.process_state import check_modes
from conformance.contracts import Contract
from conformance.functions import contracts
from conformance.report import Mismatch
from conformance.strategies.presets import MINIMAL
from conformance.targets import TARGETS
from conformance.values import arrays_in
from conformance.vectors.drawing import drawn

HOST = TARGETS["host"]

LENGTHS = Call("get_dcp_local_seq_lens", {"seq_lens": np.array([7, 4], np.int32), "dcp_size": 2})


def known_lengths() -> KnownAnswer:
    """Return the call of local lengths, with its answer."""
    return KnownAnswer.of(contracts()[LENGTHS.function], LENGTHS)


MAY_LACK_ANOTHER_BATCH = {
    "AttentionMetadataBuilder.build_for_cudagraph_capture": "it takes one batch only",
    "AttentionMetadataBuilder._init_reorder_batch_threshold": "no arrays are read",
    "_reshape_kv_cache": "KV caches are contiguous, and their contents are not read",
    "bind_kv_cache": "the contents of KV caches are not read",
    "get_per_layer_parameters": "sinks are passed on",
    "initialize_kv_cache_for_kv_sharing": "the contents of KV caches are not read",
    "is_valid_kv_cache_layout": "an array is no layout",
    "reorder_batch_to_split_decodes_and_prefills": "it changes the caller's batch for good",
    "sanity_check_mm_encoder_outputs": "the contents of embeddings are not read",
}
"""Functions whose arguments hold arrays, but that are not checked with other contents."""


@pytest.mark.parametrize("contract", contracts().values(), ids=contracts())
def test_contracts_say_whether_they_have_arrays(contract: Contract) -> None:
    """A contract whose calls hold arrays is checked in any memory, or there is a reason."""
    calls = drawn(contract.calls(MINIMAL), 20, contract.function)
    has_arrays = any(True for call in calls for _ in arrays_in(call.arguments, "arguments"))
    assert contract.has_arrays == (has_arrays and contract.function not in MAY_LACK_ANOTHER_BATCH)


def test_coverage_goals_of_memory() -> None:
    """A call reaches the layouts that its arrays can have, and another batch."""
    contract = contracts()["get_dcp_local_seq_lens"]
    check = in_any_memory(contract)
    assert {OTHER_BATCH, *LAYOUTS} == set(check.goals)
    examples = drawn(check.examples(MINIMAL), 20, "memory")
    assert set(check.goals) == {goal for example in examples for goal in check.goals_of(example)}


def test_each_line_is_looked_at_once() -> None:
    """Lines of the package are looked at before they run, in a loop the first time."""
    packages, seen = {__name__.partition(".")[0]}, []

    def count() -> int:
        total = 0
        for number in range(3):
            total += number
        return total

    assert 3 == at_each_line(count, lambda: seen.append(1), packages)
    assert 4 == len(seen)
    at_each_line(count, lambda: seen.append(1), {"fast"})
    assert 4 == len(seen)


def test_a_lock_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """An implementation that lets one thread in at a time is right, and does not hang."""
    original: Any = fast.get_dcp_local_seq_lens
    lock = threading.Lock()

    def get_dcp_local_seq_lens(*args: object, **kwargs: object) -> object:
        with lock:
            return original(*args, **kwargs)

    monkeypatch.setattr(fast, "get_dcp_local_seq_lens", get_dcp_local_seq_lens)
    check_interleaved_calls(known_lengths(), known_lengths(), HOST)


def test_a_call_that_waited_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the other thread answers after it has waited for a lock is compared too."""
    original: Any = fast.get_dcp_local_seq_lens
    lock = threading.Lock()

    def get_dcp_local_seq_lens(*args: object, **kwargs: object) -> object:
        is_late = lock.locked()
        with lock:
            return original(*args, **kwargs) + is_late

    monkeypatch.setattr(fast, "get_dcp_local_seq_lens", get_dcp_local_seq_lens)
    with pytest.raises(Mismatch, match="on host, in another thread"):
        check_interleaved_calls(known_lengths(), known_lengths(), HOST)


def test_a_failure_in_both_threads_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that raises while another is made is reported under that condition."""

    def get_dcp_local_seq_lens(*_: object, **__: object) -> object:
        raise KeyError("lengths")

    monkeypatch.setattr(fast, "get_dcp_local_seq_lens", get_dcp_local_seq_lens)
    for check in (check_interleaved_calls, check_parallel_calls):
        with pytest.raises(Mismatch, match=r"while another thread .*: another outcome"):
            check(known_lengths(), known_lengths(), HOST)


def test_what_a_call_changes_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that returns the right answer, but leaves the batch unchanged, is wrong."""
    contract = contracts()["reorder_batch_to_split_decodes_and_prefills"]
    calls = drawn(contract.calls(MINIMAL), 50, contract.function)
    answers = [KnownAnswer.of(contract, call) for call in calls]
    expected = next(one for one in answers if one.answer)
    monkeypatch.setattr(fast, contract.function, lambda *_, **__: True)
    with pytest.raises(Mismatch, match="on host, in a test"):
        expected.check(expected.invocation(HOST), "in a test")


def test_immutable_objects_may_be_kept() -> None:
    """Classes, functions, members of enums and immutable objects are not looked for later."""
    mutable = reference.CacheConfig()
    value = [Verdict.VALUE, int, drawn, reference.KVCacheSpec(16), mutable, torch.zeros(1)]
    assert ["value[4]", "value[5]"] == [path for path, _ in _watched(value, "value")]


def test_the_report_names_the_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report says under which condition the answer is another one."""

    def get_dcp_local_seq_lens(seq_lens: torch.Tensor, dcp_size: int) -> torch.Tensor:
        found = reference.get_dcp_local_seq_lens(seq_lens.numpy(), dcp_size)
        return torch.zeros(found.shape, dtype=torch.int32).copy_(torch.from_numpy(found))

    monkeypatch.setattr(fast, "get_dcp_local_seq_lens", get_dcp_local_seq_lens)
    with pytest.raises(Mismatch, match="on host, with another default device: another device"):
        check_modes(known_lengths(), HOST)


def test_answers_are_copied() -> None:
    """The expected answer stays as it is when its arguments' memory is used again."""
    starts = np.array([0, 3, 4], np.int32)
    call = Call("reshape_query_for_spec_decode", {"query": np.zeros((2, 1, 1)), "batch_size": 2})
    expected = KnownAnswer.of(contracts()[call.function], call)
    call.arguments["query"][:] = starts[1]
    assert 0 == expected.answer.max()
