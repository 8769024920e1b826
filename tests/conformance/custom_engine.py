"""An engine with a backend of its own, on either twin, through the first step of a small model.

The backend's stride order, block sizes and builders are its own. The model has three KV cache
groups whose layers lie in the same tensors, and two layers that share another's cache.
"""

# ruff: noqa: ANN401  # what belongs to a twin is of that twin's types

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np

from conformance.targets import Target

HEADS, HEAD_SIZE, BLOCK_SIZE, NUM_BLOCKS = 4, 16, 32, 6
STRIDE_ORDER = (1, 3, 0, 2, 4)  # a 3-cycle, which is not its own inverse
WINDOWS = (None, 64, 8)
"""The window of each group's layers; layers take turns: 0, 1, 2, 0, 1, 2."""

GROUPS = [[f"model.layers.{i + g}.self_attn.attn" for i in (0, 3)] for g in range(3)]
SHARED = {
    "model.layers.6.self_attn.attn": "model.layers.3.self_attn.attn",
    "model.layers.7.self_attn.attn": "model.layers.1.self_attn.attn",
}
TENSORS = [
    [*(names[0] for names in GROUPS), "model.layers.7.self_attn.attn"],
    [*(names[1] for names in GROUPS), "model.layers.6.self_attn.attn"],
]
"""The layers of each tensor: one of each group, and those that share their caches."""

QUERY_LENS, COMPUTED = [1, 35], [40, 0]
SEQ_LENS = [q + c for q, c in zip(QUERY_LENS, COMPUTED, strict=True)]
STARTS = [0, 1, 36]
NUM_PADDED = 4
"""Tokens past the requests', for a captured graph."""

BLOCKS = [[[5, 2], [1, 3]], [[0, 4], [3, 2]], [[4, 1], [0, 5]]]
"""The manager's blocks of each group and request."""


@dataclasses.dataclass
class Impl:
    """What a layer computes with."""

    scale: float
    sliding_window: tuple[int, int] | None


class Layer:
    """An attention layer of a model."""

    attn_type = "decoder"
    num_kv_heads = HEADS
    head_size = HEAD_SIZE

    def __init__(self, backend: Any, window: int | None, target: str | None = None) -> None:
        self.backend, self.sliding_window = backend, window
        self.impl = Impl(0.25, None if window is None else (window - 1, 0))
        self.kv_sharing_target_layer_name = target
        self.kv_cache: list[Any] = []

    def get_attn_backend(self) -> Any:
        """Return the class of the backend."""
        return self.backend


def make_builder(target: Target) -> Any:
    """Return the class of the backend's builders, which share a workspace and plan by layers."""
    base: Any = target.lookup("AttentionMetadataBuilder")
    fields = [("common", object, None), ("prefix", int, -1), ("plan", object, None)]
    metadata_cls: Any = target.lookup("subclass_attention_metadata")(
        "Zigzag", target.lookup("AttentionMetadata"), fields
    )

    class Builder(base):  # type: ignore[misc]  # known when it runs
        """Plans once for all layers of its group."""

        compared = ("kv_cache_spec", "layer_names", "plan", "workspace", "reorder_batch_threshold")

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self._init_reorder_batch_threshold(1, supports_spec_as_decode=True)
            layers = target.lookup("get_per_layer_parameters")(
                self.vllm_config, self.layer_names, Impl
            )
            self.plan = target.lookup("infer_global_hyperparameters")(layers)
            self.workspace: list[str] | None = None

        def _get_workspace_buffer(self) -> list[str]:
            self.workspace = [self.layer_names[0]]
            return self.workspace

        def set_workspace_buffer(self, buffer: list[str]) -> None:
            """Use another builder's workspace."""
            self.workspace = buffer

        def build(self, common_prefix_len: int, common_attn_metadata: Any, *_: object) -> Any:
            """Return the batch, and what was planned."""
            return metadata_cls(common_attn_metadata, common_prefix_len, self.plan)

    return Builder


def make_backend(target: Target) -> Any:
    """Return the class of the backend."""
    base: Any = target.lookup("AttentionBackend")
    builder, multiple_of = make_builder(target), target.lookup("MultipleOf")

    class ZigzagBackend(base):  # type: ignore[misc]  # known when it runs
        """Blocks, then heads, then keys and values: as nobody else has them."""

        @staticmethod
        def get_name() -> str:
            """Return the name, by which builders share a workspace."""
            return "ZIGZAG_FLASHINFER"

        @staticmethod
        def get_builder_cls() -> Any:
            """Return the class of the builders."""
            return builder

        @staticmethod
        def get_kv_cache_shape(*sizes: int, cache_dtype_str: str = "auto") -> tuple[int, ...]:
            """Return keys and values, blocks, tokens, heads, head size."""
            del cache_dtype_str
            return (2, *sizes)

        @staticmethod
        def get_kv_cache_stride_order() -> tuple[int, ...]:
            """Return the order in memory."""
            return STRIDE_ORDER

        @staticmethod
        def get_supported_kernel_block_sizes() -> list[Any]:
            """Return sizes of which the manager's is none."""
            return [8, 16, multiple_of(48)]

    return ZigzagBackend


