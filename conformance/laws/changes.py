"""Changes of a batch that leave its access relation as it is, or change it in a known way."""

from __future__ import annotations

import dataclasses
import random

from conformance.strategies.batch import Batch


class Change:
    """A change of a batch: calling it returns the changed batch. This one changes nothing."""

    def __call__(self, batch: Batch) -> Batch:
        """Return the changed batch."""
        return batch

    def names(self, batch: Batch) -> dict[int, int]:
        """Return the old number of each token of the changed batch."""
        return {token: token for token in range(batch.num_tokens)}


class Unpadded(Change):
    """Without padded requests at the end, and without padding tokens."""

    def __call__(self, batch: Batch) -> Batch:
        """Return the changed batch."""
        count = max((i + 1 for i, q in enumerate(batch.query_lens) if q), default=0)
        return dataclasses.replace(
            batch,
            query_lens=batch.query_lens[:count],
            num_computed_tokens=batch.num_computed_tokens[:count],
            rows=batch.rows[:count],
            num_padding_tokens=0,
        )


@dataclasses.dataclass(frozen=True)
class Padded(Change):
    """With more padded requests, whose rows list the null block, and more padding tokens.

    Attributes:
        stale_lens: The sequence lengths of the padded requests: 0, or left over from an older step.
        num_tokens: The number of padding tokens.
    """

    stale_lens: tuple[int, ...]
    num_tokens: int

    def __call__(self, batch: Batch) -> Batch:
        """Return the changed batch."""
        per_block = batch.layout.blocks_per_kv_block
        rows = [(0,) * (per_block * batch.layout.num_blocks(stale)) for stale in self.stale_lens]
        return dataclasses.replace(
            batch,
            query_lens=batch.query_lens + (0,) * len(self.stale_lens),
            num_computed_tokens=batch.num_computed_tokens + self.stale_lens,
            rows=(*batch.rows, *rows),
            num_padding_tokens=batch.num_padding_tokens + self.num_tokens,
        )


@dataclasses.dataclass(frozen=True)
class InOrder(Change):
    """With its requests in another order.

    Attributes:
        seed: Determines the order.
    """

    seed: int

    def order(self, batch: Batch) -> list[int]:
        """Return the old positions of the requests, by the new ones."""
        order = list(range(batch.num_reqs))
        random.Random(self.seed).shuffle(order)  # noqa: S311  # no secret
        return order

    def __call__(self, batch: Batch) -> Batch:
        """Return the changed batch."""
        return in_order(batch, self.order(batch))

    def names(self, batch: Batch) -> dict[int, int]:
        """Return the old number of each token of the changed batch."""
        return names_in_order(batch, self.order(batch))


def in_order(batch: Batch, order: list[int]) -> Batch:
    """Return a batch with its requests reordered; `order` has the old position of each."""
    return dataclasses.replace(
        batch,
        query_lens=tuple(batch.query_lens[i] for i in order),
        num_computed_tokens=tuple(batch.num_computed_tokens[i] for i in order),
        rows=tuple(batch.rows[i] for i in order),
    )


def names_in_order(batch: Batch, order: list[int]) -> dict[int, int]:
    """Return the old number of each token of a reordered batch."""
    old = [batch.starts[i] + j for i in order for j in range(batch.query_lens[i])]
    return dict(enumerate(old))


@dataclasses.dataclass(frozen=True)
class OnRank(Change):
    """On another context-parallel rank."""

    rank: int

    def __call__(self, batch: Batch) -> Batch:
        """Return the changed batch."""
        layout = dataclasses.replace(batch.layout, cp_rank=self.rank)
        return dataclasses.replace(batch, layout=layout)


class InManagersBlocks(Change):
    """With a table of the manager's blocks instead of kernel blocks."""

    def __call__(self, batch: Batch) -> Batch:
        """Return the changed batch."""
        per_block = batch.layout.blocks_per_kv_block
        return dataclasses.replace(
            batch,
            layout=dataclasses.replace(batch.layout, kernel_block_size=None),
            rows=tuple(tuple(b // per_block for b in row[::per_block]) for row in batch.rows),
        )
