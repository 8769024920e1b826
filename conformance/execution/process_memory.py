"""The resident memory of a process. This module imports nothing of the harness."""

from __future__ import annotations

import mmap
from pathlib import Path


def rss_bytes(pid: int) -> int:
    """Return the resident memory of a process; 0 if it is unknown."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * mmap.PAGESIZE
