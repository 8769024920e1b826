"""Where requests stand: their rows in the block tables, and their order in a step's batch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

import fast


class Rows:
    """Gives each running request a row of the block tables, and keeps the rows without holes.

    Args:
        tables: The block tables, whose rows are moved along.

    Example:
        >>> tables = fast.BlockTables([8], 4, 8, 8, "cpu", pin_memory=False)
        >>> rows = Rows(tables)
        >>> rows.add("a"), rows.add("b"), rows.add("c")
        (0, 1, 2)
        >>> rows.remove("a")
        >>> rows.row_of("c"), rows.row_of("b")
        (0, 1)
    """

    def __init__(self, tables: fast.BlockTables) -> None:
        self._tables = tables
        self._req_ids: list[str] = []

    def row_of(self, req_id: str) -> int:
        """Return a request's row.

        Args:
            req_id: The request.
        """
        return self._req_ids.index(req_id)

    def add(self, req_id: str) -> int:
        """Give a request a row, the first that is free.

        Args:
            req_id: The request.
        """
        self._req_ids.append(req_id)
        return len(self._req_ids) - 1

    def remove(self, req_id: str) -> None:
        """Clear a request's row, and move the last one into the hole.

        Args:
            req_id: The request.
        """
        hole, last = self.row_of(req_id), len(self._req_ids) - 1
        self._tables.clear_row(hole)
        self._tables.move_row(last, hole)
        self._req_ids[hole] = self._req_ids[last]
        self._req_ids.pop()


class InputBatch:
    """A step's requests, as `reorder_batch_to_split_decodes_and_prefills` moves them about.

    Args:
        num_computed_tokens: Of each request before the step, by id, in any order.

    Attributes:
        req_ids: The requests, in the batch's order.
        num_computed_tokens_cpu: Computed tokens by position.
    """

    def __init__(self, num_computed_tokens: Mapping[str, int]) -> None:
        self.req_ids = list(num_computed_tokens)
        self.num_computed_tokens_cpu: npt.NDArray[np.int32] = np.array(
            list(num_computed_tokens.values()), np.int32
        )

    def swap_states(self, i: int, j: int) -> None:
        """Swap two positions.

        Args:
            i: A position.
            j: Another.
        """
        self.req_ids[i], self.req_ids[j] = self.req_ids[j], self.req_ids[i]
        computed = self.num_computed_tokens_cpu
        computed[i], computed[j] = computed[j], computed[i]
