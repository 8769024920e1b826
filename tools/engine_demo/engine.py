"""Make a vLLM engine in this process, and generate tokens with it."""

from __future__ import annotations

import random
from typing import Any, Final, NamedTuple, TypeAlias

ENVIRONMENT: Final = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine is in this process, which measures it
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # on two cores, steps take a tenth of the time
    "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_PLUGINS": "",  # an installed plugin must not change the plain engine
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}
"""Environment variables of a process with an engine, set before it imports torch."""


Engine: TypeAlias = Any
"""A `vllm.LLM`."""


class Request(NamedTuple):
    """A prompt, and how many tokens to generate for it."""

    prompt: list[int]
    max_tokens: int


def make_requests(num_requests: int, seed: int = 3) -> list[Request]:
    """Make short and long prompts, which finish in different steps."""
    numbers = random.Random(seed)  # noqa: S311  # no secret
    requests = []
    for _ in range(num_requests):
        size = numbers.choice([numbers.randint(1, 20), numbers.randint(20, 200)])
        prompt = [numbers.randrange(3, 500) for _ in range(size)]
        requests.append(Request(prompt, numbers.randint(4, 32)))
    return requests


def make_engine(folder: str, max_num_seqs: int, **options: Any) -> Engine:
    """Make an engine with the model of a folder, in which requests are batched and chunked."""
    from vllm import LLM  # noqa: PLC0415  # after ENVIRONMENT is set

    put_decodes_first()
    return LLM(
        model=folder,
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="float32",
        block_size=32,
        max_model_len=1024,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=512,
        enable_prefix_caching=False,
        disable_log_stats=True,
        seed=0,
        **options,
    )


def put_decodes_first() -> None:
    """Make vLLM reorder batches, as on most GPUs: the CPU's backend takes them in any order."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadataBuilder  # noqa: PLC0415

    CPUAttentionMetadataBuilder.reorder_batch_threshold = 1


def generate(engine: Engine, requests: list[Request]) -> list[list[int]]:
    """Return the tokens that are generated for each request, always the likeliest."""
    from vllm import SamplingParams  # noqa: PLC0415

    outputs = engine.generate(
        [{"prompt_token_ids": request.prompt} for request in requests],
        [
            SamplingParams(
                temperature=0.0, max_tokens=request.max_tokens, ignore_eos=True, detokenize=False
            )
            for request in requests
        ],
        use_tqdm=False,
    )
    return [list(output.outputs[0].token_ids) for output in outputs]


def runner_of(engine: Engine) -> Any:
    """Return the model runner of an engine."""
    core = engine.llm_engine.engine_core.engine_core
    return core.model_executor.driver_worker.worker.model_runner
