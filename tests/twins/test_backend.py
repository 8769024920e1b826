"""Backends: the interface, its defaults, and backends and metadata that extend others."""

from __future__ import annotations

import abc
import dataclasses
import gc
import inspect
import weakref
from typing import Any

import numpy as np
import pytest


class Builder:
    """An engine's own builder."""


class Backend:
    """Says the least that a backend must."""

    @staticmethod
    def get_name() -> str:
        """Return a name."""
        return "LEAST"

    @staticmethod
    def get_builder_cls() -> type[object]:
        """Return a class of builders."""
        return object

    @staticmethod
    def get_kv_cache_shape(*sizes: int) -> tuple[int, ...]:
        """Return the sizes."""
        return sizes


@pytest.fixture
def backend(twin: Any) -> Any:
    """Return a backend that extends the twin's interface."""
    return type("Backend", (Backend, twin.AttentionBackend), {})


def test_names(twin: Any) -> None:
    """Every name of the field's module is importable from it, and is the package's."""
    for name in twin.backend.__all__:
        assert getattr(twin.lib, name) is getattr(twin.backend, name)


@pytest.mark.parametrize("name", ["get_name", "get_builder_cls", "get_kv_cache_shape"])
def test_a_backend_must_say(twin: Any, backend: Any, name: str) -> None:
    """A backend that lacks one of three methods has no instances; it needs no others."""
    lacking = type("Lacking", (backend,), {name: vars(twin.AttentionBackend)[name]})
    with pytest.raises(TypeError, match=f"abstract.*{name}"):
        lacking()
    assert isinstance(backend(), twin.AttentionBackend)


def test_all_methods_are_static(twin: Any) -> None:
    """Each method is called on the class as well as on an instance."""
    methods = {
        name: value for name, value in vars(twin.AttentionBackend).items() if name[:4] == "get_"
    }
    assert len(methods) == 5
    assert all(isinstance(method, staticmethod) for method in methods.values())


def test_defaults_of_a_backend(twin: Any, backend: Any) -> None:
    """A backend takes all block sizes, and has no stride order, which means the identity."""
    for cls_or_instance in (backend, backend()):
        assert [twin.MultipleOf(1)] == cls_or_instance.get_supported_kernel_block_sizes()
        with twin.refuses(
            "NotImplementedError: no order is stated: dimensions lie in memory as in the shape"
        ):
            cls_or_instance.get_kv_cache_stride_order()


def test_the_default_block_sizes_are_a_new_list(twin: Any, backend: Any) -> None:
    """A caller that changes the list does not change the backend."""
    backend.get_supported_kernel_block_sizes().append(16)
    assert [twin.MultipleOf(1)] == backend.get_supported_kernel_block_sizes()


def test_attention_metadata_is_empty(twin: Any) -> None:
    """The base class of metadata has no requirements, and dataclasses may extend it."""
    frozen = dataclasses.make_dataclass("Ours", ["n"], bases=(twin.AttentionMetadata,), frozen=True)
    assert isinstance(frozen(3), twin.AttentionMetadata)
    assert isinstance(twin.AttentionMetadata(), twin.AttentionMetadata)


def test_subclass_of_a_backend(twin: Any, backend: Any) -> None:
    """It equals the backend except for its name and its builders, as a class and as an instance."""
    made = twin.subclass_attention_backend("Fast", backend, Builder)
    assert ("FastBackend", backend.__module__) == (made.__name__, made.__module__)
    assert issubclass(made, backend)
    assert Builder is made.get_builder_cls()
    assert Builder is made().get_builder_cls()
    assert made.get_name() == "LEAST"
    assert object is backend.get_builder_cls()
    again = twin.subclass_attention_backend("Twice", made, object)
    assert ("TwiceFastBackend", object) == (again.__name__, again.get_builder_cls())


def test_subclasses_of_one_backend_do_not_disturb_each_other(twin: Any) -> None:
    """Each has the builders that it was made with."""
    classes = [type(name, (Builder,), {}) for name in ("One", "Other")]
    backends = [twin.subclass_attention_backend("", Backend, cls) for cls in classes]
    assert classes == [backend.get_builder_cls() for backend in backends]


