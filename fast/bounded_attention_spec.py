"""Define the KV cache specs of layers that attend only to a chunk, a window or an encoder."""

from dataclasses import dataclass
from typing import Any

from fast.attention_spec import AttentionSpec
from fast.base_spec import read_size, set_int


@dataclass(frozen=True)
class ChunkedLocalAttentionSpec(AttentionSpec):
    """The KV cache format of chunked local attention: tokens attend to earlier ones in their chunk.

    Definition: `reference.ChunkedLocalAttentionSpec`.
    """

    attention_chunk_size: int

    def __post_init__(self) -> None:
        super().__post_init__()
        set_int(self, "attention_chunk_size")

    def max_memory_usage_bytes(self, vllm_config: Any) -> int:
        """Return the bytes of a chunk and of one step's new tokens.

        Definition: `reference.ChunkedLocalAttentionSpec.max_memory_usage_bytes`.
        """
        num_tokens = min(
            self.attention_chunk_size
            + read_size(vllm_config, "scheduler_config.max_num_batched_tokens"),
            read_size(vllm_config, "model_config.max_model_len"),
        )
        return -(-num_tokens // self.block_size) * self.page_size_bytes


@dataclass(frozen=True)
class SlidingWindowSpec(AttentionSpec):
    """The KV cache format of sliding-window attention: the window ends with the token itself.

    Definition: `reference.SlidingWindowSpec`.
    """

    sliding_window: int

    def __post_init__(self) -> None:
        super().__post_init__()
        set_int(self, "sliding_window")

    def max_memory_usage_bytes(self, vllm_config: Any) -> int:
        """Return the bytes of a window and of one step's new tokens.

        Definition: `reference.SlidingWindowSpec.max_memory_usage_bytes`.
        """
        dcp_size = read_size(vllm_config, "parallel_config.decode_context_parallel_size")
        if dcp_size > 1:
            raise ValueError(
                f"vllm_config.parallel_config.decode_context_parallel_size is {dcp_size}, "
                "expected 1: a sliding window is not spread over ranks"
            )
        num_tokens = min(
            self.sliding_window
            - 1
            + read_size(vllm_config, "scheduler_config.max_num_batched_tokens"),
            read_size(vllm_config, "model_config.max_model_len"),
        )
        return (-(-num_tokens // self.block_size) + 1) * self.page_size_bytes


@dataclass(frozen=True)
class CrossAttentionSpec(AttentionSpec):
    """The KV cache format of cross-attention: a decoder layer caches the encoder's tokens.

    Definition: `reference.CrossAttentionSpec`.
    """

    def max_memory_usage_bytes(self, vllm_config: Any) -> int:
        """Return the bytes of the encoder's tokens.

        Definition: `reference.CrossAttentionSpec.max_memory_usage_bytes`.
        """
        num_tokens = read_size(vllm_config, "scheduler_config.max_num_encoder_input_tokens", 0)
        return -(-num_tokens // self.block_size) * self.page_size_bytes


@dataclass(frozen=True)
class EncoderOnlyAttentionSpec(AttentionSpec):
    """The KV cache format of an encoder layer, which keeps nothing after a step.

    Definition: `reference.EncoderOnlyAttentionSpec`.
    """

    def max_memory_usage_bytes(self, vllm_config: Any) -> int:  # noqa: ARG002  (not read)
        """Return 0.

        Definition: `reference.EncoderOnlyAttentionSpec.max_memory_usage_bytes`.
        """
        return 0
