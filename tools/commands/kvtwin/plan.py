"""Size a deployment: the KV cache of a model, and the number of requests that fit.

    kvtwin plan --model NAME --gpu-memory-gib X --tensor-parallel N

The model is one of the zoo, or a `config.json` of an architecture of the zoo. Its KV cache gets the
memory of each device that the weights and a reserve leave. The numbers are computed by `fast`'s
functions. The exit status is 0, or 2 if the command line is wrong or nothing fits.

`--json` prints one object:

- `model`, `published_as`, `follows` (the version of the engine that the formulas follow);
- `tensor_parallel_size`, `engine` (`steps_in_flight`: 2 with asynchronous scheduling;
  `decode_context_parallel_size`, `prefill_context_parallel_size`, `data_parallel_size`),
  `num_devices` in all, `kv_head_copies`: ranks that have the same KV head;
- `device_memory` (None with `--cache-memory-gib`): `gpu_bytes`, `utilization`, `weights_bytes` on
  each device, `weights_dtype`, `reserve_bytes`;
- `num_parameters` of the language model; `uncounted_weights`: parts whose weights are not counted;
- `formats` (of the caches, by name), `max_model_len`, `max_num_batched_tokens`,
  `num_speculative_tokens`, `prefix_caching`;
- `memory_bytes` and `used_bytes` of the KV cache on each device;
- `block_bytes`: of one block over all tensors; `num_blocks`: the null block, number 0, included;
- `bytes_per_token` on each device; `bytes_per_token_beyond_windows`: of a token that all windows
  and chunks have passed;
- `longest_request_tokens`: of a single request, up to `max_model_len`;
- `capacities`, for requests of `max_model_len` and of `--request-tokens` tokens: `request_tokens`;
  `worst_case_blocks` of a request; `worst_case_requests`: how many fit at once if each needs that
  many blocks, a fraction; `steady_blocks` of a decoding request; `step_blocks`: further blocks, in
  all, for the tokens of a step; `steady_requests`: how many fit at once with these;
- `backends`: a list of `name`, `kernel_block_sizes`, `multiples_of`;
- `groups`, for each KV cache group `kind`, `num_layers` (with a cache of their own, or with none),
  `num_sharing_layers`, `block_size` (tokens), `kernel_block_size` (None if no backend has one),
  `page_size_bytes` (a block of one layer; of all layers if they differ), `blocks_per_request` (in
  the worst case), `steady_blocks`, and `share` (of the blocks of a request, 0 to 1).
"""

from __future__ import annotations

if __name__ == "__main__":
    from kvtwin.commands import run_command

    run_command("plan")

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from conformance.zoo.catalogue import BACKENDS
from conformance.zoo.models import MODELS, Model, get_model, read_model
from conformance.zoo.serving import DTYPE_NAMES, DTYPES, Serving
from conformance.zoo.weights import BITS
from kvtwin.device_memory import GIB, DeviceMemory, make_device_memory
from kvtwin.parser import Parser, RenamedOption, redirect_stdout_for_json, write_json
from kvtwin.plan_tables import print_plan
from kvtwin.sizing import FOLLOWS, make_plan
from kvtwin.steady_state import Engine

MAX_GIB = 2**33 - 1
"""The largest memory whose bytes an int64 can count."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit status."""
    parser = _make_parser()
    options = parser.parse_args(arguments)
    with parser.reporting_errors():
        serving = _make_serving(options)
        engine = Engine(
            steps_in_flight=2 if options.async_scheduling else 1,
            decode_context_parallel_size=options.decode_context_parallel,
            prefill_context_parallel_size=options.prefill_context_parallel,
            data_parallel_size=options.data_parallel,
        )
        plan = make_plan(serving, _memory(options, serving), engine, options.request_tokens)
    if options.json is not None:
        write_json(plan, options.json)
    with redirect_stdout_for_json(options.json):
        print_plan(plan)
    return 0


def _make_serving(options: argparse.Namespace) -> Serving:
    """Return the model, and how it is served."""
    model = _find_model(options.model)
    return Serving(
        model=model,
        tensor_parallel_size=options.tensor_parallel,
        dtype=options.dtype,
        mamba_cache_mode="align" if options.enable_prefix_caching else "none",
        requested_block_size=options.block_size,
        requested_max_model_len=options.max_model_len,
        max_num_batched_tokens=options.max_num_batched_tokens,
        num_speculative_tokens=options.num_speculative_tokens,
        num_state_checkpoints=int(options.enable_mamba_shared_prefix_checkpoint),
        backends=options.backend,
    )


def _find_model(text: str) -> Model:
    """Return a model of the zoo, or that of a file or a folder."""
    if Path(text).exists() or text.endswith(".json"):
        return read_model(Path(text))
    return get_model(text)


def _memory(options: argparse.Namespace, serving: Serving) -> int | DeviceMemory:
    """Return the memory of the KV cache, or of the device that it is a part of."""
    if options.cache_memory_gib is not None:
        return int(options.cache_memory_gib * GIB)
    return make_device_memory(
        serving,
        gpu_bytes=int(options.gpu_memory_gib * GIB),
        utilization=options.gpu_memory_utilization,
        weights_dtype=options.weights_dtype,
        reserve_bytes=int(options.reserve_gib * GIB),
        data_parallel_size=options.data_parallel,
    )


