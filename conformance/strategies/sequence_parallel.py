"""Calls of `is_residual_scattered_for_sp`: each setting decides the result of some."""

from __future__ import annotations

from typing import Any

import reference
from conformance.coverage.presets import MINIMAL, Preset
from conformance.strategies import cached as st
from conformance.strategies.attention_layers import own_config
from conformance.values.call import Call

RANKS = "tensor-parallel ranks"
TOKENS = "rounds of tokens"
NUM_SIZES = "compiled sizes"


@st.composite
def is_scattered_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `is_residual_scattered_for_sp`; the source is the configuration's parts."""
    is_on = draw(st.MOSTLY)
    ranks = draw(st.sampled_from((2, 4, 8, 1) if preset is MINIMAL else (2, 8, 16, 1)))
    tokens = draw(st.integers(0, 4 if preset is MINIMAL else 512))
    ranks = draw(preset.sizes(RANKS, st.just(ranks)))
    tokens = draw(preset.sizes(TOKENS, st.just(tokens)))
    tokens = tokens * ranks if is_on or draw(st.booleans()) else tokens
    sizes: Any = draw(st.lists(st.sampled_from((tokens + ranks, 0, 8, 16)), max_size=3))
    if preset.axis == NUM_SIZES:
        sizes = list(range(tokens + 1, tokens + 1 + draw(preset.sizes(NUM_SIZES, st.just(0)))))
        sizes[-1:] = [draw(st.sampled_from((tokens, -1)))] * len(sizes[-1:])
    else:
        sizes = draw(st.sampled_from((sizes, [*sizes, tokens], None)))
    parts: dict[str, Any] = {
        "enable_sp": is_on,
        "tensor_parallel_size": ranks,
        "splitting_ops": draw(st.sampled_from((["attention"], ("a", "b"), ["a"], [], (), None))),
        "use_inductor_graph_partition": draw(st.SOMETIMES),
        "compile_sizes": sizes,
    }
    config = draw(st.sampled_from((whole, whole, unread)))(parts)
    arguments = {"vllm_config": config, "num_input_tokens": tokens}
    return Call("is_residual_scattered_for_sp", arguments, parts)


def whole(parts: dict[str, Any]) -> reference.VllmConfig:
    """Return a configuration with these parts."""
    return reference.VllmConfig(
        parallel_config=reference.ParallelConfig(
            tensor_parallel_size=parts["tensor_parallel_size"]
        ),
        compilation_config=reference.CompilationConfig(
            pass_config=reference.PassConfig(enable_sp=parts["enable_sp"]),
            splitting_ops=parts["splitting_ops"],
            use_inductor_graph_partition=parts["use_inductor_graph_partition"],
            compile_sizes=parts["compile_sizes"],
        ),
    )


def unread(parts: dict[str, Any]) -> Any:
    """Return an engine's own configuration, without the parts that are not read."""
    known: dict[str, Any] = {"pass_config": own_config(enable_sp=parts["enable_sp"])}
    if not parts["enable_sp"]:
        return own_config(compilation_config=own_config(**known))
    names = ("splitting_ops", "use_inductor_graph_partition", "compile_sizes")
    decides = 3
    if parts["tensor_parallel_size"] == 1:
        decides = 0
    elif not parts["splitting_ops"]:
        decides = 1
    elif parts["use_inductor_graph_partition"]:
        decides = 2
    known |= {name: parts[name] for name in names[:decides]}
    parallel = own_config(tensor_parallel_size=parts["tensor_parallel_size"])
    return own_config(compilation_config=own_config(**known), parallel_config=parallel)
