"""A whole step: all that a forward pass reads, prepared from the state of requests at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reference._checks import (
    DUMMY_ROW,
    MAX_INT32,
    MAX_INT64,
    Int32Array,
    Int64Array,
    check_array,
    check_int,
    check_request_slots,
    check_row_starts,
    check_size,
    is_kind,
)
from reference.block_table import BlockTables
from reference.step_inputs import (
    combine_sampled_and_draft_tokens,
    prepare_pos_seq_lens,
    prepare_prefill_inputs,
)


class StepBuffers:
    """Keep the state of requests, by request slot, and the inputs of a step, by batch row.

    All arrays are made here, once, and stay where they are, so that a captured CUDA graph can read
    them. The caller writes the state, `post_update` and the like do; `prepare_step` writes the
    inputs. The attributes must not be replaced.

    Args:
        block_tables: The `BlockTables` of the same requests; they say how many there may be.
        max_model_len: The most tokens of a request.
        num_speculative_tokens: The most draft tokens of a request.
        num_lookahead_tokens: How many tokens after a chunk of a prompt are looked up.

    Attributes:
        block_tables: The block tables.
        num_computed_tokens: int32[max_num_reqs], tokens of each request that are in the cache.
        prefill_len: int32[max_num_reqs], tokens of it that are known before anything is sampled.
        all_token_ids: int32[max_num_reqs, max_model_len], its tokens.
        last_sampled_tokens: int64[max_num_reqs], the token that was sampled last for it.
        draft_tokens: int64[max_num_reqs, num_speculative_tokens], its draft tokens.
        next_prefill_tokens: int32[num_lookahead_tokens, max_num_reqs], its tokens after this step's
            chunk, as `prepare_prefill_inputs` writes them.
        idx_mapping: int32[max_num_reqs], the request slot of each row; -1 for dummies and padding.
        query_start_loc: int32[max_num_reqs + 1], where each row's tokens start; past the last row,
            where that ends.
        cu_num_logits: int32[max_num_reqs + 1], where each row's logits start, likewise.
        seq_lens: int32[max_num_reqs], the length of each row's sequence; 0 for padding.
        positions: int64[max_num_batched_tokens], the position of each token.
        input_ids: int32[max_num_batched_tokens], the tokens.
        logits_indices: int64[max_num_batched_tokens], the index of each token that has logits.

        All are 0 at first, `idx_mapping` -1.

    Raises:
        TypeError: An argument of the wrong type.
        ValueError: A number out of range, arrays that are too large for any memory.

    Source: kvtwin's own.
    """

    def __init__(
        self,
        block_tables: BlockTables,
        max_model_len: int,
        num_speculative_tokens: int = 0,
        num_lookahead_tokens: int = 1,
    ) -> None:
        if not is_kind(block_tables, "BlockTables"):
            raise TypeError(f"block_tables must be BlockTables, got {type(block_tables).__name__}")
        width = check_size("max_model_len", max_model_len)
        drafts = check_int("num_speculative_tokens", num_speculative_tokens, 0, MAX_INT32)
        lookahead = check_int("num_lookahead_tokens", num_lookahead_tokens, 0, MAX_INT32)
        num_slots, num_tokens = block_tables.max_num_reqs, block_tables.max_num_batched_tokens
        num_bytes = num_slots * (32 + 4 * width + 8 * drafts + 4 * lookahead) + 8 + 20 * num_tokens
        if num_bytes > MAX_INT64:
            raise ValueError(
                f"max_num_reqs {num_slots}, max_model_len {width}, num_speculative_tokens {drafts} "
                f"and num_lookahead_tokens {lookahead} make buffers of more than {MAX_INT64} bytes"
            )
        self.block_tables = block_tables
        self.num_computed_tokens = np.zeros(num_slots, np.int32)
        self.prefill_len = np.zeros(num_slots, np.int32)
        self.all_token_ids = np.zeros((num_slots, width), np.int32)
        self.last_sampled_tokens = np.zeros(num_slots, np.int64)
        self.draft_tokens = np.zeros((num_slots, drafts), np.int64)
        self.next_prefill_tokens = np.zeros((lookahead, num_slots), np.int32)
        self.idx_mapping = np.full(num_slots, DUMMY_ROW, np.int32)
        self.query_start_loc = np.zeros(num_slots + 1, np.int32)
        self.cu_num_logits = np.zeros(num_slots + 1, np.int32)
        self.seq_lens = np.zeros(num_slots, np.int32)
        self.positions = np.zeros(num_tokens, np.int64)
        self.input_ids = np.zeros(num_tokens, np.int32)
        self.logits_indices = np.zeros(num_tokens, np.int64)


@dataclass(frozen=True)
class StepInputs:
    """What a forward pass reads: views of persistent memory.

    Attributes:
        block_tables: For each group int32[num_reqs_padded, max_blocks].
        slot_mappings: int64[num_groups, num_tokens_padded].
        idx_mapping: int32[num_reqs_padded].
        query_start_loc: int32[num_reqs_padded + 1].
        cu_num_logits: int32[num_reqs_padded + 1].
        seq_lens: int32[num_reqs_padded].
        positions: int64[num_tokens_padded].
        input_ids: int32[num_tokens_padded].
        logits_indices: int64[num_logits].
    """

    block_tables: tuple[Int32Array, ...]
    slot_mappings: Int64Array
    idx_mapping: Int32Array
    query_start_loc: Int32Array
    cu_num_logits: Int32Array
    seq_lens: Int32Array
    positions: Int64Array
    input_ids: Int32Array
    logits_indices: Int64Array


def prepare_step(
    buffers: StepBuffers,
    idx_mapping: Int32Array,
    query_start_loc: Int32Array,
    cu_num_logits: Int32Array,
    num_reqs_padded: int,
    num_tokens_padded: int,
    num_new_sampled_tokens: int = 1,
) -> StepInputs:
    """Prepare all that a forward pass reads.

    The result is that of the functions one by one: the three vectors are copied to the buffers and
    padded; then `BlockTables.apply_staged_writes`, `gather_block_tables` with the computed tokens,
    `prepare_pos_seq_lens`, `prepare_prefill_inputs`, `combine_sampled_and_draft_tokens`, and
    `BlockTables.compute_slot_mappings`. Positions, input IDs and logits indices past those of the
    step stay.

    Args:
        buffers: The state of requests and the memory of the inputs.
        idx_mapping: int32[num_reqs], the request slot of each row; -1: a dummy row.
        query_start_loc: int32[at least num_reqs + 1], where each row's tokens start.
        cu_num_logits: int32[at least num_reqs + 1], where each row's logits start; later entries of
            both are not read. All three are on the host, NumPy arrays in both twins.
        num_reqs_padded: Number of rows with padding, in `num_reqs` .. `max_num_reqs`.
        num_tokens_padded: Number of tokens with padding, in `query_start_loc[num_reqs]` ..
            `max_num_batched_tokens`.
        num_new_sampled_tokens: How many of a row's logits are of a sampled token, 0 or 1.

    Returns:
        Views of the buffers and the tables; the next step overwrites them.

    Raises:
        TypeError: An argument of the wrong type or dtype.
        IndexError: A request slot that does not exist.
        ValueError: What the functions one by one refuse; a number out of range, more rows than
            `max_num_reqs`. Nothing is written, and what is staged stays so.

    Example:
        >>> import numpy as np
        >>> tables = BlockTables([2], 4, 8, [3], device=None)
        >>> buffers = StepBuffers(tables, max_model_len=6)
        >>> tables.append_block_ids(2, [[7, 5]], overwrite=True)
        >>> buffers.all_token_ids[2, :3] = [40, 41, 42]
        >>> buffers.prefill_len[2] = 3
        >>> inputs = prepare_step(
        ...     buffers,
        ...     idx_mapping=np.array([2], np.int32),
        ...     query_start_loc=np.array([0, 3], np.int32),
        ...     cu_num_logits=np.array([0, 1], np.int32),
        ...     num_reqs_padded=2,
        ...     num_tokens_padded=4,
        ... )
        >>> inputs.block_tables[0].tolist(), inputs.slot_mappings.tolist()
        ([[7, 5, 0], [0, 0, 0]], [[14, 15, 10, -1]])
        >>> inputs.input_ids.tolist(), inputs.logits_indices.tolist()
        ([40, 41, 42, 0], [2])

    Source: the definition and the name are kvtwin's own.
    """
    if not is_kind(buffers, "StepBuffers"):
        raise TypeError(f"buffers must be StepBuffers, got {type(buffers).__name__}")
    tables, max_num_reqs = buffers.block_tables, len(buffers.idx_mapping)
    check_array("idx_mapping", idx_mapping, np.int32, 1)
    num_reqs = len(idx_mapping)
    if num_reqs > max_num_reqs:
        raise ValueError(
            f"idx_mapping has {num_reqs} entries, expected at most max_num_reqs = {max_num_reqs}"
        )
    check_request_slots(idx_mapping, max_num_reqs)
    starts = check_row_starts("query_start_loc", query_start_loc, num_reqs)
    logits = check_row_starts("cu_num_logits", cu_num_logits, num_reqs)
    num_rows = check_int("num_reqs_padded", num_reqs_padded, num_reqs, max_num_reqs)
    max_num_tokens = len(buffers.input_ids)
    num_tokens = check_int("num_tokens_padded", num_tokens_padded, starts[-1], max_num_tokens)
    num_new = check_int("num_new_sampled_tokens", num_new_sampled_tokens, 0, 1)

    # All that may be refused is done on copies first.
    positions, seq_lens = buffers.positions.copy(), buffers.seq_lens.copy()
    input_ids, following = buffers.input_ids.copy(), buffers.next_prefill_tokens.copy()
    computed, prefill_len = buffers.num_computed_tokens, buffers.prefill_len
    batch = idx_mapping, query_start_loc
    prepare_pos_seq_lens(*batch, computed, positions, seq_lens)
    prepare_prefill_inputs(
        input_ids, following, *batch, buffers.all_token_ids, prefill_len, computed
    )
    logits_indices = combine_sampled_and_draft_tokens(
        input_ids,
        idx_mapping,
        buffers.last_sampled_tokens,
        query_start_loc,
        seq_lens,
        prefill_len,
        buffers.draft_tokens,
        cu_num_logits,
        logits[-1],
        num_new,
    )

    # It refuses a position that is in no column, whatever is in the rows.
    tables.compute_slot_mappings(*batch, positions, num_tokens)

    buffers.positions[:], buffers.seq_lens[:] = positions, seq_lens
    buffers.input_ids[:], buffers.next_prefill_tokens[:] = input_ids, following
    buffers.logits_indices[: logits[-1]] = logits_indices
    buffers.idx_mapping[:num_reqs], buffers.idx_mapping[num_reqs:] = idx_mapping, DUMMY_ROW
    buffers.query_start_loc[: num_reqs + 1] = starts
    buffers.query_start_loc[num_reqs + 1 :] = starts[-1]
    buffers.cu_num_logits[: num_reqs + 1] = logits
    buffers.cu_num_logits[num_reqs + 1 :] = logits[-1]
    tables.apply_staged_writes()
    block_tables = tables.gather_block_tables(idx_mapping, num_rows, computed)
    slot_mappings = tables.compute_slot_mappings(*batch, positions, num_tokens)
    return StepInputs(
        block_tables=block_tables,
        slot_mappings=slot_mappings,
        idx_mapping=buffers.idx_mapping[:num_rows],
        query_start_loc=buffers.query_start_loc[: num_rows + 1],
        cu_num_logits=buffers.cu_num_logits[: num_rows + 1],
        seq_lens=buffers.seq_lens[:num_rows],
        positions=buffers.positions[:num_tokens],
        input_ids=buffers.input_ids[:num_tokens],
        logits_indices=buffers.logits_indices[: logits[-1]],
    )
