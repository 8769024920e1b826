"""Backends, metadata classes and builders: the interface, its defaults, and what extends others."""

from __future__ import annotations

import dataclasses
import gc
import inspect
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.examples.twins import Twin


class Builder:
    """An engine's own builder."""


class Backend:
    """An engine's own backend."""

    @staticmethod
    def get_name() -> str:
        """Return a name."""
        return "LEAST"

    @staticmethod
    def get_builder_cls() -> type[object]:
        """Return any class."""
        return object

    @staticmethod
    def get_kv_cache_shape(*sizes: int) -> tuple[int, ...]:
        """Return the sizes."""
        return sizes


@pytest.mark.parametrize("name", ["get_name", "get_builder_cls", "get_kv_cache_shape"])
def test_what_a_backend_must_define(twin: Twin, name) -> None:
    whole: Any = type("Whole", (Backend, twin.AttentionBackend), {})
    assert isinstance(whole(), twin.AttentionBackend)
    lacking = type("Lacking", (whole,), {name: vars(twin.AttentionBackend)[name]})
    with pytest.raises(TypeError, match=rf"abstract.*{name}"):
        lacking()


def test_defaults_of_a_backend(twin: Twin) -> None:
    backend: Any = type("Backend", (Backend, twin.AttentionBackend), {})
    for cls_or_instance in (backend, backend()):
        assert [twin.MultipleOf(1)] == cls_or_instance.get_supported_kernel_block_sizes()
        with pytest.raises(NotImplementedError, match="no order is stated"):
            cls_or_instance.get_kv_cache_stride_order()


def test_subclass_of_a_backend(twin: Twin) -> None:
    backend = type("Backend", (Backend, twin.AttentionBackend), {})
    made = twin.subclass_attention_backend("Fast", backend, Builder)
    assert ("FastBackend", backend.__module__) == (made.__name__, made.__module__)
    assert issubclass(made, backend)
    assert Builder is made.get_builder_cls() is made().get_builder_cls()
    assert ("LEAST", object) == (made.get_name(), backend.get_builder_cls())
    again = twin.subclass_attention_backend("Twice", made, object)
    assert ("TwiceFastBackend", object) == (again.__name__, again.get_builder_cls())
    abstract = twin.subclass_attention_backend("Our", twin.AttentionBackend, Builder)
    assert {"get_name", "get_kv_cache_shape"} == abstract.__abstractmethods__


@dataclasses.dataclass
class Plain:
    """Metadata."""

    num_reqs: int
    scale: float = 1.0


@dataclasses.dataclass(frozen=True)
class Frozen:
    """Metadata that is immutable."""

    num_reqs: int


@pytest.mark.parametrize(
    ("fields", "arguments", "expected"),
    [
        (
            [("lens", list[int] | None, None), ("n", int, 3)],
            (7, 0.5),
            {"num_reqs": 7, "scale": 0.5, "lens": None, "n": 3},
        ),
        # a field that the class has gets another default
        ([("scale", float, 2.0)], (7,), {"num_reqs": 7, "scale": 2.0}),
        (
            (["lens", list[int], dataclasses.field(default_factory=list)],),
            (7,),
            {"num_reqs": 7, "scale": 1.0, "lens": []},
        ),
        ([], (7,), {"num_reqs": 7, "scale": 1.0}),
    ],
)
def test_subclass_of_a_metadata(twin: Twin, fields, arguments, expected) -> None:
    cls = twin.subclass_attention_metadata("Fast", Plain, fields)
    assert ("FastPlain", Plain.__module__) == (cls.__name__, cls.__module__)
    assert issubclass(cls, Plain)
    assert expected == vars(cls(*arguments))
    types = {field.name: field.type for field in dataclasses.fields(cls)}
    assert [kind for _, kind, _ in fields] == [types[name] for name, *_ in fields]
    assert cls is twin.subclass_attention_metadata("Fast", Plain, fields)
    assert {"num_reqs": 1, "scale": 1.0} == vars(Plain(1))


