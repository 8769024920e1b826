"""Builders of metadata, their thresholds and shortcuts, and groups with a builder for each part."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from reference import (
    AttentionCGSupport,
    AttentionGroup,
    AttentionMetadataBuilder,
    ParallelConfig,
    SpeculativeConfig,
    VllmConfig,
)

CALL = dict[str, Any]


class Recorder(AttentionMetadataBuilder[CALL]):
    """Builds a record of how it was called."""

    def build(self, *args: object, **kwargs: object) -> CALL:
        """Return the arguments by keyword; there must be no others."""
        assert () == args
        return kwargs


def make_builder(
    num_drafts: int | None = None, dcp_size: int = 1, *, speculates: bool = True
) -> Recorder:
    """Make a builder for an engine that speculates so, on so many ranks."""
    config = VllmConfig(
        speculative_config=SpeculativeConfig(num_speculative_tokens=num_drafts)
        if speculates
        else None,
        parallel_config=ParallelConfig(decode_context_parallel_size=dcp_size),
    )
    return Recorder(None, [], config, None)


def test_cudagraph_support() -> None:
    """The four levels have these numbers, from none to all."""
    expected = {"ALWAYS": 3, "UNIFORM_BATCH": 2, "UNIFORM_SINGLE_TOKEN_DECODE": 1, "NEVER": 0}
    assert expected == {level.name: level.value for level in AttentionCGSupport}


def test_cudagraph_support_of_a_builder() -> None:
    """It is NEVER, or what the class says; the class is asked, or an instance."""
    always = type("Always", (Recorder,), {"_cudagraph_support": AttentionCGSupport.ALWAYS})
    assert AttentionCGSupport.NEVER is Recorder.get_cudagraph_support(None, None)
    assert AttentionCGSupport.ALWAYS is always.get_cudagraph_support(None, None)
    assert AttentionCGSupport.ALWAYS is always(1, [], 3, 4).get_cudagraph_support(None, None)
    assert AttentionCGSupport.NEVER is AttentionMetadataBuilder._cudagraph_support


def test_a_builder_stores_what_it_is_made_with() -> None:
    """The four arguments are attributes, the same objects."""
    given = (object(), ["layers.0"], object(), object())
    builder = Recorder(*given)
    stored = (builder.kv_cache_spec, builder.layer_names, builder.vllm_config, builder.device)
    assert all(ours is theirs for ours, theirs in zip(given, stored, strict=True))


def test_a_builder_is_abstract_in_build_alone() -> None:
    """What does not say how to build has no instances."""
    assert {"build"} == AttentionMetadataBuilder.__abstractmethods__
    assert inspect.isabstract(AttentionMetadataBuilder)
    with pytest.raises(TypeError, match=r"abstract.*build"):
        AttentionMetadataBuilder(None, [], None, None)


def test_a_builder_is_generic_in_its_metadata() -> None:
    """The class of what is built is a parameter."""
    (base,) = Recorder.__orig_bases__
    assert (CALL,) == base.__args__


def test_shortcuts_to_build() -> None:
    """Capture and drafting build without common prefix, drafting fast; both by keyword."""
    builder, batch = make_builder(), object()
    assert {"common_prefix_len": 0, "common_attn_metadata": batch} == (
        builder.build_for_cudagraph_capture(batch)
    )
    expected = {"common_prefix_len": 0, "common_attn_metadata": batch, "fast_build": True}
    assert expected == builder.build_for_drafting(batch, draft_index=2)
    assert expected == builder.build_for_drafting(batch, 0)


def test_no_cascade_attention() -> None:
    """Whatever it is asked, the answer is no."""
    assert make_builder().use_cascade_attention() is False
    assert make_builder().use_cascade_attention(5, np.zeros(3), num_sms=4) is False


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
    num_drafts: int | None, dcp_size: int, arguments: dict[str, Any], expected: int | None
) -> None:
    """Drafts raise the threshold, ranks bring it to 1; None stays None. It is a Python int."""
    builder = make_builder(num_drafts, dcp_size)
    assert builder.reorder_batch_threshold is None
    builder._init_reorder_batch_threshold(**arguments)
    assert (expected, type(expected)) == (
        builder.reorder_batch_threshold,
        type(builder.reorder_batch_threshold),
    )
    assert Recorder.reorder_batch_threshold is None


def test_no_speculation() -> None:
    """Without speculative config, or in one that lacks the number, the threshold is not raised."""
    for speculative_config in (None, SimpleNamespace()):
        builder = make_builder()
        builder.vllm_config.speculative_config = speculative_config
        builder._init_reorder_batch_threshold(2, supports_spec_as_decode=True)
        assert 2 == builder.reorder_batch_threshold


def test_no_threshold_reads_no_configuration() -> None:
    """None is set whatever the configuration lacks, also in place of an earlier threshold."""
    builder = make_builder()
    builder._init_reorder_batch_threshold(3)
    builder.vllm_config = None
    builder._init_reorder_batch_threshold(None, supports_spec_as_decode=True)
    assert builder.reorder_batch_threshold is None


@pytest.mark.parametrize(
    ("num_drafts", "dcp_size", "arguments", "error", "message"),
    [
        (3, 1, (0,), ValueError, "reorder_batch_threshold is 0, expected at least 1"),
        (3, 1, (True,), TypeError, "reorder_batch_threshold must be an int, got True of bool"),
        (3, 1, (2.0,), TypeError, "reorder_batch_threshold must be an int, got 2.0 of float"),
        (3, 1, (2, 1), TypeError, "supports_spec_as_decode must be a bool, got 1 of int"),
        (
            3,
            1,
            (2, False, None),
            TypeError,
            "supports_dcp_with_varlen must be a bool, got None of NoneType",
        ),
        (
            3,
            1,
            (None, "no"),
            TypeError,
            "supports_spec_as_decode must be a bool, got 'no' of str",
        ),
        (
            -1,
            1,
            (2, True),
            ValueError,
            ("speculative_config.num_speculative_tokens is -1, expected at least 0"),
        ),
        (
            1.5,
            1,
            (2, True),
            TypeError,
            ("speculative_config.num_speculative_tokens must be an int, got 1.5 of float"),
        ),
        (
            3,
            0,
            (2, True),
            ValueError,
            ("parallel_config.decode_context_parallel_size is 0, expected at least 1"),
        ),
        (
            3,
            None,
            (2, True, True),
            TypeError,
            "parallel_config.decode_context_parallel_size must be an int, got None of NoneType",
        ),
    ],
)
def test_refusals_of_thresholds(
    num_drafts: Any,  # noqa: ANN401  # wrong ones too
    dcp_size: Any,  # noqa: ANN401  # likewise
    arguments: tuple[Any, ...],
    error: type[Exception],
    message: str,
) -> None:
    """What is wrong is refused in these words, and the threshold is as it was."""
    builder = make_builder(num_drafts, dcp_size)
    builder.reorder_batch_threshold = 77
    with pytest.raises(error) as caught:
        builder._init_reorder_batch_threshold(*arguments)
    assert message == str(caught.value)
    assert 77 == builder.reorder_batch_threshold


@pytest.mark.parametrize("name", ["parallel_config", "speculative_config"])
def test_thresholds_need_a_configuration(name: str) -> None:
    """A configuration that lacks what is read is refused, and the threshold is as it was."""
    builder = make_builder(3)
    fields = {key: value for key, value in vars(builder.vllm_config).items() if key != name}
    builder.vllm_config = SimpleNamespace(**fields)
    with pytest.raises(AttributeError, match=name):
        builder._init_reorder_batch_threshold(2, supports_spec_as_decode=True)
    assert "reorder_batch_threshold" not in vars(builder)
    with pytest.raises(AttributeError, match="decode_context_parallel_size"):
        make_builder_without_parallel_config()._init_reorder_batch_threshold(2)


def make_builder_without_parallel_config() -> Recorder:
    """Make a builder whose engine says nothing of ranks."""
    return Recorder(None, [], VllmConfig(), None)


class PositionalBuilder:
    """An engine's own builder: remembers what it was given, by position."""

    def __init__(self, *args: object) -> None:
        self.args = args