class Engine:
    """A runner of one twin, through one step.

    Args:
        target: The twin.
    """

    def __init__(self, target: Target) -> None:
        self.target, self.converter = target, target.converter()
        self.device = target.device
        self.backend = make_backend(target)
        # The last group's layers have a backend made of the first ones', with builders of its own.
        self.other = self.call(
            "subclass_attention_backend", "Near", self.backend, make_builder(target)
        )
        self._make_model()
        self._make_cache()
        self._build()

    def call(self, function: str, *args: Any, **kwargs: Any) -> Any:
        """Call a function of the twin, in checked mode."""
        with self.target.running(checked=True):
            return self.target.lookup(function)(*args, **kwargs)

    def array(self, values: Any, dtype: Any, name: str = "array") -> Any:
        """Return an array of the twin's."""
        return self.converter.convert(np.array(values, dtype), name)

    def _make_model(self) -> None:
        """Make the layers, and what each keeps in the cache."""
        backends = [self.backend, self.backend, self.other]
        self.layers: dict[str, Any] = {}
        for i in range(8):
            name = f"model.layers.{i}.self_attn.attn"
            target = SHARED.get(name)
            group = int((target or name).split(".")[2]) % 3
            self.layers[name] = Layer(backends[group], WINDOWS[group], target)
            self.layers[f"model.layers.{i}.mlp"] = object()
        self.config = self.call(
            "VllmConfig",
            cache_config=self.call("CacheConfig", block_size=BLOCK_SIZE),
            parallel_config=self.call("ParallelConfig"),
            speculative_config=self.call("SpeculativeConfig", num_speculative_tokens=2),
            compilation_config=self.call("CompilationConfig", static_forward_context=self.layers),
        )
        dtype = self.converter.convert(np.dtype(ml_dtypes.bfloat16), "dtype")
        self.specs = self.call("get_kv_cache_spec", self.config, dtype)

    def _make_cache(self) -> None:
        """Make the groups, their backends and builders, and the cache."""
        groups = []
        for names in GROUPS:
            [spec] = {self.specs[name] for name in names}
            groups.append(self.call("KVCacheGroupSpec", list(names), spec))
        self.runner_only: set[str] = set()
        self.call("add_kv_sharing_layers_to_kv_cache_groups", SHARED, groups, self.runner_only)
        page = groups[0].kv_cache_spec.page_size_bytes
        tensors = [self.call("KVCacheTensor", page * NUM_BLOCKS, names) for names in TENSORS]
        self.kv_cache_config = self.call("KVCacheConfig", NUM_BLOCKS, tensors, groups)
        self.attn_backends, self.builders = self.call(
            "init_attn_backend", self.kv_cache_config, self.config, self.device
        )
        attn_groups = [
            [
                self.call(
                    "AttentionGroup",
                    self.attn_backends[group.layer_names[0]],
                    [builder],
                    group.layer_names,
                    group.kv_cache_spec,
                )
            ]
            for group, builder in zip(groups, self.builders, strict=True)
        ]
        self.kernel_block_sizes = self.call(
            "prepare_kernel_block_sizes", self.kv_cache_config, attn_groups
        )
        self.runner_kv_caches: list[Any] = []
        self.call(
            "init_kv_cache",
            self.runner_kv_caches,
            self.layers,
            self.kv_cache_config,
            self.attn_backends,
            self.device,
            kernel_block_sizes=self.kernel_block_sizes,
        )

    def _build(self) -> None:
        """Build the metadata of a step in which a request decodes and another one begins."""
        positions = [c + j for c, q in zip(COMPUTED, QUERY_LENS, strict=True) for j in range(q)]
        self.starts, self.lens = self._buffer(STARTS), self._buffer(SEQ_LENS)
        kernel_size = self.kernel_block_sizes[0]
        split = BLOCK_SIZE // kernel_size
        tables, slots = [], []
        for group in BLOCKS:
            rows = [[b * split + k for b in row for k in range(split)] for row in group]
            tables.append(self.array(rows, np.int32))
            found = self.call(
                "compute_slot_mapping",
                tables[-1],
                self.starts.gpu[: len(STARTS)],
                self.array([*positions, *[0] * NUM_PADDED], np.int64),
                BLOCK_SIZE,
                kernel_block_size=kernel_size,
            )
            slots.append(found)
        self.metadata = self.call(
            "build_attn_metadata",
            self.builders,
            len(QUERY_LENS),
            STARTS[-1] + NUM_PADDED,
            self.starts,
            self.lens,
            self.array(COMPUTED, np.int32, "num_computed_tokens_cpu"),
            tables,
            slots,
            self.kv_cache_config,
        )

    def _buffer(self, values: list[int]) -> Any:
        """Return a buffer for more requests than there are, with an old step's after them."""
        dtype = self.converter.convert(np.dtype(np.int32), "dtype")
        made = self.call("CpuGpuBuffer", 8, dtype=dtype, device=self.device, pin_memory=False)
        made.np[:] = 9999
        made.np[: len(values)] = values
        made.copy_to_gpu()
        return made

    @property
    def kv_caches(self) -> dict[str, Any]:
        """The cache of each layer that has one."""
        attention = {name: layer for name, layer in self.layers.items() if name.endswith("attn")}
        return {name: layer.kv_cache for name, layer in attention.items()}
