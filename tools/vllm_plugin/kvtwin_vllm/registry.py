"""The list of replacements, and vLLM's functions that they replace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

Function: TypeAlias = Callable[..., Any]

F = TypeVar("F", bound=Function)

VllmObject: TypeAlias = Any
"""An object of a class of vLLM, which this package does not import."""


@dataclass(frozen=True)
class Replacement:
    """A function that replaces one of vLLM's, of the same name and with the same parameters.

    Attributes:
        function: The replacement.
        module: The module of vLLM that defines the function.
        in_class: The class there of which it is a method; None: it is a function of the module.
        needs_exact_lengths: Whether it computes with the host's sequence lengths. With speculative
            decoding these are only upper bounds.
    """

    function: Function
    module: str
    in_class: str | None = None
    needs_exact_lengths: bool = False

    @property
    def name(self) -> str:
        """The function's name; for a method, after its class."""
        name = self.function.__name__
        return name if self.in_class is None else f"{self.in_class}.{name}"


REPLACEMENTS: Final[dict[str, Replacement]] = {}
"""All replacements, by name."""

ORIGINALS: Final[dict[str, Function]] = {}
"""The original functions of vLLM, by name, once they are replaced."""


def replaces(module: str, in_class: str | None = None, **options: Any) -> Callable[[F], F]:  # noqa: ANN401
    """Add a function to the replacements; the parameters are the fields of `Replacement`."""

    def add(function: F) -> F:
        added = Replacement(function, module, in_class, **options)
        REPLACEMENTS[added.name] = added
        return function

    return add
