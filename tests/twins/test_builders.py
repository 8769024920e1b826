"""Builders of metadata, their thresholds and shortcuts, and groups with a builder for each part."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from conformance.laws.backends import Backend
from conformance.laws.builders import BuilderClass, OwnBuilderClass


@pytest.fixture
def recorder(twin: Any) -> Any:
    """Return a class of builders that extends the twin's interface, and records its calls."""
    return twin.convert(BuilderClass())


def make_config(twin: Any, num_drafts: Any = None, dcp_size: Any = 1) -> Any:
    """Make a configuration with so many draft tokens and decode context-parallel ranks."""
    return twin.VllmConfig(
        speculative_config=twin.SpeculativeConfig(num_speculative_tokens=num_drafts),
        parallel_config=twin.ParallelConfig(decode_context_parallel_size=dcp_size),
    )


@pytest.fixture
def make_builder(twin: Any, recorder: Any) -> Callable[..., Any]:
    """Return a function that makes a builder for the arguments of `make_config`."""
    return lambda *sizes: recorder(None, [], make_config(twin, *sizes), None)


def test_cudagraph_support(twin: Any) -> None:
    expected = {"ALWAYS": 3, "UNIFORM_BATCH": 2, "UNIFORM_SINGLE_TOKEN_DECODE": 1, "NEVER": 0}
    assert expected == {level.name: level.value for level in twin.AttentionCGSupport}


def test_cudagraph_support_of_a_builder(twin: Any, recorder: Any) -> None:
    always = type("Always", (recorder,), {"_cudagraph_support": twin.AttentionCGSupport.ALWAYS})
    assert twin.AttentionCGSupport.NEVER is recorder.get_cudagraph_support(None, None)
    assert twin.AttentionCGSupport.ALWAYS is always.get_cudagraph_support(None, None)
    assert twin.AttentionCGSupport.ALWAYS is always(1, [], 3, 4).get_cudagraph_support(None, None)
    assert twin.AttentionCGSupport.NEVER is twin.AttentionMetadataBuilder._cudagraph_support


def test_a_builder_stores_what_it_is_made_with(recorder: Any) -> None:
    given = (object(), ["layers.0"], object(), object())
    builder = recorder(*given)
    stored = (builder.kv_cache_spec, builder.layer_names, builder.vllm_config, builder.device)
    assert all(ours is theirs for ours, theirs in zip(given, stored, strict=True))


def test_a_builder_is_abstract_in_build_alone(twin: Any) -> None:
    assert {"build"} == twin.AttentionMetadataBuilder.__abstractmethods__
    assert inspect.isabstract(twin.AttentionMetadataBuilder)
    with pytest.raises(TypeError, match=r"abstract.*build"):
        twin.AttentionMetadataBuilder(None, [], None, None)


def test_shortcuts_to_build(make_builder: Any) -> None:
    builder, batch = make_builder(), object()
    arguments = {"common_prefix_len": 0, "common_attn_metadata": batch}
    for built, expected in (
        (builder.build_for_cudagraph_capture(batch), arguments),
        (builder.build_for_drafting(batch, draft_index=2), arguments | {"fast_build": True}),
        (builder.build_for_drafting(batch, 0), arguments | {"fast_build": True}),
    ):
        assert ((), expected) == (built.args, built.keywords)


def test_no_cascade_attention(twin: Any, make_builder: Any) -> None:
    assert make_builder().use_cascade_attention() is False
    assert make_builder().use_cascade_attention(5, twin.convert(np.zeros(3)), num_sms=4) is False


