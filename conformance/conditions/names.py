"""Names, classes and numbers that look alike, to find caches whose keys are too coarse.

Names of layers differ only in case, or are equal when they are normalized, stripped or truncated.
Different classes have the same name. Different numbers have the same hash.
"""

from __future__ import annotations

import dataclasses
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

from conformance.conditions.known_answer import KnownAnswer
from conformance.conditions.scenarios import Scenario
from conformance.contracts.contract import Contract
from conformance.targets.factories import Factory
from conformance.targets.target import RAISED, Target
from conformance.values.call import Call
from conformance.values.parts import is_reference_object


def differing_in_case(number: int) -> str:
    """Return one of the names that are equal in lower case.

    >>> differing_in_case(0), differing_in_case(2)
    ('decoder.attention', 'dEcoder.attention')
    """
    letters = "decoder.attention"
    return "".join(c.upper() if number >> k & 1 else c for k, c in enumerate(letters))


def equal_when_normalized(number: int) -> str:
    """Return one of the names that are equal when Unicode is normalized.

    >>> [len(equal_when_normalized(number)) for number in (0, 1, 3)]
    [12, 13, 14]
    """
    forms = unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é")
    return "".join(forms[number >> k & 1] for k in range(12))


def prefixes(number: int) -> str:
    """Return one of the names that begin with 300 equal characters, each a prefix of the next.

    >>> len(prefixes(0)), prefixes(3)[-5:]
    (300, 'xxaaa')
    """
    return "x" * 300 + "a" * number


def with_empty_parts(number: int) -> str:
    """Return one of the names that differ in the number of dots at their end.

    >>> with_empty_parts(2)
    '.attn...'
    """
    return ".attn." + "." * number


ALIKE: Final[Mapping[str, Callable[[int], str]]] = {
    "with names that differ in case": differing_in_case,
    "with names that are equal when normalized": equal_when_normalized,
    "with long names that begin alike": prefixes,
    "with names that differ in empty parts": with_empty_parts,
}
"""Functions that return a name for each number, by their names in reports."""

ONE_NAME: Final = "with classes of one name"
ONE_HASH: Final = "with floats of one hash"

TAKE_NAMES: Final = frozenset(
    {
        "UniformTypeKVCacheSpecs",
        "UniformTypeKVCacheSpecs.from_specs",
        "UniformTypeKVCacheSpecs.is_uniform_type",
        "_allocate_kv_cache",
        "_reshape_kv_cache",
        "add_kv_sharing_layers_to_kv_cache_groups",
        "bind_kv_cache",
        "get_kv_cache_spec",
        "get_layers_from_vllm_config",
        "get_per_layer_parameters",
        "infer_global_hyperparameters",
        "init_attn_backend",
        "init_kv_cache",
        "initialize_kv_cache_for_kv_sharing",
        "prepare_kernel_block_sizes",
    }
)
"""Functions that take names of layers."""

TAKE_CLASSES: Final = frozenset(
    {
        "create_fast_prefill_custom_backend",
        "get_kv_cache_spec",
        "get_layers_from_vllm_config",
        "get_per_layer_parameters",
        "init_attn_backend",
    }
)
"""Functions that take classes of an engine, or objects of them."""

TAKE_FLOATS: Final = frozenset(
    {"PerLayerParameters", "infer_global_hyperparameters", "request_memory"}
)
"""Functions that take floats."""

HASH_PERIOD: Final = 2.0**61
"""A factor that keeps the hash of a float, since CPython hashes modulo 2^61 - 1."""


def goals_of_names(contract: Contract) -> list[str]:
    """Return the scenarios that calls of a contract must have."""
    goals = [*ALIKE] if contract.function in TAKE_NAMES else []
    goals += [ONE_NAME] if contract.function in TAKE_CLASSES else []
    return [*goals, ONE_HASH] if contract.function in TAKE_FLOATS else goals


