"""The functions and classes that are probed, by name."""

from __future__ import annotations

import dataclasses
import inspect

import fast
import reference
from conformance.checks.registry import contracts
from conformance.contracts.contract import Contract
from conformance.vectors.folder import WITHOUT_VECTORS
from tools.probe.pools import calls_by_hand

NO_FUNCTIONS = {
    **{name: why for name, why in WITHOUT_VECTORS.items() if name != "UBatchSlice"},
    "get_kv_cache_layout": "called by each case of set_kv_cache_layout",
    "warmup": "takes nothing and returns nothing; called at the start",
}
"""Public names that no case calls, each with the reason."""


@dataclasses.dataclass(frozen=True)
class Subject:
    """A function that is probed.

    Attributes:
        name: Its name; a method's is `Class.method`.
        contract: Its contract in the conformance run, or an empty one.
    """

    name: str
    contract: Contract

    @property
    def is_compared(self) -> bool:
        """Whether its results for bad calls are compared with those of `reference`.

        False for classes that store their arguments unchecked, and for functions that pass them on
        to a builder of the caller.
        """
        return bool(self.contract.goals) and ".build_for_" not in self.name


def names() -> list[str]:
    """Return the names of all that is probed, sorted."""
    return sorted({*contracts(), *calls_by_hand(), *constructors()})


def unprobed() -> list[str]:
    """Return public names of `fast` that are neither probed nor listed in `NO_FUNCTIONS`."""
    probed = {name.split(".")[0] for name in names()}
    return sorted(set(fast.__all__) - probed - set(NO_FUNCTIONS))


def make_subject(name: str) -> Subject:
    """Return a function by its name."""
    contract = contracts().get(name)
    if name == "BlockTables":  # `sessions` compares its results
        contract = dataclasses.replace(_no_contract(name), shows=lambda made: type(made).__name__)
    return Subject(name, contract or _no_contract(name))


def _no_contract(name: str) -> Contract:
    return Contract(name, lambda _: None, {})  # type: ignore[arg-type, return-value]  # not drawn


def constructors() -> list[str]:
    """Return the public dataclasses without a contract, whose constructors are called."""
    others = {*contracts(), *calls_by_hand()}
    return [
        name
        for name in fast.__all__
        if inspect.isclass(getattr(reference, name, None))
        and dataclasses.is_dataclass(getattr(reference, name))
        and name not in others
    ]
