"""Compile plain C++ with C entry points into a library for ctypes: a fraction of a second, and
independent of the torch version."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

from kernelproof.build.cache import cached, compiler_identity, content_key, cpu_identity
from kernelproof.build.compiler import find_cxx, run_compiler, source_parts, source_paths


def c_library(
    sources: Sequence[str | Path], *, cflags: Sequence[str] = (), ldflags: Sequence[str] = ()
) -> ctypes.CDLL:
    """Compile `.cpp` ``sources`` (``-O3 -march=native -fopenmp -std=c++17`` and ``cflags``) and
    load them. Functions must be ``extern "C"``.

    OpenMP is torch's own once torch is imported (one thread pool, sized by
    ``torch.set_num_threads``).

    Raises:
        CompileError: with the compiler's own lines.
        UnsupportedError: there is no C++ compiler.
    """
    paths = source_paths(sources)
    compiler = find_cxx()
    flags = ["-O3", "-march=native", "-fopenmp", "-std=c++17", "-fPIC", "-shared", *cflags]
    key = content_key(
        "c", compiler_identity(compiler), cpu_identity(), flags, tuple(ldflags),
        *source_parts(paths),
    )  # fmt: skip

    def fill(folder: Path) -> None:
        library = str(folder / "library.so")
        run_compiler([compiler, *flags, *map(str, paths), *ldflags, "-o", library], paths[0])

    folder, _ = cached(key, fill)
    return ctypes.CDLL(str(folder / "library.so"))
