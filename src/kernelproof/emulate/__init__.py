"""CUDA kernels on a CPU: PTX interpreted in numpy, with checks that name source lines.

    from kernelproof import emulate

    result = emulate.launch("reduce.cu", "reduce", grid=8, block=128, args=[x, y, n])
    for finding in result.findings:
        print(finding)

Races in shared and global memory, accesses outside of buffers, misaligned and uninitialised
accesses, barriers that not all reach, warp operations with absent lanes. docs/emulate.md says what
is checked and what is not.
"""

from __future__ import annotations

from kernelproof.emulate.api import Loaded, Result, launch, load
from kernelproof.emulate.image import Buffer
from kernelproof.emulate.machine import Limits
from kernelproof.emulate.report import Finding
from kernelproof.emulate.tensor_maps import TensorMap

__all__ = ["Buffer", "Finding", "Limits", "Loaded", "Result", "TensorMap", "launch", "load"]
