"""Bugs put into `fast` by hand: the replay finds each, and says where.

Each bug is made of the function whose place it takes.
"""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from planted_bugs import Function, after

import fast
from tools import replay


def increment(element: Callable[[Any], torch.Tensor]) -> Callable[[Function], Function]:
    """Add one to an element of what the function returns."""
    return after(lambda result: element(result).add_(1) and None)


def before(change: Callable[..., Any]) -> Callable[[Function], Function]:
    """Change the keyword arguments."""

    def make_bug(function: Function) -> Function:
        return lambda *args, **kwargs: function(*args, **{**kwargs, **change(kwargs)})

    return make_bug


def never(_: Function) -> Function:
    """Do nothing."""
    return lambda *_args, **_kwargs: False


def leave_a_tail(compute: Function) -> Function:
    """Leave in the persistent buffer, past the tokens, what the step before wrote there."""
    views: list[torch.Tensor] = []

    def whole(slots: torch.Tensor) -> torch.Tensor:
        return slots.as_strided((len(slots), slots.stride(0)), slots.stride())

    def broken(*args: Any) -> Any:  # noqa: ANN401  # takes the method's place
        old = whole(views[-1]).clone() if views else None
        views.append(compute(*args))
        num_tokens = views[-1].shape[1]
        if old is not None:
            whole(views[-1])[:, num_tokens:] = old[:, num_tokens:]
        return views[-1]

    return broken


def without_clearing(get_dummy: Function) -> Function:
    """Hand out the dummy tables as they are."""
    whole: list[Any] = []

    def broken(tables: Any, num_reqs: int) -> Any:  # noqa: ANN401  # takes the method's place
        if not whole:
            whole.append(get_dummy(tables, tables.max_num_reqs))
        return tuple(table[:num_reqs] for table in whole[0])

    return broken


def never_overwriting(append: Function) -> Function:
    """Append also what should become the whole row."""
    return lambda tables, rows, ends, ids, overwrite: append(
        tables, rows, ends, ids, [False] * len(overwrite)
    )


def for_padding_too(gather: Function) -> Function:
    """Gather row 0 for padded requests."""
    return lambda tables, idx_mapping: gather(tables, idx_mapping.clamp(min=0))


def past_the_result(compute: Function) -> Function:
    """Write no more of the output than there are positions."""

    def broken(*args: Any, out: Any = None, **kwargs: Any) -> Any:  # noqa: ANN401  # as above
        slots = compute(*args, **kwargs)
        if out is not None:
            out[: len(slots)] = slots
        return slots

    return broken


def shifting_a_view(_: Function) -> Function:
    """Shift the starts in the batch itself."""

    def broken(query_start_loc: torch.Tensor, requests: slice) -> torch.Tensor:
        starts = query_start_loc[requests.start : requests.stop + 1]
        return starts.sub_(starts[0].clone())

    return broken


def not_enough(copy: Function) -> Function:
    """Copy an entry less than wanted."""

    def broken(buffer: Any, n: int) -> Any:  # noqa: ANN401  # takes the method's place
        copy(buffer, n - 1)
        return buffer.gpu[:n]

    return broken


def with_a_request_too_many(unpadded: Function) -> Function:
    """Cut one request behind the place."""
    return lambda metadata, num_tokens, num_reqs: unpadded(
        metadata, num_tokens, min(num_reqs + 1, metadata.num_reqs)
    )


def of_the_other_rank(function: Function) -> Function:
    """Count what the other rank holds."""
    return lambda lens, size, rank=None, *rest, **keywords: function(
        lens, size, None if rank is None else size - 1 - rank, *rest, **keywords
    )


def refusing(_: Function) -> Function:
    """Refuse everything."""

    def broken(*_args: object, **_kwargs: object) -> None:
        raise ValueError("refused")

    return broken


def with_three_regions(reorder: Function) -> Function:
    """Know nothing of the order with four regions."""
    return lambda *args, regions=3, **kwargs: reorder(*args, **kwargs) if regions else None


def moving_what_stands_right(reorder: Function) -> Function:
    """Swap the first two requests when nothing has to move."""

    def broken(batch: Any, *args: Any, **kwargs: Any) -> bool:  # noqa: ANN401  # as above
        moved: bool = reorder(batch, *args, **kwargs)
        if not moved and len(batch.req_ids) > 1:
            batch.swap_states(0, 1)
        return moved

    return broken


