"""Builders of attention metadata, alone and in groups."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import types
from typing import Any

from conformance.contracts.check import property_check
from conformance.contracts.contract import Contract
from conformance.contracts.evaluation import exception_of
from conformance.coverage.size_axes import Axis
from conformance.execution.invocations import Invocation
from conformance.invalid_inputs.builders import (
    CREATE_GROUP_INVALID_INPUTS,
    GET_METADATA_BUILDER_INVALID_INPUTS,
    THRESHOLD_INVALID_INPUTS,
)
from conformance.strategies import cached as st
from conformance.strategies.batches import of_batch
from conformance.strategies.builders import (
    BUILDERS,
    DRAFT_INDEX,
    LAYERS,
    ThresholdOptions,
    build_for_cudagraph_capture_calls,
    build_for_drafting_calls,
    create_group_calls,
    get_metadata_builder_calls,
    threshold_calls,
    use_cascade_attention_calls,
)
from conformance.strategies.large_batches import request_axes
from conformance.strategies.stub_factories import BuilderClass, Own
from conformance.targets.factories import DEVICE
from conformance.targets.target import Target
from conformance.values.call import Call

BUILDER = "AttentionMetadataBuilder"


SUPPORT = {"ALWAYS": 3, "UNIFORM_BATCH": 2, "UNIFORM_SINGLE_TOKEN_DECODE": 1, "NEVER": 0}


@property_check("AttentionCGSupport", lambda _: st.sampled_from(tuple(SUPPORT)))
def test_support_of_graphs(target: Target, name: str) -> None:
    """Members with more support have greater values; members are not ints."""
    found: Any = target.lookup("AttentionCGSupport")
    assert found[name] is found(SUPPORT[name])
    assert SUPPORT == {member.name: member.value for member in found}
    assert issubclass(found, enum.Enum)
    assert not issubclass(found, int)


@property_check("AttentionMetadata", lambda _: st.booleans())
def test_metadata_is_an_empty_base(target: Target, is_frozen: bool) -> None:
    """`AttentionMetadata` is an empty base that dataclasses, frozen or not, can extend."""
    base: Any = target.lookup("AttentionMetadata")
    assert [] == [name for name in dir(base) if not name.startswith("__")]
    assert {} == vars(base())
    lengths = dataclasses.make_dataclass(
        "Lengths", [("longest", int)], bases=(base,), frozen=is_frozen
    )
    assert 8 == lengths(8).longest


def _builds(namespace: dict[str, Any]) -> None:
    namespace["build"] = lambda *_: 8


@property_check(BUILDER, threshold_calls)
def test_a_builder_stores_what_it_is_made_with(target: Target, call: Call) -> None:
    """A builder only has to define `build`; it stores the four objects that it is made with."""
    base: Any = target.lookup(BUILDER)
    given = (Invocation(target, call).arguments["self"], ["layers.0"], object(), object())
    builder = types.new_class("Lengths", (base[int],), {}, _builds)(*given)
    attributes = builder.kv_cache_spec, builder.layer_names, builder.vllm_config, builder.device
    assert all(one is other for one, other in zip(given, attributes, strict=True))
    assert builder.reorder_batch_threshold is None
    assert "NEVER" == builder.get_cudagraph_support(None, None).name
    assert TypeError is type(exception_of(lambda: base(*given)))
    assert inspect.signature(base.build).parameters["fast_build"].default is False


@property_check(
    f"{BUILDER}.get_cudagraph_support",
    lambda _: st.sampled_from((None, "ALWAYS", "UNIFORM_BATCH", "NEVER")),
    goals={"said by the subclass": bool, "said by the base": lambda support: not support},
)
def test_a_class_says_which_graphs_it_supports(target: Target, support: str | None) -> None:
    """A class's graph support applies to it and to its builders, and to no other class."""
    converter = target.converter()
    cls, other = (converter.convert(BuilderClass(support=s), "cls") for s in (support, None))
    expected = target.lookup(f"AttentionCGSupport.{support or 'NEVER'}")
    builder = cls(None, [], None, converter.convert(DEVICE, "device"))
    assert expected is cls.get_cudagraph_support(vllm_config=None, kv_cache_spec=None)
    assert expected is builder.get_cudagraph_support(None, None)
    assert "NEVER" == other.get_cudagraph_support(None, None).name


