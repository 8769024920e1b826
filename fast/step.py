"""A whole step: all that a forward pass reads, prepared from the state of requests at once.

On a GPU that is one upload and two launches, the first only if block IDs are staged; on the CPU one
compiled loop after the other, without the checks of the functions that they belong to.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from fast._checks import (
    MAX_INT64,
    check_array,
    check_at_least,
    check_int,
    check_request_slots,
    check_starts,
    get_type_name,
)
from fast._native.step import STATE, WRITTEN, HostStep, Rows, take_rows
from fast.block_table import BlockTables, keep, make_full
from fast.checked_mode import checks, is_checked
from fast.kernels import block_table as table_kernels
from fast.kernels import step as kernels
from fast.launch import launch_blocks
from fast.operators import check_not_traced
from fast.pinned import upload
from fast.sentinels import DUMMY_ROW
from fast.slots import flat
from fast.step_inputs import (
    combine_sampled_and_draft_tokens,
    prepare_pos_seq_lens,
    prepare_prefill_inputs,
)

INT32S: Final = (np.dtype(np.int32),)


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
        if not isinstance(block_tables, BlockTables):
            raise TypeError(f"block_tables must be BlockTables, got {get_type_name(block_tables)}")
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
        self._host: HostStep | None = None  # what does the work if kernels do not
        # The rows of a step, packed for the upload, and its parts.
        self._packed = np.zeros(3 * num_slots + 2, np.int32)
        slots, starts, logits = np.split(self._packed, [num_slots, 2 * num_slots + 1])
        self._rows: Rows = (slots, starts, logits)
        # What a kernel reads and writes; making the views in each step would take 7 us.
        self._state = [flat(getattr(self, name)) for name in STATE]
        self._written = [getattr(self, name) for name in WRITTEN]
        if block_tables._host is not None:
            buffers = {name: getattr(self, name) for name in (*STATE, *WRITTEN)}
            self._host = HostStep(block_tables._host, buffers)
            self._rows = self._host.rows

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to make a copy, for `copy` and `pickle`."""
        width, drafts = self.all_token_ids.shape[1], self.draft_tokens.shape[1]
        sizes = (width, drafts, len(self.next_prefill_tokens))
        values = {name: np.array(getattr(self, name).cpu()) for name in (*STATE, *WRITTEN)}
        return _restore, (type(self), self.block_tables, sizes, values)

    def _prepare(
        self, rows: Rows, num_rows: int, num_tokens: int, num_new_sampled: int
    ) -> "StepInputs":
        """Prepare a step, of sizes that are checked."""
        slots, starts, logits = rows
        if is_checked() or not take_rows(rows, len(self.input_ids), self._rows):
            _check_step(self, rows, num_tokens, num_new_sampled)  # raises, unless all is right
            take_rows(rows, len(self.input_ids), self._rows)
        num_reqs = len(slots)
        total, num_logits = int(starts[num_reqs]), int(logits[num_reqs])
        self._notice_writes()
        if self._host is not None:
            self._host.write(num_reqs, total, num_logits, num_new_sampled)
        else:
            self._launch(num_reqs, num_new_sampled)
        return self._get_views(num_rows, num_tokens, num_logits)

    def _launch(self, num_reqs: int, num_new_sampled: int) -> None:
        """Prepare the step whose rows are packed, on a GPU."""
        tables = self.block_tables
        staged, num_changed, number = tables._staged.pack()
        packed = np.concatenate([self._packed, staged]) if num_changed else self._packed
        on_device = upload(packed, tables.device, pin_memory=True)
        if num_changed:
            of_staged = on_device[len(self._packed) :]
            launch_blocks(
                table_kernels.apply_staged_writes, num_changed, 1, *tables._rows, of_staged
            )
        launch_blocks(
            kernels.prepare_step,
            tables.max_num_reqs + 1,
            max(len(tables.block_sizes), 1),
            *(*tables._rows, tables._gathered, tables._num_gathered, tables._slots),
            *(on_device, num_reqs, num_new_sampled),
            *(self.all_token_ids.shape[1], self.draft_tokens.shape[1]),
            *self._state,
            *self._written,
        )
        tables._staged.forget(number)
        # Torch does not see a kernel's writes.
        torch.autograd.graph.increment_version(self._written)

    def _notice_writes(self) -> None:
        self.block_tables._notice_table_writes()
        self.block_tables._notice_slot_writes()

    def _get_views(self, num_rows: int, num_tokens: int, num_logits: int) -> "StepInputs":
        """Return the inputs of a step of these sizes."""
        key = num_rows, num_tokens, num_logits
        views = self._views.get(key)
        if views is not None and not is_checked():
            return views
        tables = self.block_tables
        views = StepInputs(
            block_tables=tables._get_table_views(num_rows),
            slot_mappings=tables._get_slot_view(num_tokens),
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
        raise TypeError(f"buffers must be StepBuffers, got {get_type_name(buffers)}")
    slots = _read_vector("idx_mapping", idx_mapping)
    num_reqs, max_num_reqs = len(slots), buffers.block_tables.max_num_reqs
    if num_reqs > max_num_reqs:
        raise ValueError(
            f"idx_mapping has {num_reqs} entries, expected at most max_num_reqs = {max_num_reqs}"
        )
    starts = _read_vector("query_start_loc", query_start_loc)
    logits = _read_vector("cu_num_logits", cu_num_logits)
    rows = (slots, starts, logits)
    if len(starts) <= num_reqs or len(logits) <= num_reqs:
        _check_rows(rows, max_num_reqs)  # raises
    num_rows = check_int("num_reqs_padded", num_reqs_padded, num_reqs, max_num_reqs)
    num_tokens, least, most = num_tokens_padded, int(starts[num_reqs]), len(buffers.input_ids)
    if not (type(num_tokens) is int and least <= num_tokens <= most):
        _check_rows(rows, max_num_reqs)
        num_tokens = check_int("num_tokens_padded", num_tokens, least, most)
    num_new = check_int("num_new_sampled_tokens", num_new_sampled_tokens, 0, 1)
    return buffers._prepare(rows, num_rows, num_tokens, num_new)


def _restore(
    cls: type[StepBuffers], tables: BlockTables, sizes: tuple[int, int, int], values: dict[str, Any]
) -> StepBuffers:
    """Return a copy of buffers, for copied tables."""
    made = cls(tables, *sizes)
    for name, array in values.items():
        getattr(made, name).copy_(torch.from_numpy(array))
    return made


def _read_vector(name: str, value: Any) -> npt.NDArray[np.int32]:
    """Return an int32 vector of the host in one piece."""
    if not (type(value) is np.ndarray and value.dtype == np.int32 and value.ndim == 1):
        check_array(name, value, 0, INT32S)
    return np.ascontiguousarray(value)


def _check_rows(rows: Rows, max_num_reqs: int) -> None:
    length = len(rows[0]) + 1
    check_request_slots(rows[0], max_num_reqs)
    for name, part in zip(("query_start_loc", "cu_num_logits"), rows[1:], strict=True):
        check_at_least(name, len(part), length)
        check_starts(name, part[:length])


def _check_step(buffers: StepBuffers, rows: Rows, num_tokens: int, num_new_sampled: int) -> None:
    """Check a step as in checked mode: by the functions of which it consists, on copies."""
    tables, computed = buffers.block_tables, buffers.num_computed_tokens
    _check_rows(rows, tables.max_num_reqs)
    slots, starts, of_logits = (torch.tensor(part.copy(), device=tables.device) for part in rows)
    num_logits = int(rows[2][len(slots)])
    pos, lens, ids, following = (
        getattr(buffers, name).clone()
        for name in ("positions", "seq_lens", "input_ids", "next_prefill_tokens")
    )
    known, drafts, sampled = buffers.prefill_len, buffers.draft_tokens, buffers.last_sampled_tokens
    with checks(True):
        prepare_pos_seq_lens(slots, starts, computed, pos, lens)
        prepare_prefill_inputs(
            ids, following, slots, starts, buffers.all_token_ids, known, computed
        )
        combine_sampled_and_draft_tokens(
            *(ids, slots, sampled, starts, lens, known, drafts, of_logits),
            num_logits,
            num_new_sampled,
        )
        # It refuses a position that is in no column, whatever is in the rows.
        tables.compute_slot_mappings(slots, starts, pos, num_tokens)
