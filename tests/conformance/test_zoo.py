"""The models of the zoo: their published numbers, and how they are divided, grouped and placed."""

from collections import Counter
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

import fast
import reference
from conformance.targets.implementations import Implementation
from conformance.targets.target import REFERENCE, Target
from conformance.zoo.backends import Backends
from conformance.zoo.deployment import deploy, first_memory_difference
from conformance.zoo.groups import (
    block_bytes,
    make_group_spec,
    make_groups,
    make_kv_cache_config,
)
from conformance.zoo.models import FULL, MODELS, SLIDING_WINDOW, Layer, Serving

PUBLISHED = {
    # Context; layers by kind; query heads, KV heads and head size of the first attention layer.
    "llama-3.1-8b": (131_072, {"full": 32}, (32, 8, 128)),
    "llama-3.1-70b": (131_072, {"full": 80}, (64, 8, 128)),
    "qwen2.5-7b": (131_072, {"full": 28}, (28, 4, 128)),
    "mistral-7b-v0.1": (32_768, {"sliding_window": 32}, (32, 8, 128)),
    "phi-3-mini-4k": (4096, {"sliding_window": 32}, (32, 32, 96)),
    "gemma-2-9b": (8192, {"sliding_window": 21, "full": 21}, (16, 8, 256)),
    "gemma-3-27b": (131_072, {"sliding_window": 52, "full": 10}, (32, 16, 128)),
    "gemma-3n-e4b": (32_768, {"sliding_window": 28, "full": 7}, (8, 2, 256)),
    "gpt-oss-20b": (131_072, {"sliding_window": 12, "full": 12}, (64, 8, 64)),
    "llama-4-scout": (10_485_760, {"chunked_local": 36, "full": 12}, (40, 8, 128)),
    "deepseek-v3": (163_840, {"latent": 61}, (128, 1, 576)),
    "deepseek-v3.2-exp": (163_840, {"latent": 122}, (128, 1, 576)),
    "longcat-flash": (131_072, {"latent": 56}, (64, 1, 576)),
    "qwen3-next-80b-a3b": (262_144, {"mamba": 36, "full": 12}, (16, 2, 256)),
    "jamba-v0.1": (262_144, {"mamba": 28, "full": 4}, (32, 8, 128)),
    "nemotron-nano-9b-v2": (131_072, {"mamba": 27, "full": 4}, (40, 8, 128)),
    "whisper-large-v3": (448, {"encoder_only": 32, "full": 32, "cross": 32}, (20, 20, 64)),
}

WINDOWS = {
    "mistral-7b-v0.1": 4096,
    "phi-3-mini-4k": 2047,
    "gemma-2-9b": 4096,
    "gemma-3-27b": 1024,
    "gemma-3n-e4b": 512,
    "gpt-oss-20b": 128,
}

KIB_OF_A_TOKEN = {
    # Published sizes of these caches in bfloat16, over all layers.
    "llama-3.1-8b": 128,
    "llama-3.1-70b": 320,
    "qwen2.5-7b": 56,
    "mistral-7b-v0.1": 128,
    "phi-3-mini-4k": 384,
    "gpt-oss-20b": 48,
    "deepseek-v3": 70_272 / 1024,
    "deepseek-v3.2-exp": 61 * (2 * 576 + 132) / 1024,
    "longcat-flash": 63,
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_the_published_numbers(name: str) -> None:
    """Each model's numbers are those of its configuration file."""
    model = MODELS[name]
    first = next(layer for layer in model.layers if layer.num_query_heads)
    found = (
        model.max_context_tokens,
        dict(Counter(layer.kind for layer in model.layers)),
        (first.num_query_heads, first.num_kv_heads, first.head_size),
    )
    assert PUBLISHED[name] == found
    assert {WINDOWS.get(name)} == {
        layer.sliding_window for layer in model.layers if layer.kind == SLIDING_WINDOW
    } or name not in WINDOWS
    assert len(model.layers) == len({layer.name for layer in model.layers})


@pytest.mark.parametrize("name", KIB_OF_A_TOKEN)
def test_a_token_takes_the_known_bytes(name: str) -> None:
    """The cache size of a token, over all layers, is the model's published or usual figure."""
    target, serving = REFERENCE, Serving(model=MODELS[name])
    groups = make_groups(target, serving)
    block_sizes = {group.block_size for group in groups}
    assert len(block_sizes) == 1
    token_bytes = len(groups) * block_bytes(target, groups) / block_sizes.pop()
    assert KIB_OF_A_TOKEN[name] == token_bytes / 1024


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama-4-scout", range(3, 48, 4)),
        ("gemma-3-27b", range(5, 62, 6)),
        ("qwen3-next-80b-a3b", range(3, 48, 4)),
        ("jamba-v0.1", [4, 12, 20, 28]),
        ("nemotron-nano-9b-v2", [14, 21, 30, 39]),
        ("gpt-oss-20b", range(1, 24, 2)),
    ],
)
def test_layers_are_where_their_pattern_says(name: str, expected: Sequence[int]) -> None:
    """The full layers of a model have the published places."""
    names = [layer.name.split(".") for layer in MODELS[name].layers if layer.kind == FULL]
    assert list(expected) == [next(int(part) for part in name if part.isdigit()) for name in names]