def test_a_subclass_is_frozen_and_compares_as_its_base_does(twin: Twin) -> None:
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
    by_identity = twin.subclass_attention_metadata("Our", twin.CommonAttentionMetadata, fields)
    values = dict.fromkeys(inspect.signature(twin.CommonAttentionMetadata).parameters, 0)
    assert by_identity(**values) != by_identity(**values)
    no_dataclass = twin.subclass_attention_metadata("Our", twin.AttentionMetadata, fields)
    assert no_dataclass() == no_dataclass(3) != no_dataclass(4)


LISTS = dataclasses.field(default_factory=list)


@pytest.mark.parametrize(
    ("fields", "number"),
    [
        # calls with these fields make so many classes: equal defaults may not be the same
        ([("n", int, 3)] * 2, 1),
        ([("n", int, 1), ("n", int, True), ("n", int, 1.0)], 3),
        ([("n", float, 0.0), ("n", float, -0.0)], 2),
        ([("n", tuple, (1,)), ("n", tuple, (True,))], 2),
        ([("n", int, 3), ("n", int, np.int32(3)), ("n", int, np.int64(3))], 3),
        ([("n", int, 3), ("m", int, 3), ("n", float, 3), ("n", "int", 3)], 4),
        ([("n", list, LISTS)] * 2, 1),
        ([("n", tuple, ([1],)), ("n", tuple, ([1],))], 2),  # a default that cannot be a key
    ],
)
def test_how_many_classes(twin: Twin, fields, number) -> None:
    classes = [twin.subclass_attention_metadata("Fast", Frozen, [field]) for field in fields]
    assert number == len({id(cls) for cls in classes})
    for (name, _, default), cls in zip(fields, classes, strict=True):
        if default is not LISTS:
            assert repr(default) == repr(getattr(cls(1), name))


class Unhashable(type):
    """A metaclass of classes that cannot be keys."""

    def __eq__(cls, other: object) -> bool:
        return isinstance(other, Unhashable)  # also accepting `type` breaks Python 3.11.2

    __hash__ = None  # type: ignore[assignment]  # how Python itself marks a class as unhashable


def test_classes_that_equal_each_other_are_not_one(twin: Twin) -> None:
    one, other = (Unhashable("Own", (), {"n": 1}) for _ in range(2))
    for make in (
        lambda cls: twin.subclass_attention_backend("Fast", cls, Builder),
        lambda cls: twin.subclass_attention_backend("Fast", Backend, cls),
        lambda cls: twin.subclass_attention_metadata("Fast", cls, [("m", int, 3)]),
    ):
        classes = [make(one), make(other), make(one)]
        assert classes[0] is classes[2]
        assert classes[0] is not classes[1]


def test_classes_are_garbage_collected(twin: Twin) -> None:
    def use() -> list[weakref.ref[Any]]:
        backend, metadata = (type(cls.__name__, (cls,), {}) for cls in (Backend, Plain))
        builder = type("Builder", (twin.AttentionMetadataBuilder,), {"build": lambda *_, **__: 0})
        with_builder = type("With", (backend,), {"get_builder_cls": staticmethod(lambda: builder)})
        made = [
            twin.subclass_attention_backend("Fast", backend, builder),
            twin.subclass_attention_metadata("Fast", metadata, [("n", int, 3)]),
            twin.create_fast_prefill_custom_backend("Fast", with_builder),
        ]
        return [weakref.ref(cls) for cls in (backend, builder, metadata, with_builder, *made)]

    references = use()
    gc.collect()
    assert [None] * 7 == [each() for each in references]


# Builders.


def test_levels_of_support_of_cuda_graphs(twin: Twin) -> None:
    expected = {"ALWAYS": 3, "UNIFORM_BATCH": 2, "UNIFORM_SINGLE_TOKEN_DECODE": 1, "NEVER": 0}
    assert expected == {level.name: level.value for level in twin.AttentionCGSupport}
    always, base = twin.AttentionCGSupport.ALWAYS, twin.AttentionMetadataBuilder
    cls = type("Always", (base,), {"_cudagraph_support": always, "build": lambda *_, **__: 0})
    assert always is cls.get_cudagraph_support(None, None)
    assert twin.AttentionCGSupport.NEVER is base.get_cudagraph_support(None, None)


