"""`fast`, but block ids that are appended replace those in the row: a method of `BlockTables`."""

# ruff: noqa: D102, F403  # it is what the file is for

import fast
from fast import *


class BlockTables(fast.BlockTables):
    """Block tables whose rows are always begun anew."""

    def append_block_ids(
        self,
        req_indices: list[int],
        cu_num_new_blocks: list[list[int]],
        new_block_ids: list[list[int]],
        overwrite: list[bool],
    ) -> None:
        always = [True] * len(overwrite) if isinstance(overwrite, list) else overwrite
        super().append_block_ids(req_indices, cu_num_new_blocks, new_block_ids, always)
