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

import reference.backend
from reference import (
    AttentionBackend,
    AttentionMetadata,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
    MultipleOf,
    subclass_attention_backend,
    subclass_attention_metadata,
)


class Builder(AttentionMetadataBuilder[int]):
    """Builds a number."""

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,  # noqa: ARG002  # not needed here
        fast_build: bool = False,  # noqa: ARG002  # likewise
    ) -> int:
        """Return the length of the prefix."""
        return common_prefix_len


class Backend(AttentionBackend):
    """Says the least that a backend must."""

    @staticmethod
    def get_name() -> str:
        """Return a name."""
        return "LEAST"

    @staticmethod
    def get_builder_cls() -> Any:  # noqa: ANN401  # as the class that it extends
        """Return a class of builders."""
        return AttentionMetadataBuilder

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_size: int,
        cache_dtype_str: str = "auto",  # noqa: ARG004  # not needed here
    ) -> tuple[int, ...]:
        """Return blocks of heads of tokens."""
        return num_blocks, num_kv_heads, block_size, 2 * head_size


@pytest.mark.parametrize("name", reference.backend.__all__)
def test_names(name: str) -> None:
    """Every name of the field's module is importable from it, and is the package's."""
    assert getattr(reference, name) is getattr(reference.backend, name)


@pytest.mark.parametrize("name", ["get_name", "get_builder_cls", "get_kv_cache_shape"])
def test_a_backend_must_say(name: str) -> None:
    """A backend that lacks one of three methods has no instances; it needs no others."""
    lacking = type("Lacking", (Backend,), {name: vars(AttentionBackend)[name]})
    with pytest.raises(TypeError, match=f"abstract.*{name}"):
        lacking()
    assert isinstance(Backend(), AttentionBackend)


def test_all_methods_are_static() -> None:
    """Each method is called on the class as well as on an instance."""
    methods = {name: value for name, value in vars(AttentionBackend).items() if name[:4] == "get_"}
    assert len(methods) == 5
    assert all(isinstance(method, staticmethod) for method in methods.values())


@pytest.mark.parametrize("backend", [Backend, Backend()])
def test_defaults_of_a_backend(backend: Any) -> None:  # noqa: ANN401  # a class or an instance
    """A backend takes all block sizes, and has no stride order, which means the identity."""
    assert [MultipleOf(1)] == backend.get_supported_kernel_block_sizes()
    with pytest.raises(NotImplementedError, match=r"^no order is stated: dimensions lie in memor"):
        backend.get_kv_cache_stride_order()


def test_the_default_block_sizes_are_a_new_list() -> None:
    """A caller that changes the list does not change the backend."""
    Backend.get_supported_kernel_block_sizes().append(16)
    assert [MultipleOf(1)] == Backend.get_supported_kernel_block_sizes()


def test_attention_metadata_is_empty() -> None:
    """The base of metadata asks for nothing, and dataclasses may extend it."""
    frozen = dataclasses.make_dataclass("Ours", ["n"], bases=(AttentionMetadata,), frozen=True)
    assert isinstance(frozen(3), AttentionMetadata)
    assert isinstance(AttentionMetadata(), AttentionMetadata)


def test_subclass_of_a_backend() -> None:
    """It is the backend, but for its name and its builders, whether it is asked or an instance."""
    backend = subclass_attention_backend("Fast", Backend, Builder)
    assert backend.__name__ == "FastBackend"
    assert Backend.__module__ == backend.__module__
    assert issubclass(backend, Backend)
    assert Builder is backend.get_builder_cls()
    assert Builder is backend().get_builder_cls()
    assert backend.get_name() == "LEAST"
    assert AttentionMetadataBuilder is Backend.get_builder_cls()


def test_subclasses_of_one_backend_do_not_disturb_each_other() -> None:
    """Each has the builders that it was made with."""
    classes = [type(name, (Builder,), {}) for name in ("One", "Other")]
    backends = [subclass_attention_backend("", Backend, cls) for cls in classes]
    assert classes == [backend.get_builder_cls() for backend in backends]


def test_subclass_of_an_abstract_backend() -> None:
    """What is abstract stays so, but for `get_builder_cls`; a foreign class will do as well."""
    backend = subclass_attention_backend("Our", AttentionBackend, Builder)
    assert inspect.isabstract(backend)
    assert {"get_name", "get_kv_cache_shape"} == backend.__abstractmethods__
    assert type(backend) is abc.ABCMeta
    foreign = subclass_attention_backend("Our", type("Foreign", (), {}), Builder)
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
def test_refusals_of_subclass_attention_backend(arguments: tuple[Any, ...], message: str) -> None:
    """A prefix that is no str and classes that are none are refused, in these words."""
    with pytest.raises(TypeError) as caught:
        subclass_attention_backend(*arguments)
    assert message == str(caught.value)


