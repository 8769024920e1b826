"""Run the demo's command line: `python -m tools.engine_demo`."""

from conformance.entry_point import run

run("tools.engine_demo.command_line", "vllm")
