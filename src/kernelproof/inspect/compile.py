"""From sources to cubins for a named architecture, without a GPU: NVRTC, nvcc, ptxas."""

from __future__ import annotations

import re
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kernelproof.build.cache import cached, compiler_identity, content_key
from kernelproof.build.compiler import nvcc_path, source_parts
from kernelproof.cuda import Kernel, header_folders, nvrtc_bindings, run_nvrtc
from kernelproof.errors import CompileError, UnsupportedError, UsageError
from kernelproof.inspect import tools

_NVCC = ("-cubin", "-std=c++17", "-lineinfo", "-Xptxas", "-v")
# What torch's load_inline puts before CUDA sources, and the flags that it gives to nvcc.
_INLINE_HEADERS = "#include <torch/types.h>\n#include <cuda.h>\n#include <cuda_runtime.h>\n"
_INLINE_FLAGS = (
    "-D__CUDA_NO_HALF_OPERATORS__", "-D__CUDA_NO_HALF_CONVERSIONS__",
    "-D__CUDA_NO_BFLOAT16_CONVERSIONS__", "-D__CUDA_NO_HALF2_OPERATORS__",
    "--expt-relaxed-constexpr",
)  # fmt: skip
_BUILD_MACROS = "c10/cuda/impl/cuda_cmake_macros.h"
_KERNEL = re.compile(r"Compiling entry function '([^']+)'")
_FIGURES = {
    "registers": re.compile(r"Used (\d+) registers"),
    "barriers": re.compile(r"used (\d+) barriers"),
    "shared": re.compile(r"(\d+) bytes smem"),
    "stack": re.compile(r"(\d+) bytes stack frame"),
    "spill_stores": re.compile(r"(\d+) bytes spill stores"),
    "spill_loads": re.compile(r"(\d+) bytes spill loads"),
}


class Compiled:
    """``cubin``; ``compiler`` and its version; ``said``: what the assembler told of resources."""

    def __init__(self, cubin: bytes, compiler: str, said: str) -> None:
        self.cubin = cubin
        self.compiler = compiler
        self.said = said


def with_nvrtc(kernel: Kernel, arch: str) -> tuple[Compiled, str]:
    """One kernel of `kernelproof.cuda`, and its symbol. Errors as `Kernel.compile`."""
    cubin, symbol, said = kernel.compile_verbose(arch)
    return Compiled(cubin, nvrtc_name(), said), symbol


def nvrtc_name() -> str:
    """Such as "NVRTC 13.5"."""
    return "NVRTC " + ".".join(str(n) for n in nvrtc_bindings().nvrtcVersion()[1:])


def source_file(
    path: Path, arch: str, compiler: str = "", names: Sequence[str] = (),
    options: Sequence[str] = (),
) -> Compiled:  # fmt: skip
    """A `.cu`, `.ptx` or `.cubin` file.

    Args:
        compiler: "nvrtc" or "nvcc" for a `.cu` file; by default nvcc where there is one.
        names: instances of templates to compile, as C++ writes them; for NVRTC only.

    Raises:
        CompileError: with the compiler's lines.
        UnsupportedError: the compiler is missing.
        UsageError: no such compiler.
    """
    if path.suffix == ".cubin":
        return Compiled(path.read_bytes(), "", "")
    if path.suffix == ".ptx":
        return _ptxas(path, arch)
    if compiler not in ("", "nvcc", "nvrtc"):
        raise UsageError(f"no compiler {compiler!r}; there are nvcc and nvrtc")
    if compiler == "nvrtc" or names or (not compiler and nvcc_path() is None):
        if compiler == "nvcc":
            raise UsageError("--kernel names instances for NVRTC; nvcc compiles those in the file")
        return _nvrtc_file(path, arch, names, options)
    return nvcc(path, arch, options)