def name_scenarios(expected: KnownAnswer, _: KnownAnswer) -> Iterator[Scenario]:
    """Yield calls with other names of layers, other names of classes, and other floats.

    The old name of a layer, with its index, is appended to the new one if `reference` needs it.
    """
    names = {name: number for number, name in enumerate(_keys(expected.call.arguments))}
    for condition, alike in ALIKE.items():
        for tail in ("", ".{}"):
            renamed = {name: alike(k) + tail.format(name) for name, k in names.items()}
            known = _known_answer(expected, str, renamed.get) if names else None
            if known is not None:
                yield Scenario(condition, partial(_check, expected, known, condition))
                break
    known = _known_answer(expected, str, lambda _: None, class_name="LAYER")
    if known is not None:
        yield Scenario(ONE_NAME, partial(_check, expected, known, ONE_NAME))
    for factor in (HASH_PERIOD, 1 / HASH_PERIOD):
        known = _known_answer(expected, float, factor.__mul__)
        if known is not None and known.differs_from(expected):
            yield Scenario(ONE_HASH, partial(_check, expected, known, ONE_HASH))
            break


def _check(first: KnownAnswer, second: KnownAnswer, condition: str, target: Target) -> None:
    """Raise `Mismatch` if a target mistakes one call for the other."""
    __tracebackhide__ = True
    for expected in (first, second, first):
        expected.check(expected.invocation(target), condition)


def _keys(value: Any) -> list[str]:
    """Return the keys of all dicts in a value that are strings with a dot."""
    found: dict[str, None] = {}

    def look(part: Any) -> None:
        if isinstance(part, dict):
            found.update(dict.fromkeys(key for key in part if isinstance(key, str) and "." in key))
        for inner in _parts(part).values():
            look(inner)

    for argument in value.values():
        look(argument)
    return list(found)


def _parts(value: Any) -> Mapping[Any, Any]:
    """Return the entries or the fields of a value; empty for a leaf."""
    if isinstance(value, dict):
        return value
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    if isinstance(value, SimpleNamespace):
        return vars(value)
    if is_reference_object(value) or _is_factory(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {}


def _is_factory(value: object) -> bool:
    return isinstance(value, Factory) and dataclasses.is_dataclass(value)


def _known_answer(
    expected: KnownAnswer,
    kind: type,
    change: Callable[[Any], object | None],
    class_name: str = "",
) -> KnownAnswer | None:
    """Return a call with other leaves, and its answer; None if nothing changes, or it is refused.

    For the arguments, see `_Rewriting`.
    """
    rewriting = _Rewriting(kind, change, class_name)
    call = expected.call
    arguments = {name: rewriting.changed(value) for name, value in call.arguments.items()}
    if not rewriting.has_changed:
        return None
    try:
        return KnownAnswer.of(expected.contract, Call(call.function, arguments, call.source))
    except RAISED:
        return None


class _Rewriting:
    """Copies values with other names or numbers; the copies of one object are one object.

    Args:
        kind: The type of the leaves to change.
        change: Returns the new value, or None to keep the old one.
        class_name: The new name of all classes; empty to keep their names.

    Attributes:
        has_changed: Whether any value has changed.
    """

    def __init__(self, kind: type, change: Callable[[Any], object | None], class_name: str) -> None:
        self._kind = kind
        self._change = change
        self._class_name = class_name
        self._made: dict[int, Any] = {}
        self.has_changed = False

    def changed(self, value: Any) -> Any:
        """Return a value with its leaves changed."""
        if type(value) is self._kind:
            new = self._change(value)
            self.has_changed |= new is not None and new != value
            return value if new is None else new
        if id(value) not in self._made:
            self._made[id(value)] = self._rebuilt(value)
        return self._made[id(value)]

    def _rebuilt(self, value: Any) -> Any:
        parts = {key: self.changed(part) for key, part in _parts(value).items()}
        is_class = _is_factory(value) and type(value).__name__.endswith("Class")
        if self._class_name and is_class and "name" in parts:
            self.has_changed = True
            parts["name"] = self._class_name
        if not parts:
            return value
        if isinstance(value, dict):
            return {self.changed(key): part for key, part in parts.items()}
        if isinstance(value, list | tuple):
            return type(value)(parts.values())
        if isinstance(value, SimpleNamespace):
            return SimpleNamespace(**parts)
        return dataclasses.replace(value, **parts)