class Backend:
    """An engine's own backend."""

    @staticmethod
    def get_builder_cls() -> type[PositionalBuilder]:
        """Return the class of the builders."""
        return PositionalBuilder


def test_a_group_has_a_builder_for_each_micro_batch() -> None:
    """It has as many builders as asked for, none twice, each made with the four, by position."""
    spec, layer_names, config, device = object(), ["layers.0"], object(), object()
    group = AttentionGroup.create_with_metadata_builders(
        Backend, layer_names, spec, config, device, num_metadata_builders=np.int64(3)
    )
    assert type(group) is AttentionGroup
    assert group.backend is Backend
    assert group.layer_names is layer_names
    assert group.kv_cache_spec is spec
    assert [(spec, layer_names, config, device)] * 3 == [b.args for b in group.metadata_builders]
    assert len({id(builder) for builder in group.metadata_builders}) == 3
    for i, builder in enumerate(group.metadata_builders):
        assert builder is group.get_metadata_builder(np.int32(i))
    assert group.get_metadata_builder() is group.get_metadata_builder(ubatch_id=0)


def test_a_group_has_one_builder() -> None:
    """There is one builder when no number is given."""
    group = AttentionGroup.create_with_metadata_builders(Backend, [], None, None, None)
    assert 1 == len(group.metadata_builders)


