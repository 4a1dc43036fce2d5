"""Finding the host and CUDA compilers, and running them so that their own lines reach the user."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from kernelproof.errors import CompileError, UnsupportedError


def find_cxx() -> str:
    """Path of the C++ compiler. Raises UnsupportedError where there is none."""
    for name in ("g++", "c++", "clang++"):
        found = shutil.which(name)
        if found:
            return found
    raise UnsupportedError(
        "no C++ compiler on the PATH (looked for g++, c++, clang++); install g++"
    )


def nvcc_path() -> str | None:
    """Path of nvcc: on the PATH, or where the toolkit is installed by default; None without one."""
    usual = Path("/usr/local/cuda/bin/nvcc")
    return shutil.which("nvcc") or (str(usual) if usual.is_file() else None)


def find_nvcc(needed_by: str) -> str:
    """Path of nvcc. Raises UnsupportedError, naming ``needed_by``, where there is none."""
    found = nvcc_path()
    if found is None:
        raise UnsupportedError(
            f"{needed_by} needs nvcc (the CUDA toolkit), which is not on the PATH; "
            "kernelproof.cuda.Kernel compiles CUDA without it"
        )
    return found


def source_paths(sources: Sequence[str | Path]) -> list[Path]:
    """``sources`` as absolute paths. Raises CompileError for one that does not exist."""
    paths = [Path(source).resolve() for source in sources]
    for path in paths:
        if not path.is_file():
            raise CompileError(f"source {path} does not exist; give paths of .cpp or .cu files")
    return paths


def source_parts(paths: Sequence[Path]) -> list[str | bytes]:
    """Names and contents of ``paths`` and of the headers beside them, for a cache key."""
    headers = {h for p in paths for h in (*p.parent.glob("*.h"), *p.parent.glob("*.cuh"))}
    parts: list[str | bytes] = []
    for path in (*paths, *sorted(headers)):
        parts += [path.name, path.read_bytes()]
    return parts


def run_compiler(command: Sequence[str], source: Path) -> None:
    """Run ``command``. Raises CompileError with the compiler's lines where it fails."""
    done = subprocess.run(list(command), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        log = (done.stderr + done.stdout).strip()
        raise CompileError(f"{source.name} does not compile ({Path(command[0]).name})", log)
