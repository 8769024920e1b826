"""Factories of an engine's own stubs: builders, backends, layers and their parts.

The stubs record the arguments that they get, and are compared by these.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any

from conformance.strategies.backends import Backend
from conformance.targets.factories import DEVICE, Factory, FactoryContext


@dataclasses.dataclass(frozen=True, eq=False)
class OwnClass(Factory):
    """A factory of an engine's own class of layers, or of parts of layers.

    Attributes:
        name: Its name.
        base: The class that it extends; None for none.
    """

    name: str
    base: OwnClass | None = None

    def make(self, converter: FactoryContext) -> type:
        """Return the class, whose objects are compared by their names."""
        base = object if self.base is None else converter.convert(self.base, "base")
        return type(self.name, (base,), {"compared": ("name",)})

    def __repr__(self) -> str:
        return self.name


@dataclasses.dataclass(frozen=True, eq=False)
class Own(Factory):
    """A factory of an object of an engine's own class.

    Attributes:
        cls: Its class.
        name: The name by which it is compared.
        attributes: All its attributes.
        backend: What its `get_attn_backend()` returns; None if it has no such method.
    """

    cls: OwnClass
    name: str
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    backend: BackendClass | None = None

    def make(self, converter: FactoryContext) -> Any:
        """Return the object."""
        made: Any = converter.convert(self.cls, "cls")()
        made.name = self.name
        for name, value in self.attributes.items():
            setattr(made, name, converter.convert(value, f"vllm_config.{name}"))
        if self.backend is not None:
            backend = converter.convert(self.backend, "backend")
            made.get_attn_backend = lambda: backend
        return made

    def __repr__(self) -> str:
        return f"<{self.cls} {self.name} {dict(self.attributes)} {self.backend or ''}>"


class Built:
    """The result of a stub builder: the arguments of `build`."""

    compared = ("args", "keywords")

    def __init__(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self.args, self.keywords = args, dict(sorted(keywords.items()))


class Workspace:
    """A stub of the workspace buffer that builders of one kind share."""

    compared = ("owner",)

    def __init__(self, owner: str) -> None:
        self.owner = owner


class _Records:
    """A mixin that records a builder's arguments and calls."""

    compared = (
        "kv_cache_spec",
        "layer_names",
        "vllm_config",
        "has_device",
        "num_by_position",
        "workspaces",
        "num_calls",
        "reorder_batch_threshold",
    )
    reorder_batch_threshold: int | None = None

    made: list[_Records]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.made.append(self)
        self.num_by_position = len(args)
        self.workspaces: list[Workspace] = []
        self.num_calls = 0
        self.builds: list[Built] = []

    def build(self, *args: Any, **keywords: Any) -> Built:
        """Return the arguments."""
        self.builds.append(Built(args, keywords))
        return self.builds[-1]


class _Stores:
    """The base of an engine's own builder, which has no base class of the implementation."""

    def __init__(self, *args: Any) -> None:
        self.kv_cache_spec, self.layer_names, self.vllm_config, self.device = args


def _get_workspace_buffer(self: Any) -> Workspace:
    self.num_calls += 1
    return Workspace(self.layer_names[0])


def _set_workspace_buffer(self: Any, buffer: Workspace) -> None:
    self.workspaces.append(buffer)


WORKSPACE_METHODS = {
    "_get_workspace_buffer": _get_workspace_buffer,
    "set_workspace_buffer": _set_workspace_buffer,
}


@dataclasses.dataclass(frozen=True, eq=False)
class BuilderClass(Factory):
    """A factory of a builder class.

    Attributes:
        is_own: Whether it is an engine's own; else it extends `AttentionMetadataBuilder`.
        methods: Which of `WORKSPACE_METHODS` it has.
        support: The name of its `AttentionCGSupport`; None for the base class's.
    """

    is_own: bool = False
    methods: tuple[str, ...] = ()
    support: str | None = None

    def make(self, converter: FactoryContext) -> type:
        """Return the class."""
        implementation = converter.implementation
        base = _Stores if self.is_own else implementation.find("AttentionMetadataBuilder")
        members: dict[str, Any] = {name: WORKSPACE_METHODS[name] for name in self.methods}
        members["made"] = []
        members["has_device"] = property(lambda self: self.device == converter.device)
        if self.support is not None:
            members["_cudagraph_support"] = implementation.find("AttentionCGSupport")[self.support]
        return type("Builder", (_Records, base), members)


@dataclasses.dataclass(frozen=True, eq=False)
class Builder(Factory):
    """A factory of a builder.

    Attributes:
        cls: Its class.
        kv_cache_spec: The spec that it was made with.
        layer_names: Its layers.
        vllm_config: Its configuration.
    """

    cls: BuilderClass
    kv_cache_spec: Any
    layer_names: list[str]
    vllm_config: Any = None

    def make(self, converter: FactoryContext) -> Any:
        """Return the builder."""
        given = (self.kv_cache_spec, self.layer_names, self.vllm_config, DEVICE)
        return converter.convert(self.cls, "cls")(
            *(converter.convert(v, "self.given") for v in given)
        )

    def __repr__(self) -> str:
        return f"<{self.cls} of {self.layer_names}>"


class _EqualByName(abc.ABCMeta):
    """A metaclass whose distinct classes are equal by name, like a registry's proxies."""

    def __eq__(cls, other: object) -> bool:
        return isinstance(other, type) and cls.__name__ == other.__name__

    def __hash__(cls) -> int:
        return hash(cls.__name__)


@dataclasses.dataclass(frozen=True, eq=False)
class BackendClass(Factory):
    """A factory of a backend class.

    Attributes:
        name: What `get_name()` returns.
        builder: Its class of builders.
        is_own: Whether it is an engine's own; else it extends `AttentionBackend`.
        is_alike: Whether it equals every class of the same name.
    """

    name: str
    builder: BuilderClass
    is_own: bool = False
    is_alike: bool = False

    def make(self, converter: FactoryContext) -> type:
        """Return the class."""
        base = object if self.is_own else converter.implementation.find("AttentionBackend")
        builder = converter.convert(self.builder, "builder")
        members = {
            "__module__": "engine",
            "get_name": staticmethod(lambda: self.name),
            "get_builder_cls": staticmethod(lambda: builder),
            "get_kv_cache_shape": staticmethod(Backend().shape_of),
        }
        metaclass = _EqualByName if self.is_alike else abc.ABCMeta
        return metaclass(f"{self.name}Backend", (base,), members)
