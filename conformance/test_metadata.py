"""The attention metadata of a batch: its invariants, and its padding taken off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import reference
from conformance.adapters import Unsupported
from conformance.contracts.check import Check, property_check
from conformance.contracts.contract import Contract
from conformance.contracts.evaluation import check_equal, check_error, exception_of, outcome
from conformance.coverage.presets import FEW_PAIRS, MINIMAL, Preset
from conformance.execution.invocations import Invocation
from conformance.invalid_inputs.metadata import (
    UNPADDED_INVALID_INPUTS,
    VALIDATE_INVALID_INPUTS,
    invalid_metadata,
)
from conformance.laws.access import Access
from conformance.laws.changes import Change, Unpadded
from conformance.laws.interpretation import Interpretation, Reader, with_batch
from conformance.messages.mismatch import Mismatch
from conformance.strategies import cached as st
from conformance.strategies.batch import Batch
from conformance.strategies.batch_order import (
    split_decodes_and_prefills_calls,
    split_decodes_prefills_and_extends_calls,
)
from conformance.strategies.batches import of_batch, of_metadata
from conformance.strategies.large_batches import metadata_axes
from conformance.strategies.local_attention import local_attention_calls
from conformance.strategies.metadata import metadata_calls, unpadded_calls, validate_calls
from conformance.strategies.ubatch import make_metadata_with_slice_calls, split_attn_metadata_calls
from conformance.targets.target import RAISED, REFERENCE, Target
from conformance.values.aliases import Alias, Relation, views_of
from conformance.values.call import Call
from conformance.values.differences import Difference, Verdict, raised


def _select_actual(call: Call, access: Access) -> Access:
    """Return the reads of the actual requests, and the writes of the actual tokens."""
    tokens = call.source.starts[call["num_actual_reqs"]]
    writes = access.of_tokens(range(call["num_actual_tokens"])).writes
    return Access(access.of_tokens(range(tokens)).reads, writes)


def _with_change(call: Call, change: Change) -> Call:
    """Return the call that removes all padding of a changed batch, and nothing else."""
    batch = change(call.source)
    counts = {"num_actual_tokens": batch.num_tokens, "num_actual_reqs": _num_busy(batch)}
    return with_batch(call, batch, self=batch.metadata(), **counts)


def _num_busy(batch: Batch) -> int:
    """Return the number of requests up to the last one with tokens."""
    return Unpadded()(batch).num_reqs


def _actual_requests(reader: Reader, call: Call) -> Iterator[Access]:
    yield reader.access(reader.answer(call), call.source.layout)


ACTUAL_REQUESTS = Interpretation(_actual_requests, _with_change, selects=_select_actual)
"""Interprets `CommonAttentionMetadata.unpadded`: the actual requests and tokens."""


OPTIONAL_FIELDS: dict[str, Any] = {
    "the optional fields are there": lambda call: call["self"].encoder_seq_lens is not None,
    "the optional fields are absent": lambda call: call["self"].encoder_seq_lens is None,
}


ON_DEVICE = (
    *(f"self.{name}_cpu" for name in ("query_start_loc", "seq_lens", "num_computed_tokens")),
    *(f"self.{name}" for name in ("seq_lens", "block_table_tensor", "slot_mapping")),
)
"""The fields that must be on the CPU, or on the device of the others."""


test_unpadded = Contract(
    "CommonAttentionMetadata.unpadded",
    unpadded_calls,
    {
        **of_batch(),
        **of_metadata(),
        **OPTIONAL_FIELDS,
        "all requests remain": lambda call: call["num_actual_reqs"] == call.source.num_reqs,
        "no request remains": lambda call: call["num_actual_reqs"] == 0,
        "requests with tokens are cut off": lambda call: (
            call.source.starts[call["num_actual_reqs"]] < call.source.num_tokens
        ),
        "padding tokens remain": lambda call: (
            call["num_actual_tokens"] > call.source.starts[call["num_actual_reqs"]]
        ),
    },
    pairs=(
        ("padded requests at the end", "padded tokens at the end"),
        ("requests with tokens are cut off", "the optional fields are there"),
    ),
    invalid_inputs=UNPADDED_INVALID_INPUTS,
    aliases=(
        *views_of(
            "self",
            "query_start_loc",
            "query_start_loc_cpu",
            "seq_lens",
            "seq_lens_cpu",
            "num_computed_tokens_cpu",
            "block_table_tensor",
            "slot_mapping",
            "encoder_seq_lens",
            "dcp_local_seq_lens",
        ),
        Alias("logits_indices_padded", Relation.SAME, "self.logits_indices_padded"),
    ),
    laws=("unpadding_removes_nothing", "padding_adds_nothing", "any_order_means_the_same"),
    interpretation=ACTUAL_REQUESTS,
    on_device=ON_DEVICE,
    axes=metadata_axes(),
    has_arrays=True,
)


test_validate = Contract(
    "CommonAttentionMetadata.validate",
    validate_calls,
    {
        **of_batch("no requests", "padded requests at the end", "strided arrays"),
        **of_metadata(),
        **OPTIONAL_FIELDS,
        "a block size is given": lambda call: call["block_size"] is not None,
    },
    invalid_inputs=[*invalid_metadata("self", is_value=False), *VALIDATE_INVALID_INPUTS],
    on_device=ON_DEVICE,
    axes=metadata_axes(),
    has_arrays=True,
)


LACKING: dict[str, tuple[str, ...]] = {
    "nothing": (),
    "query_start_loc": ("query_start_loc", "query_start_loc_cpu"),
    "seq_lens": ("seq_lens", "seq_lens_cpu"),
    **{
        name: (name,)
        for name in reference.CommonAttentionMetadata.__dataclass_fields__
        if name.removesuffix("_cpu") not in {"query_start_loc", "seq_lens"}
    },
}
"""The fields to remove from an engine's own metadata; two of them together with their CPU copy."""


