"""`fast`, but micro-batches share one builder: builders."""

# ruff: noqa: D102, F403  # it is what the file is for

from typing import Any

import fast
from fast import *


class AttentionGroup(fast.AttentionGroup):
    """A group whose first builder builds for every micro-batch."""

    @staticmethod
    def create_with_metadata_builders(*args: Any, **keywords: Any) -> Any:  # noqa: ANN401
        made = fast.AttentionGroup.create_with_metadata_builders(*args, **keywords)
        made.metadata_builders[1:] = made.metadata_builders[:1] * len(made.metadata_builders[1:])
        return made
