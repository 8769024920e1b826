"""Puts the script of a failed test into its report, and into a file."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from conformance.checks import Check
from conformance.gpu_context import ContextLostError
from conformance.script.failure import script_of, script_of_crash
from conformance.script.saving import save_script, script_path
from conformance.targets import Target


def attach_script(
    item: pytest.Item,
    target: Target,
    failure: tuple[Check, Any, BaseException],
    where: str = "",
    directory: Path | None = None,
) -> None:
    """Show the script of a failure with the test that failed, and keep it in a file.

    The item's property "script" says which.

    Args:
        item: The test.
        target: On which target.
        failure: What failed, the example, shrunk, and how.
        where: Where the check stands, as the corpus names it; empty where it stands in no module.
        directory: The folder of the file; None for the usual one.
    """
    check, example, error = failure
    try:
        write = script_of_crash if isinstance(error, ContextLostError) else script_of
        script = write(check, target, example, error, where)
        if script is None:
            said = "There is none: the example is of a kind that no script can say."
        else:
            path = save_script(script, _name(item), directory)
            item.user_properties.append(("script", str(path)))
            said = f"# {path}\n{script}"
    except Exception as trouble:  # noqa: BLE001  # the test's own failure is what must be told
        said = f"There is none: {type(trouble).__name__}: {trouble}"
    item.add_report_section("call", "as a script", said)


def forget_script(item: pytest.Item, directory: Path | None = None) -> None:
    """Take away the script of an earlier run's failure: what is kept is of the last run.

    Args:
        item: The test, which is run again.
        directory: The folder of the file; None for the usual one.
    """
    with contextlib.suppress(OSError):  # what cannot be taken away is no verdict on a function
        script_path(_name(item), directory).unlink(missing_ok=True)


def _name(item: pytest.Item) -> str:
    return item.nodeid.rpartition("/")[2].replace(".py::", "-")