@pytest.mark.parametrize(
    ("num_drafts", "dcp_size", "arguments", "expected"),
    [
        (None, 1, {}, 1),
        (None, 1, {"reorder_batch_threshold": 5}, 5),
        (None, 1, {"reorder_batch_threshold": np.int64(5)}, 5),
        (None, 1, {"supports_spec_as_decode": True}, 1),
        (3, 1, {}, 1),  # drafts count as decodes only where that is supported
        (3, 1, {"supports_spec_as_decode": True}, 4),
        (np.int32(3), 1, {"supports_spec_as_decode": np.True_}, 4),
        (0, 1, {"supports_spec_as_decode": True}, 1),
        (3, 1, {"reorder_batch_threshold": 4, "supports_spec_as_decode": True}, 4),
        (3, 1, {"reorder_batch_threshold": 9, "supports_spec_as_decode": True}, 9),
        (3, 2, {"reorder_batch_threshold": 9, "supports_spec_as_decode": True}, 1),
        (3, 2, {"supports_spec_as_decode": True, "supports_dcp_with_varlen": True}, 4),
        (None, 2, {"reorder_batch_threshold": 9}, 1),
        (None, 2, {"reorder_batch_threshold": 9, "supports_dcp_with_varlen": True}, 9),
        (3, 2, {"reorder_batch_threshold": None, "supports_spec_as_decode": True}, None),
    ],
)
def test_reorder_batch_threshold(
    twin: Any,
    make_builder: Any,
    num_drafts: int | None,
    dcp_size: int,
    arguments: dict[str, Any],
    expected: int | None,
) -> None:
    builder = make_builder(num_drafts, dcp_size)
    assert builder.reorder_batch_threshold is None
    builder._init_reorder_batch_threshold(**arguments)
    assert (expected, type(expected)) == (
        builder.reorder_batch_threshold,
        type(builder.reorder_batch_threshold),
    )
    assert twin.AttentionMetadataBuilder.reorder_batch_threshold is None


def test_what_a_threshold_does_not_read(make_builder: Any) -> None:
    for speculative_config in (None, SimpleNamespace()):
        builder = make_builder()
        builder.vllm_config.speculative_config = speculative_config
        builder._init_reorder_batch_threshold(2, supports_spec_as_decode=True)
        assert 2 == builder.reorder_batch_threshold
    builder = make_builder("many")
    builder._init_reorder_batch_threshold(2)
    assert 2 == builder.reorder_batch_threshold
    builder.vllm_config = None
    builder._init_reorder_batch_threshold(None, supports_spec_as_decode=True)
    assert builder.reorder_batch_threshold is None


def test_a_group_has_a_builder_for_each_micro_batch(twin: Any) -> None:
    spec, layer_names, config, device = object(), ["layers.0"], object(), object()
    backend = twin.convert(Backend(builder=OwnBuilderClass()))
    group = twin.AttentionGroup.create_with_metadata_builders(
        backend, layer_names, spec, config, device, num_metadata_builders=np.int64(3)
    )
    assert type(group) is twin.AttentionGroup
    assert group.backend is backend
    assert group.layer_names is layer_names
    assert group.kv_cache_spec is spec
    for builder in group.metadata_builders:
        given = (builder.kv_cache_spec, builder.layer_names, builder.vllm_config, builder.device)
        assert (spec, layer_names, config, device) == given
    assert len({id(builder) for builder in group.metadata_builders}) == 3
    for i, builder in enumerate(group.metadata_builders):
        assert builder is group.get_metadata_builder(np.int32(i))
    assert group.get_metadata_builder() is group.get_metadata_builder(ubatch_id=0)
    made = (backend, layer_names, spec, config, device)
    assert 1 == len(twin.AttentionGroup.create_with_metadata_builders(*made).metadata_builders)
    with twin.refuses("ValueError: num_metadata_builders is 0, expected at least 1"):
        twin.AttentionGroup.create_with_metadata_builders(*made, 0)


def test_a_group_is_an_ordinary_dataclass(twin: Any) -> None:
    group = twin.AttentionGroup(None, [1], ["layers.0"], None)
    assert twin.AttentionGroup(None, [1], ["layers.0"], None) == group
    fields = ["backend", "metadata_builders", "layer_names", "kv_cache_spec"]
    assert fields == [field.name for field in dataclasses.fields(twin.AttentionGroup)]
    group.layer_names = []
    assert twin.AttentionGroup(None, [1], ["layers.0"], None) != group
