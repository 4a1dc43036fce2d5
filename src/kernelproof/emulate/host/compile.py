"""The host's side of a candidate, compiled by the C++ compiler against stand-ins for CUDA."""

from __future__ import annotations

import ctypes
import dataclasses
import importlib.util
import re
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernelproof import cuda
from kernelproof.build.cache import cached, compiler_identity, content_key
from kernelproof.build.compiler import find_cxx, run_compiler
from kernelproof.emulate.host.split import line_of
from kernelproof.errors import CompileError, UnsupportedError

_HERE = Path(__file__).parent
# Torch's headers that speak of CUDA, and the part of torch's extension header that is not the C++
# frontend: that takes 10 of 24 seconds and few candidates use it.
_STAND_INS = (
    "ATen/cuda/CUDAContext.h", "ATen/cuda/CUDAContextLight.h", "ATen/cuda/Exceptions.h",
    "ATen/cuda/CUDAUtils.h", "c10/cuda/CUDAStream.h", "c10/cuda/CUDAGuard.h",
    "c10/cuda/CUDAException.h", "c10/cuda/CUDAFunctions.h", "c10/cuda/CUDAMacros.h",
    "cuda_profiler_api.h",
)  # fmt: skip
_EXTENSION = """#pragma once
#include <torch/types.h>
#include <torch/library.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
"""
_FRONTEND = re.compile(r"\btorch::(nn|optim|data|jit|serialize|autograd)\b")


@dataclasses.dataclass(frozen=True)
class Unit:
    """One host source. ``key`` names the device text that its launches belong to."""

    key: str
    text: str


def prepare() -> None:
    """Build what every candidate needs, in the process that asks: candidates do not share builds.
    Raises CompileError or UnsupportedError."""
    _stand_ins()
    _runtime_path()


def runtime() -> ctypes.CDLL:
    """The stand-in for the CUDA runtime, whose names later libraries find."""
    return ctypes.CDLL(str(_runtime_path()), mode=ctypes.RTLD_GLOBAL)


def _runtime_path() -> Path:
    import torch

    source = _HERE / "runtime.cpp"
    compiler = find_cxx()
    flags = ["-std=c++20", "-O1", "-w", "-fPIC", "-shared"]
    key = content_key("host-runtime", torch.__version__, compiler_identity(compiler), flags,
                      source.read_text(), (_HERE / "driver.h").read_text(),
                      cuda.header_folders())  # fmt: skip

    def fill(folder: Path) -> None:
        library = str(folder / "libkernelproof_host.so")
        run_compiler(
            [compiler, *flags, *_includes(), str(source), *_libraries("-lc10"), "-o", library],
            source,
        )

    folder, _ = cached(key, fill)
    return folder / "libkernelproof_host.so"


def _includes() -> list[str]:
    from torch.utils.cpp_extension import include_paths

    if not cuda.header_folders():
        raise UnsupportedError(
            "host code of CUDA candidates needs the CUDA headers: pip install 'kernelproof[cuda]'"
        )
    own = [f"-I{path}" for path in include_paths()]
    return [*own, *(f"-isystem{path}" for path in cuda.header_folders())]


def _libraries(*names: str) -> list[str]:
    from torch.utils.cpp_extension import library_paths

    return [*(f"-L{path}" for path in library_paths()), *names]


def _stand_ins() -> Path:
    text = (_HERE / "host.h").read_text()

    def fill(folder: Path) -> None:
        (folder / "kernelproof_host.h").write_text(text)
        for name in _STAND_INS:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text('#pragma once\n#include "kernelproof_host.h"\n')
        (folder / "light" / "torch").mkdir(parents=True)
        (folder / "light" / "torch" / "extension.h").write_text(_EXTENSION)

    folder, _ = cached(content_key("host-headers", text, _STAND_INS, _EXTENSION), fill)
    return folder


