"""KV-sharing fast prefill: a batch cut to the tokens with logits."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

import reference
from conformance.adapters import Unsupported
from conformance.arrays.guard_bands import guarded
from conformance.checks.device_checks import OTHER_DEVICE, check_refuses_wrong_device
from conformance.contracts.check import property_check, same_in_any_order
from conformance.contracts.contract import Contract
from conformance.coverage.presets import MINIMAL, ONE_REQUEST, Preset
from conformance.coverage.size_axes import Axis
from conformance.execution.invocations import Invocation
from conformance.invalid_inputs.fast_prefill import FAST_PREFILL_INVALID_INPUTS, comes_back
from conformance.laws.access import Access, Half
from conformance.laws.changes import Change
from conformance.laws.interpretation import Interpretation, Reader, with_batch
from conformance.strategies import cached as st
from conformance.strategies.batches import of_batch, of_metadata
from conformance.strategies.fast_prefill import FIELD_NAMES, PADDING, fast_prefill_calls
from conformance.strategies.large_batches import metadata_axes
from conformance.targets.target import Target
from conformance.values.aliases import Alias, Relation
from conformance.values.call import Call


def metadata_of(call: Call) -> Any:
    """Return the metadata argument of a call."""
    return call["common_attn_metadata"]


def logits_indices_of(call: Call) -> list[int]:
    """Return the logits indices; empty if the function returns the metadata unchanged."""
    metadata = metadata_of(call)
    if comes_back(call):
        return []
    found: list[int] = metadata.logits_indices_padded[: metadata.num_logits_indices].tolist()
    return found


def _calls_at_ends(preset: Preset) -> st.SearchStrategy[Call]:
    """Return calls whose logits indices are the last tokens of their requests."""
    return fast_prefill_calls(preset, which="ends", is_causal=True)


def _tokens(call: Call) -> list[int]:
    """Return the tokens of the batch that are in the result."""
    return list(range(call.source.num_tokens)) if comes_back(call) else logits_indices_of(call)


def _logits_tokens(reader: Reader, call: Call) -> Iterator[Access]:
    access = reader.access(reader.answer(call), call.source.layout)
    yield access.renamed(dict(enumerate(_tokens(call))))


def _with_change(call: Call, change: Change) -> Call:
    """Return the call with logits indices of the same tokens of a changed batch."""
    batch, old = change(call.source), metadata_of(call)
    metadata = batch.metadata()
    if old.logits_indices_padded is None:
        return with_batch(call, batch, common_attn_metadata=metadata)
    indexed = set(old.logits_indices_padded[: old.num_logits_indices].tolist())
    names = change.names(call.source)
    indices = guarded(sorted(new for new, name in names.items() if name in indexed), np.int64)
    metadata = dataclasses.replace(
        metadata, logits_indices_padded=indices, num_logits_indices=len(indices)
    )
    hints = dict.fromkeys(call.hints, indices)
    return with_batch(call, batch, common_attn_metadata=metadata).hinting(**hints)


LOGITS_TOKENS = Interpretation(
    _logits_tokens,
    _with_change,
    shows=Half.READS,
    calls=_calls_at_ends,
    selects=lambda call, access: access.of_tokens(_tokens(call)),
)
"""Interprets fast prefill metadata: the tokens with logits, or all if it is unchanged."""


def _counts(call: Call) -> list[tuple[int, int]]:
    """Return the number of logits and of tokens of each request."""
    indices, starts = logits_indices_of(call), call.source.starts
    edges = zip(starts, call.source.query_lens, strict=False)
    return [(sum(s <= t < s + q for t in indices), q) for s, q in edges]


def _of_indices(holds: Any) -> Any:
    """Return a coverage goal for the logits indices of an armed call."""
    return lambda call: (
        not comes_back(call) and bool(holds(metadata_of(call).logits_indices_padded))
    )


def _has_padding(call: Call) -> bool:
    metadata = metadata_of(call)
    return not comes_back(call) and bool(
        len(metadata.logits_indices_padded) > metadata.num_logits_indices
    )


FIELDS = tuple(field.name for field in dataclasses.fields(reference.CommonAttentionMetadata))
SHARED_FIELDS = (
    *("seq_lens", "seq_lens_cpu", "num_computed_tokens_cpu", "block_table_tensor"),
    "slot_mapping",
)


test_make_kv_sharing_fast_prefill_common_attn_metadata = Contract(
    "make_kv_sharing_fast_prefill_common_attn_metadata",
    fast_prefill_calls,
    {
        **of_batch(
            *("no requests", "padded requests at the end", "padded tokens at the end"),
            *("a request of no tokens before one with some", "strided arrays"),
            "a batch of real traffic's size",
        ),
        **of_metadata(),
        "not armed": lambda call: metadata_of(call).logits_indices_padded is None,
        "armed, and all queries of one token": lambda call: (
            metadata_of(call).logits_indices_padded is not None
            and metadata_of(call).max_query_len == 1
            and call.source.num_tokens > 0
        ),
        "the last token of each request": lambda call: (
            len(logits_indices_of(call)) > 1
            and logits_indices_of(call)
            == [
                s - 1
                for s, q in zip(call.source.starts[1:], call.source.query_lens, strict=True)
                if q
            ]
        ),
        "several of a request, not all": lambda call: any(1 < n < q for n, q in _counts(call)),
        "none of a request with tokens": lambda call: (
            bool(logits_indices_of(call)) and any(q and not n for n, q in _counts(call))
        ),
        "a request's first token, not its last": lambda call: any(
            q > 1 and s in logits_indices_of(call) and s + q - 1 not in logits_indices_of(call)
            for s, q in zip(call.source.starts, call.source.query_lens, strict=False)
        ),
        "all tokens": lambda call: len(logits_indices_of(call)) == call.source.num_tokens > 0,
        "none at all": lambda call: (
            not comes_back(call) and not logits_indices_of(call) and call.source.num_tokens > 0
        ),
        "garbage after the logits indices": _has_padding,
        "indices are int32": _of_indices(lambda indices: indices.dtype == np.int32),
        "indices are int64": _of_indices(lambda indices: indices.dtype == np.int64),
        "indices are strided": _of_indices(
            lambda indices: len(indices) > 1 and indices.strides[0] > indices.itemsize
        ),
        "the indices are on the CPU too": lambda call: not comes_back(call) and bool(call.hints),
        "the batch is not causal": lambda call: not comes_back(call) and not call.source.causal,
        "max_query_len is raised": lambda call: not comes_back(call) and call.source.raised > 0,
        "optional lengths are there": lambda call: (
            not comes_back(call) and metadata_of(call).dcp_local_seq_lens is not None
        ),
    },
    pairs=(
        ("none of a request with tokens", "garbage after the logits indices"),
        ("padded requests at the end", "the last token of each request"),
        ("indices are int64", "indices are strided"),
    ),
    invalid_inputs=FAST_PREFILL_INVALID_INPUTS,
    refusal_presets=(MINIMAL, ONE_REQUEST),  # arrays without axes need exactly one request
    aliases=(
        *(Alias(n, Relation.SAME, f"common_attn_metadata.{n}") for n in SHARED_FIELDS),
        *(
            Alias(n, Relation.SAME, f"common_attn_metadata{n and '.'}{n}", comes_back)
            for n in ("", *(n for n in FIELDS if n not in SHARED_FIELDS))
        ),
    ),
    has_kernel=True,
    takes_objects=True,
    laws=("logits_tokens_keep_their_reads", "padding_adds_nothing", "any_order_means_the_same"),
    interpretation=LOGITS_TOKENS,
    axes={
        **metadata_axes(),
        PADDING: Axis(
            lambda call: len(metadata_of(call).logits_indices_padded) - len(logits_indices_of(call))
        ),
    },
    has_arrays=True,
)


@property_check(
    "make_kv_sharing_fast_prefill_common_attn_metadata",
    fast_prefill_calls,
    goals={"armed": lambda call: not comes_back(call)},
)
def test_a_subclass_keeps_its_own_fields(target: Target, call: Call) -> None:
    """Metadata of a subclass stays of that class, and keeps the subclass's fields."""
    base: Any = target.lookup("CommonAttentionMetadata")
    if not isinstance(base, type):
        raise Unsupported("metadata of a subclass")
    invocation = Invocation(target, call)
    given = invocation.arguments["common_attn_metadata"]
    if type(given) is not base:
        return
    own: Any = dataclasses.make_dataclass("Own", [("own", int, 0)], bases=(base,))
    invocation.arguments["common_attn_metadata"] = own(**vars(given), own=7)
    found: Any = invocation.run()
    assert own is type(found)
    assert 7 == found.own


