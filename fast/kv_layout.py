"""The order of tokens and heads inside a block of the KV cache."""

import os
from typing import Any, Final, Literal, TypeAlias, get_args

KVCacheLayoutType: TypeAlias = Literal["NHD", "HND"]
"""Tokens (N) before heads (H), or heads before tokens."""

LAYOUT_VARIABLE: Final = "VLLM_KV_CACHE_LAYOUT"

_KV_CACHE_LAYOUT_OVERRIDE: KVCacheLayoutType | None = None
"""The layout set by `set_kv_cache_layout`; None: the environment says."""


def is_valid_kv_cache_layout(value: object) -> bool:
    """Say whether a value of any type is a layout.

    Args:
        value: anything.

    Returns:
        Whether it is the text "NHD" or "HND".

    Example:
        >>> is_valid_kv_cache_layout("HND"), is_valid_kv_cache_layout("hnd")
        (True, False)

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    return isinstance(value, str) and value in get_args(KVCacheLayoutType)


def get_kv_cache_layout() -> KVCacheLayoutType:
    """Return the layout: what was set, else what the environment says, else "NHD".

    Returns:
        The layout, read anew at each call.

    Raises:
        ValueError: the override or the environment variable VLLM_KV_CACHE_LAYOUT holds none.

    Example:
        >>> set_kv_cache_layout("HND")
        >>> get_kv_cache_layout()
        'HND'
        >>> set_kv_cache_layout(None)

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    if _KV_CACHE_LAYOUT_OVERRIDE is not None:
        return _check_layout("_KV_CACHE_LAYOUT_OVERRIDE", _KV_CACHE_LAYOUT_OVERRIDE)
    return _check_layout(LAYOUT_VARIABLE, os.environ.get(LAYOUT_VARIABLE, "NHD"))


def set_kv_cache_layout(cache_layout: KVCacheLayoutType | None) -> None:
    """Set the layout, whatever the environment says.

    Args:
        cache_layout: "NHD" or "HND"; None: the environment says again.

    Raises:
        ValueError: none of these; the layout stays as it was.

    Example:
        >>> set_kv_cache_layout("NDH")
        Traceback (most recent call last):
        ValueError: cache_layout is 'NDH', expected 'NHD' or 'HND'

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    global _KV_CACHE_LAYOUT_OVERRIDE  # noqa: PLW0603  (it is the field's name for the override)
    if cache_layout is not None:
        _check_layout("cache_layout", cache_layout)
    _KV_CACHE_LAYOUT_OVERRIDE = cache_layout


def _check_layout(name: str, value: Any) -> KVCacheLayoutType:  # noqa: ANN401  (it is checked)
    """Return a layout.

    Raises:
        ValueError: it is none.
    """
    if not is_valid_kv_cache_layout(value):
        raise ValueError(f"{name} is {value!r}, expected 'NHD' or 'HND'")
    layout: KVCacheLayoutType = value
    return layout
