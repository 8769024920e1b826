"""The layers of a model: their KV cache specs, their backends, and their metadata builders."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.contracts.check import property_check
from conformance.contracts.contract import Contract
from conformance.contracts.evaluation import exception_of
from conformance.coverage.size_axes import of_ints, of_objects
from conformance.execution.invocations import Invocation
from conformance.invalid_inputs.attention_layers import (
    GET_KV_CACHE_SPEC_INVALID_INPUTS,
    GET_LAYERS_INVALID_INPUTS,
    INIT_ATTN_BACKEND_INVALID_INPUTS,
)
from conformance.strategies import cached as st
from conformance.strategies.attention_layers import (
    ATTENTION,
    BLOCK_SIZE,
    GROUPS,
    HEAD_SIZE,
    HEADS,
    LAYERS,
    LAYERS_OF_A_GROUP,
    MIXER,
    MLA_ATTENTION,
    MOE,
    WINDOW,
    WORKSPACES,
    context_of,
    get_kv_cache_spec_calls,
    get_layers_calls,
    init_attn_backend_calls,
)
from conformance.strategies.stub_factories import Own
from conformance.targets.target import Target
from conformance.values.call import Call

TYPES = ("decoder", "encoder", "encoder_only", "encoder_decoder")


@property_check("AttentionType", lambda _: st.sampled_from(TYPES))
def test_types_of_attention(target: Target, name: str) -> None:
    """`AttentionType` has exactly four members, which are strs."""
    found: Any = target.lookup("AttentionType")
    types = {n: v for n, v in vars(found).items() if not n.startswith("_")}
    assert {name.upper(): name for name in TYPES} == types
    assert type(types[name.upper()]) is str


def _is_own(call: Call) -> bool:
    """Return whether the configuration is an engine's own."""
    return isinstance(call["vllm_config"], Own)


def _names(call: Call) -> Any:
    return call.get("layer_names")


test_get_layers = Contract(
    "get_layers_from_vllm_config",
    get_layers_calls,
    {
        "no layers": lambda call: not call.source,
        "all layers by default": lambda call: "layer_names" not in call,
        "all layers": lambda call: "layer_names" in call and _names(call) is None,
        "no names": lambda call: _names(call) == [] and bool(call.source),
        "names in another order than the context's": lambda call: (
            bool(_names(call))
            and _names(call) != [name for name in call.source if name in _names(call)]
        ),
        "a named layer is of another type": lambda call: (
            call["layer_type"] is ATTENTION
            and any(call.source[name].cls in {MIXER, MOE} for name in _names(call) or ())
        ),
        "a layer of a subclass": lambda call: (
            call["layer_type"] is ATTENTION
            and any(layer.cls is MLA_ATTENTION for layer in call.source.values())
        ),
        "a layer of the superclass": lambda call: (
            call["layer_type"] is MLA_ATTENTION
            and any(layer.cls is ATTENTION for layer in call.source.values())
        ),
        "an engine's own configuration": _is_own,
    },
    axes={LAYERS: of_objects(lambda call: len(call.source))},
    invalid_inputs=GET_LAYERS_INVALID_INPUTS,
    compares_views=True,
    takes_objects=True,
)


@property_check("get_layers_from_vllm_config", get_layers_calls)
def test_layers_are_the_context_s_own(target: Target, call: Call) -> None:
    """The result has every named layer of the type, and each is the context's own object."""
    invocation = Invocation(target, call)
    found = invocation.answer(checked=False)
    cls = invocation.arguments["layer_type"]
    layers = {
        name: invocation.converter.convert(layer, "layer") for name, layer in call.source.items()
    }
    looked_at = list(layers) if _names(call) is None else _names(call)
    assert [name for name in looked_at if isinstance(layers[name], cls)] == list(found)
    assert all(layer is layers[name] for name, layer in found.items())


def _kinds(*kinds: str) -> Any:
    return lambda call: any(kind in call.source.values() for kind in kinds)


def _largest(attribute: str) -> Any:
    """Return a size function: the largest value of an attribute over a call's layers."""

    def size(call: Call) -> int:
        layers = context_of(call["vllm_config"]).values()
        return max((layer.attributes.get(attribute) or 0 for layer in layers), default=0)

    return size


def _block_size(call: Call) -> int:
    config = call["vllm_config"]
    cache = (config.attributes if _is_own(call) else vars(config))["cache_config"]
    size: int = (cache.attributes if _is_own(call) else vars(cache))["block_size"]
    return size


test_get_kv_cache_spec = Contract(
    "get_kv_cache_spec",
    get_kv_cache_spec_calls,
    {
        "no layers": lambda call: not call.source,
        "a layer with a window": _kinds("window"),
        "a layer without": _kinds("full"),
        "a layer that shares": _kinds("shares"),
        "a layer that shares and has a window": _kinds("shares window"),
        "a layer that shares and is of another type": _kinds("shares bare"),
        "a layer that is not attention": _kinds("no attention"),
        "one that is none and has a window": _kinds("no attention, with a window"),
        "layers in descending order": lambda call: list(call.source) != sorted(call.source),
        "a scalar type for a dtype": lambda call: isinstance(call["kv_cache_dtype"], type),
        "an engine's own configuration": _is_own,
        "sizes of NumPy's ints": lambda call: any(
            isinstance(layer.attributes.get("num_kv_heads"), np.integer)
            for layer in context_of(call["vllm_config"]).values()
        ),
    },
    axes={
        LAYERS: of_objects(lambda call: len(call.source)),
        BLOCK_SIZE: of_ints(_block_size, 1),
        HEADS: of_ints(_largest("num_kv_heads"), 1),
        HEAD_SIZE: of_ints(_largest("head_size"), 1),
        WINDOW: of_ints(_largest("sliding_window"), 1),
    },
    pairs=(("a layer with a window", "a layer that shares and has a window"),),
    invalid_inputs=GET_KV_CACHE_SPEC_INVALID_INPUTS,
    takes_objects=True,
)


