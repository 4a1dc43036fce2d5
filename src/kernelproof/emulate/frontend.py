"""From CUDA C++ to PTX, without a GPU: NVRTC from wheels, or nvcc, or PTX as it is."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kernelproof.build.cache import cached, compiler_identity, content_key
from kernelproof.build.compiler import find_nvcc
from kernelproof.errors import CompileError, UnsupportedError

# The oldest target with cp.async, ldmatrix and bfloat16: what is written for later GPUs with
# fallbacks compiles for it too.
ARCH = "compute_80"
# What is for sm_90a alone, or for sm_90 and later.
HOPPER = "compute_90a"
_HOPPER_ONLY = re.compile(
    r"\b(wgmma|setmaxnreg|mapa|getctarank|griddepcontrol|CUtensorMap|__cluster_dims__|"
    r"this_cluster|cluster_group)\b|cp\.async\.bulk|barrier\.cluster|%+cluster|st\.async"
)

_PRELUDE = {
    "cstdint": """#pragma once
typedef signed char int8_t; typedef unsigned char uint8_t; typedef short int16_t;
typedef unsigned short uint16_t; typedef int int32_t; typedef unsigned int uint32_t;
typedef long long int64_t; typedef unsigned long long uint64_t;
typedef unsigned long long uintptr_t; typedef long long intptr_t;
#define UINT32_MAX 4294967295u
#define INT32_MAX 2147483647
#define INT32_MIN (-2147483647 - 1)
""",
    "cfloat": """#pragma once
