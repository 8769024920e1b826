"""Compute how much of each sequence a context-parallel rank holds."""

import torch

from fast._checks import INT32, check_entries, check_int, check_minimum, check_product, check_tensor
from fast._native.context_parallel import count_local_tokens, fill_local_tokens
from fast._native.memory import check_rows_out, check_targets, to_host
from fast.checked_mode import is_checked
from fast.kernels import context_parallel as kernels
from fast.launch import launch_threads, uses_kernels
from fast.operators import check_not_traced, in_graph, is_traced, operator
from fast.slots import flat, flat_words


@operator
def get_dcp_local_seq_lens(
    seq_lens: torch.Tensor,
    dcp_size: int = 1,
    dcp_rank: int | None = None,
    cp_kv_cache_interleave_size: int = 1,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Count the positions of each sequence that a context-parallel rank holds, or each rank.

    On a GPU the call does not synchronise, except in checked mode, and can be captured into a CUDA
    graph. In a traced graph it is one operator (`fast.operators`). Only checked mode rejects
    negative lengths, and an `out` that shares memory with `seq_lens`.

    Definition: `reference.get_dcp_local_seq_lens`.
    """
    traced = is_traced()
    is_on_host = not traced and isinstance(seq_lens, torch.Tensor) and not uses_kernels(seq_lens)
    if not is_on_host or out is not None or is_checked():  # otherwise the loop's caller checks it
        check_tensor("seq_lens", seq_lens, torch.int32, 1)
    size = check_int("dcp_size", dcp_size)
    interleave = check_int("cp_kv_cache_interleave_size", cp_kv_cache_interleave_size)
    check_product("dcp_size", size, "cp_kv_cache_interleave_size", interleave)
    rank = 0 if dcp_rank is None else check_int("dcp_rank", dcp_rank, 0, size - 1)
    if traced:
        wanted = None if dcp_rank is None else rank
        made = in_graph("get_dcp_local_seq_lens", seq_lens, size, wanted, interleave, out=out)
        return made if out is None else made[: len(seq_lens)]
    if is_checked():
        check_minimum("seq_lens", to_host("seq_lens", seq_lens), 0)

    if out is None and is_on_host:
        return count_local_tokens(seq_lens, size, None if dcp_rank is None else rank, interleave)
    num_reqs, ranks = seq_lens.shape[0], size if dcp_rank is None else 1
    shape = (num_reqs, size) if dcp_rank is None else (num_reqs,)
    if out is not None:
        check_rows_out(
            out, INT32, shape, {"seq_lens": seq_lens}, seq_lens.device, may_be_longer=True
        )
    if not is_on_host:
        local = seq_lens.new_empty(shape) if out is None else out
        _count_on_device(seq_lens, num_reqs, size, (rank, ranks), interleave, local)
        return local if out is None else local[:num_reqs]
    wanted = None if dcp_rank is None else rank
    return count_local_tokens(seq_lens, size, wanted, interleave, out)[:num_reqs]


def prepare_dcp_local_seq_lens(
    dcp_local_seq_lens: torch.Tensor,
    seq_lens: torch.Tensor,
    num_reqs: int,
    dcp_size: int,
    dcp_rank: int,
    cp_interleave: int,
    *,
    num_reqs_padded: int | None = None,
) -> torch.Tensor:
    """Write how many positions of each sequence a context-parallel rank holds to a buffer.

    On a GPU the call does not synchronise, except in checked mode, and can be captured into a CUDA
    graph. Only checked mode rejects negative lengths and shared memory.

    Definition: `reference.prepare_dcp_local_seq_lens`.
    """
    check_not_traced("prepare_dcp_local_seq_lens")
    count = check_int("num_reqs", num_reqs, 0)
    local = dcp_local_seq_lens
    check_entries("dcp_local_seq_lens", local, INT32, 1, count)
    check_entries("seq_lens", seq_lens, INT32, 1, count, local.device)
    if is_checked():
        check_minimum("seq_lens", to_host("seq_lens", seq_lens)[:count], 0)
    size = check_int("dcp_size", dcp_size)
    rank = check_int("dcp_rank", dcp_rank, 0, size - 1)
    interleave = check_int("cp_interleave", cp_interleave)
    check_product("dcp_size", size, "cp_interleave", interleave)
    end = local.shape[0]
    if num_reqs_padded is not None:
        end = check_int("num_reqs_padded", num_reqs_padded, count, end)
    on_device = uses_kernels(local)
    if on_device or is_checked():  # otherwise the loop's caller checks what is written
        check_targets({"dcp_local_seq_lens": local}, {"seq_lens": seq_lens})

    if not on_device:
        fill_local_tokens(local, seq_lens, count, size, rank, interleave)
        return local[:end]
    _count_on_device(seq_lens, count, size, (rank, 1), interleave, local)
    return local[:end]


def _count_on_device(
    seq_lens: torch.Tensor,
    num_reqs: int,
    size: int,
    ranks: tuple[int, int],
    interleave: int,
    local: torch.Tensor,
) -> None:
    """Write the tokens of some ranks, given by the first and their number, and 0 for padding."""
    torch.autograd.graph.increment_version(local)  # torch does not see a kernel's writes
    launch_threads(
        kernels.count_local_tokens,
        len(local),
        1,
        *flat_words("seq_lens", seq_lens),
        num_reqs,
        size,
        *ranks,
        interleave,
        len(local),
        flat(local),
    )
