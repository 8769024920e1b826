"""Multimodal budgets: how many items of each modality a prompt and a batch may have."""

from __future__ import annotations

import itertools
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from conformance.functions.mm_budget import CLASSES, Registry


def make_scheduler_config(twin: Any, **changes: Any) -> Any:
    values = {"max_num_batched_tokens": 100, "max_num_seqs": 3, **changes}
    return twin.SchedulerConfig(**values)


@pytest.mark.parametrize(
    ("compute", "cache_size", "sizes", "expected"),
    [
        (0, 0, {}, (0, 0)),
        (500, 600, {}, (0, 0)),
        (0, 0, {"image": 70, "audio": 30}, (70, 70)),
        (50, 90, {"image": 70}, (70, 90)),
        (90, 50, {"image": 70}, (90, 70)),
        (90, 80, {"image": 0}, (90, 80)),
        (0, 0, {"image": 0}, (0, 0)),
        (0, 0, {"video": 1000}, (1000, 1000)),
    ],
)
def test_encoder_budget(
    twin: Any, compute: int, cache_size: int, sizes: dict[str, int], expected: tuple[int, int]
) -> None:
    config = make_scheduler_config(
        twin, max_num_encoder_input_tokens=np.int64(compute), encoder_cache_size=cache_size
    )
    found = twin.compute_mm_encoder_budget(config, sizes)
    assert expected == found
    assert {int} == set(map(type, found))


def test_what_the_encoder_budget_does_not_read(twin: Any) -> None:
    assert (0, 0) == twin.compute_mm_encoder_budget(None, {})
    config = SimpleNamespace(
        max_num_encoder_input_tokens=1, encoder_cache_size=2, disable_chunked_mm_input=False
    )
    assert (3, 3) == twin.compute_mm_encoder_budget(config, {"image": 3})


def test_items_that_must_be_within_one_step(twin: Any) -> None:
    config = make_scheduler_config(twin, disable_chunked_mm_input=True)
    assert (100, 100) == twin.compute_mm_encoder_budget(config, {"image": 100})
    with twin.refuses(
        "ValueError: scheduler_config.max_num_batched_tokens is 100, less than "
        "max_tokens_by_modality['image'], 101: with disable_chunked_mm_input an item must fit into "
        "one step"
    ):
        twin.compute_mm_encoder_budget(config, {"image": 101, "audio": 5})


def make_budget(
    twin: Any, limits: Any, sizes: Any, max_model_len: Any = 1000, **changes: Any
) -> Any:
    """Make a budget of a model with these limits and sizes by modality."""
    registry = CLASSES["no method"](limits, sizes, None)
    return make_budget_of(twin, registry, max_model_len, **changes)


def make_budget_of(twin: Any, registry: Any, max_model_len: int = 1000, **changes: Any) -> Any:
    return twin.MultiModalBudget(
        twin.ModelConfig(max_model_len=max_model_len),
        make_scheduler_config(twin, **changes),
        registry,
    )


def test_attributes_of_a_budget(twin: Any) -> None:
    limits, sizes = {"image": 4, "audio": 9, "unused": 1}, {"audio": 30, "image": 200}
    budget = make_budget(
        twin,
        limits,
        sizes,
        max_num_encoder_input_tokens=700,
        encoder_cache_size=900,
        max_num_seqs=np.int64(5),
    )
    assert (1000, 5, 700, 900, 700) == (
        budget.max_model_len,
        budget.max_num_reqs,
        budget.encoder_compute_budget,
        budget.encoder_cache_size,
        budget.get_encoder_budget(),
    )
    assert int is type(budget.max_num_reqs)
    assert limits is budget.mm_limits
    assert sizes is budget.max_tokens_by_modality
    assert {"audio": 9, "image": 4} == budget.max_items_per_prompt_by_modality
    assert {"audio": 23, "image": 3} == budget.max_items_per_batch_by_modality
    assert ["audio", "image"] == list(budget.max_items_per_batch_by_modality)


@pytest.mark.parametrize("kind", list(CLASSES))
def test_calls_of_the_registry(twin: Any, kind: str) -> None:
    registry = Registry({"image": 1}, {"image": 2}, kind).make(twin)
    budget, cache = make_budget_of(twin, registry), registry.cache
    is_same = {"cache": True, "profiler_limits": True}
    assert [
        *([["ModelConfig", {}, {}]] if "cache" in kind else []),
        ["ModelConfig", {"cache": cache}, {"cache": True}],
        ["ModelConfig", {"cache": cache, "profiler_limits": registry.limits}, is_same],
    ] == registry.calls
    assert cache is None or 0 == cache.cleared
    budget.reset_cache()
    assert cache is None or 1 == cache.cleared


def test_the_modality_with_the_largest_item(twin: Any) -> None:
    sizes = {"image": 30, "audio": 30, "text": 7, "zebra": 3}
    for items in itertools.permutations(sizes.items()):
        budget = make_budget(twin, dict.fromkeys(sizes, 1), dict(items))
        assert "image" == budget.get_modality_with_max_tokens()
    with twin.refuses("ValueError: max_tokens_by_modality is empty: the model has no modalities"):
        make_budget(twin, {}, {}).get_modality_with_max_tokens()


@pytest.mark.parametrize(
    ("limit", "size", "changes", "expected"),
    [
        pytest.param(4, 0, {}, (0, 0), id="items of nothing"),
        pytest.param(4, 50, {}, (4, 12), id="as many prompts as there may be"),
        pytest.param(30, 50, {}, (20, 20), id="as many as fit into the model, and the encoder"),
        pytest.param(4, 400, {}, (2, 2), id="as many as fit into the encoder"),
        pytest.param(4, 1001, {}, (1, 1), id="at least one"),
        pytest.param(0, 50, {}, (1, 3), id="at least one, whatever the limit"),
        pytest.param(2, 50, {"enable_chunked_prefill": False}, (2, 4), id="prompts of one step"),
        pytest.param(2, 10, {"enable_chunked_prefill": False}, (2, 6), id="steps with room"),
        pytest.param(4, 50, {"max_num_seqs": 1}, (4, 4), id="one request"),
        pytest.param(2, 200, {"enable_chunked_prefill": False}, (2, 1), id="no room in a step"),
        pytest.param(2, 200, {}, (2, 5), id="no room in a step, but spread over several"),
    ],
)
def test_max_items(
    twin: Any, limit: int, size: int, changes: dict[str, Any], expected: tuple[int, int]
) -> None:
    budget = make_budget(twin, {"image": limit}, {"image": 1000}, **changes)
    assert expected == budget.get_max_items("image", size)
    assert expected == budget.get_max_items("image", np.int32(size))
    assert {int} == {type(number) for number in budget.get_max_items("image", np.int32(size))}


def test_without_an_encoder_budget(twin: Any) -> None:
    budget = make_budget(twin, {"image": 3}, {"image": 0})
    assert 0 == budget.get_encoder_budget()
    assert (0, 0) == budget.get_max_items("image", 5)
    assert {"image": 0} == budget.max_items_per_prompt_by_modality


def test_modalities_of_an_enum(twin: Any) -> None:
    kinds = Enum("kinds", {"IMAGE": "image", "VIDEO": "video"}, type=str)
    image, video = kinds
    budget = make_budget(twin, {image: 1, video: 1}, {image: 9, video: 9})
    assert budget.get_modality_with_max_tokens() is video
