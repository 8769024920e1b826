"""The two launchers with a driver that does nothing, in separate processes."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available()
    or shutil.which("cc") is None
    or importlib.util.find_spec("numba_cuda") is None,
    reason="it takes a C compiler and numba-cuda, and no GPU",
)

SCRIPT = """
import json
import torch
from fast.launch import LAUNCHERS, launch_blocks
from kvtwin.bench.launches import NoDriver, launch_by
from kvtwin.kernels import find_kernels

DTYPES = {1: torch.uint8, 4: torch.int32, 8: torch.int64}
driver = NoDriver()
launches = {}
for kernel in find_kernels():
    args, expected = [], []
    for number, array in enumerate(kernel.parameters):
        if array is None:
            args.append(-number)
            expected.append(-number)
            continue
        shape = (3 + number, 5 + number)[: array.num_dims]
        tensor = torch.zeros(shape, dtype=DTYPES[array.item_bytes])
        args.append(tensor)
        strides = [array.item_bytes * stride for stride in tensor.stride()]
        expected += [0, 0, tensor.numel(), array.item_bytes, tensor.data_ptr(), *shape, *strides]
    launched = {}
    for name in LAUNCHERS:
        driver.note(len(expected))
        launch_by(name)
        launch_blocks(kernel, 3, 2, *args)
        launched[name] = driver.last(len(expected))
    launches[kernel.name] = {"threads": kernel.threads, "expected": expected, "launched": launched}
print(json.dumps(launches))
"""


def run(*arguments: str) -> str:
    command = [sys.executable, "-W", "error", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # our own
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_both_launchers_call_the_driver_alike() -> None:
    launches: dict[str, Any] = json.loads(run("-c", SCRIPT))
    assert len(launches) >= 12
    for kernel, launch in launches.items():
        expected = [[3, 2, 1], [launch["threads"], 1, 1], 0x6000, launch["expected"]]
        assert {"direct": expected, "numba": expected} == launch["launched"], kernel


def test_costs_are_printed() -> None:
    printed = run("-m", "kvtwin.bench.launches")
    line = r"host cost of a launch, %s: \d+\.\d us, a driver's part left out"
    step = r"a step, %s, %s launches, %s copies, 0 waits, \d+ us, a driver's part left out"
    expected = [line % "direct", line % "numba"]
    for groups in ("1 group", "4 groups"):
        expected += [step % (groups, "by prepare_step: 2", 1), step % (groups, "one by one: 6", 4)]
    lines = printed.splitlines()
    for pattern, text in zip(expected, lines, strict=False):
        assert re.fullmatch(pattern, text)
    function = r"(.+): (\d) launches, (\d) copies, 0 waits, \d+ us, a driver's part left out"
    functions = [re.fullmatch(function, line) for line in lines[len(expected) :]]
    assert len(functions) >= 20
    for found in functions:
        assert found is not None
        moves_rows = found[1] in {"scatter_mm_placeholders", "gather_mm_placeholders"}
        assert int(found[2]) <= (3 if moves_rows else 2)
        assert int(found[3]) <= 1
