"""Conditions that must not change a function's result; the catalogue has bugs for them."""

from __future__ import annotations

import copy
import dataclasses
import decimal
import gc
import itertools
import os
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

import fast
import reference
from conformance.adapters.deviation import Deviation
from conformance.checks.contract_checks import checks_of
from conformance.checks.registry import contracts
from conformance.conditions import sequences
from conformance.conditions.condition_checks import CONDITIONS, condition_checks
from conformance.conditions.interference import most_different
from conformance.conditions.interleaving import (
    check_interleaved_calls,
    check_parallel_calls,
    parallel_scenarios,
    thread_scenarios,
)
from conformance.conditions.known_answer import KnownAnswer
from conformance.conditions.layouts import LAYOUTS, layout_scenarios
from conformance.conditions.lifetimes import _watched, lifetime_scenarios
from conformance.conditions.modes import MODES, UNCHANGED, mode_scenarios
from conformance.conditions.scenarios import Scenarios
from conformance.conditions.sequences import (
    HELD_AMONG_OTHERS,
    OTHER_BATCH,
    held_scenarios,
    other_batch_scenarios,
    refusal_scenarios,
)
from conformance.contracts.contract import Contract
from conformance.coverage.presets import MINIMAL
from conformance.generation.drawing import drawn
from conformance.generation.profiles import Kind, Profile
from conformance.messages.mismatch import Mismatch
from conformance.targets.target import TARGETS
from conformance.values.call import Call
from conformance.values.differences import Verdict
from conformance.values.parts import arrays_in
from fast._checks import IntArray
from fast.checked_mode import is_checked

HOST = TARGETS["host"]

LENGTHS = Call("get_dcp_local_seq_lens", {"seq_lens": np.array([7, 4], np.int32), "dcp_size": 2})


def known_lengths() -> KnownAnswer:
    """Return the call of local lengths, with its answer."""
    return KnownAnswer.of(contracts()[LENGTHS.function], LENGTHS)


def test_the_other_call_has_arguments_that_matter() -> None:
    """Of several calls, another thread makes the one whose arguments would change the answer."""
    same_answer, other_answer = LENGTHS.replacing(dcp_size=2), LENGTHS.replacing(dcp_size=4)
    others = (same_answer, LENGTHS.replacing(seq_lens=np.array([9], np.int32)), other_answer)
    assert most_different(known_lengths(), others) is other_answer


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


NO_OTHER_TENSORS = {
    "reorder_batch_to_split_decodes_and_prefills": "its input batch is an object of the caller's",
    "is_valid_kv_cache_layout": "takes any value, and returns whether it is a layout",
    "get_per_layer_parameters": "reads only whether there are sinks",
}
"""Contracts whose arrays are not replaced with other kinds of tensors, with the reason."""


@pytest.mark.parametrize("contract", contracts().values(), ids=contracts())
def test_contracts_say_whether_they_have_arrays(contract: Contract) -> None:
    """`has_arrays` and `has_fixed_arrays` are right, except for the listed contracts."""
    calls = drawn(contract.calls(MINIMAL), 20, contract.function)
    has_arrays = any(True for call in calls for _ in arrays_in(call.arguments, "arguments"))
    assert contract.has_arrays == (has_arrays and contract.function not in MAY_LACK_ANOTHER_BATCH)
    is_replaced = contract.has_arrays or contract.has_fixed_arrays
    assert is_replaced == (has_arrays and contract.function not in NO_OTHER_TENSORS)


def test_each_condition_has_a_check_and_is_met() -> None:
    """A contract has a check for each condition, and its examples reach all goals."""
    contract = contracts()[LENGTHS.function]
    checks = dict(condition_checks(contract))
    names = [condition.name for condition in CONDITIONS]
    names.remove("with_alike_names")  # lengths have none
    assert [f"_{name}" for name in names] == [*checks]
    for name, check in checks.items():
        examples = drawn(check.examples(MINIMAL), 20, name)
        reached = {goal for example in examples for goal in check.goals_of(example)}
        assert set(check.goals) <= reached, name


def failures_of(scenarios: Scenarios, call: Call = LENGTHS) -> dict[str, str]:
    """Return the failures of a call's scenarios by their names."""
    expected, found = KnownAnswer.of(contracts()[call.function], call), {}
    for scenario in scenarios(expected, expected):
        try:
            scenario.check(HOST)
        except Mismatch as mismatch:
            found[scenario.name] = f"{mismatch}"
    return found


def patch_lengths(
    monkeypatch: pytest.MonkeyPatch, change: Callable[..., object], *, first_only: bool = False
) -> None:
    """Patch the function to compute correctly, but to do something else with inputs and result."""
    original: Any = fast.get_dcp_local_seq_lens
    is_done: list[bool] = []

    def get_dcp_local_seq_lens(seq_lens: object, *args: object, **kwargs: object) -> object:
        found = None
        try:
            found = original(seq_lens, *args, **kwargs)
        finally:
            if not (first_only and is_done):
                is_done.append(True)
                change(seq_lens, found)
        return found

    monkeypatch.setattr(fast, "get_dcp_local_seq_lens", get_dcp_local_seq_lens)


