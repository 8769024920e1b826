"""Writes the files that reproduce a failed test: its stored case, and a script if it is short.

They are in `conformance/failures/`, named after the test.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from conformance import FOLDER
from conformance.cases.compared import case_of_failure
from conformance.contracts.check import Check
from conformance.encoding import folder_for, write_case
from conformance.execution.crashes import Crash
from conformance.execution.gpu_context import ContextLostError
from conformance.reproduction.script import script_of
from conformance.targets.target import Target

FAILURES = FOLDER / "failures"
"""The folder in the package, if that can be written to."""


def attach_reproduction(
    item: pytest.Item,
    target: Target,
    failure: tuple[Check, Any, BaseException],
    where: str = "",
    directory: Path | None = None,
) -> None:
    """Store the case of a failure, write its script, and add both to the report of the test.

    The item's properties "replay" and "script" have the command and the file to run. `where` is the
    location of the check, as in stored cases; empty if it is in no module. `directory` is None for
    the default folder.
    """
    check, example, error = failure
    try:
        path = failure_file(item, ".json", directory)
        write_case(case_of_failure(check, where, example, error), path)
        command = replay_command(path, target)
        item.user_properties.append(("replay", command))
        shown = f"# {command}\n"
        # A crash would end this process, and after a lost GPU context nothing can be called.
        is_safe = not isinstance(error, Crash | ContextLostError)
        script = script_of(check, target, example, error) if is_safe else None
        if script is not None:
            path = path.with_suffix(".py")
            path.write_text(script, encoding="utf-8")
            item.user_properties.append(("script", str(path)))
            shown += f"# {path}\n{script}"
    except Exception as trouble:  # noqa: BLE001  # the test's own failure is what must be reported
        shown = f"# It cannot be stored: {type(trouble).__name__}: {trouble}\n"
    item.user_properties.append(("source", shown))


def forget_reproduction(item: pytest.Item, directory: Path | None = None) -> None:
    """Remove the files of an earlier failure of a test that is run again."""
    for suffix in (".json", ".py"):
        with contextlib.suppress(OSError):  # not a failure of the function
            failure_file(item, suffix, directory).unlink(missing_ok=True)


def failure_file(item: pytest.Item, suffix: str, directory: Path | None = None) -> Path:
    """Return a file of a failed test.

    Args:
        item: The test; characters that are unsafe in file names become dashes.
        suffix: `.json` of its case, `.py` of its script.
        directory: The folder; None for `conformance/failures/`, or, if the package is installed
            or cannot be written to, for a `conformance-failures` in the working directory.
    """
    directory = folder_for(FAILURES) if directory is None else directory
    name = item.nodeid.rpartition("/")[2].replace(".py::", "-")
    return directory / f"{re.sub(r'[^A-Za-z0-9_.]+', '-', name).strip('-.')}{suffix}"


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
