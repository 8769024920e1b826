"""Calls of vLLM's functions whose parameters or results differ from ours, in any release."""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping, Sequence
from typing import Any

from conformance.adapters.base import Unsupported
from conformance.adapters.vllm.batch_calls import BatchCalls
from conformance.adapters.vllm.places import find

LAYOUT = "the layout, which depends on the configuration and is cached after the first read"
"""Why the layout of the KV cache is not set or read."""


class Calls(BatchCalls):
    """vLLM's functions whose parameters differ, with our parameters; others are called as they are.

    Functions that an engine calls when it starts are here, those of a batch in the base class.
    """

    def compute_mm_encoder_budget(
        self, scheduler_config: Any, max_tokens_by_modality: Mapping[str, int]
    ) -> Any:
        """Pass the tokens by position: their parameter was renamed."""
        return find("compute_mm_encoder_budget")(scheduler_config, max_tokens_by_modality)

    def select_common_block_size(
        self, kv_manager_block_size: int, attn_groups: Sequence[Any]
    ) -> int:
        """Pass the groups' backends."""
        backends = [_backend_of(group) for group in attn_groups]
        selected: int = find("select_common_block_size")(kv_manager_block_size, backends)
        return selected

    def prepare_kernel_block_sizes(self, kv_cache_config: Any, attn_groups: Any) -> Any:
        """Pass the groups with their specs, and no tensors: their layers are not packed."""
        groups = [
            [
                types.SimpleNamespace(
                    backend=_backend_of(group), kv_cache_spec=kv_cache_group.kv_cache_spec
                )
                for group in of_one
            ]
            for kv_cache_group, of_one in zip(
                kv_cache_config.kv_cache_groups, attn_groups, strict=False
            )
        ]
        config = types.SimpleNamespace(
            kv_cache_groups=kv_cache_config.kv_cache_groups, kv_cache_tensors=[]
        )
        return find("prepare_kernel_block_sizes")(config, groups)

    @property
    def AttentionBackend(self) -> type:  # noqa: N802  # vLLM's name
        """The base class, with the one abstract method that ours does not have."""
        base: Any = find("AttentionBackend")
        members = {"get_impl_cls": staticmethod(_no_implementation)}
        return _classes.setdefault(base, type("AttentionBackend", (base,), members))

    def create_fast_prefill_custom_backend(self, prefix: str, underlying_attn_backend: Any) -> Any:
        """Return the backend; what its builders build from vLLM's metadata is not checked."""
        found = find("create_fast_prefill_custom_backend")
        backend = found(prefix, underlying_attn_backend)
        backend.get_builder_cls().build = _unsupported_build
        return backend

    def KVCacheTensor(self, size: int, shared_by: list[str]) -> Any:  # noqa: N802  # vLLM's name
        """Make a tensor; since 0.28 it is a part of one allocation for all layers."""
        cls = find("KVCacheTensor")
        if "shared_by" not in inspect.signature(cls).parameters:
            raise Unsupported("tensors of some layers: all layers have one allocation")
        return cls(size, shared_by)

    def bind_kv_cache(
        self,
        kv_caches: Mapping[str, Any],
        forward_context: Mapping[str, Any],
        runner_kv_caches: list[Any],
        num_attn_module: int | None = 1,
    ) -> None:
        """Bind caches; 0.12 binds several layers of one index on GPUs only."""
        try:
            find("bind_kv_cache")(kv_caches, forward_context, runner_kv_caches, num_attn_module)
        except NotImplementedError:
            raise Unsupported("several layers of one index, on CPUs") from None

    def is_residual_scattered_for_sp(self, vllm_config: Any, num_input_tokens: int) -> Any:
        """Return the result; since 0.20 sequence parallelism needs a graph that is not split."""
        found = find("is_residual_scattered_for_sp")
        config = vllm_config.compilation_config
        if (
            "compile_sizes" not in found.__code__.co_names
            and config.pass_config.enable_sp
            and vllm_config.parallel_config.tensor_parallel_size > 1
        ):
            if not hasattr(config, "use_inductor_graph_partition"):
                raise Unsupported("a configuration without use_inductor_graph_partition")
            if config.splitting_ops and not config.use_inductor_graph_partition:
                raise Unsupported("sequence parallelism in a graph that is split")
        return found(vllm_config, num_input_tokens)

    def subclass_attention_metadata(self, *_: Any, **__: Any) -> Any:
        """Raise `Unsupported`: vLLM's class has none of the properties that ours promises."""
        raise Unsupported("classes that are neither frozen nor made once, in the module `types`")

    def get_kv_cache_layout(self) -> Any:
        """Raise `Unsupported`, since vLLM caches the layout."""
        raise Unsupported(LAYOUT)

    def set_kv_cache_layout(self, *_: Any, **__: Any) -> None:
        """Raise `Unsupported`, since vLLM caches the layout."""
        raise Unsupported(LAYOUT)


_classes: dict[type, type] = {}


def _unsupported_build(*_: Any, **__: Any) -> Any:
    raise Unsupported("builders of fast prefill, which are called with vLLM's metadata")


def _no_implementation() -> type:
    raise NotImplementedError


def _backend_of(group: Any) -> Any:
    """Return a group's backend, whose sizes are vLLM's `MultipleOf` and Python's ints."""
    multiple_of = find("MultipleOf")
    sizes = [
        multiple_of(size.base) if type(size).__name__ == "MultipleOf" else int(size)
        for size in group.backend.get_supported_kernel_block_sizes()
    ]
    backend = types.SimpleNamespace(
        get_supported_kernel_block_sizes=lambda _=None: sizes, get_name=lambda: "backend"
    )
    backend.backend = backend  # old releases take groups
    return backend
