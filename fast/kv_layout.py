"""Get and set the order of tokens and heads inside a block of the KV cache."""

import os
from typing import Any, Final, Literal, TypeAlias, get_args

KVCacheLayoutType: TypeAlias = Literal["NHD", "HND"]
"""Tokens (N) before heads (H), or heads before tokens."""

LAYOUT_VARIABLE: Final = "VLLM_KV_CACHE_LAYOUT"

_KV_CACHE_LAYOUT_OVERRIDE: KVCacheLayoutType | None = None
"""The layout that `set_kv_cache_layout` set; None: none."""


def is_valid_kv_cache_layout(value: object) -> bool:
    """Return whether a value is the name of a layout.

    Definition: `reference.is_valid_kv_cache_layout`.
    """
    return isinstance(value, str) and value in get_args(KVCacheLayoutType)


def get_kv_cache_layout() -> KVCacheLayoutType:
    """Return the current layout.

    Definition: `reference.get_kv_cache_layout`.
    """
    if _KV_CACHE_LAYOUT_OVERRIDE is not None:
        return _check_layout("_KV_CACHE_LAYOUT_OVERRIDE", _KV_CACHE_LAYOUT_OVERRIDE)
    return _check_layout(LAYOUT_VARIABLE, os.environ.get(LAYOUT_VARIABLE, "NHD"))


def set_kv_cache_layout(cache_layout: KVCacheLayoutType | None) -> None:
    """Set the layout, which overrides the environment variable.

    Definition: `reference.set_kv_cache_layout`.
    """
    global _KV_CACHE_LAYOUT_OVERRIDE  # noqa: PLW0603  (it is the field's name for the override)
    if cache_layout is not None:
        _check_layout("cache_layout", cache_layout)
    _KV_CACHE_LAYOUT_OVERRIDE = cache_layout


def _check_layout(name: str, value: Any) -> KVCacheLayoutType:
    if not is_valid_kv_cache_layout(value):
        raise ValueError(f"{name} is {value!r}, expected 'NHD' or 'HND'")
    layout: KVCacheLayoutType = value
    return layout
