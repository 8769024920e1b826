"""Attention in float64: over all keys, over a paged cache, merged from parts.

`paged_attention` finds keys and values as a kernel does, only through the block table, and
independently of `access` and `compute_slot_mapping`.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from reference._checks import (
    Array,
    Int64Array,
    check_array,
    check_int,
    check_is_array,
    check_ndim,
    check_size,
    describe,
)
from reference.block_table import PAD_SLOT_ID
from reference.metadata import CommonAttentionMetadata, validate_metadata

Float64Array: TypeAlias = NDArray[np.float64]

_FLOATS = ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2")
"""The dtypes of queries, keys and values, by name."""

_QUIET: Any = {"invalid": "ignore", "over": "ignore"}
"""NumPy does not warn when arithmetic on infinities and NaNs gives NaN."""


def dense_attention(
    q: Array, k: Array, v: Array, mask: NDArray[np.bool_], *, scale: float | None = None
) -> tuple[Float64Array, Float64Array]:
    """Compute the attention of each query over the keys that it may see.

    Head `h` of a query uses head `h // (num_heads / num_kv_heads)` of the keys and values. Its
    score of a key is their dot product times `scale`; its output is the mean of the values of the
    keys that it may see, weighted with the exponentials of their scores; its `lse` is the logarithm
    of the sum of these exponentials. Keys and values that the mask excludes are not read: they may
    be NaN.

    Args:
        q: [num_tokens, num_heads, head_size], queries; like `k` and `v`, of any float dtype.
        k: [num_keys, num_kv_heads, head_size], keys.
        v: [num_keys, num_kv_heads, head_size_v], values.
        mask: bool[num_tokens, num_keys], whether a query may see a key.
        scale: The factor of the dot products; None: `1 / sqrt(head_size)`.

    Returns:
        The output, float64[num_tokens, num_heads, head_size_v], and the log-sum-exp,
        float64[num_tokens, num_heads]; 0 and -inf for a query that may see no key.

    Raises:
        TypeError: An argument of the wrong type or dtype.
        ValueError: Shapes that do not fit together, a number of query heads that is not a multiple
            of that of the keys, a scale that is not finite.

    Example:
        >>> import numpy as np
        >>> q, k = np.zeros((2, 1, 1)), np.array([[[7.0]], [[8.0]], [[np.nan]]])
        >>> mask = np.array([[True, True, False], [False, False, False]])
        >>> output, lse = dense_attention(q, k, k, mask)
        >>> output[:, 0, 0].tolist(), lse[:, 0].tolist() == [np.log(2), -np.inf]
        ([7.5, 0.0], True)

    Source: the definition is kvtwin's own; attention is that of "Attention Is All You Need".
    """
    num_tokens, num_heads, head_size = _check_floats("q", q, ndim=3).shape
    num_keys, num_kv_heads, _ = _check_floats("k", k, ndim=3).shape
    _check_shape("k", k, (None, None, head_size), "the head size of q")
    _check_shape("v", _check_floats("v", v, ndim=3), (num_keys, num_kv_heads, None), "as k has")
    group = _check_heads(num_heads, num_kv_heads)
    check_array("mask", mask, np.bool_, ndim=2)
    why = "a row for each of q, a column for each of k"
    _check_shape("mask", mask, (num_tokens, num_keys), why)
    scale = _check_scale(scale, head_size)

    output = np.zeros((num_tokens, num_heads, v.shape[2]))
    lse = np.full((num_tokens, num_heads), -np.inf)
    for token in range(num_tokens):
        seen = [key for key in range(num_keys) if mask[token, key]]
        if not seen:
            continue
        for head in range(num_heads):
            query = q[token, head].astype(np.float64)
            keys = k[seen, head // group].astype(np.float64)
            values = v[seen, head // group].astype(np.float64)
            with np.errstate(**_QUIET):
                scores = scale * (keys @ query)
            output[token, head], lse[token, head] = _mean(scores, values)
    return output, lse


def _mean(scores: Float64Array, values: Float64Array) -> tuple[Float64Array, float]:
    """Return the mean of values weighted with exp(scores), and the log of the sum of weights."""
    with np.errstate(**_QUIET):
        greatest = scores.max()
        weights = np.exp(scores - greatest)
        total = weights.sum()
        return weights @ values / total, greatest + math.log(total)


def paged_attention(
    q: Array,
    kv_cache: Array,
    metadata: CommonAttentionMetadata,
    *,
    scale: float | None = None,
    sliding_window: int | None = None,
    cp_world_size: int = 1,
    cp_rank: int = 0,
    cp_kv_cache_interleave_size: int = 1,
) -> tuple[Float64Array, Float64Array]:
    """Compute the attention of a batch's tokens over the keys and values in a paged cache.

    The `j`-th token of request `i` is at position `s_i - q_i + j`. It sees the positions up to its
    own, or only the last `sliding_window` of these, its own included; if the batch is not causal,
    it sees the whole sequence. Of these the rank holds the positions `p` with
    `p // interleave % cp_world_size == cp_rank`, one after another in the blocks that the request's
    row lists. Nothing else of the table and the cache is read, and `slot_mapping` is not read.

    Args:
        q: [at least num_actual_tokens, num_heads, head_size], the queries, of any float dtype.
        kv_cache: [2, num_blocks, block_size, num_kv_heads, head_size], keys and values, of any
            float dtype, in blocks of the size that the table lists (kernel blocks, if it lists
            those).
        metadata: The batch, valid; `seq_lens` are global.
        scale: The factor of the dot products; None: `1 / sqrt(head_size)`.
        sliding_window: How many positions a token sees; for causal batches only. None: all.
        cp_world_size: Number of context-parallel ranks.
        cp_rank: The rank that `kv_cache` belongs to.
        cp_kv_cache_interleave_size: Consecutive positions that stay on one rank.

    Returns:
        The output, float64 of the shape of `q`, and the log-sum-exp, float64[as many, num_heads]; 0
        and -inf for a token that sees no key, and for padding.

    Raises:
        TypeError: An argument, or a field of the metadata, of the wrong type or dtype.
        ValueError: Shapes that do not fit together, a size below 1, a rank that does not exist, a
            window for a batch that is not causal, an invalid metadata, a sequence with blocks
            outside its row, a block to be read that is not in the cache.

    Example:
        >>> import numpy as np
        >>> starts, lens = np.array([0, 2], np.int32), np.array([3], np.int32)
        >>> computed, row = np.array([1], np.int32), np.array([[1, 0]], np.int32)
        >>> batch = CommonAttentionMetadata(
        ...     starts, starts, lens, lens, computed, 1, 2, 2, 3, row, np.array([3, 0])
        ... )
        >>> cache = np.array([6.0, np.nan, 1.0, 2.0]).reshape(1, 2, 2, 1, 1).repeat(2, axis=0)
        >>> output, _ = paged_attention(np.zeros((2, 1, 1)), cache, batch)
        >>> output[:, 0, 0].tolist()  # the means of 1 and 2, and of 1, 2 and 6
        [1.5, 3.0]

    Source: the definition is kvtwin's own; paged attention is that of vLLM's paper.
    """
    num_tokens, num_heads, head_size = _check_floats("q", q, ndim=3).shape
    _, num_blocks, block_size, num_kv_heads, _ = _check_kv_cache(kv_cache).shape
    _check_shape("kv_cache", kv_cache, (None, None, None, None, head_size), "the head size of q")
    _check_heads(num_heads, num_kv_heads)
    scale = _check_scale(scale, head_size)
    validate_metadata(metadata)
    if num_tokens < metadata.num_actual_tokens:
        raise ValueError(f"q has {num_tokens} rows, but the batch {metadata.num_actual_tokens}")
    window = None if sliding_window is None else check_size("sliding_window", sliding_window)
    if window is not None and not metadata.causal:
        raise ValueError(f"sliding_window is {window}, but must be None of a non-causal batch")
    world = check_size("cp_world_size", cp_world_size)
    rank = check_int("cp_rank", cp_rank, 0, world - 1)
    interleave = check_size("cp_kv_cache_interleave_size", cp_kv_cache_interleave_size)

    output = np.zeros((num_tokens, num_heads, head_size))
    lse = np.full((num_tokens, num_heads), -np.inf)
    starts = metadata.query_start_loc.tolist()
    for request, seq_len in enumerate(metadata.seq_lens.tolist()):
        held = [p for p in range(seq_len) if p // interleave % world == rank]
        num_columns = metadata.block_table_tensor.shape[1]
        if len(held) > num_columns * block_size:
            raise ValueError(
                f"seq_lens[{request}] is {seq_len} and needs {-(-len(held) // block_size)} blocks "
                f"of {block_size}, but row {request} of block_table_tensor has {num_columns}"
            )
        first_position = seq_len - (starts[request + 1] - starts[request])
        for position in range(first_position, seq_len):
            last = position if metadata.causal else seq_len - 1
            first = 0 if window is None else position - window + 1
            blocks, offsets = [], []
            for n, held_position in enumerate(held):
                if first <= held_position <= last:
                    name = f"block_table_tensor[{request}, {n // block_size}]"
                    block = metadata.block_table_tensor[request, n // block_size]
                    blocks.append(check_int(name, block, 0, num_blocks - 1))
                    offsets.append(n % block_size)
            token = starts[request] + position - first_position
            output[[token]], lse[[token]] = dense_attention(
                q[[token]],
                kv_cache[0, blocks, offsets],
                kv_cache[1, blocks, offsets],
                np.full((1, len(blocks)), fill_value=True),
                scale=scale,
            )
    return output, lse


def merge_attention_states(outputs: Array, lses: Array) -> tuple[Float64Array, Float64Array]:
    """Merge attention over parts of the keys into attention over all of them.

    The merged output is the mean of the parts' outputs, weighted with the exponentials of their
    `lse`; the merged `lse` is the logarithm of the sum of these weights. A part whose `lse` is -inf
    saw no key, and its output is not read. A part whose `lse` is NaN makes the result NaN.

    Args:
        outputs: [num_parts, num_tokens, num_heads, head_size], of any float dtype.
        lses: [num_parts, num_tokens, num_heads], of any float dtype.

    Returns:
        The output, float64[num_tokens, num_heads, head_size], and the log-sum-exp,
        float64[num_tokens, num_heads]; 0 and -inf where no part saw a key.

    Raises:
        TypeError: An argument of the wrong type or dtype.
        ValueError: Shapes that do not fit together.

    Example:
        >>> import numpy as np
        >>> outputs = np.array([7.0, 10.0, np.nan]).reshape(3, 1, 1, 1)
        >>> lses = np.array([np.log(2.0), 0.0, -np.inf]).reshape(3, 1, 1)
        >>> output, lse = merge_attention_states(outputs, lses)
        >>> float(output.item()), bool(np.isclose(lse.item(), np.log(3)))
        (8.0, True)

    Source: the definition is kvtwin's own; the merge is that of online softmax.
    """
    num_parts, num_tokens, num_heads, head_size = _check_floats("outputs", outputs, ndim=4).shape
    shape = (num_parts, num_tokens, num_heads)
    _check_shape("lses", _check_floats("lses", lses, ndim=3), shape, "as outputs has")

    output = np.zeros((num_tokens, num_heads, head_size))
    lse = np.full((num_tokens, num_heads), -np.inf)
    for token in range(num_tokens):
        for head in range(num_heads):
            parts = [part for part in range(num_parts) if lses[part, token, head] != -np.inf]
            if parts:
                scores = lses[parts, token, head].astype(np.float64)
                values = outputs[parts, token, head].astype(np.float64)
                output[token, head], lse[token, head] = _mean(scores, values)
    return output, lse


def write_kv_cache(key: Array, value: Array, kv_cache: Array, slot_mapping: Int64Array) -> None:
    """Write the keys and values of a step's tokens to their slots in a paged cache.

    Args:
        key: [num_tokens, num_kv_heads, head_size], of the dtype of the cache.
        value: The values, of the same shape and dtype.
        kv_cache: [2, num_blocks, block_size, num_kv_heads, head_size], keys and values, of any
            float dtype and strides. It is written.
        slot_mapping: int64[num_tokens], in slots; `PAD_SLOT_ID`: the token is written nowhere.

    Raises:
        TypeError: An argument of the wrong type or dtype.
        ValueError: Shapes that do not fit together, a cache that is read-only or shares memory with
            `key` or `value`, a slot outside the cache, two tokens with the same slot. After an
            error nothing is written.

    Example:
        >>> import numpy as np
        >>> cache, keys = np.zeros((2, 2, 2, 1, 1)), np.array([7.0, 8.0, 9.0]).reshape(3, 1, 1)
        >>> write_kv_cache(keys, -keys, cache, np.array([3, -1, 0]))
        >>> cache[0].ravel().tolist(), cache[1, 1, 1].item()
        ([9.0, 0.0, 0.0, 7.0], -7.0)

    Source: the definition is kvtwin's own.
    """
    _, num_blocks, block_size, num_kv_heads, head_size = _check_kv_cache(kv_cache).shape
    if not kv_cache.flags.writeable:
        raise ValueError("kv_cache is read-only, but is to be written")
    num_tokens = len(check_array("slot_mapping", slot_mapping, np.int64, ndim=1))
    for name, array in (("key", key), ("value", value)):
        shape = (num_tokens, num_kv_heads, head_size)
        _check_shape(name, _check_floats(name, array, ndim=3), shape, "for the slots and kv_cache")
        if array.dtype != kv_cache.dtype:
            raise TypeError(f"{name} has dtype {array.dtype}, but must have {kv_cache.dtype}")
        if np.shares_memory(array, kv_cache):
            raise ValueError(f"{name} shares memory with kv_cache, but must not")
    owners: dict[int, int] = {}
    for token in range(num_tokens):
        name = f"slot_mapping[{token}]"
        slot = check_int(name, slot_mapping[token], PAD_SLOT_ID, num_blocks * block_size - 1)
        if slot in owners:
            raise ValueError(f"{name} is {slot}, but that is the slot of token {owners[slot]}")
        if slot != PAD_SLOT_ID:
            owners[slot] = token

    for slot, token in owners.items():
        kv_cache[0, slot // block_size, slot % block_size] = key[token]
        kv_cache[1, slot // block_size, slot % block_size] = value[token]


def _check_floats(name: str, value: object, ndim: int) -> Array:
    """Return an array of floats with `ndim` dimensions."""
    array = check_is_array(name, value)
    if array.dtype.name not in _FLOATS or not array.dtype.isnative:
        raise TypeError(f"{name} must be {' or '.join(_FLOATS)}, got {array.dtype}")
    check_ndim(name, array, ndim)
    return array


def _check_shape(name: str, array: Array, wanted: tuple[int | None, ...], why: str) -> None:
    """Check the lengths of an array's dimensions; None allows any length."""
    for length, wanted_length in zip(array.shape, wanted, strict=True):
        if wanted_length is not None and length != wanted_length:
            shape = ", ".join("*" if n is None else str(n) for n in wanted)
            raise ValueError(f"{name} has shape {array.shape}, but must have ({shape}), {why}")


