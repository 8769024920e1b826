"""The order of tokens and heads inside a block of the KV cache."""

from __future__ import annotations

import os
from typing import Literal, TypeAlias, cast, get_args

KVCacheLayoutType: TypeAlias = Literal["NHD", "HND"]
"""The order of tokens (N), heads (H) and the elements of a head (D) inside a block."""

DEFAULT_LAYOUT: KVCacheLayoutType = "NHD"
LAYOUT_VARIABLE = "VLLM_KV_CACHE_LAYOUT"

_KV_CACHE_LAYOUT_OVERRIDE: KVCacheLayoutType | None = None
"""The layout that `set_kv_cache_layout` set; None: none."""


def is_valid_kv_cache_layout(value: object) -> bool:
    """Return whether a value is the name of a layout.

    Args:
        value: Any object; names are case-sensitive.

    Returns:
        Whether it is "NHD" or "HND".

    Example:
        >>> is_valid_kv_cache_layout("HND"), is_valid_kv_cache_layout("hnd")
        (True, False)

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    return isinstance(value, str) and value in get_args(KVCacheLayoutType)


def get_kv_cache_layout() -> KVCacheLayoutType:
    """Return the current layout.

    Returns:
        The layout that `set_kv_cache_layout` set last; if there is none, that of the environment
        variable `VLLM_KV_CACHE_LAYOUT`; if that is unset, "NHD". Both are read in each call.

    Raises:
        ValueError: The value found is not a layout, such as the empty string.

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
    """Set the layout, which overrides the environment variable.

    Args:
        cache_layout: "NHD" or "HND"; None: use the environment variable again.

    Raises:
        ValueError: An unknown layout, of whatever type. The layout is unchanged.

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
