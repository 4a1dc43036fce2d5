"""Where one call spends its time: in operators of PyTorch and its libraries, or in own kernels."""

from __future__ import annotations

import re
import time
from typing import Any

import torch

# Operators that make or describe tensors and do no arithmetic; a kernel's author needs them too.
_PLUMBING = re.compile(
    r"^aten::(empty|new_empty|resize|set_|view|reshape|_reshape|as_strided|expand|permute|transpose"
    r"|t$|T$|squeeze|unsqueeze|slice|select|narrow|split|chunk|unbind|unfold|flatten|alias|detach"
    r"|lift|contiguous|clone|copy_|to$|_to_copy|item|_local_scalar_dense|is_|zero|fill_|ones|full"
    r"|new_|resolve_|size|stride|numel|result_type|movedim|numpy_T|mT)"
)
# Names of device kernels that come with PyTorch, cuBLAS, cuDNN and CUTLASS as these libraries ship
# them; found by reading profiles of their operators.
_LIBRARY_KERNEL = re.compile(
    r"at::native|at_cuda_detail|cublas|cudnn|cutlass|nvjet|_gemm_|gemmk1|gemv|splitK|xmma|^sm\d+_"
    r"|^ampere_|^volta_|^turing_|^hopper_|flash_fwd|fmha|pytorch_flash|cub::|thrust::|magma"
)
# As it was before a candidate.
_profile = torch.autograd.profiler.profile
_MOST_NAMES = 6
_TIMES = 5
_LONG_SECONDS = 0.1


def profiled(module: Any, inputs: list[Any], device: str) -> dict[str, Any]:
    """Profile a call after one to warm up.

    Returns ``seconds`` of the call (on a GPU: of its kernels), ``library`` seconds of these in
    operators or kernels of libraries, and their ``names``, the longest first. On a CPU operators
    that only make, copy or describe tensors do not count.
    """
    with torch.no_grad():
        started = time.perf_counter()
        module(*inputs)
        # A long call needs no second look, and its profile may have a hundred thousand entries.
        times = 1 if time.perf_counter() - started > _LONG_SECONDS else _TIMES
        if device != "cpu":
            return _on_gpu(module, inputs)
        # The quickest of some: in the others something else had the processor.
        return min((_on_cpu(module, inputs) for _ in range(times)), key=lambda one: one["seconds"])


def _on_cpu(module: Any, inputs: list[Any]) -> dict[str, Any]:
    # Without kineto, whose start alone takes a second.
    with _profile(use_kineto=False) as profile:
        started = time.perf_counter()
        module(*inputs)
        seconds = time.perf_counter() - started
    spent: dict[str, float] = {}
    for event in profile.function_events:
        if event.name.startswith("aten::") and not _PLUMBING.match(event.name):
            own = event.self_cpu_time_total * 1e-6
            spent[event.name] = spent.get(event.name, 0.0) + own
    return _answer(seconds, spent)


def on_gpu() -> Any:
    """A profile with what runs on the GPU, by kineto. Not `torch.profiler`, which imports all of
    inductor for one of its settings: five seconds."""
    return _profile(use_device="cuda", use_kineto=True)


def _on_gpu(module: Any, inputs: list[Any]) -> dict[str, Any]:
    torch.cuda.synchronize()
    with on_gpu() as profile:
        module(*inputs)
        torch.cuda.synchronize()
    spent: dict[str, float] = {}
    seconds = 0.0
    for event in profile.function_events:
        if event.device_type.name != "CUDA":
            continue
        own = event.self_device_time_total * 1e-6
        if event.name.startswith(("Memset", "Memcpy")):
            continue
        seconds += own
        if _LIBRARY_KERNEL.search(event.name):
            spent[event.name[:80]] = spent.get(event.name[:80], 0.0) + own
    return _answer(seconds, spent)


def _answer(seconds: float, spent: dict[str, float]) -> dict[str, Any]:
    names = sorted(spent, key=lambda name: -spent[name])
    return {
        "seconds": seconds,
        "library": min(max(0.0, sum(spent.values())), seconds),
        "names": names[:_MOST_NAMES],
    }
