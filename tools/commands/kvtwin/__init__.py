"""The command lines of kvtwin: `kvtwin COMMAND`, or `python -m kvtwin COMMAND`.

`commands` lists them. Each `kvtwin.COMMAND` is a module or a package; `parser` has what their
command lines share, and `conformance/command_line.py` defines how each of them ends when it is
interrupted or cannot print.
"""

__version__ = "0.1.0"
"""Of the distribution `kvtwin`, with all its packages; docs/versions.md says what it promises."""
