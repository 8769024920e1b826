"""The invariants of a batch's metadata, kvtwin's or an engine's own."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from reference._checks import (
    COUNT_DTYPES,
    MAX_INT64,
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
      table at least `num_reqs` rows, and each vector by token at least `num_actual_tokens` entries.
    - `s_i >= 0`, and for requests with query tokens `q_i <= s_i` and
      `0 <= num_computed_tokens_cpu[i] <= s_i - q_i` (less only after fast prefill). Without
      `seq_lens_cpu` the host knows bounds: in the last condition `s_i` is then
      `seq_lens_cpu_upper_bound[i]`, if that is given.
    - `seq_lens_cpu_upper_bound` and `dcp_local_seq_lens_cpu_upper_bound` are upper bounds.
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
    _check_tokens(query_lens, seq_lens)
    if "num_computed_tokens_cpu" in fields:
        _check_computed_bound(query_lens, fields)
    for name in ("seq_lens", "dcp_local_seq_lens"):
        _check_upper_bound(name, fields)
    _check_maximum("max_query_len", fields, "query length", query_lens)
    _check_maximum("max_seq_len", fields, "sequence length", seq_lens)
    if block_size is not None and "block_table_tensor" in fields:
        _check_rows(seq_lens, fields["block_table_tensor"].shape[1], block_size)


def check_computed(metadata: object) -> None:
    """Check that everything before the query of each request is computed, as in a whole step.

    Args:
        metadata: A `CommonAttentionMetadata`, valid.

    Raises:
        ValueError: A request with query tokens whose sequence, as the host knows it, is not its
            computed and query tokens.
    """
    fields = check_fields(metadata)
    starts, computed = fields["query_start_loc"], fields["num_computed_tokens_cpu"]
    name, seq_lens = get_host_lens(fields)
    for i, seq_len in enumerate(seq_lens):
        query_len = starts[i + 1] - starts[i]
        if query_len > 0 and seq_len - query_len != computed[i]:
            raise ValueError(
                f"{name}[{i}] is {seq_len} but num_computed_tokens_cpu[{i}] is {computed[i]} and "
                f"its query length {query_len}, expected their sum {computed[i] + query_len}"
            )


def _check_int32_vector(name: str, value: object) -> list[int]:
    return check_array(name, value, np.int32, ndim=1).tolist()  # type: ignore[no-any-return]  # NumPy's


def _check_vector(*dtypes: type[Any]) -> Callable[[str, object], Any]:
    return lambda name, value: check_array(name, value, dtypes, 1)


def _check_count(name: str, value: object) -> int:
    return check_int(name, value, 0, MAX_INT64)


@dataclasses.dataclass(frozen=True)
class Field:
    """What a field of a metadata is.

    Attributes:
        check: The check of its type, dtype and dimensions; returns ints and bools, int32 vectors as
            lists of ints, and other arrays.
        axis: What its first dimension counts: "request"; "start", a request and one more; "row", at
            least the requests; "token", at least the tokens. None: it is the same for all requests
            and tokens.
        role: Where `fast` has it: a tensor on the "device" or on the "host", "numpy", which is an
            array on the host in both twins, or "number".
        is_optional: Whether it may be None.
    """

    check: Callable[[str, object], Any]
    axis: str | None = None
    role: str = "number"
    is_optional: bool = False


FIELDS: dict[str, Field] = {
    "query_start_loc": Field(_check_int32_vector, "start", "device"),
    "query_start_loc_cpu": Field(_check_int32_vector, "start", "host"),
    "seq_lens": Field(_check_int32_vector, "request", "device"),
    "seq_lens_cpu": Field(_check_int32_vector, "request", "host", is_optional=True),
    "num_computed_tokens_cpu": Field(_check_int32_vector, "request", "host"),
    "num_reqs": Field(_check_count),
    "num_actual_tokens": Field(_check_count),
    "max_query_len": Field(_check_count),
    "max_seq_len": Field(_check_count),
    "block_table_tensor": Field(
        lambda name, value: check_array(name, value, np.int32, 2), "row", "device"
    ),
    "slot_mapping": Field(_check_vector(np.int64), "token", "device"),
    "causal": Field(check_bool),
    "logits_indices_padded": Field(_check_vector(*COUNT_DTYPES), None, "device", is_optional=True),
    "num_logits_indices": Field(_check_count, is_optional=True),
    "encoder_seq_lens": Field(_check_vector(*COUNT_DTYPES), "request", "numpy", is_optional=True),
    "dcp_local_seq_lens": Field(_check_int32_vector, "request", "device", is_optional=True),
    "is_prefilling": Field(_check_vector(np.bool_), "request", "host", is_optional=True),
    "positions": Field(_check_vector(np.int64), "token", "device", is_optional=True),
    "seq_lens_cpu_upper_bound": Field(_check_int32_vector, "request", "host", is_optional=True),
    "dcp_local_seq_lens_cpu_upper_bound": Field(
        _check_int32_vector, "request", "host", is_optional=True
    ),
    "max_logits_per_req": Field(_check_count, is_optional=True),
    "req_idx": Field(_check_vector(np.int32), "request", "numpy", is_optional=True),
}
"""The fields of a metadata, in their order."""


def cut_fields(metadata: object, requests: slice, tokens: slice) -> dict[str, Any]:
    """Return the fields of a metadata for some requests and tokens: kept, or cut by their axis.

    Args:
        metadata: An object with the fields of `CommonAttentionMetadata`; without an optional one,
            that is None.
        requests: The requests, `start <= stop`.
        tokens: The tokens, `start <= stop`.

    Returns:
        Each field by name: a view of those with an axis, the value itself of the others.
    """
    starts = slice(requests.start, requests.stop + 1)
    parts = {"request": requests, "row": requests, "start": starts, "token": tokens}
    found: dict[str, Any] = {}
    for name, field in FIELDS.items():
        value = getattr(metadata, name, *([None] if field.is_optional else []))
        is_kept = value is None or field.axis is None
        found[name] = value if is_kept else value[parts[field.axis]]  # type: ignore[index]
    return found


def check_fields(metadata: object) -> dict[str, Any]:
    """Return the fields of a metadata, with checked types; int32 vectors as lists of ints.

    Args:
        metadata: An object with the fields of `CommonAttentionMetadata`.

    Raises:
        TypeError: A field of the wrong type or dtype.
        ValueError: A field with another number of dimensions, or a negative count.
    """
    fields: dict[str, Any] = {}
    for name, field in FIELDS.items():
        value = getattr(metadata, name, None)
        if hasattr(metadata, name) and not (value is None and field.is_optional):
            fields[name] = field.check(name, value)
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
    lengths = {name: len(fields[name]) for name in fields if FIELDS[name].axis is not None}
    for axis, more in {"start": 1, "request": 0}.items():
        for name, length in lengths.items():
            if FIELDS[name].axis == axis:
                num_reqs = length - more if num_reqs is None else num_reqs
                check_length(name, length, num_reqs + more, f"num_reqs{' + 1' * more} = ")
    for name, length in lengths.items():
        if FIELDS[name].axis == "row" and num_reqs is not None:
            check_at_least(name, length, num_reqs, "num_reqs = ", "rows")
        if FIELDS[name].axis == "token" and num_tokens is not None:
            check_at_least(name, length, num_tokens, "num_actual_tokens = ")


def get_host_lens(fields: dict[str, Any]) -> tuple[str, Any]:
    """Return the sequence lengths that the host knows, and their name; they may be bounds.

    Args:
        fields: By name, as `check_fields` returns them.
    """
    bound = "seq_lens_cpu_upper_bound"
    name = bound if bound in fields and "seq_lens_cpu" not in fields else "seq_lens"
    return name, fields.get(name, [])


def _check_tokens(query_lens: list[int], seq_lens: list[int]) -> None:
    """Check that no sequence is shorter than its query."""
    # One of them may be missing.
    for i, (query_len, seq_len) in enumerate(zip(query_lens, seq_lens, strict=False)):
        if 0 < query_len and seq_len < query_len:
            raise ValueError(f"seq_lens[{i}] is {seq_len}, less than its query length {query_len}")


def _check_computed_bound(query_lens: list[int], fields: dict[str, Any]) -> None:
    """Check that no more is computed of a sequence than what is before its query."""
    name, seq_lens = get_host_lens(fields)
    for i, (query_len, seq_len) in enumerate(zip(query_lens, seq_lens, strict=False)):
        computed, most = fields["num_computed_tokens_cpu"][i], seq_len - query_len
        if query_len > 0 and not 0 <= computed <= most:
            raise ValueError(
                f"num_computed_tokens_cpu[{i}] is {computed}, expected 0 to {most}, which is "
                f"{name}[{i}] less its query length {query_len}"
            )


def _check_upper_bound(name: str, fields: dict[str, Any]) -> None:
    """Check the upper bound of a vector of lengths, if there are both."""
    bounds = fields.get(f"{name}_cpu_upper_bound", [])
    for i, (bound, length) in enumerate(zip(bounds, fields.get(name, []), strict=False)):
        if bound < length:
            raise ValueError(
                f"{name}_cpu_upper_bound[{i}] is {bound}, less than {name}[{i}], which is {length}"
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
