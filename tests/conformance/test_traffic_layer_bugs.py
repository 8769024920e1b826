"""Bugs put by hand into what `fast` does with caches and layers: the replay of a model finds each.

Each bug is made of the function whose place it takes.
"""

import re
from collections.abc import Callable
from typing import Any

import pytest
from planted_bugs import Function, after, never

import fast
from tools import replay


def before(**changed: object) -> Callable[[Function], Function]:
    """Change keyword arguments."""
    return lambda function: lambda *args, **kwargs: function(*args, **{**kwargs, **changed})


def counting_keys_and_values(_: Function) -> object:
    """Take a latent for a key and a value."""
    return property(lambda spec: 2 * spec.block_size * spec.head_size * 2)


def beginning_at_a_block(needs: Function) -> Function:
    """Forget that a window may begin inside a block."""
    return lambda spec, config: needs(spec, config) - spec.page_size_bytes


def with_copies(init: Function) -> Function:
    """Give each layer memory of its own."""

    def broken(caches: list[Any], layers: dict[str, Any], *args: Any, **kwargs: Any) -> None:  # noqa: ANN401  # takes the function's place
        init(caches, layers, *args, **kwargs)
        for layer in layers.values():
            layer.kv_cache = [cache.clone() for cache in layer.kv_cache]

    return broken


def with_slots_of_the_first(build: Function) -> Function:
    """Give all groups the slots of the first."""

    def broken(*args: Any) -> object:  # noqa: ANN401  # takes the function's place
        slots = args[7]
        return build(*args[:7], [slots[0]] * len(slots), *args[8:])

    return broken


def reordering(init: Function) -> Function:
    """Give builders a list of names of their own."""

    def broken(*args: Any) -> object:  # noqa: ANN401  # takes the function's place
        backends, builders = init(*args)
        for builder in builders:
            builder.layer_names = list(builder.layer_names)
        return backends, builders

    return broken


BUGS = [
    ("MLAAttentionSpec.page_size_bytes", counting_keys_and_values, "deepseek-v3", "init_kv_cache"),
    (
        "SlidingWindowSpec.max_memory_usage_bytes",
        beginning_at_a_block,
        "phi-3-mini-4k",
        r"deployment\['max_memory_usage_bytes'\]\[0\]",
    ),
    ("UniformTypeKVCacheSpecs.from_specs", never, "deepseek-v3.2-exp", ""),
    ("add_kv_sharing_layers_to_kv_cache_groups", never, "gemma-3n-e4b", ""),
    (
        "prepare_kernel_block_sizes",
        after(lambda sizes: [1312 if size == 32 else size for size in sizes]),
        "nemotron-nano-9b-v2",
        r"deployment\['kernel_block_sizes'\]",
    ),
    (
        "init_kv_cache",
        before(kernel_block_sizes=None),
        "nemotron-nano-9b-v2",
        r"deployment\['caches'\]",
    ),
    ("init_kv_cache", before(num_attn_module=1), "longcat-flash", "init_kv_cache"),
    ("init_kv_cache", with_copies, "gpt-oss-20b", r"result\['kv_caches'\]"),
    ("init_attn_backend", reordering, "gemma-2-9b", r"result\['builders'\]"),
    (
        "get_per_layer_parameters",
        after(lambda found: dict(reversed(found.items()))),
        "mistral-7b-v0.1",
        r"list\(deployment\['parameters'\]",
    ),
    ("get_kv_cache_layout", after(lambda _: "HND"), "qwen2.5-7b", "result"),
    ("build_attn_metadata", with_slots_of_the_first, "gpt-oss-20b", r"attn_metadata\[1\]"),
    (
        "build_attn_metadata",
        after(lambda built: dict(reversed(built.items()))),
        "llama-3.1-70b",
        r"list\(attn_metadata_of_layers\)",
    ),
]


@pytest.mark.parametrize(
    ("name", "make_bug", "model", "field"),
    BUGS,
    ids=[f"{name}-{model}" for name, _, model, _ in BUGS],
)
def test_a_bug_is_found(
    name: str,
    make_bug: Callable[[Any], Any],
    model: str,
    field: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A bug ends the replay of a model with status 1, the step and the field."""
    owner: object = fast
    for part in name.split(".")[:-1]:
        owner = getattr(owner, part)
    attribute = name.rpartition(".")[2]
    monkeypatch.setattr(owner, attribute, make_bug(getattr(owner, attribute)))
    assert replay.main(["--model", model, "--steps", "20"]) == 1
    line = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(rf"step 0: {field}.* = .*, but should be .* \(of request-\d+.*\)", line)
