"""Run the runner's command line: `python -m tools.runner`."""

from conformance.entry_point import run

run("tools.runner.command_line", "runner")
