"""Differential and property tests: does an implementation do what `reference` defines?

`pytest conformance -n auto` tests `fast`. The parts of a run:

- `contracts`: what is stated about a function, from which `checks` makes tests; `evaluation`
  compares the results of one call; `properties`: what else each `test_x.py` states;
- `laws`: statements about batches that hold for every function whose contract names them;
- `strategies`: valid inputs; `invalid_inputs`: the same inputs with one violated precondition;
- `targets`: what is under test, and on which device; `conversion` converts values for it;
- `comparison`: the exact comparison; `report`: the message of a difference;
- `cases`: inputs that failed and test vectors, stored as JSON and replayed;
- `goals`: coverage goals, hard cases that a run must reach;
- `simulator`: runs numba CUDA kernels without a GPU; `traffic`: batches cut from real requests;
- `engine`: a small engine's scheduler, block pool and batch; `stateful`: the test that drives it;
- `test_x.py`: the contracts, laws and worked examples of module `x` of the two twins.
"""
