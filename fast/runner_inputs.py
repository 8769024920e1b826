"""Check the buffers, tables and slots that a model runner passes, in O(1).

Each function checks the usual case in one expression per tensor, which saves 0.3 us, and calls the
checks with the messages only if that fails. All raise TypeError for a wrong type or dtype,
ValueError for a wrong length, dimension or device, and AttributeError for a missing attribute.
"""

from typing import Any

import torch

from fast._checks import (
    INT32,
    check_host,
    check_list,
    check_same_device,
    check_tensor,
    check_type,
    describe,
)
from fast._native.memory import check_memory, check_storage


def check_buffer(name: str, buffer: Any, length: int) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: ANN401  (an engine's own buffer serves too)
    """Return `cpu` and `gpu` of a buffer of int32 with at least `length` entries."""
    cpu, gpu = buffer.cpu, buffer.gpu
    if not (_is_vector(cpu, length) and cpu.is_cpu and _is_vector(gpu, length)):
        _check(f"{name}.cpu", cpu, INT32, 1, length)
        check_host(f"{name}.cpu", cpu)
        _check(f"{name}.gpu", gpu, INT32, 1, length)
    return cpu, gpu


def first_of(name: str, tensor: torch.Tensor, stop: int, start: int = 0) -> torch.Tensor:
    """Return a view of a tensor's entries or rows `start .. stop - 1`."""
    try:
        return tensor[start:stop]
    except RuntimeError:  # of a sparse one, or where the storage was resized to less
        check_memory(name, tensor)
        check_storage(name, tensor)
        raise


def check_host_vector_of_at_least(name: str, vector: torch.Tensor, length: int) -> None:
    """Check that a value is an int32 vector on the CPU with at least `length` entries."""
    if not (_is_vector(vector, length) and vector.is_cpu):
        _check(name, vector, INT32, 1, length)
        check_host(name, vector)


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


def check_group_tensors(
    name: str,
    tensors: object,
    num_groups: int,
    dtype: torch.dtype,
    ndim: int,
    length: int,
    device: torch.device,
) -> list[torch.Tensor] | tuple[torch.Tensor, ...]:
    """Return one tensor for each KV cache group, with at least `length` entries, on `device`."""
    if not isinstance(tensors, list | tuple):
        raise TypeError(f"{name} must be a list or tuple, got {describe(tensors)}")
    check_one_each(name, tensors, num_groups)
    is_cpu = device.type == "cpu"  # two devices are compared in three times the time
    for group, tensor in enumerate(tensors):
        if not (
            type(tensor) is torch.Tensor
            and tensor.dtype is dtype
            and tensor.ndim == ndim
            and tensor.shape[0] >= length
            and (tensor.is_cpu if is_cpu else tensor.device == device)
        ):
            _check(f"{name}[{group}]", tensor, dtype, ndim, length)
            check_same_device([(f"{name}[{group}]", tensor)], device)
    return tensors


def check_slot_mappings(
    slot_mappings: object, num_groups: int, num_tokens: int, device: torch.device
) -> list[torch.Tensor] | tuple[torch.Tensor, ...]:
    """Return the slots of each KV cache group, int64[at least num_tokens], on `device`.

    `slot_mappings` may also be int64[num_groups, at least num_tokens], whose rows they are.
    """
    name = "slot_mappings"
    if isinstance(slot_mappings, torch.Tensor):
        check_tensor(name, slot_mappings, torch.int64, 2)
        try:
            rows = slot_mappings.unbind()
        except RuntimeError:  # the storage was resized to less
            check_memory(name, slot_mappings)
            check_storage(name, slot_mappings)
            raise
        if slot_mappings.shape[1] >= num_tokens and slot_mappings.device == device:
            check_one_each(name, rows, num_groups)
            return rows  # checked as one: 0.6 us a row less
        slot_mappings = rows
    return check_group_tensors(name, slot_mappings, num_groups, torch.int64, 1, num_tokens, device)


def _is_vector(value: object, length: int) -> bool:
    """Return whether a value is an int32 vector with at least `length` entries."""
    return (
        type(value) is torch.Tensor
        and value.dtype is INT32
        and value.ndim == 1
        and value.nelement() >= length
    )


def _check(name: str, tensor: torch.Tensor, dtype: torch.dtype, ndim: int, length: int) -> None:
    """Check that a value is a tensor of this kind with at least `length` entries."""
    check_tensor(name, tensor, dtype, ndim)
    if tensor.shape[0] < length:
        raise ValueError(f"{name} has {tensor.shape[0]} entries, expected at least {length}")