def _threshold_options(call: Call) -> tuple[bool, bool]:
    """Return whether drafts count as decodes, and whether context parallelism supports them."""
    names = ("supports_spec_as_decode", "supports_dcp_with_varlen")
    with_drafts, with_varlen = (bool(call.get(name)) for name in names)
    return with_drafts, with_varlen


def _raises(call: Call) -> bool:
    """Return whether drafts raise the threshold."""
    wish: ThresholdOptions = call.source
    is_less = wish.threshold is not None and wish.threshold < 1 + (wish.num_drafts or 0)
    return is_less and _threshold_options(call)[0]


test_init_reorder_batch_threshold = Contract(
    f"{BUILDER}._init_reorder_batch_threshold",
    threshold_calls,
    {
        "all defaults": lambda call: len(call.arguments) == 1,
        "no order": lambda call: call.source.threshold is None,
        "no order, and no configuration": lambda call: (
            call.source.threshold is None and _lacks_all(call["self"].vllm_config)
        ),
        "drafts raise the threshold": _raises,
        "drafts are not to": lambda call: (
            bool(call.source.num_drafts) and not _threshold_options(call)[0]
        ),
        "the threshold is above the drafts": lambda call: (
            _threshold_options(call)[0]
            and call.source.num_drafts is not None
            and (call.source.threshold or 0) > 1 + call.source.num_drafts
        ),
        "no ranks to lower it": lambda call: call.source.num_ranks == 1,
        "drafts of none": lambda call: _threshold_options(call)[0] and call.source.num_drafts == 0,
        "no number of drafts": lambda call: (
            _threshold_options(call)[0] and call.source.num_drafts is None
        ),
        "ranks that take one token": lambda call: (
            call.source.num_ranks > 1 and not _threshold_options(call)[1]
        ),
        "ranks that take several": lambda call: (
            call.source.num_ranks > 1 and _threshold_options(call)[1]
        ),
        "an engine's own configuration": lambda call: isinstance(call["self"].vllm_config, Own),
    },
    pairs=(
        ("drafts raise the threshold", "ranks that take one token"),
        ("drafts raise the threshold", "ranks that take several"),
        ("no order", "ranks that take one token"),
        ("the threshold is above the drafts", "no ranks to lower it"),
    ),
    axes={
        "threshold": Axis(lambda call: call.source.threshold, 2**53 + 1, first=1),
        "speculative tokens": Axis(lambda call: call.source.num_drafts, 2**53 + 1),
        "ranks": Axis(lambda call: call.source.num_ranks, 2**31 - 1, first=1),
    },
    invalid_inputs=THRESHOLD_INVALID_INPUTS,
    changes=frozenset({"self"}),
)


def _lacks_all(config: Any) -> bool:
    return isinstance(config, Own) and not config.attributes


@property_check(f"{BUILDER}._init_reorder_batch_threshold", threshold_calls)
def test_the_threshold_is_the_builder_s_own(target: Target, call: Call) -> None:
    """The threshold is set on the builder, not on its class, and within the requested bounds."""
    invocation = Invocation(target, call)
    assert invocation.answer(checked=False) is None
    builder, wish = invocation.arguments["self"], call.source
    found = builder.reorder_batch_threshold
    assert type(builder).reorder_batch_threshold is None
    assert "reorder_batch_threshold" in vars(builder)
    if wish.threshold is None:
        assert found is None
    else:
        assert 1 <= found <= max(wish.threshold, 1 + (wish.num_drafts or 0))


test_build_for_cudagraph_capture = Contract(
    f"{BUILDER}.build_for_cudagraph_capture",
    build_for_cudagraph_capture_calls,
    of_batch("no requests", "padded requests at the end"),
    axes=request_axes(),
    compares_views=True,
    has_fixed_arrays=True,
)


