"""Builders, as one writes them in a hurry."""

# ruff: noqa: ANN401, C901  # engines' own objects; a branch for each bug

from __future__ import annotations

import abc
import enum
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import fast
from known_bad.entries import rewritten

M = TypeVar("M")
REAL_BUILDER = fast.AttentionMetadataBuilder
REAL_THRESHOLD = REAL_BUILDER._init_reorder_batch_threshold


def _make_support(bug: str | None) -> type[enum.Enum]:
    base = enum.IntEnum if bug == "its members are ints" else enum.Enum
    names = ["NEVER", "UNIFORM_SINGLE_TOKEN_DECODE", "UNIFORM_BATCH", "ALWAYS"]
    first = 1 if bug == "the least is 1" else 0
    return base("AttentionCGSupport", names, start=first)  # type: ignore[return-value]


def _make_metadata(bug: str | None) -> type:
    if bug == "it has a field":
        return type("AttentionMetadata", (), {"num_reqs": 0})
    return type("AttentionMetadata", (), {})


def _make_builder(bug: str | None) -> type:
    if bug is None:

        class Builder(REAL_BUILDER[M], Generic[M]):
            """The same."""

        return Builder

    class Copying(REAL_BUILDER[M], Generic[M]):
        """Not quite."""

        def __init__(self, spec: Any, names: Any, config: Any, device: Any) -> None:
            if bug == "the names are copied":
                names = list(names)
            if bug == "the device is the type of device":
                device = getattr(device, "type", str(device))
            super().__init__(spec, names, config, device)

        if bug == "drafting is abstract too":
            build_for_drafting = abc.abstractmethod(REAL_BUILDER.build_for_drafting)

    if bug == "nothing is abstract":
        Copying.__abstractmethods__ = frozenset()
    return Copying


def _make_graph_support(bug: str | None) -> Any:
    def of_class(cls: Any, vllm_config: Any, kv_cache_spec: Any) -> Any:
        del vllm_config, kv_cache_spec
        owner = REAL_BUILDER if bug == "the base's is read" else cls
        support = owner._cudagraph_support
        return support.value if bug == "a number is returned" else support

    return classmethod(of_class)


def _make_threshold(bug: str | None) -> Callable[..., None]:
    def init(
        self: Any,
        reorder_batch_threshold: Any = 1,
        supports_spec_as_decode: Any = False,
        supports_dcp_with_varlen: Any = False,
    ) -> None:
        wished, with_drafts = reorder_batch_threshold, bool(supports_spec_as_decode)
        if bug == "the threshold is set before it is checked":
            self.reorder_batch_threshold = wished
        if bug == "a threshold of 0 passes" and type(wished) is int and wished < 1:
            wished = 1
        REAL_THRESHOLD(self, wished, supports_spec_as_decode, supports_dcp_with_varlen)
        if wished is None:
            if bug == "no order is 1 with context parallelism":
                ranks = _ranks(self)
                self.reorder_batch_threshold = 1 if ranks > 1 else None
            return
        ranks, drafts = _ranks(self), _drafts(self, with_drafts=with_drafts)
        lowers = ranks > 1 and not supports_dcp_with_varlen
        if bug == "drafts do not need to be supported":
            drafts = _drafts(self, with_drafts=True)
        raised = wished if drafts is None else _raised(bug, wished, drafts)
        if bug == "ranks come before drafts" and lowers:
            raised = 1 if drafts is None else max(1, 1 + drafts)
        elif lowers and bug != "ranks lower nothing":
            raised = 1
        if bug == "ranks that take several lower it too" and ranks > 1:
            raised = 1
        if bug == "it is set on the class":
            del self.reorder_batch_threshold
            type(self).reorder_batch_threshold = raised
            return
        self.reorder_batch_threshold = int(raised)

    return init


def _ranks(builder: Any) -> int:
    config = getattr(builder.vllm_config, "parallel_config", None)
    return getattr(config, "decode_context_parallel_size", 1)


def _drafts(builder: Any, *, with_drafts: bool) -> int | None:
    config = getattr(builder.vllm_config, "speculative_config", None)
    return getattr(config, "num_speculative_tokens", None) if with_drafts else None


