import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fast


def vllm_config(**changes: object) -> SimpleNamespace:
    """Return an engine's own configuration, without speculation or context parallelism."""
    config = {
        "speculative_config": None,
        "parallel_config": SimpleNamespace(decode_context_parallel_size=1),
    }
    return SimpleNamespace(**(config | changes))


class Builder(fast.AttentionMetadataBuilder[dict[str, Any]]):
    """A builder that builds what it was given."""

    def build(self, **given: Any) -> dict[str, Any]:  # type: ignore[override]  # noqa: ANN401  # records
        """Return the arguments."""
        return given


class Backend:
    """An engine's own backend."""

    @staticmethod
    def get_builder_cls() -> type[Builder]:
        """Return the class of its builders."""
        return Builder


def make_builder(config: object = None) -> Builder:
    """Return a builder."""
    return Builder("spec", ["0"], config, "cpu")


def test_cudagraph_support() -> None:
    """The enum's values are ordered by how much they support."""
    assert {
        "ALWAYS": 3,
        "UNIFORM_BATCH": 2,
        "UNIFORM_SINGLE_TOKEN_DECODE": 1,
        "NEVER": 0,
    } == {member.name: member.value for member in fast.AttentionCGSupport}


def test_a_builder_stores_what_it_is_made_with() -> None:
    """The four are kept as they are; only `build` is abstract; nothing is supported by default."""
    names, config = ["0"], vllm_config()
    builder = Builder("spec", names, config, "cpu")
    assert ("spec", "cpu") == (builder.kv_cache_spec, builder.device)
    assert names is builder.layer_names
    assert config is builder.vllm_config
    assert builder.reorder_batch_threshold is None
    assert fast.AttentionCGSupport.NEVER is Builder.get_cudagraph_support(config, "spec")
    assert {"build"} == fast.AttentionMetadataBuilder.__abstractmethods__


def test_cudagraph_support_of_a_class() -> None:
    """The classmethod reads the class's own attribute."""

    class Always(Builder):
        _cudagraph_support = fast.AttentionCGSupport.ALWAYS

    assert fast.AttentionCGSupport.ALWAYS is Always.get_cudagraph_support(None, None)


def test_builds_for_capture_and_for_drafting() -> None:
    """Both call `build` by keyword without a common prefix; drafts are built fast."""
    batch: Any = object()
    builder = make_builder()
    given = {"common_prefix_len": 0, "common_attn_metadata": batch}
    assert given == builder.build_for_cudagraph_capture(batch)
    assert given | {"fast_build": True} == builder.build_for_drafting(batch, draft_index=2)
    assert builder.use_cascade_attention(8, [1], alibi=True) is False


SPEC_OF_3 = {"speculative_config": SimpleNamespace(num_speculative_tokens=3)}
DCP = {"parallel_config": SimpleNamespace(decode_context_parallel_size=2)}


@pytest.mark.parametrize(
    ("config", "arguments", "expected"),
    [
        ({}, {}, 1),
        ({}, {"reorder_batch_threshold": np.int64(5)}, 5),
        (SPEC_OF_3, {}, 1),
        (SPEC_OF_3, {"supports_spec_as_decode": True}, 4),
        (SPEC_OF_3, {"reorder_batch_threshold": 9, "supports_spec_as_decode": True}, 9),
        ({}, {"reorder_batch_threshold": 2, "supports_spec_as_decode": True}, 2),
        (
            {"speculative_config": fast.SpeculativeConfig()},
            {"reorder_batch_threshold": 2, "supports_spec_as_decode": True},
            2,
        ),
        (
            {"speculative_config": SimpleNamespace()},
            {"reorder_batch_threshold": 2, "supports_spec_as_decode": True},
            2,
        ),
        (SPEC_OF_3 | DCP, {"supports_spec_as_decode": True}, 1),
        (
            SPEC_OF_3 | DCP,
            {"supports_spec_as_decode": True, "supports_dcp_with_varlen": np.True_},
            4,
        ),
        (DCP, {"reorder_batch_threshold": 7}, 1),
    ],
)
def test_reorder_batch_threshold(
    config: dict[str, Any], arguments: dict[str, Any], expected: int
) -> None:
    """Draft tokens raise the threshold; ranks that share a sequence make it 1."""
    builder = make_builder(vllm_config(**config))
    builder._init_reorder_batch_threshold(**arguments)
    assert expected == builder.reorder_batch_threshold
    assert type(builder.reorder_batch_threshold) is int
    assert Builder.reorder_batch_threshold is None


def test_no_reorder_batch_threshold() -> None:
    """None stays None, and no configuration is read."""
    builder = make_builder(None)
    builder.reorder_batch_threshold = 4
    builder._init_reorder_batch_threshold(None, supports_spec_as_decode=True)
    assert builder.reorder_batch_threshold is None


