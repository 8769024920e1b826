"""The GPU kernels of `fast`: those of `fast/x.py` are in `fast/kernels/x.py`."""
