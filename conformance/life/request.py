"""A request of a life, with the tokens themselves."""

from __future__ import annotations

from dataclasses import dataclass, field

from conformance.life.prefixes import Prefixes
from conformance.life.scene import Turn


@dataclass(eq=False)
class Request:
    """A request while it is served, and after: others may share its prefix.

    Attributes:
        request_id: Its name.
        num_prompt_tokens: How many of its tokens were given.
        num_total_tokens: How many it will have at its end.
        tokens: Those known so far, prompt and sampled ones.
        prefixes: The prefix that each of them ends.
        num_computed_tokens: Tokens whose keys are in the cache.
        drafts: Tokens behind the known ones that the step tries.
        draft_prefixes: The prefix that each of them ends.
        block_ids: For each KV cache group, its blocks in order.
        is_preempted: Whether it waits to be resumed.
        former_block_ids: The blocks that it had before it was preempted.
        num_shared_tokens: Tokens whose blocks it was given with their keys in them.
        num_rejected: Slots behind the computed tokens in which rejected drafts stand.
        sat_out: Whether it ran in the last step without computing anything.

    Example:
        >>> prefixes = Prefixes()
        >>> request = Request("request-0", 3, 9, [5, 6, 7], prefixes.along([5, 6, 7]))
        >>> request.compute(2), request.is_in_prefill
        (False, True)
        >>> request.compute(3), request.sample(0, 8, prefixes)
        (True, 0)
        >>> request.draft([9, 9], prefixes)
        >>> request.compute(6), request.sample(1, 8, prefixes)
        (True, 1)
        >>> request.tokens, request.num_computed_tokens, request.num_rejected
        ([5, 6, 7, 8, 9, 8], 5, 1)
    """

    request_id: str
    num_prompt_tokens: int
    num_total_tokens: int
    tokens: list[int]
    prefixes: list[int]
    num_computed_tokens: int = 0
    drafts: list[int] = field(default_factory=list)
    draft_prefixes: list[int] = field(default_factory=list)
    block_ids: list[list[int]] = field(default_factory=list)
    is_preempted: bool = False
    former_block_ids: list[list[int]] = field(default_factory=list)
    num_shared_tokens: int = 0
    num_rejected: int = 0
    sat_out: bool = False

    @property
    def num_tokens(self) -> int:
        """How many of its tokens are known."""
        return len(self.tokens)

    @property
    def is_decoding(self) -> bool:
        """Whether all but the token sampled last is computed."""
        is_sampled = self.num_tokens > self.num_prompt_tokens
        return is_sampled and self.num_computed_tokens == self.num_tokens - 1

    @property
    def is_in_prefill(self) -> bool:
        """Whether a part of its prompt is computed, and a part is not."""
        return 0 < self.num_computed_tokens < self.num_prompt_tokens

    def draft(self, tokens: list[int], prefixes: Prefixes) -> None:
        """Take tokens for those that come next, to be tried."""
        self.drafts = tokens
        self.draft_prefixes = prefixes.along(tokens, self.prefixes[-1])

    def try_until(self, stop: int) -> None:
        """Drop the drafts from a token on."""
        del self.drafts[max(stop - self.num_tokens, 0) :]

    def turn(self, num_scheduled: int) -> Turn:
        """Write down what it is while a step runs.

        Args:
            num_scheduled: Its tokens in the step.
        """
        start = self.num_computed_tokens
        prefixes = [*self.prefixes, *self.draft_prefixes][: start + num_scheduled]
        block_ids = tuple(tuple(ids) for ids in self.block_ids)
        return Turn(
            self.request_id,
            start,
            start + num_scheduled,
            tuple(prefixes),
            block_ids,
            len(self.drafts),
            self.num_shared_tokens,
        )

    def compute(self, stop: int) -> bool:
        """Have tokens computed.

        Args:
            stop: The first that is not.

        Returns:
            Whether the next token can be sampled.
        """
        self.num_rejected = 0
        self.num_computed_tokens = stop
        return stop >= self.num_tokens

    def sample(self, most_accepted: int, token: int, prefixes: Prefixes) -> int:
        """Accept some of the drafts that are computed, and add a token behind them.

        Args:
            most_accepted: How many; fewer where there are fewer, or where it ends before that.
            token: What is sampled.
            prefixes: The numbers of prefixes.

        Returns:
            How many were accepted.
        """
        num_tried = self.num_computed_tokens - self.num_tokens
        most = self.num_total_tokens - self.num_tokens - 1
        num_accepted = min(most_accepted, num_tried, max(most, 0))
        self.num_rejected = num_tried - num_accepted
        self.num_computed_tokens -= self.num_rejected
        new = [*self.drafts[:num_accepted], token]
        self.prefixes += prefixes.along(new, self.prefixes[-1])
        self.tokens += new
        return num_accepted
