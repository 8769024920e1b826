"""What a layer keeps that attends to some positions only: a chunk, a window, or an encoder's."""

from dataclasses import dataclass
from typing import Any

from fast.attention_spec import AttentionSpec
from fast.base_spec import read_size, set_int


@dataclass(frozen=True)
class ChunkedLocalAttentionSpec(AttentionSpec):
    """What a layer keeps whose tokens see their own chunk only.

    Attributes:
        attention_chunk_size: positions in a chunk.

    Example:
        >>> import torch
        >>> ChunkedLocalAttentionSpec(16, 8, 128, torch.bfloat16, 8192).attention_chunk_size
        8192

    Source: the definition is kvtwin's own; the names are vLLM's.
    """

    attention_chunk_size: int

    def __post_init__(self) -> None:
        super().__post_init__()
        set_int(self, "attention_chunk_size")

    def max_memory_usage_bytes(self, vllm_config: Any) -> int:  # noqa: ANN401  (an engine's own)
        """Return the pages of a chunk and of one step's new tokens, in bytes.

        Args:
            vllm_config: `model_config` and `scheduler_config` are read.

        Returns:
            Whole pages, in bytes.

        Raises:
            AttributeError: `vllm_config` lacks what is read.
            TypeError: what is read is no int.
            ValueError: what is read is below 1.

        Example:
            >>> import torch
            >>> from types import SimpleNamespace as Config
            >>> config = Config(
            ...     model_config=Config(max_model_len=100),
            ...     scheduler_config=Config(max_num_batched_tokens=8),
            ... )
            >>> spec = ChunkedLocalAttentionSpec(16, 8, 64, torch.float16, attention_chunk_size=32)
            >>> spec.max_memory_usage_bytes(config) // spec.page_size_bytes
            3

        Source: the definition is kvtwin's own; the name is vLLM's.
        """
        num_tokens = min(
            self.attention_chunk_size
            + read_size(vllm_config, "scheduler_config.max_num_batched_tokens"),
            read_size(vllm_config, "model_config.max_model_len"),
        )
        return -(-num_tokens // self.block_size) * self.page_size_bytes


@dataclass(frozen=True)
class SlidingWindowSpec(AttentionSpec):
    """What a layer keeps whose tokens see a window that ends with themselves.

    Attributes:
        sliding_window: positions in the window, the token's own included.

    Example:
        >>> import torch
        >>> SlidingWindowSpec(16, 8, 64, torch.bfloat16, sliding_window=128).page_size_bytes
        32768

    Source: the definition is kvtwin's own; the names are vLLM's.
    """

    sliding_window: int

    def __post_init__(self) -> None:
        super().__post_init__()
        set_int(self, "sliding_window")

    def max_memory_usage_bytes(self, vllm_config: Any) -> int:  # noqa: ANN401  (an engine's own)
        """Return the pages of a window and of one step's new tokens, in bytes.

        One more than they fill: a window may begin inside a block.

        Args:
            vllm_config: `model_config`, `scheduler_config` and `parallel_config` are read.

        Returns:
            Whole pages, in bytes.

        Raises:
            AttributeError: `vllm_config` lacks what is read.
            TypeError: what is read is no int.
            ValueError: what is read is below 1, or decode context parallelism is on.

        Example:
            >>> import torch
            >>> from types import SimpleNamespace as Config
            >>> config = Config(
            ...     model_config=Config(max_model_len=100),
            ...     scheduler_config=Config(max_num_batched_tokens=8),
            ...     parallel_config=Config(decode_context_parallel_size=1),
            ... )
            >>> spec = SlidingWindowSpec(16, 8, 64, torch.float16, sliding_window=32)
            >>> spec.max_memory_usage_bytes(config) // spec.page_size_bytes
            4

        Source: the definition is kvtwin's own; the name is vLLM's.
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
    """What a decoder's layer keeps of the encoder's tokens.

    Example:
        >>> import torch
        >>> CrossAttentionSpec(16, 20, 64, torch.float16).page_size_bytes
        81920

    Source: the definition is kvtwin's own; the names are vLLM's.
    """

    def max_memory_usage_bytes(self, vllm_config: Any) -> int:  # noqa: ANN401  (an engine's own)
        """Return the pages of the encoder's tokens, in bytes.

        Args:
            vllm_config: `scheduler_config` is read.

        Returns:
            Whole pages, in bytes.

        Raises:
            AttributeError: `vllm_config` lacks what is read.
            TypeError: what is read is no int.
            ValueError: what is read is negative.

        Example:
            >>> import torch
            >>> from types import SimpleNamespace as Config
            >>> config = Config(scheduler_config=Config(max_num_encoder_input_tokens=1500))
            >>> spec = CrossAttentionSpec(16, 20, 64, torch.float16)
            >>> spec.max_memory_usage_bytes(config) // spec.page_size_bytes
            94

        Source: the definition is kvtwin's own; the name is vLLM's.
        """
        num_tokens = read_size(vllm_config, "scheduler_config.max_num_encoder_input_tokens", 0)
        return -(-num_tokens // self.block_size) * self.page_size_bytes


@dataclass(frozen=True)
class EncoderOnlyAttentionSpec(AttentionSpec):
    """What a layer of an encoder keeps: nothing, its tokens all come in one step.

    Example:
        >>> import torch
        >>> EncoderOnlyAttentionSpec(16, 12, 64, torch.float16).max_memory_usage_bytes(None)
        0

    Source: the definition is kvtwin's own; the names are vLLM's.
    """

    def max_memory_usage_bytes(self, vllm_config: Any) -> int:  # noqa: ANN401, ARG002  (not read)
        """Return 0.

        Args:
            vllm_config: not read.

        Returns:
            0.

        Example:
            >>> import torch
            >>> EncoderOnlyAttentionSpec(16, 1, 8, torch.int8).max_memory_usage_bytes(None)
            0

        Source: the definition is kvtwin's own; the name is vLLM's.
        """
        return 0
