"""Bad calls of `get_dcp_local_seq_lens`."""

from __future__ import annotations

import numpy as np

from conformance.contracts import Fault
from conformance.faults.arrays import array_faults, element, int_faults

DCP_FAULTS = [
    *array_faults("seq_lens", np.int64),
    *int_faults("dcp_size"),
    *int_faults("dcp_rank", least=0),
    *int_faults("cp_kv_cache_interleave_size"),
    Fault(
        "the rank is outside the world",
        ValueError,
        "dcp_rank",
        lambda call, _: call.replacing(dcp_rank=call.arguments.get("dcp_size", 1)),
    ),
    Fault(
        "a round of the ranks has 2**31 positions",
        ValueError,
        "dcp_size",
        lambda call, _: call.replacing(
            dcp_size=2**16, dcp_rank=0, cp_kv_cache_interleave_size=2**15
        ),
    ),
    Fault(
        "a sequence length is negative",
        ValueError,
        "seq_lens",
        element("seq_lens", lambda _, i: -1 if i == 0 else None),
        is_value=True,
    ),
]
