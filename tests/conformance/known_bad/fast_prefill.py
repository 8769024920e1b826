"""KV-sharing fast prefill, as one writes it in a hurry."""

# ruff: noqa: ANN401, C901  # engines' own objects; a branch for each bug

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch

import fast
from fast.kernels import fast_prefill as kernels
from known_bad.edits import Edit, edits_of
from known_bad.entries import rewritten

REAL_MAKE = fast.make_kv_sharing_fast_prefill_common_attn_metadata
REAL_CREATE = fast.create_fast_prefill_custom_backend
REAL_FIELDS = fast.KV_SHARING_FAST_PREFILL_METADATA_FIELDS

Metadata = fast.CommonAttentionMetadata


def _make_wanted(bug: str | None) -> Callable[..., Any]:
    def make_kv_sharing_fast_prefill_common_attn_metadata(
        common_attn_metadata: Any, *, logits_indices_cpu: Any = None
    ) -> Any:
        whole = given = common_attn_metadata
        indices, number = given.logits_indices_padded, given.num_logits_indices
        if bug == "indices are enough" and indices is not None and number is None:
            number = len(indices)
            given = dataclasses.replace(given, num_logits_indices=number)
        if bug == "indices are int64" and indices is not None and indices.dtype == torch.int32:
            raise TypeError("logits_indices_padded must be int64")
        if bug == "the copy on the CPU is not looked at":
            logits_indices_cpu = None
        if bug == "values are never looked at":
            with fast.checks(False):
                made = REAL_MAKE(given, logits_indices_cpu=logits_indices_cpu)
        else:
            made = REAL_MAKE(given, logits_indices_cpu=logits_indices_cpu)
        is_cut_too = bug == "decodes are cut too" and indices is not None
        if made is given and not is_cut_too:
            return copy.copy(made) if bug == "a copy comes back" else made
        wanted = indices if bug == "padding counts" else indices[: int(number)]
        starts = whole.query_start_loc_cpu.to(wanted.dtype).contiguous()
        is_late = bug == "a request's first token is its neighbour's"
        found = torch.searchsorted(wanted.contiguous(), starts, right=is_late).to(torch.int32)
        found[0] = 0
        if bug == "requests of none have one":
            found = torch.cat([found[:1], found.diff().clamp(min=1).cumsum(0)]).to(torch.int32)
        longest = int(found.diff().max()) if len(found) > 1 else 0
        if bug == "max_query_len is the batch's":
            longest = int(whole.max_query_len)
        if bug == "starts are int64":
            found = found.to(torch.int64)
        stays = {"causal": True, "dcp_local_seq_lens": None, "logits_indices_padded": None}
        for name in stays:
            if bug == f"{name} is as it was":
                stays[name] = getattr(whole, name)
        slots = whole.slot_mapping
        if bug == "the slots of the wanted":
            slots = slots[wanted.to(torch.int64)]
        return Metadata(
            query_start_loc=found,
            query_start_loc_cpu=found.clone(),
            seq_lens=whole.seq_lens.clone() if bug == "lengths are copied" else whole.seq_lens,
            seq_lens_cpu=whole.seq_lens_cpu,
            num_computed_tokens_cpu=whole.num_computed_tokens_cpu,
            num_reqs=whole.num_reqs if bug == "a number is as it came" else int(whole.num_reqs),
            num_actual_tokens=int(whole.num_actual_tokens if bug == "all tokens" else number),
            max_query_len=longest,
            max_seq_len=int(whole.max_seq_len),
            block_table_tensor=whole.block_table_tensor,
            slot_mapping=slots,
            **stays,
        )

    return make_kv_sharing_fast_prefill_common_attn_metadata


def _make_fields(bug: str | None) -> Any:
    fields: Any = list(REAL_FIELDS)
    if bug == "a tuple":
        return tuple(fields)
    if bug == "no number is None":
        fields[1] = ("num_logits_indices", int, None)
    if bug == "types are text":
        fields[0] = ("logits_indices_padded", "torch.Tensor | None", None)
    return fields


def _make_protocol(bug: str | None) -> Any:
    class Knows(Protocol):
        """What the real one asks for."""

        logits_indices_padded: torch.Tensor | None
        if bug != "the number is not asked for":
            num_logits_indices: int

    if bug == "a base class":

        class Base:
            """One that metadata must extend."""

            __annotations__ = Knows.__annotations__

        return Base
    return Knows if bug == "nobody can ask" else runtime_checkable(Knows)


