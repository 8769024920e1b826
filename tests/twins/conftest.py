"""Fixtures for tests of both twins: each test runs with `reference` and with `fast`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

import fast
import reference
from conformance.harness.contract import Contract
from conformance.harness.memory import Memory
from conformance.harness.objects import Twin as Maker
from conformance.harness.story import Circumstances
from conformance.harness.targets import Target
from conformance.harness.values import Drawn
from tests.refusals import refuses
from tests.twins.arrays import batch_fields

PLAIN = Contract(function="a test", calls=st.nothing())
CONVERTED = (np.ndarray, np.dtype, type, list, tuple, dict, SimpleNamespace, Drawn)


class Converted(Memory):
    """Memory that takes NumPy's scalar types for dtypes, as `reference` does."""

    def _convert(self, value: Any, name: str) -> Any:
        is_dtype = isinstance(value, type) and issubclass(value, np.generic)
        return super()._convert(np.dtype(value) if is_dtype else value, name)


class Twin:
    """One twin, with conversions to its kind of array for tests.

    Its attributes are the package's: `twin.compute_slot_mapping` is `reference`'s or `fast`'s.

    Attributes:
        lib: The package.
    """

    def __init__(self, lib: ModuleType) -> None:
        self.lib = lib
        target = None if lib is reference else Target("host")
        self._maker = Maker(target)
        self._memory = target and Converted(target, PLAIN, Circumstances())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.lib, name)

    def convert(self, value: Any, name: str = "") -> Any:
        """Return a value with this twin's arrays, dtypes and objects.

        Args:
            value: A value with NumPy's arrays and dtypes and with objects of `reference`; an object
                that is converted twice gives one result.
            name: The name of the argument: a few are NumPy arrays in both twins.
        """
        is_known = isinstance(value, CONVERTED) or type(value).__module__.startswith("reference.")
        if self._memory is not None and is_known:
            value = self._memory.convert(value, name)
        return self._maker.make(value)

    def convert_all(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return arguments by name, with each of them converted."""
        return {name: self.convert(value, name) for name, value in arguments.items()}

    def array(self, values: Any, dtype: str) -> Any:
        """Return an array, or a tensor, of values and the name of a dtype."""
        return self.convert(np.array(values, dtype=dtype))

    def int32(self, *values: int) -> Any:
        """Return an int32 vector."""
        return self.array(values, "int32")

    def int64(self, *values: int) -> Any:
        """Return an int64 vector."""
        return self.array(values, "int64")

    def dtype(self, name: str) -> Any:
        """Return a dtype by its name."""
        return self.array([], name).dtype

    def shares_memory(self, one: Any, other: Any) -> bool:
        """Return whether two arrays, or two tensors, have an element in common."""
        return np.shares_memory(np.asarray(one), np.asarray(other))

    def checked(self) -> contextlib.AbstractContextManager[None]:
        """Return a context manager of checked mode in `fast`; `reference` always checks."""
        return fast.checks(True) if self.lib is fast else contextlib.nullcontext()

    @contextlib.contextmanager
    def refuses(self, message: str) -> Iterator[None]:
        """Expect an exception; `fast` runs in checked mode.

        Args:
            message: Its class and text, as in the last line of a traceback.
        """
        with self.checked(), refuses(message):
            yield


@pytest.fixture(params=["reference", "fast"])
def twin(request: pytest.FixtureRequest) -> Iterator[Twin]:
    """Yield each twin."""
    if request.param == "reference":
        yield Twin(reference)
        return
    torch.set_num_threads(1)
    with fast.checks(enabled=False):
        yield Twin(fast)


@pytest.fixture
def make_batch(twin: Twin) -> Callable[..., Any]:
    """Return a function that makes a batch with the fields of `batch_fields`."""

    def make(
        query_lens: list[int],
        computed: list[int],
        *,
        block_size: int = 2,
        padding_tokens: int = 0,
        **changes: Any,
    ) -> Any:
        fields = batch_fields(query_lens, computed, block_size, padding_tokens)
        return twin.CommonAttentionMetadata(**twin.convert_all(fields | changes))

    return make
