"""Settings of the process that a call must leave as they are."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import numpy as np
import torch

from conformance.harness.story import Difference, Verdict

Setting: TypeAlias = tuple[Callable[[], Any], Callable[[Any], object] | None]
"""How a setting is read, and how it is written; None if it cannot be."""

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGFPE)


def _numpy_state() -> tuple[Any, ...]:
    name, keys, *rest = np.random.get_state()  # noqa: NPY002  # the global generator is meant
    return name, np.asarray(keys).tobytes(), *rest


SETTINGS: Final[Mapping[str, Setting]] = {
    "torch.is_grad_enabled()": (torch.is_grad_enabled, torch.set_grad_enabled),
    "torch.is_inference_mode_enabled()": (torch.is_inference_mode_enabled, None),
    "torch.get_default_dtype()": (torch.get_default_dtype, torch.set_default_dtype),
    "torch.get_default_device()": (
        lambda: str(torch.get_default_device()),
        lambda name: torch.set_default_device(None if name == "cpu" else name),
    ),
    "torch.get_num_threads()": (torch.get_num_threads, torch.set_num_threads),
    "torch.get_deterministic_debug_mode()": (
        torch.get_deterministic_debug_mode,
        torch.set_deterministic_debug_mode,
    ),
    "torch.get_float32_matmul_precision()": (
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
    ),
    "torch.is_autocast_enabled('cpu')": (
        lambda: torch.is_autocast_enabled("cpu"),
        lambda enabled: torch.set_autocast_enabled("cpu", enabled),
    ),
    "flush_denormal": (
        lambda: float(np.finfo(np.float64).smallest_subnormal) * 1.0 == 0,
        torch.set_flush_denormal,
    ),
    "np.geterr()": (np.geterr, lambda errors: np.seterr(**errors)),
    "np.get_printoptions()": (np.get_printoptions, lambda value: np.set_printoptions(**value)),
    "warnings.filters": (lambda: [*warnings.filters], None),
    "os.getcwd()": (os.getcwd, os.chdir),
    "sys.getrecursionlimit()": (sys.getrecursionlimit, sys.setrecursionlimit),
    "sys.getswitchinterval()": (sys.getswitchinterval, sys.setswitchinterval),
    "len(sys.path)": (lambda: len(sys.path), None),
    "sys.gettrace()": (sys.gettrace, sys.settrace),
    "gc.isenabled()": (gc.isenabled, lambda enabled: (gc.disable, gc.enable)[enabled]()),
    "gc.get_threshold()": (gc.get_threshold, lambda value: gc.set_threshold(*value)),
    "signal handlers": (
        lambda: [*map(signal.getsignal, SIGNALS)],
        lambda handlers: [signal.signal(*pair) for pair in zip(SIGNALS, handlers, strict=True)],
    ),
    "random.getstate()": (lambda: hash(random.getstate()), None),
    "np.random.get_state()": (_numpy_state, None),
    "torch.get_rng_state()": (lambda: torch.get_rng_state().numpy().tobytes(), None),
    "len(os.environ)": (lambda: len(os.environ), None),
}
"""By the expressions that show them."""

SLOW: Final = frozenset(
    {"random.getstate()", "np.random.get_state()", "torch.get_rng_state()", "warnings.filters"}
)
"""Those that take more than a few microseconds: they are read around a story, not a call."""


@contextmanager
def unchanged(*, slow: bool = False) -> Iterator[list[Difference]]:
    """Restore the settings after the block, and append the first change to the list."""
    names = [name for name in SETTINGS if (name in SLOW) == slow]
    before = {name: SETTINGS[name][0]() for name in names}
    found: list[Difference] = []
    try:
        yield found
    finally:
        for name, old in before.items():
            read, write = SETTINGS[name]
            now = read()
            if now != old:
                if write is not None:
                    write(old)
                got, expected = ("another state", "as before") if name in SLOW else (now, old)
                kind = "changes the process"
                found.append(Difference(name, got, expected, kind, Verdict.ROBUSTNESS))
