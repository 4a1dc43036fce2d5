"""Compile `.cpp` and `.cu` sources into a torch operator through torch's stable ABI.

Sources include only ``torch/csrc/stable/*.h`` and register with ``STABLE_TORCH_LIBRARY``. That
compiles in about 1.5 s where ``torch/extension.h`` takes half a minute, and the result does not
depend on the Python version.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernelproof.build.cache import cached, compiler_identity, content_key, cpu_identity
from kernelproof.errors import CompileError, UnsupportedError

# The stable ABI is versioned by 0xMMmmpp00000000; 2.10 is the first with TORCH_BOX and typed
# data pointers. A library built for it loads in every later torch.
_TARGET = "-DTORCH_TARGET_VERSION=0x020a000000000000"


def torch_op(
    namespace: str,
    sources: Sequence[str | Path],
    *,
    cflags: Sequence[str] = (),
    cuda_flags: Sequence[str] = (),
    ldflags: Sequence[str] = (),
    arch: str | None = None,
) -> Any:
    """Compile ``sources``, load them, and return ``torch.ops.<namespace>``.

    Args:
        namespace: the name given to ``STABLE_TORCH_LIBRARY`` in the sources.
        sources: paths of `.cpp`, `.cc` or `.cu` files. Headers beside them are found and are part
            of the cache key.
        cflags: added to the C++ flags (``-O3 -march=native -fopenmp -std=c++17``).
        cuda_flags: added to nvcc's flags.
        arch: GPU target such as ``"sm_90a"``; the present GPU's by default.

    Raises:
        CompileError: with the compiler's own lines.
        UnsupportedError: no C++ compiler, or a `.cu` source and no nvcc or GPU.
    """
    import torch

    library = compile_library(
        namespace, sources, cflags=cflags, cuda_flags=cuda_flags, ldflags=ldflags, arch=arch
    )
    torch.ops.load_library(str(library))
    return getattr(torch.ops, namespace)


def compile_library(
    name: str,
    sources: Sequence[str | Path],
    *,
    cflags: Sequence[str] = (),
    cuda_flags: Sequence[str] = (),
    ldflags: Sequence[str] = (),
    arch: str | None = None,
) -> Path:
    """As `torch_op`, without loading: returns the path of the shared library.

    Needs no GPU when ``arch`` is given, so that CI can compile-check `.cu` sources.
    """
    import torch
    from torch.utils.cpp_extension import include_paths, library_paths

    paths = [Path(source).resolve() for source in sources]
    for path in paths:
        if not path.is_file():
            raise CompileError(f"source {path} does not exist; give paths of .cpp or .cu files")
    cuda_paths = [path for path in paths if path.suffix == ".cu"]
    compiler = _find_cxx()
    nvcc = _find_nvcc(cuda_paths[0]) if cuda_paths else ""
    target = (arch or _present_arch(cuda_paths[0])) if cuda_paths else ""

    cxx = ["-O3", "-march=native", "-fopenmp", "-std=c++17", "-fPIC", _TARGET, *cflags]
    nv = ["-O3", "-std=c++17", "-Xcompiler", "-fPIC", "-DUSE_CUDA", "-lineinfo", _TARGET]
    if cuda_paths:
        number = target.removeprefix("sm_")
        nv += [f"-gencode=arch=compute_{number},code=sm_{number}", *cuda_flags]
        cxx.append("-DUSE_CUDA")
    includes = [f"-I{path}" for path in include_paths()]
    link = [f"-L{path}" for path in library_paths()]
    link += ["-ltorch_cpu", "-lc10", "-fopenmp", *ldflags]

    headers = sorted({h for p in paths for h in (*p.parent.glob("*.h"), *p.parent.glob("*.cuh"))})
    key = content_key(
        "stable", name, torch.__version__, compiler_identity(compiler), cpu_identity(),
        compiler_identity(nvcc) if nvcc else "", target, cxx, nv if nvcc else "", link,
        *(part for path in (*paths, *headers) for part in (path.name, path.read_bytes())),
    )  # fmt: skip

    def fill(folder: Path) -> None:
        objects = []
        for index, path in enumerate(paths):
            obj = folder / f"{index}.o"
            if path.suffix == ".cu":
                command = [nvcc, *nv, *includes, "-c", str(path), "-o", str(obj)]
            else:
                command = [compiler, *cxx, *includes, "-c", str(path), "-o", str(obj)]
            _run(command, path)
            objects.append(str(obj))
        if cuda_paths:
            link.extend(["-L" + str(Path(nvcc).resolve().parent.parent / "lib64"), "-lcudart"])
        _run([compiler, "-shared", *objects, *link, "-o", str(folder / f"{name}.so")], paths[0])

    folder, _ = cached(key, fill)
    return folder / f"{name}.so"


def _find_cxx() -> str:
    for name in ("g++", "c++", "clang++"):
        found = shutil.which(name)
        if found:
            return found
    raise UnsupportedError("no C++ compiler on the PATH (looked for g++, c++, clang++); install g++")


def _find_nvcc(source: Path) -> str:
    found = shutil.which("nvcc")
    if not found and Path("/usr/local/cuda/bin/nvcc").is_file():
        found = "/usr/local/cuda/bin/nvcc"
    if not found:
        raise UnsupportedError(
            f"{source.name} needs nvcc (the CUDA toolkit), which is not on the PATH; "
            "kernelproof.cuda.Kernel compiles CUDA without it"
        )
    return found


def _present_arch(source: Path) -> str:
    import torch

    if not torch.cuda.is_available():
        raise UnsupportedError(
            f"{source.name} is CUDA code and this machine has no CUDA GPU that torch can use; "
            "run `kernelproof doctor` to see what is missing"
        )
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def _run(command: list[str], source: Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        log = (done.stderr + done.stdout).strip()
        raise CompileError(f"{source.name} does not compile ({Path(command[0]).name})", log)
