"""Compile `.cpp` and `.cu` sources into a torch operator through torch's stable ABI.

Sources include only ``torch/csrc/stable/*.h`` and register with ``STABLE_TORCH_LIBRARY``. That
compiles in about 1.5 s where ``torch/extension.h`` takes half a minute, and the result does not
depend on the Python version.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kernelproof.build.cache import cached, compiler_identity, content_key, cpu_identity
from kernelproof.build.compiler import (
    find_cxx,
    find_nvcc,
    run_compiler,
    source_parts,
    source_paths,
)
from kernelproof.errors import UnsupportedError


@dataclasses.dataclass(frozen=True)
class Sources:
    """What `torch_op` was given; ``abi``: the version macro of torch's stable ABI."""

    name: str
    paths: list[Path]
    abi: str
    cflags: list[str]
    cuda_flags: list[str]
    ldflags: list[str]
    includes: list[str]


# What builds CUDA sources instead of nvcc, if anything does.
take_cuda: Callable[[Sources], None] | None = None
# The GPU to build for where this process sees none, such as "sm_90"; "" for none.
target = ""


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

    paths = source_paths(sources)
    if take_cuda is not None and any(path.suffix == ".cu" for path in paths):
        abi = target_version(torch.__version__)
        take_cuda(Sources(namespace, paths, abi, list(cflags), list(cuda_flags), list(ldflags), []))
        return getattr(torch.ops, namespace)
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

    paths = source_paths(sources)
    cuda_paths = [path for path in paths if path.suffix == ".cu"]
    compiler = find_cxx()
    nvcc = find_nvcc(cuda_paths[0].name) if cuda_paths else ""
    chosen = (arch or _present_arch(cuda_paths[0])) if cuda_paths else ""

    abi = target_version(torch.__version__)
    cxx = ["-O3", "-march=native", "-fopenmp", "-std=c++17", "-fPIC", abi, *cflags]
    nv = ["-O3", "-std=c++17", "-Xcompiler", "-fPIC", "-DUSE_CUDA", "-lineinfo", abi]
    if cuda_paths:
        number = chosen.removeprefix("sm_")
        nv += [f"-gencode=arch=compute_{number},code=sm_{number}", *cuda_flags]
        cxx.append("-DUSE_CUDA")
    includes = [f"-I{path}" for path in include_paths()]
    link = [f"-L{path}" for path in library_paths()]
    link += ["-ltorch_cpu", "-lc10", "-fopenmp", *ldflags]
    if cuda_paths and any((Path(p) / "libtorch_cuda.so").is_file() for p in library_paths()):
        # The current stream's accessor; a CPU build of torch has none, and only compile-checks.
        link.append("-ltorch_cuda")

    key = content_key(
        "stable", name, torch.__version__, compiler_identity(compiler), cpu_identity(),
        compiler_identity(nvcc) if nvcc else "", chosen, cxx, nv if nvcc else "", link,
        *source_parts(paths),
    )  # fmt: skip

    def fill(folder: Path) -> None:
        objects = []
        for index, path in enumerate(paths):
            obj = folder / f"{index}.o"
            if path.suffix == ".cu":
                command = [nvcc, *nv, *includes, "-c", str(path), "-o", str(obj)]
            else:
                command = [compiler, *cxx, *includes, "-c", str(path), "-o", str(obj)]
            run_compiler(command, path)
            objects.append(str(obj))
        library = str(folder / f"{name}.so")
        if cuda_paths:
            # nvcc knows where its own runtime lies, which differs between toolkits and wheels.
            flags = [part.replace("-fopenmp", "-Xcompiler=-fopenmp") for part in link]
            run_compiler([nvcc, "-shared", *objects, *flags, "-o", library], paths[0])
        else:
            run_compiler([compiler, "-shared", *objects, *link, "-o", library], paths[0])

    folder, _ = cached(key, fill)
    return folder / f"{name}.so"


def target_version(version: str) -> str:
    """The stable ABI's version macro: 2.10, the first with TORCH_BOX and typed data pointers and
    loadable in every later torch, or 2.9 where that is what is installed."""
    old = tuple(int(part) for part in version.split(".")[:2]) < (2, 10)
    return f"-DTORCH_TARGET_VERSION=0x02{9 if old else 10:02x}000000000000"


def _present_arch(source: Path) -> str:
    import torch

    if target:
        return target
    if not torch.cuda.is_available():
        raise UnsupportedError(
            f"{source.name} is CUDA code and this machine has no CUDA GPU that torch can use; "
            "run `kernelproof doctor` to see what is missing"
        )
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"
