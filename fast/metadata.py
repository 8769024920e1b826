"""What attention kernels are told of a batch."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from fast._checks import check_int
from fast.invariants import check_fields, check_values

IntArray: TypeAlias = npt.NDArray[np.integer[Any]]


@dataclass(eq=False)
class CommonAttentionMetadata:
    """A batch, as every attention backend is told of it.

    The constructor checks nothing; `validate` does. What has a name ending in `_cpu` is on the CPU
    and holds the values of the field without that ending.

    Attributes:
        query_start_loc: int32[num_reqs + 1], each request's first token, then their number.
        query_start_loc_cpu: int32[num_reqs + 1], the same.
        seq_lens: int32[num_reqs], computed and new tokens of each request.
        seq_lens_cpu: int32[num_reqs], the same.
        num_computed_tokens_cpu: int32[num_reqs], tokens that are in the cache before the step.
        num_reqs: requests, padded ones too.
        num_actual_tokens: tokens in the batch; it may count padding.
        max_query_len: an upper bound of the requests' new tokens.
        max_seq_len: an upper bound of `seq_lens`.
        block_table_tensor: int32[at least num_reqs, max_blocks_per_req], physical blocks.
        slot_mapping: int64[at least num_actual_tokens], where each token goes, in slots.
        causal: whether a token sees only what is before it.
        logits_indices_padded: int32 or int64[any], tokens whose logits are wanted, then padding.
        num_logits_indices: how many of them count.
        encoder_seq_lens: NumPy int32 or int64[num_reqs], on the host, encoder tokens.
        dcp_local_seq_lens: int32[num_reqs], tokens that this context-parallel rank holds.

    Example:
        >>> import torch
        >>> metadata = CommonAttentionMetadata(
        ...     query_start_loc=torch.tensor([0, 1, 3], dtype=torch.int32),
        ...     query_start_loc_cpu=torch.tensor([0, 1, 3], dtype=torch.int32),
        ...     seq_lens=torch.tensor([4, 2], dtype=torch.int32),
        ...     seq_lens_cpu=torch.tensor([4, 2], dtype=torch.int32),
        ...     num_computed_tokens_cpu=torch.tensor([3, 0], dtype=torch.int32),
        ...     num_reqs=2,
        ...     num_actual_tokens=3,
        ...     max_query_len=2,
        ...     max_seq_len=4,
        ...     block_table_tensor=torch.tensor([[5, 9], [7, 0]], dtype=torch.int32),
        ...     slot_mapping=torch.tensor([19, 14, 15]),
        ... )
        >>> metadata.validate(block_size=2)
        >>> metadata.unpadded(1, 1).slot_mapping
        tensor([19])

    Source: the definition is kvtwin's own; the names are vLLM's common attention metadata.
    """

    query_start_loc: torch.Tensor
    query_start_loc_cpu: torch.Tensor
    seq_lens: torch.Tensor
    seq_lens_cpu: torch.Tensor
    num_computed_tokens_cpu: torch.Tensor
    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    block_table_tensor: torch.Tensor
    slot_mapping: torch.Tensor
    causal: bool = True
    logits_indices_padded: torch.Tensor | None = None
    num_logits_indices: int | None = None
    encoder_seq_lens: IntArray | None = None
    dcp_local_seq_lens: torch.Tensor | None = None

    def unpadded(self, num_actual_tokens: int, num_actual_reqs: int) -> Self:
        """Cut the metadata to its first requests and tokens; the fields are views.

        Args:
            num_actual_tokens: tokens that are kept.
            num_actual_reqs: requests that are kept.

        Returns:
            The metadata of those; `max_*`, `causal` and the logits fields are as they were.

        Raises:
            TypeError: not an int.
            ValueError: more than there are, or fewer tokens than the requests have.

        Example:
            See the class.

        Source: the definition is kvtwin's own; the name is vLLM's.
        """
        reqs = check_int("num_actual_reqs", num_actual_reqs, 0, self.num_reqs)
        tokens = check_int("num_actual_tokens", num_actual_tokens, 0, self.num_actual_tokens)
        needed = int(self.query_start_loc_cpu[reqs])
        if tokens < needed:
            raise ValueError(
                f"num_actual_tokens is {tokens}, but the first {reqs} requests have {needed} tokens"
            )
        encoder, dcp = self.encoder_seq_lens, self.dcp_local_seq_lens
        return dataclasses.replace(
            self,
            query_start_loc=self.query_start_loc[: reqs + 1],
            query_start_loc_cpu=self.query_start_loc_cpu[: reqs + 1],
            seq_lens=self.seq_lens[:reqs],
            seq_lens_cpu=self.seq_lens_cpu[:reqs],
            num_computed_tokens_cpu=self.num_computed_tokens_cpu[:reqs],
            num_reqs=reqs,
            num_actual_tokens=tokens,
            block_table_tensor=self.block_table_tensor[:reqs],
            slot_mapping=self.slot_mapping[:tokens],
            encoder_seq_lens=None if encoder is None else encoder[:reqs],
            dcp_local_seq_lens=None if dcp is None else dcp[:reqs],
        )

    def validate(self, block_size: int | None = None) -> None:
        """Refuse a batch that contradicts itself; on a GPU this waits for the device.

        Args:
            block_size: positions in a block; with it the block table must hold every sequence.

        Raises:
            TypeError: a field of another type or dtype.
            ValueError: the first invariant that does not hold.

        Example:
            See the class.

        Source: the definition is kvtwin's own.
        """
        validate_metadata(self, block_size)


def validate_metadata(metadata: Any, block_size: int | None = None) -> None:  # noqa: ANN401  (an engine's own metadata serves too)
    """Refuse a batch that contradicts itself; on a GPU this waits for the device.

    A field that the object lacks is not checked.

    Args:
        metadata: a `CommonAttentionMetadata`, or an engine's own.
        block_size: positions in a block; with it the block table must hold every sequence.

    Raises:
        TypeError: a field of another type or dtype.
        ValueError: the first invariant that does not hold.

    Example:
        >>> import torch
        >>> from types import SimpleNamespace
        >>> validate_metadata(SimpleNamespace(seq_lens=torch.tensor([-1], dtype=torch.int32)))
        Traceback (most recent call last):
        ValueError: seq_lens[0] is -1, expected at least 0

    Source: the definition is kvtwin's own.
    """
    if block_size is not None:
        block_size = check_int("block_size", block_size)
    fields = check_fields(metadata)
    check_values(fields, block_size)
