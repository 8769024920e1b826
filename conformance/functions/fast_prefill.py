"""Fast prefill: a batch cut to the tokens whose logits are needed."""

from __future__ import annotations

import dataclasses
import inspect
import random
import typing
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from conformance.harness.contract import Arguments, Contract
from conformance.harness.objects import Twin
from conformance.harness.sizes import rngs, sizes
from conformance.harness.values import put
from conformance.laws import batch_laws as laws
from conformance.laws.access import Half
from conformance.laws.attention import attention_is_dense
from conformance.laws.batch_laws import Description, Part
from conformance.laws.batches import (
    FILLERS,
    Batch,
    IntArray,
    batches,
    choices,
    deferred,
    metadata_specials,
)

FIELD_NAMES = ("logits_indices_padded", "num_logits_indices")

MAKE = "make_kv_sharing_fast_prefill_common_attn_metadata"

# make_kv_sharing_fast_prefill_common_attn_metadata

WHICH = ("last of each", "last of some", "ends", "several", "several", "all", "none", None)
"""Which tokens of a request have logits; None: the step does not use fast prefill."""


def _tokens(draw: st.DrawFn, batch: Batch, which: str) -> IntArray:
    rng, lens = draw(rngs()), batch.query_lens
    most = {
        "last of each": np.ones_like(lens),
        "last of some": rng.integers(0, 2, len(lens)),
        "ends": rng.integers(0, lens, endpoint=True),
        "none": np.zeros_like(lens),
    }.get(which, lens)
    from_the_end = batch.starts[1:][batch.owners] - np.arange(batch.num_tokens)
    is_one = from_the_end <= most[batch.owners]
    if which == "several":
        is_one &= rng.random(batch.num_tokens) < 0.4
    return np.flatnonzero(is_one)


