"""`python -m tools.bench`."""

from conformance.command_line import run

run("tools.bench.command_line", "-e '.[test,bench]'")