def make_builder(twin: Twin, config: Any = None) -> Any:
    """Make a builder that returns what `build` is given, by name."""
    members = {"build": lambda _, **given: given}
    cls: Any = type("Builder", (twin.AttentionMetadataBuilder,), members)
    return cls("spec", ["layers.0"], config, "device")


def test_a_builder(twin: Twin) -> None:
    assert {"build"} == twin.AttentionMetadataBuilder.__abstractmethods__
    builder = make_builder(twin, "config")
    stored = (builder.kv_cache_spec, builder.layer_names, builder.vllm_config, builder.device)
    assert ("spec", ["layers.0"], "config", "device") == stored
    assert builder.use_cascade_attention(5, np.zeros(3), num_sms=4) is False
    given = {"common_prefix_len": 0, "common_attn_metadata": "batch"}
    assert given == builder.build_for_cudagraph_capture("batch")
    assert given | {"fast_build": True} == builder.build_for_drafting("batch", draft_index=2)


@pytest.mark.parametrize(
    ("num_drafts", "dcp_size", "arguments", "expected"),
    [
        (None, 1, {}, 1),
        (None, 1, {"reorder_batch_threshold": 5}, 5),
        (None, 1, {"supports_spec_as_decode": True}, 1),
        # drafts count as decodes where that is supported: one token and 3 drafts
        (3, 1, {}, 1),
        (3, 1, {"supports_spec_as_decode": True}, 4),
        (0, 1, {"supports_spec_as_decode": True}, 1),
        (3, 1, {"reorder_batch_threshold": 4, "supports_spec_as_decode": True}, 4),
        (3, 1, {"reorder_batch_threshold": 9, "supports_spec_as_decode": True}, 9),
        # with context-parallel ranks, queries of one token, unless lengths may vary
        (3, 2, {"reorder_batch_threshold": 9, "supports_spec_as_decode": True}, 1),
        (3, 2, {"supports_spec_as_decode": True, "supports_dcp_with_varlen": True}, 4),
        (None, 2, {"reorder_batch_threshold": 9}, 1),
        (None, 2, {"reorder_batch_threshold": 9, "supports_dcp_with_varlen": True}, 9),
        (3, 2, {"reorder_batch_threshold": None, "supports_spec_as_decode": True}, None),
    ],
)
def test_reorder_batch_threshold(twin: Twin, num_drafts, dcp_size, arguments, expected) -> None:
    config = twin.VllmConfig(
        speculative_config=twin.SpeculativeConfig(num_speculative_tokens=num_drafts),
        parallel_config=twin.ParallelConfig(decode_context_parallel_size=dcp_size),
    )
    builder = make_builder(twin, config)
    assert builder.reorder_batch_threshold is None
    builder._init_reorder_batch_threshold(**arguments)
    assert expected == builder.reorder_batch_threshold
    assert twin.AttentionMetadataBuilder.reorder_batch_threshold is None


def test_a_group_has_a_builder_for_each_micro_batch(twin: Twin) -> None:
    cls = type("Builder", (), {"__init__": lambda self, *given: setattr(self, "given", given)})
    backend, names = SimpleNamespace(get_builder_cls=lambda: cls), ["layers.0"]
    make = twin.AttentionGroup.create_with_metadata_builders
    group = make(backend, names, "spec", "config", "device", num_metadata_builders=3)
    assert (backend, names, "spec") == (group.backend, group.layer_names, group.kv_cache_spec)
    builders = group.metadata_builders
    assert [("spec", names, "config", "device")] * 3 == [each.given for each in builders]
    assert builders == [group.get_metadata_builder(i) for i in range(3)]
    assert builders[0] is group.get_metadata_builder() is not builders[1]
    assert 1 == len(make(backend, names, "spec", "config", "device").metadata_builders)