#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.192092896e-07f
#define DBL_MAX 1.7976931348623158e+308
""",
    "cmath": """#pragma once
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif
#define M_PI 3.14159265358979323846
#define M_SQRT1_2 0.70710678118654752440
""",
    "cstdio": "#pragma once\n",
    "cstdlib": "#pragma once\n",
    "cassert": "#pragma once\n",
    "cstring": "#pragma once\n",
    "climits": "#pragma once\n#define INT_MAX 2147483647\n#define INT_MIN (-2147483647 - 1)\n",
}
_PRELUDE |= {
    "stdint.h": _PRELUDE["cstdint"], "float.h": _PRELUDE["cfloat"], "math.h": _PRELUDE["cmath"],
    "stdio.h": "", "stdlib.h": "", "assert.h": "", "string.h": "", "limits.h": _PRELUDE["climits"],
}  # fmt: skip


def to_ptx(
    source: str | Path,
    names: Sequence[str] = (),
    options: Sequence[str] = (),
    compiler: str = "nvrtc",
    arch: str = "",
) -> tuple[str, dict[str, str]]:
    """PTX with source lines, and the name in it of each of ``names``.

    Args:
        source: CUDA C++ text, or the path of a `.cu` or `.ptx` file.
        names: kernels as C++ names them; templates with their arguments. Kernels that are not
            templates need not be named.
        options: for the compiler.
        compiler: "nvrtc" or "nvcc".
        arch: by default compute_80, or compute_90a for what uses instructions of sm_90.

    Raises:
        CompileError: with the compiler's lines, or the file does not exist.
        UnsupportedError: the compiler is missing.
    """
    path = Path(source) if isinstance(source, Path) or _is_path(source) else None
    if path is not None and not path.is_file():
        raise CompileError(f"{path} does not exist; give a .cu or .ptx file, or CUDA C++ text")
    text = path.read_text() if path is not None else str(source)
    if (path is not None and path.suffix == ".ptx") or re.search(r"^\s*\.version\s", text, re.M):
        return text, {name: name for name in names}
    arch = arch or target_of(text, path)
    if compiler == "nvcc":
        return _nvcc(text, path, names, options, arch)
    if compiler != "nvrtc":
        raise UnsupportedError(f"no compiler {compiler!r}; there are nvrtc and nvcc")
    return _nvrtc(text, path, names, options, arch)


def target_of(text: str, path: Path | None = None) -> str:
    """The target for a source, by the instructions that it and the headers beside it name."""
    nearby = path.parent.glob("*.cuh") if path is not None else ()
    included = [h.read_text() for h in nearby if h.name in text]
    return HOPPER if any(_HOPPER_ONLY.search(t) for t in (text, *included)) else ARCH


def _is_path(source: str | Path) -> bool:
    return "\n" not in str(source) and str(source).endswith((".cu", ".cuh", ".ptx"))


def _nvrtc(
    text: str, path: Path | None, names: Sequence[str], options: Sequence[str], arch: str
) -> tuple[str, dict[str, str]]:
    from kernelproof import cuda

    nvrtc = cuda.nvrtc_bindings()
    file = str(path) if path is not None else "source.cu"
    folders = [path.parent] if path is not None else []
    nearby = sorted(h for folder in folders for h in folder.glob("*.cuh"))
    flags = [f"--gpu-architecture={arch}", "--std=c++17", "--generate-line-info", *options]
    flags.append("--pre-include=cmath")  # nvcc has INFINITY without it, and sources rely on that
    flags += [f"-I{folder}" for folder in (*folders, *cuda.header_folders())]
    key = content_key(
        "ptx", nvrtc.nvrtcVersion(), arch, tuple(names), tuple(options), file, text,
        *_PRELUDE.values(), *(part for h in nearby for part in (h.name, h.read_bytes())),
    )  # fmt: skip

    def fill(folder: Path) -> None:
        code, lowered = cuda.run_nvrtc(nvrtc, text, file, names, flags, "PTX", _PRELUDE)
        (folder / "kernel.ptx").write_bytes(code.rstrip(b"\0"))
        (folder / "names").write_text("\n".join(lowered))

    folder, _ = cached(key, fill)
    lowered = (folder / "names").read_text().splitlines()
    return (folder / "kernel.ptx").read_text(), dict(zip(names, lowered, strict=True))


def _nvcc(
    text: str, path: Path | None, names: Sequence[str], options: Sequence[str], arch: str
) -> tuple[str, dict[str, str]]:
    nvcc = find_nvcc("compiler='nvcc'")
    key = content_key("nvcc-ptx", compiler_identity(nvcc), arch, tuple(options), str(path), text)

    def fill(folder: Path) -> None:
        with tempfile.TemporaryDirectory() as made:
            source = path
            if source is None:
                source = Path(made) / "source.cu"
                source.write_text(text)
            command = [nvcc, "-ptx", "-lineinfo", "-std=c++17", f"-arch={arch}", *options]
            command += ["-o", str(folder / "kernel.ptx"), str(source)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CompileError(f"{file_name(path)} does not compile (nvcc)", done.stderr.strip())

    folder, _ = cached(key, fill)
    ptx = (folder / "kernel.ptx").read_text()
    return ptx, {name: _entry_for(name, ptx) for name in names}


def file_name(path: Path | None) -> str:
    return path.name if path is not None else "the source"


def _entry_for(name: str, ptx: str) -> str:
    """The entry whose mangled name holds ``name``; nvcc does not tell."""
    entries = re.findall(r"\.entry\s+([\w$]+)", ptx)
    found = [e for e in entries if e == name or re.match(rf"_Z\d*{len(name)}{name}", e)]
    if len(found) != 1:
        raise CompileError(f"no single kernel {name!r} in the PTX; it has {', '.join(entries)}")
    return str(found[0])


def parameter_names(source: str, kernel: str) -> list[str]:
    """The names of a kernel's parameters, read off its source; empty where that fails."""
    plain = re.split(r"[<(]", kernel)[0].split("::")[-1].strip()
    for found in re.finditer(rf"\b{re.escape(plain)}\s*\(", source):
        before = source[: found.start()]
        if "__global__" not in re.split(r"[;}]", before)[-1]:
            continue
        text = source[found.end() :]
        end, depth = 0, 1
        while end < len(text) and depth:
            depth += (text[end] == "(") - (text[end] == ")")
            end += 1
        names = []
        for part in text[: end - 1].split(","):
            words = re.findall(r"[A-Za-z_]\w*", re.sub(r"//[^\n]*|\[\w*\]", "", part))
            if words:
                names.append(words[-1])
        return names
    return []
