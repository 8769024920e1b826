"""Read the fields of a batch's metadata, with the checks that cost O(1) and are always made.

Each function checks the usual case in one expression, which saves 1 to 2 us a field, and calls the
checks with the messages only if that fails. All raise TypeError for a wrong type or dtype,
ValueError for a wrong length or dimension, and AttributeError for a missing field.
"""

from typing import Any

import torch

from fast._checks import INT32, check_bool, check_int, check_tensor

MAX_COUNT = 2**63 - 1
"""The greatest count of requests or tokens."""


def read_counts(metadata: Any) -> tuple[int, int]:  # noqa: ANN401  (an engine's own metadata serves too)
    """Return `num_reqs` and `num_actual_tokens` as ints of at least 0."""
    num_reqs, num_tokens = metadata.num_reqs, metadata.num_actual_tokens
    if (
        type(num_reqs) is type(num_tokens) is int
        and 0 <= num_reqs <= MAX_COUNT
        and 0 <= num_tokens <= MAX_COUNT
    ):
        return num_reqs, num_tokens
    return read_count("num_reqs", num_reqs), read_count("num_actual_tokens", num_tokens)


def read_count(name: str, value: Any) -> int:  # noqa: ANN401  (not checked yet)
    """Return a count as an int of at least 0."""
    if type(value) is int and 0 <= value <= MAX_COUNT:
        return value
    return check_int(name, value, 0, MAX_COUNT)


def read_requests(
    metadata: Any,  # noqa: ANN401  (likewise)
    num_reqs: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return `seq_lens`, `seq_lens_cpu` and `num_computed_tokens_cpu`, each int32[num_reqs]."""
    seq_lens, seq_lens_cpu = metadata.seq_lens, metadata.seq_lens_cpu
    computed = metadata.num_computed_tokens_cpu
    if not (
        type(seq_lens) is type(seq_lens_cpu) is type(computed) is torch.Tensor
        and seq_lens.dtype is seq_lens_cpu.dtype is computed.dtype is INT32
        and seq_lens.ndim == seq_lens_cpu.ndim == computed.ndim == 1
        and seq_lens.nelement() == seq_lens_cpu.nelement() == computed.nelement() == num_reqs
    ):
        for name in ("seq_lens", "seq_lens_cpu", "num_computed_tokens_cpu"):
            read_vector(metadata, name, num_reqs)
    return seq_lens, seq_lens_cpu, computed


def read_block_table(metadata: Any, num_reqs: int) -> torch.Tensor:  # noqa: ANN401  (likewise)
    """Return the block table, int32[at least num_reqs, max_blocks_per_req]."""
    table: torch.Tensor = metadata.block_table_tensor
    if not (type(table) is torch.Tensor and table.dtype is INT32 and table.ndim == 2):
        check_tensor("block_table_tensor", table, INT32, 2)
    if table.shape[0] < num_reqs:
        raise ValueError(
            f"block_table_tensor has {len(table)} rows, expected at least num_reqs = {num_reqs}"
        )
    return table


def read_slot_mapping(metadata: Any, num_tokens: int) -> torch.Tensor:  # noqa: ANN401  (likewise)
    """Return the slots, int64[at least num_tokens]."""
    slots: torch.Tensor = metadata.slot_mapping
    if not (type(slots) is torch.Tensor and slots.dtype is torch.int64 and slots.ndim == 1):
        check_tensor("slot_mapping", slots, torch.int64, 1)
    if slots.nelement() < num_tokens:
        raise ValueError(
            f"slot_mapping has {len(slots)} entries, expected at least num_actual_tokens ="
            f" {num_tokens}"
        )
    return slots


def read_vector(metadata: Any, name: str, length: int) -> torch.Tensor:  # noqa: ANN401  (likewise)
    """Return an int32 vector with `length` entries, on any device."""
    vector: torch.Tensor = getattr(metadata, name)
    if (
        type(vector) is torch.Tensor
        and vector.dtype is INT32
        and vector.ndim == 1
        and vector.nelement() == length
    ):
        return vector
    check_tensor(name, vector, INT32, 1)
    if vector.shape[0] != length:
        raise ValueError(f"{name} has {len(vector)} entries, expected {length}")
    return vector


def read_causal(metadata: Any) -> bool:  # noqa: ANN401  (likewise)
    """Return whether the batch is causal, a bool."""
    check_bool("causal", metadata.causal)
    return bool(metadata.causal)
