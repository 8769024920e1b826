from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fast
from fast import MultiModalBudget, compute_mm_encoder_budget

MODEL = fast.ModelConfig(max_model_len=100)


def make_scheduler(**changes: Any) -> fast.SchedulerConfig:  # noqa: ANN401  # bad values too
    """Make a configuration of steps of 200 tokens and 6 requests."""
    settings = {"max_num_batched_tokens": 200, "max_num_seqs": 6, **changes}
    return fast.SchedulerConfig(**settings)


class Registry:
    """A registry that says what it was told to, and records what it is asked."""

    def __init__(self, limits: Any, tokens: Any) -> None:  # noqa: ANN401  # bad values too
        self.limits = limits
        self.tokens = tokens
        self.asked: list[Any] = []

    def get_mm_limits_per_prompt(self, model_config: object, *, cache: object) -> Any:  # noqa: ANN401  # as told
        """Return the limits."""
        self.asked.append((model_config, cache))
        return self.limits

    def get_max_tokens_per_item_by_modality(
        self, model_config: object, *, cache: object, profiler_limits: object
    ) -> Any:  # noqa: ANN401  # as told
        """Return the items' tokens."""
        self.asked.append((model_config, cache, profiler_limits))
        return self.tokens


def make_budget(
    limits: dict[str, int],
    tokens: dict[str, int],
    **changes: Any,  # noqa: ANN401  # settings of the scheduler
) -> MultiModalBudget:
    """Make a budget of these limits and items."""
    return MultiModalBudget(MODEL, make_scheduler(**changes), Registry(limits, tokens))


@pytest.mark.parametrize(
    ("settings", "tokens", "expected"),
    [
        ({}, {}, (0, 0)),
        ({"disable_chunked_mm_input": None}, {}, (0, 0)),
        ({}, {"image": 30, "video": 50}, (50, 50)),
        ({"max_num_encoder_input_tokens": 60}, {"image": 30, "video": 50}, (60, 50)),
        ({"encoder_cache_size": 60}, {"image": np.int64(30)}, (30, 60)),
        ({"disable_chunked_mm_input": True}, {"image": 200}, (200, 200)),
        ({}, {"image": 201}, (201, 201)),
        ({}, {"image": 0}, (0, 0)),
    ],
)
def test_encoder_budget(
    settings: dict[str, Any], tokens: dict[str, int], expected: tuple[int, int]
) -> None:
    """Both budgets hold at least the largest item; without modalities nothing is read."""
    found = compute_mm_encoder_budget(make_scheduler(**settings), tokens)
    assert expected == found
    assert [int, int] == list(map(type, found))


@pytest.mark.parametrize(
    ("settings", "tokens", "error", "message"),
    [
        ({}, [("image", 3)], TypeError, "max_tokens_by_modality must be a dict"),
        ({}, {3: 3}, TypeError, "a key of max_tokens_by_modality must be a str"),
        ({}, {"image": 3.0}, TypeError, r"max_tokens_by_modality\['image'\] must be an int"),
        ({}, {"image": -1}, ValueError, r"max_tokens_by_modality\['image'\] is -1"),
        (
            {"disable_chunked_mm_input": True},
            {"image": 201},
            ValueError,
            r"^scheduler_config\.max_num_batched_tokens is 200, less than max_tokens_by_modality",
        ),
        ({"disable_chunked_mm_input": 1}, {"image": 1}, TypeError, "disable_chunked_mm_input must"),
        ({"encoder_cache_size": -1}, {"image": 1}, ValueError, "encoder_cache_size is -1"),
        (
            {"max_num_encoder_input_tokens": None},
            {"image": 1},
            TypeError,
            "max_num_encoder_input_tokens must be an int",
        ),
    ],
)
def test_encoder_budget_refuses(
    settings: dict[str, Any],
    tokens: Any,  # noqa: ANN401  # bad values too
    error: type[Exception],
    message: str,
) -> None:
    """What is read is checked, and an item that must stay in one step fits into one."""
    with pytest.raises(error, match=message):
        compute_mm_encoder_budget(make_scheduler(**settings), tokens)


def test_what_is_read() -> None:
    """The registry is asked with its cache, and its dicts are kept as they are."""
    registry = Registry({"image": 4, "audio": 1}, {"image": 30, "audio": 8})
    cleared = []
    cache = SimpleNamespace(clear_cache=lambda: cleared.append(1))
    registry.processor_only_cache_from_config = lambda config: config is MODEL and cache  # type: ignore[attr-defined]  # optional
    budget = MultiModalBudget(MODEL, make_scheduler(encoder_cache_size=90), registry)
    assert [(MODEL, cache), (MODEL, cache, registry.limits)] == registry.asked
    assert budget.mm_limits is registry.limits
    assert budget.max_tokens_by_modality is registry.tokens
    assert (100, 6) == (budget.max_model_len, budget.max_num_reqs)
    assert (30, 90) == (budget.encoder_compute_budget, budget.encoder_cache_size)
    assert 30 == budget.get_encoder_budget()
    assert {"image": 3, "audio": 1} == budget.max_items_per_prompt_by_modality
    assert {"image": 1, "audio": 3} == budget.max_items_per_batch_by_modality
    budget.reset_cache()
    assert [1] == cleared


