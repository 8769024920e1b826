"""Targets: an implementation on a device, and how its functions are called there.

| target | what runs |
|---|---|
| `host` | the implementation on CPU tensors, its CPU path |
| `sim` | on CPU tensors, the Python source of every kernel in the project's own simulator |
| `native` | on CPU tensors, the machine code that numba-cuda makes of every kernel |
| `cuda` | on CUDA tensors |

Every function is looked up at call time, in the implementation, by name.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np
import torch

import fast
import reference
from conformance.adapters.deviation import Deviation
from conformance.arrays.fresh_memory import filled_memory
from conformance.coverage.presets import (
    MINIMAL,
    REAL,
    REAL_IN_NATIVE,
    REAL_IN_SIMULATOR,
    TRAFFIC,
    Preset,
)
from conformance.entry_point import how_to_install
from conformance.name_lists import names_in
from conformance.targets.conversion import Converter
from conformance.targets.implementations import FAST, NAMES, Implementation, is_of_fast
from conformance.targets.progress import PROGRESS
from conformance.targets.simulated_launches import native_launches, simulated_launches

STATEFUL_TEST: Final = "stateful test"
"""The name of the stateful test, where other checks have the name of a function."""

RAISED = (Exception, SystemExit)
"""Exceptions that count as answers of a call: `sys.exit` in it does not end a run."""

NEEDS: Final = {
    "sim": ("greenlet", "test"),
    "native": ("numba_cuda", "cuda"),
    "cuda": ("numba_cuda", "cuda"),
}
"""The package that runs the kernels of `fast` on a target, and the extra that installs it."""

LOOKED_UP: set[str] = set()
"""The functions looked up in a target since this was last cleared: those that a test used."""


Answer: TypeAlias = Any
"""Any return value of an implementation."""


@dataclasses.dataclass(frozen=True)
class Target:
    """An implementation on a device.

    Attributes:
        name: `host`, `sim`, `native`, `cuda`; or `reference` for the definition itself.
        implementation: The implementation under test.
        device: The device type of its tensors; None for NumPy arrays.
        simulation: A context manager that runs kernels on the CPU, in the thread order of a seed;
            None if they run on a GPU, or not at all.
        presets: The presets of its examples.

    >>> target = TARGETS["host"]
    >>> target.call("get_dcp_local_seq_lens", target.array(np.arange(4, dtype=np.int32)), 2, 0)
    tensor([0, 1, 1, 2], dtype=torch.int32)
    """

    name: str
    implementation: Implementation = FAST
    device: str | None = "cpu"
    simulation: Callable[..., AbstractContextManager[None]] | None = None
    presets: tuple[Preset, ...] = (MINIMAL, REAL, TRAFFIC)

    @property
    def is_simulated(self) -> bool:
        """Whether kernels run on the CPU."""
        return self.simulation is not None

    def find(self, name: str) -> Any:
        """Return the class, constant or function that the implementation now has by this name.

        Raises:
            Absent: The implementation has no such thing.
        """
        return self.implementation.find(name)

    def lookup(self, function: str) -> Callable[..., Any]:
        """Return the function, or the method written `Class.method`, that now has this name.

        It takes and returns our objects. A property, written likewise, is a function of `self`.

        Raises:
            Absent: The implementation has no such thing.
        """
        if self.device is not None:
            LOOKED_UP.add(function)
            PROGRESS.note(function)
        return self.implementation.function(function)

    def call(self, name: str, *args: object, **kwargs: object) -> Answer:
        """Call a function or a method of a class, `Class.method`, or make an object of a class."""
        return self._run(name, self.lookup(name), *args, **kwargs)

    def method(self, owner: object, name: str, *args: object, **kwargs: object) -> Answer:
        """Call a method of an object that the implementation made."""
        method = f"{type(owner).__name__}.{name}"
        PROGRESS.note(method)
        return self._run(method, getattr(owner, name), *args, **kwargs)

    def attribute(self, owner: object, name: str) -> Answer:
        """Read a property of an object that the implementation made."""
        return self._run(f"{type(owner).__name__}.{name}", getattr, owner, name)

    def _run(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Answer:
        """Call a function; a subclass may record the call by its name."""
        del name
        return function(*args, **kwargs)

    def array(self, array: np.ndarray[Any, Any]) -> Answer:
        """Return an array as a tensor on the device, or the array itself if there is none."""
        return array if self.device is None else torch.from_numpy(array).to(self.device)

    def dtype(self, name: str) -> Answer:
        """Return torch's dtype of a name, or NumPy's where there is no device.

        >>> REFERENCE.dtype("bfloat16"), TARGETS["host"].dtype("bfloat16")
        (dtype(bfloat16), torch.bfloat16)
        """
        if self.device is None:
            return np.dtype(getattr(ml_dtypes, name, name))
        return getattr(torch, name)

    def lacks(self, function: str) -> list[str]:
        """Return the missing names without which a function cannot be checked here.

        `STATEFUL_TEST` uses all names.
        """
        if not hasattr(reference, function.partition(".")[0]):
            if function == STATEFUL_TEST:
                return [name for name in NAMES if not self.implementation.offers(name)]
            if not hasattr(fast, function):  # a toy function of a test
                return []
        return [] if self.implementation.offers(function) else [function]

    @property
    def missing_fields(self) -> frozenset[str]:
        """Fields that the implementation's objects do not have."""
        return self.implementation.adapter.lacks

    @property
    def validates(self) -> bool:
        """Whether the implementation rejects invalid calls."""
        return self.implementation.adapter.validates

    def launches(self, function: str) -> bool:
        """Return whether a function is absent, or `fast`'s own, whose kernels must be simulated."""
        if not self.implementation.offers(function):
            return True
        return is_of_fast(self.find(function))

    def deviations(self, function: str) -> list[Deviation]:
        """Return the declared deviations of a function."""
        return [known for known in self.implementation.deviations if known.function == function]

    def of(self, ours: object, name: str, *args: object) -> Answer:
        """Call the implementation's method, or read its property, on one of our objects."""
        return self.call(f"{type(ours).__name__}.{name}", ours, *args)

    def own(self, ours: object) -> Answer:
        """Return the implementation's own object for one of ours, which an adapter converts."""
        return self.implementation.adapter.theirs(ours)

    def undeclared(self) -> Target:
        """Return this target with no deviations declared."""
        implementation = copy.copy(self.implementation)
        implementation.deviations = ()
        return dataclasses.replace(self, implementation=implementation)

    def excuses(self, function: str, error: BaseException) -> bool:
        """Return whether a declared deviation explains a failure of a function."""
        return any(explains(known, error) for known in self.deviations(function))

    def converter(self, **options: Any) -> Converter:
        """Return a new converter of arguments for this target, with `Converter`'s options."""
        return Converter(self.implementation, self.device, **options)

    @contextlib.contextmanager
    def running(self, *, checked: bool = False, seed: int = 0) -> Iterator[None]:
        """Set up the process for this target's calls; `seed` sets the thread order of kernels."""
        nothing = contextlib.nullcontext()
        is_ours = self.implementation.module in {fast, reference}
        is_poisoned = self.device == "cpu"  # a GPU lacks some operations in this mode
        has_mode = self.implementation.has_checked_mode
        with (
            nothing if is_ours else _ignoring_warnings(),
            deterministic("warn") if is_poisoned else nothing,
            filled_memory() if is_poisoned else nothing,
            self.find("checks")(checked) if has_mode else nothing,
            nothing if self.simulation is None else self.simulation(seed),
        ):
            yield


