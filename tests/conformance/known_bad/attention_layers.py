"""Layers, their specs, their backends, as one finds them in a hurry."""

# ruff: noqa: ANN401, C901, PLR0912  # engines' own objects; a branch for each bug

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import fast
from known_bad.entries import rewritten

REAL_LAYERS = fast.get_layers_from_vllm_config
REAL_SPEC = fast.get_kv_cache_spec
REAL_INIT = fast.init_attn_backend
REAL_TYPE = fast.AttentionType


def _make_type(bug: str | None) -> type:
    names = ("decoder", "encoder", "encoder_only", "encoder_decoder")
    members: dict[str, Any] = {name.upper(): name for name in names}
    if bug == "a dash for an underscore":
        members["ENCODER_ONLY"] = "encoder-only"
    if bug == "they are NumPy's":
        members = {name: np.str_(value) for name, value in members.items()}
    return type("AttentionType", (), members)


def _context(config: Any) -> Any:
    return config.compilation_config.static_forward_context


def _make_layers(bug: str | None) -> Callable[..., Any]:
    def get_layers_from_vllm_config(
        vllm_config: Any,
        layer_type: Any,
        layer_names: Any = None,
    ) -> dict[str, Any]:
        if bug == "unknown names are left out" and isinstance(layer_names, list):
            known = _context(vllm_config)
            layer_names = [n for n in layer_names if n in known or not isinstance(n, str)]
        REAL_LAYERS(vllm_config, layer_type, layer_names)
        layers = _context(vllm_config)
        names = layer_names
        if layer_names is None or (bug == "no names are all names" and not layer_names):
            names = layers
        if bug == "the order is the context's" and layer_names is not None:
            names = [name for name in layers if name in layer_names]
        if bug == "the type is compared by `is`":
            return {name: layers[name] for name in names if type(layers[name]) is layer_type}
        if bug == "named ones are of the type" and layer_names:
            return {name: layers[name] for name in names}
        return {name: layers[name] for name in names if isinstance(layers[name], layer_type)}

    return get_layers_from_vllm_config


def _make_spec(bug: str | None) -> Callable[..., Any]:
    def get_kv_cache_spec(vllm_config: Any, kv_cache_dtype: Any) -> dict[str, Any]:
        if bug == "the dtype is checked by the specs" and vllm_config and vllm_config.cache_config:
            compilation = vllm_config.compilation_config
            if compilation and not compilation.static_forward_context:
                return {}
        try:
            REAL_SPEC(vllm_config, kv_cache_dtype)
        except ValueError as error:
            if bug != "other types are left out" or "attn_type" not in str(error):
                raise
        size = vllm_config.cache_config.block_size
        found: dict[str, Any] = {}
        for name, layer in _context(vllm_config).items():
            target = getattr(layer, "kv_sharing_target_layer_name", None)
            if bug == "sharing is asked by `hasattr`":
                target = 1 if hasattr(layer, "kv_sharing_target_layer_name") else None
            is_kept = bug == "a sharing layer with a window has a spec" and getattr(
                layer, "sliding_window", None
            )
            if bug == "sharing layers have specs too" and hasattr(layer, "num_kv_heads"):
                is_kept = True
            if target is not None and not is_kept:
                continue
            if not hasattr(layer, "attn_type"):
                if bug != "what has a window is attention" or not hasattr(layer, "head_size"):
                    continue
            elif layer.attn_type != "decoder":
                continue
            numbers = [size, layer.num_kv_heads, layer.head_size, kv_cache_dtype]
            if bug == "heads and head size change places":
                numbers[1:3] = numbers[2:0:-1]
            window = layer.sliding_window
            if bug == "a full spec carries the window" and window:
                found[name] = fast.FullAttentionSpec(*numbers, sliding_window=window)
            elif window is None or (bug == "a window of 1 is none" and window == 1):
                found[name] = fast.FullAttentionSpec(*numbers)
            else:
                found[name] = fast.SlidingWindowSpec(*numbers, window)
        return dict(sorted(found.items())) if bug == "specs are in order of names" else found

    return get_kv_cache_spec


def _backend(bug: str | None, group: Any, layers: Any) -> Any:
    names = group.layer_names
    return layers[names[-1 if bug == "the last layer's backend" else 0]].get_attn_backend()


def _spec(bug: str | None, group: Any) -> Any:
    spec = group.kv_cache_spec
    if not hasattr(spec, "kv_cache_specs") or bug == "a uniform group's spec is its own":
        return spec
    specs = spec.kv_cache_specs
    if bug == "a uniform group's spec is its first":
        return next(iter(specs.values()))
    return next(specs[name] for name in group.layer_names if name in specs)


def _share(bug: str | None, builders: list[Any], names: list[str]) -> None:
    """Share a workspace, with a bug."""
    methods = ["_get_workspace_buffer", "set_workspace_buffer"]
    if bug == "only what can take is asked":
        methods = methods[1:]
    wanted = "flashinfer" if bug == "names are compared in small letters" else "FLASHINFER"
    sharing = []
    for builder, name in zip(builders, names, strict=True):
        if bug == "names are compared in small letters":
            name = name.lower()  # noqa: PLW2901
        is_named = name == wanted if bug == "the name is FLASHINFER" else wanted in name
        if bug == "all builders share":
            is_named = True
        if is_named and all(hasattr(builder, method) for method in methods):
            sharing.append(builder)
    if bug == "a workspace alone is not made" and len(sharing) == 1:
        return
    workspace = None
    for i, builder in enumerate(sharing):
        if i == 0:
            workspace = getattr(builder, "_get_workspace_buffer", lambda: None)()
            if bug == "the first is given its own":
                builder.set_workspace_buffer(workspace)
        elif bug == "each gives to the next":
            builder.set_workspace_buffer(sharing[i - 1]._get_workspace_buffer())
        else:
            if bug == "asked for each":
                workspace = sharing[0]._get_workspace_buffer()
            builder.set_workspace_buffer(workspace)


