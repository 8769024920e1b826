"""`python -m conformance --impl MODULE_OR_FILE`: the conformance run, from anywhere.

    python -m conformance [any option of pytest, or of the run]

It runs the tests of the installed package. `--help` lists the options.
Settings of the working directory are not read.
"""

from __future__ import annotations

if __name__ == "__main__":
    from conformance.entry_point import run

    run("conformance.__main__", "conformance")

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

import numba  # noqa: F401  # see torch
import pytest
import torch  # noqa: F401  # while modules are imported here, Ctrl-C ends the process at once

from conformance.entry_point import INTERRUPTS

PACKAGE = Path(__file__).parent
HELP = """\
kvtwin conformance: compare an implementation with the reference

examples:
  kvtwin conformance --impl ./mine.py --functions split_decodes_and_prefills
  kvtwin conformance --impl my_engine.plumbing -n auto --report report
  kvtwin conformance --replay conformance-failures/CASE.json
  kvtwin conformance --list --impl ./mine.py
  kvtwin conformance --explain compute_slot_mapping

exit status:
  0    no wrong answers; for fast or with --strict, no other failures either
  1    a wrong answer, or another failure that fails the run
  2    a package is missing
  3    an error in the run itself
  4    the command line is wrong
  5    nothing was checked
  130  ended by Ctrl-C

The options of the run are in the section "conformance" among pytest's options:
"""

NEEDED = ("hypothesis", "jinja2", "ml_dtypes")
"""Packages that the run imports. pytest prints a traceback for a missing one."""


def arguments_for_pytest(arguments: Sequence[str]) -> list[str]:
    options = list(arguments)
    settings = ["-c", str(PACKAGE / "installed.ini"), f"--rootdir={PACKAGE.parent}"]
    alone = ("-n", "--numprocesses", "--pdb", "--break", "--explain", "--list", "--collect-only")
    if importlib.util.find_spec("xdist") and not any(one.startswith(alone) for one in arguments):
        options += ["-n", "1"]  # a function that crashes must not end the run
    # The package may be in a read-only folder.
    settings += ["-o", f"cache_dir={Path.cwd() / '.pytest_cache'}"]
    return [*settings, *options, str(PACKAGE)]


def hidden_by() -> tuple[str, str] | None:
    """Return a package of ours that another module hides, and that module's file, or None.

    Python looks in the working directory first: there may be another `fast.py`.
    """
    for name in ("reference", "fast"):
        found = importlib.util.find_spec(name)
        file = found.origin if found is not None else None
        if file is not None and Path(file).resolve().parents[1] != PACKAGE.resolve().parent:
            return name, file
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests and return pytest's exit status; a usage error if a package is hidden."""
    hidden = hidden_by()
    if hidden is not None:
        name, file = hidden
        message = f"{file} hides the package {name}: rename it, or start from another folder"
        print(f"python -m conformance: {message}", file=sys.stderr)  # noqa: T201  # a command line
        return int(pytest.ExitCode.USAGE_ERROR)
    for name in NEEDED:
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    given = sys.argv[1:] if arguments is None else arguments
    if {"-h", "--help"} & set(given):
        print(HELP)  # noqa: T201  # a command line
    return int(pytest.main(arguments_for_pytest(given), [_Interrupted()]))


class _Interrupted:
    """Ends a run whose Ctrl-C was lost: a compiled function that calls Python may ignore it."""

    def pytest_runtest_logfinish(self) -> None:
        """Interrupt pytest again, between two tests."""
        if INTERRUPTS.happened:
            raise KeyboardInterrupt
