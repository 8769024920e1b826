"""Interrupts a call as a signal handler does: by an exception between two instructions."""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any


class Interrupter:
    """Raises KeyboardInterrupt before one instruction of a package's Python code.

    Args:
        package: The package, or a module.
        at: The number of the instruction among those that a call runs, from 1; if it cannot be
            interrupted, the next one that can. 0 for none.

    Attributes:
        seen: The number of instructions that were run.
        place: Where the call was interrupted, empty if it was not.

    Example:
        >>> import fast
        >>> interrupter = Interrupter(fast, 1)
        >>> interrupter.run(lambda: fast.extract_layer_index("model.layers.3")), interrupter.seen
        (True, 1)
        >>> interrupter.run(lambda: len("nothing of the package"))
        False
    """

    def __init__(self, package: ModuleType, at: int) -> None:
        file = Path(package.__file__ or "")
        self._own = f"{file.parent}/" if hasattr(package, "__path__") else str(file)
        self._kernels = f"{self._own}kernels/"  # on a GPU no signal arrives
        self.at = at
        self.seen = 0
        self.place = ""

    def run(self, call: Callable[[], object]) -> bool:
        """Make a call and return whether it was interrupted."""
        frame = inspect.currentframe()
        if frame is not None:
            frame.f_trace_opcodes = True  # before Python 3.13, one frame must have this first
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            call()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False

    def _enter(self, frame: FrameType, _event: str, _value: object) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(self._own) or file.startswith(self._kernels):
            return None
        frame.f_trace = self._step  # Python 3.13 needs it before `f_trace_opcodes` is set
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, _value: object) -> Any:
        if event == "opcode":
            self.seen += 1
            code = frame.f_code
            if 0 < self.at <= self.seen and frame.f_lasti not in exits_of_with(code):
                self.place = f"{Path(code.co_filename).name}:{frame.f_lineno} ({code.co_name})"
                raise KeyboardInterrupt
        return self._step


@cache
def exits_of_with(code: CodeType) -> frozenset[int]:
    """Return the offsets of the instructions between a `with` block and its `__exit__`.

    Python runs signal handlers after calls and jumps, so never there: a lock that a `with` holds
    is released whatever a handler raises.
    """
    steps = list(dis.get_instructions(code))
    names = [step.opname for step in steps]
    found: set[int] = set()
    for at in range(len(steps)):
        nones = steps[at : at + 3]
        call = at + 3 + (names[at + 3 : at + 4] == ["PRECALL"])  # before Python 3.12
        if (
            names[at : at + 3] == ["LOAD_CONST"] * 3
            and all(step.argval is None for step in nones)
            and names[call : call + 1] == ["CALL"]
            and steps[call].arg == 2
        ):
            begin = at - (names[at - 1 : at] == ["SWAP"])  # a result stays on the stack below
            found.update(step.offset for step in steps[begin : call + 1])
    return frozenset(found)
