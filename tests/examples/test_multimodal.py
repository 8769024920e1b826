"""Multimodal inputs: budgets of items, embeddings in placeholders, and encoders' outputs."""

from __future__ import annotations

import contextlib
import itertools
from enum import Enum
from typing import Any

import numpy as np
import pytest

from tests.examples.twins import Twin


def make_scheduler(twin: Twin, **changes: Any) -> Any:
    return twin.SchedulerConfig(**{"max_num_batched_tokens": 100, "max_num_seqs": 3, **changes})


@pytest.mark.parametrize(
    ("compute", "cache_size", "sizes", "expected"),
    [
        # what is configured, but at least the largest item
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
def test_budget_of_an_encoder(twin: Twin, compute, cache_size, sizes, expected) -> None:
    sizes_of = {"max_num_encoder_input_tokens": compute, "encoder_cache_size": cache_size}
    assert expected == twin.compute_mm_encoder_budget(make_scheduler(twin, **sizes_of), sizes)


def test_items_that_must_be_within_one_step(twin: Twin) -> None:
    config = make_scheduler(twin, disable_chunked_mm_input=True)
    assert (100, 100) == twin.compute_mm_encoder_budget(config, {"image": 100})
    with pytest.raises(ValueError, match=r"max_tokens_by_modality\['image'\], 101"):
        twin.compute_mm_encoder_budget(config, {"image": 101, "audio": 5})


class Registry:
    """A model's limits and sizes of items by modality."""

    def __init__(self, limits: Any, sizes: Any) -> None:
        self.get_mm_limits_per_prompt = lambda *_, **__: limits
        self.get_max_tokens_per_item_by_modality = lambda *_, **__: sizes


def make_budget(twin: Twin, limits: Any, sizes: Any, **changes: Any) -> Any:
    """Make a budget of a model of 1,000 tokens with these limits and sizes by modality."""
    model = twin.ModelConfig(max_model_len=1000)
    return twin.MultiModalBudget(model, make_scheduler(twin, **changes), Registry(limits, sizes))


def test_attributes_of_a_budget(twin: Twin) -> None:
    limits, sizes = {"image": 4, "audio": 9, "unused": 1}, {"audio": 30, "image": 200}
    encoder = {"max_num_encoder_input_tokens": 700, "encoder_cache_size": 900}
    budget = make_budget(twin, limits, sizes, max_num_seqs=5, **encoder)
    expected = {
        "max_model_len": 1000,
        "max_num_reqs": 5,
        "mm_limits": limits,
        "max_tokens_by_modality": sizes,
        "encoder_compute_budget": 700,
        "encoder_cache_size": 900,
        "max_items_per_prompt_by_modality": {"audio": 9, "image": 4},
        "max_items_per_batch_by_modality": {"audio": 23, "image": 3},  # 700 // 30 and 700 // 200
    }
    assert expected == {name: getattr(budget, name) for name in expected}
    assert 700 == budget.get_encoder_budget()


def test_the_modality_with_the_largest_item(twin: Twin) -> None:
    sizes = {"image": 30, "audio": 30, "text": 7, "zebra": 3}
    for items in itertools.permutations(sizes.items()):
        budget = make_budget(twin, dict.fromkeys(sizes, 1), dict(items))
        assert "image" == budget.get_modality_with_max_tokens()  # of equals, the last by name
    image, video = Enum("kinds", {"IMAGE": "image", "VIDEO": "video"}, type=str)
    budget = make_budget(twin, {image: 1, video: 1}, {image: 9, video: 9})
    assert budget.get_modality_with_max_tokens() is video


@pytest.mark.parametrize(
    ("limit", "size", "changes", "expected"),
    [
        # expected: items of a prompt, and of a batch
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
        pytest.param(3, 5, {"largest": 0}, (0, 0), id="an encoder without a budget"),
    ],
)
def test_most_items(twin: Twin, limit, size, changes, expected) -> None:
    changes = {"largest": 1000, **changes}
    budget = make_budget(twin, {"image": limit}, {"image": changes.pop("largest")}, **changes)
    assert expected == budget.get_max_items("image", size)


NAN = {
    "float16": 0x7E00,
    "bfloat16": 0x7FC0,
    "float32": 0x7FC00000,
    "float64": 0x7FF8000000000000,
    "float8_e4m3fn": 0x7F,
    "float8_e5m2": 0x7E,
}
"""The bits of the NaN that fills placeholders without an embedding."""


@pytest.mark.parametrize("dtype", NAN)
@pytest.mark.parametrize(
    ("mask", "rows"),
    [
        # which row of the embeddings each placeholder gets; None is NaN
        ("", []),
        ("...", [None, None, None]),
        ("xxx", [0, 1, 2]),
        ("xx.x", [0, 1, None, 2]),
        (".x..x.", [None, 0, None, None, 1, None]),
    ],
)
def test_placeholders(twin: Twin, mask, rows, dtype) -> None:
    embeds = twin.array(np.arange(mask.count("x") * 3).reshape(-1, 3) - 1.5, dtype)
    is_embed = twin.array([entry == "x" for entry in mask], "bool")
    placed = twin.scatter_mm_placeholders(embeds, is_embed)
    size = placed.itemsize
    bits = [int.from_bytes(bytes_of(twin, row)[:size], "little") for row in placed]
    bits_of_rows = [int.from_bytes(bytes_of(twin, row)[:size], "little") for row in embeds]
    assert [NAN[dtype] if row is None else bits_of_rows[row] for row in rows] == bits
    gathered = twin.gather_mm_placeholders(placed, is_embed)
    assert embeds.dtype == placed.dtype == gathered.dtype
    assert embeds.tolist() == gathered.tolist()


def bytes_of(twin: Twin, row: Any) -> bytes:
    return bytes(row.view(twin.dtype("uint8")).tolist())


def test_without_a_mask(twin: Twin) -> None:
    for anything in (np.zeros((2, 3)), [1, 2], None):
        assert anything is twin.scatter_mm_placeholders(anything, None)
        assert anything is twin.gather_mm_placeholders(anything, None)


ROWS = np.zeros((2, 3), np.float32)


@pytest.mark.parametrize(
    ("mm_embeddings", "num_items", "what"),
    [
        ((), 0, None),
        ([ROWS, np.zeros((0, 7), np.int8)], 2, None),
        (np.zeros((4, 2, 3)), 4, None),  # 4 items in one array
        ([ROWS], 2, "has 1 items"),
        ([ROWS, ROWS[0]], 2, "1] has shape"),  # a vector is no item
        (ROWS, 2, "has shape"),
    ],
)
def test_outputs_of_encoders(twin: Twin, mm_embeddings, num_items, what) -> None:
    error = pytest.raises(ValueError, match=what) if what else contextlib.nullcontext()
    with error:
        twin.sanity_check_mm_encoder_outputs(twin.of(mm_embeddings), num_items)