def test_layers_share_the_cache_of_the_last_of_their_kind() -> None:
    """The last 15 layers of Gemma 3n read the caches of layer 18, or of 19 where they see all."""
    sharing = {
        layer.name.split(".")[3]: layer.kv_sharing_target.split(".")[3]
        for layer in MODELS["gemma-3n-e4b"].layers
        if layer.kv_sharing_target is not None
    }
    assert {str(i): "19" if i % 5 == 4 else "18" for i in range(20, 35)} == sharing


@pytest.mark.parametrize(
    ("name", "states", "block_size"),
    [
        ("qwen3-next-80b-a3b", [((3, 8192), None), ((32, 128, 128), None)], 544),
        ("jamba-v0.1", [((3, 8192), None), ((8192, 16), None)], 80),
        ("nemotron-nano-9b-v2", [((3, 12_288), None), ((128, 80, 128), "float32")], 1312),
    ],
)
def test_states_raise_the_block_size(
    name: str, states: list[tuple[tuple[int, ...], str | None]], block_size: int
) -> None:
    """Mamba states have their published sizes, and an attention block is at least as large."""
    model = MODELS[name]
    layer = next(layer for layer in model.layers if layer.states)
    assert states == [(state.shape, state.dtype) for state in layer.states]
    groups = make_groups(REFERENCE, Serving(model=model))
    assert {block_size} == {group.block_size for group in groups if group.kind == FULL}
    assert 1 == len({make_group_spec(REFERENCE, group).page_size_bytes for group in groups})


def test_a_rank_has_its_part_of_a_layer() -> None:
    """Heads are divided, too few KV heads are on several ranks, a latent is whole on each."""

    def first(name: str, ranks: int) -> Layer:
        return Serving(model=MODELS[name], tensor_parallel_size=ranks).layers[0]

    llama = first("llama-3.1-70b", 16)
    assert (4, 1) == (llama.num_query_heads, llama.num_kv_heads)
    deepseek = first("deepseek-v3", 16)
    assert (8, 1, 576) == (deepseek.num_query_heads, deepseek.num_kv_heads, deepseek.head_size)
    jamba = first("jamba-v0.1", 4)
    assert [(3, 2048), (2048, 16)] == [state.shape for state in jamba.states]


def test_what_cannot_be_divided_is_refused() -> None:
    """Ranks that do not divide the heads or channels are refused."""
    six = Layer(name="0", kind=FULL, num_query_heads=12, num_kv_heads=6)
    with pytest.raises(ValueError, match="0 has 6 heads or channels, for 4 ranks"):
        six.divided(4)


def test_packed_latents_have_a_format_of_their_own() -> None:
    """Sparse latents are bfloat16, or bytes of FlashMLA's format; the indexer's are bytes."""
    name = "deepseek-v3.2-exp"
    latent, indexer = Serving(model=MODELS[name]).layers[:2]
    assert ("bfloat16", None, "uint8") == (latent.dtype, latent.cache_dtype_str, indexer.dtype)
    packed = Serving(model=MODELS[name], packs_latents=True)
    assert ("uint8", "fp8_ds_mla") == (packed.layers[0].dtype, packed.layers[0].cache_dtype_str)
    [group] = make_groups(REFERENCE, packed)
    assert 61 * 64 * (656 + 132) == make_group_spec(REFERENCE, group).page_size_bytes


def test_the_last_group_of_a_kind_may_be_shorter() -> None:
    """Gemma 3 has 10 full layers: its 52 sliding ones make five groups of 10, and one of 2."""
    target, serving = REFERENCE, Serving(model=MODELS["gemma-3-27b"])
    groups = make_groups(target, serving)
    assert [10, 10, 10, 10, 10, 2, 10] == [len(group.layers) for group in groups]
    config = make_kv_cache_config(target, serving, groups, 2**24)
    assert [7, 7, *[6] * 8] == [len(tensor.shared_by) for tensor in config.kv_cache_tensors]
    assert {group.layer_names[0] for group in groups} == set(config.kv_cache_tensors[0].shared_by)