def nvcc(
    path: Path, arch: str, options: Sequence[str] = (), key: Sequence[object] | None = None
) -> Compiled:
    """A `.cu` file by nvcc, from the build cache where it was compiled before.

    ``key``: what else the result depends on; by default the file and the headers beside it.
    Raises CompileError, UnsupportedError.
    """
    found = nvcc_path()
    if found is None:
        raise UnsupportedError(
            f"{path.name} needs nvcc, which is not on the PATH: install the CUDA toolkit"
        )

    def fill(folder: Path) -> None:
        out = folder / "kernel.cubin"
        command = [found, *_NVCC, f"-arch={arch}", *options, "-o", str(out), str(path)]
        done = tools.run(command, timeout=600)
        if done.returncode:
            raise CompileError(f"{path.name} does not compile (nvcc, {arch})", done.stderr.strip())
        (folder / "said").write_text(done.stderr)

    parts = key if key is not None else (*source_parts([path]), *options)
    name = content_key("inspect", compiler_identity(found), arch, *parts)
    folder, _ = cached(name, fill)
    code, spoken = (folder / "kernel.cubin").read_bytes(), (folder / "said").read_text()
    return Compiled(code, tools.version(found), spoken)


def inline(sources: Sequence[str], arch: str, options: Sequence[str] = ()) -> Compiled:
    """The CUDA sources of a `load_inline` call, by nvcc with the headers and flags of torch."""
    import torch
    from torch.utils.cpp_extension import include_paths

    key = ("inline", torch.__version__, *sources, *options)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cuda.cu"
        path.write_text(_INLINE_HEADERS + "\n".join(sources))
        # CPU builds of torch have all headers but this one, which only says how to link.
        (Path(folder) / _BUILD_MACROS).parent.mkdir(parents=True)
        (Path(folder) / _BUILD_MACROS).write_text("#pragma once\n")
        includes = [f"-I{path}" for path in (*include_paths(), sysconfig.get_path("include"))]
        flags = [*_INLINE_FLAGS, *includes, f"-I{folder}", *options]
        return nvcc(path, arch, flags, key)


def verbose(said: str) -> dict[str, dict[str, int]]:
    """Figures of ``ptxas -v`` by symbol; what it leaves out of a kernel's lines is 0."""
    found: dict[str, dict[str, int]] = {}
    parts = _KERNEL.split(said)
    for symbol, text in zip(parts[1::2], parts[2::2], strict=True):
        # Functions that are called, not launched, follow with lines of their own.
        own = text.partition("Function properties for")
        lines = text if not own[1] else _own_properties(symbol, text)
        figures = {name: pattern.search(lines) for name, pattern in _FIGURES.items()}
        found[symbol] = {name: int(m[1]) if m is not None else 0 for name, m in figures.items()}
    return found


def _own_properties(symbol: str, text: str) -> str:
    """The lines about the kernel itself: its own properties, and what it uses."""
    own = text.partition(f"Function properties for {symbol}")[2]
    used = [line for line in text.splitlines() if "Used " in line]
    return "\n".join([*own.splitlines()[:2], *used[:1]])


def _ptxas(path: Path, arch: str) -> Compiled:
    found = tools.require("ptxas", f"{path.name}")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "kernel.cubin"
        done = tools.run([found, "-v", f"-arch={arch}", str(path), "-o", str(out)])
        if done.returncode:
            raise CompileError(f"{path.name} does not assemble (ptxas, {arch})", done.stderr)
        return Compiled(out.read_bytes(), tools.version(found), done.stderr)


def _nvrtc_file(path: Path, arch: str, names: Sequence[str], options: Sequence[str]) -> Compiled:
    nvrtc = nvrtc_bindings()
    said: list[str] = []
    flags = [f"--gpu-architecture={arch}", "--std=c++17", "--generate-line-info", *options]
    flags += ["--ptxas-options=-v", f"-I{path.parent}", *(f"-I{f}" for f in header_folders())]
    code, _ = run_nvrtc(nvrtc, path.read_text(), str(path), names, flags, log=said)
    return Compiled(code, nvrtc_name(), "\n".join(said))