@st.composite
def calls(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    """Draw batches and their tokens with logits, any values after them, and often their copy."""
    batch_of_sizes = draw(batches(has_optional=True))
    which, room, room_of_copy, filler, dtype, dtype_of_copy, has_copy = choices(
        *(draw, WHICH, (0, 0, 1, 4, None), (0, 0, 3), FILLERS),
        *((np.int64, np.int32), (np.int64, np.int32), (False, True)),
    )
    room = draw(sizes(0, 300)) if room is None else room

    def contents(draw: st.DrawFn) -> Arguments:
        batch = draw(batch_of_sizes)
        if which is None:
            fields: Any = dict.fromkeys(FIELD_NAMES)
            return {"common_attn_metadata": dataclasses.replace(batch.metadata(), **fields)}
        tokens = _tokens(draw, batch, which)
        number: Any = np.int32 if batch.has_numpy_ints else int
        padded = np.append(tokens, np.full(room, filler)).astype(dtype)
        arguments: Arguments = {
            "common_attn_metadata": dataclasses.replace(
                batch.metadata(),
                logits_indices_padded=padded,
                num_logits_indices=number(len(tokens)),
            )
        }
        if has_copy:
            copy = np.append(tokens, np.full(room_of_copy, 7)).astype(dtype_of_copy)
            arguments["logits_indices_cpu"] = copy
        return arguments

    return deferred(contents)


def make(twin: Twin, common_attn_metadata: Any, logits_indices_cpu: Any = None) -> Any:
    """Make the call; `fast` may be given a copy of the indices on the CPU.

    In `reference`, it must be as valid as the indices, and equal.
    """
    function = twin.function(MAKE)
    if logits_indices_cpu is None:
        return function(common_attn_metadata)
    if twin.target is not None:
        takes_copy = "logits_indices_cpu" in inspect.signature(function).parameters
        copy = {"logits_indices_cpu": logits_indices_cpu} if takes_copy else {}
        return function(common_attn_metadata, **copy)
    made = function(common_attn_metadata)
    if made is not common_attn_metadata:
        function(put(common_attn_metadata, ("logits_indices_padded",), logits_indices_cpu))
        indices = common_attn_metadata.logits_indices_padded
        pairs = zip(logits_indices_cpu.tolist(), indices.tolist(), strict=False)
        for at, (copied, index) in enumerate([*pairs][: common_attn_metadata.num_logits_indices]):
            if copied != index:
                raise ValueError(
                    f"logits_indices_cpu[{at}] is {copied}, but logits_indices_padded[{at}] is "
                    f"{index}"
                )
    return made


def another_copy(arguments: Arguments, rng: random.Random) -> Arguments | None:
    """Let one index differ from its copy."""
    metadata = arguments["common_attn_metadata"]
    if _comes_back(arguments) or not metadata.num_logits_indices:
        return None
    copy = metadata.logits_indices_padded[: metadata.num_logits_indices].copy()
    copy[rng.randrange(len(copy))] += 1
    return {**arguments, "logits_indices_cpu": copy}


def _indexed(batch: Batch, seed: int | None) -> Arguments:
    """Return a call of which each request's tokens depend on its own lengths alone."""
    lens = zip(batch.query_lens.tolist(), batch.num_computed_tokens.tolist(), strict=True)
    counts = [
        min(query_len, 1) if not seed else hash((seed, query_len, computed)) % (query_len + 1)
        for query_len, computed in lens
    ]
    tokens = [
        token
        for end, count in zip(batch.starts[1:].tolist(), counts, strict=True)
        for token in range(end - count, end)
    ]
    fields: Any = {
        "logits_indices_padded": np.array([*tokens, 0]),
        "num_logits_indices": len(tokens),
    }
    fields = fields if seed is not None else dict.fromkeys(fields)
    return {"common_attn_metadata": dataclasses.replace(batch.metadata(), **fields)}


def _comes_back(arguments: Arguments) -> bool:
    metadata = arguments["common_attn_metadata"]
    return metadata.logits_indices_padded is None or metadata.max_query_len == 1


def _needed(batch: Batch, arguments: Arguments) -> Sequence[int]:
    metadata = arguments["common_attn_metadata"]
    if _comes_back(arguments):
        return range(batch.num_tokens)
    tokens: list[int] = metadata.logits_indices_padded[: metadata.num_logits_indices].tolist()
    return tokens


def _part(batch: Batch, arguments: Arguments, result: Any) -> list[Part]:
    is_whole = _comes_back(arguments)
    return [Part(result, tokens=None if is_whole else _needed(batch, arguments))]


def _is_hard(arguments: Arguments) -> bool:
    metadata = arguments["common_attn_metadata"]
    if _comes_back(arguments):
        return False
    indices = metadata.logits_indices_padded[: metadata.num_logits_indices]
    counts = np.diff(np.searchsorted(indices, metadata.query_start_loc))
    lens = np.diff(metadata.query_start_loc)
    several = np.flatnonzero((counts > 1) & (counts < lens))
    return bool(len(several) and ((counts == 0) & (lens > 0))[: several[-1]].any())


# KV_SHARING_FAST_PREFILL_METADATA_FIELDS, KVSharingFastPrefillMetadata


@dataclasses.dataclass
class Queries:
    longest: int


def extend(twin: Twin, prefix: str) -> Any:
    fields = twin.find("KV_SHARING_FAST_PREFILL_METADATA_FIELDS")
    array = np.ndarray if twin.target is None else torch.Tensor
    kinds = {typing.get_origin(kind) or kind for kind in typing.get_args(fields[0][1])}
    made = twin.function("subclass_attention_metadata")(prefix, Queries, fields)
    default, protocol = made(3), twin.find("KVSharingFastPrefillMetadata")
    return {
        "names and defaults": [(name, value) for name, _, value in fields],
        "types": [kinds == {array, type(None)}, fields[1][1] is int],
        "an object": dataclasses.astuple(default),
        "matches": isinstance(default, protocol),
        "is a list of tuples": type(fields) is list and {*map(type, fields)} == {tuple},
    }


def match(twin: Twin, **has: bool) -> Any:
    protocol = twin.find("KVSharingFastPrefillMetadata")
    metadata = SimpleNamespace(**{name: None for name, is_there in has.items() if is_there})
    return isinstance(metadata, protocol), sorted(protocol.__annotations__)


CONTRACTS = [
    Contract(
        function=MAKE,
        calls=calls(),
        run=make,
        # `fast` does not read or compare this otherwise.
        checked_only=(
            r"^(causal|encoder_seq_lens|dcp_local_seq_lens) "
            r"|, (but \w+_cpu has|less than the|more than num_actual_tokens)"
        ),
        unread=frozenset({"query_start_loc_cpu", "num_actual_tokens"}),
        loose=frozenset({"logits_indices_cpu"}),
        specials=(another_copy, *metadata_specials("common_attn_metadata")),
        laws=(
            laws.logits_tokens_keep_their_reads,
            laws.fields_follow_their_axes,
            laws.padding_adds_nothing,
            laws.any_order_means_the_same,
            attention_is_dense,
        ),
        description=Description(
            _indexed,
            _part,
            lambda _: st.sampled_from((0, 1, 2, 3, None)),
            _needed,
            shows=Half.READS,
            causal=True,
        ),
        hard_cases={
            "several of a request's tokens, not all; of an earlier one none": _is_hard,
            "more than 1,023 requests": lambda args: args["common_attn_metadata"].num_reqs > 1023,
        },
        has_kernel=True,
        examples=0.7,
        takes_own_objects=True,
    ),
    Contract(
        function="KV_SHARING_FAST_PREFILL_METADATA_FIELDS",
        calls=st.just(st.fixed_dictionaries({"prefix": st.sampled_from(("", "Fast"))})),
        run=extend,
        examples=0.1,
    ),
    Contract(
        function="KVSharingFastPrefillMetadata",
        calls=st.just(
            st.fixed_dictionaries(dict.fromkeys((*FIELD_NAMES, "longest"), st.booleans()))
        ),
        run=match,
        examples=0.1,
    ),
]
