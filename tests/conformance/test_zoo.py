"""The models of the zoo: their published numbers, and how they are grouped and placed."""

from collections import Counter
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

import fast
from conformance.targets.implementations import Implementation
from conformance.targets.target import REFERENCE, Target
from conformance.zoo.deployment import deploy, first_memory_difference
from conformance.zoo.groups import block_bytes, make_groups, make_kv_cache_config
from conformance.zoo.models import MODELS

KIB_OF_A_TOKEN = {
    # Published sizes of these caches in bfloat16, over all layers.
    "llama-3.1-8b": 128,
    "llama-3.1-70b": 320,
    "qwen2.5-7b": 56,
    "mistral-7b-v0.1": 128,
    "phi-3-mini-4k": 384,
    "deepseek-v3": 70_272 / 1024,
    "deepseek-v3.2-exp": 61 * (656 + 132) / 1024,  # packed, and the indexer's
    "longcat-flash": 63,
}

LAYERS = {
    "gemma-2-9b": {"sliding_window": 21, "full": 21},
    "gemma-3-27b": {"sliding_window": 52, "full": 10},
    "gpt-oss-20b": {"sliding_window": 12, "full": 12},
    "llama-4-scout": {"chunked_local": 36, "full": 12},
    "qwen3-next-80b-a3b": {"mamba": 36, "full": 12},
    "jamba-v0.1": {"mamba": 28, "full": 4},
    "nemotron-nano-9b-v2": {"mamba": 27, "full": 4},
    "whisper-large-v3": {"encoder_only": 32, "full": 32, "cross": 32},
}


@pytest.mark.parametrize("name", KIB_OF_A_TOKEN)
def test_a_token_takes_the_known_bytes(name: str) -> None:
    groups = make_groups(REFERENCE, MODELS[name])
    token_bytes = block_bytes(REFERENCE, groups) / MODELS[name].block_size
    assert KIB_OF_A_TOKEN[name] == token_bytes / 1024


@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_of_the_published_kinds(name: str) -> None:
    assert LAYERS[name] == Counter(layer.kind for layer in MODELS[name].layers)


def test_layers_share_the_cache_of_the_last_of_their_kind() -> None:
    """The last 15 layers of Gemma 3n read the caches of layer 18, or of 19 where they see all."""
    sharing = {
        layer.name.split(".")[3]: layer.kv_sharing_target.split(".")[3]
        for layer in MODELS["gemma-3n-e4b"].layers
        if layer.kv_sharing_target is not None
    }
    assert {str(i): "19" if i % 5 == 4 else "18" for i in range(20, 35)} == sharing


@pytest.mark.parametrize("name", ["qwen3-next-80b-a3b", "jamba-v0.1", "nemotron-nano-9b-v2"])
def test_a_block_of_a_hybrid_holds_the_states_of_a_request(name: str) -> None:
    groups = make_groups(REFERENCE, MODELS[name])
    config = make_kv_cache_config(REFERENCE, MODELS[name], groups, 2**30)
    assert 1 == len({group.kv_cache_spec.page_size_bytes for group in config.kv_cache_groups})


def test_the_last_group_of_a_kind_may_be_shorter() -> None:
    """Gemma 3 has 10 full layers: its 52 sliding ones make five groups of 10, and one of 2."""
    model = MODELS["gemma-3-27b"]
    groups = make_groups(REFERENCE, model)
    assert [10, 10, 10, 10, 10, 2, 10] == [len(group.layers) for group in groups]
    config = make_kv_cache_config(REFERENCE, model, groups, 2**24)
    assert [7, 7, *[6] * 8] == [len(tensor.shared_by) for tensor in config.kv_cache_tensors]
    assert {group.layer_names[0] for group in groups} == set(config.kv_cache_tensors[0].shared_by)


def test_a_cache_in_other_memory_is_reported() -> None:
    def moved(*arguments: Any, **keywords: Any) -> None:  # noqa: ANN401  # takes the function's place
        fast.init_kv_cache(*arguments, **keywords)
        layer = arguments[1]["model.layers.3.self_attn.attn"]
        layer.kv_cache[0] = layer.kv_cache[0].clone()

    known = {name: getattr(fast, name) for name in fast.__all__}
    module = cast("ModuleType", SimpleNamespace(**{**known, "init_kv_cache": moved}))
    broken = Target("broken", Implementation("broken", module))
    model = MODELS["gpt-oss-20b"]
    difference = first_memory_difference(
        deploy(REFERENCE, model, 2**23), deploy(broken, model, 2**23)
    )
    assert difference is not None
    assert "model.layers.3.self_attn.attn" in difference.path
