"""Writes a failing call as a short Python script, which prints the first difference.

It is only written if plain literals reproduce the failure: ints, lists, arrays and objects of
`reference`, each in memory of its own. The stored case next to it is complete, with memory layout
and call variant.
"""

from __future__ import annotations

import dataclasses
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import reference
from conformance.adapters.base import FastAdapter
from conformance.checks.contract_checks import InvalidExample, ValidExample
from conformance.checks.registry import find_contract
from conformance.contracts.check import Check
from conformance.contracts.contract import InvalidInput
from conformance.messages.mismatch import Mismatch
from conformance.targets.target import Target
from conformance.values.call import Call
from conformance.values.comparison import NUMPY_IN_BOTH_TWINS, ResultName
from conformance.values.differences import Verdict, raised

MAX_LINES = 80
"""The maximum number of lines of a script."""

MAX_ELEMENTS = 200
"""The maximum number of elements of an array."""

WIDTH = 96

SCRIPT = '''\
"""{about}"""

{standard}
import numpy as np
import torch

sys.path[:0] = {folders}
import {impl} as impl
import reference
{harness}

def arguments(m, array):
    return {arguments}


def tensor(values, dtype):
    return torch.from_numpy(np.array(values, dtype))


def call(arguments):
    {call}


{tail}'''

COMPARING = """\
ours, theirs = arguments(reference, np.array), arguments(impl, tensor)
expected = reference.{function}(**ours)
got = call(theirs)
pairs = [(expected, got, {returns}), *((ours[name], theirs[name], name) for name in ours)]
for pair in pairs:
    found = first_difference(*pair)
    if found is not None:
        sys.exit(found.line)
"""

REFUSING = """\
try:
    got = f"returned {{call(arguments(impl, tensor))!r}}"
except Exception as error:
    got = f"raised {{type(error).__name__}}: {{error}}"
    if type(error) is {error} and all(re.search(name, str(error)) for name in {names}):
        sys.exit()
sys.exit(f"the call {{got}}, but should raise {error} naming {naming}")
"""


class _NotPlainError(TypeError):
    """A value that has no plain literal."""


def script_of(check: Check, target: Target, example: Any, error: BaseException) -> str | None:
    """Return a script that exits with status 1 while the failure occurs, or None.

    It is None if the input has no plain form, or if the script does not reproduce the failure: it
    is run here to find out.
    """
    contract = find_contract(check.function)
    if target.device != "cpu" or target.is_simulated or not isinstance(error, Mismatch):
        return None
    is_adapted = type(target.implementation.adapter) is not FastAdapter
    if is_adapted or contract is None or contract.shows:
        return None
    call, invalid = _call_of(example, error)
    if call is None:
        return None
    about = f"{check.function}: {error.difference.line}"
    for checked in (True, False) if hasattr(target.implementation.module, "checks") else (True,):
        try:
            script = _written(call, invalid, target, about, contract.returns, checked=checked)
        except _NotPlainError:
            return None
        is_short = script.count("\n") <= MAX_LINES
        if is_short and _shows(script, target, error, checked=checked):
            return script
    return None


def _call_of(example: Any, error: Mismatch) -> tuple[Call | None, InvalidInput | None]:
    """Return the failing call of an example, and its invalid input, if any."""
    if isinstance(example, ValidExample):
        return example.call, None
    ways = example.ways if isinstance(example, InvalidExample) else ()
    return next(
        ((call, invalid) for invalid, call in ways if call is error.call),
        (None, None),
    )


def _written(
    call: Call,
    invalid: InvalidInput | None,
    target: Target,
    about: str,
    returns: ResultName,
    *,
    checked: bool,
) -> str:
    module = target.implementation.module
    folders = dict.fromkeys(filter(None, map(_folder_of, (reference, module))))
    if invalid is None:
        standard = "import sys\n"
        harness = "from conformance.values.comparison import first_difference\n"
        tail = COMPARING.format(function=call.function, returns=repr(returns).replace("'", '"'))
    else:
        standard, harness = "import re\nimport sys\n", ""
        names = [rf"\b{name}\b" for name in (invalid.argument, invalid.also) if name]
        error, naming = invalid.error.__name__, invalid.naming.replace('"', "'")
        tail = REFUSING.format(error=error, names=names, naming=naming)
    made = f"return impl.{call.function}(**arguments)"
    if hasattr(module, "checks"):
        made = f"with impl.checks({checked}):\n        {made}"
    return SCRIPT.format(
        about=about.replace("\\", "/").replace('"""', "'''"),
        standard=standard,
        folders=list(folders),
        impl=module.__name__,
        harness=harness,
        call=made,
        arguments=_source(call.arguments, "", 4, module),
        tail=tail,
    )