def test_subclass_of_an_abstract_backend(twin: Any) -> None:
    """What is abstract stays so, but for `get_builder_cls`; a foreign class will do as well."""
    backend = twin.subclass_attention_backend("Our", twin.AttentionBackend, Builder)
    assert inspect.isabstract(backend)
    assert {"get_name", "get_kv_cache_shape"} == backend.__abstractmethods__
    assert type(backend) is abc.ABCMeta
    foreign = twin.subclass_attention_backend("Our", type("Foreign", (), {}), Builder)
    assert ("OurForeign", Builder) == (foreign.__name__, foreign().get_builder_cls())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((7, Backend, Builder), "name_prefix must be a str, got 7 of int"),
        ((None, Backend, Builder), "name_prefix must be a str, got None of NoneType"),
        (("Fast", "B", Builder), "attention_backend_cls must be a class, got 'B' of str"),
        (("Fast", Backend, None), "builder_cls must be a class, got None of NoneType"),
    ],
)
def test_refusals_of_subclass_attention_backend(
    twin: Any, arguments: tuple[Any, ...], message: str
) -> None:
    """A prefix that is not a str and classes that are none are refused, in these words."""
    with twin.refuses(f"TypeError: {message}"):
        twin.subclass_attention_backend(*arguments)


@dataclasses.dataclass
class Plain:
    """A metadata that compares by value."""

    num_reqs: int
    scale: float = 1.0


@dataclasses.dataclass(frozen=True)
class Frozen:
    """A metadata that cannot be changed."""

    num_reqs: int


def test_subclass_of_a_metadata(twin: Any) -> None:
    """It has the fields of the other, then the new ones with their defaults, and is named so."""
    cls = twin.subclass_attention_metadata(
        "Fast", Plain, [("lens", list[int] | None, None), ("n", int, 3)]
    )
    assert cls.__name__ == "FastPlain"
    assert Plain.__module__ == cls.__module__
    assert issubclass(cls, Plain)
    assert {"num_reqs": 7, "scale": 0.5, "lens": None, "n": 3} == vars(cls(7, 0.5))
    assert cls(7, 0.5, [1], 4) == cls(num_reqs=7, scale=0.5, lens=[1], n=4)
    assert cls(7) != cls(7, n=4)
    assert ["num_reqs", "scale"] == [field.name for field in dataclasses.fields(Plain)]
    assert list[int] | None == {f.name: f.type for f in dataclasses.fields(cls)}["lens"]


@pytest.mark.parametrize("fields", [[], (), (("n", int, 3),), [["n", int, 3]]])
def test_fields_are_lists_or_tuples(twin: Any, fields: Any) -> None:
    """Fields may be none; they and their parts may be lists or tuples."""
    cls = twin.subclass_attention_metadata("Fast", Plain, fields)
    assert (1, {"n": 3} if fields else {}) == (
        cls(1).num_reqs,
        {name: value for name, value in vars(cls(1)).items() if name == "n"},
    )


