"""The order of tokens and heads inside a block of the KV cache."""

from __future__ import annotations

import os
from typing import Literal, TypeAlias, cast, get_args

KVCacheLayoutType: TypeAlias = Literal["NHD", "HND"]
"""The order of tokens (N), heads (H) and the elements of a head (D) inside a block."""

DEFAULT_LAYOUT: KVCacheLayoutType = "NHD"
LAYOUT_VARIABLE = "VLLM_KV_CACHE_LAYOUT"

_KV_CACHE_LAYOUT_OVERRIDE: KVCacheLayoutType | None = None
"""What `set_kv_cache_layout` set; None: nothing."""


def is_valid_kv_cache_layout(value: object) -> bool:
    """Say whether a value is the name of a layout.

    Args:
        value: Anything; case counts.

    Returns:
        Whether it is "NHD" or "HND".

    Example:
        >>> is_valid_kv_cache_layout("HND"), is_valid_kv_cache_layout("hnd")
        (True, False)

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    return isinstance(value, str) and value in get_args(KVCacheLayoutType)


def get_kv_cache_layout() -> KVCacheLayoutType:
    """Return the layout that is in force.

    Returns:
        What `set_kv_cache_layout` set last; without that the environment variable
        `VLLM_KV_CACHE_LAYOUT`; without that "NHD". Both are read at each call.

    Raises:
        ValueError: No layout stands there (the empty string is none).

    Example:
        >>> set_kv_cache_layout("HND")
        >>> get_kv_cache_layout()
        'HND'
        >>> set_kv_cache_layout(None)

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    if _KV_CACHE_LAYOUT_OVERRIDE is not None:
        return _check_layout("_KV_CACHE_LAYOUT_OVERRIDE", _KV_CACHE_LAYOUT_OVERRIDE)
    if LAYOUT_VARIABLE in os.environ:
        return _check_layout(LAYOUT_VARIABLE, os.environ[LAYOUT_VARIABLE])
    return DEFAULT_LAYOUT


def set_kv_cache_layout(cache_layout: KVCacheLayoutType | None) -> None:
    """Set the layout from the next `get_kv_cache_layout` on, whatever the environment says.

    Args:
        cache_layout: "NHD" or "HND"; None: the environment says it again.

    Raises:
        ValueError: An unknown layout, of whatever type. What was set before stays.

    Example:
        >>> set_kv_cache_layout("NDH")
        Traceback (most recent call last):
        ValueError: cache_layout is 'NDH', expected 'NHD' or 'HND'

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    global _KV_CACHE_LAYOUT_OVERRIDE  # noqa: PLW0603  # engines read and set this attribute
    if cache_layout is not None:
        cache_layout = _check_layout("cache_layout", cache_layout)
    _KV_CACHE_LAYOUT_OVERRIDE = cache_layout


def _check_layout(name: str, value: object) -> KVCacheLayoutType:
    """Return a layout."""
    if not is_valid_kv_cache_layout(value):
        layouts = " or ".join(repr(layout) for layout in get_args(KVCacheLayoutType))
        raise ValueError(f"{name} is {value!r}, expected {layouts}")
    return cast("KVCacheLayoutType", value)
