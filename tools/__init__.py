"""The project's command lines: run them from the repository's root with `python -m tools.NAME`.

`conformance/command_line.py` says how each of them ends when it is interrupted or cannot print.
"""
