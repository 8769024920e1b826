"""Check the buffers, tables and slots that a model runner passes, in O(1).

The usual step is checked in one expression, `is_usual_step`, which saves 2 of 8 us; the
other checks are for the rest, and have the messages. These raise TypeError for a wrong type or
dtype, and ValueError for a wrong length, dimension or device.
"""

from typing import Any

import torch
from torch import Tensor  # this lookup takes 0.04 us less than that of torch.Tensor

from fast._checks import (
    INT32,
    INT64,
    STRIDED,
    check_host,
    check_list,
    check_same_device,
    check_tensor,
    check_type,
    describe,
)
from fast._native.memory import check_memory


def is_usual_step(
    num_reqs: object,
    num_tokens: object,
    starts_cpu: object,
    starts: object,
    lens_cpu: object,
    lens: object,
    computed: object,
    block_tables: object,
    slot_mappings: object,
    groups: object,
    builders: object,
) -> bool:
    """Return whether a step has the exact types that a runner passes, and needs no other check.

    All its slots are in one tensor. A step for which this is False may be valid.
    """
    if not (
        type(num_reqs) is type(num_tokens) is int
        and num_reqs >= 0
        and num_tokens >= 0
        and type(groups) is type(builders) is list
        and (type(block_tables) is tuple or type(block_tables) is list)
        and len(groups) == len(builders) == len(block_tables)
        and type(starts_cpu) is type(starts) is type(lens_cpu) is type(lens) is Tensor
        and type(computed) is type(slot_mappings) is Tensor
        and starts_cpu.is_cpu
        and lens_cpu.is_cpu
        and computed.is_cpu
        and starts.device == lens.device == slot_mappings.device
        and starts_cpu.dtype is starts.dtype is lens_cpu.dtype is lens.dtype is computed.dtype
        and computed.dtype is INT32
        and starts_cpu.ndim == starts.ndim == lens_cpu.ndim == lens.ndim == computed.ndim == 1
        and starts_cpu.nelement() > num_reqs
        and starts.nelement() > num_reqs
        and lens_cpu.nelement() >= num_reqs
        and lens.nelement() >= num_reqs
        and computed.nelement() >= num_reqs
        and slot_mappings.dtype is INT64
        and slot_mappings.layout is STRIDED
        and not slot_mappings.is_nested
        and slot_mappings.ndim == 2
        and slot_mappings.shape[0] == len(groups)
        and slot_mappings.shape[1] >= num_tokens
    ):
        return False
    device, is_on_cpu = starts.device, starts.is_cpu
    for table in block_tables:
        if not (
            type(table) is Tensor
            # Comparing devices takes twice the time.
            and (table.is_cpu if is_on_cpu else table.device == device)
            and table.dtype is INT32
            and table.ndim == 2
            and table.shape[0] >= num_reqs
        ):
            return False
    return True


def check_buffer(name: str, cpu: Tensor, gpu: Tensor, length: int) -> None:
    """Check that the halves of a buffer are int32 with at least `length` entries."""
    check_host_vector(f"{name}.cpu", cpu, length)
    _check(f"{name}.gpu", gpu, INT32, 1, length)


def check_host_vector(name: str, vector: Tensor, length: int) -> None:
    """Check that a value is an int32 vector on the CPU with at least `length` entries."""
    _check(name, vector, INT32, 1, length)
    check_host(name, vector)


def check_storages(*tensors: tuple[str, Any]) -> None:
    """Raise if one of some named tensors, of which torch made no view, has no memory."""
    for name, tensor in tensors:
        if isinstance(tensor, Tensor):
            check_memory(name, tensor)


def first_of(name: str, tensor: Tensor, stop: int, start: int = 0) -> Tensor:
    """Return a view of a tensor's entries or rows `start .. stop - 1`."""
    try:
        return tensor[start:stop]
    except RuntimeError:  # of a sparse one, or where the storage was resized to less
        check_storages((name, tensor))
        raise


def check_one_each(name: str, values: Any, num_groups: int) -> None:  # noqa: ANN401  (any sequence)
    """Check that a sequence has one entry for each KV cache group."""
    if len(values) != num_groups:
        raise ValueError(
            f"{name} has {len(values)} entries, expected {num_groups}, one for each KV cache group"
        )


def check_layer_names(groups: list[Any]) -> None:
    """Check that the `layer_names` of each KV cache group are a list of strs."""
    for g, group in enumerate(groups):
        check_list(f"kv_cache_groups[{g}].layer_names", group.layer_names)
        for i, name in enumerate(group.layer_names):
            check_type(f"kv_cache_groups[{g}].layer_names[{i}]", name, str, "a str")


def check_block_tables(
    block_tables: object, num_groups: int, num_reqs: int, device: torch.device
) -> None:
    """Check that each KV cache group has a block table with at least `num_reqs` rows."""
    _check_each("block_tables", block_tables, num_groups, INT32, 2, num_reqs, device)


def check_slot_mappings(
    slot_mappings: object, num_groups: int, num_tokens: int, device: torch.device
) -> None:
    """Check that each KV cache group has at least `num_tokens` slots, int64.

    `slot_mappings` may also be a matrix whose rows they are.
    """
    name = "slot_mappings"
    if not isinstance(slot_mappings, Tensor):
        _check_each(name, slot_mappings, num_groups, INT64, 1, num_tokens, device)
        return
    check_tensor(name, slot_mappings, INT64, 2)
    check_one_each(name, slot_mappings, num_groups)
    if num_groups:  # all rows are alike
        _check_length(f"{name}[0]", slot_mappings.shape[1], num_tokens)
        check_same_device([(f"{name}[0]", slot_mappings)], device)


def _check_each(
    name: str,
    tensors: object,
    num_groups: int,
    dtype: torch.dtype,
    ndim: int,
    length: int,
    device: torch.device,
) -> None:
    if not isinstance(tensors, list | tuple):
        raise TypeError(f"{name} must be a list or tuple, got {describe(tensors)}")
    check_one_each(name, tensors, num_groups)
    for group, tensor in enumerate(tensors):
        _check(f"{name}[{group}]", tensor, dtype, ndim, length)
        check_same_device([(f"{name}[{group}]", tensor)], device)


def _check(name: str, tensor: Tensor, dtype: torch.dtype, ndim: int, length: int) -> None:
    """Check that a value is a tensor of this kind with at least `length` entries."""
    check_tensor(name, tensor, dtype, ndim)
    _check_length(name, tensor.shape[0], length)


def _check_length(name: str, found: int, length: int) -> None:
    if found < length:
        raise ValueError(f"{name} has {found} entries, expected at least {length}")
