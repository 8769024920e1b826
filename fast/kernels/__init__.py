"""The GPU kernels of `fast`: those of `fast.x` are in `fast.kernels.x`."""
