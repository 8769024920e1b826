"""The wording of errors: types, kinds of arrays, and the checks that compare all texts.

A wrong type, dtype or number of axes, and an int out of range, are refused in the same words for
every parameter: these words are here and in `test_context_parallel`. The conformance run breaks
each parameter in these ways. Other modules have the words of what is particular to a function.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conformance.checks.contract_checks import checks_in
from conformance.generation.profiles import Kind
from conformance.targets.target import TARGETS

import conformance
import fast
import reference
from conformance.adapters.implementations import is_of_fast


@pytest.mark.parametrize(
    ("check", "value", "message"),
    [
        ("check_int", True, "TypeError: x must be an int, got True of bool"),
        ("check_int", 2.0, "TypeError: x must be an int, got 2.0 of float"),
        ("check_int", (1,), "TypeError: x must be an int, got tuple"),
        ("check_int", None, "TypeError: x must be an int, got None of NoneType"),
        ("check_bool", 1, "TypeError: x must be a bool, got 1 of int"),
        ("check_bool", None, "TypeError: x must be a bool, got None of NoneType"),
        ("check_list", (1,), "TypeError: x must be a list, got tuple"),
        ("check_list", "ab", "TypeError: x must be a list, got str"),
        ("check_list", np.zeros(2), "TypeError: x must be a list, got array"),
        ("check_int", np.zeros(2), "TypeError: x must be an int, got array"),
        ("check_int", object(), "TypeError: x must be an int, got object of object"),
        ("check_int", np.dtype("int8"), "TypeError: x must be an int, got dtype int8"),
        ("check_dtype", "int8", "TypeError: x must be a supported dtype, got 'int8' of str"),
        ("check_dtype", None, "TypeError: x must be a supported dtype, got None of NoneType"),
    ],
)
def test_texts_of_types(twin: Any, check: str, value: object, message: str) -> None:
    """A value of a wrong type is refused in these words, whatever the argument."""
    with twin.refuses(message):
        getattr(twin.lib._checks, check)("x", twin.convert(value))


def test_the_other_kind_of_array_is_distinguished() -> None:
    """If an array is passed for a tensor, or the reverse, the message contains both types."""
    with pytest.raises(TypeError, match=r"^seq_lens must be a NumPy array, got Tensor$"):
        reference.get_dcp_local_seq_lens(torch.tensor([1], dtype=torch.int32))  # type: ignore[arg-type]  # the point
    with pytest.raises(TypeError, match=r"^seq_lens must be a torch tensor, got ndarray$"):
        fast.get_dcp_local_seq_lens(np.array([1], np.int32))  # type: ignore[arg-type]  # the point


def test_the_run_compares_full_texts_of_fast() -> None:
    """Every check of refusals tests a function of `fast` itself, whose text must be equal."""
    folder = Path(conformance.__file__).parent
    modules = [
        importlib.import_module(f"conformance.{path.stem}") for path in folder.glob("test_*.py")
    ]
    checked = {
        check.function
        for module in modules
        for _, check in checks_in(vars(module))
        if check.kind is Kind.SAME_REFUSAL
    }
    assert len(checked) > 50
    others = {name for name in checked if not is_of_fast(TARGETS["host"].lookup(name))}
    assert set() == others