def _check_heads(num_heads: int, num_kv_heads: int) -> int:
    """Return the number of query heads for each head of the keys and values."""
    if num_kv_heads == 0 or num_heads % num_kv_heads != 0:
        raise ValueError(f"q has {num_heads} heads, but must have a multiple of {num_kv_heads}")
    return num_heads // num_kv_heads


def _check_scale(value: object, head_size: int) -> float:
    """Return the factor of the scores: None means `1 / sqrt(head_size)`."""
    if value is None:
        if head_size == 0:
            raise ValueError("q has heads of size 0, but they must have at least 1 without a scale")
        return 1.0 / math.sqrt(head_size)
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"scale must be a number, got {describe(value)}")
    if not math.isfinite(value):
        raise ValueError(f"scale is {value}, but must be finite")
    return float(value)


def _check_kv_cache(value: object) -> Array:
    """Return a cache of keys and values: [2, num_blocks, block_size, num_kv_heads, head_size]."""
    kv_cache = _check_floats("kv_cache", value, ndim=5)
    if len(kv_cache) != 2:
        raise ValueError(
            f"kv_cache has shape {kv_cache.shape}, but must have 2, keys and values, first"
        )
    if kv_cache.shape[2] == 0:
        raise ValueError(f"kv_cache has shape {kv_cache.shape}, but must have blocks of 1 or more")
    return kv_cache
