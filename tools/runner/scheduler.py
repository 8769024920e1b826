"""The scheduler of a model: that of `conformance.engine`, first come, first served."""

from __future__ import annotations

from conformance.engine.block_pool import BlockPool
from conformance.engine.cache_group import AttentionGroup
from conformance.engine.scheduler import Scheduler
from tools.runner.settings import Settings


def make_scheduler(settings: Settings, num_groups: int) -> Scheduler:
    """Make a scheduler for a model.

    Args:
        settings: Of the engine.
        num_groups: The model's KV cache groups, each of which takes blocks for every request.
    """
    groups = [AttentionGroup(settings.block_size)] * num_groups
    return Scheduler(settings, groups, BlockPool(settings.pool_blocks(num_groups)))
