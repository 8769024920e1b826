"""The command lines of kvtwin: `kvtwin COMMAND`, or `python -m kvtwin COMMAND`.

`commands` lists them. Each `kvtwin.COMMAND` is a module or a package. `parser` has the options and
the output that they share; `conformance/entry_point.py` defines their exit status after an
interrupt or a failed write.
"""

__version__ = "0.1.0"
"""The version of the distribution `kvtwin` and all its packages; see docs/versions.md."""
