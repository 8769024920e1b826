"""Context parallelism: how much of each sequence a rank holds."""

from __future__ import annotations

import numpy as np

from reference._checks import (
    MAX_INT32,
    Int32Array,
    check_array,
    check_int,
    check_not_negative,
    check_product,
    check_rows_out,
    check_size,
    check_written,
)


def get_dcp_local_seq_lens(
    seq_lens: Int32Array,
    dcp_size: int = 1,
    dcp_rank: int | None = None,
    cp_kv_cache_interleave_size: int = 1,
    *,
    out: Int32Array | None = None,
) -> Int32Array:
    """Count the positions of each sequence that one context-parallel rank, or each rank, holds.

    A rank holds the positions `p` with `p // interleave % dcp_size == rank`. The local length of a
    sequence is the number of its positions `0 .. s_i - 1` that the rank holds.

    Args:
        seq_lens: int32[num_reqs], in tokens, none negative.
        dcp_size: Number of ranks.
        dcp_rank: The rank, or None for all.
        cp_kv_cache_interleave_size: Consecutive positions that stay on one rank; times `dcp_size`
            at most 2**31 - 1.
        out: int32 of the result's shape or with more rows, the array to write to; None: a new one.
            Rows past `num_reqs` are filled with 0. It must be contiguous and share no memory with
            `seq_lens`.

    Returns:
        A new int32[num_reqs] for one rank, or int32[num_reqs, dcp_size] for all ranks. With `out`,
        its first `num_reqs` rows.

    Raises:
        TypeError: An argument of the wrong type or dtype.
        ValueError: A size below 1, a rank that does not exist, a negative length; an `out` that has
            another shape, is not contiguous, is read-only, or shares memory with the input. Nothing
            is written.

    Example:
        >>> import numpy as np
        >>> seq_lens = np.array([5, 8], np.int32)
        >>> get_dcp_local_seq_lens(seq_lens, 2, 0, cp_kv_cache_interleave_size=2).tolist()
        [3, 4]
        >>> get_dcp_local_seq_lens(seq_lens, 2, cp_kv_cache_interleave_size=2).tolist()
        [[3, 2], [4, 4]]

    Source: the definition is kvtwin's own; the names are vLLM's.
    """
    lengths: list[int] = check_array("seq_lens", seq_lens, np.int32, ndim=1).tolist()
    check_not_negative("seq_lens", lengths)
    size = check_size("dcp_size", dcp_size)
    interleave = check_size("cp_kv_cache_interleave_size", cp_kv_cache_interleave_size)
    check_product("dcp_size", size, "cp_kv_cache_interleave_size", interleave)
    ranks = range(size)
    shape: tuple[int, ...] = (len(lengths), size)
    if dcp_rank is not None:
        rank = check_int("dcp_rank", dcp_rank, 0, size - 1)
        ranks, shape = range(rank, rank + 1), (len(lengths),)
    if out is not None:
        check_rows_out(out, np.dtype(np.int32), shape, [seq_lens], may_be_longer=True)

    counted = [
        _local_length(length, rank, size, interleave) for length in lengths for rank in ranks
    ]
    local_lengths = np.array(counted, dtype=np.int32).reshape(shape)
    if out is None:
        return local_lengths
    out[:] = 0
    out[: len(lengths)] = local_lengths
    return out[: len(lengths)]


def prepare_dcp_local_seq_lens(
    dcp_local_seq_lens: Int32Array,
    seq_lens: Int32Array,
    num_reqs: int,
    dcp_size: int,
    dcp_rank: int,
    cp_interleave: int,
    *,
    num_reqs_padded: int | None = None,
) -> Int32Array:
    """Write how many positions of each sequence a context-parallel rank holds to a buffer.

    Args:
        dcp_local_seq_lens: int32[at least num_reqs], written: what `get_dcp_local_seq_lens` returns
            for the first `num_reqs` lengths, then 0 to its end. It must be contiguous and share no
            memory with `seq_lens`.
        seq_lens: int32[at least num_reqs], in tokens; later entries are not read.
        num_reqs: Number of sequences.
        dcp_size: Number of ranks.
        dcp_rank: The rank.
        cp_interleave: Consecutive positions that stay on one rank; times `dcp_size` at most
            2**31 - 1.
        num_reqs_padded: How many entries to return, at least `num_reqs`; None: all.

    Returns:
        The first `num_reqs_padded` entries of `dcp_local_seq_lens`, a view.

    Raises:
        TypeError: An argument of the wrong type or dtype.
        ValueError: More sequences than lengths or entries, a padded number outside the entries, a
            size below 1, a rank that does not exist, a negative length; a buffer that is not
            contiguous, is read-only or shares memory. Nothing is written.

    Example:
        >>> import numpy as np
        >>> buffer, seq_lens = np.full(4, 77, np.int32), np.array([5, 8, 9], np.int32)
        >>> prepare_dcp_local_seq_lens(buffer, seq_lens, 2, 2, 0, 2, num_reqs_padded=3).tolist()
        [3, 4, 0]
        >>> buffer.tolist()
        [3, 4, 0, 0]

    Source: the definition is kvtwin's own; the name is that of vLLM's second runner.
    """
    count = check_int("num_reqs", num_reqs, 0, MAX_INT32)
    check_array("dcp_local_seq_lens", dcp_local_seq_lens, np.int32, 1, count)
    check_array("seq_lens", seq_lens, np.int32, 1, count)
    check_not_negative("seq_lens", seq_lens[:count].tolist())
    size = check_size("dcp_size", dcp_size)
    rank = check_int("dcp_rank", dcp_rank, 0, size - 1)
    interleave = check_size("cp_interleave", cp_interleave)
    check_product("dcp_size", size, "cp_interleave", interleave)
    end = len(dcp_local_seq_lens)
    if num_reqs_padded is not None:
        end = check_int("num_reqs_padded", num_reqs_padded, count, end)
    check_written({"dcp_local_seq_lens": dcp_local_seq_lens}, [seq_lens])

    dcp_local_seq_lens[:] = 0
    for i in range(count):
        dcp_local_seq_lens[i] = _local_length(int(seq_lens[i]), rank, size, interleave)
    return dcp_local_seq_lens[:end]


def _local_length(length: int, rank: int, size: int, interleave: int) -> int:
    """Count the rank's positions in the complete rounds of all ranks and in the last one."""
    whole_rounds = length // (size * interleave)
    begun_round = length % (size * interleave)
    in_begun_round = begun_round - rank * interleave
    return whole_rounds * interleave + min(max(in_begun_round, 0), interleave)
