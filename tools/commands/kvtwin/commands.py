"""`kvtwin COMMAND`: the list of commands, and the entry point that runs them."""

from __future__ import annotations

import argparse
import sys
from typing import Final, NamedTuple, NoReturn

from conformance.entry_point import run
from conformance.name_lists import near
from kvtwin import __version__
from kvtwin.parser import Parser


class Command(NamedTuple):
    """A command.

    Attributes:
        module: The module whose `main` runs it.
        summary: What it does, in one line.
        extra: The extra of the distribution `kvtwin` that it needs.
    """

    module: str
    summary: str
    extra: str


COMMANDS: Final = {
    "conformance": Command(
        "conformance.__main__", "compare an implementation with the reference", "conformance"
    ),
    "bench": Command("kvtwin.bench.command_line", "time fast and a baseline", "bench"),
    "nightly": Command(
        "kvtwin.nightly.command_line",
        "repeat the conformance run with new inputs for hours",
        "nightly",
    ),
    "kernels": Command("kvtwin.kernels", "compile all CUDA kernels without a GPU", "kernels"),
    "vectors": Command("kvtwin.vectors", "write test vectors as JSON, for any language", "vectors"),
}
"""The commands by name. A command and its extra have the same name."""


def main() -> NoReturn:
    """Run the command in the process' arguments, and exit with its status."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in COMMANDS:
        del sys.argv[1]
        # `python -m` searches the working directory first; the installed script does not search it.
        # As the last entry, it lets `--impl` find modules there that hide no installed ones.
        sys.path.append("")
        run_command(name)
    parser = _make_parser()
    known = parser.parse_args(sys.argv[1:] or ["--help"]).command
    parser.error(f"there is no command {known!r}; try {near(known, COMMANDS)}")


def run_command(name: str) -> NoReturn:
    """Run a command with the process' arguments, and exit with its status."""
    command = COMMANDS[name]
    run(command.module, command.extra, f"kvtwin {name}")


def _make_parser() -> Parser:
    """Make the parser for all else: `--help`, `--version`, and names that are not commands."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {command.summary}" for name, command in COMMANDS.items()]
    parser = Parser("kvtwin", "\n".join(["commands:", *lines]))
    parser.usage = "kvtwin COMMAND ..."
    parser.epilog = "kvtwin COMMAND --help shows the options and exit statuses of a command."
    parser.add_argument("--version", action="version", version=f"kvtwin {__version__}")
    parser.add_argument("command", metavar="COMMAND", help=argparse.SUPPRESS)
    return parser
