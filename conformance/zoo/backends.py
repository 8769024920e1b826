"""The backends of the catalogue, as subclasses of an implementation's `AttentionBackend`."""

from __future__ import annotations

from types import new_class
from typing import Any

from conformance.targets.target import Answer, Target
from conformance.zoo.builders import make_builder_class, make_metadata_class
from conformance.zoo.catalogue import BackendInfo, get_backend
from conformance.zoo.layer import CHUNKED_LOCAL, CROSS, ENCODER_ONLY

_PREFIXES = {
    CHUNKED_LOCAL: "ChunkedLocalAttention",
    CROSS: "CrossAttention",
    ENCODER_ONLY: "EncoderOnlyAttention",
}
"""Prefixes of backend names, for the kinds of layers that have a metadata builder of their own."""


class Backends:
    """The backends of one implementation; each is made once, so they can be compared with `is`.

    Args:
        target: The implementation.

    Example:
        >>> from conformance.targets.target import REFERENCE
        >>> backends = Backends(REFERENCE)
        >>> backend = backends.get("FLASH_ATTN", "chunked_local")
        >>> backend.__name__, backend is backends.get("FLASH_ATTN", "chunked_local")
        ('ChunkedLocalAttentionFlashAttentionBackend', True)
        >>> backend.get_kv_cache_shape(9, 16, 8, 128)
        (2, 9, 16, 8, 128)
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._metadata_class = make_metadata_class(target)
        self._made: dict[tuple[str, str], Answer] = {}

    def get(self, name: str, kind: str) -> Answer:
        """Return the backend of layers of a kind, a subclass of `AttentionBackend`.

        Raises:
            KeyError: No such backend.
        """
        if (name, kind) not in self._made:
            self._made[name, kind] = self._make(get_backend(name), kind)
        return self._made[name, kind]

    def _make(self, facts: BackendInfo, kind: str) -> Answer:
        """Make a backend; for a kind with its own builder, subclass that of full attention."""
        builder = make_builder_class(self._target, facts, kind, self._metadata_class)
        if kind in _PREFIXES:
            plain = self.get(facts.name, "full")
            return self._target.call("subclass_attention_backend", _PREFIXES[kind], plain, builder)
        return _make_backend_class(self._target, facts, builder)


def _make_backend_class(target: Target, facts: BackendInfo, builder: Answer) -> Answer:
    """Make a subclass of the implementation's `AttentionBackend`."""

    def get_stride_order() -> tuple[int, ...]:
        return (facts.stride_orders or {})[target.lookup("get_kv_cache_layout")()]

    def get_block_sizes() -> list[Answer]:
        multiples = [target.find("MultipleOf")(base) for base in facts.multiples_of]
        return [*facts.kernel_block_sizes, *multiples]

    methods: dict[str, Any] = {
        "get_name": lambda: facts.name,
        "get_builder_cls": lambda: builder,
        "get_kv_cache_shape": facts.shape,
    }
    if facts.kernel_block_sizes or facts.multiples_of:
        methods["get_supported_kernel_block_sizes"] = get_block_sizes
    if facts.stride_orders is not None:
        methods["get_kv_cache_stride_order"] = get_stride_order
    namespace: dict[str, Any] = {name: staticmethod(method) for name, method in methods.items()}
    base = target.find("AttentionBackend")
    return new_class(facts.class_name, (base,), exec_body=lambda body: body.update(namespace))
