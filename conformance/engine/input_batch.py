"""The order of a worker's batch, which it keeps from step to step.

Requests keep their positions. Those that left the batch are replaced by newcomers or by the last
ones, so the order is scrambled after a while, as an engine's is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from conformance.engine.scheduler_output import SchedulerOutput


class InputBatch:
    """The requests of a step, by their position in the batch.

    This is the `input_batch` that `reorder_batch_to_split_decodes_and_prefills` takes.

    Args:
        max_num_reqs: The most requests in a batch.

    Attributes:
        req_ids: The request at each position.
        num_computed_tokens_cpu: int32[max_num_reqs], its tokens in the cache before the step.
        num_prompt_tokens: int32[max_num_reqs], the length of its prompt.
        on_swap: Called with two positions before they are swapped; None: nothing is called.

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
        self.on_swap: Callable[[int, int], None] | None = None

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
        """Swap the requests at two positions."""
        if self.on_swap is not None:
            self.on_swap(i, j)
        for values in (self.req_ids, self.num_computed_tokens_cpu, self.num_prompt_tokens):
            values[i], values[j] = values[j], values[i]

    def copy(self) -> InputBatch:
        """Return a batch of the same order, without `on_swap`."""
        copied = InputBatch(len(self.num_computed_tokens_cpu))
        copied.req_ids = list(self.req_ids)
        copied.num_computed_tokens_cpu = self.num_computed_tokens_cpu.copy()
        copied.num_prompt_tokens = self.num_prompt_tokens.copy()
        return copied
