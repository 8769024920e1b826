"""Settings of the process that a call must not change, and functions that restore them."""

from __future__ import annotations

import dataclasses
import decimal
import gc
import locale
import logging
import os
import random
import signal
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from conformance.execution.gpu_context import ContextLostError
from conformance.messages.mismatch import Mismatch
from conformance.values.call import Call
from conformance.values.differences import Difference, Verdict

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGFPE, signal.SIGSEGV)

SET_BY_LIBRARIES: Final = frozenset(
    {"CUDA_MODULE_LOADING", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"}
)
"""Environment variables that torch sets when it is first used on a GPU, or first compiles."""

DECIMAL: Final = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")

SMALLEST: Final = float(np.finfo(np.float64).smallest_subnormal)


class Setting(NamedTuple):
    """A setting of the process.

    Attributes:
        read: Returns its value, which compares equal as long as nothing sets it.
        write: Sets a value that was read; None if that is impossible.
    """

    read: Callable[[], Any]
    write: Callable[[Any], object] | None = None


@dataclasses.dataclass(frozen=True)
class _RandomState:
    """The state of a random number generator, which reports show as a checksum."""

    value: Any

    def __repr__(self) -> str:
        return f"state {zlib.crc32(repr(self.value).encode()):08x}"


def _set_default_device(device: torch.device) -> None:
    torch.set_default_device(None if device == torch.device("cpu") else device)


def _write_filters(filters: list[Any]) -> None:
    warnings.resetwarnings()
    warnings.filters[:] = filters  # type: ignore[index]  # a list, though typeshed knows no more


def _write_path(folders: list[str]) -> None:
    sys.path[:] = folders


def _environment() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if name not in SET_BY_LIBRARIES}


def _write_environment(variables: Mapping[str, str]) -> None:
    for name in _environment().keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)


def _decimal_context() -> dict[str, Any]:
    context = decimal.getcontext()
    return {name: getattr(context, name) for name in DECIMAL} | {"traps": dict(context.traps)}