test_build_for_drafting = Contract(
    f"{BUILDER}.build_for_drafting",
    build_for_drafting_calls,
    {
        **of_batch("no requests"),
        "a later step of the draft": lambda call: call["draft_index"] > 0,
    },
    axes={
        **request_axes(),
        DRAFT_INDEX: Axis(lambda call: call["draft_index"], 2**31 - 1),
    },
    compares_views=True,
    has_arrays=True,
)


test_use_cascade_attention = Contract(
    f"{BUILDER}.use_cascade_attention",
    use_cascade_attention_calls,
    {
        "a common prefix": lambda call: bool(call.get("common_prefix_len")),
        "nothing is known": lambda call: len(call.arguments) == 1,
    },
    axes={
        name: Axis(functools.partial(Call.get, name=name, default=0), 2**31 - 1)
        for name in ("common_prefix_len", "num_query_heads")
    },
)


# --- groups

MANY = "every builder and its layers are observed, which takes seconds for thousands"

test_create_with_metadata_builders = Contract(
    "AttentionGroup.create_with_metadata_builders",
    create_group_calls,
    {
        "one builder by default": lambda call: "num_metadata_builders" not in call,
        "several builders": lambda call: call.get("num_metadata_builders", 1) > 1,
        "no layers": lambda call: not call["layer_names"],
        "an engine's own builders": lambda call: call["backend"].builder.is_own,
        "an engine's own backend": lambda call: call["backend"].is_own,
    },
    axes={
        LAYERS: Axis(lambda call: len(call["layer_names"]), 257, MANY),
        BUILDERS: Axis(lambda call: call.get("num_metadata_builders", 1), 257, MANY, first=1),
    },
    invalid_inputs=CREATE_GROUP_INVALID_INPUTS,
    compares_views=True,
    takes_objects=True,
)


@property_check("AttentionGroup.create_with_metadata_builders", create_group_calls)
def test_each_micro_batch_has_a_builder(target: Target, call: Call) -> None:
    """A group's builders are different objects, all of its backend's class."""
    invocation = Invocation(target, call)
    group = invocation.answer(checked=False)
    backend, builders = invocation.arguments["backend"], group.metadata_builders
    assert backend is group.backend
    assert invocation.arguments.get("num_metadata_builders", 1) == len({id(b) for b in builders})
    assert {backend.get_builder_cls()} == {type(builder) for builder in builders}
    assert all(builder is group.get_metadata_builder(i) for i, builder in enumerate(builders))
    with target.running():  # an instance can create groups, as the class can
        other = group.create_with_metadata_builders(**invocation.arguments)
    assert backend is other.backend
    assert len(builders) == len(other.metadata_builders)


@property_check("AttentionGroup", create_group_calls)
def test_a_group_is_a_plain_dataclass(target: Target, call: Call) -> None:
    """A group takes positional arguments, checks nothing, compares by value and is mutable."""
    given = Invocation(target, call).arguments
    fields = [given["backend"], [], given["layer_names"], given["kv_cache_spec"]]
    group, same = (target.lookup("AttentionGroup")(*fields) for _ in range(2))
    assert ["backend", "metadata_builders", "layer_names", "kv_cache_spec"] == list(vars(group))
    assert all(one is other for one, other in zip(fields, vars(group).values(), strict=True))
    assert group == same
    same.layer_names = [*group.layer_names, "layers.9"]
    assert group != same


test_get_metadata_builder = Contract(
    "AttentionGroup.get_metadata_builder",
    get_metadata_builder_calls,
    {
        "the first by default": lambda call: "ubatch_id" not in call,
        "one that is not the first": lambda call: call.get("ubatch_id", 0) > 0,
        "the first of several, by number": lambda call: (
            call.get("ubatch_id") == 0 and len(call["self"].metadata_builders) > 1
        ),
    },
    axes={BUILDERS: Axis(lambda call: len(call["self"].metadata_builders), 257, MANY, first=1)},
    invalid_inputs=GET_METADATA_BUILDER_INVALID_INPUTS,
    compares_views=True,
)
