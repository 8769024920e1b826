"""The classes of `reference.config`, plain ones of other modules, and constants."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any, Final

from hypothesis import strategies as st

import reference
from conformance.harness.contract import Arguments, Contract, Property
from conformance.harness.objects import Twin, attempt
from conformance.harness.targets import Target

VALUES: Final[tuple[Any, ...]] = (
    7,
    "x",
    None,
    True,
    -1,
    2**40,
    0.5,
    ["a"],
    [],
    {"a": 1},
    slice(0, 4),
)
"""What a field may hold: nothing is checked."""


def arguments_of(cls: str) -> st.SearchStrategy[Arguments]:
    required: dict[str, Any] = {}
    optional: dict[str, Any] = {}
    for field in dataclasses.fields(getattr(reference, cls)):
        has_default = {field.default, field.default_factory} != {dataclasses.MISSING}
        (optional if has_default else required)[field.name] = st.sampled_from(VALUES)
    return st.fixed_dictionaries(required, optional=optional)


def make(cls: str, twin: Twin, arguments: Arguments) -> Any:
    function = twin.function(cls)
    first, second = function(**arguments), function(**arguments)
    defaults = {*vars(first)} - {*arguments}
    containers = [name for name in defaults if isinstance(getattr(first, name), list | dict)]
    shared = [name for name in containers if getattr(first, name) is getattr(second, name)]
    return {
        "made": first,
        "equal": first == second,
        "one container in two objects": shared,
        "by position": _raised(function, *arguments.values()),
        "without the first": _raised(lambda: function(**dict([*arguments.items()][1:]))),
    }


def change(cls: str, twin: Twin, arguments: Arguments) -> Any:
    function = twin.function(cls)
    first, second = function(**arguments), function(**arguments)
    found: list[Any] = [_raised(hash, first)]
    for name in [field.name for field in dataclasses.fields(getattr(reference, cls))]:
        if name in arguments and getattr(first, name) is not arguments[name]:
            found.append(f"{name} is a copy")
        found.append((name, _raised(setattr, second, name, "another"), first == second))
        second = function(**arguments)
    return found


def _raised(function: Any, *args: Any) -> str:
    error = attempt(function, *args).error
    return "" if error is None else type(error).__name__


def plain_class(cls: str, *properties: Property) -> Contract:
    """Return the contract of a class that checks nothing; `properties` are further promises."""

    def run(twin: Twin, **arguments: Any) -> Any:
        return make(cls, twin, arguments)

    def fields_can_be_set_as_in_reference(target: Target, arguments: Arguments) -> None:
        if target.implementation.adapter.takes_own_objects:
            ours, theirs = (change(cls, twin, arguments) for twin in (Twin(), Twin(target)))
            assert ours == theirs, f"{theirs}, not {ours}"

    return Contract(
        function=cls,
        calls=st.just(arguments_of(cls)),
        run=run,
        properties=(fields_can_be_set_as_in_reference, *properties),
        examples=0.2,
    )


def constant(name: str) -> Contract:
    """Return the contract of a constant, an enumeration, or a class of constants."""

    def run(twin: Twin) -> Any:
        found: Any = twin.find(name)
        if not isinstance(found, type):
            return typing.get_args(found) or found
        members = {key: value for key, value in vars(found).items() if key.isupper()}
        plain = {key: getattr(value, "value", value) for key, value in members.items()}
        return plain, [value == 0 for value in members.values()]  # an enum's are no ints

    return Contract(function=name, calls=st.just(st.just({})), run=run, examples=0.05)


PLAIN: Final = (
    *("ModelConfig", "CacheConfig", "ParallelConfig", "SchedulerConfig", "PassConfig"),
    *("CompilationConfig", "SpeculativeConfig", "VllmConfig"),
    *("KVCacheTensor", "KVCacheGroupSpec", "KVCacheConfig", "PerLayerParameters"),
)

CONSTANTS: Final = (
    *("PAD_SLOT_ID", "NULL_BLOCK_ID", "KVCacheLayoutType", "AttentionType", "AttentionCGSupport"),
)

CONTRACTS = [*map(plain_class, PLAIN), *map(constant, CONSTANTS)]
