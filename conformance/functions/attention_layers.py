"""The layers of a model: what each keeps in the cache, its backend, and its group's builder."""

from __future__ import annotations

import dataclasses
import random
from typing import Any, ClassVar, Final

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

import reference
from conformance.functions.backend import backends
from conformance.harness.contract import Arguments, Contract, Special
from conformance.harness.objects import Device, Factory, Twin
from conformance.harness.sizes import Rng, rngs, sizes
from conformance.laws.batches import choices, deferred
from conformance.laws.builders import BuilderClass, builder_classes


class Attention:
    """A layer, compared by its name."""

    compared: ClassVar = ("name",)
    name = ""


class MLAAttention(Attention):
    """A layer of a subclass."""


class MambaMixer:
    """A layer that is no attention layer."""

    compared: ClassVar = ("name",)
    name = ""


CLASSES: Final[dict[str, type]] = {
    **{cls.__name__: cls for cls in (Attention, MLAAttention, MambaMixer)},
    "another Attention": type("Attention", (), {"compared": ("name",), "name": ""}),
}


@dataclasses.dataclass
class Class(Factory):
    key: str

    def make(self, _: Twin) -> type:
        return CLASSES[self.key]


@dataclasses.dataclass
class Layer(Factory):
    """A layer, or its implementation."""

    cls: Any  # its class
    name: str  # the name by which it is compared
    attributes: dict[str, Any] = dataclasses.field(default_factory=dict)  # all its attributes
    backend: Any = None  # what `get_attn_backend()` returns; None if it has no such method

    def make(self, _: Twin) -> Any:
        made = self.cls()
        vars(made).update(self.attributes, name=self.name)
        if self.backend is not None:
            made.get_attn_backend = lambda: self.backend
        return made


STYLES: Final = (
    *("layers.{}.attn", "layers.{}.attn.", ".layers.{}.attn", "LAYERS.{}.attn", "layers.{}.\xe9"),
    *("layers.{}.e\u0301", "a" * 256 + "b{}", "a" * 256 + "c{}"),
)
"""Names of layers; each is like another one, but for dots, case, accents or its end."""


