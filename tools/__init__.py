"""The project's command lines: run them in the root of a checkout with `python -m tools.NAME`.

`conformance/command_line.py` defines how each of them ends when it is interrupted or cannot print.
"""
