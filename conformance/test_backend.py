"""Backends: what they must define, and subclasses made from them."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

from conformance.contracts.check import property_check
from conformance.contracts.contract import Contract
from conformance.contracts.evaluation import check_equal, exception_of
from conformance.coverage.size_axes import Axis
from conformance.execution.invocations import Invocation
from conformance.invalid_inputs.backend import (
    SUBCLASS_BACKEND_INVALID_INPUTS,
    SUBCLASS_METADATA_INVALID_INPUTS,
)
from conformance.strategies import cached as st
from conformance.strategies.backend import (
    FIELDS,
    FIELDS_OF_A_CLASS,
    PREFIX_LENGTH,
    subclass_backend_calls,
    subclass_metadata_calls,
)
from conformance.strategies.stub_factories import BuilderClass
from conformance.targets.target import REFERENCE, Target
from conformance.values.call import Call

ABSTRACT = ("get_name", "get_builder_cls", "get_kv_cache_shape")


def _lacks_only(name: str) -> Any:
    return lambda said: set(ABSTRACT) - said == {name}


@property_check(
    "AttentionBackend",
    lambda _: st.sets(st.sampled_from((*ABSTRACT, "get_kv_cache_stride_order"))),
    goals={
        "nothing is said": lambda said: not said,
        "all that must be": lambda said: set(ABSTRACT) <= said,
        **{f"all but {name}": _lacks_only(name) for name in ABSTRACT},
    },
)
def test_a_backend_must_say(target: Target, said: set[str]) -> None:
    """Three methods are abstract, two are not, all are static; the stride order has no default."""
    base: Any = target.lookup("AttentionBackend")
    backend: Any = type("Plain", (base,), {name: staticmethod(tuple) for name in said})
    assert (type(None) if set(ABSTRACT) <= said else TypeError) is type(exception_of(backend))
    for owner in (base, backend):
        sizes = owner.get_supported_kernel_block_sizes()
        assert [target.lookup("MultipleOf")(1)] == sizes
        sizes.clear()
        assert 1 == len(owner.get_supported_kernel_block_sizes())
    is_said = "get_kv_cache_stride_order" in said
    for name in (*ABSTRACT, "get_supported_kernel_block_sizes", "get_kv_cache_stride_order"):
        assert isinstance(inspect.getattr_static(base, name), staticmethod), name
    expected = type(None) if is_said else NotImplementedError
    assert expected is type(exception_of(backend.get_kv_cache_stride_order))
    shape = inspect.signature(base.get_kv_cache_shape).parameters
    assert "auto" == shape["cache_dtype_str"].default


OF_NAMES = {PREFIX_LENGTH: Axis(lambda call: len(call["name_prefix"]), 65_537)}

test_subclass_attention_backend = Contract(
    "subclass_attention_backend",
    subclass_backend_calls,
    {
        "no prefix": lambda call: call["name_prefix"] == "",
        "an engine's own backend": lambda call: call["attention_backend_cls"].is_own,
        "a backend with a metaclass": lambda call: call["attention_backend_cls"].is_alike,
        "an engine's own builders": lambda call: call["builder_cls"].is_own,
    },
    axes=OF_NAMES,
    invalid_inputs=SUBCLASS_BACKEND_INVALID_INPUTS,
)


@property_check("subclass_attention_backend", subclass_backend_calls)
def test_a_subclass_changes_the_builder_alone(target: Target, call: Call) -> None:
    """Each subclass has its own builder, for class and instances; the base keeps its own."""
    invocation = Invocation(target, call)
    base, builder = (
        invocation.arguments["attention_backend_cls"],
        invocation.arguments["builder_cls"],
    )
    builder_before, second_builder = (
        base.get_builder_cls(),
        BuilderClass().make(invocation.converter),
    )
    with target.running():
        made = invocation.run()
        second = target.lookup(call.function)("Second", made, second_builder)
    for cls, expected in ((base, builder_before), (made, builder), (second, second_builder)):
        assert expected is cls.get_builder_cls()
        assert expected is cls().get_builder_cls()
        assert base.get_name() == cls.get_name()
        assert base.get_kv_cache_shape(9, 2, 1, 8) == cls.get_kv_cache_shape(9, 2, 1, 8)
    assert call["name_prefix"] + base.__name__ == made.__name__
    assert base.__module__ == made.__module__
    assert (base, made) == (made.__bases__[0], second.__bases__[0])


test_subclass_attention_metadata = Contract(
    "subclass_attention_metadata",
    subclass_metadata_calls,
    {
        "no prefix": lambda call: call["name_prefix"] == "",
        "a class that is not a dataclass": lambda call: not call["metadata_cls"].is_dataclass,
        "a frozen class": lambda call: _has(call, "is_frozen"),
        "a class that compares by identity": lambda call: _lacks(call, "has_eq"),
        "no fields": lambda call: not call["fields"],
        "several fields": lambda call: len(call["fields"]) > 1,
        "a field that the class has": lambda call: (
            "total" in [field[0] for field in call["fields"]]
        ),
        "fields in a tuple": lambda call: isinstance(call["fields"], tuple),
        "a field in a list": lambda call: any(isinstance(f, list) for f in call["fields"]),
    },
    axes={
        **OF_NAMES,
        FIELDS_OF_A_CLASS: Axis(
            lambda call: len(call["fields"]), 257, "to make a dataclass takes a while"
        ),
    },
    pairs=(("a frozen class", "a class that compares by identity"),),
    invalid_inputs=SUBCLASS_METADATA_INVALID_INPUTS,
)


def _has(call: Call, flag: str) -> bool:
    cls = call["metadata_cls"]
    return bool(cls.is_dataclass and getattr(cls, flag))


def _lacks(call: Call, flag: str) -> bool:
    cls = call["metadata_cls"]
    return bool(cls.is_dataclass and not getattr(cls, flag))


def _described(cls: Any) -> dict[str, Any]:
    """Return a description of a dataclass's public behaviour."""
    fields = dataclasses.fields(cls)
    lacking = ["-" for field in fields if field.default is dataclasses.MISSING]
    one, same = cls(*lacking), cls(*lacking)
    try:
        one.note = "changed"
        can_change = True
    except dataclasses.FrozenInstanceError:
        can_change = False
    else:
        one = cls(*lacking)
    return {
        "name": cls.__name__,
        "bases": [base.__name__ for base in cls.__mro__],
        "fields": [(field.name, getattr(field.type, "__name__", field.type)) for field in fields],
        "values": vars(one),
        "repr": repr(one).rsplit(".", 1)[-1],
        "compares by value": one == same,
        "can change": can_change,
        "can be a key": cls.__hash__ is not None,
    }


