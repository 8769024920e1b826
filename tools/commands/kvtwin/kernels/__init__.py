"""Show the resource usage of the kernels of `fast` on several GPUs, without a GPU.

    kvtwin kernels [--arch sm_90 ...] [--json] [--check | --record | --gpu | --successor]

numba-cuda compiles each kernel to PTX, nvJitLink links it to machine code, and the native runner
(`conformance.native`) runs it on a standard batch, where it counts the instructions. `--check`
compares the figures with those in `tools/results/kernels.json`, which `--record` writes. `--gpu`
makes the same launches on this machine's GPU, and compares results. `--json` prints
`schema_version`, `kernels` with the fields of `Usage`, and `failures` with those of `Failure`.
"""
