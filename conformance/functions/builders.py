"""Builders of attention metadata, alone and in groups."""

from __future__ import annotations

import dataclasses
import inspect
import types
from typing import Any, Final

import numpy as np
from hypothesis import strategies as st

import reference
from conformance.harness.contract import Arguments, Contract
from conformance.harness.objects import Device, Twin, attempt
from conformance.harness.sizes import sizes
from conformance.laws.backends import Backend
from conformance.laws.batches import MAX_INT32, batches, choices, deferred
from conformance.laws.builders import Builder, BuilderClass, builder_classes

BUILDER: Final = "AttentionMetadataBuilder"
SUPPORT: Final = ("ALWAYS", "UNIFORM_BATCH", "UNIFORM_SINGLE_TOKEN_DECODE", "NEVER")


def members(twin: Twin) -> list[Any]:
    levels = twin.find("AttentionCGSupport")
    return [(one.name, one.value, levels(one.value) is one, isinstance(one, int)) for one in levels]


def extend_metadata(twin: Twin, *, is_frozen: bool) -> list[Any]:
    """Return what the base class of metadata has, and of a dataclass that extends it."""
    base = twin.find("AttentionMetadata")
    fields = [("longest", int)]
    made = dataclasses.make_dataclass("Lengths", fields, bases=(base,), frozen=is_frozen)
    return [[name for name in dir(base) if name[:2] != "__"], vars(base()), made(8).longest]


def construct(twin: Twin, **arguments: Any) -> dict[str, Any]:
    """Return what a subclass that defines only `build` keeps of its arguments."""
    twin.function(BUILDER)  # an adapter may not support it
    base = twin.find(BUILDER)
    cls = types.new_class("Lengths", (base[int],), {}, lambda own: own.update(build=lambda *_: 8))
    made = cls(**arguments)
    return {
        "kept": [getattr(made, name) is given for name, given in arguments.items()],
        "others": sorted(vars(made).keys() - arguments.keys()),
        "threshold": made.reorder_batch_threshold,
        "support": made.get_cudagraph_support(None, None).name,
        "fast_build": inspect.signature(base.build).parameters["fast_build"].default,
        "without build": type(attempt(base, **arguments).error),
    }


def level_of_support(twin: Twin, *, support: str | None) -> list[Any]:
    """Return the level that a class and its builders state, and another class."""
    base, levels = twin.find(BUILDER), twin.find("AttentionCGSupport")
    own = {} if support is None else {"_cudagraph_support": levels[support]}
    cls: Any = type("Builder", (base,), {**own, "build": lambda *_: 8})
    other: Any = type("Other", (base,), {"build": lambda *_: 8})
    found = [cls.get_cudagraph_support(vllm_config=None, kv_cache_spec=None)]
    found += [cls(None, [], None, None).get_cudagraph_support(None, None)]
    found += [other.get_cudagraph_support(None, None)]
    return [(one is levels[one.name], one.name) for one in found]


