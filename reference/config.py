"""The configuration of an engine, as far as it is read here.

Plain data for those who have no engine: wherever a function takes one of these, an engine's own
object with the attributes that are read will do.

Source: the names are vLLM's; the selection is kvtwin's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True)
class ModelConfig:
    """The model.

    Attributes:
        max_model_len: The most tokens of a request, prompt and output together.
    """

    max_model_len: int


@dataclass(kw_only=True)
class CacheConfig:
    """The KV cache.

    Attributes:
        block_size: Positions in a block.
        gpu_memory_utilization: The share of the device's memory that may be used, in 0 .. 1.
        mamba_cache_mode: How Mamba states are cached between steps; "none": not at all.
    """

    block_size: int = 16
    gpu_memory_utilization: float = 0.9
    mamba_cache_mode: str = "none"


@dataclass(kw_only=True)
class ParallelConfig:
    """How the work is spread over devices.

    Attributes:
        tensor_parallel_size: Number of ranks that share each layer's weights.
        decode_context_parallel_size: Number of ranks that share each sequence's cache in decodes.
        prefill_context_parallel_size: Number of ranks that share each sequence's cache in prefills.
    """

    tensor_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    prefill_context_parallel_size: int = 1


@dataclass(kw_only=True)
class SchedulerConfig:
    """The bounds of a step.

    Attributes:
        max_num_batched_tokens: The most tokens of a step.
        max_num_seqs: The most requests of a step.
        max_num_encoder_input_tokens: The most encoder tokens of a step.
        encoder_cache_size: Encoder tokens that the cache of encoder outputs holds.
        enable_chunked_prefill: Whether a prompt may be spread over several steps.
        disable_chunked_mm_input: Whether a multimodal item must be within one step.
    """

    max_num_batched_tokens: int
    max_num_seqs: int
    max_num_encoder_input_tokens: int = 0
    encoder_cache_size: int = 0
    enable_chunked_prefill: bool = True
    disable_chunked_mm_input: bool = False


@dataclass(kw_only=True)
class PassConfig:
    """The compiler passes.

    Attributes:
        enable_sp: Whether sequence parallelism is on.
    """

    enable_sp: bool = False


@dataclass(kw_only=True)
class CompilationConfig:
    """What the compiler knows of the model.

    Attributes:
        static_forward_context: The attention layers by name.
        pass_config: The compiler passes.
        splitting_ops: The operators at which a graph is split; None: the engine's own choice.
        use_inductor_graph_partition: Whether the compiler itself splits the graph.
        compile_sizes: Numbers of tokens for which a graph is compiled apart; None: none.
    """

    static_forward_context: dict[str, Any] = field(default_factory=dict)
    pass_config: PassConfig = field(default_factory=PassConfig)
    splitting_ops: list[str] | None = None
    use_inductor_graph_partition: bool = False
    compile_sizes: list[int] | None = None


@dataclass(kw_only=True)
class SpeculativeConfig:
    """Speculative decoding.

    Attributes:
        num_speculative_tokens: Tokens proposed in each step for each request; None: undecided.
    """

    num_speculative_tokens: int | None = None


@dataclass(kw_only=True)
class VllmConfig:
    """All configurations of an engine; a function reads those that it names.

    Attributes:
        model_config: The model.
        cache_config: The KV cache.
        parallel_config: How the work is spread over devices.
        scheduler_config: The bounds of a step.
        compilation_config: What the compiler knows of the model.
        speculative_config: Speculative decoding; None: there is none.

    Example:
        >>> VllmConfig(cache_config=CacheConfig(block_size=32)).cache_config.block_size
        32
    """

    model_config: ModelConfig | None = None
    cache_config: CacheConfig | None = None
    parallel_config: ParallelConfig | None = None
    scheduler_config: SchedulerConfig | None = None
    compilation_config: CompilationConfig | None = None
    speculative_config: SpeculativeConfig | None = None
