"""The attention backends of an engine, which `backends.toml` lists: their shapes and blocks."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from conformance.zoo.layer import LATENT, MAMBA, Layer

BYTES_OF_FP8_DS_MLA: Final = 656
"""Bytes of a token: 512 float8s, 4 float32 scales, 64 bfloat16s."""

NHD_OR_HND: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"NHD": (0, 1, 2, 3, 4), "HND": (0, 1, 3, 2, 4)}
)
"""Stride orders by layout, of a cache whose third dimension is tokens and whose fourth is heads."""


@dataclass(frozen=True, kw_only=True)
class BackendInfo:
    """A backend of the catalogue: the shapes, blocks and layouts of its caches.

    Attributes:
        name: The engine's name for it.
        class_name: The name of its class.
        axes: The dimensions of a layer's cache, by name; none for states.
        kernel_block_sizes: The block sizes that its kernels work on.
        multiples_of: Its kernels also work on all multiples of these.
        stride_orders: The stride order by KV cache layout; None: that of `axes` in every layout.
        block_size: The engine's default block size with the backend.
        reorders: Whether it needs decodes before prefills.
        computes: "attention" (keys and values), "latent", "indexer" or "states".
    """

    name: str
    class_name: str
    axes: tuple[str, ...] = ()
    kernel_block_sizes: tuple[int, ...] = ()
    multiples_of: tuple[int, ...] = ()
    stride_orders: Mapping[str, tuple[int, ...]] | None = field(default=None, hash=False)
    block_size: int = 16
    reorders: bool = False
    computes: str = "attention"

    def shape(
        self,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_size: int,
        cache_dtype_str: str = "auto",
    ) -> tuple[int, ...]:
        """Return the shape of a layer's cache, as `get_kv_cache_shape` does.

        Raises:
            NotImplementedError: The backend works on states.

        Example:
            >>> BACKENDS["FLASH_ATTN"].shape(7, 16, 8, 128)
            (2, 7, 16, 8, 128)
            >>> BACKENDS["FLASHMLA_SPARSE"].shape(7, 64, 1, 576, "fp8_ds_mla")
            (7, 64, 656)
        """
        if not self.axes:
            raise NotImplementedError(f"{self.name} works on states, whose shapes are in the spec")
        is_packed = cache_dtype_str == "fp8_ds_mla"
        lengths = {
            "keys and values": 2,
            "blocks": num_blocks,
            "tokens": block_size,
            "heads": num_kv_heads,
            "head": head_size,
            "latent": BYTES_OF_FP8_DS_MLA if is_packed else head_size,
        }
        return tuple(lengths[axis] for axis in self.axes)


AXES: Mapping[str | None, tuple[str, ...]] = MappingProxyType(
    {
        "kv first": ("keys and values", "blocks", "tokens", "heads", "head"),
        "blocks first": ("blocks", "keys and values", "tokens", "heads", "head"),
        "latent": ("blocks", "tokens", "latent"),
        None: (),
    }
)
"""The dimensions of caches, by their name in `backends.toml`."""


def _read_backend(name: str, table: dict[str, Any]) -> BackendInfo:
    """Return the backend that a table of `backends.toml` describes."""
    return BackendInfo(
        name=name,
        axes=AXES[table.pop("axes", None)],
        kernel_block_sizes=tuple(table.pop("kernel_block_sizes", ())),
        multiples_of=tuple(table.pop("multiples_of", ())),
        stride_orders=NHD_OR_HND if table.pop("has_layouts", False) else None,
        **table,
    )


with Path(__file__).with_name("backends.toml").open("rb") as _file:
    _TABLES = tomllib.load(_file)

BACKENDS: Mapping[str, BackendInfo] = MappingProxyType(
    {name: _read_backend(name, table) for name, table in _TABLES.items()}
)
"""The backends, by name."""


def get_backend(name: str) -> BackendInfo:
    """Return a backend of the catalogue.

    Raises:
        KeyError: There is none of that name; the message lists the names.

    Example:
        >>> get_backend("CUTLASS_MLA").kernel_block_sizes
        (128,)
    """
    if name not in BACKENDS:
        raise KeyError(f"no backend {name!r} in the catalogue, which has {', '.join(BACKENDS)}")
    return BACKENDS[name]


def suits(facts: BackendInfo, layer: Layer) -> bool:
    """Return whether a backend can replace a layer's own.

    It must compute the same: attention, MLA, the scores of an indexer, states. Sparse MLA, whose
    8-bit latents have a format of their own, needs its own backend.

    Example:
        >>> layer = Layer(name="0", kind="latent", backend="FLASHMLA")
        >>> suits(BACKENDS["CUTLASS_MLA"], layer), suits(BACKENDS["FLASH_ATTN"], layer)
        (True, False)
    """
    own = get_backend(layer.backend)
    if layer.kind == MAMBA or layer.fp8_format is not None:
        return facts.name == own.name
    if layer.kind == LATENT:
        return facts.computes == own.computes and facts.name != "FLASHMLA_SPARSE"
    return facts.computes == "attention"
