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
        self._views: dict[tuple[int, int, int], StepInputs] = {}
        self._host = None if uses_kernels(self.input_ids) else HostStep(self)


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
    if type(buffers) is not StepBuffers and not is_kind(buffers, "StepBuffers"):
        raise TypeError(f"buffers must be StepBuffers, got {type(buffers).__name__}")
    tables = buffers.block_tables
    rows = _check_vector("idx_mapping", idx_mapping, 0)
    num_reqs, max_num_reqs = len(rows), tables.max_num_reqs
    if num_reqs > max_num_reqs:
        raise ValueError(
            f"idx_mapping has {num_reqs} entries, expected at most max_num_reqs = {max_num_reqs}"
        )
    starts = _check_vector("query_start_loc", query_start_loc, num_reqs + 1)
    logits = _check_vector("cu_num_logits", cu_num_logits, num_reqs + 1)
    num_rows = check_int("num_reqs_padded", num_reqs_padded, num_reqs, max_num_reqs)
    num_new = check_int("num_new_sampled_tokens", num_new_sampled_tokens, 0, 1)
    num_tokens = num_tokens_padded
    least, most = int(starts[num_reqs]), tables.max_num_batched_tokens
    if not (type(num_tokens) is int and least <= num_tokens <= most):
        num_tokens = check_int("num_tokens_padded", num_tokens, 0, most)
    if is_checked():
        _check_state(buffers, rows, starts, logits, num_tokens, num_new)
    num_logits = int(logits[num_reqs])