@property_check(
    "make_kv_sharing_fast_prefill_common_attn_metadata",
    fast_prefill_calls,
    goals={"armed": lambda call: not comes_back(call)},
    has_kernel=True,
    tests_invalid_inputs=True,
)
def test_indices_on_another_device_are_refused(target: Target, call: Call) -> None:
    """Logits indices, or their CPU copy, on a wrong device are refused by name."""
    if comes_back(call):
        return
    for checked in (True, False):
        invocation = Invocation(target, call)
        if "logits_indices_cpu" in invocation.hints and invocation.takes("logits_indices_cpu"):
            copy = invocation.hints["logits_indices_cpu"].to(OTHER_DEVICE)
            invocation.hints["logits_indices_cpu"] = copy
            path = "logits_indices_cpu"
            check_refuses_wrong_device(target, call, path, invocation.run, checked=checked)
        invocation = Invocation(target, call)
        given = invocation.arguments["common_attn_metadata"]
        given.logits_indices_padded = given.logits_indices_padded.to(OTHER_DEVICE)
        path = "common_attn_metadata.logits_indices_padded"
        check_refuses_wrong_device(target, call, path, invocation.run, checked=checked)


test_any_order_of_threads_counts_alike = same_in_any_order(
    "make_kv_sharing_fast_prefill_common_attn_metadata",
    fast_prefill_calls,
    lambda metadata: metadata.query_start_loc.tolist(),
)


