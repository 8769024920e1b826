"""Write the inputs of a step whose buffers are on the CPU."""

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from fast._native.block_table import HostTables
from fast._native.compiler import Int32s, compiled
from fast._native.step_inputs import (
    write_positions,
    write_prefill_inputs,
    write_sampled_and_drafts,
)

STATE: Final = (
    *("num_computed_tokens", "prefill_len", "all_token_ids", "last_sampled_tokens", "draft_tokens"),
)
"""The buffers that a step reads."""

WRITTEN: Final = (
    *("next_prefill_tokens", "idx_mapping", "query_start_loc", "cu_num_logits", "seq_lens"),
    *("positions", "input_ids", "logits_indices"),
)
"""The buffers that a step writes."""


Rows: TypeAlias = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32]]
"""The rows of a step on the host: request slots, and where tokens and logits start."""


class HostStep:
    """The loops of a step, with the places of all that they read and write.

    Args:
        tables: The block tables.
        buffers: By name, the contiguous tensors of `StepBuffers`; their storages cannot be resized.
    """

    def __init__(self, tables: HostTables, buffers: dict[str, torch.Tensor]) -> None:
        self._tables = tables
        # `_arrays` keeps the memory, whatever becomes of the tensors.
        self._arrays = {name: tensor.numpy() for name, tensor in buffers.items()}
        slots, token_starts, logit_starts = (self._arrays[name] for name in WRITTEN[1:4])
        self.rows: Rows = (slots, token_starts, logit_starts)
        self._indices = self._arrays["logits_indices"]
        self._written = [buffers[name] for name in WRITTEN]
        at = {name: array.ctypes.data for name, array in self._arrays.items()}
        num_slots, width = self._arrays["all_token_ids"].shape
        num_drafts = self._arrays["draft_tokens"].shape[1]
        num_tokens, num_following = (
            self._arrays[name].size for name in ("input_ids", "next_prefill_tokens")
        )
        starts, lens = (at["query_start_loc"], 1), (at["seq_lens"], 1)
        known, computed = (at["prefill_len"], 1), (at["num_computed_tokens"], 1)
        # Of an int64 the loops read the lower of two words.
        sampled = (at["last_sampled_tokens"], 2)
        drafts = (at["draft_tokens"], 2 * num_drafts, 2, num_slots, num_drafts)
        tokens = (at["all_token_ids"], width, 1, num_slots, width)
        ids, following = (at["input_ids"], num_tokens), (at["next_prefill_tokens"], num_following)
        self._slots, self._computed = (at["idx_mapping"], 1), at["num_computed_tokens"]
        self._tokens = (at["query_start_loc"], at["positions"])
        written = (at["positions"], num_tokens, at["seq_lens"], num_slots)
        self._of_positions = (*starts, *computed, num_slots, *written)
        self._of_prefill = (*starts, *tokens, *known, *computed, *ids, *following)
        self._of_sampled = (*sampled, *starts, *lens, *known, *drafts, at["cu_num_logits"], 1)
        self._ids = ids

    def write(self, num_reqs: int, num_tokens: int, num_logits: int, num_new_sampled: int) -> None:
        """Prepare a step of rows that are in the buffers, of so many tokens and logits."""
        rows, tables = (*self._slots, num_reqs), self._tables
        tables.apply()
        tables.gather_at(*rows, self._computed)
        write_positions(*rows, *self._of_positions)
        write_prefill_inputs(*rows, *self._of_prefill)
        indices = self._indices[:num_logits]
        write_sampled_and_drafts(*rows, *self._of_sampled, num_new_sampled, *self._ids, indices)
        tables.fill_slots_at(*rows, *self._tokens, num_tokens)
        torch.autograd.graph.increment_version(self._written)  # torch does not see loops' writes


def take_rows(rows: Rows, max_num_tokens: int, places: Rows) -> bool:
    """Copy the rows of a step, and pad them; return whether they are valid, else write nothing.

    Both are int32 vectors of NumPy in one piece: request slots, and where tokens and logits start.
    The last two have at least one entry more than the first; of `places`, exactly one.
    """
    return bool(copy_valid_rows(*rows, max_num_tokens, *places))


@compiled(
    "boolean(int32[::1], int32[::1], int32[::1], int64, int32[::1], int32[::1], int32[::1])",
    nogil=False,
)
def copy_valid_rows(
    rows: Int32s,
    starts: Int32s,
    logits: Int32s,
    max_num_tokens: int,
    rows_out: Int32s,
    starts_out: Int32s,
    logits_out: Int32s,
) -> Any:
    num_reqs, num_slots = len(rows), len(rows_out)
    if num_reqs > num_slots or starts[0] != 0 or logits[0] != 0:
        return False
    is_listed = np.zeros(num_slots, np.bool_)
    for row in range(num_reqs):
        slot = np.int64(rows[row])
        if slot < -1 or slot >= num_slots or (slot >= 0 and is_listed[slot]):
            return False
        if slot >= 0:
            is_listed[slot] = True
        num_tokens = np.int64(starts[row + 1]) - starts[row]
        num_logits = np.int64(logits[row + 1]) - logits[row]
        if num_logits < 0 or num_logits > num_tokens:
            return False
    if starts[num_reqs] > max_num_tokens:
        return False
    for row in range(num_slots):
        rows_out[row] = rows[row] if row < num_reqs else -1
    for row in range(num_slots + 1):
        last = min(row, num_reqs)
        starts_out[row] = starts[last]
        logits_out[row] = logits[last]
    return True
