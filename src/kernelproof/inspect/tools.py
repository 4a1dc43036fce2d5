"""NVIDIA's command-line tools, wherever they lie: the toolkit, the wheels, or Triton's folder."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from kernelproof.errors import UnsupportedError

# Tool -> how to get it.
REMEDIES = {
    "nvdisasm": "pip install nvidia-cuda-nvdisasm",
    "ptxas": "pip install nvidia-cuda-nvcc, or install the CUDA toolkit",
    "compute-sanitizer": "install the CUDA toolkit",
    "ncu": "install NVIDIA Nsight Compute",
}


@functools.cache
def find(tool: str) -> str | None:
    """Path of ``tool``: on the PATH, of the toolkit, of a wheel, or bundled with Triton."""
    on_path = shutil.which(tool)
    if on_path is not None:
        return on_path
    for folder in _folders():
        if (folder / tool).is_file() and os.access(folder / tool, os.X_OK):
            return str(folder / tool)
    return None


def require(tool: str, purpose: str) -> str:
    """Path of ``tool``. Raises UnsupportedError that says how to get it."""
    found = find(tool)
    if found is None:
        remedy = REMEDIES.get(tool, "install the CUDA toolkit")
        raise UnsupportedError(f"{purpose} needs {tool}, which is not on this machine: {remedy}")
    return found


def run(command: Sequence[str], timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
    """Run a tool; its outcome is the caller's to judge."""
    return subprocess.run(
        list(command), capture_output=True, text=True, errors="replace", check=False,
        timeout=timeout,
    )  # fmt: skip


@functools.cache
def version(path: str) -> str:
    """Such as "nvdisasm 13.1.80"; the tool's name alone where it does not tell."""
    name = Path(path).name
    for line in run([path, "--version"]).stdout.splitlines():
        if "release" in line and ", V" in line:
            return f"{name} {line.rpartition(', V')[2].strip()}"
    return name


def _folders() -> Iterator[Path]:
    yield Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin"
    spec = importlib.util.find_spec("nvidia")
    for root in list(spec.submodule_search_locations or []) if spec is not None else []:
        yield from sorted(Path(root).glob("*/bin"))
    spec = importlib.util.find_spec("triton")
    for root in list(spec.submodule_search_locations or []) if spec is not None else []:
        yield Path(root) / "backends" / "nvidia" / "bin"