def _make_parser() -> Parser:
    """Make the parser of the command line."""
    parser = Parser(
        prog="kvtwin plan",
        description="Size a model's KV cache: its blocks, and the requests that fit, "
        f"with the formulas of {FOLLOWS}.",
        examples=(
            "--model mistral-7b-v0.1 --gpu-memory-gib 80 --request-tokens 4000",
            "--model path/to/config.json --gpu-memory-gib 80 --tensor-parallel 4 --dtype fp8",
        ),
        statuses={0: "requests fit", 2: "the command line is wrong, or nothing fits"},
    )
    add = parser.add_argument
    add(
        "--model",
        metavar="NAME|FILE",
        required=True,
        help="a config.json or its folder, a name on the Hugging Face Hub, or one of "
        f"{', '.join(MODELS)}",
    )
    _add_memory(parser)
    parser.add_number("--tensor-parallel", "devices that share each layer", 1)
    parser.add_number(
        "--data-parallel", "engines with that many devices each; experts are divided among all", 1
    )
    parser.add_number(
        "--decode-context-parallel", "tensor-parallel ranks that divide each sequence's tokens", 1
    )
    parser.add_number(
        "--prefill-context-parallel", "additional devices that divide each sequence's tokens", 1
    )
    parser.add_number("--max-model-len", "tokens of the longest request; default: as published")
    parser.add_number("--request-tokens", "tokens of a typical request, prompt and output")
    parser.add_number("--max-num-batched-tokens", "tokens of a step", 8192)
    parser.add_number("--num-speculative-tokens", "draft tokens of each decode", 0, minimum=0)
    for name, description in (
        ("--async-scheduling", "two steps are in flight"),
        ("--enable-prefix-caching", "hybrid models keep a second block of states"),
    ):
        add(
            name,
            action=argparse.BooleanOptionalAction,
            default=True,
            help=f"{description} (default)",
        )
    add(
        "--enable-mamba-shared-prefix-checkpoint",
        action="store_true",
        help="hybrid models keep one more block of states",
    )
    add(
        "--dtype",
        "--kv-cache-dtype",
        metavar="D",
        help="dtype of keys, values and latents: one of "
        f"{', '.join((*DTYPES, *DTYPE_NAMES))}; default: the model's",
    )
    parser.add_number(
        "--block-size", "tokens in a block; default: the size that the backends require"
    )
    add(
        "--backend",
        type=_names,
        metavar="NAME[,NAME]",
        default=(),
        help="attention backends that use the blocks; default: the model's; "
        f"the backends are {', '.join(BACKENDS)}",
    )
    parser.add_json("the plan")
    return parser


def _add_memory(parser: Parser) -> None:
    """Add the options of a device's memory."""
    memory = parser.add_mutually_exclusive_group(required=True)
    memory.add_argument(
        "--gpu-memory-gib", type=_gib, metavar="X", help="GiB of memory of each device"
    )
    memory.add_argument(
        "--cache-memory-gib",
        type=_gib,
        metavar="X",
        help="GiB of each device for its KV cache, without the weights",
    )
    memory.add_argument(
        "--memory-gib",
        type=_gib,
        action=RenamedOption,
        dest="cache_memory_gib",
        help=argparse.SUPPRESS,
    )
    parser.add_argument(
        "--gpu-memory-utilization",
        type=_part,
        metavar="X",
        default=0.92,
        help="fraction of the GPU memory that the engine uses; default: %(default)s",
    )
    parser.add_argument(
        "--weights-dtype",
        choices=list(BITS),
        help="dtype of the weights of layers; default: as published",
    )
    parser.add_argument(
        "--reserve-gib",
        type=_gib_or_none,
        metavar="X",
        default=2.0,
        help="GiB of each device for activations, CUDA graphs and weights that are not counted; "
        "default: %(default)s, a round number, not a measurement",
    )


def _names(text: str) -> tuple[str, ...]:
    """Read names, separated by commas."""
    return tuple(name.strip() for name in text.split(","))


def _gib(text: str) -> float:
    """Read a number of GiB."""
    return _number(text, "a number of GiB greater than 0", MAX_GIB, exclusive=True)


def _gib_or_none(text: str) -> float:
    """Read a number of GiB, or 0."""
    return _number(text, "a number of GiB of at least 0", MAX_GIB)


def _part(text: str) -> float:
    """Read a fraction greater than 0."""
    return _number(text, "a number greater than 0", 1, exclusive=True)


def _number(text: str, expected: str, maximum: float, *, exclusive: bool = False) -> float:
    """Read a number from 0 to a maximum; `exclusive` leaves 0 out."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number <= maximum or (exclusive and number == 0):
        raise argparse.ArgumentTypeError(
            f"must be {expected} and at most {maximum:,}, got {text!r}"
        )
    return number
