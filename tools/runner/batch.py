"""The batch of a step: its requests in the order that attention needs, padded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import fast
from tools.runner.scheduler import ScheduledRequest, Step
from tools.runner.settings import Settings


class InputBatch:
    """A step's requests, as `reorder_batch_to_split_decodes_and_prefills` moves them about.

    Args:
        num_computed_tokens: Of each request before the step, by id, in any order.

    Attributes:
        req_ids: The requests, in the batch's order.
        num_computed_tokens_cpu: int32[num_reqs], computed tokens of each.
    """

    def __init__(self, num_computed_tokens: Mapping[str, int]) -> None:
        self.req_ids = list(num_computed_tokens)
        self.num_computed_tokens_cpu: npt.NDArray[np.int32] = np.array(
            list(num_computed_tokens.values()), np.int32
        )

    def swap_states(self, i: int, j: int) -> None:
        """Swap two requests.

        Args:
            i: The place of one in the batch.
            j: That of the other.
        """
        self.req_ids[i], self.req_ids[j] = self.req_ids[j], self.req_ids[i]
        computed = self.num_computed_tokens_cpu
        computed[i], computed[j] = computed[j], computed[i]


@dataclass(frozen=True)
class Batch:
    """A step's requests in the batch's order, padded as for a CUDA graph.

    Attributes:
        entries: The requests, without padding.
        num_reqs: How many, with padding.
        num_tokens: How many tokens, with padding.
        query_lens: int32[num_reqs], the new tokens of each, 0 for padded requests.
        wanted: int64[num_wanted], the tokens whose logits are wanted: the last of each request
            that gets a next token.
    """

    entries: list[ScheduledRequest]
    num_reqs: int
    num_tokens: int
    query_lens: npt.NDArray[np.int32]
    wanted: npt.NDArray[np.int64]


def make_batch(step: Step, settings: Settings, decode_threshold: int) -> Batch:
    """Order a step's requests, decodes first, and pad their number and that of tokens.

    Args:
        step: The step, before its tokens are computed.
        settings: Of the engine.
        decode_threshold: The most new tokens of a decode.

    Returns:
        The batch.
    """
    order = InputBatch(
        {req_id: entry.request.num_computed_tokens for req_id, entry in step.scheduled.items()}
    )
    fast.reorder_batch_to_split_decodes_and_prefills(order, step, decode_threshold)
    entries = [step.scheduled[req_id] for req_id in order.req_ids]
    num_reqs = settings.pad_reqs(len(entries))
    query_lens = np.zeros(num_reqs, np.int32)
    query_lens[: len(entries)] = [entry.num_new_tokens for entry in entries]
    last_tokens = query_lens.cumsum(dtype=np.int64)[: len(entries)] - 1
    return Batch(
        entries=entries,
        num_reqs=num_reqs,
        num_tokens=settings.pad_tokens(int(query_lens.sum())),
        query_lens=query_lens,
        wanted=last_tokens[[entry.is_sampled for entry in entries]],
    )