def test_frozen_stays_frozen(twin: Any) -> None:
    """A frozen metadata's subclass is frozen, hashes by value, and so for the subclass's own."""
    cls = twin.subclass_attention_metadata("Fast", Frozen, [("n", int, 3)])
    deeper = twin.subclass_attention_metadata("Very", cls, [("m", int, 4)])
    for made in (cls(1), deeper(1)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            made.n = 5
    assert hash(cls(1)) == hash(cls(1, 3))
    assert deeper.__name__ == "VeryFastFrozen"
    twin.subclass_attention_metadata("Fast", Plain, [("n", int, 3)])(1).n = 5


def test_comparison_stays_as_it_was(twin: Any) -> None:
    """A subclass of what compares by identity does; what is not a dataclass gives the usual one."""
    own = twin.subclass_attention_metadata("Our", twin.CommonAttentionMetadata, [("n", int, 3)])
    values = dict.fromkeys(inspect.signature(twin.CommonAttentionMetadata).parameters, 0)
    assert own(**values) != own(**values)
    assert len({own(**values), own(**values)}) == 2
    empty = twin.subclass_attention_metadata("Our", twin.AttentionMetadata, [("n", int, 3)])
    assert empty() == empty(3)
    assert empty() != empty(4)
    empty().n = 5


def test_the_subclass_of_a_frozen_dataclass_that_is_none_itself(twin: Any) -> None:
    """What extends a frozen dataclass without being decorated counts as frozen."""
    cls = twin.subclass_attention_metadata("Our", type("Bare", (Frozen,), {}), [("n", int, 3)])
    with pytest.raises(dataclasses.FrozenInstanceError):
        cls(1).n = 5


def test_a_field_that_is_there_already(twin: Any) -> None:
    """It gets the new default, and keeps its place."""
    cls = twin.subclass_attention_metadata("Fast", Plain, [("scale", float, 2.0)])
    assert ["num_reqs", "scale"] == [field.name for field in dataclasses.fields(cls)]
    assert 2.0 == cls(1).scale
    assert 1.0 == Plain(1).scale


def test_a_default_that_is_made_anew(twin: Any) -> None:
    """A default may be a field with a factory."""
    made_anew = dataclasses.field(default_factory=list)
    cls = twin.subclass_attention_metadata("Fast", Plain, [("lens", list[int], made_anew)])
    assert [] == cls(1).lens
    assert cls(1).lens is not cls(1).lens


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("My\0", Plain, []), "ValueError: name_prefix is 'My\\x00', expected no null character"),
        (
            ("F", Plain, [("n", int, 3), ("m", int)]),
            "ValueError: fields[1] has 2 parts, expected 3: name, type and default",
        ),
        (
            ("F", Plain, [("two words", int, 3)]),
            "ValueError: fields[0][0] is 'two words', expected an identifier",
        ),
        (
            ("F", Plain, [("class", int, 3)]),
            "ValueError: fields[0][0] is 'class', expected an identifier",
        ),
        (
            ("F", Plain, [("n", int, 3), ("m", int, 3), ("n", int, 4)]),
            "ValueError: fields[2][0] is 'n', the same as fields[0][0]",
        ),
    ],
)
def test_refusals_of_subclass_attention_metadata(
    twin: Any, arguments: tuple[Any, ...], message: str
) -> None:
    """Each wrong argument is refused, in these words."""
    with twin.refuses(message):
        twin.subclass_attention_metadata(*arguments)


def test_a_default_that_can_be_changed_is_refused(twin: Any) -> None:
    """A list that all metadata would share is no default."""
    with twin.refuses(
        "ValueError: mutable default <class 'list'> for field lens is not allowed: use "
        "default_factory"
    ):
        twin.subclass_attention_metadata("F", Plain, [("lens", list[int], [])])


def test_backends_are_made_once(twin: Any) -> None:
    """The same three arguments give the same class; another of any gives another."""
    other_backend, other_builder = (type(cls.__name__, (cls,), {}) for cls in (Backend, Builder))
    arguments = [
        ("Fast", Backend, Builder),
        ("", Backend, Builder),
        ("Fast", other_backend, Builder),
        ("Fast", Backend, other_builder),
    ]
    made = [twin.subclass_attention_backend(*each) for each in arguments]
    again = [twin.subclass_attention_backend(*each) for each in arguments]
    assert all(one is same for one, same in zip(made, again, strict=True))
    assert len({id(backend) for backend in made}) == 4


class Alike(type):
    """Makes classes that equal all classes of their name."""

    def __eq__(cls, other: object) -> bool:
        return isinstance(other, type) and cls.__name__ == other.__name__

    def __hash__(cls) -> int:
        return hash(cls.__name__)


class Unhashable(type):
    """Makes classes that equal all others that it makes, and have no hash."""

    def __eq__(cls, other: object) -> bool:
        return isinstance(other, Unhashable)  # `type` too is more than Python 3.11.2 can bear

    __hash__ = None  # type: ignore[assignment]  # as Python itself says that there is none


