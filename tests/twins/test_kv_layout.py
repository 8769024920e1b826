"""The KV cache layout: the order of its sources, and what is one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

NOT_LAYOUTS = [
    "nhd",
    *("", "NHDN", " NHD", b"NHD", 3, True, ["NHD"], {}, np.zeros(2), object(), ("NHD",)),
]


@pytest.fixture(autouse=True)
def untouched(twin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear the override and the environment variable for each test, and restore them."""
    monkeypatch.setattr(twin.kv_layout, "_KV_CACHE_LAYOUT_OVERRIDE", None)
    monkeypatch.delenv("VLLM_KV_CACHE_LAYOUT", raising=False)


def test_what_is_a_layout(twin: Any) -> None:
    assert [True] * 3 == [
        twin.is_valid_kv_cache_layout(name) for name in ("NHD", "HND", np.str_("HND"))
    ]
    assert [False] * 13 == [twin.is_valid_kv_cache_layout(value) for value in [*NOT_LAYOUTS, None]]


def test_order_of_answers(twin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert twin.get_kv_cache_layout() == "NHD"
    monkeypatch.setenv("VLLM_KV_CACHE_LAYOUT", "HND")
    assert twin.get_kv_cache_layout() == "HND"
    twin.set_kv_cache_layout("NHD")
    assert twin.get_kv_cache_layout() == "NHD"
    twin.set_kv_cache_layout("HND")
    monkeypatch.setenv("VLLM_KV_CACHE_LAYOUT", "NHD")
    assert twin.get_kv_cache_layout() == "HND"
    twin.set_kv_cache_layout(None)
    assert twin.get_kv_cache_layout() == "NHD"
    monkeypatch.setattr(twin.kv_layout, "_KV_CACHE_LAYOUT_OVERRIDE", "HND")
    assert twin.get_kv_cache_layout() == "HND"
