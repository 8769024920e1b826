"""The attention metadata of a batch: its invariants, and its padding taken off."""

from __future__ import annotations

from typing import Any

import reference
from conformance.checks import Side, law, same_answer, same_refusal
from conformance.contracts import Alias, Call, Contract, Relation
from conformance.faults.metadata import UNPADDED_FAULTS, VALIDATE_FAULTS, metadata_faults
from conformance.strategies.batches import of_batch, of_metadata
from conformance.strategies.metadata import unpadded_calls, validate_calls
from conformance.strategies.presets import FEW_PAIRS, MINIMAL
from conformance.targets import Target

OPTIONAL_FIELDS: dict[str, Any] = {
    "the optional fields are there": lambda call: (
        call.arguments["self"].encoder_seq_lens is not None
    ),
    "the optional fields are absent": lambda call: call.arguments["self"].encoder_seq_lens is None,
}

UNPADDED = Contract(
    "CommonAttentionMetadata.unpadded",
    unpadded_calls,
    {
        **of_batch(),
        **of_metadata(),
        **OPTIONAL_FIELDS,
        "all requests are kept": lambda call: (
            call.arguments["num_actual_reqs"] == call.facts.num_reqs
        ),
        "no request is kept": lambda call: call.arguments["num_actual_reqs"] == 0,
        "requests with tokens are cut off": lambda call: (
            call.facts.starts[call.arguments["num_actual_reqs"]] < call.facts.num_tokens
        ),
        "padding tokens are kept": lambda call: (
            call.arguments["num_actual_tokens"]
            > call.facts.starts[call.arguments["num_actual_reqs"]]
        ),
    },
    pairs=(
        ("padded requests at the end", "padded tokens at the end"),
        ("requests with tokens are cut off", "the optional fields are there"),
    ),
    faults=UNPADDED_FAULTS,
    aliases=(
        Alias("query_start_loc", Relation.VIEW, "self.query_start_loc"),
        Alias("seq_lens", Relation.VIEW, "self.seq_lens"),
        Alias("block_table_tensor", Relation.VIEW, "self.block_table_tensor"),
        Alias("slot_mapping", Relation.VIEW, "self.slot_mapping"),
    ),
)

test_unpadded = same_answer(UNPADDED)
test_unpadded_refuses = same_refusal(UNPADDED)

VALIDATE = Contract(
    "CommonAttentionMetadata.validate",
    validate_calls,
    {
        **of_batch("no requests", "padded requests at the end", "strided arrays"),
        **of_metadata(),
        **OPTIONAL_FIELDS,
        "a block size is given": lambda call: call.arguments["block_size"] is not None,
    },
    faults=[*metadata_faults("self"), *VALIDATE_FAULTS],
)

test_validate = same_answer(VALIDATE)
test_validate_refuses = same_refusal(VALIDATE)


@law("CommonAttentionMetadata.unpadded", unpadded_calls, presets=(MINIMAL, FEW_PAIRS))
def test_unpadded_removes_nothing(target: Target, call: Call) -> None:
    """What the kept requests read and write is what they read and wrote in the whole batch."""
    with target.running(checked=True):
        got = Side(target, call).run()
    kept, whole = as_reference(got), call.arguments["self"]
    size = call.facts.layout.block_size
    tokens = call.facts.starts[call.arguments["num_actual_reqs"]]
    assert reference.kv_reads(kept, size) == {
        read for read in reference.kv_reads(whole, size) if read[0] < tokens
    }
    assert reference.kv_writes(kept) == {
        write
        for write in reference.kv_writes(whole)
        if write[0] < call.arguments["num_actual_tokens"]
    }


@law("CommonAttentionMetadata.unpadded", unpadded_calls, presets=(MINIMAL, FEW_PAIRS))
def test_padding_adds_nothing(target: Target, call: Call) -> None:
    """Without its padding a batch reads and writes what it did with it."""
    batch = call.facts
    num_reqs = max((i + 1 for i, q in enumerate(batch.query_lens) if q), default=0)
    bare = call.replacing(num_actual_tokens=batch.num_tokens, num_actual_reqs=num_reqs)
    with target.running(checked=True):
        kept = as_reference(Side(target, bare).run())
    whole, size = call.arguments["self"], batch.layout.block_size
    assert reference.kv_reads(kept, size) == reference.kv_reads(whole, size)
    assert reference.kv_writes(kept) == reference.kv_writes(whole)


def as_reference(metadata: Any) -> reference.CommonAttentionMetadata:
    """Return a target's metadata as `reference` holds it."""
    fields = reference.CommonAttentionMetadata.__dataclass_fields__
    values = {name: getattr(metadata, name) for name in fields}
    return reference.CommonAttentionMetadata(
        **{n: v.cpu().numpy() if hasattr(v, "cpu") else v for n, v in values.items()}
    )
