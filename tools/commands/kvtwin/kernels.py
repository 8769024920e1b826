"""Compile the kernels of `fast` for several GPUs, without a GPU.

    kvtwin kernels [--arch sm_90 ...] [--record]

numba-cuda compiles each kernel to PTX, nvJitLink links it to machine code, and the native runner
(`conformance.native`) runs it on a standard batch, where it counts the instructions. A kernel that
spills registers fails, and one that executes a tenth more instructions than in
`tools/results/kernels.json`, which `--record` writes.
"""

from __future__ import annotations

if __name__ == "__main__":
    from kvtwin.commands import run_command

    run_command("kernels")

import functools
import importlib
import json
import pkgutil
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch

import fast.kernels
from conformance.native import launch_natively
from conformance.native.compiled import compile_offline
from fast import numba_cuda
from fast.kernels.cuda import KERNELS, Kernel
from fast.launch import simulated_by
from kvtwin.checkout import ROOT
from kvtwin.parser import Parser

ARCHITECTURES: Final = ("sm_80", "sm_90", "sm_100", "sm_103", "sm_120")
"""The GPUs for which kernels are compiled: A100, H100 and H200, B200, B300, and RTX 50."""

RECORD: Final = ROOT / "tools" / "results" / "kernels.json"
MAX_GROWN: Final = 1.1

# The standard batches: 64 requests with 64 new tokens and 128 blocks each, and rows of embeddings.
BLOCK_SIZE, NUM_REQS, NUM_BLOCKS, QUERY_LEN = 16, 64, 128, 64
NUM_TOKENS, SEQ_LEN = NUM_REQS * QUERY_LEN, NUM_BLOCKS * BLOCK_SIZE
NUM_PLACEHOLDERS, EMBED_DIM, NUM_LOGITS = 1024, 256, 4
ELEMENTS: Final = {
    "apply_staged_writes": NUM_REQS * NUM_BLOCKS,
    "gather_block_tables": NUM_REQS * NUM_BLOCKS,
    "compute_slot_mappings": NUM_TOKENS,
    "compute_slot_mapping": NUM_TOKENS,
    "fill_programs": NUM_TOKENS // 8,
    "count_logits_indices": NUM_REQS,
    "gather_columns": NUM_REQS * NUM_BLOCKS,
    "count_embeds": 2 * NUM_PLACEHOLDERS,
    "rank_embeds": 2 * NUM_PLACEHOLDERS,
    "scatter_rows": NUM_PLACEHOLDERS * EMBED_DIM,
    "gather_rows": NUM_PLACEHOLDERS * EMBED_DIM // 2,
    "prepare_pos_seq_lens": NUM_TOKENS,
    "prepare_prefill_inputs": NUM_TOKENS,
    "combine_sampled_and_draft_tokens": NUM_REQS * NUM_LOGITS,
    "expand_idx_mapping": NUM_REQS * NUM_LOGITS,
    "count_local_tokens": NUM_REQS,
    "get_num_sampled_and_rejected": NUM_REQS,
    "post_update": NUM_REQS,
    "post_update_num_computed_tokens": NUM_REQS,
    "prepare_step": NUM_REQS * NUM_BLOCKS,
}
"""For each kernel, the elements of its result in the standard batches."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit status."""
    parser = Parser(
        prog="kvtwin kernels",
        description="Compile each CUDA kernel for several GPUs, without a GPU.",
        examples=("", "--arch sm_90", "--record"),
        statuses={
            0: "all kernels compile, and execute about as many instructions as before",
            1: "a kernel does not compile, spills registers, or executes 10% more instructions",
        },
    )
    parser.add_argument(
        "--arch", action="append", choices=ARCHITECTURES, help="may be repeated; default: all"
    )
    what = f"write the instructions to {RECORD.name} in place of comparing them"
    parser.add_argument("--record", action="store_true", help=what)
    options = parser.parse_args(arguments)
    archs = options.arch or ARCHITECTURES
    if options.record and (options.arch or not RECORD.exists()):
        parser.error("--record is for all architectures, in a checkout")
    try:
        numba_cuda.import_cuda()
        for name in ("nvvm", "nvjitlink"):
            importlib.import_module(f"cuda.bindings.{name}").version()
    except (ImportError, RuntimeError) as error:
        parser.error(f"kernels need numba-cuda and its toolkit: {numba_cuda.PIP_INSTALL} ({error})")
    executed, wrong = check(archs)
    if options.record and not wrong:
        RECORD.write_text(json.dumps(executed, indent=1) + "\n", encoding="utf-8")
    if RECORD.exists():
        wrong += compare(executed, json.loads(RECORD.read_text(encoding="utf-8")))
    else:
        print("the instructions are not compared: their record is in the repository only")
    for line in wrong:
        print(line, file=sys.stderr)
    return int(bool(wrong))