BUGS = [
    ("BlockTables.append_block_ids", never_overwriting, "rows"),
    ("BlockTables.move_row", lambda _: fast.BlockTables.swap_rows, "rows"),
    ("BlockTables.swap_rows", never, "swapped_rows"),
    ("BlockTables.clear_row", never, "rows"),
    ("BlockTables.gather_block_tables", increment(lambda r: r[-1][0, 0]), "rows"),
    ("BlockTables.gather_block_tables", for_padding_too, "block_tables"),
    ("BlockTables.compute_slot_mappings", increment(lambda r: r[-1, 0]), "slot_mappings"),
    ("BlockTables.compute_slot_mappings", leave_a_tail, "all_slot_mappings"),
    ("BlockTables.get_dummy_block_tables", without_clearing, "dummy_block_tables"),
    (
        "compute_slot_mapping",
        before(lambda _: {"cp_kv_cache_interleave_size": 1}),
        "cp_slot_mappings",
    ),
    ("compute_slot_mapping", before(lambda _: {"kernel_block_size": None}), "kernel_slot_mappings"),
    ("compute_slot_mapping", past_the_result, "kernel_slot_mapping_outputs"),
    ("map_to_kernel_blocks", after(lambda r: r.flip(-1)), "kernel_block_tables"),
    ("CpuGpuBuffer.copy_to_gpu", not_enough, ""),
    ("CpuGpuBuffer.copy_to_cpu", lambda _: lambda b, n: b.cpu[:n], "sampled_tokens_cpu"),
    ("CommonAttentionMetadata", before(lambda _: {"causal": False}), r"metadata\[0\].causal"),
    ("CommonAttentionMetadata.validate", refusing, "CommonAttentionMetadata.validate"),
    ("CommonAttentionMetadata.unpadded", with_a_request_too_many, "unpadded"),
    ("split_decodes_and_prefills", after(lambda r: (*r[:2], *r[:1:-1])), "decodes_and_prefills"),
    (
        "split_decodes_and_prefills",
        before(lambda _: {"require_uniform": False}),
        "uniform_decodes_and_prefills",
    ),
    (
        "split_decodes_prefills_and_extends",
        after(lambda r: (r[0], 0, r[1] + r[2], r[3], 0, r[4] + r[5])),
        "decodes_extends_and_prefills",
    ),
    ("reorder_batch_to_split_decodes_and_prefills", never, "moved"),
    (
        "reorder_batch_to_split_decodes_and_prefills",
        with_three_regions,
        "(moved_by|order_of)_four_regions",
    ),
    ("reorder_batch_to_split_decodes_and_prefills", moving_what_stands_right, "order"),
    ("create_ubatch_slices", after(lambda r: r[:-1]), r"len\(micro_batch_slices\)"),
    ("UBatchSlice.is_empty", lambda _: lambda _slice: True, "micro_batch_sizes"),
    ("slice_query_start_locs", shifting_a_view, r"metadata\[0\].query_start_loc"),
    (
        "_make_metadata_with_slice",
        increment(lambda r: r.num_computed_tokens_cpu[-1]),
        "middle_of_longest",
    ),
    ("split_attn_metadata", increment(lambda r: r[-1].seq_lens[0]), r"micro_batches\[0\]\[1\]"),
    (
        "make_local_attention_virtual_batches",
        increment(lambda r: r.seq_lens[0]),
        r"small_chunks\[0\].seq_lens",
    ),
    ("get_dcp_local_seq_lens", of_the_other_rank, r"metadata\[0\].dcp_local_seq_lens"),
    ("get_dcp_local_seq_lens", after(lambda r: r.flip(-1) if r.dim() > 1 else r), "cp_seq_lens"),
    ("CacheConfig", before(lambda _: {"gpu_memory_utilization": 0.5}), "config"),
]


@pytest.mark.parametrize(
    ("name", "make_bug", "field"), BUGS, ids=[f"{name}-{field}" for name, _, field in BUGS]
)
def test_a_bug_is_found(
    name: str,
    make_bug: Callable[[Function], Function],
    field: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A bug ends the replay with status 1 and the step, the field and the request."""
    owner: object = fast
    for part in name.split(".")[:-1]:
        owner = getattr(owner, part)
    attribute = name.rpartition(".")[2]
    monkeypatch.setattr(owner, attribute, make_bug(getattr(owner, attribute)))
    monkeypatch.setattr(fast, "warmup", lambda: None)  # it would meet the bug first
    assert replay.main(["--steps", "150"]) == 1
    printed = capsys.readouterr().out
    line = printed.splitlines()[-1]
    assert re.fullmatch(
        rf"step \d+: {field}.* = .*, but should be .* \(of (request-\d+.*|padding)\)", line
    )
    assert re.search(r"mismatches +│ +1 ", printed)
