"""Models beside the packet simulation: what engines and GPUs take of an accelerator, and what a training step gains.

`memory` counts bytes from a compiled program; `kernels` slows both sides of a kernel and a collective; `comm` and `gpu`
give a collective's time (or `comm.Measured` takes it from a simulation); `overlap` runs two queues; `step` is a DLRM
step on them; `ratio` and `band` compare clusters; `isolation`, `dynamic`, `crossover` and `related` are published
results. `presets` makes all of it from `metaroce.offload.hardware` files. Floats, us and GB/s; nothing here reaches the
engine.
"""

from . import band, comm, crossover, dynamic, gpu, isolation, kernels, memory, overlap, presets, ratio, related, step

__all__ = [
    "band",
    "comm",
    "crossover",
    "dynamic",
    "gpu",
    "isolation",
    "kernels",
    "memory",
    "overlap",
    "presets",
    "ratio",
    "related",
    "step",
]
