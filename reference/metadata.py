"""The metadata of an attention step: which tokens of which requests, and where their blocks are."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from reference._checks import (
    COUNT_DTYPES,
    Dtypes,
    Int32Array,
    Int64Array,
    IntArray,
    check_array,
    check_bool,
    check_int,
    check_query_start_loc,
    check_size,
)


@dataclasses.dataclass(eq=False)
class CommonAttentionMetadata:
    """What every attention backend needs to know of one step's batch.

    A request's query length `q_i` is `query_start_loc[i + 1] - query_start_loc[i]`, its sequence
    length `s_i` is `seq_lens[i]`. The constructor checks nothing; `validate` does.

    Attributes:
        query_start_loc: int32[num_reqs + 1], where each request's tokens start, and the end.
        query_start_loc_cpu: The same values; `fast` has them on the host.
        seq_lens: int32[num_reqs], tokens of each request, computed ones and those of this step.
        seq_lens_cpu: The same values; `fast` has them on the host.
        num_computed_tokens_cpu: int32[num_reqs], tokens of each request that are in the cache.
        num_reqs: Number of requests, padded ones included.
        num_actual_tokens: Number of tokens in the batch; it may count padding.
        max_query_len: An upper bound of the query lengths, in tokens.
        max_seq_len: An upper bound of the sequence lengths, in tokens.
        block_table_tensor: int32[at least num_reqs, max_blocks_per_req], block ids.
        slot_mapping: int64[at least num_actual_tokens], the slot that each token is written to.
        causal: Whether a token sees no later ones.
        logits_indices_padded: int32 or int64[at least num_logits_indices], the tokens whose logits
            are wanted, then padding.
        num_logits_indices: How many of these count.
        encoder_seq_lens: int32 or int64[num_reqs], encoder tokens of each request, on the host.
        dcp_local_seq_lens: int32[num_reqs], how many of a sequence's tokens this
            context-parallel rank holds.

    Example:
        >>> import numpy as np
        >>> starts, lens = np.array([0, 2, 3], np.int32), np.array([5, 1], np.int32)
        >>> metadata = CommonAttentionMetadata(
        ...     query_start_loc=starts,
        ...     query_start_loc_cpu=starts,
        ...     seq_lens=lens,
        ...     seq_lens_cpu=lens,
        ...     num_computed_tokens_cpu=np.array([3, 0], np.int32),
        ...     num_reqs=2,
        ...     num_actual_tokens=3,
        ...     max_query_len=2,
        ...     max_seq_len=5,
        ...     block_table_tensor=np.array([[7, 4], [2, 0]], np.int32),
        ...     slot_mapping=np.array([31, 16, 8]),
        ... )
        >>> metadata.validate(block_size=4)
        >>> metadata.validate(block_size=2)
        Traceback (most recent call last):
        ValueError: seq_lens[0] is 5 and needs 3 blocks of 2, but row 0 of block_table_tensor has 2
        >>> metadata.unpadded(2, 1).slot_mapping.tolist()
        [31, 16]

    Source: the definition is kvtwin's own; the names are those of vLLM's v1 attention backends.
    """

    query_start_loc: Int32Array
    query_start_loc_cpu: Int32Array
    seq_lens: Int32Array
    seq_lens_cpu: Int32Array
    num_computed_tokens_cpu: Int32Array
    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    block_table_tensor: Int32Array
    slot_mapping: Int64Array
    causal: bool = True
    logits_indices_padded: IntArray | None = None
    num_logits_indices: int | None = None
    encoder_seq_lens: IntArray | None = None
    dcp_local_seq_lens: Int32Array | None = None

    def unpadded(self, num_actual_tokens: int, num_actual_reqs: int) -> CommonAttentionMetadata:
        """Cut the batch to its first tokens and requests.

        Args:
            num_actual_tokens: How many tokens to keep.
            num_actual_reqs: How many requests to keep.

        Returns:
            A metadata of the same class. Every per-request field is cut to that many requests
            (`query_start_loc` to one more), `slot_mapping` to that many tokens; these are views.
            `max_*`, `causal` and the logits fields are as they were.

        Raises:
            TypeError: A number that is no int.
            ValueError: A negative number, more than there are, or fewer tokens than the requests
                kept have.
        """
        num_reqs = check_int("num_actual_reqs", num_actual_reqs, 0, self.num_reqs)
        num_tokens = check_int("num_actual_tokens", num_actual_tokens, 0, self.num_actual_tokens)
        if num_tokens < self.query_start_loc[num_reqs]:
            raise ValueError(
                f"num_actual_tokens is {num_tokens}, but the first {num_reqs} requests have "
                f"{self.query_start_loc[num_reqs]} tokens"
            )
        encoder_lens, local_lens = self.encoder_seq_lens, self.dcp_local_seq_lens
        return dataclasses.replace(
            self,
            query_start_loc=self.query_start_loc[: num_reqs + 1],
            query_start_loc_cpu=self.query_start_loc_cpu[: num_reqs + 1],
            seq_lens=self.seq_lens[:num_reqs],
            seq_lens_cpu=self.seq_lens_cpu[:num_reqs],
            num_computed_tokens_cpu=self.num_computed_tokens_cpu[:num_reqs],
            num_reqs=num_reqs,
            num_actual_tokens=num_tokens,
            block_table_tensor=self.block_table_tensor[:num_reqs],
            slot_mapping=self.slot_mapping[:num_tokens],
            encoder_seq_lens=None if encoder_lens is None else encoder_lens[:num_reqs],
            dcp_local_seq_lens=None if local_lens is None else local_lens[:num_reqs],
        )

    def validate(self, block_size: int | None = None) -> None:
        """Raise on the first invariant that does not hold.

        Args:
            block_size: Positions in a block; None leaves the rows of the block table unchecked.

        Raises:
            TypeError: A field, or the block size, of another type or dtype.
            ValueError: An invariant that does not hold; `validate_metadata` lists them.
        """
        validate_metadata(self, block_size)


def validate_metadata(metadata: object, block_size: int | None = None) -> None:
    """Raise on the first invariant that does not hold of a metadata, or of an engine's own.

    In this order: types, dtypes and dimensions, counts of at least 0; `query_start_loc` starts at
    0, does not decrease, and ends at `num_actual_tokens` or before; it has `num_reqs + 1` entries,
    per-request vectors have `num_reqs`, the block table has at least that many rows, `slot_mapping`
    at least `num_actual_tokens` entries; what ends in `_cpu` equals its twin; `s_i >= 0`, and for
    requests with query tokens `q_i <= s_i` and `0 <= num_computed_tokens_cpu[i] <= s_i - q_i` (less
    only after fast prefill); `max_query_len` and `max_seq_len` are bounds; with a block size, every
    block that holds one of the first `s_i` positions is inside its row.

    Args:
        metadata: An object with the fields of `CommonAttentionMetadata`. One that it lacks, or an
            optional one that is None, is not checked.
        block_size: Positions in a block; None leaves the rows of the block table unchecked.

    Raises:
        TypeError: A field, or the block size, of another type or dtype.
        ValueError: An invariant that does not hold.

    Example:
        >>> import numpy as np
        >>> from types import SimpleNamespace
        >>> validate_metadata(SimpleNamespace(num_reqs=2, seq_lens=np.array([4], np.int32)))
        Traceback (most recent call last):
        ValueError: seq_lens has 1 entries, but must have 2

    Source: the definition is kvtwin's own.
    """
    if block_size is not None:
        block_size = check_size("block_size", block_size)
    fields = _check_fields(metadata)
    _check_lengths(fields)
    _check_equal(fields)
    _check_tokens(fields)
    _check_maxima(fields)
    if block_size is not None:
        _check_rows(fields, block_size)


_REQUEST_VECTORS: dict[str, Dtypes] = {
    "seq_lens": np.int32,
    "seq_lens_cpu": np.int32,
    "num_computed_tokens_cpu": np.int32,
    "encoder_seq_lens": COUNT_DTYPES,
    "dcp_local_seq_lens": np.int32,
}
_COUNTS = ("num_reqs", "num_actual_tokens", "max_query_len", "max_seq_len", "num_logits_indices")
_OPTIONAL = (
    "logits_indices_padded",
    "num_logits_indices",
    "encoder_seq_lens",
    "dcp_local_seq_lens",
)


def _check_fields(metadata: object) -> dict[str, Any]:
    """Return the fields that there are, each of its type: vectors by request as lists of ints."""
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(CommonAttentionMetadata):
        name = field.name
        value = getattr(metadata, name, None)
        if not hasattr(metadata, name) or (value is None and name in _OPTIONAL):
            continue
        if name == "query_start_loc":
            fields[name] = check_query_start_loc(name, value)
        elif name == "query_start_loc_cpu":
            fields[name] = check_array(name, value, np.int32, ndim=1).tolist()
        elif name in _REQUEST_VECTORS:
            fields[name] = check_array(name, value, _REQUEST_VECTORS[name], ndim=1).tolist()
        elif name in _COUNTS:
            fields[name] = check_int(name, value, minimum=0)
        elif name == "block_table_tensor":
            fields[name] = check_array(name, value, np.int32, ndim=2)
        elif name == "slot_mapping":
            fields[name] = check_array(name, value, np.int64, ndim=1)
        elif name == "logits_indices_padded":
            fields[name] = check_array(name, value, COUNT_DTYPES, ndim=1)
        else:
            fields[name] = check_bool(name, value)
    return fields


def _check_lengths(fields: dict[str, Any]) -> None:
    """Check that the fields are of one batch: so many requests, so many tokens."""
    starts = fields.get("query_start_loc")
    num_tokens = fields.get("num_actual_tokens")
    if starts is not None and num_tokens is not None and starts[-1] > num_tokens:
        raise ValueError(
            f"query_start_loc ends at {starts[-1]}, but num_actual_tokens is {num_tokens}"
        )
    num_reqs = fields.get("num_reqs")
    if num_reqs is None and starts is not None:
        num_reqs = len(starts) - 1
    if num_reqs is None and "seq_lens" in fields:
        num_reqs = len(fields["seq_lens"])
    if num_reqs is not None:
        for name in ("query_start_loc", "query_start_loc_cpu", *_REQUEST_VECTORS):
            length = num_reqs + 1 if name.startswith("query_start_loc") else num_reqs
            if name in fields and len(fields[name]) != length:
                raise ValueError(f"{name} has {len(fields[name])} entries, but must have {length}")
        if "block_table_tensor" in fields and len(fields["block_table_tensor"]) < num_reqs:
            raise ValueError(
                f"block_table_tensor has {len(fields['block_table_tensor'])} rows, "
                f"but must have at least {num_reqs}"
            )
    if num_tokens is not None and "slot_mapping" in fields:
        num_slots = len(fields["slot_mapping"])
        if num_slots < num_tokens:
            raise ValueError(
                f"slot_mapping has {num_slots} entries, but must have at least {num_tokens}"
            )


def _check_equal(fields: dict[str, Any]) -> None:
    """Check that what is held twice is the same twice."""
    for name in ("query_start_loc", "seq_lens"):
        if name in fields and f"{name}_cpu" in fields:
            pairs = zip(fields[name], fields[f"{name}_cpu"], strict=True)
            for i, (value, value_cpu) in enumerate(pairs):
                if value_cpu != value:
                    raise ValueError(f"{name}_cpu[{i}] is {value_cpu}, but {name}[{i}] is {value}")


def _check_tokens(fields: dict[str, Any]) -> None:
    """Check each request's sequence length, query length and computed tokens together."""
    starts, seq_lens = fields.get("query_start_loc"), fields.get("seq_lens", [])
    computed = fields.get("num_computed_tokens_cpu")
    for i, seq_len in enumerate(seq_lens):
        check_int(f"seq_lens[{i}]", seq_len, minimum=0)
        query_len = 0 if starts is None else starts[i + 1] - starts[i]
        if query_len == 0:
            continue
        if seq_len < query_len:
            raise ValueError(f"seq_lens[{i}] is {seq_len}, less than its query length {query_len}")
        if computed is not None and not 0 <= computed[i] <= seq_len - query_len:
            raise ValueError(
                f"num_computed_tokens_cpu[{i}] is {computed[i]}, but must be in "
                f"0 .. {seq_len - query_len}: seq_lens[{i}] is {seq_len}, "
                f"its query length {query_len}"
            )