def layer_names(rng: Rng, number: int) -> list[str]:
    pool = [style.format(i) for i in range(1 + number // 5) for style in STYLES]
    found: list[str] = rng.permutation(pool)[:number].tolist()
    return found


def config_of(layers: dict[str, Any], **parts: Any) -> reference.VllmConfig:
    compilation = reference.CompilationConfig(static_forward_context=layers)
    return reference.VllmConfig(compilation_config=compilation, **parts)


def layers_of(arguments: Arguments) -> dict[str, Any]:
    config: Any = arguments["vllm_config"]
    found: dict[str, Any] = config.compilation_config.static_forward_context
    return found


def _with_layer(arguments: Arguments, rng: random.Random, change: Any) -> Arguments | None:
    layers, config = layers_of(arguments), arguments["vllm_config"]
    if not layers:
        return None
    name = rng.choice(list(layers))
    changed = config_of({**layers, name: change(layers[name])}, cache_config=config.cache_config)
    return {**arguments, "vllm_config": changed}


def without(*path: str) -> Special:
    """Return an invalid call: a layer, or the part of a layer at a path, lacks an attribute."""

    def special(arguments: Arguments, rng: random.Random) -> Arguments | None:
        def lacking(layer: Any, path: tuple[str, ...]) -> Any:
            attributes = dict(layer.attributes)
            if path and path[0] in attributes:
                attributes[path[0]] = lacking(attributes[path[0]], path[1:])
            elif attributes:
                del attributes[rng.choice(list(attributes))]
            return dataclasses.replace(layer, attributes=attributes)

        return _with_layer(arguments, rng, lambda layer: lacking(layer, path))

    return special


# get_layers_from_vllm_config


@st.composite
def named_layers(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    number = draw(sizes(0, 70))
    key, how = choices(draw, tuple(CLASSES), ("left out", None, "some", "some", "all"))

    def contents(draw: st.DrawFn) -> Arguments:
        rng = draw(rngs())
        names = layer_names(rng, number)
        layers = {name: Layer(Class(rng.choice(list(CLASSES))), name) for name in names}
        arguments: Arguments = {"vllm_config": config_of(layers), "layer_type": Class(key)}
        some = rng.permutation(names).tolist()
        some = some[: rng.integers(len(names), endpoint=True)] if how == "some" else some
        return arguments | ({} if how == "left out" else {"layer_names": some if how else None})

    return deferred(contents)


def find_layers(twin: Twin, **arguments: Any) -> dict[str, Any]:
    found = twin.function("get_layers_from_vllm_config")(**arguments)
    layers = layers_of(arguments)
    return {"found": found, "own": [layer is layers[name] for name, layer in found.items()]}


# get_kv_cache_spec

KINDS: Final = ("full", "window", "full", "window", "shares", "shares bare", "no attention", "bare")
DTYPES: Final = (
    *map(np.dtype, (np.float16, np.float32, np.uint8)),
    *map(np.dtype, (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn)),
)


def _cached_layer(rng: Rng, name: str) -> Layer:
    kind = rng.choice(KINDS)
    shares = {"kv_sharing_target_layer_name": rng.choice(("layers.0", ""))}  # no name is a name
    if kind == "shares bare":
        return Layer(Class("Attention"), name, {**shares, "attn_type": "encoder"})
    if kind == "bare":
        return Layer(Class("MambaMixer"), name)
    integer = (int, int, np.int32, np.int64)[rng.integers(4)]
    attributes: dict[str, Any] = {
        "attn_type": "decoder",
        "num_kv_heads": integer(rng.choice((1, 2, 8, 257, 2**20))),
        "head_size": integer(rng.choice((1, 64, 576, 2**16))),
        "sliding_window": integer(rng.choice((1, 4, 4096, 2**31 - 1))),
    }
    if kind == "no attention":
        del attributes["attn_type"]
    elif kind == "shares":
        attributes |= shares
    elif kind == "full":
        attributes["sliding_window"] = None
    if kind in {"full", "window"} and rng.random() < 0.5:
        attributes["kv_sharing_target_layer_name"] = None
    return Layer(Class("Attention"), name, attributes)


@st.composite
def cached_layers(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    """Draw layers that have a cache, share one, or have none."""
    number, block_size, dtype = draw(sizes(0, 70)), draw(sizes(1, 8192)), draw(st.integers(0, 4))

    def contents(draw: st.DrawFn) -> Arguments:
        rng = draw(rngs())
        layers = {name: _cached_layer(rng, name) for name in layer_names(rng, number)}
        config = config_of(layers, cache_config=reference.CacheConfig(block_size=block_size))
        return {"vllm_config": config, "kv_cache_dtype": DTYPES[dtype]}

    return deferred(contents)


def other_type(arguments: Arguments, rng: random.Random) -> Arguments | None:
    """Let a layer be of another type of attention."""
    kind = rng.choice(("encoder", "encoder_only", "encoder_decoder", "Decoder", None))

    def change(layer: Any) -> Any:
        return dataclasses.replace(layer, attributes={**layer.attributes, "attn_type": kind})

    return _with_layer(arguments, rng, change)


# init_attn_backend


class Workspace:
    """A workspace, compared by the builder that made it."""

    compared: ClassVar = ("owner",)

    def __init__(self, owner: str) -> None:
        self.owner = owner


def _get_workspace_buffer(self: Any) -> Workspace:
    self.events.append("made")
    return Workspace(self.layer_names[0])


def _set_workspace_buffer(self: Any, buffer: Workspace) -> None:
    self.events.append(buffer)


METHODS: Final = {
    "_get_workspace_buffer": _get_workspace_buffer,
    "set_workspace_buffer": _set_workspace_buffer,
}


@dataclasses.dataclass
class WorkspaceBuilderClass(Factory):
    """A builder class with some of `METHODS`, which records whether a builder was made."""

    cls: BuilderClass  # the class that it extends
    methods: list[str]  # the methods

    def make(self, _: Twin) -> type:
        base: Any = self.cls

        def init(self: Any, *args: Any) -> None:
            base.__init__(self, *args)
            self.events = []
            made.number += 1

        methods = {name: METHODS[name] for name in self.methods}
        made: Any = type("Builder", (base,), {"number": 0, "__init__": init, **methods})
        return made  # type: ignore[no-any-return]  # a class

    def state(self, made: Any) -> Any:
        return made.number


WORKSPACES: Final = (
    *[("FLASHINFER", 3)] * 6,
    *(("MY_FLASHINFER_MLA", 3), ("PLAIN", 0), ("FLASHINFER", 1), ("FLASHINFER", 2)),
    *(("FLASH_ATTN", 3), ("flashinfer", 3)),
)
"""Names of backends, and which of the methods their builders have, as bits."""


def _spec(rng: Rng, names: list[str]) -> Any:
    heads = (16, 2, 8, np.dtype(np.float16))
    kind = rng.integers(5)
    if kind < 2:
        cls = (reference.FullAttentionSpec, reference.EncoderOnlyAttentionSpec)[kind]
        return cls(*heads)
    # Equal but distinct objects: specs compare by value.
    specs: dict[str, Any] = {n: reference.SlidingWindowSpec(*heads, 4) for n in names}
    if kind == 3 and len(names) > 1:
        del specs[names[0]]
    if kind == 4:
        specs = {"layers.99": reference.SlidingWindowSpec(16, 1, *heads[2:], 4), **specs}
    return reference.UniformTypeKVCacheSpecs(16, specs)


@st.composite
def groups(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    """Draw groups of one backend each, some of one; builders of some share a workspace."""
    number, layers = choices(draw, (2, 1, 3, 3, 0, 4, None), (1, 2, 3, 1, None))
    number = draw(sizes(0, 33)) if number is None else number
    layers = draw(sizes(1, 70)) if layers is None else layers
    some = draw(st.lists(st.tuples(backends(), builder_classes()), min_size=3, max_size=3))

    def contents(draw: st.DrawFn) -> Arguments:
        rng = draw(rngs())
        made = []
        for backend, cls in some:
            name, bits = WORKSPACES[rng.integers(len(WORKSPACES))]
            methods = [method for i, method in enumerate(METHODS) if bits >> i & 1]
            builder = WorkspaceBuilderClass(cls, methods)
            made.append(dataclasses.replace(backend, name=name, builder=builder))
        counts = [layers if g == number // 2 else 1 + g % 2 for g in range(number)]
        names = layer_names(rng, sum(counts))
        found, context = [], {"layers.98.moe": Layer(Class("MambaMixer"), "layers.98.moe")}
        for count in counts:
            own, names = names[:count], names[count:]
            found.append(reference.KVCacheGroupSpec(own, _spec(rng, own)))
            backend = made[rng.integers(3)]
            context |= {n: Layer(Class("Attention"), n, backend=backend) for n in own}
        config = config_of({n: context[n] for n in rng.permutation(list(context)).tolist()})
        kv_cache_config = reference.KVCacheConfig(3, [], found)
        return {"kv_cache_config": kv_cache_config, "vllm_config": config, "device": Device()}

    return deferred(contents)


def other_backend(arguments: Arguments, rng: random.Random) -> Arguments | None:
    """Let a layer have a backend of its own, which may equal that of its group."""

    def change(layer: Any) -> Any:
        backend = layer.backend and dataclasses.replace(layer.backend)
        return dataclasses.replace(layer, backend=backend)

    return _with_layer(arguments, rng, change)


def _has_names(arguments: Arguments) -> bool:
    """Return whether backends have names; else builders may be made before that is seen."""
    made = (getattr(layer, "backend", None) for layer in layers_of(arguments).values())
    return all(isinstance(getattr(backend, "name", ""), str) for backend in made)


def initialize(twin: Twin, **arguments: Any) -> dict[str, Any]:
    """Return the backends and builders, and what the builders were made with."""
    found = twin.function("init_attn_backend")(**arguments)
    made, builders = found
    layers, config = layers_of(arguments), arguments["vllm_config"]
    described = [
        {
            "spec": builder.given[0],
            "names": [
                names is group.layer_names for names in (builder.given[1], builder.layer_names)
            ],
            "config": builder.given[2] is config,
            "device": builder.has_device,
            "events": list(builder.events),
            "class": type(builder) is made[group.layer_names[0]].get_builder_cls(),
        }
        for builder, group in zip(
            builders, arguments["kv_cache_config"].kv_cache_groups, strict=True
        )
    ]
    return {
        "types": [type(found).__name__, type(builders).__name__],
        "backends": [(n, one is layers[n].get_attn_backend()) for n, one in made.items()],
        "number": len({*map(id, builders)}),
        "builders": described,
    }


def types_of_attention(twin: Twin) -> dict[str, Any]:
    found = vars(twin.find("AttentionType"))
    return {name: (v, type(v)) for name, v in sorted(found.items()) if name[0] != "_"}


CONTRACTS = [
    Contract(
        function="AttentionType",
        calls=st.just(st.just({})),
        run=types_of_attention,
        examples=0.02,
    ),
    Contract(
        function="get_layers_from_vllm_config",
        calls=named_layers(),
        run=find_layers,
        has_objects=True,
        takes_own_objects=True,
        examples=0.3,
        hard_cases={
            "in another order than the configuration's": lambda args: (
                args.get("layer_names")
                != [name for name in layers_of(args) if name in (args.get("layer_names") or ())]
            ),
        },
    ),
    Contract(
        function="get_kv_cache_spec",
        calls=cached_layers(),
        has_objects=True,
        takes_own_objects=True,
        specials=(without(), other_type),
        examples=0.3,
    ),
    Contract(
        function="init_attn_backend",
        calls=groups(),
        run=initialize,
        has_objects=True,
        takes_own_objects=True,
        specials=(other_backend,),
        is_affordable=_has_names,
        examples=0.4,
        hard_cases={
            "more than 16 groups": lambda args: len(args["kv_cache_config"].kv_cache_groups) > 16,
        },
    ),
]
