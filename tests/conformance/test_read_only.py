"""Read-only arguments: writes to them, and accesses next to them, are reported."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fast
import reference
from conformance.checks.registry import contracts
from conformance.conditions.known_answer import KnownAnswer
from conformance.conditions.read_only import check_read_only
from conformance.messages.mismatch import Mismatch
from conformance.targets.target import TARGETS
from conformance.values.call import Call

pytestmark = pytest.mark.skipif(
    "sys.platform != 'linux'", reason="a page is made read-only on Linux only"
)

LENGTHS = Call("get_dcp_local_seq_lens", {"seq_lens": np.array([7, 4], np.int32), "dcp_size": 2})


def check_lengths(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[torch.Tensor], object]
) -> None:
    """Check `get_dcp_local_seq_lens` with something that is done to the lengths first."""
    original: Any = fast.get_dcp_local_seq_lens

    def get_dcp_local_seq_lens(seq_lens: torch.Tensor, *args: object, **kwargs: object) -> object:
        change(seq_lens)
        return original(seq_lens, *args, **kwargs)

    monkeypatch.setattr(fast, LENGTHS.function, get_dcp_local_seq_lens)
    expected = KnownAnswer.of(contracts()[LENGTHS.function], LENGTHS)
    check_read_only(expected, TARGETS["host"])


def test_what_is_read_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading every element is allowed."""
    check_lengths(monkeypatch, lambda lens: lens.sum())


def test_a_write_is_noticed_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write of the same values is reported too, and the process goes on."""
    message = r"read-only: changes an argument .*\n *seq_lens = written during the call"
    for _ in range(2):
        with pytest.raises(Mismatch, match=message):
            check_lengths(monkeypatch, lambda lens: lens.copy_(lens.clone()))
        monkeypatch.undo()


def test_a_read_next_to_an_argument_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read past the end of an argument is reported."""

    def read_behind(lens: torch.Tensor) -> None:
        address = lens.data_ptr() + lens.nbytes
        ctypes.c_int.from_address(address).value.bit_length()

    with pytest.raises(Mismatch, match="accessed out of bounds"):
        check_lengths(monkeypatch, read_behind)


def test_a_list_that_is_changed_in_one_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dict is compared at each instruction, not only after each line."""
    original: Any = fast.infer_global_hyperparameters

    def infer_global_hyperparameters(per_layer_params: dict[str, Any]) -> object:
        (per_layer_params.update(x=1), per_layer_params.pop("x"))
        return original(per_layer_params)

    infer_global_hyperparameters.__module__ = __name__
    monkeypatch.setattr(fast, "infer_global_hyperparameters", infer_global_hyperparameters)
    params = {"layers.0": reference.PerLayerParameters(-1, None, 1.0)}
    call = Call("infer_global_hyperparameters", {"per_layer_params": params})
    expected = KnownAnswer.of(contracts()[call.function], call)
    with pytest.raises(Mismatch, match=r"list\(per_layer_params\)"):
        check_read_only(expected, TARGETS["host"])