def _make_init(bug: str | None) -> Callable[..., Any]:
    def init_attn_backend(kv_cache_config: Any, vllm_config: Any, device: Any) -> Any:
        groups = kv_cache_config.kv_cache_groups
        if bug == "backends are compared by `==`":
            try:
                REAL_INIT(kv_cache_config, vllm_config, device)
            except ValueError as error:
                if "unlike backends" not in str(error) or not _all_equal(groups, vllm_config):
                    raise
        elif bug == "builders are made on the way" and isinstance(groups, list):
            for group in groups:
                if not group.layer_names:
                    raise ValueError("layer_names is empty")
                backend = _backend(bug, group, _context(vllm_config))
                backend.get_builder_cls()(None, group.layer_names, vllm_config, device)
        elif bug != "nothing is checked":
            REAL_INIT(kv_cache_config, vllm_config, device)
        layers = _context(vllm_config)
        backends: dict[str, Any] = {}
        builders, names = [], []
        for group in groups:
            backend = _backend(bug, group, layers)
            layer_names = group.layer_names
            if bug == "encoder-only groups have no builder" and type(
                group.kv_cache_spec
            ).__name__.startswith("Encoder"):
                continue
            entered = layer_names[:1] if bug == "the first layer alone is entered" else layer_names
            backends |= dict.fromkeys(entered, backend)
            if bug == "the names are copied":
                layer_names = list(layer_names)
            given = [_spec(bug, group), layer_names, vllm_config, device]
            if bug == "names before the spec":
                given[:2] = given[1::-1]
            builders.append(backend.get_builder_cls()(*given))
            names.append(backend.get_name())
        _share(bug, builders, names)
        return backends, tuple(builders) if bug == "the builders are a tuple" else builders

    return init_attn_backend


def _all_equal(groups: Any, config: Any) -> bool:
    layers = _context(config)
    found = [[layers[n].get_attn_backend() for n in group.layer_names] for group in groups]
    return all(backend == backends[0] for backends in found for backend in backends)


ATTENTION_LAYERS = [
    *rewritten(
        "AttentionType",
        _make_type,
        laws={
            "test_types_of_attention": {
                "a dash for an underscore": "Layers that write it out are of no type.",
                "they are NumPy's": "Equal; a compiled graph breaks at them.",
            }
        },
    ),
    *rewritten(
        "get_layers_from_vllm_config",
        _make_layers,
        answers={
            "no names are all names": "`not layer_names`.",
            "the order is the context's": "Right where names are in it.",
            "the type is compared by `is`": "Subclasses are lost.",
            "named ones are of the type": "Whoever names them should know.",
        },
        refusals={"unknown names are left out": "A typo is no layer."},
    ),
    *rewritten(
        "get_kv_cache_spec",
        _make_spec,
        answers={
            "sharing is asked by `hasattr`": "Layers whose target is None lose their cache.",
            "a sharing layer with a window has a spec": "The window's branch comes first.",
            "sharing layers have specs too": "Twice the memory.",
            "what has a window is attention": "Duck typing of the wrong duck.",
            "heads and head size change places": "The same page size.",
            "a full spec carries the window": "The same page size, and memory for all tokens.",
            "a window of 1 is none": "`window > 1`.",
            "specs are in order of names": "`layers.10` comes before `layers.2`.",
        },
        refusals={
            "other types are left out": "Encoder layers run without a cache.",
            "the dtype is checked by the specs": "Without layers anything is a dtype.",
        },
    ),
    *rewritten(
        "init_attn_backend",
        _make_init,
        answers={
            "the first layer alone is entered": "Right for groups of one layer.",
            "encoder-only groups have no builder": "The next group gets its builder.",
            "a uniform group's spec is its own": "It has no heads.",
            "a uniform group's spec is its first": "That of a layer in another group.",
            "names before the spec": "Engines' builders store both.",
            "the names are copied": "Layers that join the group later are not seen.",
            "the builders are a tuple": "Indexed alike.",
            "only what can take is asked": "The first cannot give: `None` is shared.",
            "names are compared in small letters": "Another backend's workspace.",
            "the name is FLASHINFER": "Right for the plain one.",
            "all builders share": "Right where all backends are FlashInfer's.",
            "a workspace alone is not made": "It is made in the first step, inside a graph.",
            "the first is given its own": "The same buffer; one that counts its users is off.",
            "each gives to the next": "A workspace for each.",
            "asked for each": "The same, where the first one keeps it.",
        },
        refusals={
            "backends are compared by `==`": "A proxy's metaclass says they are equal.",
            "nothing is checked": "The first layer speaks for its group.",
        },
        laws={
            "test_nothing_is_made_of_a_bad_config": {
                "builders are made on the way": "GPU memory is kept by builders of no engine.",
            }
        },
    ),
]
