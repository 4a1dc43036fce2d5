"""`load_inline`, `load` and `torch_op` of candidates, built for the emulator."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernelproof.build.cache import content_key
from kernelproof.build.inline import Files, Inline
from kernelproof.build.stable import Sources
from kernelproof.emulate.host import compile as compiling
from kernelproof.emulate.host.session import Device, Session, nvrtc_options
from kernelproof.emulate.host.split import host_only, split
from kernelproof.errors import UnsupportedError

_MAIN = """
#line 1 "main"
namespace kernelproof {
inline int run(int (*program)(), int, char**) { return program(); }
inline int run(int (*program)(int, char**), int n, char** words) { return program(n, words); }
inline int run(int (*program)(int, const char**), int n, char** words) {
  return program(n, const_cast<const char**>(words));
}
}  // namespace kernelproof
extern "C" int kernelproof_main(int n, char** words) {
  try {
    return kernelproof::run(&program_main, n, words);
  } catch (const std::exception&) {
    return 125;
  }
}
"""
_DEVICE = Path(__file__).parent / "device.h"


def take_inline(session: Session, given: Inline) -> Any:
    """The module that `load_inline` would have made, its launches in ``session``."""
    _ = session.runtime
    flags, links = _host_flags(given.cflags), list(given.ldflags)
    includes = [f"-I{path}" for path in given.includes]
    text = "".join(f"{source}\n" for source in given.cpp)
    text = host_only(text)
    key = ""
    if given.cuda:
        joined = "".join(f"{source}\n" for source in given.cuda)
        sides = split(joined, given.caller.name)
        key = _remember(session, sides.device, given.cuda_flags, given.includes, given.caller)
        text += sides.host
    if given.functions:
        text += '#line 1 "binding"\n' + _binding(given.functions)
    body = "#include <torch/extension.h>\n" + text
    path = compiling.library(
        given.name, [compiling.Unit(key, body)], flags=[*flags, *includes], links=links
    )
    return _wrapped(session, compiling.python_module(given.name, path))


def take_sources(session: Session, given: Sources) -> None:
    """Compile and load what `torch_op` would have: an operator library of the stable ABI."""
    import torch

    units = _units(session, given.paths, given.includes, given.cuda_flags)
    library = compiling.library(
        given.name, units, flags=_host_flags(given.cflags), links=given.ldflags, stable=given.abi
    )
    torch.ops.load_library(str(library))


def take_files(session: Session, given: Files) -> Any:
    """What `load` would have returned of files, their launches in ``session``."""
    import torch

    units = _units(session, given.paths, given.includes, given.cuda_flags)
    folders = dict.fromkeys([*given.includes, *(str(path.parent) for path in given.paths)])
    flags = [*_host_flags(given.cflags), *(f"-I{folder}" for folder in folders)]
    path = compiling.library(given.name, units, flags=flags, links=given.ldflags)
    if given.module:
        return _wrapped(session, compiling.python_module(given.name, path))
    torch.ops.load_library(str(path))
    return None


def _units(
    session: Session, paths: Sequence[Path], includes: Sequence[str], cuda_flags: Sequence[str]
) -> list[compiling.Unit]:
    """A unit of each file, the kernels of `.cu` files remembered in ``session``."""
    _ = session.runtime
    units = []
    for path in paths:
        text = expanded(path, includes)
        key = ""
        if path.suffix == ".cu":
            sides = split(text, path.name)
            key = _remember(session, sides.device, cuda_flags, includes, path)
            text = sides.host
        else:
            text = host_only(text)
        units.append(compiling.Unit(key, text))
    return units


def take_program(
    session: Session, path: Path, text: str = "", includes: Sequence[str] = ()
) -> Path:
    """A whole program of one `.cu` source as a library with `kernelproof_main(argc, argv)`, which
    is its `main` and ends where a launch cannot be emulated.

    ``text``: replaces the file's, with its headers in place.
    """
    _ = session.runtime
    sides = split(text or expanded(path, includes), path.name)
    key = _remember(session, sides.device, [], includes, path)
    flags = [f"-I{folder}" for folder in (path.parent, *includes)]
    host = f"#define main program_main\n{sides.host}{_MAIN}"
    return compiling.library(
        "program", [compiling.Unit(key, host)], flags=flags, stable="-DKERNELPROOF_PROGRAM"
    )


def expanded(path: Path, includes: Sequence[str] = ()) -> str:
    """The source with the headers in place that lie beside it or in ``includes``."""
    return _expanded(path, [path.parent, *map(Path, includes)], set())


def _remember(
    session: Session, device: str, flags: Sequence[str], includes: Sequence[str], file: Path
) -> str:
    # Its text and not its path, so that the cache notices a change.
    text = f'#line 1 "device.h"\n{_DEVICE.read_text()}\n#line 1 "{file}"\n{device}'
    options = nvrtc_options(flags, includes)
    key = content_key(text, options)
    session.units[key] = Device(text, options, str(file))
    return key


def _host_flags(flags: Sequence[str]) -> list[str]:
    """What changes a source's meaning; optimisation of the host's part only costs time."""
    return [f for f in flags if re.match(r"-[DUI]", f)]


def _binding(functions: dict[str, str]) -> str:
    lines = [
        f'm.def("{name}", torch::wrap_pybind_function({name}), "{doc}");'
        for name, doc in functions.items()
    ]
    return "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {\n" + "\n".join(lines) + "\n}\n"


def _wrapped(session: Session, module: Any) -> Any:
    for name in dir(module):
        value = getattr(module, name)
        if not name.startswith("__") and callable(value) and not isinstance(value, type):
            setattr(module, name, session.wrapped(value))
    return module


def _expanded(path: Path, folders: Sequence[Path], seen: set[Path]) -> str:
    """The source with its own headers in place, each once: they may hold kernels too."""
    seen.add(path)
    out = [f'#line 1 "{path}"\n']
    for number, line in enumerate(path.read_text().splitlines(keepends=True), start=1):
        found = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
        header = found and next((f / found[1] for f in folders if (f / found[1]).is_file()), None)
        if not header:
            out.append(line if not re.match(r"\s*#\s*pragma\s+once", line) else "\n")
            continue
        header = header.resolve()
        if header in seen:
            out.append("\n")
            continue
        if len(seen) > 100:
            raise UnsupportedError(f"{path.name} includes more than 100 headers of its own")
        out.append(_expanded(header, [header.parent, *folders], seen))
        # A header may end without a newline.
        out.append(f'\n#line {number + 1} "{path}"\n')
    return "".join(out)
