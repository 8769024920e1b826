"""`kvtwin nightly`."""

from kvtwin.commands import run_command

run_command("nightly")
