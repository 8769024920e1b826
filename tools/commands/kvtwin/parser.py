"""The argument parser of all commands, the types of common options, and JSON output."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

from conformance.name_lists import names_in

STATUSES: Final = {
    2: "the command line is wrong, or a package is missing",
    130: "ended by Ctrl-C",
    141: "the output pipe was closed",
}
"""Exit statuses that mean the same for each command line."""

STDOUT: Final = Path("-")


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, and whose help ends with examples and exit statuses.

    Args:
        prog: The command.
        description: What it does, in a sentence.
        examples: Arguments of useful command lines.
        statuses: The meaning of exit statuses, in addition to `STATUSES`.
    """

    def __init__(
        self,
        prog: str,
        description: str,
        *,
        examples: Sequence[str] = (),
        statuses: Mapping[int, str] = {0: "success"},  # only read
    ) -> None:
        shown = (f"  {prog} {example}".rstrip() for example in examples)
        lines = ["examples:", *shown, ""] * bool(examples)
        lines += ["exit status:"]
        for status, meaning in sorted({**STATUSES, **statuses}.items()):
            lines += textwrap.wrap(
                meaning, initial_indent=f"  {status:<4} ", subsequent_indent=" " * 7
            )
        super().__init__(
            prog=prog,
            description="\n".join(map(textwrap.fill, description.splitlines())),
            epilog="\n".join(lines),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    @contextlib.contextmanager
    def reporting_errors(self) -> Iterator[None]:
        """Exit with a one-line message on a file error, an unknown name or an invalid value."""
        try:
            yield
        except KeyError as error:
            self.error(str(error.args[0]))
        except OSError as error:
            named = f"{error.filename}: {error.strerror}" if error.filename else ""
            self.error(named or str(error))
        except ValueError as error:
            self.error(str(error))

    def error(self, message: str) -> NoReturn:
        """Exit with status 2 and a one-line message."""
        self.exit(2, f"{self.prog}: {message}\n")

    def add_number(
        self, name: str, description: str = "", default: int | None = None, *, minimum: int = 1
    ) -> None:
        """Add an option that takes an integer.

        Args:
            name: The name of the option.
            description: For `--help`; the default is appended if there is one.
            default: Its default.
            minimum: 0 or 1.
        """
        described = [description] if description else []
        described += [] if default is None else ["default: %(default)s"]
        self.add_argument(
            name,
            type=positive if minimum else natural,
            metavar="N",
            default=default,
            help="; ".join(described),
        )

    def add_json(self, what: str) -> None:
        """Add `--json`, which prints a result as JSON or writes it to a file.

        Args:
            what: The result, for `--help`.
        """
        self.add_argument(
            "--json",
            nargs="?",
            const=STDOUT,
            type=new_file,
            metavar="FILE",
            help=f"print {what} as JSON, and everything else to stderr; with FILE, write it there",
        )


def write_json(value: object, path: Path) -> None:
    """Write a result as JSON to the file in `--json`, or to stdout."""
    text = json.dumps(value, indent=1, ensure_ascii=path == STDOUT, default=dataclasses.asdict)
    if path == STDOUT:
        print(text)
    else:
        path.write_text(text + "\n", encoding="utf-8")


@contextlib.contextmanager
def redirect_stdout_for_json(path: Path | None) -> Iterator[None]:
    """Redirect stdout to stderr if `--json` prints to stdout, so that only the JSON is there."""
    with contextlib.redirect_stdout(sys.stderr if path == STDOUT else sys.stdout):
        yield


def names(text: str) -> list[str]:
    """Read names, separated by commas, as the `type` of an option."""
    try:
        return names_in(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def new_file(text: str) -> Path:
    """Read the name of a file that will be written, as the `type` of an option."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text} cannot be written")
    return path


def natural(text: str) -> int:
    """Read an integer of at least 0, as the `type` of an option."""
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"must be an integer >= 0, got {text!r}")
    return int(text)


def positive(text: str) -> int:
    """Read an integer of at least 1, as the `type` of an option."""
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"must be an integer >= 1, got {text!r}")
    return int(text)
