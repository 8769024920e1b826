"""What to ask of a device's memory, and the layout of a block, as one writes them in a hurry."""

# ruff: noqa: C901  # a branch for each bug

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np

import fast
from fast import kv_layout
from known_bad.entries import rewritten

REAL_REQUEST = fast.request_memory
REAL_SNAPSHOT = fast.MemorySnapshot
REAL_SET = fast.set_kv_cache_layout


def _make_request(bug: str | None) -> Callable[[Any, Any], int]:
    def request_memory(init_snapshot: Any, cache_config: Any) -> int:  # noqa: ANN401  # any
        share = cache_config.gpu_memory_utilization
        free, total = init_snapshot.free_memory, init_snapshot.total_memory
        if bug == "NaN passes" and isinstance(share, float) and math.isnan(share):
            return 0
        if bug == "what is free is not looked at" and type(free) is int and 0 <= free < 2**62:
            free = 2**63 - 1
            init_snapshot = dataclasses.replace(REAL_SNAPSHOT(free, total, init_snapshot.device))
        REAL_REQUEST(init_snapshot, cache_config)
        if bug == "more must be free than is wanted":
            share = float(share)
            if int(free) <= math.ceil(int(total) * share):
                raise ValueError(f"free_memory is {free}")
        if bug == "a share of what is free":
            total = free
        product = int(total) * float(share)
        if bug == "a product in single precision":
            product = float(np.float32(total) * np.float32(share))
        if bug == "rounded":
            return round(product)
        if bug == "cut":
            return int(product)
        if bug == "rounded up by one":
            return int(product) + 1
        return math.ceil(product)

    return request_memory


def _make_snapshot(bug: str | None) -> type[Any]:
    @dataclasses.dataclass(frozen=bug == "it cannot be changed")
    class MemorySnapshot:
        """A snapshot, with a bug or without."""

        free_memory: int
        total_memory: int
        device: Any = None

        def __post_init__(self) -> None:
            if bug == "free memory is at most all of it":
                self.free_memory = min(self.free_memory, self.total_memory)

    return MemorySnapshot


def _make_is_valid(bug: str | None) -> Callable[[Any], bool]:
    def is_valid_kv_cache_layout(value: Any) -> bool:  # noqa: ANN401  # any
        if bug == "compared without a look at the type":
            return value in ("NHD", "HND")
        if bug == "a set of layouts":
            return value in {"NHD", "HND"}
        if bug == "any case" and isinstance(value, str):
            return value.upper() in ("NHD", "HND")
        if bug == "a part of the names" and isinstance(value, str):
            return value in "NHD,HND"
        return isinstance(value, str) and value in ("NHD", "HND")

    return is_valid_kv_cache_layout


def _make_get(bug: str | None) -> Callable[[], Any]:
    seen: list[Any] = []

    def get_kv_cache_layout() -> Any:  # noqa: ANN401  # a layout
        if bug == "the first answer is kept" and seen:
            return seen[0]
        override = kv_layout._KV_CACHE_LAYOUT_OVERRIDE
        found = os.environ.get("VLLM_KV_CACHE_LAYOUT", "NHD")
        if bug == "an empty variable is none":
            found = found or "NHD"
        has_variable = "VLLM_KV_CACHE_LAYOUT" in os.environ
        if override is not None and not (bug == "the environment comes first" and has_variable):
            found = override
        if not isinstance(found, str) or found not in ("NHD", "HND"):
            if bug == "what is unknown is the default":
                return "NHD"
            raise ValueError(f"the layout is {found!r}, expected 'NHD' or 'HND'")
        seen.append(found)
        return found

    return get_kv_cache_layout


def _make_set(bug: str | None) -> Callable[[Any], None]:
    def set_kv_cache_layout(cache_layout: Any) -> None:  # noqa: ANN401  # any
        if bug == "set before it is checked":
            kv_layout._KV_CACHE_LAYOUT_OVERRIDE = cache_layout
        if bug == "None changes nothing" and cache_layout is None:
            return
        if bug == "it is checked when it is read":
            kv_layout._KV_CACHE_LAYOUT_OVERRIDE = cache_layout
            return
        REAL_SET(cache_layout)

    return set_kv_cache_layout


MEMORY = [
    *rewritten(
        "request_memory",
        _make_request,
        answers={
            "more must be free than is wanted": "`<=` for `<`: an idle device is never just full.",
            "a share of what is free": "The same on an idle device.",
            "a product in single precision": "Off by a few KiB.",
            "rounded": "Off by a byte, half of the time.",
            "cut": "`int`: off by a byte.",
            "rounded up by one": "Right but where the product is whole.",
        },
        refusals={
            "NaN passes": "`x <= 0 or x > 1` is False for it.",
            "what is free is not looked at": "Fails when it is allocated, some minutes later.",
        },
    ),
    *rewritten(
        "MemorySnapshot",
        _make_snapshot,
        answers={"free memory is at most all of it": "Kind, but it checks nothing."},
        laws={
            "test_a_snapshot_holds_what_it_is_given": {
                "it cannot be changed": "`frozen=True`, as the specs."
            }
        },
    ),
    *rewritten(
        "is_valid_kv_cache_layout",
        _make_is_valid,
        answers={
            "compared without a look at the type": "An array has no truth value.",
            "a set of layouts": "What has no hash raises.",
            "any case": "The environment is written in any case.",
            "a part of the names": "`in` a text.",
        },
    ),
    *rewritten(
        "get_kv_cache_layout",
        _make_get,
        laws={
            "test_the_layout_in_force": {
                "the first answer is kept": "`functools.cache`: stale after a `set`.",
                "an empty variable is none": "`or`: an empty text is an error in a script.",
                "the environment comes first": "The same while only one of them is used.",
                "what is unknown is the default": "A typo passes.",
            }
        },
    ),
    *rewritten(
        "set_kv_cache_layout",
        _make_set,
        laws={
            "test_what_is_set_is_read": {
                "set before it is checked": "After the error it is in force all the same.",
                "None changes nothing": "`if cache_layout:`; the override stays for ever.",
                "it is checked when it is read": "The error is raised far from the mistake.",
            }
        },
    ),
]
