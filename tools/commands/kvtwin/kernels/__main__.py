"""`python -m kvtwin.kernels`, as `kvtwin kernels`."""

from kvtwin.commands import run_command

run_command("kernels")