@pytest.mark.parametrize("metaclass", [Alike, Unhashable])
def test_classes_that_equal_each_other_are_not_one(twin: Any, metaclass: type[Any]) -> None:
    """A class is known by what it is, not by what it says that it equals."""
    one, other = (metaclass("Own", (), {"n": 1}) for _ in range(2))
    for make in (
        lambda cls: twin.subclass_attention_backend("Fast", cls, Builder),
        lambda cls: twin.subclass_attention_backend("Fast", Backend, cls),
        lambda cls: twin.subclass_attention_metadata("Fast", cls, [("m", int, 3)]),
    ):
        classes = [make(one), make(other), make(one)]
        assert classes[0] is classes[2]
        assert classes[0] is not classes[1]


def test_metadata_classes_are_made_once(twin: Any) -> None:
    """The same prefix, class and fields, lists or tuples, give the same class."""
    made = twin.subclass_attention_metadata(
        "Fast", Plain, [("lens", list[int] | None, None), ("n", int, 3)]
    )
    again = twin.subclass_attention_metadata(
        "Fast", Plain, (["lens", list[int] | None, None], ["n", int, 3])
    )
    assert made is again
    others = [
        twin.subclass_attention_metadata("Slow", Plain, [("n", int, 3)]),
        twin.subclass_attention_metadata("Fast", Frozen, [("n", int, 3)]),
        twin.subclass_attention_metadata("Fast", Plain, [("n", int, 4)]),
        twin.subclass_attention_metadata("Fast", Plain, [("n", float, 3)]),
        twin.subclass_attention_metadata("Fast", Plain, [("n", "int", 3)]),
        twin.subclass_attention_metadata("Fast", Plain, [("m", int, 3)]),
        twin.subclass_attention_metadata("Fast", Plain, []),
        twin.subclass_attention_metadata("Fast", Plain, [("n", int, 3)]),
    ]
    assert len({id(cls) for cls in (made, *others)}) == 9


@pytest.mark.parametrize(
    "defaults", [(1, True, 1.0), (0.0, -0.0), ((1,), (True,)), (np.int32(3), np.int64(3), 3)]
)
def test_defaults_that_are_equal_but_not_the_same(twin: Any, defaults: tuple[Any, ...]) -> None:
    """Each class has the default that it was requested."""
    classes = [twin.subclass_attention_metadata("Fast", Frozen, [("n", int, d)]) for d in defaults]
    assert len({id(cls) for cls in classes}) == len(defaults)
    assert [repr(default) for default in defaults] == [repr(cls(1).n) for cls in classes]


def test_defaults_that_cannot_be_a_key(twin: Any) -> None:
    """A field is known by itself; a default without a hash makes every class new."""
    made_anew = [("lens", list[int], dataclasses.field(default_factory=list))]
    classes = [twin.subclass_attention_metadata("Fast", Plain, made_anew) for _ in range(3)]
    assert len({id(cls) for cls in classes}) == 1
    pairs = [("pairs", tuple[list[int]], ([1],))]
    classes = [twin.subclass_attention_metadata("Fast", Plain, pairs) for _ in range(2)]
    assert [([1],), ([1],)] == [cls(1).pairs for cls in classes]
    assert classes[0] is not classes[1]


def test_classes_are_garbage_collected(twin: Any) -> None:
    """When nobody uses them any more, they, and what they extend, are gone."""

    def use() -> list[weakref.ref[Any]]:
        backend, builder, metadata = (
            type(cls.__name__, (cls,), {}) for cls in (Backend, Builder, Plain)
        )
        made = [
            twin.subclass_attention_backend("Fast", backend, builder),
            twin.subclass_attention_metadata("Fast", metadata, [("n", int, 3)]),
        ]
        return [weakref.ref(cls) for cls in (backend, builder, metadata, *made)]

    references = use()
    gc.collect()
    assert [None] * 5 == [reference() for reference in references]
