"""State of the process: what a call must leave as it was, and what must not change its answer."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import torch

from conformance.comparison import Difference, Verdict
from conformance.conditions.known_answer import KnownAnswer
from conformance.report import Mismatch
from conformance.targets import Target, deterministic


def _numpy_random_state() -> tuple[bytes, int]:
    """Return the state of NumPy's global generator, and how much of it has been used."""
    _, state, position, *_ = np.random.get_state()  # noqa: NPY002  # the global one is meant
    return np.asarray(state).tobytes(), int(position)


STATE: Final[Mapping[str, Callable[[], Any]]] = {
    "torch.is_grad_enabled()": torch.is_grad_enabled,
    "torch.is_inference_mode_enabled()": torch.is_inference_mode_enabled,
    "torch.get_default_dtype()": torch.get_default_dtype,
    "torch.get_default_device()": torch.get_default_device,
    "torch.get_num_threads()": torch.get_num_threads,
    "torch.get_deterministic_debug_mode()": torch.get_deterministic_debug_mode,
    "torch.get_rng_state()": lambda: torch.get_rng_state().numpy().tobytes(),
    "numpy.random.get_state()": _numpy_random_state,
    "random.getstate()": random.getstate,
    "numpy.geterr()": np.geterr,
    "numpy.get_printoptions()": np.get_printoptions,
    "warnings.filters": lambda: list(warnings.filters),
    "os.environ": lambda: dict(os.environ),
    "os.getcwd()": os.getcwd,
    "sys.getrecursionlimit()": sys.getrecursionlimit,
    "sys.getswitchinterval()": sys.getswitchinterval,
    "sys.path": lambda: list(sys.path),
    "signal.getsignal(SIGINT)": lambda: signal.getsignal(signal.SIGINT),
    "threading.active_count()": threading.active_count,
}
"""What a call must leave as it was, by what shows it."""


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Set torch's default dtype inside."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


MODES: Final[Mapping[str, Callable[[], contextlib.AbstractContextManager[object]]]] = {
    "in torch.inference_mode()": torch.inference_mode,
    "in torch.no_grad()": torch.no_grad,
    "with gradients enabled": torch.enable_grad,
    "with torch.float64 as default dtype": lambda: default_dtype(torch.float64),
    "with torch.bfloat16 as default dtype": lambda: default_dtype(torch.bfloat16),
    "with another default device": lambda: torch.device("meta"),
    "with deterministic algorithms": lambda: deterministic("error"),
    "with NumPy's errors raised": lambda: np.errstate(all="raise"),
}
"""Modes in which a caller may be, by what a report calls them."""


def check_modes(expected: KnownAnswer, target: Target) -> None:
    """Raise `Mismatch` where a mode of torch or NumPy changes an answer, or a call the mode.

    Args:
        expected: A valid call, with its answer.
        target: What is called.
    """
    __tracebackhide__ = True
    for name, mode in MODES.items():
        invocation = expected.invocation(target)
        with mode():
            _draw_random_numbers()
            before = _state()
            got = expected.run(invocation, name)
            after = _state()
        expected.compare(got, invocation, name)
        for what, value in after.items():
            if value != before[what]:
                difference = Difference(Verdict.VALUE, what, None, value, before[what])
                raise Mismatch(expected.call, target.name, difference, "which changes the process")


def _state() -> dict[str, Any]:
    return {name: read() for name, read in STATE.items()}


def _draw_random_numbers() -> None:
    """Change the state of random generators, so that a call that sets it is seen again."""
    torch.rand((), device="cpu")
    np.random.random()  # noqa: NPY002  # the global generator
    random.random()  # noqa: S311  # likewise
