"""`python -m tools.bench`."""

import sys

from tools.bench.command_line import main

if __name__ == "__main__":
    sys.exit(main())
