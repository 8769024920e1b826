"""Checks the arguments of a launch, and the machine words that the launcher of `fast` passes.

A launch with raw words checks no types: a GPU would read an int64 tensor as garbage if the kernel
was compiled for int32.
"""

import re
from collections.abc import Sequence
from functools import cache
from typing import Final

import torch

from fast.kernels.cuda import Kernel

_PARAMETER: Final = re.compile(r"(\w+)(?:\[([:, 1]+)\])?")


def check_arguments(kernel: Kernel, args: Sequence[torch.Tensor | int]) -> None:
    """Check arguments against the signature of a kernel.

    Raises:
        TypeError: There are too few or too many, or one does not fit the signature.
    """
    kinds = _kinds(kernel.signature)
    names = kernel.py_func.__code__.co_varnames
    where = f"kernel {kernel.name}"
    if len(kinds) != len(args):
        raise TypeError(f"{where}: takes {len(kinds)} arguments, but got {len(args)}")
    for name, (kind, axes), arg in zip(names, kinds, args, strict=False):
        if not axes:
            is_fit = not isinstance(arg, torch.Tensor) and -(2**63) <= int(arg) < 2**63
        else:
            is_fit = isinstance(arg, torch.Tensor) and (
                arg.dtype == getattr(torch, kind)
                and arg.dim() == axes.count(":") - 1
                and arg.is_contiguous()
                and arg.device.type == "cpu"
            )
        if not is_fit:
            found = repr(arg)
            if isinstance(arg, torch.Tensor):
                found = f"{arg.dtype} of shape {tuple(arg.shape)}, strides {arg.stride()}"
            raise TypeError(
                f"{where}: argument {name} is {found}, but its type is"
                f" {kind}{f'[{axes}]' if axes else ''}"
            )


@cache
def _kinds(signature: str) -> list[tuple[str, str | None]]:
    """Return the type of each parameter of a signature, and the axes if it is an array."""
    parameters = signature.removeprefix("void(").removesuffix(")")
    return [(found[1], found[2]) for found in _PARAMETER.finditer(parameters)]


def check_words(
    kernel: Kernel, num_words: int, words: Sequence[int], args: Sequence[torch.Tensor | int]
) -> None:
    """Check the words of a launch against the words that numba's kernels take for each argument.

    For an array they are two pointers that kernels do not use, the number of items, the bytes of
    one, the address, the shape, and the strides in bytes.

    Args:
        kernel: The kernel.
        num_words: How many parameters its PTX has.
        words: The words that the launcher passes.
        args: The arguments that they represent.

    Raises:
        TypeError: There are too few or too many, or one has a wrong value.
    """
    where = f"kernel {kernel.name}"
    if len(words) != num_words:
        raise TypeError(f"{where}: takes {num_words} words, but got {len(words)}")
    names = kernel.py_func.__code__.co_varnames
    place = 0
    for name, arg in zip(names, args, strict=False):
        expected: list[int]
        if isinstance(arg, torch.Tensor):
            size = arg.element_size()
            strides = [stride * size for stride in arg.stride()]
            place += 2
            expected = [arg.numel(), size, arg.data_ptr(), *arg.shape, *strides]
        else:
            expected = [int(arg)]
        found = list(words[place : place + len(expected)])
        if found != expected:
            raise TypeError(
                f"{where}: the words launched for {name} are {found}, expected {expected}"
            )
        place += len(expected)
