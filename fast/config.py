"""The engine's configuration, as far as the functions of this package read it.

Every class is keyword-only. An engine's own objects serve as well where they have the attributes
that a function reads.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True)
class ModelConfig:
    """What is known of the model.

    Attributes:
        max_model_len: the longest sequence, in tokens.

    Example:
        >>> ModelConfig(max_model_len=8192).max_model_len
        8192

    Source: the definition is kvtwin's own; the names are vLLM's configuration.
    """

    max_model_len: int


@dataclass(kw_only=True)
class CacheConfig:
    """How the KV cache is cut and how much memory it may take.

    Attributes:
        block_size: positions in a block.
        gpu_memory_utilization: the share of the device's memory that the engine may use, 0 to 1.
        mamba_cache_mode: how Mamba states are cached.

    Example:
        >>> CacheConfig().block_size
        16

    Source: the definition is kvtwin's own; the names are vLLM's configuration.
    """

    block_size: int = 16
    gpu_memory_utilization: float = 0.9
    mamba_cache_mode: str = "none"


@dataclass(kw_only=True)
class ParallelConfig:
    """How the model is spread over ranks.

    Attributes:
        tensor_parallel_size: ranks that share each layer.
        decode_context_parallel_size: ranks that share a sequence in decode.
        prefill_context_parallel_size: ranks that share a sequence in prefill.

    Example:
        >>> ParallelConfig(tensor_parallel_size=2).decode_context_parallel_size
        1

    Source: the definition is kvtwin's own; the names are vLLM's configuration.
    """

    tensor_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    prefill_context_parallel_size: int = 1


@dataclass(kw_only=True)
class SchedulerConfig:
    """What one scheduler step may hold.

    Attributes:
        max_num_batched_tokens: the most tokens of a step.
        max_num_seqs: the most requests of a step.
        max_num_encoder_input_tokens: the most encoder tokens of a step.
        encoder_cache_size: encoder outputs kept, in tokens.
        enable_chunked_prefill: whether a prompt may be cut over steps.
        disable_chunked_mm_input: whether a multimodal item must stay in one step.

    Example:
        >>> SchedulerConfig(max_num_batched_tokens=2048, max_num_seqs=256).enable_chunked_prefill
        True

    Source: the definition is kvtwin's own; the names are vLLM's configuration.
    """

    max_num_batched_tokens: int
    max_num_seqs: int
    max_num_encoder_input_tokens: int = 0
    encoder_cache_size: int = 0
    enable_chunked_prefill: bool = True
    disable_chunked_mm_input: bool = False


@dataclass(kw_only=True)
class PassConfig:
    """Which passes the compiler runs.

    Attributes:
        enable_sp: whether sequence parallelism is on.

    Example:
        >>> PassConfig().enable_sp
        False

    Source: the definition is kvtwin's own; the names are vLLM's configuration.
    """

    enable_sp: bool = False


@dataclass(kw_only=True)
class CompilationConfig:
    """How the model is compiled.

    Attributes:
        static_forward_context: the layers, by name.
        pass_config: which passes the compiler runs.
        splitting_ops: operators at which the graph is cut, None when it is not stated.
        use_inductor_graph_partition: whether the compiler cuts the graph itself.
        compile_sizes: batch sizes that are compiled for, None when it is not stated.

    Example:
        >>> CompilationConfig().static_forward_context
        {}

    Source: the definition is kvtwin's own; the names are vLLM's configuration.
    """

    static_forward_context: dict[str, Any] = field(default_factory=dict)
    pass_config: PassConfig = field(default_factory=PassConfig)
    splitting_ops: list[str] | None = None
    use_inductor_graph_partition: bool = False
    compile_sizes: list[int] | None = None


@dataclass(kw_only=True)
class SpeculativeConfig:
    """How speculative decoding runs.

    Attributes:
        num_speculative_tokens: draft tokens of a request in each step, None when it is not stated.

    Example:
        >>> SpeculativeConfig(num_speculative_tokens=3).num_speculative_tokens
        3

    Source: the definition is kvtwin's own; the names are vLLM's configuration.
    """

    num_speculative_tokens: int | None = None


@dataclass(kw_only=True)
class VllmConfig:
    """All of an engine's configuration.

    Attributes:
        model_config: what is known of the model.
        cache_config: how the KV cache is cut.
        parallel_config: how the model is spread over ranks.
        scheduler_config: what one step may hold.
        compilation_config: how the model is compiled.
        speculative_config: how speculative decoding runs.

    Example:
        >>> VllmConfig(cache_config=CacheConfig(block_size=32)).cache_config.block_size
        32

    Source: the definition is kvtwin's own; the names are vLLM's configuration.
    """

    model_config: ModelConfig | None = None
    cache_config: CacheConfig | None = None
    parallel_config: ParallelConfig | None = None
    scheduler_config: SchedulerConfig | None = None
    compilation_config: CompilationConfig | None = None
    speculative_config: SpeculativeConfig | None = None
