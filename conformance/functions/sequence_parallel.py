"""Sequence parallelism: whether the residual stream is scattered over the ranks."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import strategies as st

import reference
from conformance.harness.contract import Arguments, Contract
from conformance.harness.sizes import sizes
from conformance.laws.batches import MAX_INT32, choices, deferred

OPERATORS: Final[tuple[Any, ...]] = (["attention"], ("a", "b"), ["a"], ["a"], [], (), None)
"""The operators at which the graph is split."""


@st.composite
def calls(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    """Draw configurations, in which the last setting that is read decides, or an earlier one."""
    few, rounds, number = draw(sizes(1, 70)), draw(sizes(0, 1100)), draw(sizes(0, 300))
    is_on, is_whole, operators, has_sizes, place, most = choices(
        *(
            draw,
            (True, True, True, False),
            (False, False, False, True),
            OPERATORS,
            (True, True, False),
        ),
        *(("first", "last", "none", "none"), (1, 1, 1, 1, 1, MAX_INT32)),
    )
    ranks = max(few, most)

    def contents(draw: st.DrawFn) -> Arguments:
        tokens = rounds * ranks
        if not is_on:
            tokens += draw(st.integers(0, ranks))
        compiled = [tokens + 1 + k for k in range(number)]
        compiled[:0] = [tokens] * (place == "first")
        compiled += [tokens] * (place == "last")
        config = reference.VllmConfig(
            parallel_config=reference.ParallelConfig(tensor_parallel_size=ranks),
            compilation_config=reference.CompilationConfig(
                pass_config=reference.PassConfig(enable_sp=is_on),
                splitting_ops=operators,
                use_inductor_graph_partition=is_whole,
                compile_sizes=compiled if has_sizes else None,
            ),
        )
        return {"vllm_config": config, "num_input_tokens": tokens}

    return deferred(contents)


def _setting(arguments: Arguments, name: str) -> Any:
    """Return a setting of a graph that is compiled for several ranks; None if there is no such."""
    config = arguments["vllm_config"]
    is_read = config.compilation_config.pass_config.enable_sp
    is_read = is_read and config.parallel_config.tensor_parallel_size > 1
    return getattr(config.compilation_config, name) if is_read else None


CONTRACTS = [
    Contract(
        function="is_residual_scattered_for_sp",
        calls=calls(),
        takes_own_objects=True,
        examples=0.5,
        hard_cases={
            "more than 64 sizes, of which the last decides": lambda args: (
                _setting(args, "splitting_ops")
                and not _setting(args, "use_inductor_graph_partition")
                and args["num_input_tokens"] in (_setting(args, "compile_sizes") or [])[64:]
            ),
            "no tokens": lambda args: (
                _setting(args, "use_inductor_graph_partition") is not None
                and not args["num_input_tokens"]
            ),
        },
    ),
]