def drafts(number: object) -> dict[str, Any]:
    """Return a configuration of so many draft tokens."""
    return {"speculative_config": SimpleNamespace(num_speculative_tokens=number)}


def ranks(number: object) -> dict[str, Any]:
    """Return a configuration of so many context-parallel ranks."""
    return {"parallel_config": SimpleNamespace(decode_context_parallel_size=number)}


@pytest.mark.parametrize(
    ("config", "arguments", "error", "message"),
    [
        ({}, (True,), TypeError, "reorder_batch_threshold must be an int, got True"),
        ({}, (0,), ValueError, "reorder_batch_threshold is 0, expected at least 1"),
        ({}, (1, 1), TypeError, "supports_spec_as_decode must be a bool, got 1"),
        ({}, (None, False, None), TypeError, "supports_dcp_with_varlen must be a bool, got None"),
        (drafts(1.0), (1, True), TypeError, "num_speculative_tokens must be an int, got 1.0"),
        (drafts(-1), (1, True), ValueError, "num_speculative_tokens is -1, expected at least 0"),
        (ranks(None), (1,), TypeError, "decode_context_parallel_size must be an int, got None"),
        (ranks(0), (1,), ValueError, "decode_context_parallel_size is 0, expected at least 1"),
        ({"parallel_config": None}, (1,), AttributeError, "decode_context_parallel_size"),
    ],
)
def test_reorder_batch_threshold_refuses(
    config: dict[str, Any], arguments: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    """After an error the threshold is as it was."""
    builder = make_builder(vllm_config(**config))
    builder.reorder_batch_threshold = 6
    with pytest.raises(error, match=message):
        builder._init_reorder_batch_threshold(*arguments)
    assert 6 == builder.reorder_batch_threshold


def test_what_is_not_supported_is_not_read() -> None:
    """Without `supports_spec_as_decode` a broken speculative configuration does no harm."""
    builder = make_builder(vllm_config(**drafts("many")))
    builder._init_reorder_batch_threshold(2)
    assert 2 == builder.reorder_batch_threshold


def test_an_attention_group() -> None:
    """A group makes as many builders as asked for, each from the same four, and hands them out."""
    names = ["0", "1"]
    group = fast.AttentionGroup.create_with_metadata_builders(
        Backend, names, "spec", "config", "cpu", num_metadata_builders=3
    )
    assert (Backend, "spec") == (group.backend, group.kv_cache_spec)
    assert names is group.layer_names
    assert 3 == len({id(builder) for builder in group.metadata_builders})
    for i, builder in enumerate(group.metadata_builders):
        assert builder is group.get_metadata_builder(np.int32(i))
        assert names is builder.layer_names
        given = (builder.kv_cache_spec, builder.vllm_config, builder.device)
        assert ("spec", "config", "cpu") == given
    assert group.metadata_builders[0] is group.get_metadata_builder()
    fields = ["backend", "metadata_builders", "layer_names", "kv_cache_spec"]
    assert fields == [field.name for field in dataclasses.fields(fast.AttentionGroup)]
    group.layer_names = ["2"]
    create = fast.AttentionGroup.create_with_metadata_builders
    assert 1 == len(create(Backend, names, "spec", "config", "cpu").metadata_builders)


@pytest.mark.parametrize(
    ("number", "error", "message"),
    [
        (0, ValueError, "num_metadata_builders is 0, expected at least 1"),
        (True, TypeError, "num_metadata_builders must be an int"),
        ("2", TypeError, "num_metadata_builders must be an int"),
    ],
)
def test_an_attention_group_refuses(number: Any, error: type[Exception], message: str) -> None:  # noqa: ANN401  (wrong on purpose)
    """No builder is made of a wrong number of builders."""
    made: list[object] = []
    own = SimpleNamespace(get_builder_cls=lambda: lambda *args: made.append(args))
    with pytest.raises(error, match=message):
        fast.AttentionGroup.create_with_metadata_builders(own, ["0"], None, None, None, number)
    assert [] == made


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        (1, IndexError, "ubatch_id is 1, expected 0 to 0"),
        (-1, IndexError, "ubatch_id is -1, expected 0 to 0"),
        (False, TypeError, "ubatch_id must be an int"),
        (None, TypeError, "ubatch_id must be an int"),
    ],
)
def test_a_builder_that_is_not_there(index: Any, error: type[Exception], message: str) -> None:  # noqa: ANN401  (wrong on purpose)
    """A micro-batch without a builder is refused, a negative number too."""
    group = fast.AttentionGroup(Backend, ["builder"], ["0"], None)
    with pytest.raises(error, match=message):
        group.get_metadata_builder(index)
