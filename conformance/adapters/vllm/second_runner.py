"""Functions of vLLM's second runner, which launch kernels of Triton.

On a GPU they are called as they are. Without one vLLM disables Triton, so copies of their modules
are loaded, whose kernels Triton's interpreter runs: one program after the other, in NumPy.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import os
import sys
import threading
import types
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from conformance.adapters.base import Unsupported

_NAMES: Final = {
    "v1.worker.gpu.input_batch": (
        "combine_sampled_and_draft_tokens",
        "expand_idx_mapping",
        "get_num_sampled_and_rejected",
        "post_update",
        "post_update_num_computed_tokens",
        "prepare_pos_seq_lens",
        "prepare_prefill_inputs",
    ),
    "v1.worker.gpu.cp_utils": ("prepare_dcp_local_seq_lens",),
}

PLACES: Final = {name: place for place, names in _NAMES.items() for name in names}
"""The module below `vllm` of each function."""


def _has_dummies(idx_mapping: Any) -> bool:
    return bool((idx_mapping < 0).any())


def _is_one(size: int) -> bool:
    return size == 1


_WITHOUT_DUMMIES: Final = (
    "combine_sampled_and_draft_tokens",
    "get_num_sampled_and_rejected",
    "post_update_num_computed_tokens",
    "prepare_pos_seq_lens",
    "prepare_prefill_inputs",
)

UNSUPPORTED: Final[Mapping[str, Mapping[str, Callable[[Any], bool]]]] = {
    **{name: {"idx_mapping": _has_dummies} for name in _WITHOUT_DUMMIES},
    "prepare_dcp_local_seq_lens": {"dcp_size": _is_one},
}
"""Dummy rows, for which functions of vLLM read or write the state at -1; and one rank."""

_LOCK: Final = threading.Lock()
"""The interpreter changes modules while it runs."""

MOST_ROWS: Final = 20
"""A program of the interpreter takes about a millisecond, and there is one for each row."""


def prepare() -> None:
    """Let Triton interpret kernels if there is no GPU; before it is imported."""
    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")


def find(name: str) -> Callable[..., Any]:
    """Return a function; AttributeError if the installed vLLM has none of this name."""
    try:
        module = importlib.import_module(f"vllm.{PLACES[name]}")
        function: Callable[..., Any] = getattr(module, name)
    except (ImportError, AttributeError):
        raise AttributeError(f"vLLM has no {name}") from None
    has_triton = importlib.import_module("vllm.triton_utils").HAS_TRITON
    return _wrapped(function, None if has_triton else module)


def _wrapped(function: Callable[..., Any], module: types.ModuleType | None) -> Callable[..., Any]:
    """Return a function that is called with contiguous tensors; with a module, interpreted.

    The kernels read vectors without their strides.
    """
    parameters = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(parameters, args, strict=False)) | kwargs
        given = {name: _contiguous(value) for name, value in given.items()}
        if function.__name__ == "combine_sampled_and_draft_tokens":
            _check_logits(len(given["idx_mapping"]), **given)
        if module is None:
            return function(**given)
        rows = given.get("idx_mapping", ())
        if len(rows) > MOST_ROWS:
            raise Unsupported(f"more than {MOST_ROWS} rows, by Triton's interpreter")
        return _interpret(getattr(_interpreted(module), function.__name__), given)

    return call


def _check_logits(
    num_reqs: int, cu_num_logits: torch.Tensor, num_new_sampled_tokens: int = 1, **_: Any
) -> None:
    """Raise `Unsupported` for a row without logits: its sampled token is written behind the row."""
    if num_new_sampled_tokens and bool((cu_num_logits[: num_reqs + 1].diff() == 0).any()):
        raise Unsupported("rows without logits, which vLLM's runner never makes")


def _contiguous(value: Any) -> Any:
    return value.contiguous().resolve_neg() if isinstance(value, torch.Tensor) else value


def _interpret(function: Callable[..., Any], given: dict[str, Any]) -> Any:
    refused = importlib.import_module("triton.runtime.errors").InterpreterError
    try:
        with _LOCK:
            return function(**given)
    except refused as error:
        raise Unsupported(f"what Triton's interpreter refuses: {error.__cause__}") from error


@functools.cache
def _interpreted(module: types.ModuleType) -> types.ModuleType:
    """Return a copy of a module whose kernels are Triton's, not vLLM's placeholders."""
    try:
        triton = importlib.import_module("triton")
        language = importlib.import_module("triton.language")
    except ImportError:
        raise Unsupported("kernels of Triton, which is not installed") from None
    place = "vllm.triton_utils"
    before = sys.modules[place]
    stand_in = types.ModuleType(place)
    vars(stand_in).update(vars(before), triton=triton, tl=language)
    spec = importlib.util.find_spec(module.__name__)
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    sys.modules[place] = stand_in
    try:
        spec.loader.exec_module(copy)
    finally:
        sys.modules[place] = before
    return copy