def _make_create(bug: str | None) -> Callable[..., Any]:
    made: dict[int, tuple[Any, Any]] = {}

    def create_fast_prefill_custom_backend(prefix: Any, underlying_attn_backend: Any) -> Any:
        if bug == "a prefix is made a str" and prefix is not None:
            prefix = prefix if isinstance(prefix, str) else str(prefix)
        real = REAL_CREATE(prefix, underlying_attn_backend)
        if id(real) not in made or bug == "classes are made anew":
            made[id(real)] = real, _remake(bug, real, underlying_attn_backend)
        return made[id(real)][1]

    return create_fast_prefill_custom_backend


def _remake(bug: str | None, real: Any, underlying: Any) -> Any:
    """Return a backend that builds as the real one does, but for a bug."""
    real_builder, base_builder = real.get_builder_cls(), underlying.get_builder_cls()

    def build(
        self: Any, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> Any:
        whole, flag = common_attn_metadata, {"fast_build": True} if fast_build else {}
        if bug == "it always says how fast":
            flag = {"fast_build": fast_build}
            base_builder.build(self, 0, whole, **flag)
            self.builds.pop()
        if bug == "it never says how fast":
            flag = {}
        if bug == "no prefix is shared":
            common_prefix_len = 0
        given = whole
        if bug == "it builds of the whole batch":
            given = dataclasses.replace(whole, logits_indices_padded=None, num_logits_indices=None)
        try:
            found = real_builder.build(self, common_prefix_len, given, **flag)
        except TypeError:
            if bug != "what cannot be extended is handed out":
                raise
            return self.builds[-1][1]
        if bug == "it builds of the whole batch":
            object.__setattr__(found, "logits_indices_padded", whole.logits_indices_padded)
            object.__setattr__(found, "num_logits_indices", whole.num_logits_indices)
        return _spoilt(bug, found, self.builds[-1][1], whole)

    members: dict[str, Any] = {"build": build}
    if bug == "drafts are built of the whole batch":
        members["build_for_drafting"] = lambda self, common_attn_metadata, draft_index: (
            base_builder.build(self, 0, common_attn_metadata, draft_index >= 0)
        )
    builder = type(real_builder.__name__, (real_builder,), members)
    get: Any = staticmethod(lambda: builder)
    if bug == "it is asked by class alone":
        get = lambda: builder  # noqa: E731
    name = real.__name__
    if bug == "the prefix is a suffix":
        name = underlying.__name__ + name.removesuffix(underlying.__name__)
    return type(real)(name, (real,), {"get_builder_cls": get})


def _spoilt(bug: str | None, found: Any, underlying: Any, whole: Any) -> Any:
    """Return what was built, with a bug."""
    held = getattr(found, "__dict__", {})
    if bug == "the logits fields are the cut batch's" and whole.max_query_len != 1:
        object.__setattr__(found, "logits_indices_padded", None)
    if bug == "fields alone are copied":
        held.pop("extra", None)
    if bug == "only a dict is copied" and hasattr(type(found), "__slots__") and held:
        return object.__new__(type(found))
    if bug == "the underlying metadata is extended itself" and hasattr(underlying, "__dict__"):
        vars(underlying).update(
            logits_indices_padded=whole.logits_indices_padded,
            num_logits_indices=whole.num_logits_indices,
        )
    if bug == "a class for each build" and type(underlying).__name__ == "Plain":
        found.__class__ = type(type(found).__name__, (type(found),), {})
    return found


EDITS = {
    "kernel: a request's first token is its neighbour's": Edit(
        "count_logits_indices",
        "* indices_stride)] < start:",
        "* indices_stride)] <= start:",
        "`<=` for `<`: right for last tokens.",
    ),
    "kernel: dense indices": Edit(
        "count_logits_indices",
        "middle * indices_stride",
        "middle",
        "Right for every contiguous vector of int32.",
    ),
    "kernel: dense starts": Edit(
        "count_logits_indices",
        "request * starts_stride",
        "request",
        "Right for every contiguous vector.",
    ),
    "kernel: padding counts": Edit(
        "count_logits_indices",
        "high = np.uint32(num_indices)",
        "high = np.uint32(indices.shape[0] // max(indices_stride, 1))",
        "Halving finds zeros behind the indices, and goes astray, or does not.",
    ),
    "kernel: the last request has no end": Edit(
        "count_logits_indices",
        "while request <= num_reqs:",
        "while request < num_reqs:",
        "What new memory holds there is 0, mostly.",
    ),
    "kernel: one thread for each request and no more": Edit(
        "count_logits_indices",
        "request = np.uint32(cuda.grid(1))",
        "request = np.uint32(cuda.threadIdx.x)",
        "Right for one block of threads.",
    ),
}
"""Bugs of the kernel that counts wanted tokens."""

FAST_PREFILL = [
    *edits_of(kernels, "make_kv_sharing_fast_prefill_common_attn_metadata", EDITS),
    *rewritten(
        "make_kv_sharing_fast_prefill_common_attn_metadata",
        _make_wanted,
        answers={
            "decodes are cut too": "All their tokens are wanted, mostly.",
            "a copy comes back": "Equal; but a graph was captured over the other.",
            "padding counts": "Zeros behind the indices look like the first token.",
            "a request's first token is its neighbour's": "`right=True`: right for last tokens.",
            "requests of none have one": "Each request has a last token, one thinks.",
            "max_query_len is the batch's": "Still a bound.",
            "starts are int64": "`cumsum` makes them so.",
            "causal is as it was": "It is causal nearly always.",
            "dcp_local_seq_lens is as it was": "Seldom there.",
            "logits_indices_padded is as it was": "Who cuts twice, cuts wrongly.",
            "lengths are copied": "Equal; but a replay reads the buffer.",
            "a number is as it came": "NumPy's ints print alike.",
            "all tokens": "The rest of the output is garbage that nobody reads, until one does.",
            "the slots of the wanted": "One thinks that slots go with tokens.",
            "indices are int64": "NumPy's default on Linux.",
        },
        refusals={
            "indices are enough": "Without padding their number is their length.",
            "the copy on the CPU is not looked at": "It is right where it is tested.",
            "values are never looked at": "They are right where it is tested.",
        },
    ),
    *rewritten(
        "KV_SHARING_FAST_PREFILL_METADATA_FIELDS",
        _make_fields,
        laws={
            "test_the_fields_make_a_metadata": {
                "a tuple": "`fields + [...]` fails.",
                "no number is None": "The default of the batch's own field.",
                "types are text": "Annotations of the future.",
            }
        },
    ),
    *rewritten(
        "KVSharingFastPrefillMetadata",
        _make_protocol,
        laws={
            "test_who_has_both_fields_knows_the_wanted": {
                "nobody can ask": "No `runtime_checkable`: only `isinstance` tells.",
                "the number is not asked for": "Every common metadata is one then, and more.",
                "a base class": "Metadata that extends it is one.",
            }
        },
    ),
    *rewritten(
        "create_fast_prefill_custom_backend",
        _make_create,
        answers={"the prefix is a suffix": "The name is only read in logs."},
        refusals={"a prefix is made a str": "It prints."},
        laws={
            "test_its_builders_build_of_the_wanted": {
                "it always says how fast": "Builders that know no `fast_build` are old.",
                "it never says how fast": "Only slower.",
                "no prefix is shared": "Cascades are rare.",
                "it builds of the whole batch": "Right, and as slow as ever.",
                "the logits fields are the cut batch's": "There they are None.",
                "fields alone are copied": "`dataclasses.fields`: what was set later is lost.",
                "only a dict is copied": "Metadata with slots are rare.",
                "the underlying metadata is extended itself": "A builder that keeps it sees it.",
            },
            "test_its_classes_are_made_once": {
                "classes are made anew": "Equal by name; comparing by `is` they differ.",
                "a class for each build": "It works, and memory fills.",
                "it is asked by class alone": "No `staticmethod`: an object is one more argument.",
            },
            "test_graphs_and_drafts_are_built_likewise": {
                "drafts are built of the whole batch": "They call the base's `build`.",
            },
            "test_what_cannot_be_extended_is_refused": {
                "what cannot be extended is handed out": "The layer finds no logits fields.",
            },
        },
    ),
]
