"""Finds the public functions that an implementation calls, to find the cause of a failure."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

import conformance
import reference
from conformance.adapters import Unsupported
from conformance.execution.invocations import Invocation
from conformance.targets.implementations import Absent
from conformance.targets.target import RAISED, Target
from conformance.values.call import calls_in

PUBLIC: Final = frozenset(reference.__all__)
"""Names of functions and classes that an implementation may have."""

OURS: Final = tuple(str(Path(str(package.__file__)).parent) for package in (conformance, reference))
"""Folders of functions that are not an implementation's."""


def called_functions(target: Target, example: Any) -> set[str]:
    """Return the public functions and methods that an implementation calls for an example's call.

    A method gets a name for each class in its object's MRO. The set is empty if the example has no
    call.

    Args:
        target: The target under test.
        example: The example of a check.
    """
    found: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and not frame.f_code.co_filename.startswith(OURS):
            found.update(_names_of(frame))

    call = next(calls_in(example), None)
    if call is None:
        return found
    with contextlib.suppress(*RAISED, Absent, Unsupported):
        invocation = Invocation(target, call)
        before = sys.getprofile()
        sys.setprofile(note)
        try:
            invocation.answer()
        finally:
            sys.setprofile(before)
    return found


def _names_of(frame: FrameType) -> Iterator[str]:
    """Yield the public names of the function that a frame runs."""
    code = frame.f_code
    if "." not in code.co_qualname:
        yield from PUBLIC & {code.co_name}
    elif code.co_argcount:
        owner = frame.f_locals.get(code.co_varnames[0])
        for cls in (owner if isinstance(owner, type) else type(owner)).__mro__:
            if cls.__name__ in PUBLIC:
                yield f"{cls.__name__}.{code.co_name}"