@pytest.mark.parametrize("absent", [False, True])
def test_without_a_cache(*, absent: bool) -> None:
    """A registry without a cache, or whose maker of caches is None, gets None."""
    registry = Registry({}, {})
    if not absent:
        registry.processor_only_cache_from_config = None  # type: ignore[attr-defined]  # optional
    MultiModalBudget(MODEL, make_scheduler(), registry).reset_cache()
    assert (MODEL, None) == registry.asked[0]


@pytest.mark.parametrize(
    ("settings", "size", "expected"),
    [
        ({}, 0, (0, 0)),
        ({}, 10, (4, 6)),
        ({}, 30, (3, 2)),
        ({}, 101, (1, 1)),
        ({"max_num_seqs": 1}, 10, (4, 4)),
        ({"enable_chunked_prefill": False}, 10, (4, 6)),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 10}, 10, (4, 4)),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 9}, 10, (4, 1)),
    ],
)
def test_items(settings: dict[str, Any], size: int, expected: tuple[int, int]) -> None:
    """The limit, the model's length, the decoder and the encoder each bound the items."""
    budget = make_budget({"image": 4, "video": 0}, {"image": 60}, **settings)
    assert expected == budget.get_max_items("image", size)
    assert 1 == budget.get_max_items("video", 10)[0]


def test_no_encoder_budget() -> None:
    """Without a budget there are no items, and an unknown modality is still refused."""
    budget = make_budget({"image": 4}, {})
    assert (0, 0) == budget.get_max_items("image", 10)
    with pytest.raises(KeyError, match=r"modality is 'video', expected one of mm_limits: \['im"):
        budget.get_max_items("video", 10)


def test_the_largest_modality() -> None:
    """Of equals the last by name, whatever the order; of none there is no largest."""
    limits = {"a": 1, "b": 1, "c": 1}
    for names in ("abc", "cba", "bca"):
        tokens = {name: 5 if name == "a" else 9 for name in names}
        assert "c" == make_budget(limits, tokens).get_modality_with_max_tokens()
    assert "b" == make_budget(limits, {"a": 5, "b": 6}).get_modality_with_max_tokens()
    with pytest.raises(ValueError, match="has no modalities"):
        make_budget({}, {}).get_modality_with_max_tokens()


def test_modalities_of_an_enum() -> None:
    """A modality that is a member of an enum of texts comes back as it is."""
    kinds = Enum("kinds", {"IMAGE": "image", "VIDEO": "video"}, type=str)
    image, video = kinds
    limits: Any = {image: 1, video: 1}
    largest: Any = make_budget(limits, {image: 9, video: 9}).get_modality_with_max_tokens()
    assert largest is video


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: make_budget({}, {"image": 4}), KeyError, "modality is 'image', expected one "),
        (lambda: make_budget(["image"], {}), TypeError, "mm_limits must be a dict"),  # type: ignore[arg-type]  # that is the test
        (lambda: make_budget({"image": -1}, {}), ValueError, r"mm_limits\['image'\] is -1"),
        (lambda: make_budget({}, {}, max_num_seqs=0), ValueError, "max_num_seqs is 0"),
        (lambda: make_budget({}, {}, enable_chunked_prefill=1), TypeError, "enable_chunked_pre"),
        (lambda: make_budget({"a": 1}, {}).get_max_items("a", -1), ValueError, "per_item is -1"),
        (lambda: make_budget({"a": 1}, {}).get_max_items("a", 1.0), TypeError, "per_item must be"),  # type: ignore[arg-type]  # that is the test
        (lambda: make_budget({"a": 1}, {}).get_max_items(1, 1), TypeError, "modality must be a"),  # type: ignore[arg-type]  # that is the test
        (
            lambda: MultiModalBudget(MODEL, make_scheduler(), SimpleNamespace()),
            AttributeError,
            "get_mm_limits_per_prompt",
        ),
        (
            lambda: MultiModalBudget(
                SimpleNamespace(max_model_len=0), make_scheduler(), Registry({}, {})
            ),
            ValueError,
            "max_model_len is 0",
        ),
    ],
)
def test_budget_refuses(call: Any, error: type[Exception], message: str) -> None:  # noqa: ANN401  # a call
    """What is read is checked when the budget is made."""
    with pytest.raises(error, match=message):
        call()
