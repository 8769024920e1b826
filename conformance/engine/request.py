"""A request, from its arrival to its last token."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(eq=False)
class Request:
    """A request that an engine serves.

    Example:
        >>> request = Request("request-0", [5, 6, 7], max_new_tokens=4)
        >>> request.append([8], num_scheduled_tokens=3)
        >>> request.spec_token_ids = [9, 9]
        >>> request.append([9, 1], num_scheduled_tokens=3)
        >>> request.output_token_ids, request.num_computed_tokens, request.num_rejected_tokens
        ([8, 9, 1], 5, 1)
    """

    request_id: str  # its name
    token_ids: list[int]  # the known tokens: the prompt, then the generated ones
    max_new_tokens: int  # how many tokens to generate
    # Draft tokens after the known ones, to be verified in the next step.
    spec_token_ids: list[int] = field(default_factory=list)
    num_prompt_tokens: int = field(init=False)  # how many of its tokens are the prompt
    num_computed_tokens: int = 0  # how many of its tokens have their keys in the cache
    # Slots after the computed tokens that hold keys of rejected drafts.
    num_rejected_tokens: int = 0
    # Its blocks, in order, for each KV cache group; empty unless it is running.
    block_ids: tuple[list[int], ...] = ()

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.token_ids)

    @property
    def prompt_token_ids(self) -> list[int]:
        return self.token_ids[: self.num_prompt_tokens]

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_missing_tokens(self) -> int:
        """How many tokens are still to be generated."""
        return self.num_prompt_tokens + self.max_new_tokens - self.num_tokens

    def append(self, sampled_token_ids: list[int], num_scheduled_tokens: int) -> None:
        """Update the request after a step that computed so many tokens, including drafts.

        The sampled tokens are the accepted drafts and the token after them; there are none if the
        step did not compute all known tokens.
        """
        end = self.num_computed_tokens + num_scheduled_tokens
        num_drafts = max(end - self.num_tokens, 0)
        num_accepted = max(len(sampled_token_ids) - 1, 0)
        self.num_rejected_tokens = num_drafts - num_accepted
        self.num_computed_tokens = end - self.num_rejected_tokens
        self.token_ids += sampled_token_ids
