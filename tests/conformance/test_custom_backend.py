"""A custom backend serves a model with three KV cache groups and shared layers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conformance.targets.target import REFERENCE, TARGETS, Target
from conformance.test_zoo import make_step
from conformance.values.aliases import share_memory
from conformance.values.comparison import first_difference
from conformance.zoo import backends
from conformance.zoo.deployment import (
    Deployment,
    build_metadata,
    deploy,
    first_memory_difference,
    observe,
)
from conformance.zoo.models import CHUNKED_LOCAL, FULL, SLIDING_WINDOW, Layer, Model

STRIDE_ORDER = (1, 3, 0, 2, 4)  # a 3-cycle, which is not its own inverse
ZIGZAG = replace(
    backends.BACKENDS["FLASHINFER"],
    name="ZIGZAG",
    axes=("keys and values", "blocks", "tokens", "heads", "head"),
    kernel_block_sizes=(8, 16),
    multiples_of=(48,),
    reorders=True,
)
FULL_LAYER = Layer(
    name="model.layers.{}.attn",
    kind=FULL,
    backend="ZIGZAG",
    num_query_heads=4,
    num_kv_heads=4,
    head_size=16,
)
PATTERN = (
    FULL_LAYER,
    replace(FULL_LAYER, kind=SLIDING_WINDOW, sliding_window=64),
    replace(FULL_LAYER, kind=CHUNKED_LOCAL, attention_chunk_size=64),
)
LAYERS = [replace(PATTERN[i % 3], name=FULL_LAYER.name.format(i)) for i in range(6)]
NAMES = [layer.name for layer in LAYERS]
SHARED = {"model.layers.6.attn": NAMES[3], "model.layers.7.attn": NAMES[1]}
MODEL = Model(
    name="zigzag",
    layers=(
        *LAYERS,
        replace(LAYERS[3], name="model.layers.6.attn", kv_sharing_target=NAMES[3]),
        replace(LAYERS[1], name="model.layers.7.attn", kv_sharing_target=NAMES[1]),
    ),
    max_model_len=2048,
    block_size=32,
    num_speculative_tokens=2,
)
TENSORS = [[*NAMES[:3], "model.layers.7.attn"], [*NAMES[3:], "model.layers.6.attn"]]
NUM_BLOCKS, PAGE_BYTES = 6, 2 * 32 * 4 * 16 * 2


@pytest.fixture(autouse=True)
def _zigzag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backends.BACKENDS, "ZIGZAG", ZIGZAG)
    orders = dict.fromkeys(("NHD", "HND"), STRIDE_ORDER)
    monkeypatch.setattr(backends, "STRIDE_ORDERS", orders)


def deploy_in(target: Target) -> Deployment:
    return deploy(target, MODEL, len(TENSORS) * NUM_BLOCKS * PAGE_BYTES)


@pytest.fixture(params=[REFERENCE, TARGETS["host"]], ids=lambda target: target.name)
def deployed(request: pytest.FixtureRequest) -> tuple[Target, Deployment]:
    """Return a twin with the model that it serves."""
    return request.param, deploy_in(request.param)


def test_the_twins_agree() -> None:
    """Caches, backends, builders and the metadata of a step are the same in both twins."""
    twins = REFERENCE, TARGETS["host"]
    expected, actual = map(deploy_in, twins)
    assert first_memory_difference(expected, actual) is None
    first, second = (
        (observe(twin, one), build_metadata(twin, one, **make_step(twin, one)))
        for twin, one in zip(twins, (expected, actual), strict=True)
    )
    assert first_difference(first, second, "deployment", "cpu") is None


def test_the_cache_is_as_the_backend_says(deployed: tuple[Target, Deployment]) -> None:
    """Caches have kernel blocks of 16 tokens, two per manager block, and the order's strides."""
    target, engine = deployed
    assert [16, 16, 16] == engine.kernel_block_sizes
    assert [NUM_BLOCKS * PAGE_BYTES] * 2 == [
        t.size for t in engine.kv_cache_config.kv_cache_tensors
    ]
    for cache in engine.kv_caches.values():
        assert (2, 12, 16, 4, 16) == tuple(cache.shape)
        size = cache.itemsize
        strides = cache.strides if target is REFERENCE else [s * size for s in cache.stride()]
        assert [256 * size, 2048 * size, 16 * size, 512 * size, size] == list(strides)


def test_layers_share_what_they_should(deployed: tuple[Target, Deployment]) -> None:
    """Layers of one tensor share its memory, and a layer that shares a cache sees its target's."""
    _, engine = deployed
    caches = engine.kv_caches
    assert [*NAMES, *SHARED] == list(caches)
    assert all(a is b for a, b in zip(caches.values(), engine.runner_kv_caches, strict=True))
    for tensor in TENSORS:
        for one in tensor:
            shared = {other for other in caches if share_memory(caches[one], caches[other])}
            assert set(tensor) == shared
    for layer, target in SHARED.items():
        caches[target][1, 7, 3, 2, 5] = 3.0
        assert 3.0 == float(caches[layer][1, 7, 3, 2, 5])


def test_builders_are_each_group_s_own(deployed: tuple[Target, Deployment]) -> None:
    """Builders are of their backend's class."""
    _, engine = deployed
    builders = engine.builders
    backends_of = [engine.attn_backends[name] for name in NAMES[:3]]
    assert [cls.get_builder_cls() for cls in backends_of] == [type(one) for one in builders]
    assert "ChunkedLocalAttentionZIGZAGBackend" == backends_of[2].__name__
    assert [3, 3, 3] == [builder.reorder_batch_threshold for builder in builders]
    assert [NAMES[0], NAMES[3], "model.layers.6.attn"] == builders[0].layer_names
