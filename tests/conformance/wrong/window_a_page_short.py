"""`fast`, but a sliding window's cache is a page too small: a spec's byte count."""

# ruff: noqa: D102, F403  # it is what the file is for

from typing import Any

import fast
from fast import *


class SlidingWindowSpec(fast.SlidingWindowSpec):
    """A sliding window that need not begin where a block begins; here nobody thought of that."""

    def max_memory_usage_bytes(self, vllm_config: Any) -> int:  # noqa: ANN401  # an engine's own
        return super().max_memory_usage_bytes(vllm_config) - self.page_size_bytes
