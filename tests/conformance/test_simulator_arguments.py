"""The simulator's arguments: what a launch takes, and how it is held against a signature."""

from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
import torch

from conformance.simulator import simulate

Array: TypeAlias = npt.NDArray[Any]

cuda: Any = None  # the simulator puts its own in place


def test_tensors_arrays_and_numbers_are_arguments() -> None:
    """Shows torch tensors, also strided, written in place; NumPy and Python scalars; bools."""

    def kernel(x: Array, y: Array, factor: float, flag: bool, shift: int) -> None:
        i = cuda.grid(1)
        if flag:
            y[i] = int(x[i] * factor) + shift

    x = torch.arange(6, dtype=torch.int32)[::2]
    y = torch.zeros((3, 2), dtype=torch.int64)[:, 1]
    simulate(kernel, 3, 1, (x, y, 2.5, True, np.int16(1)))
    assert [1, 6, 11] == y.tolist()
    simulate(kernel, 3, 1, (x.numpy(), y, 2.5, np.bool_(False), 1))
    assert [1, 6, 11] == y.tolist()


@pytest.mark.parametrize("arg", [None, "x", [1], 1j])
def test_other_arguments_are_refused_by_name(arg: object) -> None:
    """Shows that an argument that is neither an array nor a number gets a clear error."""

    def kernel(x: Array) -> None:
        _ = x

    message = f"kernel kernel: argument x: expected an array or a number, got {type(arg).__name__}"
    with pytest.raises(TypeError, match=message):
        simulate(kernel, 1, 1, (arg,))


def test_too_few_and_too_many_arguments_are_refused() -> None:
    """Shows that the number of arguments must be the kernel's."""

    def kernel(x: Array, y: Array) -> None:
        _ = x, y

    for args in ((1,), (1, 2, 3)):
        with pytest.raises(TypeError, match=rf"takes 2 arguments \(x, y\), but got {len(args)}"):
            simulate(kernel, 1, 1, args)


@pytest.mark.parametrize(
    ("signature", "args", "message"),
    [
        (
            "void(int32[::1], int64)",
            (np.zeros(2, np.int64), 1),
            "argument x is int64 of shape (2,)",
        ),
        ("void(int64[::1], int64)", (np.zeros(4, np.int64)[::2], 1), "argument x is int64 of"),
        ("void(int64[:], int32)", (np.zeros(2, np.int64), 2**31), "argument y is 2147483648"),
        ("void(int64[:], int64)", (np.zeros(2, np.int64), 1.5), "argument y is 1.5, but"),
        ("void(int64[:, ::1], int64)", (np.zeros(2, np.int64), 1), "says int64[:, ::1]"),
        ("void(int64, int64)", (np.zeros(2, np.int64), 1), "says int64"),
        ("void(int64[:], int64)", (3, 1), "argument x is 3, but"),
        ("void(int64[:])", (np.zeros(2, np.int64), 1), "has 1 parameters, but got 2 arguments"),
        (["void(int8[:], int8)", "void(int64[:], bool_)"], (np.zeros(2), 1), "says int8[:]; arg"),
    ],
)
def test_arguments_that_do_not_fit_the_signature_are_refused(
    signature: object, args: tuple[object, ...], message: str
) -> None:
    """Shows that a launch is refused for which the kernel was not compiled."""
    kernel = SimpleNamespace(py_func=lambda x, y: None, signature=signature)  # noqa: ARG005  # a kernel
    with pytest.raises(TypeError) as error:
        simulate(kernel, 1, 1, args)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("signature", "args"),
    [
        ("void()", ()),
        ("void(int32[:, ::1], uint8, float64)", (np.zeros((2, 3), np.int32), 255, 1)),
        ("(int64[:, :], boolean, intp)", (np.zeros((4, 3), np.int64)[::2], True, -1)),
        (("void(int8[:])", "void(float32[::1])"), (np.zeros(3, np.float32),)),
        (None, (1,)),
        (object(), (np.zeros(3), 1)),
    ],
)
def test_arguments_that_fit_the_signature_are_taken(
    signature: object, args: tuple[object, ...]
) -> None:
    """Shows signatures of several kinds, one of several, and kernels without a textual one."""
    functions = (lambda: None, lambda _: None, lambda _, __: None, lambda _, __, ___: None)
    simulate(SimpleNamespace(py_func=functions[len(args)], signature=signature), 1, 1, args)


def test_a_signature_with_an_unknown_type_is_refused() -> None:
    """Shows that the check of signatures says what it cannot check."""
    kernel = SimpleNamespace(py_func=lambda _: None, signature="void(CPointer(int32))")
    with pytest.raises(NotImplementedError, match="does not know a parameter of type CPointer"):
        simulate(kernel, 1, 1, (1,))
