"""`fast`, but an unknown layout passes for the default: what a law alone sees."""

# ruff: noqa: F403  # it is what the file is for

import fast
from fast import *


def get_kv_cache_layout() -> fast.KVCacheLayoutType:
    """Return the layout, "NHD" where what was set is none."""
    try:
        return fast.get_kv_cache_layout()
    except ValueError:
        return "NHD"
