"""Chunked local attention as ordinary attention of virtual requests."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.contracts.check import property_check
from conformance.contracts.contract import Contract
from conformance.coverage.size_axes import Axis
from conformance.execution.invocations import Invocation
from conformance.invalid_inputs.local_attention import LOCAL_ATTENTION_INVALID_INPUTS
from conformance.laws.access import Access
from conformance.laws.interpretation import Interpretation, Reader, changing, positions_of
from conformance.strategies.batches import of_batch, of_metadata
from conformance.strategies.large_batches import BLOCK_SIZE, metadata_axes
from conformance.strategies.local_attention import CHUNK_BLOCKS, local_attention_calls
from conformance.targets.target import Target
from conformance.values.aliases import Alias, Relation
from conformance.values.call import Call


def _virtual_requests(reader: Reader, call: Call) -> Iterator[Access]:
    """Yield the access relation of the virtual requests, with key positions in the sequence."""
    chunk, positions = call["attn_chunk_size"], positions_of(call.source)
    access = reader.access(reader.answer(call), call.source.layout)
    yield access.with_keys(lambda token, key: positions[token] // chunk * chunk + key)


VIRTUAL_REQUESTS = Interpretation(
    _virtual_requests, changing(common_attn_metadata=lambda batch: batch.metadata())
)
"""Interprets `make_local_attention_virtual_batches`: the virtual requests together."""


def _requests(call: Call) -> list[tuple[int, int, int]]:
    """Return (computed tokens, query length, chunk size) of the requests with tokens."""
    chunk = call["attn_chunk_size"]
    batch = call.source
    pairs = zip(batch.num_computed_tokens, batch.query_lens, strict=True)
    return [(c, q, chunk) for c, q in pairs if q]


def _last_chunk_is_cut_off(call: Call) -> bool:
    """Return whether a sequence's last chunk reaches past the table's width."""
    size, chunk = call["block_size"], call["attn_chunk_size"]
    width = call["common_attn_metadata"].block_table_tensor.shape[1]
    return any(
        (s - 1) // chunk * chunk // size + chunk // size > width for s in call.source.seq_lens if s
    )


test_local_attention = Contract(
    "make_local_attention_virtual_batches",
    local_attention_calls,
    {
        **of_batch(),
        **of_metadata(),
        "a context ends on a chunk boundary": lambda call: any(
            c and c % k == 0 for c, _, k in _requests(call)
        ),
        "a sequence ends on a chunk boundary": lambda call: any(
            (c + q) % k == 0 for c, q, k in _requests(call)
        ),
        "a sequence ends just past one": lambda call: any(
            (c + q) % k == 1 for c, q, k in _requests(call)
        ),
        "a request touches three chunks or more": lambda call: any(
            (c + q - 1) // k - c // k > 1 for c, q, k in _requests(call)
        ),
        "the first chunk is entered inside": lambda call: any(c % k for c, _, k in _requests(call)),
        "a table of no columns": lambda call: (
            call.source.num_reqs > 0
            and call["common_attn_metadata"].block_table_tensor.shape[1] == 0
        ),
        "a chunk reaches past the table": _last_chunk_is_cut_off,
        "a chunk of one block": lambda call: call["attn_chunk_size"] == call["block_size"],
        "a chunk of one position": lambda call: call["attn_chunk_size"] == 1,
        "an idle request with a context": lambda call: any(
            q == 0 < c
            for c, q in zip(call.source.num_computed_tokens, call.source.query_lens, strict=True)
        ),
        "the maxima are raised": lambda call: call.source.raised > 0,
        "counts are NumPy ints": lambda call: call.source.has_numpy_ints,
    },
    pairs=(
        ("a request touches three chunks or more", "padded requests at the end"),
        ("a chunk reaches past the table", "the first chunk is entered inside"),
    ),
    invalid_inputs=LOCAL_ATTENTION_INVALID_INPUTS,
    aliases=(Alias("slot_mapping", Relation.SAME, "common_attn_metadata.slot_mapping"),),
    has_kernel=True,
    takes_objects=True,
    laws=(
        "chunks_restrict",
        "writes_are_read_back",
        "padding_adds_nothing",
        "any_order_means_the_same",
    ),
    interpretation=VIRTUAL_REQUESTS,
    on_device=("common_attn_metadata.query_start_loc_cpu", "common_attn_metadata.seq_lens_cpu"),
    axes={
        **metadata_axes(),
        CHUNK_BLOCKS: Axis(lambda call: call["attn_chunk_size"] // call["block_size"], first=1),
        BLOCK_SIZE: Axis(lambda call: call["block_size"], 2**29 - 1, first=1),
    },
    has_arrays=True,
)


@property_check("make_local_attention_virtual_batches", local_attention_calls, has_kernel=True)
def test_virtual_requests_hold_the_tokens(target: Target, call: Call) -> None:
    """A batch's virtual requests have its tokens, and none is longer than a chunk."""
    virtual = Invocation(target, call).answer()
    assert virtual.query_start_loc[-1] == call.source.num_tokens
    assert virtual.num_reqs >= call.source.num_reqs
    assert all(length <= call["attn_chunk_size"] for length in virtual.seq_lens)
