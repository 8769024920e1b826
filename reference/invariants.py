"""What must hold for the metadata of a batch, ours or an engine's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from reference._checks import (
    COUNT_DTYPES,
    Dtypes,
    check_array,
    check_bool,
    check_int,
    check_query_start_loc,
    check_size,
)


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


_OPTIONAL = (
    "logits_indices_padded",
    "num_logits_indices",
    "encoder_seq_lens",
    "dcp_local_seq_lens",
)
"""The fields that may be None."""

_REQUEST_VECTORS: dict[str, Dtypes] = {
    "seq_lens": np.int32,
    "seq_lens_cpu": np.int32,
    "num_computed_tokens_cpu": np.int32,
    "encoder_seq_lens": COUNT_DTYPES,
    "dcp_local_seq_lens": np.int32,
}
"""The fields with one entry for each request, and their dtypes."""

_OTHER_FIELDS: dict[str, Callable[[str, object], Any]] = {
    "query_start_loc": check_query_start_loc,
    "query_start_loc_cpu": lambda name, value: check_array(name, value, np.int32, 1).tolist(),
    "num_reqs": lambda name, value: check_int(name, value, 0),
    "num_actual_tokens": lambda name, value: check_int(name, value, 0),
    "max_query_len": lambda name, value: check_int(name, value, 0),
    "max_seq_len": lambda name, value: check_int(name, value, 0),
    "block_table_tensor": lambda name, value: check_array(name, value, np.int32, 2),
    "slot_mapping": lambda name, value: check_array(name, value, np.int64, 1),
    "causal": check_bool,
    "logits_indices_padded": lambda name, value: check_array(name, value, COUNT_DTYPES, 1),
    "num_logits_indices": lambda name, value: check_int(name, value, 0),
}
"""The other fields, and what is asked of each by itself."""


def _check_fields(metadata: object) -> dict[str, Any]:
    """Return the fields that there are, each of its type: vectors by request as lists of ints."""
    fields: dict[str, Any] = {}
    for name in (*_OTHER_FIELDS, *_REQUEST_VECTORS):
        value = getattr(metadata, name, None)
        if not hasattr(metadata, name) or (value is None and name in _OPTIONAL):
            continue
        if name in _OTHER_FIELDS:
            fields[name] = _OTHER_FIELDS[name](name, value)
        else:
            fields[name] = check_array(name, value, _REQUEST_VECTORS[name], ndim=1).tolist()
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
