"""What is under test: an implementation on a device.

| target | what runs |
|---|---|
| `host` | the implementation on CPU tensors, its CPU path |
| `sim` | on CPU tensors, every kernel executed by the project's own simulator |
| `cuda` | on CUDA tensors |

Every function is looked up at call time, in the implementation, by name.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, ClassVar

import torch

import fast
import reference
from conformance.conversion import Carrier
from fast import launch


@dataclasses.dataclass(frozen=True)
class Target:
    """An implementation on a device.

    Attributes:
        name: `host`, `sim`, `cuda`; or `reference` for the meaning itself.
        implementation: The module in which functions are looked up.
        device: The type of device of its tensors; None for NumPy arrays.
        is_simulated: Whether kernels run in the simulator.
    """

    name: str
    implementation: ModuleType = fast
    device: str | None = "cpu"
    is_simulated: bool = False

    def lookup(self, function: str) -> Callable[..., Any]:
        """Return the function, or the method written `Class.method`, that now has this name.

        A property, written likewise, is a function of `self`.
        """
        found: Any = self.implementation
        for part in function.split("."):
            found = getattr(found, part)
        function_of_self: Any = found.fget if isinstance(found, property) else found
        return function_of_self  # type: ignore[no-any-return]  # a module's attribute

    def carrier(self, *, has_own_objects: bool = False) -> Carrier:
        """Return a new carrier of arguments to this target, its own objects or a caller's."""
        return Carrier(self.implementation, self.device, has_own_objects=has_own_objects)

    @contextlib.contextmanager
    def running(self, *, checked: bool = False, seed: int = 0) -> Iterator[None]:
        """Make calls inside run as this target's.

        Args:
            checked: Whether in checked mode, in which bad values are refused.
            seed: The order of blocks and threads, where kernels are simulated.
        """
        with contextlib.ExitStack() as stack:
            checks = getattr(self.implementation, "checks", None)
            if checks is not None:
                stack.enter_context(checks(checked))
            if self.is_simulated:
                threads = random.Random(seed).choice((2, 8, 32))  # noqa: S311  # no secret
                stack.enter_context(launch.simulated_by(_Simulation(seed), threads=threads))
            yield


@dataclasses.dataclass
class _Simulation:
    """A launcher that runs each kernel in the simulator, with a new seed for each launch."""

    seed: int
    counters: ClassVar[list[Callable[[], None]]] = []

    def __call__(self, kernel: Any, grid: tuple[int, int], threads: int, args: Any) -> None:
        from conformance.simulator import simulate  # noqa: PLC0415  # its greenlets are not needed on a GPU

        self.seed += 1
        for count in self.counters:
            count()
        simulate(kernel, grid, threads, args, seed=self.seed)


REFERENCE = Target("reference", reference, None)
"""The meaning, as if it were a target."""


@contextlib.contextmanager
def counting_launches(count: Callable[[], None]) -> Iterator[None]:
    """Call `count` for every kernel that is launched in the simulator inside."""
    _Simulation.counters.append(count)
    try:
        yield
    finally:
        _Simulation.counters.remove(count)


TARGETS = {
    target.name: target
    for target in (
        Target("host"),
        Target("sim", is_simulated=True),
        Target("cuda", device="cuda"),
    )
}


def default_targets() -> list[str]:
    """Return the names of the targets that run here when none are named."""
    return ["host", "cuda"] if torch.cuda.is_available() else ["host", "sim"]


def choose_targets(names: str | None) -> list[Target]:
    """Return the targets that a comma-separated list names, the default ones for None.

    Raises:
        ValueError: A name that is no target, or `cuda` where there is no GPU.

    >>> [target.name for target in choose_targets("sim,host")]
    ['sim', 'host']
    >>> choose_targets("gpu")
    Traceback (most recent call last):
        ...
    ValueError: target 'gpu' is unknown; there are host, sim, cuda
    """
    chosen = default_targets() if names is None else names.split(",")
    for name in chosen:
        if name not in TARGETS:
            raise ValueError(f"target {name!r} is unknown; there are {', '.join(TARGETS)}")
        if name == "cuda" and not torch.cuda.is_available():
            raise ValueError("target 'cuda' needs a GPU, and torch sees none")
    return [TARGETS[name] for name in chosen]
