"""What a worker keeps from step to step: the batch's order, and the requests' slots.

The order of the batch is where requests stood before, with those that left it replaced by newcomers
or by the last ones, so it is scrambled after a while, as an engine's is. A request slot is a row of
the block tables; it outlives the order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from conformance.traffic.scheduler import Step


class InputBatch:
    """The requests of a step, by their position in the batch.

    This is the `input_batch` that `reorder_batch_to_split_decodes_and_prefills` takes.

    Args:
        max_num_reqs: The most requests in a batch.

    Attributes:
        req_ids: The request at each position.
        num_computed_tokens_cpu: int32[max_num_reqs], its tokens in the cache before the step.
        num_prompt_tokens: int32[max_num_reqs], the length of its prompt.
        on_swap: Called with two positions before they are swapped; None: nobody follows.

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

    def update(self, step: Step) -> None:
        """Make this the batch of a step, before it is reordered.

        Args:
            step: Whose requests the batch has afterwards.
        """
        self.place(step.num_scheduled_tokens)
        for position, req_id in enumerate(self.req_ids):
            self.num_computed_tokens_cpu[position] = step.num_computed_tokens[req_id]
            self.num_prompt_tokens[position] = step.num_prompt_tokens[req_id]

    def place(self, scheduled: Iterable[str]) -> None:
        """Give newcomers the places of those who left, and close the holes that remain.

        Args:
            scheduled: The ids that the batch has afterwards.
        """
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
        """Swap all that is kept of two positions.

        Args:
            i: A position.
            j: Another.
        """
        if self.on_swap is not None:
            self.on_swap(i, j)
        for values in (self.req_ids, self.num_computed_tokens_cpu, self.num_prompt_tokens):
            values[i], values[j] = values[j], values[i]

    def copy(self) -> InputBatch:
        """Return a batch of the same order, whose swaps nobody follows."""
        twin = InputBatch(len(self.num_computed_tokens_cpu))
        twin.req_ids = list(self.req_ids)
        twin.num_computed_tokens_cpu = self.num_computed_tokens_cpu.copy()
        twin.num_prompt_tokens = self.num_prompt_tokens.copy()
        return twin


class RequestSlots:
    """Which request has which row of the block tables.

    Args:
        num_slots: Rows of the tables.

    Attributes:
        req_ids: The request in each slot, None in a free one.
        last_req_ids: The request that each slot has or had last, None in one never used.

    Example:
        >>> slots = RequestSlots(3)
        >>> slots.add("a"), slots.add("b"), slots.remove("a"), slots.add("c")
        (0, 1, 0, 0)
        >>> slots.remove("c"), slots.next_move()
        (0, (1, 0))
    """

    def __init__(self, num_slots: int) -> None:
        self.req_ids: list[str | None] = [None] * num_slots
        self.last_req_ids = list(self.req_ids)

    def __contains__(self, req_id: str) -> bool:
        return req_id in self.req_ids

    def slot_of(self, req_id: str) -> int:
        """Return the slot of a request."""
        return self.req_ids.index(req_id)

    def add(self, req_id: str) -> int:
        """Give a request the first free slot, and return that."""
        slot = self.req_ids.index(None)
        self.req_ids[slot] = self.last_req_ids[slot] = req_id
        return slot

    def remove(self, req_id: str) -> int:
        """Free the slot of a request, and return it."""
        slot = self.slot_of(req_id)
        self.req_ids[slot] = None
        return slot

    def swap(self, a: int, b: int) -> None:
        """Swap what is in two slots."""
        for values in (self.req_ids, self.last_req_ids):
            values[a], values[b] = values[b], values[a]

    def next_move(self) -> tuple[int, int] | None:
        """Say which slot to move where, so that the free slots come last.

        Returns:
            The last slot in use and the first free one; None when they are in order.
        """
        used = [slot for slot, req_id in enumerate(self.req_ids) if req_id is not None]
        if not used or None not in self.req_ids[: used[-1]]:
            return None
        return used[-1], self.req_ids.index(None)

    def move(self, src: int, dst: int) -> None:
        """Move a request to a free slot."""
        self.req_ids[dst], self.req_ids[src] = self.req_ids[src], None
        self.last_req_ids[dst] = self.last_req_ids[src]