def _check_maxima(fields: dict[str, Any]) -> None:
    """Check that the greatest lengths are at least each request's."""
    starts = fields.get("query_start_loc", [])
    query_lens = [starts[i + 1] - starts[i] for i in range(len(starts) - 1)]
    for i, query_len in enumerate(query_lens):
        if query_len > fields.get("max_query_len", query_len):
            raise ValueError(
                f"max_query_len is {fields['max_query_len']}, but request {i} has query length "
                f"{query_len}"
            )
    for i, seq_len in enumerate(fields.get("seq_lens", [])):
        if seq_len > fields.get("max_seq_len", seq_len):
            raise ValueError(
                f"max_seq_len is {fields['max_seq_len']}, but seq_lens[{i}] is {seq_len}"
            )


def _check_rows(fields: dict[str, Any], block_size: int) -> None:
    """Check that the block table is wide enough for every sequence."""
    if "block_table_tensor" not in fields:
        return
    num_columns = fields["block_table_tensor"].shape[1]
    for i, seq_len in enumerate(fields.get("seq_lens", [])):
        num_blocks = -(-seq_len // block_size)
        if num_blocks > num_columns:
            raise ValueError(
                f"seq_lens[{i}] is {seq_len} and needs {num_blocks} blocks of {block_size}, "
                f"but row {i} of block_table_tensor has {num_columns}"
            )