def test_a_group_is_an_ordinary_dataclass() -> None:
    """It can be made by position, compares by value, and can be changed."""
    group = AttentionGroup(Backend, [1], ["layers.0"], None)
    assert AttentionGroup(Backend, [1], ["layers.0"], None) == group
    group.layer_names = []
    assert AttentionGroup(Backend, [1], ["layers.0"], None) != group


@pytest.mark.parametrize(
    ("number", "error", "message"),
    [
        (0, ValueError, "num_metadata_builders is 0, expected at least 1"),
        (True, TypeError, "num_metadata_builders must be an int, got True of bool"),
        (1.0, TypeError, "num_metadata_builders must be an int, got 1.0 of float"),
    ],
)
def test_refusals_of_a_number_of_builders(
    number: Any,  # noqa: ANN401  # wrong ones
    error: type[Exception],
    message: str,
) -> None:
    """A number below 1, and what is no int, is refused before the backend is asked."""
    with pytest.raises(error) as caught:
        AttentionGroup.create_with_metadata_builders(None, [], None, None, None, number)
    assert message == str(caught.value)


def test_a_group_needs_a_backend() -> None:
    """What does not say who builds is no backend."""
    with pytest.raises(AttributeError, match="get_builder_cls"):
        AttentionGroup.create_with_metadata_builders(object(), [], None, None, None)


@pytest.mark.parametrize(
    ("ubatch_id", "error", "message"),
    [
        (2, IndexError, "ubatch_id is 2, expected 0 to 1"),
        (-1, IndexError, "ubatch_id is -1, expected 0 to 1"),
        (False, TypeError, "ubatch_id must be an int, got False of bool"),
        ("0", TypeError, "ubatch_id must be an int, got '0' of str"),
    ],
)
def test_refusals_of_micro_batches(
    ubatch_id: Any,  # noqa: ANN401  # wrong ones
    error: type[Exception],
    message: str,
) -> None:
    """A micro-batch that there is no builder of is refused, a negative one too."""
    with pytest.raises(error) as caught:
        AttentionGroup(Backend, [1, 2], [], None).get_metadata_builder(ubatch_id)
    assert message == str(caught.value)
