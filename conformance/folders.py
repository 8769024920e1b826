"""Where a run puts what it leaves behind."""

from __future__ import annotations

import os
from pathlib import Path


def folder_for(ours: Path) -> Path:
    """Return a folder next to the harness; where that is no place to write, one of the run's own.

    Args:
        ours: The folder next to the harness.

    Returns:
        It; where the package is installed or cannot be written to, `conformance-NAME` in the
        working directory.

    >>> folder_for(Path("/lib/python3.11/site-packages/conformance/corpus")).name
    'conformance-corpus'
    """
    is_writable = os.access(ours if ours.exists() else ours.parent, os.W_OK)
    is_ours = is_writable and "site-packages" not in ours.parts
    return ours if is_ours else Path(f"conformance-{ours.name}")