def check(archs: Sequence[str]) -> tuple[dict[str, dict[str, float]], list[str]]:
    """Compile, link and run each kernel; return the instructions, and what is wrong."""
    print("kernel, architecture: registers, spilled bytes, instructions for an element")
    executed: dict[str, dict[str, float]] = {}
    wrong = []
    for arch in archs:
        executed[arch] = count_instructions(arch)
        for kernel in find_kernels():
            try:
                registers, spilled = link(compile_for(kernel, arch)[0], arch)
            except Exception as error:  # noqa: BLE001  # whatever a compiler raises is reported
                wrong.append(f"{kernel.name} for {arch}: {error!r}")
                continue
            count = executed[arch].get(kernel.name, 0)
            print(f"{kernel.name}, {arch}: {registers}, {spilled}, {count:g}")
            if spilled:
                wrong.append(f"{kernel.name} for {arch} spills {spilled} bytes")
    return executed, wrong


def compare(now: dict[str, dict[str, float]], record: dict[str, dict[str, float]]) -> list[str]:
    """Return a line for each kernel that executes a tenth more instructions than in the record."""
    lines = [
        f"{name} for {arch} executes {count:g} instructions for an element, {was:g} before"
        for arch, counts in now.items()
        for name, count in counts.items()
        if count > MAX_GROWN * (was := record.get(arch, {}).get(name, 0))
    ]
    return lines and [*lines, "if this is meant, commit what `kvtwin kernels --record` writes"]


def find_kernels() -> list[Kernel]:
    """Import all modules of `fast.kernels`, and return the kernels that they declare."""
    for module in pkgutil.walk_packages(fast.kernels.__path__, "fast.kernels."):
        importlib.import_module(module.name)
    return list(KERNELS)


@functools.cache
def compile_for(kernel: Kernel, arch: str) -> tuple[str, str]:
    """Compile a kernel to PTX; return it, and the name of its entry."""
    return compile_offline(kernel, arch)


def link(ptx: str, arch: str) -> tuple[int, int]:
    """Link PTX to machine code; return its registers, and the bytes of spills of a thread.

    Raises:
        RuntimeError: It cannot be linked, or the linker's log lacks a figure.
    """
    nvjitlink: Any = importlib.import_module("cuda.bindings.nvjitlink")
    text = ptx.encode()
    handle = nvjitlink.create(2, [f"-arch={arch}", "-verbose"])
    try:
        nvjitlink.add_data(handle, nvjitlink.InputType.PTX, text, len(text), "kernel")
        nvjitlink.complete(handle)
        log = bytearray(nvjitlink.get_info_log_size(handle))
        nvjitlink.get_info_log(handle, log)
    except nvjitlink.nvJitLinkError as error:
        log = bytearray(nvjitlink.get_error_log_size(handle))
        nvjitlink.get_error_log(handle, log)
        raise RuntimeError(f"cannot be linked: {log.decode(errors='replace')}") from error
    finally:
        nvjitlink.destroy(handle)
    output = log.decode(errors="replace")
    registers = re.findall(r"[Uu]sed (\d+) registers", output)
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", output)
    if not registers or not spills:
        raise RuntimeError(f"nvJitLink's log has no registers or spills: {output}")
    # It has each function twice, before and after linking.
    return max(map(int, registers)), sum(map(int, spills))


def count_instructions(arch: str) -> dict[str, float]:
    """Return the instructions of PTX that each kernel executes for an element of its result."""
    executed: Counter[str] = Counter()

    def launch(kernel: Any, grid: tuple[int, int], threads: int, args: Any) -> None:
        count = launch_natively(kernel, grid, threads, args, has_shadow=False, arch=arch)
        executed[kernel.name] += count

    run_standard_batches("cpu", launch)
    return {name: round(executed[name] / ELEMENTS[name], 2) for name in ELEMENTS}


