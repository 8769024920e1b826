"""The project's command lines: run them from the repository's root with `python -m tools.NAME`."""
