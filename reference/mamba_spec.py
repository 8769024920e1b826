"""What a state-space layer keeps in the KV cache: states, independent of the sequence length."""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from reference._checks import check_dtype, check_int, check_not_empty, check_type
from reference.base_spec import KVCacheSpec, read_config


@dataclass(frozen=True)
class MambaSpec(KVCacheSpec):
    """What a state-space layer keeps: its states, once in each block.

    Attributes:
        block_size: Positions in a block, at least 1.
        shapes: The shape of each state, with lengths of at least 1; `()` is one element. Tuples or
            lists; stored as tuples.
        dtypes: The dtype of each state; a tuple or list of dtypes or scalar types.
        page_size_padded: The bytes of a page, at least those of the states; None: those of the
            states.
        mamba_type: The name of the kind of layer.
        num_speculative_blocks: Additional blocks of a request for speculative tokens, at least 0.

    Raises:
        TypeError: A field of the wrong type or dtype.
        ValueError: A number that is too small, no states, different numbers of shapes and dtypes.

    Example:
        >>> import numpy as np
        >>> states = MambaSpec(16, ((3, 64), (8, 16)), (np.float16, np.float32))
        >>> states.page_size_bytes
        896
        >>> MambaSpec(16, ((4,),), (np.float16,), page_size_padded=64).page_size_bytes
        64

    Source: the definition is kvtwin's own; the names are vLLM's.
    """

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[np.dtype[Any] | type[np.generic], ...]
    page_size_padded: int | None = None
    mamba_type: str = "mamba2"
    num_speculative_blocks: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        shapes = [
            tuple(
                check_int(f"shapes[{i}][{j}]", length, 1)
                for j, length in enumerate(check_type(f"shapes[{i}]", shape, list | tuple))
            )
            for i, shape in enumerate(check_type("shapes", self.shapes, list | tuple))
        ]
        dtypes = [
            check_dtype(f"dtypes[{i}]", dtype)
            for i, dtype in enumerate(check_type("dtypes", self.dtypes, list | tuple))
        ]
        check_not_empty("shapes", shapes, "state")
        if len(dtypes) != len(shapes):
            raise ValueError(
                f"dtypes has {len(dtypes)} entries, expected {len(shapes)}, as many as shapes"
            )
        self._store("shapes", tuple(shapes))
        self._store("dtypes", tuple(dtypes))
        if self.page_size_padded is not None:
            padded = check_int("page_size_padded", self.page_size_padded, 1)
            if padded < self._states_bytes:
                raise ValueError(
                    f"page_size_padded is {padded}, less than the {self._states_bytes} bytes of "
                    "the states"
                )
            self._store("page_size_padded", padded)
        check_type("mamba_type", self.mamba_type, str)
        num_speculative = check_int("num_speculative_blocks", self.num_speculative_blocks, 0)
        self._store("num_speculative_blocks", num_speculative)

    @property
    def _states_bytes(self) -> int:
        """The bytes of the states of one block, without padding."""
        return sum(
            math.prod(shape) * np.dtype(dtype).itemsize
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        )

    @property
    def page_size_bytes(self) -> int:
        """The bytes of one block: `page_size_padded`, or those of the states if it is None."""
        return self._states_bytes if self.page_size_padded is None else self.page_size_padded

    def max_memory_usage_bytes(self, vllm_config: object) -> int:
        """Return the bytes of the blocks that one request may need.

        The number of blocks depends on `cache_config.mamba_cache_mode`:
        `1 + num_speculative_blocks` for "none", `2 + num_speculative_blocks` for "align",
        `ceil(max_model_len / block_size)` for "all".

        Raises:
            AttributeError: A configuration that is None or lacks an attribute that is read.
            TypeError: A `max_model_len` that is not an int.
            ValueError: Another mode, of whatever type; a `max_model_len` below 1.
        """
        mode: object = attrgetter("cache_config.mamba_cache_mode")(vllm_config)
        if not isinstance(mode, str) or mode not in ("none", "align", "all"):
            raise ValueError(
                f"vllm_config.cache_config.mamba_cache_mode is {mode!r}, "
                "expected 'none', 'align' or 'all'"
            )
        if mode == "all":
            return self._pages_bytes(read_config(vllm_config, "model_config.max_model_len"))
        num_kept_blocks = 1 if mode == "none" else 2
        return (num_kept_blocks + self.num_speculative_blocks) * self.page_size_bytes
