"""`python -m kvtwin`, as `kvtwin`."""

from kvtwin.commands import main

main()