@dataclasses.dataclass
class Plain(AttentionMetadata):
    """A metadata that compares by value."""

    num_reqs: int
    scale: float = 1.0


@dataclasses.dataclass(frozen=True)
class Frozen(AttentionMetadata):
    """A metadata that cannot be changed."""

    num_reqs: int


def test_subclass_of_a_metadata() -> None:
    """It has the fields of the other, then the new ones with their defaults, and is named so."""
    cls = subclass_attention_metadata(
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
def test_fields_are_lists_or_tuples(fields: Any) -> None:  # noqa: ANN401  # of any form
    """Fields may be none; they and their parts may be lists or tuples."""
    cls = subclass_attention_metadata("Fast", Plain, fields)
    assert (1, {"n": 3} if fields else {}) == (
        cls(1).num_reqs,
        {name: value for name, value in vars(cls(1)).items() if name == "n"},
    )


def test_frozen_stays_frozen() -> None:
    """A frozen metadata's subclass is frozen, hashes by value, and so for the subclass's own."""
    cls = subclass_attention_metadata("Fast", Frozen, [("n", int, 3)])
    deeper = subclass_attention_metadata("Very", cls, [("m", int, 4)])
    for made in (cls(1), deeper(1)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            made.n = 5
    assert hash(cls(1)) == hash(cls(1, 3))
    assert deeper.__name__ == "VeryFastFrozen"
    subclass_attention_metadata("Fast", Plain, [("n", int, 3)])(1).n = 5


def test_comparison_stays_as_it_was() -> None:
    """A subclass of what compares by identity does; what is no dataclass gives the usual one."""
    own = subclass_attention_metadata("Our", CommonAttentionMetadata, [("n", int, 3)])
    values = dict.fromkeys(inspect.signature(CommonAttentionMetadata).parameters, 0)
    assert own(**values) != own(**values)
    assert len({own(**values), own(**values)}) == 2
    empty = subclass_attention_metadata("Our", AttentionMetadata, [("n", int, 3)])
    assert empty() == empty(3)
    assert empty() != empty(4)
    empty().n = 5


def test_the_subclass_of_a_frozen_dataclass_that_is_none_itself() -> None:
    """What extends a frozen dataclass without being decorated counts as frozen."""
    cls = subclass_attention_metadata("Our", type("Bare", (Frozen,), {}), [("n", int, 3)])
    with pytest.raises(dataclasses.FrozenInstanceError):
        cls(1).n = 5


def test_a_field_that_is_there_already() -> None:
    """It gets the new default, and keeps its place."""
    cls = subclass_attention_metadata("Fast", Plain, [("scale", float, 2.0)])
    assert ["num_reqs", "scale"] == [field.name for field in dataclasses.fields(cls)]
    assert 2.0 == cls(1).scale
    assert 1.0 == Plain(1).scale


def test_a_default_that_is_made_anew() -> None:
    """A default may be a field with a factory."""
    made_anew = dataclasses.field(default_factory=list)
    cls = subclass_attention_metadata("Fast", Plain, [("lens", list[int], made_anew)])
    assert [] == cls(1).lens
    assert cls(1).lens is not cls(1).lens


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((b"F", Plain, []), TypeError, "name_prefix must be a str, got b'F' of bytes"),
        (("F", Plain(1), []), TypeError, f"metadata_cls must be a class, got {Plain(1)} of Plain"),
        (("F", Plain, {}), TypeError, "fields must be a list or tuple, got dict"),
        (("F", Plain, "abc"), TypeError, "fields must be a list or tuple, got 'abc' of str"),
        (("F", Plain, None), TypeError, "fields must be a list or tuple, got None of NoneType"),
        (
            ("F", Plain, ["abc"]),
            TypeError,
            ("fields[0] must be a tuple (name, type, default), got 'abc' of str"),
        ),
        (
            ("F", Plain, [("n", int, 3), ("m", int)]),
            ValueError,
            "fields[1] has 2 parts, expected 3: name, type and default",
        ),
        (("F", Plain, [(3, int, 3)]), TypeError, "fields[0][0] must be a str, got 3 of int"),
        (
            ("F", Plain, [("two words", int, 3)]),
            ValueError,
            "fields[0][0] is 'two words', expected an identifier",
        ),
        (
            ("F", Plain, [("class", int, 3)]),
            ValueError,
            "fields[0][0] is 'class', expected an identifier",
        ),
        (
            ("F", Plain, [("n", int, 3), ("m", int, 3), ("n", int, 4)]),
            ValueError,
            "fields[2][0] is 'n', the same as fields[0][0]",
        ),
    ],
)
def test_refusals_of_subclass_attention_metadata(
    arguments: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    """Each wrong argument is refused, in these words."""
    with pytest.raises(error) as caught:
        subclass_attention_metadata(*arguments)
    assert message == str(caught.value)


def test_a_default_that_can_be_changed_is_refused() -> None:
    """A list that all metadata would share is no default."""
    with pytest.raises(ValueError, match=r"^mutable default <class 'list'> for field lens"):
        subclass_attention_metadata("F", Plain, [("lens", list[int], [])])


def test_backends_are_made_once() -> None:
    """The same three arguments give the same class; another of any gives another."""
    other_backend, other_builder = (type(cls.__name__, (cls,), {}) for cls in (Backend, Builder))
    arguments = [
        ("Fast", Backend, Builder),
        ("", Backend, Builder),
        ("Fast", other_backend, Builder),
        ("Fast", Backend, other_builder),
    ]
    made = [subclass_attention_backend(*each) for each in arguments]
    again = [subclass_attention_backend(*each) for each in arguments]
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
def test_classes_that_equal_each_other_are_not_one(metaclass: type[Any]) -> None:
    """A class is known by what it is, not by what it says that it equals."""
    one, other = (metaclass("Own", (), {"n": 1}) for _ in range(2))
    for make in (
        lambda cls: subclass_attention_backend("Fast", cls, Builder),
        lambda cls: subclass_attention_backend("Fast", Backend, cls),
        lambda cls: subclass_attention_metadata("Fast", cls, [("m", int, 3)]),
    ):
        classes = [make(one), make(other), make(one)]
        assert classes[0] is classes[2]
        assert classes[0] is not classes[1]


def test_metadata_classes_are_made_once() -> None:
    """The same prefix, class and fields, lists or tuples, give the same class."""
    made = subclass_attention_metadata(
        "Fast", Plain, [("lens", list[int] | None, None), ("n", int, 3)]
    )
    again = subclass_attention_metadata(
        "Fast", Plain, (["lens", list[int] | None, None], ["n", int, 3])
    )
    assert made is again
    others = [
        subclass_attention_metadata("Slow", Plain, [("n", int, 3)]),
        subclass_attention_metadata("Fast", Frozen, [("n", int, 3)]),
        subclass_attention_metadata("Fast", Plain, [("n", int, 4)]),
        subclass_attention_metadata("Fast", Plain, [("n", float, 3)]),
        subclass_attention_metadata("Fast", Plain, [("m", int, 3)]),
        subclass_attention_metadata("Fast", Plain, []),
        subclass_attention_metadata("Fast", Plain, [("n", int, 3)]),
    ]
    assert len({id(cls) for cls in (made, *others)}) == 8


@pytest.mark.parametrize(
    "defaults", [(1, True, 1.0), (0.0, -0.0), ((1,), (True,)), (np.int32(3), np.int64(3), 3)]
)
def test_defaults_that_are_equal_but_not_the_same(defaults: tuple[Any, ...]) -> None:
    """Each class has the default that it was asked for."""
    classes = [subclass_attention_metadata("Fast", Frozen, [("n", int, d)]) for d in defaults]
    assert len({id(cls) for cls in classes}) == len(defaults)
    assert [repr(default) for default in defaults] == [repr(cls(1).n) for cls in classes]


def test_defaults_that_cannot_be_a_key() -> None:
    """A field is known by itself; a default without a hash makes every class new."""
    made_anew = [("lens", list[int], dataclasses.field(default_factory=list))]
    classes = [subclass_attention_metadata("Fast", Plain, made_anew) for _ in range(3)]
    assert len({id(cls) for cls in classes}) == 1
    pairs = [("pairs", tuple[list[int]], ([1],))]
    classes = [subclass_attention_metadata("Fast", Plain, pairs) for _ in range(2)]
    assert [([1],), ([1],)] == [cls(1).pairs for cls in classes]
    assert classes[0] is not classes[1]


def test_classes_are_not_kept_alive() -> None:
    """When nobody uses them any more, they, and what they extend, are gone."""

    def use() -> list[weakref.ref[Any]]:
        backend, builder, metadata = (
            type(cls.__name__, (cls,), {}) for cls in (Backend, Builder, Plain)
        )
        made = [
            subclass_attention_backend("Fast", backend, builder),
            subclass_attention_metadata("Fast", metadata, [("n", int, 3)]),
        ]
        return [weakref.ref(cls) for cls in (backend, builder, metadata, *made)]

    references = use()
    gc.collect()
    assert [None] * 5 == [reference() for reference in references]
