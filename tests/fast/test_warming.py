"""Warming up: everything is compiled and called, and nothing of the caller's matters to it."""

import torch

import fast

HOT = [
    "compute_slot_mapping",
    "build_attn_metadata",
    "split_decodes_and_prefills",
    "split_decodes_prefills_and_extends",
    "reorder_batch_to_split_decodes_and_prefills",
    "create_ubatch_slices",
    "split_attn_metadata",
    "make_local_attention_virtual_batches",
    "make_kv_sharing_fast_prefill_common_attn_metadata",
    "compute_causal_conv1d_metadata",
    "get_dcp_local_seq_lens",
    "scatter_mm_placeholders",
    "gather_mm_placeholders",
]


def test_every_hot_function_is_called(monkeypatch) -> None:  # noqa: ANN001
    """Each is called a few times, the methods of the block tables too."""
    from fast import warming  # noqa: PLC0415

    called: dict[str, int] = {}

    def counting(name: str, function):  # noqa: ANN001, ANN202
        def call(*args, **kwargs):  # noqa: ANN002, ANN003, ANN202
            called[name] = called.get(name, 0) + 1
            return function(*args, **kwargs)

        return call

    for name in HOT:
        monkeypatch.setattr(warming, name, counting(name, getattr(warming, name)))
    methods = ["append_block_ids", "gather_block_tables", "compute_slot_mappings"]
    for name in methods:
        monkeypatch.setattr(fast.BlockTables, name, counting(name, getattr(fast.BlockTables, name)))
    fast.warmup()
    assert {*HOT, *methods} == set(called)
    assert min(called.values()) >= warming.NUM_REHEARSALS


def test_warms_up_in_any_mode() -> None:
    """Checked mode, inference mode and another default device change nothing."""
    with fast.checks(True), torch.inference_mode(), torch.device("meta"):
        fast.warmup()