CHANGES: dict[str, Callable[[], object]] = {
    "torch.get_default_dtype()": lambda: torch.set_default_dtype(torch.float64),
    "torch.is_grad_enabled()": lambda: torch.set_grad_enabled(False),
    "torch.get_float32_matmul_precision()": lambda: torch.set_float32_matmul_precision("high"),
    "torch.get_rng_state()": lambda: torch.manual_seed(1),
    "numpy.geterr()": lambda: np.seterr(all="ignore"),
    "decimal.getcontext()": lambda: setattr(decimal.getcontext(), "prec", 9),
    "warnings.filters": lambda: warnings.simplefilter("ignore"),
    "os.environ": lambda: os.environ.update(KVTWIN_TEST="1"),
    "sys.path": lambda: sys.path.append("/nowhere"),
    "gc.get_threshold()": lambda: gc.set_threshold(10_000),
    "signal handlers": lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
}


KINDS = itertools.cycle([Kind.SAME_ANSWER, Kind.SAME_REFUSAL, Kind.CONDITIONS])


@pytest.mark.parametrize(("name", "kind"), [*zip(CHANGES, KINDS, strict=False)])
def test_changes_of_the_process_are_found_and_undone(
    monkeypatch: pytest.MonkeyPatch, name: str, kind: Kind
) -> None:
    """A change that only the first call of a process makes fails its test, and no later one."""
    patch_lengths(monkeypatch, lambda *_: CHANGES[name](), first_only=True)
    contract = contracts()[LENGTHS.function]
    check = next(check for _, check in checks_of(contract) if check.kind is kind)
    test = check.bind(HOST, Profile("few", 2, 2), "minimal")
    with pytest.raises(Mismatch, match=f": changes a setting of the process\n.*{re.escape(name)}"):
        test()
    test()


def test_each_mode_looks_at_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mode reports a call that changes a setting, and the setting is restored."""
    patch_lengths(monkeypatch, lambda *_: torch.set_default_dtype(torch.float16))
    assert {*MODES, UNCHANGED} == {*failures_of(mode_scenarios)}
    assert torch.float32 == torch.get_default_dtype()


def test_a_deviation_hides_no_other_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenarios after one that deviates as declared are checked too."""

    def get_dcp_local_seq_lens(seq_lens: torch.Tensor, *args: object, **kwargs: object) -> object:
        if torch.is_inference_mode_enabled() or np.geterr()["divide"] == "raise":
            raise RuntimeError(f"{torch.is_inference_mode_enabled()}")
        return original(seq_lens, *args, **kwargs)

    original: Any = fast.get_dcp_local_seq_lens
    monkeypatch.setattr(fast, "get_dcp_local_seq_lens", get_dcp_local_seq_lens)
    implementation = copy.copy(HOST.implementation)
    implementation.deviations = (Deviation(LENGTHS.function, "none there", LENGTHS, "True"),)
    target = dataclasses.replace(HOST, implementation=implementation)
    check = dict(condition_checks(contracts()[LENGTHS.function]))["_in_any_mode"]
    with pytest.raises(Mismatch, match="with NumPy's errors raised"):
        check.bind(target, Profile("few", 2, 2), "minimal")()


def test_what_lives_on_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results in a list, closures over arguments, and exceptions with a traceback are reported."""
    held: list[object] = []
    patch_lengths(monkeypatch, lambda seq_lens, _: held.append(seq_lens.shape))
    assert ["with no memory kept by repeated calls"] == [*failures_of(lifetime_scenarios)]
    monkeypatch.undo()
    patch_lengths(monkeypatch, lambda _, found: held.append(lambda: found))
    assert "with arguments and results freed afterwards" in failures_of(lifetime_scenarios)
    monkeypatch.undo()
    patch_lengths(monkeypatch, lambda *_: held.append(sys.exc_info()[1]))
    assert "with arguments freed after a refusal" in failures_of(lifetime_scenarios)


def test_a_kept_view_of_an_array_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that keeps an empty view of an array argument is reported."""
    contract = contracts()["create_ubatch_slices"]
    call = drawn(contract.calls(MINIMAL), 5, contract.function)[-1]
    original: Any = fast.create_ubatch_slices
    kept: list[object] = []

    def create_ubatch_slices(
        num_scheduled_tokens: IntArray, *args: object, **kwargs: object
    ) -> object:
        kept[:] = [num_scheduled_tokens[:0]]
        return original(num_scheduled_tokens, *args, **kwargs)

    monkeypatch.setattr(fast, "create_ubatch_slices", create_ubatch_slices)
    assert "num_scheduled_tokens = kept alive" in str(failures_of(lifetime_scenarios, call))