def _write_decimal_context(fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        setattr(decimal.getcontext(), name, value)


def _write_signals(handlers: list[Any]) -> None:
    for number, handler in zip(SIGNALS, handlers, strict=True):
        signal.signal(number, handler)


def _logging() -> tuple[int, int, list[logging.Handler]]:
    return logging.root.level, logging.root.manager.disable, [*logging.root.handlers]


def _write_logging(found: tuple[int, int, list[logging.Handler]]) -> None:
    logging.root.level, logging.root.manager.disable, logging.root.handlers[:] = found


def _torch_random_state() -> _RandomState:
    return _RandomState(torch.get_rng_state().numpy().tobytes())


def _set_torch_random_state(state: _RandomState) -> None:
    torch.set_rng_state(torch.from_numpy(np.frombuffer(state.value, np.uint8).copy()))


def _numpy_random_state() -> _RandomState:
    name, keys, *rest = np.random.get_state()  # noqa: NPY002  # the global generator is meant
    return _RandomState((name, tuple(np.asarray(keys).tolist()), *rest))


def _cuda() -> tuple[int, int]:
    """Return the current device and stream; the initial ones if CUDA is not initialised."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch's
        return 0, 0
    return torch.cuda.current_device(), torch.cuda.current_stream().cuda_stream


SETTINGS: Final[Mapping[str, Setting]] = {
    "torch.is_grad_enabled()": Setting(torch.is_grad_enabled, torch.set_grad_enabled),
    "torch.is_inference_mode_enabled()": Setting(torch.is_inference_mode_enabled),
    "torch.get_default_dtype()": Setting(torch.get_default_dtype, torch.set_default_dtype),
    "torch.get_default_device()": Setting(torch.get_default_device, _set_default_device),
    "torch.get_num_threads()": Setting(torch.get_num_threads, torch.set_num_threads),
    "torch.get_num_interop_threads()": Setting(torch.get_num_interop_threads),
    "torch.get_deterministic_debug_mode()": Setting(
        torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode
    ),
    "torch.get_float32_matmul_precision()": Setting(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
    ),
    "torch.backends.cudnn.allow_tf32": Setting(
        lambda: torch.backends.cudnn.allow_tf32,
        lambda value: setattr(torch.backends.cudnn, "allow_tf32", value),
    ),
    "torch.backends.cudnn.benchmark": Setting(
        lambda: torch.backends.cudnn.benchmark,
        lambda value: setattr(torch.backends.cudnn, "benchmark", value),
    ),
    "torch.is_anomaly_enabled()": Setting(torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    "torch.is_autocast_enabled('cpu')": Setting(
        lambda: torch.is_autocast_enabled("cpu"),
        lambda value: torch.set_autocast_enabled("cpu", value),
    ),
    "torch.set_flush_denormal": Setting(lambda: SMALLEST * 1.0 == 0, torch.set_flush_denormal),
    "torch.cuda's current device and stream": Setting(_cuda),
    "numpy.geterr()": Setting(np.geterr, lambda value: np.seterr(**value)),
    "numpy.get_printoptions()": Setting(
        np.get_printoptions, lambda value: np.set_printoptions(**value)
    ),
    "decimal.getcontext()": Setting(_decimal_context, _write_decimal_context),
    "locale.setlocale(LC_ALL)": Setting(
        lambda: locale.setlocale(locale.LC_ALL),
        lambda value: locale.setlocale(locale.LC_ALL, value),
    ),
    "warnings.filters": Setting(lambda: [*warnings.filters], _write_filters),
    "logging.root": Setting(_logging, _write_logging),
    "os.getcwd()": Setting(os.getcwd, os.chdir),
    "os.sched_getaffinity(0)": Setting(
        lambda: os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None,
        lambda value: os.sched_setaffinity(0, value),
    ),
    "sys.getrecursionlimit()": Setting(sys.getrecursionlimit, sys.setrecursionlimit),
    "sys.getswitchinterval()": Setting(sys.getswitchinterval, sys.setswitchinterval),
    "sys.path": Setting(lambda: [*sys.path], _write_path),
    "sys.gettrace()": Setting(sys.gettrace, sys.settrace),
    "sys.excepthook": Setting(
        lambda: sys.excepthook, lambda value: setattr(sys, "excepthook", value)
    ),
    "gc.isenabled()": Setting(gc.isenabled, lambda value: (gc.disable, gc.enable)[value]()),
    "gc.get_threshold()": Setting(gc.get_threshold, lambda value: gc.set_threshold(*value)),
    "signal handlers": Setting(lambda: [*map(signal.getsignal, SIGNALS)], _write_signals),
}
"""Settings by the expression that shows them; reading all of them takes 30 us."""

SLOW_SETTINGS: Final[Mapping[str, Setting]] = {
    "torch.get_rng_state()": Setting(_torch_random_state, _set_torch_random_state),
    "numpy.random.get_state()": Setting(
        _numpy_random_state,
        lambda state: np.random.set_state(state.value),  # noqa: NPY002  # likewise
    ),
    "random.getstate()": Setting(
        lambda: _RandomState(random.getstate()), lambda state: random.setstate(state.value)
    ),
    "os.environ": Setting(_environment, _write_environment),
}
"""Settings that take another 150 us."""

ALL_SETTINGS: Final = {**SETTINGS, **SLOW_SETTINGS}


def read_settings(settings: Mapping[str, Setting]) -> dict[str, Any]:
    """Return the present values of settings by name."""
    return {name: setting.read() for name, setting in settings.items()}


def restore_settings(values: Mapping[str, Any]) -> Difference | None:
    """Restore the settings that have changed; return the first change."""
    first = None
    for name, before in values.items():
        now = ALL_SETTINGS[name].read()
        if now == before:
            continue
        write = ALL_SETTINGS[name].write
        if write is not None:
            write(before)
        got, expected = _without_common_entries(now, before)
        first = first or Difference(Verdict.CHANGE, name, None, got, expected)
    return first


def _without_common_entries(now: Any, before: Any) -> tuple[Any, Any]:
    """Return two values; dicts and lists without the entries that both have.

    >>> _without_common_entries({"a": 1, "b": 2}, {"a": 1, "b": 3})
    ({'b': 2}, {'b': 3})
    """
    pairs = ((now, before), (before, now))
    if isinstance(now, dict):
        now, before = ({k: v for k, v in a.items() if b.get(k) != v} for a, b in pairs)
    elif isinstance(now, list):
        now, before = ([entry for entry in a if entry not in b] for a, b in pairs)
    return now, before


@contextmanager
def unchanged_settings(settings: Mapping[str, Setting], call: Call, target: str) -> Iterator[None]:
    """Restore settings after the block; raise `Mismatch` if one changed and nothing was raised.

    Args:
        settings: The settings to check.
        call: The call in the block, for the report.
        target: The name of the target.
    """
    __tracebackhide__ = True
    before = read_settings(settings)
    try:
        yield
    except ContextLostError:  # every CUDA call fails from now on
        raise
    except BaseException:
        restore_settings(before)
        raise
    changed = restore_settings(before)
    if changed is not None:
        raise Mismatch(call, target, changed, title="changes a setting of the process")
