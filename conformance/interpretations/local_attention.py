"""Interpretation of the virtual batches of chunked local attention."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.calls import Call
from conformance.laws.access import Access
from conformance.laws.interpretation import Interpretation, Reader, changing, positions_of


def _virtual_requests(reader: Reader, call: Call) -> Iterator[Access]:
    """Yield the access relation of the virtual requests, with key positions in the sequence."""
    chunk, positions = call["attn_chunk_size"], positions_of(call.facts)
    access = reader.access(reader.answer(call), call.facts.layout)
    yield access.with_keys(lambda token, key: positions[token] // chunk * chunk + key)


VIRTUAL_REQUESTS = Interpretation(
    _virtual_requests, changing(common_attn_metadata=lambda batch: batch.metadata())
)
"""Of `make_local_attention_virtual_batches`: the virtual requests together."""
