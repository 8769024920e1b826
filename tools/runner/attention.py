"""Paged attention in torch: its metadata, and the attention of a layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import fast


@dataclass
class PagedMetadata(fast.AttentionMetadata):
    """The metadata of a batch for `PagedAttentionImpl`.

    The batch has two parts: requests of at most one token come first, and are computed together;
    the others follow one by one.

    Attributes:
        query_start_loc: int32[num_reqs + 1], each request's first token, then their number.
        query_start_loc_cpu: The same on the host.
        seq_lens: int32[num_reqs], computed and new tokens of each request.
        seq_lens_cpu: The same on the host.
        max_seq_len: An upper bound of these.
        block_table: int32[num_reqs, max_blocks], the blocks of each request.
        slot_mapping: int64[num_tokens], where the tokens' keys and values go.
        num_decodes: Requests in the first part.
        window_left: How many positions before its own a query sees; -1: all.
        scale: The factor of the scores.
    """

    query_start_loc: torch.Tensor
    query_start_loc_cpu: torch.Tensor
    seq_lens: torch.Tensor
    seq_lens_cpu: torch.Tensor
    max_seq_len: int
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    num_decodes: int
    window_left: int
    scale: float


class PagedAttentionImpl:
    """A layer's attention, through its cache.

    Args:
        scale: The factor of the scores.
        sliding_window: Keys that a query sees, its own included; None: all before it.

    Attributes:
        scale: The factor of the scores.
        sliding_window: How many positions a query sees before and after its own; None: all before.
        logits_soft_cap: Not supported.
    """

    def __init__(self, scale: float, sliding_window: int | None) -> None:
        self.scale = scale
        self.sliding_window = None if sliding_window is None else (sliding_window - 1, 0)
        self.logits_soft_cap = None

    def write(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: PagedMetadata,
    ) -> None:
        """Write the keys and values of a batch's tokens into their slots.

        Those of padding go to the null block, which no query sees. Filtering them out would
        synchronise in each layer.

        Args:
            key: [num_tokens, num_kv_heads, head_size].
            value: Likewise.
            kv_cache: [2, num_blocks, block_size, num_kv_heads, head_size].
            metadata: The batch.
        """
        block_size = kv_cache.shape[2]
        slots = metadata.slot_mapping[: len(key)]
        slots = slots.where(slots != fast.PAD_SLOT_ID, fast.NULL_BLOCK_ID * block_size)
        blocks, offsets = slots // block_size, slots % block_size
        kv_cache[0, blocks, offsets] = key
        kv_cache[1, blocks, offsets] = value

    def forward(
        self, query: torch.Tensor, kv_cache: torch.Tensor, metadata: PagedMetadata
    ) -> torch.Tensor:
        """Compute the attention of each token over its request's keys and values in the cache.

        Args:
            query: [num_tokens, num_heads, head_size].
            kv_cache: [2, num_blocks, block_size, num_kv_heads, head_size].
            metadata: The batch.

        Returns:
            [num_tokens, num_heads, head_size], zeros for padding.
        """
        output = torch.zeros_like(query)
        starts = metadata.query_start_loc_cpu.tolist()
        num_decode_tokens = starts[metadata.num_decodes]
        if num_decode_tokens:
            tokens = slice(0, num_decode_tokens)
            output[tokens] = _attend_to_decodes(query[tokens], kv_cache, metadata)
        for request in range(metadata.num_decodes, len(starts) - 1):
            tokens = slice(starts[request], starts[request + 1])
            if tokens.start < tokens.stop:
                output[tokens] = _attend_to_request(query[tokens], kv_cache, metadata, request)
        return output


def _attend_to_decodes(
    query: torch.Tensor, kv_cache: torch.Tensor, metadata: PagedMetadata
) -> torch.Tensor:
    """Attend for all requests of at most one token together, with tables as wide as the longest."""
    counts = metadata.query_start_loc[: metadata.num_decodes + 1].diff()
    requests = torch.arange(metadata.num_decodes, device=query.device)
    requests = torch.repeat_interleave(requests, counts, output_size=len(query))
    num_blocks = -(-metadata.max_seq_len // kv_cache.shape[2])
    tables = metadata.block_table[requests, :num_blocks]
    keys, values = kv_cache[:, tables].flatten(2, 3)
    positions = metadata.seq_lens[requests].unsqueeze(1) - 1
    is_seen = _is_seen(positions, keys.shape[1], metadata.window_left)
    return _attend(query.unsqueeze(1), keys, values, is_seen, metadata.scale).squeeze(1)


def _attend_to_request(
    query: torch.Tensor, kv_cache: torch.Tensor, metadata: PagedMetadata, request: int
) -> torch.Tensor:
    """Attend for one request's tokens, which are the last of its sequence."""
    seq_len = int(metadata.seq_lens_cpu[request])
    num_blocks = -(-seq_len // kv_cache.shape[2])
    keys, values = kv_cache[:, metadata.block_table[request, :num_blocks]].flatten(1, 2)
    positions = torch.arange(seq_len - len(query), seq_len, device=query.device)
    is_seen = _is_seen(positions, keys.shape[0], metadata.window_left)
    return _attend(query, keys, values, is_seen, metadata.scale)


def _is_seen(positions: torch.Tensor, num_keys: int, window_left: int) -> torch.Tensor:
    """Return [..., num_keys]: whether queries at these positions see the keys at 0, 1, 2, ..."""
    distances = positions.unsqueeze(-1) - torch.arange(num_keys, device=positions.device)
    is_seen = distances >= 0
    return is_seen if window_left < 0 else is_seen & (distances <= window_left)


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    is_seen: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Attend with grouped heads.

    Args:
        query: [..., num_queries, num_heads, head_size].
        keys: [..., num_keys, num_kv_heads, head_size].
        values: Likewise.
        is_seen: bool[..., num_queries, num_keys], whether a query sees a key.
        scale: The factor of the scores.

    Returns:
        As `query`.
    """
    # Values that no query sees may be NaN, which a weight of 0 would not hide.
    values = values.where(is_seen.any(-2)[..., None, None], 0.0)
    grouped = query.unflatten(-2, (keys.shape[-2], -1))
    scores = torch.einsum("...qhgd,...khd->...hgqk", grouped, keys) * scale
    scores = scores.where(is_seen[..., None, None, :, :], -torch.inf)
    weights = scores.softmax(-1)
    return torch.einsum("...hgqk,...khd->...qhgd", weights, values).flatten(-3, -2)
