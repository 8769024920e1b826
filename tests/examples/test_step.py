"""A whole step at once: two requests in their prompts, drafts, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fast
from tests.examples.twins import Twin


def make_buffers(twin: Twin, **options: Any) -> Any:
    """Make buffers for 3 requests of at most 8 tokens, of which slot 0 decodes, and slot 2 begins.

    Slot 0 knew 4 tokens, has computed 6, was given token 50 last, and has the drafts 51 and 52.
    Slot 2 knows 5 tokens, of which none is computed.
    """
    tables = twin.BlockTables([2], 3, 8, [4], device="cpu", **options)
    buffers = twin.StepBuffers(tables, max_model_len=8, num_speculative_tokens=2)
    tables.append_block_ids(0, [[3, 4, 5, 6]], overwrite=True)
    tables.append_block_ids(2, [[7, 8]], overwrite=True)
    buffers.num_computed_tokens[:] = twin.array([6, 77, 0])
    buffers.prefill_len[:] = twin.array([4, 77, 5])
    buffers.all_token_ids[2] = twin.array([10, 11, 12, 13, 14, 0, 0, 0])
    buffers.last_sampled_tokens[0] = 50
    buffers.draft_tokens[0] = twin.array([51, 52], "int64")
    return buffers


def prepare(twin: Twin, buffers: Any, *rows: list[int], **options: Any) -> Any:
    sizes = {"num_reqs_padded": 3, "num_tokens_padded": 7} | options
    return twin.prepare_step(buffers, *(np.array(row, np.int32) for row in rows), **sizes)


def test_a_decode_with_a_draft_and_a_chunk(twin: Twin) -> None:
    buffers = make_buffers(twin)
    # Row 0 is slot 2: the first 3 tokens of its prompt. Row 1 is slot 0, with one draft.
    inputs = prepare(twin, buffers, [2, 0], [0, 3, 5], [0, 1, 3])
    assert isinstance(inputs, twin.StepInputs)
    assert inputs.block_tables[0].tolist() == [[7, 8, 0, 0], [3, 4, 5, 6], [0, 0, 0, 0]]
    assert inputs.positions.tolist() == [0, 1, 2, 6, 7, 0, 0]
    assert inputs.slot_mappings.tolist() == [[14, 15, 16, 12, 13, -1, -1]]
    assert inputs.input_ids.tolist() == [10, 11, 12, 50, 51, 0, 0]
    assert inputs.logits_indices.tolist() == [2, 3, 4]
    assert inputs.seq_lens.tolist() == [3, 8, 0]
    assert inputs.idx_mapping.tolist() == [2, 0, -1]
    assert inputs.query_start_loc.tolist() == [0, 3, 5, 5]
    assert inputs.cu_num_logits.tolist() == [0, 1, 3, 3]
    assert buffers.next_prefill_tokens.tolist() == [[0, 0, 13]]


def test_a_smaller_step_leaves_nothing_of_a_larger_one(twin: Twin) -> None:
    buffers = make_buffers(twin, sliding_window_reach=[3])
    prepare(twin, buffers, [2, 0], [0, 3, 5], [0, 1, 3])
    inputs = prepare(twin, buffers, [0], [0, 1], [0, 1])
    # Of 6 computed tokens the last 3 are seen: block 3 is before them.
    assert inputs.block_tables[0].tolist() == [[0, 4, 5, 6], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert inputs.slot_mappings.tolist() == [[12, *[-1] * 6]]
    assert inputs.seq_lens.tolist() == [7, 0, 0]
    assert inputs.input_ids.tolist() == [50, 11, 12, 50, 51, 0, 0]  # past the tokens they stay


@pytest.mark.parametrize(
    ("rows", "options", "error", "text"),
    [
        (([3], [0, 1], [0, 1]), {}, IndexError, r"idx_mapping\[0\] is 3, expected -1 to 2"),
        (([0, 0], [0, 1, 2], [0, 1, 2]), {}, ValueError, "of another row too"),
        (([0], [0, 2, 1], [0, 3]), {}, ValueError, "cu_num_logits"),
        (([0], [0, 9], [0, 1]), {"num_tokens_padded": 9}, ValueError, "num_tokens_padded is 9"),
        (([0], [0, 1], [0, 1]), {"num_reqs_padded": 0}, ValueError, "num_reqs_padded is 0"),
        (([0], [0, 3], [0, 3]), {}, ValueError, r"positions\[2\] is 8"),
    ],
)
def test_what_is_refused_changes_nothing(twin: Twin, rows, options, error, text) -> None:
    buffers = make_buffers(twin)
    with fast.checks(enabled=True), pytest.raises(error, match=text):
        prepare(twin, buffers, *rows, **options)
    assert buffers.idx_mapping.tolist() == [-1, -1, -1]
    assert not buffers.positions.any()
    assert not buffers.block_tables.get_dummy_block_tables(3)[0].any()
    inputs = prepare(twin, buffers, [0], [0, 1], [0, 1])  # what was staged is there
    assert inputs.block_tables[0].tolist()[0] == [3, 4, 5, 6]
