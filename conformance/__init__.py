"""Does an implementation of the batch plumbing mean what `reference` means?

`pytest conformance -n auto` answers it for `fast`. What the run is made of:

- `contracts`: what is stated about a function, from which `checks` makes tests; `judging`:
  one call of them;
- `laws`: what is true of every function of a batch that says it obeys them; `meanings`: how each
  such function speaks of a batch;
- `strategies`: the valid input, and `invalid_inputs`: the same input with one precondition broken;
- `targets`: what is under test, and on what device; `conversion` carries values there;
- `comparison`: the exact comparator; `report`: what a person reads when it finds a difference;
- `situations`: the hard cases that a run must have met;
- `simulator`: numba CUDA kernels, run without a GPU; `traffic`: batches cut from real requests;
- `test_x.py`: the contracts, laws and worked examples of module `x` of the two twins.
"""
