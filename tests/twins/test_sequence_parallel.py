"""Sequence parallelism: whether the residual stream is scattered."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest


def make_config(twin: Any, *, enable_sp: Any = True, size: Any = 4, **compilation: Any) -> Any:
    return twin.VllmConfig(
        parallel_config=twin.ParallelConfig(tensor_parallel_size=size),
        compilation_config=twin.CompilationConfig(
            pass_config=twin.PassConfig(enable_sp=enable_sp), **compilation
        ),
    )


OPS = ["attention"]


@pytest.mark.parametrize(
    ("changes", "num_input_tokens", "expected"),
    [
        pytest.param({"enable_sp": False}, 8, False, id="off"),
        pytest.param({"enable_sp": False}, 7, False, id="off, and no multiple"),
        pytest.param({"size": 1}, 7, False, id="one rank"),
        pytest.param({}, 8, True, id="compiled whole"),
        pytest.param({}, 0, True, id="no tokens"),
        pytest.param({"splitting_ops": []}, 8, True, id="an empty list splits nothing"),
        pytest.param({"splitting_ops": []}, 12, True, id="sizes count only where it is split"),
        pytest.param({"splitting_ops": OPS}, 8, False, id="no sizes"),
        pytest.param({"splitting_ops": OPS, "compile_sizes": []}, 8, False, id="empty sizes"),
        pytest.param({"splitting_ops": OPS, "compile_sizes": [4, 8]}, 8, True, id="a size"),
        pytest.param({"splitting_ops": OPS, "compile_sizes": [4, 8]}, 12, False, id="no size"),
        pytest.param(
            {"splitting_ops": OPS, "use_inductor_graph_partition": True},
            12,
            True,
            id="split by the compiler itself",
        ),
        pytest.param({"splitting_ops": tuple(OPS)}, 8, False, id="a tuple"),
        pytest.param(
            {"splitting_ops": OPS, "compile_sizes": [2**70, 8]}, 8, True, id="a size past 64 bits"
        ),
        pytest.param(
            {"splitting_ops": OPS, "compile_sizes": [np.int64(8)]}, np.int32(8), True, id="NumPy's"
        ),
    ],
)
def test_what_decides(
    twin: Any, changes: dict[str, Any], num_input_tokens: Any, expected: bool
) -> None:
    assert expected is twin.is_residual_scattered_for_sp(
        make_config(twin, **changes), num_input_tokens
    )


def test_what_decides_not_is_not_read(twin: Any) -> None:
    off = SimpleNamespace(compilation_config=SimpleNamespace(pass_config=twin.PassConfig()))
    assert False is twin.is_residual_scattered_for_sp(off, 7)
    pass_config = twin.PassConfig(enable_sp=True)
    one_rank = SimpleNamespace(
        compilation_config=SimpleNamespace(pass_config=pass_config),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
    )
    assert False is twin.is_residual_scattered_for_sp(one_rank, 7)
    whole = SimpleNamespace(
        compilation_config=SimpleNamespace(pass_config=pass_config, splitting_ops=None),
        parallel_config=SimpleNamespace(tensor_parallel_size=2),
    )
    assert True is twin.is_residual_scattered_for_sp(whole, 8)