def _own(target: Target, call: Call, lacking: str) -> Any:
    """Return what a target returns for an engine's own metadata, or the exception it raises."""
    invocation = Invocation(target, call)
    [name] = {"common_attn_metadata", "attn_metadata"} & invocation.arguments.keys()
    fields = {
        k: v for k, v in vars(invocation.arguments[name]).items() if k not in LACKING[lacking]
    }
    invocation.arguments[name] = SimpleNamespace(**fields)
    return invocation.answer_or_error()


def _check_without(target: Target, call: Call, lacking: str) -> None:
    """Raise `Mismatch` if a target and `reference` differ for metadata that lacks a field."""
    expected, got = _own(REFERENCE, call, lacking), _own(target, call, lacking)
    done = raised(got) if isinstance(got, RAISED) else f"returned {got!r}"
    without = f"(the metadata has no {lacking})"
    if not isinstance(expected, RAISED):
        if isinstance(got, RAISED):
            difference = outcome(done, f"return a result {without}")
            raise Mismatch(call, target.name, difference) from got
        check_equal(target, call, expected, got, f"result_without_{lacking}")
    elif type(got) is not type(expected) and target.validates:
        difference = outcome(done, f"raise {type(expected).__name__} {without}")
        raise Mismatch(call, target.name, difference)


def _lacks(name: str) -> Callable[[tuple[Call, list[str]]], bool]:
    return lambda example: name in example[1]


def _reads_as_reference(function: str, calls: Callable[[Preset], st.SearchStrategy[Call]]) -> Check:
    """Return the check that a target reads no other fields of a metadata than `reference` does."""
    few = st.lists(st.sampled_from(tuple(LACKING)), min_size=5, max_size=5, unique=True)

    @property_check(
        function,
        lambda preset: st.tuples(calls(preset), few),
        goals={f"an engine's own metadata without {name}": _lacks(name) for name in LACKING},
        presets=(MINIMAL, FEW_PAIRS),
    )
    def reads_as_reference(target: Target, example: tuple[Call, list[str]]) -> None:
        """Any object with the fields that are read works as metadata; any other is refused."""
        if not target.implementation.adapter.takes_own_objects:
            raise Unsupported("metadata of a caller's own class")
        call, names = example
        for name in names:
            _check_without(target, call, name)

    return reads_as_reference


test_own_metadata_is_split = _reads_as_reference(
    "split_decodes_and_prefills", split_decodes_and_prefills_calls
)
test_own_metadata_is_split_in_three = _reads_as_reference(
    "split_decodes_prefills_and_extends", split_decodes_prefills_and_extends_calls
)
test_own_metadata_is_cut = _reads_as_reference(
    "_make_metadata_with_slice", make_metadata_with_slice_calls
)
test_own_metadata_is_cut_up = _reads_as_reference("split_attn_metadata", split_attn_metadata_calls)
test_own_metadata_becomes_virtual = _reads_as_reference(
    "make_local_attention_virtual_batches", local_attention_calls
)


@property_check(
    "split_decodes_and_prefills",
    split_decodes_and_prefills_calls,
    goals={"three requests": lambda call: call.source.num_reqs >= 3},
    tests_invalid_inputs=True,
)
def test_starts_on_the_cpu_alone_are_counted(target: Target, call: Call) -> None:
    """Without starts on the device, CPU starts that are one entry short are refused by name."""
    if target.device is None or not target.implementation.adapter.takes_own_objects:
        return  # only implementations with copies on the CPU
    invocation = Invocation(target, call)
    fields = dict(vars(invocation.arguments["common_attn_metadata"]))
    del fields["query_start_loc"]
    fields["query_start_loc_cpu"] = fields["query_start_loc_cpu"][:-1]
    invocation.arguments["common_attn_metadata"] = SimpleNamespace(**fields)
    with target.running(checked=True):
        error = exception_of(invocation.run)
    starts = "(query_start_loc|query_start_loc_cpu)"
    check_error(target, call, error, (ValueError, starts), "the only starts are one short")


@property_check("CommonAttentionMetadata", metadata_calls)
def test_metadata_is_compared_by_identity(target: Target, call: Call) -> None:
    """Metadata compares by identity, since comparing tensors gives no single truth value."""
    one, other = (
        target.own(target.converter().convert(call["metadata"], "metadata")) for _ in range(2)
    )
    try:
        is_so = one == one and one != other and len({one, other}) == 2  # noqa: PLR0124
        got: object = is_so
    except RAISED as error:
        got = raised(error)
    if got is not True:
        difference = Difference(
            Verdict.IDENTITY, "metadata is compared by identity", None, got, True
        )
        made = Call("CommonAttentionMetadata", dict(vars(call["metadata"])))
        raise Mismatch(made, target.name, difference)