@pytest.mark.parametrize("name", MODELS)
def test_a_tensor_holds_one_layer_of_a_group(name: str) -> None:
    """Layers that share a tensor are of different groups, unless they share a cache.

    Every layer that has a cache, of its own or another's, is in one tensor and one group.
    """
    target, serving = REFERENCE, Serving(model=MODELS[name])
    config = make_kv_cache_config(target, serving, make_groups(target, serving), 2**30)
    group_of = {
        layer: number
        for number, group in enumerate(config.kv_cache_groups)
        for layer in group.layer_names
    }
    targets = {layer.name: layer.kv_sharing_target for layer in serving.layers}
    held = [layer for tensor in config.kv_cache_tensors for layer in tensor.shared_by]
    caching = [layer.name for layer in serving.layers if layer.kind != "encoder_only"]
    assert sorted(caching) == sorted(held)
    for tensor in config.kv_cache_tensors:
        owners = [layer for layer in tensor.shared_by if targets[layer] is None]
        assert len(owners) == len({group_of[layer] for layer in owners})
        readers = set(tensor.shared_by) - set(owners)
        assert {targets[layer] for layer in readers} <= set(owners)
        assert all(group_of[layer] == group_of[str(targets[layer])] for layer in readers)


def test_what_a_group_takes_of_a_request() -> None:
    """Attention takes blocks by length, states one, cross attention the encoder's."""

    def blocks(name: str, num_tokens: int) -> list[int]:
        serving = Serving(model=MODELS[name])
        groups = make_groups(REFERENCE, serving)
        return [group.num_blocks(num_tokens) for group in groups]

    assert [28, 94, 0] == blocks("whisper-large-v3", 448)
    assert [1, 1, 1, 3] == blocks("qwen3-next-80b-a3b", 1089)


def test_shapes_and_orders_of_the_catalogue() -> None:
    """Backends give the shapes and orders of their kernels, states none."""
    backends = Backends(REFERENCE)
    assert (7, 64, 656) == backends.get("FLASHMLA_SPARSE", "latent").get_kv_cache_shape(
        7, 64, 1, 576, "fp8_ds_mla"
    )
    flash = backends.get("FLASH_ATTN", "full")
    assert "FLASH_ATTN" == flash.get_name()
    assert (0, 1, 2, 3, 4) == flash.get_kv_cache_stride_order()
    assert [reference.MultipleOf(16)] == flash.get_supported_kernel_block_sizes()
    assert (9, 2, 16, 8, 64) == backends.get("FLASHINFER", "full").get_kv_cache_shape(9, 16, 8, 64)
    reference.set_kv_cache_layout("HND")
    try:
        assert (0, 1, 3, 2, 4) == flash.get_kv_cache_stride_order()
    finally:
        reference.set_kv_cache_layout(None)
    latents = backends.get("FLASHMLA", "latent")
    with pytest.raises(NotImplementedError):
        latents.get_kv_cache_stride_order()
    mamba = backends.get("MAMBA2_ATTN", "mamba")
    with pytest.raises(NotImplementedError, match="MAMBA2_ATTN works on states"):
        mamba.get_kv_cache_shape(1, 1, 1, 1)


def test_sinks_and_scales_reach_the_layers() -> None:
    """Layers have the parameters of the published models."""

    def common(name: str) -> list[Any]:
        deployment = deploy(REFERENCE, Serving(model=MODELS[name]), 2**25)
        return [of_group for _, of_group in deployment.parameters]

    assert [True, True] == [group.has_sinks for group in common("gpt-oss-20b")]
    assert [127, -1] == [group.window_left for group in common("gpt-oss-20b")]
    assert {168**-0.5} == {group.sm_scale for group in common("gemma-3-27b")}
    assert {1.0} == {group.sm_scale for group in common("gemma-3n-e4b")}
    [latents] = common("deepseek-v3")
    assert 0.1352 == pytest.approx(latents.sm_scale, abs=1e-4)


def test_two_modules_of_a_layer_are_bound_in_turn() -> None:
    """Caches of LongCat are in the order of layers, and of modules within these."""
    target, serving = REFERENCE, Serving(model=MODELS["longcat-flash"])
    deployment = deploy(target, serving, 2**23)
    caches = list(deployment.kv_caches.values())
    assert 56 == len(deployment.runner_kv_caches)
    assert all(a is b for a, b in zip(caches, deployment.runner_kv_caches, strict=True))
    assert "model.layers.0.self_attn.1.attn" == list(deployment.kv_caches)[1]


def test_a_deployment_of_its_own_kind_is_compared() -> None:
    """A layer whose cache is in other memory is reported, with its name."""

    def moved(*arguments: Any, **keywords: Any) -> None:  # noqa: ANN401  # takes the function's place
        fast.init_kv_cache(*arguments, **keywords)
        layer = arguments[1]["model.layers.3.self_attn.attn"]
        layer.kv_cache[0] = layer.kv_cache[0].clone()

    known = {name: getattr(fast, name) for name in fast.__all__}
    module = cast("ModuleType", SimpleNamespace(**{**known, "init_kv_cache": moved}))
    broken = Target("broken", Implementation("broken", module))
    serving = Serving(model=MODELS["gpt-oss-20b"], tensor_parallel_size=8)
    expected = deploy(REFERENCE, serving, 2**20)
    difference = first_memory_difference(expected, deploy(broken, serving, 2**20))
    assert difference is not None
    assert "model.layers.3.self_attn.attn" in difference.path
