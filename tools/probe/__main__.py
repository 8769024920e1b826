"""`python -m tools.probe`."""

import sys

from tools.probe.command_line import main

if __name__ == "__main__":
    sys.exit(main())
