"""The batch of a step: its requests in the order that attention needs, padded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import fast
from conformance.engine.input_batch import InputBatch
from conformance.engine.padded_batch import PaddedBatch
from conformance.engine.scheduler_output import SchedulerOutput
from tools.runner.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Batch(PaddedBatch):
    """A step's requests in the batch's order, padded as for a CUDA graph.

    Attributes:
        sampled_req_ids: The requests that get a next token, in the batch's order.
        logits_indices: int64[num_sampled], the last token of each of these.
    """

    sampled_req_ids: list[str]
    logits_indices: npt.NDArray[np.int64]


def make_batch(
    step: SchedulerOutput, input_batch: InputBatch, settings: Settings, decode_threshold: int
) -> Batch:
    """Order a step's requests, decodes first, and pad their number and that of tokens.

    Args:
        step: The step.
        input_batch: The worker's order of requests, which becomes that of the batch.
        settings: The settings of the engine.
        decode_threshold: The most new tokens of a decode.

    Returns:
        The batch.
    """
    input_batch.update(step)
    fast.reorder_batch_to_split_decodes_and_prefills(input_batch, step, decode_threshold)
    req_ids = list(input_batch.req_ids)
    query_lens = np.array([step.num_scheduled_tokens[req_id] for req_id in req_ids], np.int32)
    is_sampled = [req_id in step.sampled_req_ids for req_id in req_ids]
    return Batch(
        req_ids=req_ids,
        query_lens=query_lens,
        num_padded_reqs=settings.padded(len(req_ids)),
        num_padded_tokens=settings.padded(int(query_lens.sum())),
        sampled_req_ids=[req_id for req_id in req_ids if req_id in step.sampled_req_ids],
        logits_indices=(query_lens.cumsum(dtype=np.int64) - 1)[is_sampled],
    )
