"""The machine and the software that a record was made with."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

from kernelproof import __version__
from kernelproof.timeline import span
from kernelproof.types import Environment

_PACKAGES = ("triton", "cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc", "numpy", "pydantic")


@functools.cache
@span("describe the machine")
def capture() -> Environment:
    """Facts of this machine; clocks are those at the moment of the first call."""
    import torch

    gpu = _gpu(torch)
    return Environment(
        kernelproof=__version__,
        commit=_commit(),
        python=platform.python_version(),
        torch=str(torch.__version__),
        platform=platform.platform(),
        cpu=_cpu_name(),
        cores=len(os.sched_getaffinity(0)),
        threads=torch.get_num_threads(),
        compiler=_compiler(),
        versions=_versions(),
        **gpu,
    )


def _gpu(torch: Any) -> dict[str, Any]:
    if not torch.cuda.is_available():
        return {}
    major, minor = torch.cuda.get_device_capability(0)
    facts: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(0),
        "cuda": str(torch.version.cuda),
        "capability": f"{major}.{minor}",
    }
    # The clocks are a courtesy: a machine that hides them still has a record.
    with contextlib.suppress(Exception):
        import pynvml

        pynvml.nvmlInit()
        # By its identity: NVML numbers all GPUs, CUDA those that this process may see.
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(0).uuid}")
        facts["gpu_driver"] = str(pynvml.nvmlSystemGetDriverVersion())
        facts["sm_clock_mhz"] = int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))
        facts["memory_clock_mhz"] = int(
            pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)
        )
    return facts


def _commit() -> str:
    """Commit of the checkout that this package runs from, with "+" where it has changes."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return ""
    try:
        run = functools.partial(
            subprocess.run, cwd=root, capture_output=True, text=True, check=False
        )
        head = run(["git", "rev-parse", "--short=12", "HEAD"]).stdout.strip()
        dirty = run(["git", "status", "--porcelain", "--untracked-files=no"]).stdout.strip()
    except OSError:
        return ""
    return head + ("+" if dirty else "")


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _compiler() -> str:
    found = shutil.which("g++") or shutil.which("c++")
    if not found:
        return ""
    out = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    return out.splitlines()[0] if out else ""


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
