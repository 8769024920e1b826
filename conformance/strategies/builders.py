"""Calls of the methods of metadata builders and attention groups."""

from __future__ import annotations

import dataclasses
from typing import Any

import reference
from conformance.coverage.presets import Preset
from conformance.strategies import cached as st
from conformance.strategies.attention_layers import (
    builder_classes,
    config_of,
    full_spec,
    own_config,
)
from conformance.strategies.batch import Batch, Layout
from conformance.strategies.batches import batches
from conformance.strategies.stub_factories import BackendClass, Builder, BuilderClass
from conformance.targets.factories import DEVICE
from conformance.values.call import Call

THRESHOLD_AXES = ("threshold", "speculative tokens", "ranks")
DRAFT_INDEX = "draft_index"
LAYERS = "layers"
BUILDERS = "builders"


@dataclasses.dataclass(frozen=True)
class ThresholdOptions:
    """A requested reorder threshold, and the numbers in the configuration.

    Attributes:
        threshold: The threshold; None for no reordering.
        num_drafts: Speculative tokens; None if not configured.
        num_ranks: Ranks that share each sequence's cache in decodes.
    """

    threshold: int | None
    num_drafts: int | None
    num_ranks: int


NUMBERS: dict[str, tuple[tuple[Any, ...], ...]] = {
    "any": ((None, None, 1, 1, 2, 8, 8), (None, 0, 1, 4, 4), (1, 2)),
    "drafts and ranks": ((1, 2), (4,), (2,)),
    "few drafts": ((3, 8), (0, 1), (1,)),
}
"""Requested thresholds, numbers of drafts and of ranks; "any" may not support drafts."""


@st.composite
def threshold_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `_init_reorder_batch_threshold`, with and without each of its defaults."""
    # Draw related values often: thresholds, their drafts, and ranks that lower them.
    kind = draw(st.sampled_from(("any", "any", "drafts and ranks", "few drafts")))
    threshold, num_drafts, num_ranks = (draw(st.sampled_from(some)) for some in NUMBERS[kind])
    if preset.axis:
        kind, few = "few drafts", (3, 2, 1)
        sizes = zip(THRESHOLD_AXES, few, strict=True)
        threshold, num_drafts, num_ranks = (draw(preset.sizes(n, st.just(s))) for n, s in sizes)
    speculative = reference.SpeculativeConfig(num_speculative_tokens=num_drafts)
    has_drafts = num_drafts is not None or draw(st.booleans())
    config: Any = reference.VllmConfig(
        parallel_config=reference.ParallelConfig(decode_context_parallel_size=num_ranks),
        speculative_config=speculative if has_drafts else None,
    )
    if threshold is None and draw(st.booleans()):
        config = own_config()
    elif draw(st.booleans()):
        drafts = own_config(**vars(speculative)) if has_drafts else None
        ranks = own_config(**vars(config.parallel_config))
        config = own_config(parallel_config=ranks, speculative_config=drafts)
    given = {
        "reorder_batch_threshold": threshold,
        "supports_spec_as_decode": kind != "any" or draw(st.booleans()),
        "supports_dcp_with_varlen": draw(st.booleans()),
    }
    # The default threshold is 1, not None.
    names = [name for name, value in given.items() if value is not None]
    some = ((), (), *((name,) for name in names), tuple(names))
    omitted = draw(st.sampled_from(some)) if kind == "any" else ()
    arguments: dict[str, Any] = {
        "self": Builder(BuilderClass(), full_spec(), ["layers.0"], config),
        **{name: value for name, value in given.items() if name not in omitted},
    }
    source = ThresholdOptions(arguments.get("reorder_batch_threshold", 1), num_drafts, num_ranks)
    return Call("AttentionMetadataBuilder._init_reorder_batch_threshold", arguments, source)


BATCHES = (
    Batch((), (), Layout(2), (), num_padding_tokens=1),
    Batch((1, 1), (3, 0), Layout(2), ((5, 9), (7,))),
    Batch((4, 0), (0, 2), Layout(2), ((5, 9), (7,)), stride=2),
)
"""Batches for functions that pass one on without reading it."""


@st.composite
def build_for_cudagraph_capture_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `build_for_cudagraph_capture`, of any batch."""
    builder = Builder(BuilderClass(), full_spec(), ["layers.0"])
    batch = draw(batches(preset) if preset.axis else st.sampled_from(BATCHES))
    arguments = {"self": builder, "common_attn_metadata": batch.metadata()}
    return Call("AttentionMetadataBuilder.build_for_cudagraph_capture", arguments, batch)


@st.composite
def build_for_drafting_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `build_for_drafting`, of any batch and step of the draft."""
    call = draw(build_for_cudagraph_capture_calls(preset))
    index = draw(preset.sizes(DRAFT_INDEX, st.integers(0, 3)))
    arguments = {**call.arguments, "draft_index": index}
    return Call("AttentionMetadataBuilder.build_for_drafting", arguments, call.source)


@st.composite
def use_cascade_attention_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `use_cascade_attention` with some of its keyword arguments."""
    names = ("common_prefix_len", "num_query_heads", "use_alibi")
    known = {
        name: draw(preset.sizes(name, st.integers(0, 9)))
        for name in names
        if name == preset.axis or draw(st.booleans())
    }
    builder = Builder(BuilderClass(), full_spec(), ["layers.0"])
    return Call("AttentionMetadataBuilder.use_cascade_attention", {"self": builder, **known})


@st.composite
def create_group_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `AttentionGroup.create_with_metadata_builders`: one builder, and several."""
    layers = [f"layers.{i}.attn" for i in range(draw(preset.sizes(LAYERS, st.integers(0, 3))))]
    arguments: dict[str, Any] = {
        "backend": BackendClass("PLAIN", draw(builder_classes()), draw(st.booleans())),
        "layer_names": layers,
        "kv_cache_spec": full_spec(),
        "vllm_config": config_of({}, is_own=draw(st.booleans())),
        "device": DEVICE,
    }
    number_of_builders = draw(preset.sizes(BUILDERS, st.sampled_from((None, 1, 2, 3))))
    if number_of_builders is not None:
        arguments["num_metadata_builders"] = number_of_builders
    return Call("AttentionGroup.create_with_metadata_builders", arguments)


@st.composite
def get_metadata_builder_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `AttentionGroup.get_metadata_builder`, of groups with several builders."""
    cls, names, spec = draw(builder_classes()), ["layers.0"], full_spec()
    number = draw(preset.sizes(BUILDERS, st.integers(1, 3)))
    builders = [Builder(cls, spec, names) for _ in range(number)]
    group = reference.AttentionGroup(BackendClass("PLAIN", cls), builders, names, spec)
    arguments: dict[str, Any] = {"self": group}
    if draw(st.sampled_from((True, True, True, False))):
        arguments["ubatch_id"] = draw(st.integers(0, len(builders) - 1))
    return Call("AttentionGroup.get_metadata_builder", arguments)
