"""The arguments of a launch: converted for the kernel, and checked against its signature."""

import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from conformance.simulator.history import History
from conformance.simulator.memory import CheckedArray, Clock
from conformance.simulator.scalars import CASTS, Number, as_number

_PARAMETER = re.compile(r"(?P<type>\w+)(?:\[(?P<axes>[:1, ]+)\])?")
_NUMBA_NAMES = {
    "boolean": "bool",
    "bool_": "bool",
    "b1": "bool",
    "intp": "int64",
    "uintp": "uint64",
}


def make_arguments(
    names: Sequence[str], args: Sequence[object], clock: Clock
) -> list[CheckedArray | Number]:
    """Convert the arguments to the arrays and numbers of a simulated kernel.

    Args:
        names: The kernel's parameters.
        args: NumPy arrays, torch tensors on the CPU (anything with `numpy()`), or numbers.
        clock: The clock of the launch.

    Raises:
        NotImplementedError: Two arrays overlap and have elements of different sizes, or an array
            has a dtype that the simulator lacks.
        TypeError: There are too few or too many, or one is neither an array nor a number.
    """
    if len(names) != len(args):
        raise TypeError(f"takes {len(names)} arguments ({', '.join(names)}), but got {len(args)}")
    history = History()  # one for all, since arrays may overlap
    arrays: dict[str, npt.NDArray[Any]] = {}
    made: list[CheckedArray | Number] = []
    for name, arg in zip(names, args, strict=True):
        array = arg if isinstance(arg, np.ndarray) or not hasattr(arg, "numpy") else arg.numpy()
        if isinstance(array, np.ndarray):
            arrays[name] = array
            made.append(CheckedArray(name, array, history, clock))
            continue
        try:
            made.append(as_number(arg))
        except TypeError as error:
            raise TypeError(f"argument {name}: {error}") from None
    for (one, first), (other, second) in itertools.combinations(arrays.items(), 2):
        if first.itemsize != second.itemsize and np.may_share_memory(first, second):
            raise NotImplementedError(
                f"arrays {one} ({first.dtype}) and {other} ({second.dtype}) overlap: races "
                "between elements of different sizes are not simulated"
            )
    return made


def check_signature(
    signature: object, names: Sequence[str], args: Sequence[CheckedArray | Number]
) -> None:
    """Check arguments against the types for which a kernel is compiled.

    A launch with raw pointers checks no types: a GPU would read an int64 tensor as garbage if the
    kernel was compiled for int32.

    Args:
        signature: A string such as `void(int32[::1], int64)`, or a sequence of them; anything else
            is not checked.
        names: The kernel's parameters.
        args: The converted arguments.

    Raises:
        NotImplementedError: A signature has an unknown type.
        TypeError: The arguments fit no signature.
    """
    if isinstance(signature, str):
        signature = [signature]
    if not isinstance(signature, Sequence) or not all(isinstance(each, str) for each in signature):
        return
    mismatches = [_mismatch(each, names, args) for each in signature]
    if all(mismatches):
        raise TypeError("; ".join(map(str, mismatches)))


def _mismatch(
    signature: str, names: Sequence[str], args: Sequence[CheckedArray | Number]
) -> str | None:
    """Describe how the arguments do not fit a signature; None if they fit."""
    inside = signature[signature.index("(") + 1 : signature.rindex(")")]
    parameters = [each.strip() for each in re.split(r",(?![^\[]*\])", inside)] if inside else []
    if len(parameters) != len(args):
        return f"{signature} has {len(parameters)} parameters, but got {len(args)} arguments"
    for name, parameter, arg in zip(names, parameters, args, strict=True):
        if not _fits(parameter, arg):
            found = (
                f"{arg.dtype} of shape {arg.shape}" if isinstance(arg, CheckedArray) else repr(arg)
            )
            return f"argument {name} is {found}, but {signature} has {parameter}"
    return None


def _fits(parameter: str, arg: CheckedArray | Number) -> bool:
    """Return whether an argument may be passed for a parameter of this type."""
    match = _PARAMETER.fullmatch(parameter)
    name = match["type"] if match else parameter
    name = _NUMBA_NAMES.get(name, name)
    if match is None or name not in CASTS:
        raise NotImplementedError(f"the simulator does not support parameters of type {parameter}")
    cast = CASTS[name]
    if not isinstance(arg, CheckedArray):
        kinds = {"b": bool, "i": int, "u": int, "f": float | int}
        return not match["axes"] and isinstance(arg, kinds[cast.kind]) and cast.holds(arg)
    axes = [each.strip() for each in (match["axes"] or "").split(",")]
    if not match["axes"] or len(axes) != arg.ndim or cast.dtype != arg.dtype:
        return False
    return axes[-1] != "::1" or arg.is_contiguous
