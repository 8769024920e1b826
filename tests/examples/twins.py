"""Either twin, with plain lists for its arrays: an example reads as inputs and expected results."""

from __future__ import annotations

import dataclasses
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import torch

import fast
import reference

DTYPES = {
    **dict.fromkeys(("slot_mapping", "logits_indices_padded", "positions"), "int64"),
    "is_prefilling": "bool",
}
HOST = ("encoder_seq_lens", "req_idx")
"""The dtypes of a batch's fields that are not int32, and those that are NumPy's in both twins."""


class Twin:
    """A twin; its attributes are the package's: `twin.compute_slot_mapping`.

    Attributes:
        lib: `reference` or `fast`.
    """

    def __init__(self, lib: ModuleType) -> None:
        self.lib = lib

    def __getattr__(self, name: str) -> Any:
        return getattr(self.lib, name)

    def array(self, values: Any, dtype: str = "int32") -> Any:
        """Return an array, or a tensor, of nested lists or of an array."""
        if self.lib is reference:
            return np.array(values, self.dtype(dtype))
        return torch.tensor(values, dtype=self.dtype(dtype))

    def dtype(self, name: str) -> Any:
        """Return a dtype by its name."""
        if self.lib is fast:
            return getattr(torch, name)
        return np.dtype(getattr(ml_dtypes, name, name))

    def of(self, value: Any) -> Any:  # noqa: PLR0911  # a case for each type
        """Return this twin's object for one of `reference`, or for those in containers."""
        if self.lib is reference:
            return value
        if isinstance(value, np.dtype) or (
            isinstance(value, type) and issubclass(value, np.generic)
        ):
            return getattr(torch, np.dtype(value).name)
        if isinstance(value, np.ndarray):
            return torch.from_numpy(value)
        if isinstance(value, list | tuple):
            return type(value)(map(self.of, value))
        if isinstance(value, dict):
            return {key: self.of(part) for key, part in value.items()}
        if dataclasses.is_dataclass(value) and type(value).__module__.startswith("reference."):
            fields = {f.name: self.of(getattr(value, f.name)) for f in dataclasses.fields(value)}
            return getattr(fast, type(value).__name__)(**fields)
        return value

    def fields(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return fields of a batch, with arrays in place of lists."""
        found = dict(given)
        for name, value in given.items():
            if isinstance(value, list) and name in HOST:
                found[name] = np.array(value, np.int32)
            elif isinstance(value, list):
                found[name] = self.array(value, DTYPES.get(name, "int32"))
        return found

    def batch(
        self,
        query_lens: list[int],
        computed: list[int],
        *,
        padding_tokens: int = 0,
        **changes: Any,
    ) -> Any:
        """Return the metadata of a batch in blocks of 2, with lists for the fields to change.

        Request `i` owns the blocks `1 + i`, `1 + i + num_reqs`, ..., the last of them first.
        """
        num_reqs = len(query_lens)
        starts = [sum(query_lens[:i]) for i in range(num_reqs + 1)]
        seq_lens = [c + q for c, q in zip(computed, query_lens, strict=True)]
        width = -(-max(seq_lens, default=0) // 2) + 1
        rows = [[1 + i + num_reqs * b for b in reversed(range(width))] for i in range(num_reqs)]
        slots = [
            2 * rows[i][position // 2] + position % 2
            for i in range(num_reqs)
            for position in range(computed[i], seq_lens[i])
        ]
        fields: dict[str, Any] = {
            "query_start_loc": starts,
            "query_start_loc_cpu": starts,
            "seq_lens": seq_lens,
            "seq_lens_cpu": seq_lens,
            "num_computed_tokens_cpu": computed,
            "num_reqs": num_reqs,
            "num_actual_tokens": starts[-1] + padding_tokens,
            "max_query_len": max(query_lens, default=0),
            "max_seq_len": max(seq_lens, default=0),
            "block_table_tensor": rows or self.array(np.zeros((0, width))),
            "slot_mapping": slots + [reference.PAD_SLOT_ID] * padding_tokens,
        }
        return self.CommonAttentionMetadata(**self.fields(fields | changes))


def plain(value: Any) -> Any:
    """Return a value with lists in place of arrays and tensors."""
    if isinstance(value, np.ndarray | torch.Tensor):
        return value.tolist()
    if isinstance(value, list | tuple) and type(value) in {list, tuple}:
        return type(value)(map(plain, value))
    return value


def shown(metadata: Any, names: Any) -> dict[str, Any]:
    """Return some fields of a batch as lists, where both halves of the lengths agree."""
    for name in ("query_start_loc", "seq_lens"):
        on_host = plain(getattr(metadata, f"{name}_cpu"))
        assert on_host is None or plain(getattr(metadata, name)) == on_host
    return {name: plain(getattr(metadata, name)) for name in names}


def shares_memory(one: Any, other: Any) -> bool:
    """Return whether two arrays, or two tensors, have an element in common."""
    return np.shares_memory(np.asarray(one), np.asarray(other))
