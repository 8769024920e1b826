"""Attention backends with metadata builders, as subclasses of an implementation's classes.

The builders prepare what their kind of layer needs with the implementation's functions: virtual
batches for chunked local attention, and the split into decodes and prefills if the backend computes
them separately.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.targets.target import Answer, Target
from conformance.zoo.models import CHUNKED_LOCAL, ENCODER_ONLY, FULL

BYTES_OF_FP8_DS_MLA = 656
"""Bytes of a token: 512 float8s, 4 float32 scales, 64 bfloat16s."""
STRIDE_ORDERS = {"NHD": (0, 1, 2, 3, 4), "HND": (0, 1, 3, 2, 4)}
"""Stride orders by layout, of a cache whose third dimension is tokens and whose fourth is heads."""


@dataclass(frozen=True, kw_only=True)
class BackendInfo:
    """An attention backend of an engine: the shapes, blocks and layouts of its caches."""

    name: str  # the engine's
    axes: Sequence[str] = ()  # the dimensions of a layer's cache; none for states
    kernel_block_sizes: Sequence[int] = ()  # that its kernels work on
    multiples_of: Sequence[int] = ()  # its kernels also work on all multiples of these
    has_layouts: bool = False  # whether it has `STRIDE_ORDERS`; otherwise, the order of `axes`
    reorders: bool = False  # whether it needs decodes before prefills

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
        """
        if not self.axes:
            raise NotImplementedError(f"{self.name} works on states, whose shapes are in the spec")
        lengths = {
            "keys and values": 2,
            "blocks": num_blocks,
            "tokens": block_size,
            "heads": num_kv_heads,
            "head": head_size,
            "latent": BYTES_OF_FP8_DS_MLA if cache_dtype_str == "fp8_ds_mla" else head_size,
        }
        return tuple(lengths[axis] for axis in self.axes)


with Path(__file__).with_name("backends.toml").open("rb") as _file:
    BACKENDS = {name: BackendInfo(name=name, **t) for name, t in tomllib.load(_file).items()}
"""The backends, by name."""

_PREFIXES = {CHUNKED_LOCAL: "ChunkedLocalAttention", ENCODER_ONLY: "EncoderOnlyAttention"}
"""Prefixes of backend names, for the kinds of layers that have a metadata builder of their own."""


class Backends:
    """The backends of one implementation; each is made once, so they can be compared with `is`.

    Example:
        >>> from conformance.targets.target import REFERENCE
        >>> backends = Backends(REFERENCE)
        >>> backend = backends.get("FLASH_ATTN", "chunked_local")
        >>> backend.__name__, backend is backends.get("FLASH_ATTN", "chunked_local")
        ('ChunkedLocalAttentionFLASH_ATTNBackend', True)
        >>> backend.get_kv_cache_shape(9, 16, 8, 128)
        (2, 9, 16, 8, 128)
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._metadata_class = target.call(
            "subclass_attention_metadata",
            "Zoo",
            target.find("AttentionMetadata"),
            [
                ("backend", str, ""),
                ("common", object, None),
                ("common_prefix_len", int, 0),
                ("fast_build", bool, False),
                ("decodes_and_prefills", object, None),
            ],
        )
        self._made: dict[tuple[str, str], Answer] = {}

    def get(self, name: str, kind: str) -> Answer:
        """Return the backend of layers of a kind, a subclass of `AttentionBackend`."""
        if (name, kind) not in self._made:
            self._made[name, kind] = self._make(BACKENDS[name], kind)
        return self._made[name, kind]

    def _make(self, info: BackendInfo, kind: str) -> Answer:
        """Make a backend; for a kind with its own builder, subclass that of full attention."""
        builder = _make_builder_class(self._target, info, kind, self._metadata_class)
        if kind in _PREFIXES:
            plain = self.get(info.name, FULL)
            return self._target.call("subclass_attention_backend", _PREFIXES[kind], plain, builder)
        return _make_backend_class(self._target, info, builder)


def _make_backend_class(target: Target, info: BackendInfo, builder: Answer) -> Answer:
    def get_stride_order() -> tuple[int, ...]:
        return STRIDE_ORDERS[target.lookup("get_kv_cache_layout")()]

    def get_block_sizes() -> list[Answer]:
        multiples = [target.find("MultipleOf")(base) for base in info.multiples_of]
        return [*info.kernel_block_sizes, *multiples]

    methods: dict[str, Any] = {
        "get_name": lambda: info.name,
        "get_builder_cls": lambda: builder,
        "get_kv_cache_shape": info.shape,
    }
    if info.kernel_block_sizes or info.multiples_of:
        methods["get_supported_kernel_block_sizes"] = get_block_sizes
    if info.has_layouts:
        methods["get_kv_cache_stride_order"] = get_stride_order
    namespace = {name: staticmethod(method) for name, method in methods.items()}
    return type(f"{info.name}Backend", (target.find("AttentionBackend"),), namespace)


def _make_builder_class(
    target: Target, info: BackendInfo, kind: str, metadata_class: Answer
) -> Answer:
    """Make the class of a backend's builders for layers of a kind, which build `metadata_class`."""
    base: Any = target.find("AttentionMetadataBuilder")

    class Builder(base):  # type: ignore[misc]  # the implementation's class
        compared = ("kv_cache_spec", "layer_names", "reorder_batch_threshold")

        def __init__(self, *args: Answer) -> None:
            super().__init__(*args)
            threshold = 1 if info.reorders else None
            self._init_reorder_batch_threshold(threshold, supports_spec_as_decode=True)

        def build(
            self, common_prefix_len: int, common_attn_metadata: Answer, fast_build: bool = False
        ) -> Answer:
            common = common_attn_metadata
            if kind == CHUNKED_LOCAL:
                spec = self.kv_cache_spec
                make = target.lookup("make_local_attention_virtual_batches")
                common = make(spec.attention_chunk_size, common, spec.block_size)
            elif kind == ENCODER_ONLY:
                common = dataclasses.replace(common, causal=False)
            threshold = self.reorder_batch_threshold
            split = target.lookup("split_decodes_and_prefills")
            return metadata_class(
                backend=info.name,
                common=common,
                common_prefix_len=common_prefix_len,
                fast_build=fast_build,
                decodes_and_prefills=None if threshold is None else split(common, threshold),
            )

    Builder.__name__ = f"{info.name}MetadataBuilder"
    return Builder