@property_check("get_kv_cache_spec", get_kv_cache_spec_calls)
def test_each_layer_with_a_cache_has_a_spec(target: Target, call: Call) -> None:
    """Attention layers with their own cache have a spec; the window decides its class."""
    found = Invocation(target, call).answer(checked=False)
    classes = {"full": "FullAttentionSpec", "window": "SlidingWindowSpec"}
    expected = {name: classes[kind] for name, kind in call.source.items() if kind in classes}
    assert list(expected.items()) == [(name, type(spec).__name__) for name, spec in found.items()]
    layers = context_of(call["vllm_config"])
    for name, spec in found.items():
        assert isinstance(spec, target.lookup(expected[name]))  # type: ignore[arg-type]  # a class
        assert layers[name].attributes["sliding_window"] == spec.sliding_window
        assert {int} == {type(spec.num_kv_heads), type(spec.head_size), type(spec.block_size)}


def _workspaces(call: Call) -> list[str]:
    return [plan.workspace for plan in call.source]


def _has_workspace(name: str) -> Any:
    return lambda call: name in _workspaces(call)


def _sharing(call: Call) -> int:
    return sum(workspace.startswith("shares") for workspace in _workspaces(call))


test_init_attn_backend = Contract(
    "init_attn_backend",
    init_attn_backend_calls,
    {
        "no groups": lambda call: not call.source,
        "several groups": lambda call: len(call.source) > 1,
        "a group of several layers": lambda call: any(len(p.names) > 1 for p in call.source),
        "two groups of one backend": lambda call: (
            len({id(plan.backend) for plan in call.source}) < len(call.source)
        ),
        "a group of encoder-only layers": lambda call: _has_kind(call, "encoder only"),
        "a uniform group": lambda call: _has_kind(call, "uniform"),
        "a uniform group, of which the first layer shares": lambda call: any(
            plan.kind == "uniform, for some" and len(plan.names) > 1 for plan in call.source
        ),
        "a uniform spec of other layers too": lambda call: _has_kind(call, "uniform, with others"),
        **{f"a builder that {name}": _has_workspace(name) for name in WORKSPACES if name != "none"},
        "one builder keeps its workspace alone": lambda call: _sharing(call) == 1,
        "three builders share a workspace": lambda call: _sharing(call) == 3,
        "the first builder shares none": lambda call: (
            _sharing(call) > 1 and not _workspaces(call)[0].startswith("shares")
        ),
        "an engine's own builders": lambda call: any(p.backend.builder.is_own for p in call.source),
        "an engine's own backend": lambda call: any(plan.backend.is_own for plan in call.source),
        "an engine's own configuration": _is_own,
        "layers in another order than the context's": lambda call: (
            [name for plan in call.source for name in plan.names]
            != [n for n in context_of(call["vllm_config"]) if n.endswith("attn")]
        ),
    },
    axes={
        GROUPS: of_objects(lambda call: len(call.source), last=257),
        LAYERS_OF_A_GROUP: of_objects(
            lambda call: max((len(plan.names) for plan in call.source), default=0),
            1,
            last=257,
        ),
    },
    invalid_inputs=INIT_ATTN_BACKEND_INVALID_INPUTS,
    compares_views=True,
    takes_objects=True,
    returns=("attn_backends", "builders"),
)


def _has_kind(call: Call, kind: str) -> bool:
    return any(plan.kind == kind for plan in call.source)


@property_check("init_attn_backend", init_attn_backend_calls)
def test_each_group_has_a_builder_of_its_backend(target: Target, call: Call) -> None:
    """Each layer has its backend, each group a builder; builders that share get one workspace."""
    invocation = Invocation(target, call)
    backends, builders = invocation.answer(checked=False)
    assert len(call.source) == len({id(builder) for builder in builders}) == len(builders)
    sharing = []
    for plan, builder in zip(call.source, builders, strict=True):
        backend = invocation.converter.convert(plan.backend, "backend")
        assert all(backends[name] is backend for name in plan.names)
        assert type(builder) is backend.get_builder_cls()
        if plan.workspace.startswith("shares"):
            sharing.append(builder)
        else:
            assert (0, []) == (builder.num_calls, builder.workspaces)
    assert [1, 0, 0][: len(sharing)] == [builder.num_calls for builder in sharing]
    shared = [builder.workspaces for builder in sharing]
    assert [0, 1, 1][: len(sharing)] == list(map(len, shared))
    assert len({id(given[0]) for given in shared[1:]}) < 2


@property_check(
    "init_attn_backend",
    init_attn_backend_calls,
    goals={"groups before the bad one": lambda call: len(call.source) > 1},
)
def test_nothing_is_made_of_a_bad_config(target: Target, call: Call) -> None:
    """If the last group is invalid, no builders are made for the groups before it."""
    invalid = next(f for f in INIT_ATTN_BACKEND_INVALID_INPUTS if f.name == "a group is empty")
    bad = invalid.change(call)
    if bad is None:
        return
    invocation = Invocation(target, bad)
    with target.running():
        assert ValueError is type(exception_of(invocation.run))
    for plan in call.source:
        assert [] == invocation.converter.convert(plan.backend.builder, "builder").made
