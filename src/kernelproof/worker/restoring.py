"""A process as it was before a module was loaded into it, for the next module.

For modules that are trusted, such as references: what one has set could make the next faster or
slower. What is not put back here is found, and the process is then not used again.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

# Memory of the GPU beyond this that is still held is a module's own, in a cache that it keeps.
_LEFT_BYTES = 1 << 20
# Once there, they keep what they have compiled or learnt of one module.
_LEARNING = ("torch._dynamo", "torch._inductor")
# Set by a module or for it: what decides which kernels torch chooses, and how it runs them.
_SETTINGS: dict[str, Callable[[], Any]] = {
    "dtype": torch.get_default_dtype,
    "device": lambda: str(torch.get_default_device()),
    "gradients": torch.is_grad_enabled,
    "inference mode": torch.is_inference_mode_enabled,
    "autocast on the GPU": lambda: torch.is_autocast_enabled("cuda"),
    "autocast on the CPU": lambda: torch.is_autocast_enabled("cpu"),
    "deterministic": torch.are_deterministic_algorithms_enabled,
    "precision": torch.get_float32_matmul_precision,
    "TF32 of products": lambda: torch.backends.cuda.matmul.allow_tf32,
    "TF32 of convolutions": lambda: torch.backends.cudnn.allow_tf32,
    "fp16 sums": lambda: torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
    "bf16 sums": lambda: torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
    "fp16 accumulation": lambda: torch.backends.cuda.matmul.allow_fp16_accumulation,
    "cuDNN": lambda: (
        torch.backends.cudnn.enabled,
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.deterministic,
    ),
    "attention": lambda: (
        torch.backends.cuda.flash_sdp_enabled(),
        torch.backends.cuda.mem_efficient_sdp_enabled(),
        torch.backends.cuda.cudnn_sdp_enabled(),
        torch.backends.cuda.math_sdp_enabled(),
    ),
    "linear algebra": lambda: str(torch.backends.cuda.preferred_linalg_library()),
    "BLAS": lambda: str(torch.backends.cuda.preferred_blas_library()),
    "oneDNN": lambda: torch._C._get_mkldnn_enabled(),
    "denormals": lambda: (torch.tensor([1e-310], dtype=torch.float64) * 1.0).item() > 0,
    "einsum": lambda: (torch.backends.opt_einsum.enabled, torch.backends.opt_einsum.strategy),
    "anomalies": torch.is_anomaly_enabled,
    "processors": torch.get_num_threads,
    "garbage": lambda: (gc.isenabled(), gc.get_threshold(), len(gc.callbacks)),
    "switches of threads": sys.getswitchinterval,
    "hooks of all modules": lambda: [
        (name, len(hooks))
        for name, hooks in vars(torch.nn.modules.module).items()
        if name.startswith("_global_") and isinstance(hooks, dict)
    ],
    "environment": lambda: dict(os.environ),
    "folder": os.getcwd,
    "import": lambda: (list(sys.path), len(sys.meta_path), len(sys.path_hooks)),
    "threads": threading.active_count,
}
# Those that a candidate may change without a word: it builds in its environment, and its threads
# are counted elsewhere.
_NOT_TOLD = ("environment", "folder", "import", "threads")
# Of the GPU, once CUDA has started there.
_OF_GPU: dict[str, Callable[[], Any]] = {
    "device": torch.cuda.current_device,
    "stream": lambda: torch.cuda.current_stream().cuda_stream,
}
# What a module may have replaced in here is used by the next one.
_PLACES: tuple[Any, ...] = (
    torch, torch.nn, torch.nn.functional, torch.nn.init, torch.Tensor, torch.nn.Module,
    torch.autograd.Function, torch.cuda,
)  # fmt: skip


class Before:
    """How this process was before a module was imported from ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.modules = set(sys.modules)
        self.tf32 = _tf32()
        self.settings = settings()
        self.functions = [_functions(place) for place in _PLACES]

    def left(self, device: str) -> list[str]:
        """Put it back, as far as that is known to be possible, once nothing holds the module any
        more. Returns what is other than it was."""
        _set_tf32(self.tf32)
        for name in set(sys.modules) - self.modules:
            if self._own(name):
                del sys.modules[name]
        gc.collect()
        now = settings()
        found = [name for name, value in self.settings.items() if now[name] != value]
        found += [n for n in _LEARNING if n in sys.modules and n not in self.modules]
        found += [
            f"{place.__name__}.{name}"
            for place, held in zip(_PLACES, self.functions, strict=True)
            for name, value in held.items()
            if vars(place).get(name) is not value
        ]
        held = _held(device)
        return [*found, f"{held} bytes of the GPU"] if held > _LEFT_BYTES else found

    def _own(self, name: str) -> bool:
        """Whether a module came with the one that was loaded: another may have its name."""
        module = sys.modules[name]
        path = getattr(module, "__file__", None)
        return isinstance(path, str) and self.folder in Path(path).resolve().parents


def changed(before: dict[str, Any]) -> list[str]:
    """Names of the settings that are other than `settings` gave them, of those worth a word."""
    now = settings()
    return [name for name in before if name not in _NOT_TOLD and now[name] != before[name]]


def settings() -> dict[str, Any]:
    """What is set for this process, by name."""
    asked = dict(_SETTINGS)
    if torch.cuda.is_initialized():
        asked |= {f"{name} of CUDA": ask for name, ask in _OF_GPU.items()}
    return {name: _told(ask) for name, ask in asked.items()}


def _told(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except (RuntimeError, AttributeError) as error:
        # A setting that this version of torch does not have, or cannot tell any more.
        return type(error).__name__


def _tf32() -> tuple[Any, Any]:
    return _told(_SETTINGS["TF32 of products"]), _told(_SETTINGS["TF32 of convolutions"])


def _set_tf32(wanted: tuple[Any, Any]) -> None:
    """What a baseline is given by name; see `wrapping.precision`."""
    if wanted != _tf32():
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = wanted


def _functions(place: Any) -> dict[str, Any]:
    """Its functions and classes, not what it counts or remembers."""
    return {name: value for name, value in vars(place).items() if callable(value)}


def _held(device: str) -> int:
    """Give back the memory of the GPU; returns how many bytes of it are still held."""
    if device == "cpu" or not torch.cuda.is_initialized():
        return 0
    torch.cuda.synchronize(device)
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated(device)