def _raised(bug: str | None, wished: int, drafts: int) -> int:
    if bug == "the lesser of wish and drafts":
        return min(wished, 1 + drafts)
    if bug == "the drafts replace the wish":
        return 1 + drafts
    if bug == "the token before the drafts is forgotten":
        return max(wished, drafts)
    return max(wished, 1 + drafts)


def _make_capture(bug: str | None) -> Callable[..., Any]:
    def build_for_cudagraph_capture(self: Any, common_attn_metadata: Any) -> Any:
        if bug == "captured in a hurry":
            return self.build(
                common_prefix_len=0, common_attn_metadata=common_attn_metadata, fast_build=True
            )
        if bug == "built by position":
            return self.build(0, common_attn_metadata)
        return self.build(common_prefix_len=0, common_attn_metadata=common_attn_metadata)

    return build_for_cudagraph_capture


def _make_drafting(bug: str | None) -> Callable[..., Any]:
    def build_for_drafting(self: Any, common_attn_metadata: Any, draft_index: int) -> Any:
        return self.build(
            common_prefix_len=draft_index if bug == "the draft is the prefix" else 0,
            common_attn_metadata=common_attn_metadata,
            fast_build=bug != "only the first draft is built fast" or draft_index == 0,
        )

    return build_for_drafting


def _make_cascade(bug: str | None) -> Callable[..., Any]:
    def use_cascade_attention(self: Any, *_: object, **known: object) -> Any:
        del self
        return bool(known.get("common_prefix_len")) if bug == "a prefix is used" else False

    return use_cascade_attention


BUILDER = "AttentionMetadataBuilder"

BUILDERS = [
    *rewritten(
        "AttentionCGSupport",
        _make_support,
        laws={
            "test_support_of_graphs": {
                "its members are ints": "They compare with numbers of anything.",
                "the least is 1": "`enum.auto`: no support is truthy.",
            }
        },
    ),
    *rewritten(
        "AttentionMetadata",
        _make_metadata,
        laws={
            "test_metadata_is_an_empty_base": {
                "it has a field": "All have requests; but a dataclass that extends it has none."
            }
        },
    ),
    *rewritten(
        BUILDER,
        _make_builder,
        laws={
            "test_a_builder_stores_what_it_is_made_with": {
                "the names are copied": "Layers that join the group later are not seen.",
                "the device is the type of device": "The same on a machine with one GPU.",
                "drafting is abstract too": "Engines' builders that cannot draft cannot be made.",
                "nothing is abstract": "What cannot build is found out in the first step.",
            }
        },
    ),
    *rewritten(
        f"{BUILDER}.get_cudagraph_support",
        _make_graph_support,
        laws={
            "test_a_class_says_which_graphs_it_supports": {
                "the base's is read": "Nobody ever captures a graph.",
                "a number is returned": "It compares with other numbers.",
            }
        },
    ),
    *rewritten(
        f"{BUILDER}._init_reorder_batch_threshold",
        _make_threshold,
        answers={
            "the lesser of wish and drafts": "`min` for `max`: requests with drafts are prefills.",
            "the drafts replace the wish": "Right for a wish of 1.",
            "the token before the drafts is forgotten": "Off by one.",
            "drafts do not need to be supported": "Right for most backends.",
            "ranks come before drafts": "Right with one of the two.",
            "ranks lower nothing": "Right without context parallelism.",
            "ranks that take several lower it too": "Right for most backends.",
            "no order is 1 with context parallelism": "A batch is put in order for nothing.",
        },
        refusals={
            "the threshold is set before it is checked": "A caught error leaves it wrong.",
            "a threshold of 0 passes": "Read as none, or as 1.",
        },
        laws={
            "test_the_threshold_is_the_builder_s_own": {
                "it is set on the class": "Read through the instance all the same; so by others."
            }
        },
    ),
    *rewritten(
        f"{BUILDER}.build_for_cudagraph_capture",
        _make_capture,
        answers={
            "captured in a hurry": "The same metadata from builders that do not know how.",
            "built by position": "Right for builders with the parameters in this order.",
        },
    ),
    *rewritten(
        f"{BUILDER}.build_for_drafting",
        _make_drafting,
        answers={
            "the draft is the prefix": "Right for the first draft.",
            "only the first draft is built fast": "The same metadata, later.",
        },
    ),
    *rewritten(
        f"{BUILDER}.use_cascade_attention",
        _make_cascade,
        answers={"a prefix is used": "Backends without cascade attention are asked for it."},
    ),
]
