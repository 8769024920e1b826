"""Plausible wrong implementations, each of which the conformance run must catch."""

from known_bad.batch_order import BATCH_ORDER
from known_bad.buffers import BUFFERS
from known_bad.context_parallel import CONTEXT_PARALLEL
from known_bad.device import DEVICE
from known_bad.entries import KnownBad
from known_bad.kernels import KERNELS
from known_bad.local_attention import LOCAL_ATTENTION
from known_bad.metadata import METADATA
from known_bad.slots import SLOTS
from known_bad.tables import TABLES
from known_bad.ubatch import UBATCH

ENTRIES: list[KnownBad] = [
    *SLOTS,
    *TABLES,
    *METADATA,
    *BATCH_ORDER,
    *UBATCH,
    *LOCAL_ATTENTION,
    *CONTEXT_PARALLEL,
    *BUFFERS,
    *DEVICE,
    *KERNELS,
]

__all__ = ["ENTRIES", "KnownBad"]
