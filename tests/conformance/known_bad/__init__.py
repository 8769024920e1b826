"""Plausible wrong implementations, each of which the conformance run must catch."""

from known_bad.attention import ATTENTION
from known_bad.attention_groups import ATTENTION_GROUPS
from known_bad.attention_layers import ATTENTION_LAYERS
from known_bad.attn_metadata import ATTN_METADATA
from known_bad.backend import BACKEND
from known_bad.batch_order import BATCH_ORDER
from known_bad.block_size import BLOCK_SIZE
from known_bad.buffers import BUFFERS
from known_bad.builders import BUILDERS
from known_bad.callers import CALLERS
from known_bad.causal_conv1d import CAUSAL_CONV1D
from known_bad.config import CONFIG
from known_bad.context_parallel import CONTEXT_PARALLEL
from known_bad.device import DEVICE
from known_bad.entries import KnownBad
from known_bad.fast_prefill import FAST_PREFILL
from known_bad.kernels import KERNELS
from known_bad.kv_binding import KV_BINDING
from known_bad.kv_cache import KV_CACHE
from known_bad.kv_cache_spec import KV_CACHE_SPEC
from known_bad.kv_views import KV_VIEWS
from known_bad.laws import SEEN_BY_LAWS
from known_bad.layer_params import LAYER_PARAMS
from known_bad.life import LIFE
from known_bad.local_attention import LOCAL_ATTENTION
from known_bad.memory import MEMORY
from known_bad.metadata import METADATA
from known_bad.mm_budget import MM_BUDGET
from known_bad.multimodal import MULTIMODAL
from known_bad.sequence_parallel import SEQUENCE_PARALLEL
from known_bad.slots import SLOTS
from known_bad.spec_decode import SPEC_DECODE
from known_bad.spec_groups import SPEC_GROUPS
from known_bad.tables import TABLES
from known_bad.ubatch import UBATCH

ENTRIES: list[KnownBad] = [
    *SLOTS,
    *TABLES,
    *METADATA,
    *BATCH_ORDER,
    *UBATCH,
    *LOCAL_ATTENTION,
    *CONFIG,
    *CONTEXT_PARALLEL,
    *BUFFERS,
    *KV_CACHE_SPEC,
    *SPEC_GROUPS,
    *BLOCK_SIZE,
    *MEMORY,
    *KV_CACHE,
    *KV_VIEWS,
    *KV_BINDING,
    *DEVICE,
    *KERNELS,
    *ATTENTION,
    *ATTENTION_GROUPS,
    *ATTENTION_LAYERS,
    *ATTN_METADATA,
    *BACKEND,
    *BUILDERS,
    *LAYER_PARAMS,
    *SEEN_BY_LAWS,
    *FAST_PREFILL,
    *SPEC_DECODE,
    *CAUSAL_CONV1D,
    *MULTIMODAL,
    *MM_BUDGET,
    *SEQUENCE_PARALLEL,
    *LIFE,
    *CALLERS,
]

__all__ = ["ENTRIES", "KnownBad"]
