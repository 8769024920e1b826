"""Where the code that runs here lies."""

from pathlib import Path
from typing import Final

import kvtwin
import reference

ROOT: Final = Path(reference.__file__).resolve().parents[1]
"""The folder of `reference`: a checkout, its copy on a node of a cluster, or `site-packages`."""

COMMANDS: Final = Path(kvtwin.__file__).resolve().parents[1]
"""The folder of `kvtwin`, which in a checkout is another one."""