def _folder_of(module: ModuleType) -> str | None:
    """Return the folder that a module needs on `sys.path`; None if it is installed."""
    path = Path(module.__file__ or "").resolve()
    names = module.__name__.split(".")
    if path.name == "__init__.py":
        path = path.parent
    if path.stem != names[-1]:
        raise _NotPlainError(f"{path} is not imported by its name")
    folder = path.parents[len(names) - 1]
    installed = {Path(sysconfig.get_paths()[name]) for name in ("purelib", "platlib", "stdlib")}
    return None if folder in installed else str(folder)


def _source(value: Any, name: str, indent: int, module: ModuleType) -> str:
    """Return a value as an expression, on several lines if one would be too long.

    Args:
        value: The value.
        name: Its argument or field, which determines how an array is constructed.
        indent: The indentation of its lines.
        module: The implementation, whose classes are called if it has them.

    Raises:
        _NotPlainError: The value has no plain literal.
    """

    def inside(inner: Any, name: str = name) -> str:
        return _source(inner, name, indent + 4, module)

    kind = type(value)
    if kind is str:
        return repr(value) if '"' in repr(value) else f'"{repr(value)[1:-1]}"'
    if value is None or kind in {bool, int} or (kind is float and np.isfinite(value)):
        return repr(value)
    if kind is np.ndarray:
        return _array(value, name)
    if kind is list or kind is tuple:
        comma = "," if kind is tuple and len(value) == 1 else ""
        return _joined(list(map(inside, value)), "[]" if kind is list else "()", indent, comma)
    if kind is dict and all(type(key) in {str, int} for key in value):
        entries = [f"{inside(key)}: {inside(entry, str(key))}" for key, entry in value.items()]
        return _joined(entries, "{}", indent)
    if dataclasses.is_dataclass(value) and getattr(reference, kind.__name__, None) is kind:
        made = "m" if hasattr(module, kind.__name__) else "reference"
        fields = {n: entry for n, entry in vars(value).items() if entry is not None}
        entries = [f"{n}={inside(entry, n)}" for n, entry in fields.items()]
        return f"{made}.{kind.__name__}{_joined(entries, '()', indent)}"
    raise _NotPlainError(f"a {kind.__qualname__}")


def _array(array: np.ndarray[Any, Any], name: str) -> str:
    is_plain = array.dtype.kind in "biuf" and hasattr(np, array.dtype.name)
    if not is_plain or array.size > MAX_ELEMENTS or not np.isfinite(array).all():
        raise _NotPlainError(f"an array of {array.dtype} and shape {array.shape}")
    make = "np.array" if name in NUMPY_IN_BOTH_TWINS else "array"
    values = array.tolist() if array.size else f"np.zeros({array.shape})"
    return f'{make}({values}, "{array.dtype.name}")'


def _joined(entries: Sequence[str], brackets: str, indent: int, comma: str = "") -> str:
    """Return entries between brackets, on a line or on one each."""
    opened, closed = brackets[0], brackets[1]
    line = f"{opened}{', '.join(entries)}{comma}{closed}"
    if len(line) + indent < WIDTH and "\n" not in line:
        return line
    lines = "".join(f"{' ' * (indent + 4)}{entry},\n" for entry in entries)
    return f"{opened}\n{lines}{' ' * indent}{closed}"


def _shows(script: str, target: Target, error: Mismatch, *, checked: bool) -> bool:
    """Return whether a script, run in this process, shows the difference that the test found."""
    before = list(sys.path)
    try:
        with target.running(checked=checked):
            exec(compile(script, "script", "exec"), {"__name__": "script"})  # noqa: S102  # our own
    except SystemExit as ended:
        said = str(ended.code)
        is_outcome = error.difference.verdict is Verdict.OUTCOME
        about = f"the call {error.difference.got}" if is_outcome else error.difference.line
        return said.startswith(about)
    except Exception as raised_error:  # noqa: BLE001  # the call raises, where an answer is due
        return error.difference.got == raised(raised_error)
    finally:
        sys.path[:] = before
    return False
