"""Targets: an implementation on a device, and the state of the process in which it is called.

| target | what runs |
|---|---|
| `host` | the implementation on CPU tensors, its CPU path |
| `native` | on CPU tensors, the machine code that numba-cuda makes of every kernel of `fast` |
| `cuda` | on CUDA tensors |
"""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any, Final

import torch

from conformance.adapters.implementations import FAST, Implementation
from conformance.entry_point import how_to_install
from conformance.harness.fresh_memory import filled_memory
from conformance.harness.launches import native_launches
from conformance.harness.show import one_line
from conformance.harness.story import Failure
from conformance.name_lists import names_in

KINDS: Final = ("host", "native", "cuda")
"""The names of targets, in the order in which they run."""


@dataclasses.dataclass(frozen=True)
class Target:
    """An implementation on a device.

    >>> Target("host").function("get_dcp_local_seq_lens")(torch.arange(4, dtype=torch.int32), 2, 0)
    tensor([0, 1, 1, 2], dtype=torch.int32)
    """

    name: str  # `host`, `native` or `cuda`; of several implementations, `mine:host`
    implementation: Implementation = FAST  # the implementation under test
    device: str = "cpu"  # the type of device of its tensors

    @property
    def kind(self) -> str:
        return self.name.rpartition(":")[2]

    @property
    def is_fast(self) -> bool:
        return self.implementation.module is FAST.module

    @property
    def is_strict(self) -> bool:
        return self.implementation.is_strict

    @property
    def lacks(self) -> frozenset[str]:
        """Fields that its objects do not have, as its adapter declares."""
        return self.implementation.adapter.lacks

    def excuses(self, failure: Failure) -> bool:
        found = (
            one for one in self.implementation.deviations if one.function == failure.story.function
        )
        return any(one.explains(one_line(failure)) for one in found)

    @property
    def has_checks(self) -> bool:
        """Whether it has a checked mode; without one it must always refuse bad values."""
        return self.implementation.has_checked_mode

    def offers(self, *names: str) -> bool:
        """Return whether the implementation has functions, or methods written `Class.method`."""
        return all(map(self.implementation.offers, names))

    def find(self, name: str) -> Any:
        """Return the class, constant or function that the implementation now has by this name."""
        return self.implementation.find(name)

    def function(self, name: str) -> Callable[..., Any]:
        """Return the function, or the method written `Class.method`, that now has this name.

        It takes and returns our objects; the adapter converts them.
        """
        return self.implementation.function(name)

    @contextlib.contextmanager
    def running(self, *, checked: bool = False, seed: int = 0) -> Iterator[None]:
        """Prepare the process for calls of this target.

        New memory is filled, so that it never contains the answer of an earlier call.

        Args:
            checked: Whether it verifies what `fast` verifies only in checked mode.
            seed: Sets the order in which the threads of kernels run on the target `native`.
        """
        with contextlib.ExitStack() as stack:
            if not self.is_fast:
                stack.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore")  # those of `fast` are errors
            if self.device == "cpu":  # a GPU lacks some operations in this mode
                stack.enter_context(filled_tensors())
                stack.enter_context(filled_memory())
            if self.has_checks:
                stack.enter_context(self.find("checks")(checked))
            if self.kind == "native":
                stack.enter_context(native_launches(seed))
            yield


@contextlib.contextmanager
def filled_tensors() -> Iterator[None]:
    """Make torch fill new CPU memory with NaN or the largest int."""
    # `use_deterministic_algorithms` does the same, but imports torch.compile: 1.7 s of a process.
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("warn")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


def default_kinds(implementation: Implementation = FAST) -> list[str]:
    """Return the targets that run here when none are named."""
    if torch.cuda.is_available():
        return ["host", "cuda"]
    has_kernels = implementation.is_fast and find_spec("numba_cuda") is not None
    return ["host", "native"] if has_kernels else ["host"]


def choose(names: str | None, implementations: Sequence[Implementation] = (FAST,)) -> list[Target]:
    """Return the targets that a comma-separated list names, the default ones for None.

    >>> [target.name for target in choose("native,host")]
    ['host', 'native']
    >>> choose("nativ")
    Traceback (most recent call last):
        ...
    ValueError: target 'nativ' is unknown; there are host, native, cuda
    """
    known = ", ".join(KINDS)
    try:
        chosen = None if names is None else names_in(names)
    except ValueError as error:
        raise ValueError(f"--target {error}; there are {known}") from error
    for name in chosen or ():
        if name not in KINDS:
            raise ValueError(f"target {name!r} is unknown; there are {known}")
    found = []
    for implementation in implementations:
        kinds = default_kinds(implementation) if chosen is None else chosen
        for kind in sorted(kinds, key=KINDS.index):
            _check(kind, implementation)
            name = kind if len(implementations) == 1 else f"{implementation.name}:{kind}"
            found.append(Target(name, implementation, "cuda" if kind == "cuda" else "cpu"))
    return found


def _check(kind: str, implementation: Implementation) -> None:
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError("target 'cuda' needs a GPU, but torch finds none")
    if kind == "native" and not implementation.is_fast:
        raise ValueError(
            f"target 'native' runs kernels of fast, but {implementation.name} has none"
        )
    if kind != "host" and implementation.is_fast and find_spec("numba_cuda") is None:
        raise ValueError(
            f"target {kind!r} needs numba_cuda, which is not installed: {how_to_install('cuda')}"
        )
