"""Stores the case of a failed test in `conformance/failures/`, and says how to see it again."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import reference
from conformance import FOLDER
from conformance.cases.store import case_of_failure, folder_for, write_case
from conformance.contracts.check import Check
from conformance.messages.mismatch import Mismatch
from conformance.targets.target import Target
from conformance.values.comparison import NUMPY_IN_BOTH_TWINS

FAILURES = FOLDER / "failures"
"""The folder in the package, if that can be written to."""

MAX_EXPRESSION = 600
"""How many characters the Python expression of a call may have."""


def store_failure(
    item: pytest.Item,
    target: Target,
    failure: tuple[Check, Any, BaseException],
    where: str = "",
    directory: Path | None = None,
) -> None:
    """Store the case of a failure, and add the ways to see it again to the report of the test.

    The item's property "replay" has the command, "expression" the call in Python if it is short.
    `where` is the location of the check, as in stored cases; empty if it is in no module.
    `directory` is None for the default folder.
    """
    check, example, error = failure
    try:
        path = failure_file(item, directory)
        write_case(case_of_failure(check, where, example, error), path)
        command = replay_command(path, target)
        item.user_properties.append(("replay", command))
        shown = f"# {command}\n"
        expression = expression_of(error, target)
        if expression:
            item.user_properties.append(("expression", expression))
            shown += f"{expression}\n"
    except Exception as trouble:  # noqa: BLE001  # the test's own failure is what must be reported
        shown = f"# It cannot be stored: {type(trouble).__name__}: {trouble}\n"
    item.user_properties.append(("source", shown))


def forget_failure(item: pytest.Item, directory: Path | None = None) -> None:
    """Remove the case of an earlier failure of a test that is run again."""
    with contextlib.suppress(OSError):  # not a failure of the function
        failure_file(item, directory).unlink(missing_ok=True)


def failure_file(item: pytest.Item, directory: Path | None = None) -> Path:
    """Return the file of a failed test's case.

    Args:
        item: The test; characters that are unsafe in file names become dashes.
        directory: The folder; None for `conformance/failures/`, or, if the package is installed
            or cannot be written to, for a `conformance-failures` in the working directory.
    """
    directory = folder_for(FAILURES) if directory is None else directory
    name = item.nodeid.rpartition("/")[2].replace(".py::", "-")
    return directory / f"{re.sub(r'[^A-Za-z0-9_.]+', '-', name).strip('-.')}.json"


def replay_command(path: Path, target: Target) -> str:
    """Return the command line that replays the case of a file on a target.

    >>> from conformance.targets.target import TARGETS
    >>> replay_command(Path("failures/a.json"), TARGETS["sim"])
    'python -m conformance --replay failures/a.json --target sim'
    """
    return shlex.join(["python", "-m", "conformance", "--replay", str(path), *_options(target)])


def rerun_command(item: pytest.Item, target: Target) -> str:
    """Return the command line that runs a test again, for one whose example cannot be stored."""
    name, option = item.nodeid.rpartition("/")[2], item.config.getoption
    words = ["python", "-m", "conformance", name, *_options(target), "--profile", option("profile")]
    seed = option("--hypothesis-seed")
    return shlex.join(words if seed is None else [*words, f"--hypothesis-seed={seed}"])


def _options(target: Target) -> list[str]:
    """Return the options that select the implementation, the adapter and the target."""
    words = []
    module, adapter = target.implementation.module, type(target.implementation.adapter)
    if module.__name__ != "fast":
        words += ["--impl", _named(module)]
    if adapter.__module__ != module.__name__ and not adapter.__module__.startswith("conformance."):
        words += ["--adapter", _named(sys.modules[adapter.__module__])]
    return [*words, "--target", target.name.rpartition(":")[2]]


def _named(module: ModuleType) -> str:
    """Return a module for an option: its file, or its name if it is in a package."""
    file = str(module.__file__)
    is_file = "." not in module.__name__ and Path(file).stem != "__init__"
    return file if is_file else module.__name__


def expression_of(error: BaseException, target: Target) -> str:
    """Return the failing call as a Python expression, to paste after `import torch, numpy as np`.

    It is empty if the call is long, or not made of numbers, arrays and objects of `reference`.
    """
    is_plain = target.device == "cpu" and target.implementation.adapter.__module__.startswith(
        "conformance.adapters.base"
    )
    if not (isinstance(error, Mismatch) and is_plain):
        return ""
    module, call = target.implementation.module.__name__, error.call
    try:
        arguments = [f"{name}={_source(v, name, module)}" for name, v in call.arguments.items()]
    except TypeError:
        return ""
    found = f"{module}.{call.function}({', '.join(arguments)})"
    return found if len(found) <= MAX_EXPRESSION else ""


def _source(value: Any, name: str, module: str) -> str:
    """Return a value as an expression; raise `TypeError` if it has none."""
    kind = type(value)
    if value is None or kind in {bool, int, str} or (kind is float and np.isfinite(value)):
        return repr(value)
    if kind is np.ndarray and value.dtype.kind in "biuf" and value.size <= MAX_EXPRESSION:
        if name in NUMPY_IN_BOTH_TWINS:
            return f"np.array({value.tolist()}, np.{value.dtype})"
        shape = "" if value.size else f".reshape({value.shape})"
        return f"torch.tensor({value.tolist() or []}, dtype=torch.{value.dtype}){shape}"
    if kind in {list, tuple}:
        inside = [_source(entry, name, module) for entry in value]
        comma = "," if kind is tuple and len(value) == 1 else ""
        return ("[{}{}]" if kind is list else "({}{})").format(", ".join(inside), comma)
    if kind is dict and all(type(key) in {str, int} for key in value):
        return f"{{{', '.join(f'{k!r}: {_source(v, str(k), module)}' for k, v in value.items())}}}"
    if dataclasses.is_dataclass(value) and getattr(reference, kind.__name__, None) is kind:
        fields = {n: v for n, v in vars(value).items() if v is not None}
        inside = [f"{n}={_source(v, n, module)}" for n, v in fields.items()]
        return f"{module}.{kind.__name__}({', '.join(inside)})"
    raise TypeError(f"a {kind.__qualname__} has no expression")
