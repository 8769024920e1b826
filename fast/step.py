"""A whole step: all that a forward pass reads, prepared from the state of requests at once.

On a GPU that is one upload and two launches, the first only if block IDs are staged; on the CPU one
compiled loop after the other, without the checks of the functions that they belong to.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from fast._checks import MAX_INT64, check_int, is_kind
from fast.block_table import BlockTables
from fast.checked_mode import is_checked
from fast.launch import uses_kernels
from fast.operators import check_not_traced
from fast.sentinels import DUMMY_ROW
from fast.table_memory import make_full

MAX_VIEWS: Final = 64
"""The most sizes of steps whose views are kept."""

INT32: Final = (np.dtype(np.int32),)


class StepBuffers:
    """Keep the state of requests, by request slot, and the inputs of a step, by batch row.

    All tensors are on the device of the block tables. The attributes must not be replaced.

    Definition: `reference.StepBuffers`.
    """

    @torch.inference_mode(mode=False)  # the buffers outlive the mode in which they are made
    def __init__(
        self,
        block_tables: BlockTables,
        max_model_len: int,
        num_speculative_tokens: int = 0,
        num_lookahead_tokens: int = 1,
    ) -> None:
        if not is_kind(block_tables, "BlockTables"):
            raise TypeError(f"block_tables must be BlockTables, got {type(block_tables).__name__}")
        width = check_int("max_model_len", max_model_len)
        drafts = check_int("num_speculative_tokens", num_speculative_tokens, 0)
        lookahead = check_int("num_lookahead_tokens", num_lookahead_tokens, 0)
        num_slots, num_tokens = block_tables.max_num_reqs, block_tables.max_num_batched_tokens
        num_bytes = num_slots * (32 + 4 * width + 8 * drafts + 4 * lookahead) + 8 + 20 * num_tokens
        if num_bytes > MAX_INT64:
            raise ValueError(
                f"max_num_reqs {num_slots}, max_model_len {width}, num_speculative_tokens {drafts}"
                f" and num_lookahead_tokens {lookahead} make buffers of more than {MAX_INT64} bytes"
            )
        self.block_tables = block_tables

        def make(*shape: int, dtype: Any = np.int32, value: int = 0) -> torch.Tensor:
            return make_full(shape, value, dtype, block_tables.device)

        self.num_computed_tokens = make(num_slots)
        self.prefill_len = make(num_slots)
        self.all_token_ids = make(num_slots, width)
        self.last_sampled_tokens = make(num_slots, dtype=np.int64)
        self.draft_tokens = make(num_slots, drafts, dtype=np.int64)
        self.next_prefill_tokens = make(lookahead, num_slots)
        self.idx_mapping = make(num_slots, value=DUMMY_ROW)
        self.query_start_loc = make(num_slots + 1)
        self.cu_num_logits = make(num_slots + 1)
        self.seq_lens = make(num_slots)
        self.positions = make(num_tokens, dtype=np.int64)
        self.input_ids = make(num_tokens)
        self.logits_indices = make(num_tokens, dtype=np.int64)
        names = (*STATE, *WRITTEN)
        # The host's copy of a step's rows, request slots, then where tokens and logits start.
        self._rows = np.zeros(3 * num_slots + 2, np.int32)
        self._views: dict[tuple[int, int, int], StepInputs] = {}
        self._host: HostStep | None = None  # what does the work if a kernel does not
        if block_tables.device.type == "cpu" and not uses_kernels(self.input_ids):
            self._host = HostStep({name: getattr(self, name) for name in names})

    def _take(
        self,
        rows: npt.NDArray[np.int32],
        starts: npt.NDArray[np.int32],
        logits: npt.NDArray[np.int32],
    ) -> bool:
        """Copy the rows of a step; return whether they are valid."""
        places = self._row_arrays if self._host is None else self._host.rows
        return bool(take_rows(rows, starts, logits, len(self.input_ids), *places))

    def _write(self, num_reqs: int, counts: tuple[int, int], num_new_sampled: int) -> None:
        """Prepare the step whose rows were taken."""

    def _get_views(self, num_rows: int, num_tokens: int, num_logits: int) -> "StepInputs":
        """Return the inputs of a step of these sizes."""
        key = num_rows, num_tokens, num_logits
        views = self._views.get(key)
        if views is not None and not is_checked():
            return views
        tables = self.block_tables
        views = StepInputs(
            block_tables=tables.get_table_views(num_rows),
            slot_mappings=tables.get_slot_view(num_tokens),
            idx_mapping=self.idx_mapping[:num_rows],
            query_start_loc=self.query_start_loc[: num_rows + 1],
            cu_num_logits=self.cu_num_logits[: num_rows + 1],
            seq_lens=self.seq_lens[:num_rows],
            positions=self.positions[:num_tokens],
            input_ids=self.input_ids[:num_tokens],
            logits_indices=self.logits_indices[:num_logits],
        )
        keep(self._views, key, views)
        return views


@dataclass(frozen=True)
class StepInputs:
    """What a forward pass reads: views of persistent memory.

    Definition: `reference.StepInputs`.
    """

    block_tables: tuple[torch.Tensor, ...]
    slot_mappings: torch.Tensor
    idx_mapping: torch.Tensor
    query_start_loc: torch.Tensor
    cu_num_logits: torch.Tensor
    seq_lens: torch.Tensor
    positions: torch.Tensor
    input_ids: torch.Tensor
    logits_indices: torch.Tensor


def prepare_step(
    buffers: StepBuffers,
    idx_mapping: npt.NDArray[np.int32],
    query_start_loc: npt.NDArray[np.int32],
    cu_num_logits: npt.NDArray[np.int32],
    num_reqs_padded: int,
    num_tokens_padded: int,
    num_new_sampled_tokens: int = 1,
) -> StepInputs:
    """Prepare all that a forward pass reads.

    On a GPU the call does not synchronise, except in checked mode. The rows, which are on the host,
    are always checked; the state of the requests in checked mode only. For the same sizes the same
    view objects are returned, except in checked mode.

    Definition: `reference.prepare_step`.
    """
    check_not_traced("prepare_step")
    if not isinstance(buffers, StepBuffers):
        raise TypeError(f"buffers must be StepBuffers, got {type(buffers).__name__}")
    tables = buffers.block_tables
    rows = _read_vector("idx_mapping", idx_mapping)
    num_reqs, max_num_reqs = len(rows), tables.max_num_reqs
    if num_reqs > max_num_reqs:
        raise ValueError(
            f"idx_mapping has {num_reqs} entries, expected at most max_num_reqs = {max_num_reqs}"
        )
    starts = _read_vector("query_start_loc", query_start_loc, num_reqs + 1)
    logits = _read_vector("cu_num_logits", cu_num_logits, num_reqs + 1)
    counts = num_tokens, num_logits = int(starts[num_reqs]), int(logits[num_reqs])
    num_rows = check_int("num_reqs_padded", num_reqs_padded, num_reqs, max_num_reqs)
    most = tables.max_num_batched_tokens
    num_padded = check_int("num_tokens_padded", num_tokens_padded, num_tokens, most)
    num_new = check_int("num_new_sampled_tokens", num_new_sampled_tokens, 0, 1)
    if is_checked():
        _check_step(buffers, rows, starts, logits, num_padded, num_new)
    if not buffers._take(rows, starts, logits):
        _check_step(buffers, rows, starts, logits, num_padded, num_new)  # raises
    buffers._write(num_reqs, counts, num_new)
    return buffers._get_views(num_rows, num_padded, num_logits)


def _read_vector(name: str, value: Any, min_length: int = 0) -> npt.NDArray[np.int32]:
    """Return an int32 vector of the host in one piece."""
    if not (type(value) is np.ndarray and value.dtype == np.int32 and value.ndim == 1):
        check_array(name, value, 0, INT32S)
    if len(value) < min_length:
        check_at_least(name, len(value), min_length)
    return np.ascontiguousarray(value)


def _check_step(
    buffers: StepBuffers,
    rows: npt.NDArray[np.int32],
    starts: npt.NDArray[np.int32],
    logits: npt.NDArray[np.int32],
    num_tokens: int,
    num_new_sampled: int,
) -> None:
    """Call the functions that a step consists of in checked mode, on copies of what they write."""
    tables, computed = buffers.block_tables, buffers.num_computed_tokens
    num_logits = int(logits[len(rows)])
    slots, offsets, of_logits = (torch.tensor(x, device=tables.device) for x in (rows, starts, logits))
    pos, lens, ids, following = (
        getattr(buffers, name).clone()
        for name in ("positions", "seq_lens", "input_ids", "next_prefill_tokens")
    )
    known, drafts, sampled = buffers.prefill_len, buffers.draft_tokens, buffers.last_sampled_tokens
    with checks(True):
        prepare_pos_seq_lens(slots, offsets, computed, pos, lens)
        prepare_prefill_inputs(
            ids, following, slots, offsets, buffers.all_token_ids, known, computed
        )
        combine_sampled_and_draft_tokens(
            *(ids, slots, sampled, offsets, lens, known, drafts, of_logits),
            num_logits,
            num_new_sampled,
        )
        # It refuses a position that is in no column, whatever is in the rows.
        tables.compute_slot_mappings(slots, offsets, pos, num_tokens)
