"""Check the invariants of a batch's metadata, for checked mode and `validate`."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from fast._checks import (
    IntArray,
    check_array,
    check_bool,
    check_host,
    check_int,
    check_minimum,
    check_same_device,
    check_starts,
    check_tensor,
    get_dtype_name,
    not_a_tensor,
)
from fast._native.memory import to_host

TENSORS: Final = (
    ("query_start_loc", torch.int32, 1),
    ("query_start_loc_cpu", torch.int32, 1),
    ("seq_lens", torch.int32, 1),
    ("seq_lens_cpu", torch.int32, 1),
    ("num_computed_tokens_cpu", torch.int32, 1),
    ("block_table_tensor", torch.int32, 2),
    ("slot_mapping", torch.int64, 1),
    ("dcp_local_seq_lens", torch.int32, 1),
)
"""The tensors of a metadata: name, dtype, number of dimensions."""

COUNTS: Final = (
    "num_reqs",
    "num_actual_tokens",
    "max_query_len",
    "max_seq_len",
    "num_logits_indices",
)
OPTIONAL: Final = {
    "dcp_local_seq_lens",
    "num_logits_indices",
    "logits_indices_padded",
    "encoder_seq_lens",
}
ON_DEVICE: Final = ("query_start_loc", "seq_lens", "block_table_tensor", "slot_mapping")


@dataclass
class Fields:
    """The fields of a metadata; None for those it lacks."""

    tensors: dict[str, torch.Tensor]
    counts: dict[str, int]
    encoder_seq_lens: IntArray | None

    def values(self, name: str) -> IntArray | None:
        """Return the values of a tensor on the host; synchronises."""
        tensor = self.tensors.get(name)
        return None if tensor is None else to_host(name, tensor)

    def either(self, name: str) -> IntArray | None:
        """Return the values of the field `name_cpu`, or of `name` if there is no such field."""
        values = self.values(f"{name}_cpu")
        return self.values(name) if values is None else values


def check_fields(metadata: Any) -> Fields:  # noqa: ANN401  (an engine's own metadata serves too)
    """Return the fields of a metadata; raise if a type, dtype, dimension or device is wrong."""
    found = {name: getattr(metadata, name) for name in _names() if hasattr(metadata, name)}
    found = {k: v for k, v in found.items() if v is not None or k not in OPTIONAL}
    for name, dtype, ndim in TENSORS:
        if name in found:
            check_tensor(name, found[name], dtype, ndim)
            if name.endswith("_cpu"):
                check_host(name, found[name])
    if "logits_indices_padded" in found:
        _check_logits_indices(found["logits_indices_padded"])
    for name in COUNTS:
        if name in found:
            found[name] = check_int(name, found[name], 0, 2**63 - 1)
    if "causal" in found:
        check_bool("causal", found["causal"])
    if "encoder_seq_lens" in found:
        check_array("encoder_seq_lens", found["encoder_seq_lens"])
    on_device = [(name, found[name]) for name in ON_DEVICE if name in found]
    if on_device:
        check_same_device(on_device, on_device[0][1].device)
    return Fields(
        tensors={name: found[name] for name, _, _ in TENSORS if name in found},
        counts={name: found[name] for name in COUNTS if name in found},
        encoder_seq_lens=found.get("encoder_seq_lens"),
    )


def check_values(fields: Fields, block_size: int | None) -> None:
    """Raise ValueError on the first pair of fields that contradict each other."""
    for name in ("query_start_loc", "seq_lens"):
        _check_copies(name, fields.values(name), fields.values(f"{name}_cpu"))
    starts, seq_lens = fields.either("query_start_loc"), fields.either("seq_lens")
    computed = fields.values("num_computed_tokens_cpu")
    query_lens: IntArray | None = None
    if starts is not None:
        check_starts("query_start_loc", starts)
        query_lens = starts[1:].astype(np.int64) - starts[:-1]
        _check_tokens(int(starts[-1]), fields)
    check_lengths(fields)
    if seq_lens is not None:
        check_minimum("seq_lens", seq_lens, 0)
    if seq_lens is not None and query_lens is not None:
        _check_sequences(seq_lens.astype(np.int64), query_lens, computed)
    _check_maximum("max_query_len", fields, "query length", query_lens)
    _check_maximum("max_seq_len", fields, "sequence length", seq_lens)
    table = fields.tensors.get("block_table_tensor")
    if block_size is not None and seq_lens is not None and table is not None:
        _check_blocks(seq_lens.astype(np.int64), table.shape[1], block_size)


def check_computed(starts: torch.Tensor, seq_lens: torch.Tensor, computed: torch.Tensor) -> None:
    """Raise ValueError if something before the query of a request is not computed."""
    query_lens = np.diff(to_host("query_start_loc", starts).astype(np.int64))
    lens, done = to_host("seq_lens", seq_lens), to_host("num_computed_tokens_cpu", computed)
    wrong = np.flatnonzero((query_lens > 0) & (lens - query_lens != done))
    if len(wrong):
        at = wrong[0]
        raise ValueError(
            f"seq_lens[{at}] is {lens[at]} but num_computed_tokens_cpu[{at}] is {done[at]} and its"
            f" query length {query_lens[at]}, expected their sum {done[at] + query_lens[at]}"
        )


def _names() -> list[str]:
    names = [name for name, _, _ in TENSORS]
    return [*names, *COUNTS, "causal", "logits_indices_padded", "encoder_seq_lens"]


def _check_logits_indices(indices: object) -> None:
    if not isinstance(indices, torch.Tensor):
        raise TypeError(not_a_tensor("logits_indices_padded", indices))
    if indices.dtype not in {torch.int32, torch.int64}:
        name = get_dtype_name(indices.dtype)
        raise TypeError(f"logits_indices_padded must be int32 or int64, got {name}")
    check_tensor("logits_indices_padded", indices, indices.dtype, 1)


def _check_copies(name: str, values: IntArray | None, copy: IntArray | None) -> None:
    if values is None or copy is None:
        return
    if len(values) != len(copy):
        raise ValueError(f"{name} has {len(values)} entries, but {name}_cpu has {len(copy)}")
    unlike = np.flatnonzero(values != copy)
    if len(unlike):
        at = unlike[0]
        raise ValueError(f"{name}[{at}] is {values[at]}, but {name}_cpu[{at}] is {copy[at]}")


def _check_tokens(num_tokens: int, fields: Fields) -> None:
    actual = fields.counts.get("num_actual_tokens")
    if actual is not None and num_tokens > actual:
        raise ValueError(
            f"query_start_loc[-1] is {num_tokens}, more than num_actual_tokens {actual}"
        )


def check_lengths(fields: Fields) -> None:
    """Raise ValueError if fields disagree on the number of requests, or a token has no slot."""
    num_reqs = fields.counts.get("num_reqs")
    for name in ("query_start_loc", "query_start_loc_cpu"):
        starts = fields.tensors.get(name)
        if starts is None:
            continue
        if num_reqs is not None and len(starts) != num_reqs + 1:
            raise ValueError(
                f"{name} has {len(starts)} entries, expected num_reqs + 1 = {num_reqs + 1}"
            )
        num_reqs = len(starts) - 1
    vectors: list[tuple[str, Any]] = [
        (name, fields.tensors.get(name))
        for name in ("seq_lens", "seq_lens_cpu", "num_computed_tokens_cpu", "dcp_local_seq_lens")
    ]
    vectors.append(("encoder_seq_lens", fields.encoder_seq_lens))
    for name, vector in vectors:
        if vector is None:
            continue
        num_reqs = len(vector) if num_reqs is None else num_reqs
        if len(vector) != num_reqs:
            raise ValueError(f"{name} has {len(vector)} entries, expected num_reqs = {num_reqs}")
    table = fields.tensors.get("block_table_tensor")
    if table is not None and num_reqs is not None and len(table) < num_reqs:
        raise ValueError(
            f"block_table_tensor has {len(table)} rows, expected at least num_reqs = {num_reqs}"
        )
    slots, actual = fields.tensors.get("slot_mapping"), fields.counts.get("num_actual_tokens")
    if slots is not None and actual is not None and len(slots) < actual:
        raise ValueError(
            f"slot_mapping has {len(slots)} entries, expected at least num_actual_tokens = {actual}"
        )


def _check_sequences(seq_lens: IntArray, query_lens: IntArray, computed: IntArray | None) -> None:
    """Raise ValueError if a sequence is shorter than its computed and query tokens."""
    active = query_lens > 0
    short = np.flatnonzero(active & (seq_lens < query_lens))
    if len(short):
        at = short[0]
        raise ValueError(
            f"seq_lens[{at}] is {seq_lens[at]}, less than its query length {query_lens[at]}"
        )
    if computed is None:
        return
    most = seq_lens - query_lens
    wrong = np.flatnonzero(active & ((computed < 0) | (computed > most)))
    if len(wrong):
        at = wrong[0]
        raise ValueError(
            f"num_computed_tokens_cpu[{at}] is {computed[at]}, expected 0 to {most[at]}, which is"
            f" seq_lens[{at}] less its query length {query_lens[at]}"
        )


def _check_maximum(name: str, fields: Fields, what: str, values: IntArray | None) -> None:
    bound = fields.counts.get(name)
    if bound is None or values is None:
        return
    above = np.flatnonzero(values > bound)
    if len(above):
        at = above[0]
        raise ValueError(f"{name} is {bound}, less than the {what} {values[at]} of request {at}")


def _check_blocks(seq_lens: IntArray, width: int, block_size: int) -> None:
    needed = -(-seq_lens // block_size)
    outside = np.flatnonzero(needed > width)
    if len(outside):
        at = outside[0]
        raise ValueError(
            f"seq_lens[{at}] is {seq_lens[at]} and needs {needed[at]} blocks of {block_size}, but"
            f" row {at} of block_table_tensor has {width}"
        )
