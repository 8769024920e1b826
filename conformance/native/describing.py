"""Builds the exception for a fault, with its message, from the state of the launch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from conformance.native.compiled import CompiledPtx
from conformance.native.memory import NO_OTHER, Access, AccessEpoch
from conformance.native.ptx import Instruction
from conformance.native.state import Field, Kind, NativeFault
from conformance.native.thread import ENDED
from fast.kernels.cuda import Kernel

_WORDS: Final = {
    Kind.OUTSIDE: "is outside all arrays",
    Kind.OUTSIDE_SHARED: "is outside the block's shared arrays",
    Kind.OUTSIDE_LOCAL: "is outside the thread's local arrays",
    Kind.MISALIGNED: "is misaligned",
    Kind.UNINITIALIZED: "reads uninitialized memory",
}


class _Array(NamedTuple):
    """The array that an address is in, or nearest to."""

    name: str
    offset: int
    text: str


def describe(
    kernel: Kernel,
    compiled: CompiledPtx,
    state: Any,
    blocks: Any,
    epochs: Any,
    args: Sequence[torch.Tensor | int],
) -> NativeFault:
    """Return the exception for a fault."""
    kind = Kind(int(state[Field.KIND]))
    width = int(state[Field.GRID_X])

    def index(turn: int) -> tuple[int, int, int]:
        return int(blocks[turn]) % width, int(blocks[turn]) // width, 0

    turn, thread, line = (int(state[field]) for field in (Field.BLOCK, Field.THREAD, Field.LINE))
    instructions = {
        each.line: each for each in compiled.entry.body if isinstance(each, Instruction)
    }
    instruction = instructions.get(line)
    where = _where(compiled, instruction)
    array = _Array("", 0, "")
    if kind is Kind.ENDLESS:
        message = (
            f"executes more than {int(state[Field.MOST_INSTRUCTIONS])} instructions, "
            "so it may not terminate"
        )
    elif kind is Kind.BARRIER:
        other = _where(compiled, instructions.get(int(state[Field.OTHER_ACCESS])))
        message = (
            f"{_waits(line, where)}, but thread {(int(state[Field.OTHER]), 0, 0)} "
            f"{_waits(int(state[Field.OTHER_ACCESS]), other)}"
        )
    else:
        is_shared = instruction is not None and ".global" not in instruction.opcode
        array = _nearest(kernel, args, int(state[Field.ADDRESS]), is_elsewhere=is_shared)
        opcode = "" if instruction is None else instruction.opcode
        access = {"ld": "load", "st": "store"}.get(opcode.split(".")[0], "atomic")
        message = f"this {access} of {int(state[Field.SIZE])} bytes at {array.text} "
        if kind is Kind.RACE:
            moment = AccessEpoch.of(int(state[Field.OTHER]))
            earlier = int(np.searchsorted(epochs[: turn + 1], moment.epoch, "right")) - 1
            is_mine = earlier == turn and moment.thread == thread and moment.other != NO_OTHER
            other_thread = moment.other if is_mine else moment.thread
            message += (
                f"races with the {Access(int(state[Field.OTHER_ACCESS])).name.lower()} by block"
                f" {index(earlier)}, thread {(other_thread, 0, 0)}: no barrier orders them"
            )
        else:
            message += _WORDS[kind]
        message += f", at {where}"
    return NativeFault(
        message,
        kind=kind,
        kernel=kernel.name,
        block=index(turn),
        thread=thread,
        array=array.name,
        offset=array.offset,
        size=int(state[Field.SIZE]),
        line=0 if instruction is None else instruction.source_line,
        ptx_line=line,
    )


def _where(compiled: CompiledPtx, instruction: Instruction | None) -> str:
    if instruction is None:
        return "its end"
    file = Path(compiled.entry.file).name
    return f"{file}:{instruction.source_line} (PTX line {instruction.line}: {instruction.text})"


def _waits(line: int, where: str) -> str:
    """Describe a thread at the end of an epoch: it has returned, or waits at a barrier."""
    return "has returned" if line == ENDED else f"waits at {where}"


def _nearest(
    kernel: Kernel, args: Sequence[torch.Tensor | int], address: int, *, is_elsewhere: bool
) -> _Array:
    """Return the array that an address is in or nearest to; none if `is_elsewhere`."""
    if is_elsewhere:
        return _Array("", address, f"byte {address}")
    names = kernel.py_func.__code__.co_varnames
    near: tuple[int, str, torch.Tensor] | None = None
    for name, arg in zip(names, args, strict=False):
        if isinstance(arg, torch.Tensor):
            begin, end = arg.data_ptr(), arg.data_ptr() + arg.nbytes
            distance = max(begin - address, address - end + 1, 0)
            if near is None or distance < near[0]:
                near = distance, name, arg
    if near is None:
        return _Array("", address, f"address {address}")
    _, name, tensor = near
    offset = address - tensor.data_ptr()
    return _Array(name, offset, f"{name} + {offset} (of {tensor.nbytes})")
