"""A backend that nobody knew of goes the whole way: cache, builders, metadata, in both twins."""

from __future__ import annotations

from typing import Any

import pytest
from custom_engine import (
    BLOCK_SIZE,
    BLOCKS,
    GROUPS,
    HEAD_SIZE,
    HEADS,
    NUM_BLOCKS,
    NUM_PADDED,
    SHARED,
    TENSORS,
    Engine,
)

from conformance.aliases import share_memory
from conformance.comparison import first_difference
from conformance.laws.interpretation import as_reference
from conformance.targets import REFERENCE, TARGETS
from conformance.views import first_view_difference
from reference import kv_reads, kv_writes


@pytest.fixture(scope="module")
def engines() -> tuple[Engine, Engine]:
    """Make reference's engine, and fast's."""
    return Engine(REFERENCE), Engine(TARGETS["host"])


def test_the_twins_agree(engines: tuple[Engine, Engine]) -> None:
    """Specs, backends, builders, block sizes, caches and metadata are the same in both twins."""
    facts = [
        {
            "specs": engine.specs,
            "groups": engine.kv_cache_config,
            "runner only": sorted(engine.runner_only),
            "backends": engine.attn_backends,
            "builders": engine.builders,
            "kernel block sizes": engine.kernel_block_sizes,
            "metadata": engine.metadata,
            "caches": engine.kv_caches,
            "the runner's caches": engine.runner_kv_caches,
        }
        for engine in engines
    ]
    assert first_difference(*facts) is None  # type: ignore[arg-type]  # two of them
    caches: list[Any] = [(engine.kv_caches, engine.runner_kv_caches) for engine in engines]
    assert first_view_difference(*caches, {}, {}) is None


def test_the_cache_is_as_the_backend_says(engines: tuple[Engine, Engine]) -> None:
    """By hand: 16 tokens to a kernel's block, 12 of these, and the strides of the order."""
    page = 2 * BLOCK_SIZE * HEADS * HEAD_SIZE * 2
    for engine in engines:
        assert [16, 16, 16] == engine.kernel_block_sizes
        assert {page} == {spec.page_size_bytes for spec in engine.specs.values()}
        assert [8192 * NUM_BLOCKS] * 2 == [t.size for t in engine.kv_cache_config.kv_cache_tensors]
        for [cache] in engine.kv_caches.values():
            assert (2, 12, 16, HEADS, HEAD_SIZE) == tuple(cache.shape)
            strides = cache.strides if engine.device is None else cache.stride()
            size = cache.itemsize if engine.device is None else 1
            assert [256, 2048, 16, 512, 1] == [stride // size for stride in strides]


def test_layers_share_what_they_should(engines: tuple[Engine, Engine]) -> None:
    """One tensor for a layer of each group; a layer that shares sees its target's cache."""
    for engine in engines:
        assert set(SHARED) == engine.runner_only
        assert 6 == len(engine.specs)
        names = [f"model.layers.{i}.self_attn.attn" for i in range(8)]
        caches = {name: engine.layers[name].kv_cache[0] for name in names}
        assert all(cache is engine.runner_kv_caches[i] for i, cache in enumerate(caches.values()))
        for one in names:
            tensor = next(tensor for tensor in TENSORS if one in tensor)
            shared = {other for other in names if share_memory(caches[one], caches[other])}
            assert set(tensor) == shared
        for layer, target in SHARED.items():
            caches[target][1, 7, 3, 2, 5] = 3.0
            assert 3.0 == float(caches[layer][1, 7, 3, 2, 5])
            tensor = next(tensor for tensor in TENSORS if target in tensor)
            written = {name: int((cache != 0).sum()) for name, cache in caches.items()}
            assert {name: int(name in tensor) for name in names} == written
            caches[target][1, 7, 3, 2, 5] = 0.0


def test_builders_are_each_group_s_own(engines: tuple[Engine, Engine]) -> None:
    """By hand: windows, thresholds, the one workspace, and who made whose builder."""
    for engine in engines:
        first, second, third = engine.builders
        assert type(first) is type(second) is engine.backend.get_builder_cls()
        assert type(third) is engine.other.get_builder_cls()
        assert "NearZigzagBackend" == engine.other.__name__
        assert [-1, 63, 7] == [builder.plan.window_left for builder in engine.builders]
        assert all(builder.plan.has_same_all_params for builder in engine.builders)
        assert [3, 3, 3] == [builder.reorder_batch_threshold for builder in engine.builders]
        assert first.workspace is second.workspace is third.workspace
        assert ["model.layers.0.self_attn.attn"] == first.workspace
        assert [*GROUPS[0], "model.layers.6.self_attn.attn"] == first.layer_names


def test_each_group_s_metadata_is_the_step_s(engines: tuple[Engine, Engine]) -> None:
    """By hand: counts, maxima and slots; and what a request reads is where it was written."""
    for engine in engines:
        groups = [group.layer_names for group in engine.kv_cache_config.kv_cache_groups]
        assert [name for names in groups for name in names] == list(engine.metadata)
        for g, names in enumerate(groups):
            built = engine.metadata[names[0]]
            assert all(engine.metadata[name] is built for name in names)
            assert ("ZigzagAttentionMetadata", 0) == (type(built).__name__, built.prefix)
            assert built.plan is engine.builders[g].plan
            common = as_reference(built.common)
            assert (2, 40, 35, 41) == (
                common.num_reqs,
                common.num_actual_tokens,
                common.max_query_len,
                common.max_seq_len,
            )
            first, begun = BLOCKS[g][0][1] * 32 + 8, BLOCKS[g][1][0] * 32
            assert [first, begun] == common.slot_mapping[:2].tolist()
            assert [-1] * NUM_PADDED == common.slot_mapping[36:].tolist()
            reads = kv_reads(common, BLOCK_SIZE, kernel_block_size=16)
            new = {(token, token - 1, slot) for token, slot in kv_writes(common) if token}
            assert new <= reads
            assert sum(range(1, 36)) + 41 == len(reads)


def test_a_captured_graph_would_see_the_next_step(engines: tuple[Engine, Engine]) -> None:
    """The metadata of all groups are views of the runner's buffers, host and device."""
    for engine in engines:
        for built in engine.metadata.values():
            for name, buffer in (("query_start_loc", engine.starts), ("seq_lens", engine.lens)):
                assert share_memory(getattr(built.common, name), buffer.gpu)
                assert share_memory(getattr(built.common, f"{name}_cpu"), buffer.cpu)
