"""The argument parser of every command line here, and the types of common options."""

from __future__ import annotations

import argparse
import warnings
from typing import Any, NoReturn

from conformance.name_lists import names_in
from kvtwin.machine import num_cores


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """End with one line that says what is wrong."""
        self.exit(2, f"{self.prog}: {message}\n")

    def add_number(
        self, name: str, description: str = "", default: int | None = None, *, minimum: int = 1
    ) -> None:
        """Add an option that takes an integer.

        Args:
            name: Of the option.
            description: For `--help`, where the default is added if there is one.
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

    def add_workers(self, description: str) -> None:
        """Add `--workers`, whose default is the number of cores that this process may use."""
        self.add_number("--workers", f"{description}, by default one for each core", num_cores())


class RenamedOption(argparse.Action):
    """The old name of an option: it sets the value of the new one, and warns."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,  # noqa: ANN401  # of any option
        option_string: str | None = None,
    ) -> None:
        """Set the value of the new option."""
        del parser
        new = self.dest.replace("_", "-")
        warnings.warn(f"{option_string} is now --{new}", DeprecationWarning, stacklevel=2)
        setattr(namespace, self.dest, values)


def names(text: str) -> list[str]:
    """Read names, separated by commas, as the `type` of an option."""
    try:
        return names_in(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


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