def test_a_pool_of_threads_may_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that an implementation starts once are no leak; one for each call is."""
    with ThreadPoolExecutor(8) as pool:
        patch_lengths(monkeypatch, lambda *_: [*pool.map(time.sleep, [0.001] * 8)])
        assert {} == failures_of(lifetime_scenarios)
    end = threading.Event()
    monkeypatch.undo()
    patch_lengths(monkeypatch, lambda *_: threading.Thread(target=end.wait, daemon=True).start())
    assert "with no thread left by each call" in failures_of(lifetime_scenarios)
    end.set()


def test_threads_are_in_the_mode_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls in other threads run both in checked mode and without it."""
    seen: set[tuple[str, bool]] = set()
    patch_lengths(
        monkeypatch, lambda *_: seen.add((threading.current_thread().name[:6], is_checked()))
    )
    for scenarios in (thread_scenarios, parallel_scenarios):
        assert {} == failures_of(scenarios)
    others = {"Thread", threading.current_thread().name[:6]}
    assert {(name, mode) for name in {*others} for mode in (True, False)} <= seen
    assert not is_checked()


def test_a_buffer_that_functions_share_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result in memory that another function writes to is reported."""
    original: Any = fast.get_dcp_local_seq_lens
    buffer = torch.zeros(1 << 16, dtype=torch.int32)
    places = itertools.count(step=8)

    def get_dcp_local_seq_lens(*args: object, **kwargs: object) -> torch.Tensor:
        found = original(*args, **kwargs)
        return buffer[next(places) :][: found.numel()].view(found.shape).copy_(found)

    validate: Any = fast.CommonAttentionMetadata.validate
    monkeypatch.setattr(fast, "get_dcp_local_seq_lens", get_dcp_local_seq_lens)
    monkeypatch.setattr(
        fast.CommonAttentionMetadata,
        "validate",
        lambda *args, **kwargs: (buffer.fill_(-1), validate(*args, **kwargs))[1],
    )
    assert [HELD_AMONG_OTHERS] == [*failures_of(held_scenarios)]


def test_a_function_that_dies_is_not_called_among_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that ends the process or hangs is skipped: its own checks report it."""
    monkeypatch.setattr(sequences, "HANG_SECONDS", 0.5)
    find = sequences._calls_that_return.__wrapped__
    dead = {"gather_mm_placeholders", "split_attn_metadata"}
    all_of_them = {call.function for call in find(HOST)}
    assert dead < all_of_them
    monkeypatch.setattr(fast, "gather_mm_placeholders", lambda *_, **__: os.kill(os.getpid(), 9))
    monkeypatch.setattr(fast, "split_attn_metadata", lambda *_, **__: time.sleep(60))
    assert all_of_them - dead == {call.function for call in find(HOST)}


def test_layouts_leave_out_as_it_is() -> None:
    """An `out` keeps its own layout if `reference` refuses another; none is expanded."""
    out = np.zeros(2, np.int32)
    call = LENGTHS.replacing(dcp_size=1, dcp_rank=0, out=out, seq_lens=np.array([5, 5], np.int32))
    names = [
        one.name
        for one in layout_scenarios(KnownAnswer.of(known_lengths().contract, call), known_lengths())
    ]
    assert [*LAYOUTS] == names
    assert {} == failures_of(layout_scenarios, call)


def test_another_batch_has_another_answer() -> None:
    """Batches whose answers are equal do not count as other batches."""
    contract = contracts()[LENGTHS.function]
    last = LENGTHS.replacing(dcp_size=8, dcp_rank=7)  # has no token of short sequences
    short, long = (
        KnownAnswer.of(contract, last.replacing(seq_lens=np.array(lengths, np.int32)))
        for lengths in ([3, 2], [8, 4])
    )
    for calls, names in (
        ((short, short), []),
        ((long, short), [OTHER_BATCH]),
        ((short, long), [OTHER_BATCH]),
    ):
        assert names == [one.name for one in other_batch_scenarios(*calls)]


def test_values_are_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """State that a refused value leaves behind in checked mode is found in the next answer."""
    state: list[bool] = []
    original: Any = fast.get_dcp_local_seq_lens

    def get_dcp_local_seq_lens(seq_lens: object, *args: object, **kwargs: object) -> object:
        if isinstance(seq_lens, torch.Tensor) and seq_lens.numel() and int(seq_lens.min()) < 0:
            state.append(True)
        found = original(seq_lens, *args, **kwargs)
        return found + 1 if state and state.pop() else found

    monkeypatch.setattr(fast, "get_dcp_local_seq_lens", get_dcp_local_seq_lens)
    assert ["called after values were refused in checked mode"] == [*failures_of(refusal_scenarios)]


def test_memory_is_filled_again_after_an_error() -> None:
    """Arguments get their drawn values back, even after a block that raised."""
    invocation = known_lengths().invocation(HOST)
    with pytest.raises(KeyError), invocation.converter.tracker.idle_step():
        raise KeyError
    invocation.check_unchanged(frozenset())


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
    """The result of a thread that has waited for a lock is compared too."""
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
        with pytest.raises(Mismatch, match=r"while another thread .*: an error"):
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
    """Classes, functions, enum members and immutable objects may be kept by a function."""
    mutable = reference.CacheConfig()
    value = [Verdict.VALUE, int, drawn, reference.KVCacheSpec(16), mutable, torch.zeros(1)]
    assert ["value[4]", "value[5]"] == [path for path, _ in _watched(value, "value")]
