"""Calls with other kinds of tensors: what must be refused, or must not change the result."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

import fast
from conformance.arrays.guard_bands import guarded
from conformance.checks.registry import contracts
from conformance.checks.tensor_kind_checks import OtherTensor, refuses_other_tensors
from conformance.contracts.contract import Contract
from conformance.coverage.presets import MINIMAL
from conformance.execution.invocations import Invocation
from conformance.generation.drawing import drawn
from conformance.generation.profiles import PROFILES
from conformance.messages.mismatch import Mismatch
from conformance.targets.implementations import Implementation
from conformance.targets.target import TARGETS, Target
from conformance.targets.tensor_kinds import (
    OfKind,
    PlainSubclass,
)
from conformance.values.call import Call
from conformance.values.parts import walk

FUNCTION = "get_dcp_local_seq_lens"
CALL = Call(FUNCTION, {"seq_lens": guarded([3, 5], np.int32), "dcp_size": 2, "dcp_rank": 0})
CONTRACT = Contract(FUNCTION, lambda _: st.just(CALL), {}, has_arrays=True)


def run(function: Callable[..., Any]) -> None:
    """Run the check on an implementation that consists of one function."""
    module = ModuleType("toy")
    setattr(module, FUNCTION, function)
    target = Target("toy", Implementation("toy", module))
    refuses_other_tensors(CONTRACT).bind(target, PROFILES["default"], "minimal", shrink=False)()


def test_fast_passes() -> None:
    """Functions that refuse other kinds by name, or accept ordinary ones, are not reported."""
    run(fast.get_dcp_local_seq_lens)


def careless(seq_lens: torch.Tensor, **others: Any) -> torch.Tensor:  # noqa: ANN401  # two ints
    """Let torch refuse what it cannot index."""
    return fast.get_dcp_local_seq_lens(seq_lens[:].contiguous(), **others)


def nameless(seq_lens: torch.Tensor, **others: Any) -> torch.Tensor:  # noqa: ANN401  # two ints
    """Refuse other classes without saying which argument it is."""
    if seq_lens.layout is not torch.strided:
        raise TypeError("a dense tensor is needed")
    return fast.get_dcp_local_seq_lens(seq_lens, **others)


def signless(seq_lens: torch.Tensor, **others: Any) -> torch.Tensor:  # noqa: ANN401  # two ints
    """Read the memory of a lazy negation, which holds the other sign."""
    has_memory = isinstance(seq_lens, torch.Tensor) and seq_lens.layout is torch.strided
    has_memory = has_memory and not seq_lens.is_nested
    is_negation = has_memory and seq_lens.is_neg() and seq_lens.untyped_storage().nbytes() > 0
    lens = torch._neg_view(seq_lens).abs() + 2 if is_negation else seq_lens
    return fast.get_dcp_local_seq_lens(lens, **others)


def writing(seq_lens: torch.Tensor, **others: Any) -> torch.Tensor:  # noqa: ANN401  # two ints
    """Write to the lengths before they are refused."""
    if type(seq_lens) is PlainSubclass:
        seq_lens[0] = 7
        raise TypeError("seq_lens is of a subclass")
    return fast.get_dcp_local_seq_lens(seq_lens, **others)


def overwriting(seq_lens: torch.Tensor, **others: Any) -> torch.Tensor:  # noqa: ANN401  # two ints
    """Write to lengths that are not contiguous."""
    result = fast.get_dcp_local_seq_lens(seq_lens, **others)
    if not seq_lens.is_contiguous():
        seq_lens[0] = 7
    return result


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (overwriting, "changes an argument"),
        (careless, "should raise TypeError or ValueError naming an argument"),
        (nameless, "a dense tensor is needed"),
        (signless, "neg view"),
        (writing, "changes an argument"),
    ],
)
def test_what_is_reported(function: Callable[..., Any], message: str) -> None:
    """Exceptions of torch, exceptions without a name, wrong results and changed arguments are."""
    with pytest.raises(Mismatch, match=message):
        run(function)


@pytest.mark.parametrize("is_everywhere", [True, False])
def test_every_array_of_a_call_is_converted(*, is_everywhere: bool) -> None:
    """No array that is to be of another kind is in a place where no tensor is made of it."""
    for function, contract in contracts().items():
        if not (contract.has_arrays or contract.has_fixed_arrays):
            continue
        num_arrays = 0
        for drawn_call in drawn(contract.calls(MINIMAL), 4, function):
            num_arrays = len(OtherTensor(drawn_call, 0, 0, is_everywhere, checked=False).arrays)
            for place in range(num_arrays):
                example = OtherTensor(drawn_call, place, 0, is_everywhere, checked=False)
                call = next(call for call, other in example.calls() if other.kind == "list")
                made = Invocation(TARGETS["host"], call)
                parts = [part for _, part in walk([made.arguments, made.hints], "")]
                assert not any(isinstance(part, OfKind) for part in parts), function
                assert sum(isinstance(part, list) for part in parts), function
        assert num_arrays, function


def test_a_tensor_is_replaced_in_one_place_or_in_all() -> None:
    """A tensor that occurs twice is of another kind in both places, or in one of them."""
    lens = np.ones(2, np.int32)
    call = Call("f", {"seq_lens": lens, "seq_lens_cpu": lens})
    kinds = []
    for is_everywhere in (True, False):
        replaced, _ = next(OtherTensor(call, 1, 0, is_everywhere, checked=False).calls())
        kinds.append([isinstance(value, OfKind) for value in replaced.arguments.values()])
    assert [[True, True], [False, True]] == kinds
