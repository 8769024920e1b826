"""Run the runner's command line: `python -m tools.runner`."""

import sys

from tools.runner.command_line import main

if __name__ == "__main__":
    sys.exit(main())
