"""Kinds of tensors: what callers pass for a plain tensor, for the condition of that name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from conformance.harness.compare import as_numpy


class _Subclass(torch.Tensor):
    """A caller's subclass of Tensor."""


class _Wrapper(torch.Tensor):
    """A caller's tensor without memory, whose operations run on another one."""

    wrapped: torch.Tensor

    @staticmethod
    def __new__(cls: type[_Wrapper], wrapped: torch.Tensor) -> _Wrapper:  # noqa: PYI034
        made: _Wrapper = torch.Tensor._make_wrapper_subclass(  # noqa: SLF001  # torch's name
            cls, wrapped.shape, dtype=wrapped.dtype
        )
        made.wrapped = wrapped
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch does not say that it is a classmethod
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        def inner(value: Any) -> Any:
            return value.wrapped if isinstance(value, _Wrapper) else value

        found = func(*map(inner, args), **{k: inner(v) for k, v in (kwargs or {}).items()})
        return _Wrapper(found) if isinstance(found, torch.Tensor) else found


def _resized(tensor: torch.Tensor) -> torch.Tensor:
    made = tensor.clone()
    made.untyped_storage().resize_(0)
    return made


def _negated(tensor: torch.Tensor) -> torch.Tensor:
    made = torch._neg_view(-tensor)  # noqa: SLF001  # torch's name for it
    if as_numpy(made).tobytes() != as_numpy(tensor).tobytes():
        raise ValueError("a NaN would lose its bits")
    return made


TENSORS: Final[Mapping[str, Callable[[torch.Tensor], Any]]] = {
    "a NumPy array": lambda t: t.numpy(),
    "a sparse tensor": lambda t: t.to_sparse(),
    "a nested tensor": lambda t: torch.nested.as_nested_tensor([t, t]),
    "a meta tensor": lambda t: t.to("meta"),
    "a subclass": lambda t: t.as_subclass(_Subclass),
    "a wrapper without memory": _Wrapper,
    "a lazy negation": _negated,
    "a Parameter": lambda t: torch.nn.Parameter(t, requires_grad=False),
    "a tensor whose storage was resized to 0": _resized,
    "a tensor of complex numbers": lambda t: torch.conj(t.to(torch.complex64)),
    "an object array": lambda t: t.numpy().astype(object),
    "a list": lambda t: t.tolist(),
}
"""Other things that callers pass for a tensor."""

TAKEN: Final = frozenset({"a subclass", "a Parameter"})
"""Those that `fast` takes."""
