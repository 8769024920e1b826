"""The layers of hybrid architectures, which also have states, such as Mamba's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from conformance.zoo.attention_layers import ATTENTION, attention, layer_kinds
from conformance.zoo.config_json import ConfigJson
from conformance.zoo.layer import FULL, MAMBA, Layer, State


def _mixed(kinds: Sequence[str], states: Layer, attention_layer: Layer) -> list[Layer]:
    """Return layers of states and of attention, in the order of `kinds`."""
    makes = {MAMBA: states, FULL: attention_layer}
    return [replace(makes[k], name=makes[k].name.format(i)) for i, k in enumerate(kinds) if k]


def qwen3_next_layers(config: ConfigJson) -> list[Layer]:
    """Return the layers of Qwen3-Next: gated delta nets, and full attention."""
    key_heads, value_heads = (config.count(f"linear_num_{x}_heads") for x in ("key", "value"))
    key_dim, value_dim = (config.count(f"linear_{x}_head_dim") for x in ("key", "value"))
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    states = Layer(
        name="model.layers.{}.linear_attn",
        kind=MAMBA,
        backend="GDN_ATTN",
        mamba_type="gdn_attention",
        state_heads=(key_heads, value_heads),
        states=(
            State(
                name="conv", shape=(config.count("linear_conv_kernel_dim") - 1, channels), divided=1
            ),
            State(name="ssm", shape=(value_heads, value_dim, key_dim), divided=0),
        ),
    )
    interval = config.count("full_attention_interval")
    kinds = layer_kinds(config, lambda i: (i + 1) % interval == 0, MAMBA)
    return _mixed(kinds, states, replace(attention(config, FULL), name=ATTENTION))


def jamba_layers(config: ConfigJson) -> list[Layer]:
    """Return the layers of Jamba: Mamba, and full attention."""
    channels = config.count("mamba_expand") * config.count("hidden_size")
    states = Layer(
        name="model.layers.{}.mamba",
        kind=MAMBA,
        backend="MAMBA1_ATTN",
        mamba_type="mamba1",
        state_heads=(channels,),
        states=(
            State(name="conv", shape=(config.count("mamba_d_conv") - 1, channels), divided=1),
            State(name="ssm", shape=(channels, config.count("mamba_d_state")), divided=0),
        ),
    )
    period, offset = config.count("attn_layer_period"), int(config.require("attn_layer_offset"))
    kinds = [
        FULL if i % period == offset else MAMBA for i in range(config.count("num_hidden_layers"))
    ]
    return _mixed(kinds, states, replace(attention(config, FULL), name=ATTENTION))


def nemotron_h_layers(config: ConfigJson) -> list[Layer]:
    """Return the layers of Nemotron-H that have a cache: Mamba-2, and full attention."""
    heads, groups = config.count("mamba_num_heads"), config.count("n_groups", "mamba_n_groups")
    head_dim, state_size = config.count("mamba_head_dim"), config.count("ssm_state_size")
    channels = heads * head_dim + 2 * groups * state_size
    states = Layer(
        name="backbone.layers.{}.mixer",
        kind=MAMBA,
        backend="MAMBA2_ATTN",
        mamba_type="mamba2",
        state_heads=(heads, groups),
        states=(
            State(name="conv", shape=(config.count("conv_kernel") - 1, channels), divided=1),
            State(
                name="ssm",
                shape=(heads, head_dim, state_size),
                divided=0,
                dtype=config.require("mamba_ssm_cache_dtype"),
            ),
        ),
    )
    kinds = {"M": MAMBA, "*": FULL}
    pattern = [kinds.get(letter, "") for letter in config.require("hybrid_override_pattern")]
    full = replace(attention(config, FULL), name="backbone.layers.{}.mixer.attn")
    return _mixed(pattern, states, full)
