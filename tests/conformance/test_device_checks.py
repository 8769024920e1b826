"""Tensors on different devices: a target that does not check for them is reported."""

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
from conformance.checks.device_checks import refuses_wrong_device
from conformance.contracts.contract import Contract
from conformance.coverage.goals import COVERAGE
from conformance.generation.profiles import PROFILES
from conformance.messages.mismatch import Mismatch
from conformance.targets.implementations import Implementation
from conformance.targets.target import Target
from conformance.values.call import Call

FUNCTION = "compute_causal_conv1d_metadata"


def _calls(path: str, *, is_hinted: bool) -> Contract:
    starts = {"query_start_loc_p": guarded([0, 3], np.int32)}
    hints = {"query_start_loc_p_cpu": guarded([0, 3], np.int32)} if is_hinted else {}
    call = Call(FUNCTION, dict(starts), None, dict(hints))
    return Contract(FUNCTION, lambda _: st.just(call), {}, on_device=(path,))


def _run(function: Callable[..., Any], path: str, *, is_hinted: bool = True) -> None:
    module = ModuleType("toy")
    setattr(module, FUNCTION, function)
    check = refuses_wrong_device(_calls(path, is_hinted=is_hinted))
    check.bind(
        Target("toy", Implementation("toy", module)), PROFILES["dev"], "minimal", shrink=False
    )()


def _careless(
    query_start_loc_p: torch.Tensor, *, query_start_loc_p_cpu: torch.Tensor | None = None
) -> object:
    """Read the starts, and ignore their copy."""
    del query_start_loc_p_cpu
    return fast.compute_causal_conv1d_metadata(query_start_loc_p)


def test_a_refusal_by_name_passes() -> None:
    """A target that refuses by name passes, and the tensor on another device is counted."""
    before = COVERAGE.reached[FUNCTION, "on another device: query_start_loc_p_cpu"]
    _run(fast.compute_causal_conv1d_metadata, "query_start_loc_p_cpu")
    assert before < COVERAGE.reached[FUNCTION, "on another device: query_start_loc_p_cpu"]


def test_an_answer_fails() -> None:
    """A target that answers is reported, with the tensor and its device."""
    with pytest.raises(Mismatch) as caught:
        _run(_careless, "query_start_loc_p_cpu")
    got, expected = " ".join(str(caught.value).split()).split(" but should ")
    assert got.endswith("the call returned a result")
    assert expected.startswith(
        "raise ValueError naming query_start_loc_p_cpu"
        " (query_start_loc_p_cpu is on the device 'meta')"
    )


def test_another_error_is_no_refusal() -> None:
    """An error of torch does not name the argument."""
    with pytest.raises(Mismatch, match="the call raised TypeError"):
        _run(lambda query_start_loc_p: query_start_loc_p.numpy(), "query_start_loc_p")


@pytest.mark.parametrize("is_hinted", [True, False])
def test_absent_keywords_are_not_passed(*, is_hinted: bool) -> None:
    """A target without the keyword, and a call without the hint, are left alone."""
    _run(lambda query_start_loc_p: query_start_loc_p, "query_start_loc_p_cpu", is_hinted=is_hinted)
