"""The folders of the running code, in a checkout or installed."""

from pathlib import Path
from typing import Final

import kvtwin
import reference

ROOT: Final = Path(reference.__file__).resolve().parents[1]
"""The folder that contains `reference`: a checkout, a copy of one, or `site-packages`."""

COMMANDS: Final = Path(kvtwin.__file__).resolve().parents[1]
"""The folder that contains `kvtwin`; in a checkout, `tools/commands`."""
