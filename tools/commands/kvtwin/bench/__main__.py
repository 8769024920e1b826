"""`kvtwin bench`."""

from kvtwin.commands import run_command

run_command("bench")