def explains(known: Deviation, error: BaseException) -> bool:
    """Return whether a deviation explains a failure, or its cause."""
    difference = getattr(error, "difference", None)  # its message breaks long lines
    if known.explains(str(error)) or known.explains(getattr(difference, "line", "")):
        return True
    return error.__cause__ is not None and explains(known, error.__cause__)


@contextlib.contextmanager
def _ignoring_warnings() -> Iterator[None]:
    """Ignore the warnings of other implementations; those of `fast` are errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def deterministic(mode: str) -> Iterator[None]:
    """Make torch fill new memory with NaN or the largest int.

    Otherwise unwritten memory may contain the right answer of an earlier call.

    Args:
        mode: What torch does if an operation is not deterministic: `warn` or `error`.
    """
    # `use_deterministic_algorithms` does the same, but imports torch.compile: 1.7 s of a process.
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode(mode)
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


REFERENCE = Target("reference", Implementation("reference", reference), None)
"""The definition, as if it were a target."""


TARGETS = {
    target.name: target
    for target in (
        Target("host"),
        Target("sim", simulation=simulated_launches, presets=(MINIMAL, REAL_IN_SIMULATOR)),
        Target("native", simulation=native_launches, presets=(MINIMAL, REAL_IN_NATIVE)),
        Target("cuda", device="cuda"),
    )
}


def default_targets(implementation: Implementation = FAST) -> list[str]:
    """Return the names of the targets that run here when none are named.

    The kernels of `fast`, and those of an implementation that re-exports them, run as machine code
    where numba-cuda can compile them, and in the simulator elsewhere.
    """
    if torch.cuda.is_available():
        return ["host", "cuda"]
    if not implementation.is_fast:
        return ["host"]
    return ["host", "sim" if find_spec("numba_cuda") is None else "native"]


def choose_targets(
    names: str | None, implementations: Sequence[Implementation] = (FAST,)
) -> list[Target]:
    """Return the targets that a comma-separated list names, the default ones for None.

    Each implementation is tested on each target. With several, the names are
    `implementation:target`.

    Raises:
        ValueError: An unknown target, an empty list, `cuda` without a GPU, `sim` or `native` for an
            implementation without kernels of `fast`, or a target whose package is not installed.

    >>> [target.name for target in choose_targets("sim,host")]
    ['sim', 'host']
    >>> choose_targets("gpu")
    Traceback (most recent call last):
        ...
    ValueError: target 'gpu' is unknown; there are host, sim, native, cuda
    """
    found = []
    try:
        chosen = None if names is None else names_in(names)
    except ValueError as error:
        raise ValueError(f"--target {error}; there are {', '.join(TARGETS)}") from error
    for implementation in implementations:
        for name in default_targets(implementation) if chosen is None else chosen:
            if name not in TARGETS:
                raise ValueError(f"target {name!r} is unknown; there are {', '.join(TARGETS)}")
            if name == "cuda" and not torch.cuda.is_available():
                raise ValueError("target 'cuda' needs a GPU, but torch finds none")
            package, extra = NEEDS.get(name, ("", ""))
            if implementation.is_fast and package and find_spec(package) is None:
                raise ValueError(
                    f"target {name!r} needs {package}, which is not installed:"
                    f" {how_to_install(extra)}"
                )
            if name in {"sim", "native"} and not implementation.is_fast:
                raise ValueError(
                    f"target {name!r} runs kernels of fast, but {implementation.name} has none"
                )
            label = name if len(implementations) == 1 else f"{implementation.name}:{name}"
            found.append(
                dataclasses.replace(TARGETS[name], name=label, implementation=implementation)
            )
    return found