def library(
    name: str, units: Sequence[Unit], *, flags: Sequence[str] = (), links: Sequence[str] = (),
    stable: str = "",
) -> Path:  # fmt: skip
    """Compile the units into one shared library, from the cache where possible.

    Args:
        name: of the Python module, where a unit defines one.
        stable: torch's version macro for sources of the stable ABI; empty for others.

    Raises:
        CompileError: with the compiler's lines.
        UnsupportedError: a function of the CUDA runtime that is not taken over, by name.
    """
    import torch

    compiler, headers, runtime_path = find_cxx(), _stand_ins(), _runtime_path()
    base = ["-std=c++20", "-O0", "-w", "-fPIC", f"-DTORCH_EXTENSION_NAME={name}", "-DUSE_CUDA"]
    base += [stable, "-DKERNELPROOF_STABLE"] if stable else ["-DTORCH_API_INCLUDE_EXTENSION_H"]
    base += [f"-I{headers}", *flags]
    link = _libraries("-lc10", "-ltorch_cpu")
    if not stable:
        base.append(f"-isystem{sysconfig.get_paths()['include']}")
        link += ["-ltorch", "-ltorch_python"]
    link += [str(runtime_path), *links]
    key = content_key("host", name, torch.__version__, compiler_identity(compiler), base, link,
                      sysconfig.get_paths()["include"],
                      *(part for u in units for part in (u.key, u.text)))  # fmt: skip

    def fill(folder: Path) -> None:
        objects = []
        for number, unit in enumerate(units):
            path, built = folder / f"{number}.cpp", folder / f"{number}.o"
            path.write_text(f'#include "kernelproof_host.h"\n#line 1 "{path}"\n{unit.text}')
            light = not stable and not _FRONTEND.search(unit.text)
            extra = [f"-I{headers / 'light'}"] if light else []
            extra.append(f'-DKERNELPROOF_UNIT="{unit.key}"')
            _run([compiler, *extra, *base, *_includes(), "-c", str(path), "-o", str(built)], path)
            objects.append(str(built))
        made = str(folder / f"{name}.so")
        _link([compiler, "-shared", *objects, *link, "-o", made], name, units)
        for path in folder.glob("*.o"):
            path.unlink()

    folder, _ = cached(key, fill)
    return folder / f"{name}.so"


def _link(command: list[str], name: str, units: Sequence[Unit]) -> None:
    """Link; functions of Python are found when the module is loaded, those of CUDA never."""
    command = [*command, "-Wl,-z,defs,--warn-unresolved-symbols"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    missing = re.search(r"undefined reference to [`'](cu\w+)", done.stderr)
    if missing:
        places = [place for unit in units for place in _places(unit.text, missing[1])]
        raise UnsupportedError(
            f"{places[0] if places else name}: {missing[1]} is not taken over from CUDA; "
            "run this candidate on a GPU"
        )
    if done.returncode:
        raise CompileError(f"{name} does not link", done.stderr.strip())


def _places(text: str, word: str) -> list[str]:
    """``file:line`` of a word, by the `#line` directives before it."""
    found = []
    for match in re.finditer(rf"\b{word}\b", text):
        files = re.findall(r'^#line \d+ "([^"]*)"', text[: match.start()], re.M)
        found.append(f"{Path(files[-1]).name if files else ''}:{line_of(text, match.start())}")
    return found


def _run(command: list[str], source: Path) -> None:
    """Run the compiler; its first error becomes the message."""
    try:
        run_compiler(command, source)
    except CompileError as error:
        log = error.detail
        first = re.search(r"^(.+?):(\d+)(?::\d+)?: (?:fatal )?error: (.*)$", log, re.M)
        if first:
            where = f"{Path(first[1]).name}:{first[2]}"
            raise CompileError(f"{where}: {first[3]} (host code)", log) from None
        raise


def python_module(name: str, path: Path) -> Any:
    """Import the extension at ``path``."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
