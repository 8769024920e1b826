"""KV cache specs of layers that attend to some positions only: a chunk, a window, an encoder."""

from __future__ import annotations

from dataclasses import dataclass

from reference._checks import check_int
from reference.attention_spec import AttentionSpec
from reference.base_spec import read_config


@dataclass(frozen=True)
class ChunkedLocalAttentionSpec(AttentionSpec):
    """What a layer keeps if its tokens attend to those before them in their own chunk.

    Attributes:
        block_size: Positions in a block, at least 1.
        num_kv_heads: Heads of keys and values, at least 1.
        head_size: Elements of a key or a value of one head, at least 1.
        dtype: The dtype of an element.
        attention_chunk_size: Positions in a chunk, at least 1.

    Raises:
        TypeError: A field of the wrong type or dtype.
        ValueError: A number that is too small.

    Example:
        >>> import numpy as np
        >>> from reference.config import ModelConfig, SchedulerConfig, VllmConfig
        >>> scheduler = SchedulerConfig(max_num_batched_tokens=32, max_num_seqs=8)
        >>> model = ModelConfig(max_model_len=1000)
        >>> config = VllmConfig(model_config=model, scheduler_config=scheduler)
        >>> spec = ChunkedLocalAttentionSpec(16, 8, 128, np.float16, 64)
        >>> spec.max_memory_usage_bytes(config) // spec.page_size_bytes
        6

    Source: the definition is kvtwin's own; the names are vLLM's.
    """

    attention_chunk_size: int

    def __post_init__(self) -> None:
        super().__post_init__()
        chunk_size = check_int("attention_chunk_size", self.attention_chunk_size, 1)
        self._store("attention_chunk_size", chunk_size)

    def max_memory_usage_bytes(self, vllm_config: object) -> int:
        """Return the bytes of `ceil(length / block_size)` blocks.

        The length is `min(attention_chunk_size + max_num_batched_tokens, max_model_len)`.
        """
        step = read_config(vllm_config, "scheduler_config.max_num_batched_tokens")
        max_model_len = read_config(vllm_config, "model_config.max_model_len")
        return self._pages_bytes(min(self.attention_chunk_size + step, max_model_len))


@dataclass(frozen=True)
class SlidingWindowSpec(AttentionSpec):
    """What a layer keeps if its tokens attend to a window that ends with themselves.

    Attributes:
        block_size: Positions in a block, at least 1.
        num_kv_heads: Heads of keys and values, at least 1.
        head_size: Elements of a key or a value of one head, at least 1.
        dtype: The dtype of an element.
        sliding_window: Positions that a token attends to, its own included, at least 1.

    Raises:
        TypeError: A field of the wrong type or dtype.
        ValueError: A number that is too small.

    Example:
        >>> import numpy as np
        >>> from reference.config import ModelConfig, ParallelConfig, SchedulerConfig, VllmConfig
        >>> config = VllmConfig(
        ...     model_config=ModelConfig(max_model_len=1000),
        ...     parallel_config=ParallelConfig(),
        ...     scheduler_config=SchedulerConfig(max_num_batched_tokens=33, max_num_seqs=8),
        ... )
        >>> spec = SlidingWindowSpec(16, 8, 128, np.float16, 64)
        >>> spec.max_memory_usage_bytes(config) // spec.page_size_bytes
        7

    Source: the definition is kvtwin's own; the names are vLLM's.
    """

    sliding_window: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self._store("sliding_window", check_int("sliding_window", self.sliding_window, 1))

    def max_memory_usage_bytes(self, vllm_config: object) -> int:
        """Return the bytes of `ceil(length / block_size) + 1` blocks.

        The length is `min(sliding_window - 1 + max_num_batched_tokens, max_model_len)`. One more
        block is needed since a window may begin inside a block.

        Raises:
            AttributeError: A configuration that is None or lacks an attribute that is read.
            TypeError: A number in it that is not an int.
            ValueError: A number in it that is too small; a configuration with decode context
                parallelism.
        """
        dcp = read_config(vllm_config, "parallel_config.decode_context_parallel_size")
        if dcp > 1:
            raise ValueError(
                f"vllm_config.parallel_config.decode_context_parallel_size is {dcp}, "
                "expected 1: a sliding window is not spread over ranks"
            )
        step = read_config(vllm_config, "scheduler_config.max_num_batched_tokens")
        max_model_len = read_config(vllm_config, "model_config.max_model_len")
        length = min(self.sliding_window - 1 + step, max_model_len)
        return self._pages_bytes(length) + self.page_size_bytes


@dataclass(frozen=True)
class CrossAttentionSpec(AttentionSpec):
    """What a decoder layer keeps of the encoder's tokens.

    Attributes:
        block_size: Positions in a block, at least 1.
        num_kv_heads: Heads of keys and values, at least 1.
        head_size: Elements of a key or a value of one head, at least 1.
        dtype: The dtype of an element.

    Raises:
        TypeError: A field of the wrong type or dtype.
        ValueError: A number that is too small.

    Example:
        >>> import numpy as np
        >>> from reference.config import SchedulerConfig, VllmConfig
        >>> scheduler = SchedulerConfig(
        ...     max_num_batched_tokens=32, max_num_seqs=8, max_num_encoder_input_tokens=1500
        ... )
        >>> spec = CrossAttentionSpec(16, 8, 128, np.float16)
        >>> config = VllmConfig(scheduler_config=scheduler)
        >>> spec.max_memory_usage_bytes(config) // spec.page_size_bytes
        94

    Source: the definition is kvtwin's own; the names are vLLM's.
    """

    def max_memory_usage_bytes(self, vllm_config: object) -> int:
        """Return the bytes of `ceil(max_num_encoder_input_tokens / block_size)` blocks."""
        path = "scheduler_config.max_num_encoder_input_tokens"
        return self._pages_bytes(read_config(vllm_config, path, minimum=0))


@dataclass(frozen=True)
class EncoderOnlyAttentionSpec(AttentionSpec):
    """What an encoder layer keeps: nothing after a step.

    Attributes:
        block_size: Positions in a block, at least 1.
        num_kv_heads: Heads of keys and values, at least 1.
        head_size: Elements of a key or a value of one head, at least 1.
        dtype: The dtype of an element.

    Raises:
        TypeError: A field of the wrong type or dtype.
        ValueError: A number that is too small.

    Example:
        >>> import numpy as np
        >>> EncoderOnlyAttentionSpec(16, 8, 128, np.float16).max_memory_usage_bytes(None)
        0

    Source: the definition is kvtwin's own; the names are vLLM's.
    """

    def max_memory_usage_bytes(self, vllm_config: object) -> int:  # noqa: ARG002  # as every kind
        """Return 0."""
        return 0
