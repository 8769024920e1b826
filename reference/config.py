"""The configuration of an engine, as far as the functions of this package read it.

Every class is keyword-only. An engine's own objects are accepted if they have the attributes that a
function reads.

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
        gpu_memory_utilization: The share of the device's memory that the engine may use, in 0 .. 1.
        mamba_cache_mode: How Mamba states are cached: "none", "align" or "all".
    """

    block_size: int = 16
    gpu_memory_utilization: float = 0.9
    mamba_cache_mode: str = "none"


@dataclass(kw_only=True)
class ParallelConfig:
    """How the work is distributed over devices.

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
    """The limits of a step.

    Attributes:
        max_num_batched_tokens: The most tokens of a step.
        max_num_seqs: The most requests of a step.
        max_num_encoder_input_tokens: The most encoder tokens of a step.
        encoder_cache_size: Tokens that the cache of encoder outputs holds.
        enable_chunked_prefill: Whether a prompt may be split over several steps.
        disable_chunked_mm_input: Whether a multimodal item must fit into one step.
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
    """How the model is compiled.

    Attributes:
        static_forward_context: The attention layers by name.
        pass_config: The compiler passes.
        splitting_ops: The operators at which a graph is split; None: not stated.
        use_inductor_graph_partition: Whether the compiler splits the graph itself.
        compile_sizes: Numbers of tokens for which a separate graph is compiled; None: none.
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
        num_speculative_tokens: Draft tokens of each request in each step; None: not stated.
    """

    num_speculative_tokens: int | None = None


@dataclass(kw_only=True)
class VllmConfig:
    """All configurations of an engine; a function reads those that its definition names.

    Attributes:
        model_config: The model.
        cache_config: The KV cache.
        parallel_config: How the work is distributed over devices.
        scheduler_config: The limits of a step.
        compilation_config: How the model is compiled.
        speculative_config: Speculative decoding; None: it is off.

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
