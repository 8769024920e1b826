from collections.abc import Iterator

import numpy as np
import pytest

import fast
from fast import kv_layout


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Begin and end without an override, and begin without the environment variable."""
    monkeypatch.delenv("VLLM_KV_CACHE_LAYOUT", raising=False)
    monkeypatch.setattr(kv_layout, "_KV_CACHE_LAYOUT_OVERRIDE", None)
    return


@pytest.mark.parametrize("value", ["nhd", "", "NH", None, 0, ["NHD"], {}, np.zeros(2), b"NHD"])
def test_no_layouts(value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value of any other kind is no layout, and is refused by name wherever it stands."""
    assert fast.is_valid_kv_cache_layout(value) is False
    fast.set_kv_cache_layout("HND")
    if value is not None:
        with pytest.raises(ValueError, match=r"cache_layout is .*, expected 'NHD' or 'HND'"):
            fast.set_kv_cache_layout(value)
        assert "HND" == fast.get_kv_cache_layout()
        monkeypatch.setattr(kv_layout, "_KV_CACHE_LAYOUT_OVERRIDE", value)
        with pytest.raises(ValueError, match=r"_KV_CACHE_LAYOUT_OVERRIDE is .*, expected 'NHD' or"):
            fast.get_kv_cache_layout()


@pytest.mark.parametrize("value", ["NHD", "HND"])
def test_layouts(value: str) -> None:
    """The two layouts are layouts."""
    assert fast.is_valid_kv_cache_layout(value) is True


def test_override_before_environment_before_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was set comes first, then the environment; no answer goes stale."""
    assert "NHD" == fast.get_kv_cache_layout()
    monkeypatch.setenv("VLLM_KV_CACHE_LAYOUT", "HND")
    assert "HND" == fast.get_kv_cache_layout()
    fast.set_kv_cache_layout("NHD")
    assert "NHD" == fast.get_kv_cache_layout()
    assert "NHD" == kv_layout._KV_CACHE_LAYOUT_OVERRIDE
    fast.set_kv_cache_layout(None)
    assert "HND" == fast.get_kv_cache_layout()
    monkeypatch.setattr(kv_layout, "_KV_CACHE_LAYOUT_OVERRIDE", "NHD")
    assert "NHD" == fast.get_kv_cache_layout()


@pytest.mark.parametrize("value", ["", "nhd", "NHD "])
def test_environment_is_checked(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown layout in the environment is refused when it is asked for, not before."""
    monkeypatch.setenv("VLLM_KV_CACHE_LAYOUT", value)
    with pytest.raises(ValueError, match=r"VLLM_KV_CACHE_LAYOUT is .*, expected 'NHD' or 'HND'"):
        fast.get_kv_cache_layout()
    fast.set_kv_cache_layout("HND")
    assert "HND" == fast.get_kv_cache_layout()
