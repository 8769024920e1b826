"""Enumerate small scopes: `python -m tools.fuzz.exhaustive --workers 2 --out DIR --minutes 60`."""

from __future__ import annotations

from conformance.command_line import run

if __name__ == "__main__":
    run("tools.fuzz.exhaustive.command_line")
