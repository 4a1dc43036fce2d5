"""``torch.utils.cpp_extension.load_inline`` as candidates use it, with three repairs, and ``load``.

Errors name the user's own file and line (by ``#line``); builds go to the content-addressed cache
under a lock; and what cannot work is said in plain words: CUDA sources on a machine without a GPU,
and the empty ``cpp_sources`` that leaves the generated binding without declarations.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import inspect
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kernelproof.build.cache import (
    build_root,
    compiler_identity,
    content_key,
    cpu_identity,
    locked,
)
from kernelproof.build.compiler import compile_error, nvcc_path
from kernelproof.errors import CompileError, UnsupportedError

_MARK = "_kernelproof_original"
_FLAGS = ("cflags", "cuda_cflags", "ldflags", "include_paths")


@dataclasses.dataclass(frozen=True)
class Inline:
    """What `load_inline` was given. Sources carry `#line`; ``functions``: name -> docstring."""

    caller: Path
    name: str
    cpp: list[str]
    cuda: list[str]
    functions: dict[str, str]
    cflags: list[str]
    cuda_flags: list[str]
    ldflags: list[str]
    includes: list[str]


@dataclasses.dataclass(frozen=True)
class Files:
    """What `load` was given, at least one `.cu` file; ``module``: they make one of Python's."""

    name: str
    paths: list[Path]
    module: bool
    cflags: list[str]
    cuda_flags: list[str]
    ldflags: list[str]
    includes: list[str]


# What builds CUDA sources instead of nvcc, if anything does: those of `load_inline`, and of `load`.
take_cuda: Callable[[Inline], Any] | None = None
take_files: Callable[[Files], Any] | None = None
# Whether CUDA sources are built for a GPU that is not there; see `build.for_target`.
ahead = False


def install() -> None:
    """Replace ``load_inline`` and ``load`` in this process (a worker)."""
    from torch.utils import cpp_extension

    original = cpp_extension.load_inline
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def load_inline(name: str, cpp_sources: Any = "", *args: Any, **kwargs: Any) -> Any:
        caller = Path(sys._getframe(1).f_code.co_filename)
        return _load(original, caller, name, cpp_sources, args, kwargs)

    of_files = cpp_extension.load

    @functools.wraps(of_files)
    def load(*args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(of_files).bind(*args, **kwargs).arguments
        paths = [Path(path).resolve() for path in _listed(given["sources"])]
        if any(path.suffix == ".cu" for path in paths):
            if take_files is not None:
                flags = [_listed(given.get(f"extra_{k}")) for k in _FLAGS]
                module = bool(given.get("is_python_module", True))
                return take_files(Files(given["name"], paths, module, *flags))
            _require_cuda(Path(sys._getframe(1).f_code.co_filename))
        return of_files(*args, **kwargs)

    setattr(load_inline, _MARK, original)
    cpp_extension.load_inline = load_inline
    cpp_extension.load = load


def _load(
    original: Any, caller: Path, name: str, cpp: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    kwargs = dict(kwargs)
    if args:
        # The third positional argument is cuda_sources, the fourth (after sycl in new torch) rare.
        kwargs.setdefault("cuda_sources", args[0])
        args = args[1:]
    cpp_list = _listed(cpp)
    cuda_list = _listed(kwargs.get("cuda_sources"))
    functions = kwargs.get("functions") or []
    names = list(functions) if not isinstance(functions, str) else [functions]
    if names and not "".join(cpp_list).strip():
        raise CompileError(_missing_declarations(names, cuda_list))
    lines = _literal_lines(caller)
    cuda = [_with_line(s, caller, lines) for s in cuda_list]
    marked = [_with_line(s, caller, lines) for s in cpp_list]
    if any(source.strip() for source in cuda_list):
        if take_cuda is not None:
            documented = functions if isinstance(functions, dict) else {n: n for n in names}
            flags = [_listed(kwargs.get(f"extra_{k}")) for k in _FLAGS]
            return take_cuda(Inline(caller, name, marked, cuda, documented, *flags))
        _require_cuda(caller)
    kwargs["cuda_sources"] = cuda or None
    key = content_key(
        "inline", name, cpp_list, cuda_list, sorted((k, str(v)) for k, v in kwargs.items()), args,
        _torch_version(), sys.version_info[:2], compiler_identity("g++"),
        compiler_identity("nvcc") if cuda_list else "", cpu_identity(), str(caller),
    )  # fmt: skip
    folder = build_root() / f"inline-{key}"
    with locked(build_root() / f"inline-{key}.lock"):
        folder.mkdir(parents=True, exist_ok=True)
        # A killed build leaves torch's own lock file, on which the next would wait forever.
        (folder / "lock").unlink(missing_ok=True)
        kwargs.setdefault("build_directory", str(folder))
        try:
            return original(name, marked, *args, **kwargs)
        except Exception as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise _explained(error, caller, names, cuda_list) from None


def _listed(sources: Any) -> list[str]:
    if sources is None:
        return []
    return [sources] if isinstance(sources, str) else [str(s) for s in sources]


def _torch_version() -> str:
    import torch

    return str(torch.__version__)


def _require_cuda(caller: Path) -> None:
    import torch

    missing = []
    if not torch.cuda.is_available() and not ahead:
        missing.append("an NVIDIA GPU that torch can use")
    if nvcc_path() is None:
        missing.append("nvcc (the CUDA toolkit)")
    if missing:
        raise UnsupportedError(
            f"{caller.name} compiles CUDA sources, and this machine lacks {' and '.join(missing)}; "
            "`kernelproof doctor` tells how to get them"
        )


def _literal_lines(caller: Path) -> dict[str, int]:
    """Text of each string literal in the user's file -> the line on which its text begins."""
    found: dict[str, int] = {}
    with contextlib.suppress(OSError, SyntaxError):
        for node in ast.walk(ast.parse(caller.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found[node.value] = node.lineno
    return found


def _with_line(source: str, caller: Path, lines: dict[str, int]) -> str:
    number = lines.get(source)
    if number is None:
        return source
    return f'#line {number} "{caller}"\n{source}\n#line 1 "generated by load_inline"\n'


def _missing_declarations(names: Sequence[str], cuda_sources: Sequence[str]) -> str:
    declared = [_declaration(name, cuda_sources) for name in names]
    return (
        f"load_inline(functions={list(names)}) with an empty cpp_sources: the binding that torch "
        "generates calls the functions from C++, so cpp_sources must declare each of them. Add: "
        + " ".join(declared)
    )


def _declaration(name: str, sources: Sequence[str]) -> str:
    for source in sources:
        match = re.search(
            rf"^[ \t]*([\w:<>,&* \t]+?\b{name}\s*\([^)]*\))\s*\{{", source, re.MULTILINE
        )
        if match:
            return re.sub(r"\s+", " ", match.group(1)) + ";"
    return f"torch::Tensor {name}(torch::Tensor x);"


def _explained(
    error: Exception, caller: Path, names: Sequence[str], cuda_sources: Sequence[str]
) -> Exception:
    found = compile_error(error, f"{caller.name}: load_inline failed")
    if found is None:
        return error
    log = found.detail
    undeclared = [n for n in names if re.search(rf"\W{n}\W was not declared", log)]
    if undeclared:
        return CompileError(
            f"cpp_sources does not declare {', '.join(undeclared)}, which functions=[...] binds; "
            "add " + " ".join(_declaration(n, cuda_sources) for n in undeclared),
            log,
        )
    return found
