"""Modes of torch and NumPy: a call must return the same in each, and must not change them."""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

import numpy as np
import torch

from conformance.conditions.known_answer import KnownAnswer
from conformance.conditions.scenarios import Scenario
from conformance.execution.process_state import (
    ALL_SETTINGS,
    SETTINGS,
    SLOW_SETTINGS,
    read_settings,
    restore_settings,
    unchanged_settings,
)
from conformance.messages.mismatch import Mismatch
from conformance.targets.target import Target, deterministic
from conformance.values.differences import Difference, Verdict
from conformance.values.parts import arrays_in


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Set torch's default dtype inside."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def _deterministic(device: str) -> Iterator[None]:
    """Enable deterministic algorithms; on a GPU, which lacks some, warnings are ignored."""
    with warnings.catch_warnings(), deterministic("error" if device == "cpu" else "warn"):
        if device != "cpu":
            warnings.simplefilter("ignore")
        yield


MODES: Final[Mapping[str, Callable[[str], contextlib.AbstractContextManager[object]]]] = {
    "in torch.inference_mode()": lambda _: torch.inference_mode(),
    "in torch.no_grad()": lambda _: torch.no_grad(),
    "with gradients enabled": lambda _: torch.enable_grad(),
    "with torch.float64 as default dtype": lambda _: default_dtype(torch.float64),
    "with torch.bfloat16 as default dtype": lambda _: default_dtype(torch.bfloat16),
    # `meta` exists on every machine. A tensor created on it by mistake has no data.
    "with another default device": lambda _: torch.device("meta"),
    "with deterministic algorithms": _deterministic,
    "in torch.autocast()": lambda device: torch.autocast(device, torch.bfloat16),
    "with NumPy's errors raised": lambda _: np.errstate(all="raise"),
}
"""Functions that return a mode's context manager for a device type, by names in reports."""

UNCHANGED: Final = "with random states and the environment unchanged"


def mode_scenarios(expected: KnownAnswer, _: KnownAnswer) -> Iterator[Scenario]:
    """Yield each mode, in which a call must return the same, and change no setting."""
    for name in MODES:
        yield Scenario(name, partial(check_mode, expected, name))
    yield Scenario(UNCHANGED, partial(check_unchanged_process, expected))


def check_mode(expected: KnownAnswer, name: str, target: Target) -> None:
    """Raise `Mismatch` if a mode changes an answer, or a call changes the process.

    Args:
        expected: A valid call, with its answer.
        name: The name of the mode.
        target: The target under test.
    """
    __tracebackhide__ = True
    invocation = expected.invocation(target)
    with (
        MODES[name](target.device or "cpu"),
        unchanged_settings(SETTINGS, expected.call, target.name),
    ):
        got = expected.run(invocation, name)
        _check_inference(expected, got, name, target)
    expected.compare(got, invocation, name)


def _check_inference(expected: KnownAnswer, got: object, name: str, target: Target) -> None:
    """Raise `Mismatch` for inference tensors outside of inference mode, from an earlier call."""
    __tracebackhide__ = True
    if torch.is_inference_mode_enabled():
        return
    for path, array in arrays_in(got, "result"):
        if isinstance(array, torch.Tensor) and array.is_inference():
            where = f"{path}.is_inference()"
            difference = Difference(Verdict.IDENTITY, where, None, True, False)
            raise Mismatch(expected.call, target.name, difference, name)


def check_unchanged_process(expected: KnownAnswer, target: Target) -> None:
    """Raise `Mismatch` if a call changes random states, the environment or another setting.

    Args:
        expected: A valid call, with its answer.
        target: The target under test.
    """
    __tracebackhide__ = True
    invocation = expected.invocation(target)
    before = read_settings(SLOW_SETTINGS)
    try:
        torch.rand((), device="cpu")  # so that a call that sets the states changes them
        np.random.random()  # noqa: NPY002  # the global generator
        random.random()  # noqa: S311  # likewise
        with unchanged_settings(ALL_SETTINGS, expected.call, target.name):
            expected.check(invocation, "")
    finally:
        restore_settings(before)