@property_check("KV_SHARING_FAST_PREFILL_METADATA_FIELDS", lambda _: st.sampled_from(("", "Fast")))
def test_the_fields_make_a_metadata(target: Target, prefix: str) -> None:
    """The list has two fields with types and defaults, and can extend any metadata."""
    fields: Any = target.lookup("KV_SHARING_FAST_PREFILL_METADATA_FIELDS")
    assert list is type(fields)
    assert [tuple] * 2 == [type(field) for field in fields]
    array = type(target.converter().convert(np.arange(2), "array"))
    assert [("logits_indices_padded", array | None, None), ("num_logits_indices", int, 0)] == fields
    base = dataclasses.make_dataclass("Queries", [("longest", int)])
    made = target.lookup("subclass_attention_metadata")(prefix, base, fields)
    assert ["longest", *FIELD_NAMES] == [field.name for field in dataclasses.fields(made)]
    assert (3, None, 0) == dataclasses.astuple(made(3))
    protocol: Any = target.lookup("KVSharingFastPrefillMetadata")
    assert isinstance(made(3), protocol)


@property_check(
    "KVSharingFastPrefillMetadata",
    lambda _: st.sets(st.sampled_from((*FIELD_NAMES, "longest"))),
    goals={
        "both": lambda names: set(FIELD_NAMES) <= names,
        "one alone": lambda names: len(set(FIELD_NAMES) & names) == 1,
        "neither": lambda names: not set(FIELD_NAMES) & names,
    },
)
def test_metadata_with_both_fields_knows_its_logits_tokens(target: Target, names: set[str]) -> None:
    """Any object with the two attributes matches the protocol, whatever their values."""
    protocol: Any = target.lookup("KVSharingFastPrefillMetadata")
    metadata = SimpleNamespace(**dict.fromkeys(names))
    assert (set(FIELD_NAMES) <= names) == isinstance(metadata, protocol)
    assert set(FIELD_NAMES) == set(protocol.__annotations__)
