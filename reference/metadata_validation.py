"""The invariants of a batch's metadata, kvtwin's or an engine's own."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from reference._checks import (
    COUNT_DTYPES,
    MAX_INT64,
    Int32Array,
    check_array,
    check_at_least,
    check_bool,
    check_int,
    check_length,
    check_not_negative,
    check_size,
    check_starts,
)


def validate_metadata(metadata: object, block_size: int | None = None) -> None:
    """Raise on the first invariant of a metadata that does not hold.

    The invariants, in this order:

    - Each field has its type, dtype and dimensions; counts are at least 0.
    - A field whose name ends in `_cpu` equals the field without the suffix.
    - `query_start_loc` starts at 0, does not decrease, and ends at most at `num_actual_tokens`.
    - `query_start_loc` has `num_reqs + 1` entries, each vector by request `num_reqs`, the block
      table at least `num_reqs` rows, and `slot_mapping` at least `num_actual_tokens` entries.
    - `s_i >= 0`, and for requests with query tokens `q_i <= s_i` and
      `0 <= num_computed_tokens_cpu[i] <= s_i - q_i` (less only after fast prefill).
    - `max_query_len` and `max_seq_len` are upper bounds.
    - With a block size, the row of each request has every block of its first `s_i` positions.

    Args:
        metadata: A `CommonAttentionMetadata`, or an engine's own object with its fields. A field
            that it lacks, or an optional one that is None, is not checked.
        block_size: Positions in a block; None leaves the rows of the block table unchecked.

    Raises:
        TypeError: A field, or the block size, of the wrong type or dtype.
        ValueError: An invariant that does not hold.

    Example:
        >>> import numpy as np
        >>> from types import SimpleNamespace
        >>> validate_metadata(SimpleNamespace(num_reqs=2, seq_lens=np.array([4], np.int32)))
        Traceback (most recent call last):
        ValueError: seq_lens has 1 entries, expected num_reqs = 2

    Source: the definition is kvtwin's own.
    """
    if block_size is not None:
        block_size = check_size("block_size", block_size)
    fields = check_fields(metadata)
    _check_copies(fields)
    starts, seq_lens = fields.get("query_start_loc"), fields.get("seq_lens", [])
    query_lens: list[int] = []
    if starts is not None:
        check_starts("query_start_loc", starts)
        query_lens = [end - start for start, end in itertools.pairwise(starts)]
        num_tokens = fields.get("num_actual_tokens")
        if num_tokens is not None and starts[-1] > num_tokens:
            raise ValueError(
                f"query_start_loc[-1] is {starts[-1]}, more than num_actual_tokens {num_tokens}"
            )
    check_lengths(fields)
    check_not_negative("seq_lens", seq_lens)
    _check_tokens(query_lens, seq_lens, fields.get("num_computed_tokens_cpu"))
    _check_maximum("max_query_len", fields, "query length", query_lens)
    _check_maximum("max_seq_len", fields, "sequence length", seq_lens)
    if block_size is not None and "block_table_tensor" in fields:
        _check_rows(seq_lens, fields["block_table_tensor"].shape[1], block_size)


def check_computed(starts: Int32Array, seq_lens: Int32Array, computed: Int32Array) -> None:
    """Check that everything before the query of each request is computed, as in a whole step.

    Raises:
        ValueError: A request with query tokens whose sequence is not its computed and query tokens.
    """
    for i, seq_len in enumerate(seq_lens.tolist()):
        query_len = int(starts[i + 1]) - int(starts[i])
        if query_len > 0 and seq_len - query_len != computed[i]:
            raise ValueError(
                f"seq_lens[{i}] is {seq_len} but num_computed_tokens_cpu[{i}] is {computed[i]} and "
                f"its query length {query_len}, expected their sum {computed[i] + query_len}"
            )


_OPTIONAL = (
    "logits_indices_padded",
    "num_logits_indices",
    "encoder_seq_lens",
    "dcp_local_seq_lens",
)
"""The fields that may be None."""

_REQUEST_VECTORS = (
    "seq_lens",
    "seq_lens_cpu",
    "num_computed_tokens_cpu",
    "dcp_local_seq_lens",
    "encoder_seq_lens",
)
"""The fields with one entry for each request."""


def _check_int32_vector(name: str, value: object) -> list[int]:
    return check_array(name, value, np.int32, ndim=1).tolist()  # type: ignore[no-any-return]  # NumPy's


_CHECKS: dict[str, Callable[[str, object], Any]] = {
    "query_start_loc": _check_int32_vector,
    "query_start_loc_cpu": _check_int32_vector,
    "seq_lens": _check_int32_vector,
    "seq_lens_cpu": _check_int32_vector,
    "num_computed_tokens_cpu": _check_int32_vector,
    "block_table_tensor": lambda name, value: check_array(name, value, np.int32, 2),
    "slot_mapping": lambda name, value: check_array(name, value, np.int64, 1),
    "dcp_local_seq_lens": _check_int32_vector,
    "logits_indices_padded": lambda name, value: check_array(name, value, COUNT_DTYPES, 1),
    "num_reqs": lambda name, value: check_int(name, value, 0, MAX_INT64),
    "num_actual_tokens": lambda name, value: check_int(name, value, 0, MAX_INT64),
    "max_query_len": lambda name, value: check_int(name, value, 0, MAX_INT64),
    "max_seq_len": lambda name, value: check_int(name, value, 0, MAX_INT64),
    "num_logits_indices": lambda name, value: check_int(name, value, 0, MAX_INT64),
    "causal": check_bool,
    "encoder_seq_lens": lambda name, value: check_array(name, value, COUNT_DTYPES, 1),
}
"""The check of each field on its own."""


def check_fields(metadata: object) -> dict[str, Any]:
    """Return the fields of a metadata, with checked types; int32 vectors as lists of ints.

    Args:
        metadata: An object with the fields of `CommonAttentionMetadata`.

    Raises:
        TypeError: A field of the wrong type or dtype.
        ValueError: A field with another number of dimensions, or a negative count.
    """
    fields: dict[str, Any] = {}
    for name, check in _CHECKS.items():
        value = getattr(metadata, name, None)
        if hasattr(metadata, name) and not (value is None and name in _OPTIONAL):
            fields[name] = check(name, value)
    return fields


def _check_copies(fields: dict[str, Any]) -> None:
    """Check that a field equals its copy on the host; if there is only the copy, use it as both."""
    for name in ("query_start_loc", "seq_lens"):
        copy = fields.get(f"{name}_cpu")
        if copy is None:
            continue
        values = fields.setdefault(name, copy)
        if len(values) != len(copy):
            raise ValueError(f"{name} has {len(values)} entries, but {name}_cpu has {len(copy)}")
        for i, (value, value_cpu) in enumerate(zip(values, copy, strict=True)):
            if value_cpu != value:
                raise ValueError(f"{name}[{i}] is {value}, but {name}_cpu[{i}] is {value_cpu}")


def check_lengths(fields: dict[str, Any]) -> None:
    """Check that the lengths of the fields agree with the numbers of requests and tokens.

    Args:
        fields: By name, as `check_fields` returns them.

    Raises:
        ValueError: A field that is too long or too short for the others.
    """
    num_reqs, num_tokens = fields.get("num_reqs"), fields.get("num_actual_tokens")
    for name in ("query_start_loc", "query_start_loc_cpu"):
        if name in fields:
            num_reqs = len(fields[name]) - 1 if num_reqs is None else num_reqs
            check_length(name, len(fields[name]), num_reqs + 1, "num_reqs + 1 = ")
    for name in _REQUEST_VECTORS:
        if name in fields:
            num_reqs = len(fields[name]) if num_reqs is None else num_reqs
            check_length(name, len(fields[name]), num_reqs, "num_reqs = ")
    name = "block_table_tensor"
    if name in fields and num_reqs is not None:
        check_at_least(name, len(fields[name]), num_reqs, "num_reqs = ", "rows")
    name = "slot_mapping"
    if name in fields and num_tokens is not None:
        check_at_least(name, len(fields[name]), num_tokens, "num_actual_tokens = ")


def _check_tokens(query_lens: list[int], seq_lens: list[int], computed: list[int] | None) -> None:
    """Check that sequence length, query length and computed tokens of each request agree."""
    lengths = list(enumerate(zip(query_lens, seq_lens, strict=False)))  # one may be missing
    for i, (query_len, seq_len) in lengths:
        if 0 < query_len and seq_len < query_len:
            raise ValueError(f"seq_lens[{i}] is {seq_len}, less than its query length {query_len}")
    if computed is None:
        return
    for i, (query_len, seq_len) in lengths:
        most = seq_len - query_len
        if query_len > 0 and not 0 <= computed[i] <= most:
            raise ValueError(
                f"num_computed_tokens_cpu[{i}] is {computed[i]}, expected 0 to {most}, which is "
                f"seq_lens[{i}] less its query length {query_len}"
            )


def _check_maximum(name: str, fields: dict[str, Any], what: str, lengths: list[int]) -> None:
    """Check that a field, if it is there, is an upper bound of the lengths of requests."""
    for i, length in enumerate(lengths if name in fields else []):
        if length > fields[name]:
            raise ValueError(
                f"{name} is {fields[name]}, less than the {what} {length} of request {i}"
            )


def _check_rows(seq_lens: list[int], num_columns: int, block_size: int) -> None:
    """Check that the block table is wide enough for every sequence."""
    for i, seq_len in enumerate(seq_lens):
        num_blocks = -(-seq_len // block_size)
        if num_blocks > num_columns:
            raise ValueError(
                f"seq_lens[{i}] is {seq_len} and needs {num_blocks} blocks of {block_size}, "
                f"but row {i} of block_table_tensor has {num_columns}"
            )
