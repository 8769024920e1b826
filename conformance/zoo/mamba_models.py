"""Hybrid models: few layers keep keys and values, most keep states of a fixed size."""

from __future__ import annotations

from dataclasses import replace

from conformance.zoo.layer import FULL, MAMBA, Layer, State, repeat
from conformance.zoo.model import Model

CONV_STATE_TOKENS = 3
"""Inputs that the convolutions of all of these keep: they are 4 wide."""

# 16 key heads and 32 value heads, all of 128; the convolution is over queries, keys and values.
QWEN3_NEXT_STATES = Layer(
    name="model.layers.{}.linear_attn",
    kind=MAMBA,
    backend="GDN_ATTN",
    mamba_type="gdn_attention",
    states=(
        State(name="conv", shape=(CONV_STATE_TOKENS, 2 * 16 * 128 + 32 * 128), divided=1),
        State(name="ssm", shape=(32, 128, 128), divided=0),
    ),
    state_heads=(16, 32),
)
QWEN3_NEXT = Layer(
    name="model.layers.{}.self_attn.attn",
    kind=FULL,
    num_query_heads=16,
    num_kv_heads=2,
    head_size=256,
    scale=256**-0.5,
)

# Twice the hidden size of 4096 channels, each with a state of 16.
JAMBA_STATES = Layer(
    name="model.layers.{}.mamba",
    kind=MAMBA,
    backend="MAMBA1_ATTN",
    mamba_type="mamba1",
    states=(
        State(name="conv", shape=(CONV_STATE_TOKENS, 8192), divided=1),
        State(name="ssm", shape=(8192, 16), divided=0),
    ),
    state_heads=(8192,),
)
JAMBA = Layer(
    name="model.layers.{}.self_attn.attn",
    kind=FULL,
    backend="TRITON_ATTN",
    num_query_heads=32,
    num_kv_heads=8,
    head_size=128,
    scale=128**-0.5,
)

# 128 heads of 80 with states of 128, in 8 groups; the convolution is over heads and two of groups.
NEMOTRON_STATES = Layer(
    name="backbone.layers.{}.mixer",
    kind=MAMBA,
    backend="MAMBA2_ATTN",
    mamba_type="mamba2",
    states=(
        State(name="conv", shape=(CONV_STATE_TOKENS, 128 * 80 + 2 * 8 * 128), divided=1),
        State(name="ssm", shape=(128, 80, 128), divided=0, dtype="float32"),
    ),
    state_heads=(128, 8),
)
NEMOTRON = Layer(
    name="backbone.layers.{}.mixer.attn",
    kind=FULL,
    backend="FLASHINFER",
    num_query_heads=40,
    num_kv_heads=8,
    head_size=128,
    scale=128**-0.5,
)
NEMOTRON_PATTERN = "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-"
"""`hybrid_override_pattern`: Mamba-2, attention, and `-` for a layer that keeps nothing."""


def _nemotron_layers() -> tuple[Layer, ...]:
    """Return the layers of Nemotron that keep something."""
    of = {"M": NEMOTRON_STATES, "*": NEMOTRON}
    return tuple(
        replace(of[letter], name=of[letter].name.format(number))
        for number, letter in enumerate(NEMOTRON_PATTERN)
        if letter in of
    )


MAMBA_MODELS = (
    Model(
        name="qwen3-next-80b-a3b",
        published_as="Qwen/Qwen3-Next-80B-A3B-Instruct",
        source="config.json at the hub (full_attention_interval: 4; linear_num_key_heads: 16, "
        "linear_num_value_heads: 32, linear_key_head_dim: 128, linear_conv_kernel_dim: 4)",
        layers=repeat((*[QWEN3_NEXT_STATES] * 3, QWEN3_NEXT), 48),
        max_context_tokens=262_144,
    ),
    Model(
        name="jamba-v0.1",
        published_as="ai21labs/Jamba-v0.1",
        source="config.json at the hub (attn_layer_period: 8, attn_layer_offset: 4; "
        "mamba_d_state: 16, mamba_expand: 2); Jamba (arXiv 2403.19887), section 3.1",
        layers=repeat((*[JAMBA_STATES] * 4, JAMBA, *[JAMBA_STATES] * 3), 32),
        max_context_tokens=262_144,
    ),
    Model(
        name="nemotron-nano-9b-v2",
        published_as="nvidia/NVIDIA-Nemotron-Nano-9B-v2",
        source="config.json at the hub (hybrid_override_pattern, mamba_num_heads: 128, "
        "mamba_head_dim: 80, ssm_state_size: 128, n_groups: 8; states are served in float32, as "
        "the model card says); NVIDIA Nemotron Nano 2 (arXiv 2508.14444)",
        layers=_nemotron_layers(),
        max_context_tokens=131_072,
    ),
)
"""In the order in which they are listed."""
