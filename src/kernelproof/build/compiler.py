"""Finding the host and CUDA compilers, and running them so that their own lines reach the user."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from kernelproof.errors import CompileError, UnsupportedError

# What torch's builds and tvm-ffi's raise with where a compiler refuses.
_REFUSED = ("Error building extension", "Error compiling", "ninja exited with status")


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


@contextlib.contextmanager
def building(name: str) -> Iterator[None]:
    """Around a build of the sources ``name`` by ninja: torch's ``load`` or tvm-ffi's. Raises
    CompileError with the compilers' own lines where they refuse."""
    try:
        yield
    except Exception as error:
        found = compile_error(error, f"{name} does not compile")
        if found is None:
            raise
        raise found from None


def compile_error(error: Exception, otherwise: str) -> CompileError | None:
    """What a build by ninja was refused for; None for an error that is no such refusal.

    ``otherwise``: the message where the compilers name no line.
    """
    text = str(error)
    if not any(words in text for words in _REFUSED):
        return None
    log = _compiler_lines(text)
    first = re.search(r"^(.+?):(\d+)(?::\d+)?: (?:fatal )?error: (.*)$", log, re.MULTILINE) or (
        re.search(r"^(.+?)\((\d+)\): error: (.*)$", log, re.MULTILINE)
    )
    if first:
        where = f"{Path(first.group(1)).name}:{first.group(2)}"
        return CompileError(f"{where}: {first.group(3)}", log)
    return CompileError(otherwise, log)


def _compiler_lines(text: str) -> str:
    """The compilers' own lines out of ninja's output."""
    noise = (
        "[", "FAILED:", "ninja", "c++ ", "g++ ", "/usr/bin/", "Error building extension", "stdout:",
        "stderr:",
    )  # fmt: skip
    kept = [line for line in text.splitlines() if line.strip() and not line.startswith(noise)]
    return "\n".join(line for line in kept if "/bin/nvcc" not in line[:80])
