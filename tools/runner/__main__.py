"""Run the runner's command line: `python -m tools.runner`."""

from conformance.command_line import run

run("tools.runner.command_line", "runner")
