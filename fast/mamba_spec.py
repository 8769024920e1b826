"""Define the KV cache spec of a state-space layer, which keeps its states."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fast._checks import check_dtype, check_int, check_not_empty, check_type
from fast.base_spec import KVCacheSpec, read_size, set_int


@dataclass(frozen=True)
class MambaSpec(KVCacheSpec):
    """The KV cache format of a state-space layer: its states, once in each block.

    `dtypes` are torch dtypes.

    Definition: `reference.MambaSpec`.
    """

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    page_size_padded: int | None = None
    mamba_type: str = "mamba2"
    num_speculative_blocks: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_type("shapes", self.shapes, list | tuple, "a list or tuple")
        check_type("dtypes", self.dtypes, list | tuple, "a list or tuple")
        shapes = tuple(_check_shape(f"shapes[{i}]", shape) for i, shape in enumerate(self.shapes))
        dtypes = tuple(check_dtype(f"dtypes[{i}]", dtype) for i, dtype in enumerate(self.dtypes))
        check_not_empty("shapes", self.shapes, "state")
        if len(self.shapes) != len(self.dtypes):
            raise ValueError(
                f"dtypes has {len(self.dtypes)} entries, expected {len(self.shapes)}, as many as"
                " shapes"
            )
        object.__setattr__(self, "shapes", shapes)
        object.__setattr__(self, "dtypes", dtypes)
        check_type("mamba_type", self.mamba_type, str, "a str")
        set_int(self, "num_speculative_blocks", 0)
        if self.page_size_padded is not None:
            set_int(self, "page_size_padded")
            if self.page_size_padded < self.state_size_bytes:
                raise ValueError(
                    f"page_size_padded is {self.page_size_padded}, less than the "
                    f"{self.state_size_bytes} bytes of the states"
                )

    @property
    def state_size_bytes(self) -> int:
        """The bytes of the states of one block, without padding; not in `reference`."""
        return sum(
            math.prod(shape) * dtype.itemsize
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        )

    @property
    def page_size_bytes(self) -> int:
        """The bytes of one block: its states, or the padded page.

        Definition: `reference.MambaSpec.page_size_bytes`.
        """
        return self.state_size_bytes if self.page_size_padded is None else self.page_size_padded

    def max_memory_usage_bytes(self, vllm_config: Any) -> int:
        """Return the bytes of the blocks that one request may need.

        Definition: `reference.MambaSpec.max_memory_usage_bytes`.
        """
        mode = vllm_config.cache_config.mamba_cache_mode
        if not isinstance(mode, str) or mode not in {"none", "align", "all"}:
            raise ValueError(
                f"vllm_config.cache_config.mamba_cache_mode is {mode!r}, expected 'none', "
                "'align' or 'all'"
            )
        if mode == "none":
            num_pages = 1 + self.num_speculative_blocks
        elif mode == "align":
            num_pages = 2 + self.num_speculative_blocks
        else:
            num_pages = -(-read_size(vllm_config, "model_config.max_model_len") // self.block_size)
        return num_pages * self.page_size_bytes


def _check_shape(name: str, shape: Sequence[object]) -> tuple[int, ...]:
    check_type(name, shape, list | tuple, "a list or tuple")
    return tuple(check_int(f"{name}[{i}]", length, 1, None) for i, length in enumerate(shape))
