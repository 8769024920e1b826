"""Bad calls of `is_residual_scattered_for_sp`."""

from __future__ import annotations

from typing import Any

from conformance.contracts import Call, Change, InvalidInput, replaced
from conformance.invalid_inputs.mm_budget import bad_ints
from conformance.strategies.attention_layers import own_config
from conformance.strategies.sequence_parallel import whole

TOKENS = "num_input_tokens"

READ: dict[str, Any] = {
    "enable_sp": True,
    "tensor_parallel_size": 4,
    "splitting_ops": ["attention"],
    "use_inductor_graph_partition": False,
    "compile_sizes": [8],
}
"""Parts of a configuration all of which are read."""


def _with(**parts: Any) -> Change:
    """Return a fault of a part of the configuration, which is read for a number that would do."""
    return lambda call: call.replacing(vllm_config=whole(READ | parts), num_input_tokens=8)


def _lacking(name: str) -> Change:
    """Return a fault of a configuration that lacks a part."""

    def breaks(call: Call) -> Call:
        parts = {part: value for part, value in READ.items() if part != name}
        flags = own_config(**{n: parts.pop(n) for n in ("enable_sp",) if n in parts})
        ranks = {n: parts.pop(n) for n in ("tensor_parallel_size",) if n in parts}
        config = own_config(
            compilation_config=own_config(pass_config=flags, **parts),
            parallel_config=own_config(**ranks),
        )
        return call.replacing(vllm_config=config, num_input_tokens=8)

    return breaks


def _odd(call: Call) -> Call:
    return call.replacing(vllm_config=whole(READ), num_input_tokens=call.arguments[TOKENS] * 4 + 2)


def _odd_and_whole(call: Call) -> Call:
    parts = {**READ, "splitting_ops": None}
    return call.replacing(vllm_config=whole(parts), num_input_tokens=call.arguments[TOKENS] * 4 + 1)


SP_INVALID_INPUTS = [
    *(
        InvalidInput(f"the number is {bad!r}", error, TOKENS, replaced(TOKENS, bad))
        for error, bad in bad_ints(0)
    ),
    InvalidInput("the number is no multiple of the ranks", ValueError, TOKENS, _odd),
    InvalidInput("likewise, of a graph compiled whole", ValueError, TOKENS, _odd_and_whole),
    *(
        InvalidInput(
            f"ranks are {bad!r}", error, "tensor_parallel_size", _with(tensor_parallel_size=bad)
        )
        for error, bad in bad_ints(1)
    ),
    *(
        InvalidInput(f"{name} is {bad!r}", TypeError, name, _with(**{name: bad}))
        for name in ("enable_sp", "use_inductor_graph_partition")
        for bad in (1, None, "yes")
    ),
    *(
        InvalidInput(
            f"splitting_ops is {bad!r}", TypeError, "splitting_ops", _with(splitting_ops=bad)
        )
        for bad in ("attention", 3, {"a"})
    ),
    *(
        InvalidInput(
            f"compile_sizes is {bad!r}", TypeError, "compile_sizes", _with(compile_sizes=bad)
        )
        for bad in ((8,), {8}, 8, "8", [True], [8.0], [None])
    ),
    *(InvalidInput(f"no {name}", AttributeError, name, _lacking(name)) for name in READ),
    InvalidInput(
        "no configuration", AttributeError, "compilation_config", replaced("vllm_config", None)
    ),
]
