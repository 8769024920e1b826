"""The parser of every command line here."""

from __future__ import annotations

import argparse
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """End with one line that says what is wrong."""
        self.exit(2, f"{self.prog}: {message}\n")


def positive(text: str) -> int:
    """Read a whole number of at least 1, as the `type` of an option."""
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)