@st.composite
def thresholds(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    """Draw thresholds, numbers of drafts and of ranks, any of which may be large or missing."""
    numbers = sizes(0, 300) | st.sampled_from((2**31 - 1, 2**40, 2**53 + 1))
    threshold, drafts, ranks = draw(numbers) + 1, draw(numbers), draw(numbers) + 1
    has_threshold, kind, has_ranks, with_drafts, with_varlen, config = choices(
        *(draw, (True, True, True, False), ("drafts", "drafts", "no drafts", "no speculation")),
        *((False, True), (None, False, True, True), (None, False, True), ("own", None)),
    )
    speculative = reference.SpeculativeConfig(
        num_speculative_tokens=drafts if kind == "drafts" else None
    )
    configuration = reference.VllmConfig(
        parallel_config=reference.ParallelConfig(
            decode_context_parallel_size=ranks if has_ranks else 1
        ),
        speculative_config=None if kind == "no speculation" else speculative,
    )
    options = {
        "reorder_batch_threshold": threshold if has_threshold else None,
        "supports_spec_as_decode": with_drafts,
        "supports_dcp_with_varlen": with_varlen,
    }
    if threshold == 1 and has_threshold:
        del options["reorder_batch_threshold"]  # the default
    options = {k: v for k, v in options.items() if v is not None or k[:2] == "re"}
    given = None if config is None and not has_threshold else configuration
    builder = Builder(BuilderClass(), [None, ["layers.0"], given, Device()])
    return st.just({"self": builder, **options})


def _drafts(arguments: Arguments) -> int:
    config = arguments["self"].given[2]
    speculative = config and config.speculative_config
    drafts = getattr(speculative, "num_speculative_tokens", None)
    return (drafts or 0) * bool(arguments.get("supports_spec_as_decode"))


@st.composite
def builds(draw: st.DrawFn, *, is_draft: bool = False) -> st.SearchStrategy[Arguments]:
    batch_of_sizes = draw(batches(most=(300, 300, 10)))
    index = {"draft_index": draw(sizes(0, MAX_INT32))} if is_draft else {}
    builder = Builder(BuilderClass())

    def contents(draw: st.DrawFn) -> Arguments:
        metadata = draw(batch_of_sizes).metadata()
        return {"self": builder, "common_attn_metadata": metadata, **index}

    return deferred(contents)


CASCADE: Final = {
    "common_prefix_len": st.integers(0, MAX_INT32),
    "query_lens": st.just(np.ones(2, np.int32)),
    "num_query_heads": st.integers(1, 64),
    "use_alibi": st.booleans(),
}
"""What a builder may be given to decide on cascade attention."""


@st.composite
def groups(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    layers, number = draw(sizes(0, 300, small=3)), draw(sizes(1, 300, small=3))
    cls, has_number = draw(builder_classes()), draw(st.sampled_from((True, True, False)))
    arguments: Arguments = {
        "backend": Backend(builder=cls, is_own=draw(st.booleans())),
        "layer_names": [f"layers.{i}.attn" for i in range(layers)],
        "kv_cache_spec": reference.FullAttentionSpec(16, 8, 64, np.dtype(np.float16)),
        "vllm_config": reference.VllmConfig(),
        "device": Device(),
    }
    more = {"num_metadata_builders": number} if has_number else {}
    return st.just({**arguments, **more})


def create(twin: Twin, **arguments: Any) -> dict[str, Any]:
    group = twin.function("AttentionGroup.create_with_metadata_builders")(**arguments)
    names, builders = arguments["layer_names"], group.metadata_builders
    again = group.create_with_metadata_builders(**arguments)  # it is static
    return {
        "group": dataclasses.replace(group, backend=None),
        "backend": group.backend is arguments["backend"],
        "names": [one is names for one in (group.layer_names, *(b.given[1] for b in builders))],
        "builders": [len({id(b) for b in builders}), len(again.metadata_builders)],
        "class": {type(b) is group.backend.get_builder_cls() for b in builders} == {True},
    }


def compare_groups(twin: Twin, *, fields: list[Any]) -> dict[str, Any]:
    """Return the fields of a group, and whether it compares by value and is mutable."""
    group, same = (twin.function("AttentionGroup")(*fields) for _ in range(2))
    is_kept = [one is other for one, other in zip(fields, vars(group).values(), strict=True)]
    found = {"fields": list(vars(group)), "kept": is_kept, "equal": group == same}
    same.layer_names = ["layers.9"]
    return {**found, "changed": group == same, "hash": attempt(hash, group).error is None}


@st.composite
def members_of_groups(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    """Draw groups, and the number of one of their builders."""
    number, cls = draw(sizes(1, 70, small=3)), draw(builder_classes())
    made = [Builder(cls) for _ in range(number)]
    group = reference.AttentionGroup(Backend(builder=cls), made, ["layers.0"], None)
    index = draw(st.sampled_from((0, number - 1, None)) | st.integers(0, number - 1))
    return st.just({"self": group} | ({} if index is None else {"ubatch_id": index}))


def get(twin: Twin, **arguments: Any) -> list[int]:
    found = twin.function("AttentionGroup.get_metadata_builder")(**arguments)
    return [i for i, one in enumerate(arguments["self"].metadata_builders) if one is found]


def _is_small(arguments: Arguments) -> bool:
    number = arguments.get("num_metadata_builders", 1)
    return not isinstance(number, int) or number < 1000


CONTRACTS = [
    Contract(function="AttentionCGSupport", calls=st.just(st.just({})), run=members, examples=0.02),
    Contract(
        function="AttentionMetadata",
        calls=st.just(st.fixed_dictionaries({"is_frozen": st.booleans()})),
        run=extend_metadata,
        examples=0.02,
    ),
    Contract(
        function=BUILDER,
        calls=st.just(
            st.fixed_dictionaries(
                {
                    "kv_cache_spec": st.just(None),
                    "layer_names": st.lists(st.just("layers.0"), max_size=3),
                    "vllm_config": st.just({}),
                    "device": st.builds(Device) | st.just({}),  # stored as it is
                }
            )
        ),
        run=construct,
        has_objects=True,
        examples=0.1,
    ),
    Contract(
        function=f"{BUILDER}.get_cudagraph_support",
        calls=st.just(st.fixed_dictionaries({"support": st.sampled_from((None, *SUPPORT))})),
        run=level_of_support,
        examples=0.1,
    ),
    Contract(
        function=f"{BUILDER}._init_reorder_batch_threshold",
        calls=thresholds(),
        has_objects=True,
        takes_own_objects=True,
        examples=0.4,
        hard_cases={
            "more than 255 drafts raise it": lambda args: (
                _drafts(args) > max(255, args.get("reorder_batch_threshold") or 0)
            ),
            "drafts raise it, and ranks lower it": lambda args: (
                _drafts(args) > 0
                and args["self"].given[2].parallel_config.decode_context_parallel_size > 1
                and not args.get("supports_dcp_with_varlen")
            ),
        },
    ),
    Contract(
        function=f"{BUILDER}.build_for_cudagraph_capture",
        calls=builds(),
        has_objects=True,
        examples=0.1,
    ),
    Contract(
        function=f"{BUILDER}.build_for_drafting",
        calls=builds(is_draft=True),
        has_objects=True,
        examples=0.1,
    ),
    Contract(
        function=f"{BUILDER}.use_cascade_attention",
        calls=st.just(
            st.fixed_dictionaries(
                {"self": st.builds(lambda: Builder(BuilderClass()))}, optional=CASCADE
            )
        ),
        has_objects=True,
        examples=0.1,
    ),
    Contract(
        function="AttentionGroup",
        calls=groups().map(
            lambda drawn: drawn.map(
                lambda args: {
                    "fields": [args["backend"], [], args["layer_names"], args["kv_cache_spec"]]
                }
            )
        ),
        run=compare_groups,
        has_objects=True,
        examples=0.05,
    ),
    Contract(
        function="AttentionGroup.create_with_metadata_builders",
        calls=groups(),
        run=create,
        has_objects=True,
        is_affordable=_is_small,
        examples=0.2,
    ),
    Contract(
        function="AttentionGroup.get_metadata_builder",
        calls=members_of_groups(),
        run=get,
        has_objects=True,
        examples=0.2,
    ),
]
