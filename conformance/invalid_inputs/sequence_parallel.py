"""Invalid inputs of `is_residual_scattered_for_sp`."""

from __future__ import annotations

from typing import Any

from conformance.invalid_inputs.changes import Refusals, change_maker, prepared, refusals
from conformance.invalid_inputs.kinds import Bool, Int, List, Object, invalid_by_kind
from conformance.strategies.sequence_parallel import whole
from conformance.values.call import Call

TOKENS = "num_input_tokens"
COMPILATION = "vllm_config.compilation_config"

READ: dict[str, Any] = {
    "enable_sp": True,
    "tensor_parallel_size": 4,
    "splitting_ops": ["attention"],
    "use_inductor_graph_partition": False,
    "compile_sizes": [8],
}
"""Parts of a configuration that are all read."""


def _where_all_is_read(call: Call) -> Call:
    return call.replacing(vllm_config=whole(READ), num_input_tokens=8)


@change_maker
def _with_rest(call: Call, rest: int, parts: dict[str, Any]) -> Call:
    """Set a number of tokens with this remainder when divided by the four ranks."""
    tokens = call.arguments[TOKENS] * 4 + rest
    return call.replacing(vllm_config=whole({**READ, **parts}), num_input_tokens=tokens)


SP_REFUSALS: Refusals = {
    (ValueError, TOKENS): {
        "the number is not a multiple of the ranks": _with_rest(2, {}),
        "likewise, of a graph compiled whole": _with_rest(1, {"splitting_ops": None}),
    }
}

SP_INVALID_INPUTS = [
    *invalid_by_kind(vllm_config=Object(reads="compilation_config"), **{TOKENS: Int(0)}),
    *refusals(SP_REFUSALS),
    *prepared(
        _where_all_is_read,
        [
            *invalid_by_kind(
                **{
                    f"{COMPILATION}.pass_config.enable_sp": Bool(is_attribute=True),
                    "vllm_config.parallel_config.tensor_parallel_size": Int(is_attribute=True),
                    f"{COMPILATION}.use_inductor_graph_partition": Bool(is_attribute=True),
                    f"{COMPILATION}.splitting_ops": List(
                        is_optional=True, takes_tuple=True, is_attribute=True
                    ),
                    f"{COMPILATION}.compile_sizes": List(
                        Int(minimum=None), is_optional=True, is_attribute=True
                    ),
                }
            )
        ],
    ),
]
