"""The public API, which docs/versions.md defines, does not change without notice.

`public_api.txt` has it as it was in the last release. What differs since has to be named in the
changelog, under "Unreleased". `python tests/test_public_api.py` writes the list of a release.
"""

from __future__ import annotations

import contextlib
import enum
import importlib
import inspect
import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

import conformance.adapters
import conformance.encoding
import conformance.reports.record
import fast
import kvtwin.fuzz.report.record
import kvtwin.replay
import reference
from kvtwin.commands import COMMANDS

LIST = Path(__file__).with_name("public_api.txt")
CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"
PACKAGES = (reference, fast, conformance.adapters)
SCHEMAS = {
    "cases and vectors": conformance.encoding.SCHEMA_VERSION,
    "report": conformance.reports.record.SCHEMA_VERSION,
    "fuzz --json": kvtwin.fuzz.report.record.SCHEMA_VERSION,
    "replay --json": kvtwin.replay.SCHEMA_VERSION,
}


def public_lines() -> Iterator[str]:
    """Yield a line for each public name, with its parameters or value."""
    for package in PACKAGES:
        for name in sorted(package.__all__):
            yield from lines_of(f"{package.__name__}.{name}", getattr(package, name))
    for name, command in COMMANDS.items():
        if name != "conformance":  # docs/options.md has its options, and is compared with --help
            printed = io.StringIO()
            with contextlib.suppress(SystemExit), contextlib.redirect_stdout(printed):
                importlib.import_module(command.module).main(["--help"])
            options = re.findall(r"^  (?:-h, )?(--[\w-]+)", printed.getvalue(), re.MULTILINE)
            yield from sorted(f"kvtwin {name} {option}" for option in options)
    yield from (f"schema of {name}: {version}" for name, version in SCHEMAS.items())


def lines_of(path: str, value: Any) -> Iterator[str]:  # noqa: ANN401  # whatever is public
    """Yield the lines of a name: of a class, those of its public members too."""
    if inspect.isclass(value):
        own = issubclass(value, enum.Enum) or Protocol in value.__bases__
        yield path if own else f"{path}{_signature(value)}"
        for name, member in sorted(vars(value).items()):
            if not name.startswith("_"):
                function = getattr(member, "__func__", member)
                yield f"{path}.{name}{_signature(function) if inspect.isfunction(function) else ''}"
    elif callable(value):
        yield f"{path}{_signature(value)}"
    else:
        yield f"{path} = {value!r}" if isinstance(value, int | str) else path


def _signature(function: Any) -> str:  # noqa: ANN401  # a class or a function
    try:
        text = str(inspect.signature(function))
    except (TypeError, ValueError):  # a type such as Literal, or a class of C
        return ""
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def unannounced(old: Iterable[str], new: Iterable[str], changelog: str) -> list[str]:
    """Return the changed lines whose names the changelog's first section lacks.

    A new command-line option may be missing there, a removed one may not.

    Args:
        old: The lines of the last release.
        new: The current lines.
        changelog: The text.
    """
    section = re.split(r"^## ", changelog, flags=re.MULTILINE)[1]
    assert section.startswith("Unreleased")
    words = set(re.findall(r"[\w-]+", section))
    found = []
    old, new = set(old), set(new)
    added = {line for line in new - old if not line.startswith("kvtwin ")}
    for line in sorted(added | (old - new)):
        name = re.split(r"[( =:]", line.rpartition(" --")[2] if " --" in line else line)[0]
        if name.rpartition(".")[2] not in words:
            found.append(line)
    return found


def test_what_changed_is_in_the_changelog() -> None:
    """A name that is new, gone or has other parameters is under "Unreleased"."""
    old = LIST.read_text(encoding="utf-8").splitlines()
    assert len(old) > 300
    assert not unannounced(old, public_lines(), CHANGELOG.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("changelog", "expected"),
    [
        (
            "## Unreleased\n\n- Nothing.\n\n## 0.1.0\n\n- `fast.f`",
            ["fast.f(a)", "fast.f(a, b=None)"],
        ),
        ("## Unreleased\n\n- `f` of `fast` takes `b`.\n", []),
    ],
)
def test_a_change_has_to_be_named(changelog: str, expected: list[str]) -> None:
    """A change must be in the section "Unreleased"."""
    old, new = ["fast.f(a)", "fast.g()"], ["fast.f(a, b=None)", "fast.g()"]
    assert expected == unannounced(old, new, changelog)


if __name__ == "__main__":
    LIST.write_text("".join(f"{line}\n" for line in public_lines()), encoding="utf-8")
