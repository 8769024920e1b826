from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fast
from fast import is_residual_scattered_for_sp as is_scattered


def make_config(ranks: Any = 4, *, enable_sp: Any = True, **compilation: Any) -> fast.VllmConfig:  # noqa: ANN401  # bad values too
    """Make a configuration with sequence parallelism."""
    return fast.VllmConfig(
        parallel_config=fast.ParallelConfig(tensor_parallel_size=ranks),
        compilation_config=fast.CompilationConfig(
            pass_config=fast.PassConfig(enable_sp=enable_sp), **compilation
        ),
    )


@pytest.mark.parametrize(
    ("compilation", "expected"),
    [
        ({}, True),
        ({"splitting_ops": []}, True),
        ({"splitting_ops": ["a"], "use_inductor_graph_partition": True}, True),
        ({"splitting_ops": ["a"]}, False),
        ({"splitting_ops": ["a"], "compile_sizes": []}, False),
        ({"splitting_ops": ["a"], "compile_sizes": [4, 8]}, True),
        ({"splitting_ops": ["a"], "compile_sizes": [np.int64(8)]}, True),
        ({"splitting_ops": ("a",), "compile_sizes": [4, 16]}, False),
        ({"splitting_ops": [], "compile_sizes": [4]}, True),
        ({"splitting_ops": ["a"], "compile_sizes": [2**70, 8]}, True),
    ],
)
def test_how_the_graph_is_compiled(compilation: dict[str, Any], expected: bool) -> None:
    """Scattered where the graph is compiled whole, or else for this number of tokens."""
    assert expected is is_scattered(make_config(**compilation), 8)


def test_off() -> None:
    """Without the pass, or with one rank, nothing is scattered, for any number of tokens."""
    off = make_config(enable_sp=False)
    off.parallel_config = None  # not read
    assert is_scattered(off, 7) is False
    assert is_scattered(make_config(1), 7) is False


def test_zero_tokens() -> None:
    """No tokens are a multiple of any number of ranks."""
    assert is_scattered(make_config(), 0) is True


@pytest.mark.parametrize(
    ("config", "tokens", "error", "message"),
    [
        (make_config(), 6, ValueError, "num_input_tokens is 6, expected a multiple of the 4"),
        (make_config(enable_sp=False), -1, ValueError, "num_input_tokens is -1"),
        (make_config(enable_sp=False), 8.0, TypeError, "num_input_tokens must be an int"),
        (make_config(enable_sp=1), 8, TypeError, "enable_sp must be a bool"),
        (make_config(0), 8, ValueError, "tensor_parallel_size is 0"),
        (make_config("2"), 8, TypeError, "tensor_parallel_size must be an int"),
        (make_config(splitting_ops="a"), 8, TypeError, "splitting_ops must be a list"),
        (
            make_config(splitting_ops=["a"], use_inductor_graph_partition=None),
            8,
            TypeError,
            "use_inductor_graph_partition must be a bool",
        ),
        (
            make_config(splitting_ops=["a"], compile_sizes={8}),
            8,
            TypeError,
            "compile_sizes must be a list",
        ),
        (
            make_config(splitting_ops=["a"], compile_sizes=[8, "4"]),
            8,
            TypeError,
            r"compile_sizes\[1\] must be an int",
        ),
        (SimpleNamespace(), 8, AttributeError, "compilation_config"),
    ],
)
def test_refused(
    config: fast.VllmConfig, tokens: int, error: type[Exception], message: str
) -> None:
    """The number of tokens is checked first; what is read of a configuration is checked."""
    with pytest.raises(error, match=message):
        is_scattered(config, tokens)