def run_standard_batches(device: str, launch: Callable[..., None]) -> None:
    """Launch every kernel of `fast` on the standard batches, by calls of its functions."""
    with simulated_by(launch, threads=1024):
        sizes = [BLOCK_SIZE], NUM_REQS, NUM_TOKENS, [NUM_BLOCKS]
        tables = fast.BlockTables(*sizes, device, sliding_window_reach=[SEQ_LEN // 2])
        for row in range(NUM_REQS):
            first = 1 + row * NUM_BLOCKS
            tables.append_block_ids(row, [list(range(first, first + NUM_BLOCKS))], overwrite=True)
        tables.apply_staged_writes()
        rows = torch.arange(NUM_REQS - 1, -1, -1, dtype=torch.int32, device=device)
        computed = torch.full_like(rows, SEQ_LEN - QUERY_LEN)
        tables.gather_block_tables(rows, NUM_REQS, computed)
        starts_cpu = torch.arange(0, NUM_TOKENS + 1, QUERY_LEN, dtype=torch.int32)
        starts = starts_cpu.to(device)
        positions = torch.arange(SEQ_LEN - QUERY_LEN, SEQ_LEN, device=device).repeat(NUM_REQS)
        tables.compute_slot_mappings(rows, starts, positions, NUM_TOKENS)
        table = torch.arange(NUM_REQS * NUM_BLOCKS, dtype=torch.int32, device=device)
        table = table.reshape(NUM_REQS, NUM_BLOCKS)
        fast.compute_slot_mapping(table, starts, positions, BLOCK_SIZE)
        fast.compute_causal_conv1d_metadata(starts, query_start_loc_p_cpu=starts_cpu)
        seq_lens = torch.full((NUM_REQS,), SEQ_LEN, dtype=torch.int32)
        metadata = fast.CommonAttentionMetadata(
            query_start_loc=starts,
            query_start_loc_cpu=starts_cpu,
            seq_lens=seq_lens.to(device),
            seq_lens_cpu=seq_lens,
            num_computed_tokens_cpu=seq_lens - QUERY_LEN,
            num_reqs=NUM_REQS,
            num_actual_tokens=NUM_TOKENS,
            max_query_len=QUERY_LEN,
            max_seq_len=SEQ_LEN,
            block_table_tensor=table,
            slot_mapping=torch.arange(NUM_TOKENS, device=device),
        )
        fast.make_local_attention_virtual_batches(SEQ_LEN, metadata, BLOCK_SIZE)
        metadata.logits_indices_padded = starts[1:] - 1
        metadata.num_logits_indices = NUM_REQS
        fast.make_kv_sharing_fast_prefill_common_attn_metadata(metadata)
        is_embed = torch.arange(NUM_PLACEHOLDERS, device=device) % 2 == 0
        count = NUM_PLACEHOLDERS // 2
        numbers = torch.arange(count * EMBED_DIM, dtype=torch.int16, device=device)
        embeds = (numbers % 1000).to(torch.float16).reshape(count, EMBED_DIM)
        placeholders = fast.scatter_mm_placeholders(embeds, is_embed)
        fast.gather_mm_placeholders(placeholders, is_embed, num_embeds=count)
        logits = torch.arange(0, NUM_REQS * NUM_LOGITS + 1, NUM_LOGITS, dtype=torch.int32)
        _run_step_inputs(rows, starts, seq_lens.to(device), positions, logits.to(device))
        _run_step_results(starts, seq_lens.to(device))
        _run_step(tables, starts_cpu)


def _run_step_inputs(rows: Any, starts: Any, seq_lens: Any, positions: Any, logits: Any) -> None:
    """Prepare the inputs of a step that is a chunk of each prompt, then of one with drafts."""
    input_ids, computed = positions.to(torch.int32), seq_lens - QUERY_LEN
    fast.prepare_pos_seq_lens(rows, starts, computed, positions, torch.zeros_like(seq_lens))
    tokens = input_ids.new_ones((NUM_REQS, SEQ_LEN))
    ahead = input_ids.new_ones((1, NUM_REQS))
    fast.prepare_prefill_inputs(input_ids, ahead, rows, starts, tokens, seq_lens, computed)
    total = NUM_REQS * NUM_LOGITS
    fast.combine_sampled_and_draft_tokens(
        input_ids, rows, computed, starts, seq_lens, computed, tokens, logits, total
    )
    fast.expand_idx_mapping(rows, total, logits, NUM_LOGITS)
    fast.prepare_dcp_local_seq_lens(torch.zeros_like(seq_lens), seq_lens, NUM_REQS, 2, 1, 1)


def _run_step_results(starts: Any, seq_lens: Any) -> None:
    """Update the state of requests after a step that samples two tokens each, of four logits."""
    rows, logits = starts[:-1] // QUERY_LEN, starts // (QUERY_LEN // 4)
    sampled, total = seq_lens.new_full((NUM_REQS,), 2), seq_lens - 2
    counts = fast.get_num_sampled_and_rejected(sampled, seq_lens, logits, rows, total)
    tokens = seq_lens.new_ones((NUM_REQS, 4)).long()
    state = total.clone(), total.long(), seq_lens.new_zeros((NUM_REQS, 16))
    ids, drafts = seq_lens.new_zeros((NUM_REQS, SEQ_LEN)), tokens.clone()
    fast.post_update(rows, *state, tokens, *counts, starts, ids, total, tokens, drafts)
    fast.post_update_num_computed_tokens(rows, state[0], starts)


def _run_step(tables: Any, starts: Any) -> None:
    """Prepare a step of decodes with drafts, at once."""
    buffers = fast.StepBuffers(tables, SEQ_LEN, num_speculative_tokens=NUM_LOGITS - 1)
    buffers.num_computed_tokens.fill_(SEQ_LEN - QUERY_LEN)
    logits = np.arange(0, NUM_REQS * NUM_LOGITS + 1, NUM_LOGITS, dtype=np.int32)
    rows = np.arange(NUM_REQS - 1, -1, -1, dtype=np.int32)
    fast.prepare_step(buffers, rows, starts.numpy(), logits, NUM_REQS, NUM_TOKENS)
