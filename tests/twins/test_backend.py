"""Backends: the interface, its defaults, and backends and metadata that extend others."""

from __future__ import annotations

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
    @staticmethod
    def get_name() -> str:
        return "LEAST"

    @staticmethod
    def get_builder_cls() -> type[object]:
        return object

    @staticmethod
    def get_kv_cache_shape(*sizes: int) -> tuple[int, ...]:
        return sizes


@pytest.fixture
def backend(twin: Any) -> Any:
    return type("Backend", (Backend, twin.AttentionBackend), {})


@pytest.mark.parametrize("name", ["get_name", "get_builder_cls", "get_kv_cache_shape"])
def test_a_backend_must_say(twin: Any, backend: Any, name: str) -> None:
    lacking = type("Lacking", (backend,), {name: vars(twin.AttentionBackend)[name]})
    with pytest.raises(TypeError, match=f"abstract.*{name}"):
        lacking()
    assert isinstance(backend(), twin.AttentionBackend)


def test_defaults_of_a_backend(twin: Any, backend: Any) -> None:
    for cls_or_instance in (backend, backend()):
        assert [twin.MultipleOf(1)] == cls_or_instance.get_supported_kernel_block_sizes()
        with twin.refuses(
            "NotImplementedError: no order is stated: dimensions lie in memory as in the shape"
        ):
            cls_or_instance.get_kv_cache_stride_order()
    backend.get_supported_kernel_block_sizes().clear()
    assert [twin.MultipleOf(1)] == backend.get_supported_kernel_block_sizes()


def test_subclass_of_a_backend(twin: Any, backend: Any) -> None:
    made = twin.subclass_attention_backend("Fast", backend, Builder)
    assert ("FastBackend", backend.__module__) == (made.__name__, made.__module__)
    assert issubclass(made, backend)
    assert Builder is made.get_builder_cls() is made().get_builder_cls()
    assert ("LEAST", object) == (made.get_name(), backend.get_builder_cls())
    again = twin.subclass_attention_backend("Twice", made, object)
    assert ("TwiceFastBackend", object) == (again.__name__, again.get_builder_cls())
    abstract = twin.subclass_attention_backend("Our", twin.AttentionBackend, Builder)
    assert {"get_name", "get_kv_cache_shape"} == abstract.__abstractmethods__


def test_backends_are_made_once(twin: Any) -> None:
    other_backend, other_builder = (type(cls.__name__, (cls,), {}) for cls in (Backend, Builder))
    arguments = [
        ("Fast", Backend, Builder),
        ("", Backend, Builder),
        ("Fast", other_backend, Builder),
        ("Fast", Backend, other_builder),
    ]
    made = [twin.subclass_attention_backend(*each) for each in arguments]
    assert made == [twin.subclass_attention_backend(*each) for each in arguments]
    assert 4 == len(set(made))


@dataclasses.dataclass
class Plain:
    num_reqs: int
    scale: float = 1.0


@dataclasses.dataclass(frozen=True)
class Frozen:
    num_reqs: int


def test_subclass_of_a_metadata(twin: Any) -> None:
    cls = twin.subclass_attention_metadata(
        "Fast", Plain, [("lens", list[int] | None, None), ("n", int, 3)]
    )
    assert ("FastPlain", Plain.__module__) == (cls.__name__, cls.__module__)
    assert issubclass(cls, Plain)
    assert {"num_reqs": 7, "scale": 0.5, "lens": None, "n": 3} == vars(cls(7, 0.5))
    assert list[int] | None == {f.name: f.type for f in dataclasses.fields(cls)}["lens"]
    assert ["num_reqs", "scale"] == [field.name for field in dataclasses.fields(Plain)]


def test_defaults_of_fields(twin: Any) -> None:
    cls = twin.subclass_attention_metadata("Fast", Plain, [("scale", float, 2.0)])
    assert ["num_reqs", "scale"] == [field.name for field in dataclasses.fields(cls)]
    assert (2.0, 1.0) == (cls(1).scale, Plain(1).scale)
    made_anew = dataclasses.field(default_factory=list)
    cls = twin.subclass_attention_metadata("Fast", Plain, [("lens", list[int], made_anew)])
    assert [] == cls(1).lens
    assert cls(1).lens is not cls(1).lens


def test_a_subclass_is_frozen_and_compares_as_its_base_does(twin: Any) -> None:
    fields = [("n", int, 3)]
    frozen = twin.subclass_attention_metadata("Fast", Frozen, fields)
    deeper = twin.subclass_attention_metadata("Very", frozen, [("m", int, 4)])
    bare = twin.subclass_attention_metadata("Our", type("Bare", (Frozen,), {}), fields)
    for cls in (frozen, deeper, bare):
        with pytest.raises(dataclasses.FrozenInstanceError):
            cls(1).n = 5
        assert hash(cls(1)) == hash(cls(1, 3))
    plain = twin.subclass_attention_metadata("Fast", Plain, fields)
    assert plain(1) == plain(1, n=3) != plain(1, n=4)
    plain(1).n = 5
    by_identity = twin.subclass_attention_metadata("Our", twin.CommonAttentionMetadata, fields)
    values = dict.fromkeys(inspect.signature(twin.CommonAttentionMetadata).parameters, 0)
    assert by_identity(**values) != by_identity(**values)
    no_dataclass = twin.subclass_attention_metadata("Our", twin.AttentionMetadata, fields)
    assert no_dataclass() == no_dataclass(3) != no_dataclass(4)
    no_dataclass().n = 5


class Alike(type):
    def __eq__(cls, other: object) -> bool:
        return isinstance(other, type) and cls.__name__ == other.__name__

    def __hash__(cls) -> int:
        return hash(cls.__name__)


class Unhashable(type):
    def __eq__(cls, other: object) -> bool:
        return isinstance(other, Unhashable)  # also accepting `type` breaks Python 3.11.2

    __hash__ = None  # type: ignore[assignment]  # how Python itself marks a class as unhashable


@pytest.mark.parametrize("metaclass", [Alike, Unhashable])
def test_classes_that_equal_each_other_are_not_one(twin: Any, metaclass: type[Any]) -> None:
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
        twin.subclass_attention_metadata("Fast", Plain, [("n", int, 3)]),
    ]
    assert len({id(cls) for cls in (made, *others)}) == 8


@pytest.mark.parametrize(
    "defaults", [(1, True, 1.0), (0.0, -0.0), ((1,), (True,)), (np.int32(3), np.int64(3), 3)]
)
def test_defaults_that_are_equal_but_not_the_same(twin: Any, defaults: tuple[Any, ...]) -> None:
    classes = [twin.subclass_attention_metadata("Fast", Frozen, [("n", int, d)]) for d in defaults]
    assert len({id(cls) for cls in classes}) == len(defaults)
    assert [repr(default) for default in defaults] == [repr(cls(1).n) for cls in classes]


def test_defaults_that_cannot_be_a_key(twin: Any) -> None:
    made_anew = [("lens", list[int], dataclasses.field(default_factory=list))]
    classes = [twin.subclass_attention_metadata("Fast", Plain, made_anew) for _ in range(3)]
    assert len({id(cls) for cls in classes}) == 1
    pairs = [("pairs", tuple[list[int]], ([1],))]
    classes = [twin.subclass_attention_metadata("Fast", Plain, pairs) for _ in range(2)]
    assert [([1],), ([1],)] == [cls(1).pairs for cls in classes]
    assert classes[0] is not classes[1]


def test_classes_are_garbage_collected(twin: Any) -> None:
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
