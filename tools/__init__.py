"""The command lines of those who work on kvtwin: `python -m tools.NAME`, in the root of a checkout.

`python -m tools.bench`, and all else of `kvtwin` that was here before it had a package of its own,
still works.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "commands"))  # for a checkout that is not installed

import kvtwin

__path__ += kvtwin.__path__
