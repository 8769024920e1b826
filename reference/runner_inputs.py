"""Checks of what a model runner passes for a step: buffers, block tables and slots."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from reference._checks import Array, Int32Array, Int64Array, check_array, check_sequence


class HostAndDevice(Protocol):
    """The attributes of a buffer that `build_attn_metadata` reads; a `CpuGpuBuffer` has them.

    Attributes:
        cpu: int32[entries], the half on the host.
        gpu: int32[entries], the half on the device, with the same values.
    """

    cpu: Int32Array
    gpu: Int32Array


def check_vector(name: str, value: object, length: int) -> Int32Array:
    """Return the first entries of a vector, a view."""
    vector = check_array(name, value, np.int32, ndim=1)
    _check_length(name, vector, length)
    return vector[:length]


def check_buffer(name: str, value: HostAndDevice, length: int) -> tuple[Int32Array, Int32Array]:
    """Return views of the first entries of both halves of a buffer: device, then host."""
    cpu = check_vector(f"{name}.cpu", value.cpu, length)
    return check_vector(f"{name}.gpu", value.gpu, length), cpu


def check_tables(value: object, num_groups: int, num_reqs: int) -> list[Int32Array]:
    """Return the block table of each group, which must have a row for each request."""
    tables = _list_one_each("block_tables", value, num_groups)
    for i, table in enumerate(tables):
        name = f"block_tables[{i}]"
        _check_length(name, check_array(name, table, np.int32, ndim=2), num_reqs)
    return tables


def check_slots(value: object, num_groups: int, num_tokens: int) -> list[Int64Array]:
    """Return the slots of each group, which must have one for each token."""
    if isinstance(value, np.ndarray):
        value = list(check_array("slot_mappings", value, np.int64, ndim=2))
    slots = _list_one_each("slot_mappings", value, num_groups)
    for i, mapping in enumerate(slots):
        name = f"slot_mappings[{i}]"
        _check_length(name, check_array(name, mapping, np.int64, ndim=1), num_tokens)
    return slots


def _list_one_each(name: str, value: object, num_groups: int) -> list[Any]:
    """Return a list or tuple with one entry for each group, as a list."""
    entries = list(check_sequence(name, value))
    check_one_each(name, entries, num_groups)
    return entries


def check_one_each(name: str, entries: list[Any], num_groups: int) -> None:
    """Check that a list has one entry for each group."""
    if len(entries) != num_groups:
        raise ValueError(
            f"{name} has {len(entries)} entries, expected {num_groups}, one for each KV cache group"
        )


def _check_length(name: str, array: Array, length: int) -> None:
    """Check that an array has at least `length` entries, or rows."""
    if len(array) < length:
        raise ValueError(f"{name} has {len(array)} entries, expected at least {length}")