@property_check("subclass_attention_metadata", subclass_metadata_calls)
def test_a_subclass_has_more_fields(target: Target, call: Call) -> None:
    """The subclass equals the one that `reference` makes, and its base class is unchanged."""
    descriptions: list[Any] = []
    for invocation in (Invocation(REFERENCE, call), Invocation(target, call)):
        base = invocation.arguments["metadata_cls"]
        before = list(vars(base))
        made = invocation.answer(checked=False)
        assert base is made.__bases__[0]
        assert base.__module__ == made.__module__
        assert before == list(vars(base))
        descriptions.append(_described(made))
    check_equal(target, call, descriptions[0], descriptions[1])
    fields = {name: default for name, _, default in call["fields"]}
    assert fields == {name: descriptions[1]["values"][name] for name in fields}
    known = {"longest", "total"} if call["metadata_cls"].is_dataclass else set()
    assert {name for name, _, _ in FIELDS if name in fields} | known == set(
        descriptions[1]["values"]
    )


@property_check("subclass_attention_metadata", lambda _: st.sampled_from(("", "Padded")))
def test_what_reads_alike_may_differ(target: Target, prefix: str) -> None:
    """The same `dataclasses.field` gives the same class; defaults 1 and True give two classes."""
    base = dataclasses.make_dataclass("Lengths", [("longest", int)])
    one = dataclasses.field(default=3)
    make = target.lookup("subclass_attention_metadata")
    made = make(prefix, base, [("count", int, one)])
    assert made is make(prefix, base, [("count", int, one)])
    assert made is not make(prefix, base, [("count", int, dataclasses.field(default=3))])
    assert make(prefix, base, [("flag", object, 1)]) is not make(
        prefix, base, [("flag", object, True)]
    )
