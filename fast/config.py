"""Define the parts of an engine's configuration that the functions of this package read.

Every class is keyword-only. An engine's own objects are accepted if they have the attributes that a
function reads.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True)
class ModelConfig:
    """The model.

    Definition: `reference.ModelConfig`.
    """

    max_model_len: int


@dataclass(kw_only=True)
class CacheConfig:
    """The KV cache.

    Definition: `reference.CacheConfig`.
    """

    block_size: int = 16
    gpu_memory_utilization: float = 0.9
    mamba_cache_mode: str = "none"


@dataclass(kw_only=True)
class ParallelConfig:
    """How the work is distributed over devices.

    Definition: `reference.ParallelConfig`.
    """

    tensor_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    prefill_context_parallel_size: int = 1


@dataclass(kw_only=True)
class SchedulerConfig:
    """The limits of a step.

    Definition: `reference.SchedulerConfig`.
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

    Definition: `reference.PassConfig`.
    """

    enable_sp: bool = False


@dataclass(kw_only=True)
class CompilationConfig:
    """How the model is compiled.

    Definition: `reference.CompilationConfig`.
    """

    static_forward_context: dict[str, Any] = field(default_factory=dict)
    pass_config: PassConfig = field(default_factory=PassConfig)
    splitting_ops: list[str] | None = None
    use_inductor_graph_partition: bool = False
    compile_sizes: list[int] | None = None


@dataclass(kw_only=True)
class SpeculativeConfig:
    """Speculative decoding.

    Definition: `reference.SpeculativeConfig`.
    """

    num_speculative_tokens: int | None = None


@dataclass(kw_only=True)
class VllmConfig:
    """All configurations of an engine; a function reads those that its definition names.

    Definition: `reference.VllmConfig`.
    """

    model_config: ModelConfig | None = None
    cache_config: CacheConfig | None = None
    parallel_config: ParallelConfig | None = None
    scheduler_config: SchedulerConfig | None = None
    compilation_config: CompilationConfig | None = None
    speculative_config: SpeculativeConfig | None = None
