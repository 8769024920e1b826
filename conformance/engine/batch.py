"""A worker's batch: the order of its requests, their request slots, the rows of a step.

Requests keep their positions in the batch from step to step. Those that left are replaced by
newcomers or by the last ones, so the order is scrambled after a while, as an engine's is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from conformance.engine.scheduler import EngineSettings, SchedulerOutput


class InputBatch:
    """The requests of a step, by their position in the batch.

    This is the `input_batch` that `reorder_batch_to_split_decodes_and_prefills` takes.

    Attributes:
        req_ids: The request at each position.
        num_computed_tokens_cpu: int32[max_num_reqs], its tokens in the cache before the step.
        num_prompt_tokens: int32[max_num_reqs], the length of its prompt.

    Example:
        >>> batch = InputBatch(4)
        >>> batch.place({"a": 1, "b": 1, "c": 2})
        >>> batch.place({"b": 1, "c": 1})  # a leaves, and the last request takes its place
        >>> batch.req_ids
        ['c', 'b']
    """

    def __init__(self, max_num_reqs: int) -> None:
        self.req_ids: list[str] = []
        self.num_computed_tokens_cpu = np.zeros(max_num_reqs, np.int32)
        self.num_prompt_tokens = np.zeros(max_num_reqs, np.int32)

    def update(self, step: SchedulerOutput) -> None:
        """Make this the batch of a step, before it is reordered."""
        self.place(step.num_scheduled_tokens)
        for position, req_id in enumerate(self.req_ids):
            self.num_computed_tokens_cpu[position] = step.num_computed_tokens[req_id]
            self.num_prompt_tokens[position] = step.num_prompt_tokens[req_id]

    def place(self, scheduled: Iterable[str]) -> None:
        """Give new requests the places of those that left, and close the holes that remain."""
        scheduled = list(scheduled)
        standing = set(self.req_ids)
        newcomers = [req_id for req_id in scheduled if req_id not in standing]
        places = [req_id if req_id in scheduled else None for req_id in self.req_ids]
        for position, req_id in enumerate(places):
            if req_id is None and newcomers:
                places[position] = newcomers.pop(0)
        places.extend(newcomers)
        while None in places:
            last = places.pop()
            if last is not None:
                places[places.index(None)] = last
        self.req_ids = [req_id for req_id in places if req_id is not None]

    def swap_states(self, i: int, j: int) -> None:
        for values in (self.req_ids, self.num_computed_tokens_cpu, self.num_prompt_tokens):
            values[i], values[j] = values[j], values[i]

    def copy(self) -> InputBatch:
        copied = InputBatch(len(self.num_computed_tokens_cpu))
        copied.req_ids = list(self.req_ids)
        copied.num_computed_tokens_cpu = self.num_computed_tokens_cpu.copy()
        copied.num_prompt_tokens = self.num_prompt_tokens.copy()
        return copied


class RequestSlots:
    """Gives each running request a slot, which it keeps until it ends or is preempted.

    Nothing is cleared when a slot is given to the next request.

    Attributes:
        slot_of: The slot of each request.

    Example:
        >>> slots = RequestSlots(3)
        >>> slots.update([], ["a", "b"])
        >>> slots.update(["a"], ["c", "d"])
        >>> slots.slot_of
        {'b': 1, 'c': 0, 'd': 2}
    """

    def __init__(self, max_num_reqs: int) -> None:
        self.slot_of: dict[str, int] = {}
        self._every = range(max_num_reqs)

    def update(self, removed: Iterable[str], admitted: Iterable[str]) -> None:
        """Free the slots of requests, then give others the first free ones."""
        for req_id in removed:
            del self.slot_of[req_id]
        for req_id in admitted:
            self.slot_of[req_id] = min({*self._every} - {*self.slot_of.values()})


@dataclass
class StepRows:
    """The rows of a step: the arguments of `prepare_step`, by their names."""

    idx_mapping: npt.NDArray[np.int32]  # [num_reqs], the request slot of each row
    query_start_loc: npt.NDArray[np.int32]  # [num_reqs + 1], where each row's tokens start
    cu_num_logits: npt.NDArray[np.int32]  # [num_reqs + 1], where each row's logits start
    num_reqs_padded: int
    num_tokens_padded: int


def make_rows(
    settings: EngineSettings,
    step: SchedulerOutput,
    req_ids: Iterable[str],  # in the order of the batch
    slot_of: Mapping[str, int],
) -> StepRows:
    req_ids = list(req_ids)
    query_lens = [step.num_scheduled_tokens[req_id] for req_id in req_ids]
    # Of the last known token, and of each draft after it.
    num_logits = [1 + len(step.spec_token_ids[req_id]) for req_id in req_ids]
    return StepRows(
        np.array([slot_of[req_id] for req_id in req_ids], np.int32),
        np.cumsum([0, *query_lens], dtype=np.int32),
        np.cumsum([0, *num_logits], dtype=np.int32),
        settings.padded(len(req_ids)),
        settings.padded(sum(query_lens)),
    )
