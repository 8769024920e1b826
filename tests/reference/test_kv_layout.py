"""The layout: who says it, in which order, and what is none."""

from __future__ import annotations

import numpy as np
import pytest

from reference import (
    get_kv_cache_layout,
    is_valid_kv_cache_layout,
    kv_layout,
    set_kv_cache_layout,
)

NOT_LAYOUTS = [
    "nhd",
    "",
    "NHDN",
    " NHD",
    b"NHD",
    3,
    True,
    ["NHD"],
    {},
    np.zeros(2),
    object(),
    ("NHD",),
]


@pytest.fixture(autouse=True)
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin each test with nothing set, and leave nothing behind."""
    monkeypatch.setattr(kv_layout, "_KV_CACHE_LAYOUT_OVERRIDE", None)
    monkeypatch.delenv("VLLM_KV_CACHE_LAYOUT", raising=False)


def test_what_is_a_layout() -> None:
    """Two names are layouts, and nothing else of any type is; the answer is a bool."""
    assert [True] * 3 == [is_valid_kv_cache_layout(name) for name in ("NHD", "HND", np.str_("HND"))]
    assert [False] * 13 == [is_valid_kv_cache_layout(value) for value in [*NOT_LAYOUTS, None]]


def test_order_of_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The override comes before the environment, and that before the default, at each call."""
    assert get_kv_cache_layout() == "NHD"
    monkeypatch.setenv("VLLM_KV_CACHE_LAYOUT", "HND")
    assert get_kv_cache_layout() == "HND"
    set_kv_cache_layout("NHD")
    assert get_kv_cache_layout() == "NHD"
    set_kv_cache_layout("HND")
    monkeypatch.setenv("VLLM_KV_CACHE_LAYOUT", "NHD")
    assert get_kv_cache_layout() == "HND"
    set_kv_cache_layout(None)
    assert get_kv_cache_layout() == "NHD"
    monkeypatch.setattr(kv_layout, "_KV_CACHE_LAYOUT_OVERRIDE", "HND")
    assert get_kv_cache_layout() == "HND"


@pytest.mark.parametrize("value", NOT_LAYOUTS, ids=lambda value: type(value).__name__)
def test_refusals(value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no layout is refused by set, which leaves the override, and by get."""
    set_kv_cache_layout("HND")
    with pytest.raises(ValueError, match=r"^cache_layout is "):
        set_kv_cache_layout(value)
    assert get_kv_cache_layout() == "HND"
    monkeypatch.setattr(kv_layout, "_KV_CACHE_LAYOUT_OVERRIDE", value)
    with pytest.raises(ValueError, match=r"^_KV_CACHE_LAYOUT_OVERRIDE is "):
        get_kv_cache_layout()


@pytest.mark.parametrize("value", ["", "hnd", "NHD "])
def test_refusals_of_the_environment(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment must name a layout too, but only when it is asked."""
    monkeypatch.setenv("VLLM_KV_CACHE_LAYOUT", value)
    with pytest.raises(ValueError, match=r"^VLLM_KV_CACHE_LAYOUT is '"):
        get_kv_cache_layout()
    set_kv_cache_layout("NHD")
    assert get_kv_cache_layout() == "NHD"
