"""The sizes of an engine's steps and blocks: small, so that every edge is near."""

from __future__ import annotations

from dataclasses import dataclass

MODEL_NAMES = ("llama", "gemma", "gemma-shared", "llama-chunked")
"""The models that there are; `models` makes them."""

VOCAB_SIZE = 512
SLIDING_WINDOW = 24
"""Keys that a query sees in sliding-window layers: a window begins inside a block."""

ATTENTION_CHUNK_SIZE = 32
LONGEST_PROMPT = 200
MOST_NEW_TOKENS = 24


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of an engine.

    Attributes:
        block_size: Tokens in a block of the scheduler's pool; a backend's kernels may work on
            smaller ones.
        max_num_seqs: Requests that run at once, at most.
        token_budget: Tokens in a step, at most.
        max_model_len: Tokens of the longest sequence.
        requests_in_pool: How many sequences of that length the pool of blocks holds. It is small,
            so that it runs dry.
        padded_tokens: Batches are padded to a multiple of so many tokens, as for CUDA graphs.
        padded_reqs: Likewise, requests.
        num_micro_batches: Into how many micro-batches each batch is cut, but for one of fewer
            tokens; 1: none.
    """

    block_size: int = 16
    max_num_seqs: int = 10
    token_budget: int = 64
    max_model_len: int = LONGEST_PROMPT + MOST_NEW_TOKENS
    requests_in_pool: int = 2
    padded_tokens: int = 8
    padded_reqs: int = 4
    num_micro_batches: int = 1

    def pad_tokens(self, num_tokens: int) -> int:
        """Round a number of tokens up, to one of the few sizes that graphs are captured for.

        Args:
            num_tokens: At least so many.
        """
        return -(-num_tokens // self.padded_tokens) * self.padded_tokens

    def pad_reqs(self, num_reqs: int) -> int:
        """Round a number of requests up, likewise.

        Args:
            num_reqs: At least so many.
        """
        return -(-num_reqs // self.padded_reqs) * self.padded_reqs

    def num_blocks(self, num_tokens: int) -> int:
        """Count the blocks of so many tokens in one KV cache group.

        Args:
            num_tokens: Of one request.
        """
        return -(-num_tokens // self.block_size)

    def pool_blocks(self, num_groups: int) -> int:
        """Count the blocks of the pool, the null block (number 0) among them.

        Args:
            num_groups: KV cache groups, each of which takes blocks for every request.
        """
        return 1 + self.requests_in_pool * num_groups * self.num_blocks(self.max_model_len)
