"""Solutions of flashinfer-bench and SOL-ExecBench as candidates: their sources in a folder, and a
ModelNew that calls the entry point."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from kernelproof.build.cache import content_key
from kernelproof.errors import UsageError
from kernelproof.suite.formats import made

# What C++ and CUDA bind to.
_BINDINGS = ("torch", "tvm-ffi")
_COMPILED = ("cpp", "cuda", "cuda_cpp", "cutlass", "cudnn", "cublas")
# Languages in Python -> the package that they need beside torch.
_PACKAGES = {
    "python": "", "pytorch": "", "triton": "triton", "tilelang": "tilelang",
    "cute_dsl": "cutlass", "cutile": "cuda.tile", "cudnn_frontend": "cudnn",
}  # fmt: skip

_SHAPES = '''def _axes(given):
    """Value of every axis; the variable ones are given."""
    known = {{**given, **{constants}}}
{expressions}    return known


def _from_inputs(specs, inputs):
    """Value of every axis in a call."""
    given = {{}}
    for name, spec, value in zip(specs, specs.values(), inputs):
        for axis, extent in zip(spec["shape"] or (), getattr(value, "shape", ())):
            given[axis] = extent
        # An axis of outputs alone hangs on a scalar of its own name.
        if isinstance(value, int):
            given.setdefault(name, value)
    return _axes(given)


def _named(answer, outputs, inputs):
    """An answer in the order of the definition: a tensor, or a tuple of several."""
    if isinstance(answer, dict):
        answer = tuple(answer[name] for name in outputs)
    found = list(answer) if isinstance(answer, (list, tuple)) else [answer]
    device = next((x.device for x in inputs if isinstance(x, torch.Tensor)), "cpu")
    for i, (value, spec) in enumerate(zip(found, outputs.values())):
        if not isinstance(value, torch.Tensor):
            found[i] = torch.tensor(value, dtype=getattr(torch, spec["dtype"]), device=device)
    return found[0] if len(outputs) == 1 and len(found) == 1 else tuple(found)
'''

_CANDIDATE = '''"""The solution {name} of {definition}."""

{mark}import importlib.util
from pathlib import Path

import torch

{guard}INPUTS = {inputs}
OUTPUTS = {outputs}
HERE = Path(__file__).parent


{shapes}

{entry}

class ModelNew(torch.nn.Module):
    def forward(self, *inputs):
{forward}
'''
_RETURNS = "        return _named(ENTRY(*inputs), OUTPUTS, inputs)"
_WRITES = """        axes = _from_inputs(INPUTS, inputs)
        device = next((x.device for x in inputs if isinstance(x, torch.Tensor)), "cpu")
        made = [
            torch.empty([axes[a] for a in spec["shape"] or ()], dtype=getattr(torch, spec["dtype"]),
                        device=device)
            for spec in OUTPUTS.values()
        ]
        ENTRY(*inputs, *made)
        return _named(tuple(made), OUTPUTS, inputs)"""
# By path: a module of that name may lie elsewhere as well.
_PYTHON_ENTRY = """from kernelproof.importing import import_file

ENTRY = import_file(HERE / {file!r}, "solution").{function}
"""
_BUILT_ENTRY = """from torch.utils.cpp_extension import load

from kernelproof.build.cache import build_root, locked
from kernelproof.build.compiler import building

{sources_name} = [str(HERE / name) for name in {files}]
_folder = build_root() / {key!r}
with locked(build_root() / ({key!r} + ".lock")), building({function!r}):
    _folder.mkdir(parents=True, exist_ok=True)
    (_folder / "lock").unlink(missing_ok=True)
    _built = load(
        name={key!r}, sources={sources_name}, build_directory=str(_folder),
        extra_include_paths=[str(HERE)], {flags}
    )
ENTRY = getattr(_built, {function!r})
"""
_TVM_ENTRY = """import os
import shutil

import tvm_ffi.cpp

from kernelproof.build.cache import build_root, locked
from kernelproof.build.compiler import building

if torch.cuda.is_available():
    # Asked by itself, it takes the first GPU that nvidia-smi lists.
    _at = torch.cuda.get_device_capability()
    os.environ["TVM_FFI_CUDA_ARCH_LIST"] = f"{{_at[0]}}.{{_at[1]}}{{'a' if _at[0] >= 9 else ''}}"
_root = Path(shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc").resolve().parents[1]
_places = [p for p in (_root / "targets/x86_64-linux/lib", _root / "lib64", _root / "lib")
           if (p / "libcudart.so").exists()]
_link = [*(f"-L{{p}}" for p in _places[:1]), "-lcuda", "-lcublas"] if {links} else []
_folder = build_root() / {key!r}
with locked(build_root() / ({key!r} + ".lock")), building({function!r}):
    _folder.mkdir(parents=True, exist_ok=True)
    _built = tvm_ffi.cpp.load(
        {key!r}, cpp_files=[str(HERE / name) for name in {cpp}],
        cuda_files=[str(HERE / name) for name in {cuda}], extra_ldflags=_link,
        extra_include_paths=[str(HERE)], build_directory=str(_folder), {flags}
    )
ENTRY = _built.get_function({function!r})
"""
_UNSUPPORTED = """from kernelproof.errors import UnsupportedError

"""


def find(where: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """Definition -> name of the solution -> solution, of every JSON file below ``where`` (or of
    that file) which is one. Raises UsageError where there is nothing there."""
    if not where.exists():
        raise UsageError(f"no solutions {str(where)!r}: give a JSON file or a folder of them")
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for path in [where] if where.is_file() else sorted(where.rglob("*.json")):
        try:
            one = json.loads(path.read_text())
        except ValueError:
            continue
        if not isinstance(one, dict) or not {"definition", "spec", "sources"} <= set(one):
            continue
        there = found.setdefault(str(one["definition"]), {})
        name = str(one.get("name") or path.stem)
        if name in there and there[name] != one:
            raise UsageError(f"{path}: there is another solution {name!r} of {one['definition']}")
        there[name] = one
    return found


def candidate(one: Mapping[str, Any], definition: Mapping[str, Any]) -> Path:
    """The folder of a candidate. What this machine cannot build or import says so when it is
    judged. Raises UsageError for a solution whose files lead elsewhere or lack the entry point."""
    name = str(one.get("name") or "solution")
    files = {str(s["path"]): str(s["content"]) for s in one["sources"]}
    for file in files:
        pure = PurePosixPath(file)
        if pure.is_absolute() or ".." in pure.parts or file == "candidate.py":
            raise UsageError(f"solution {name!r}: the source {file!r} leads out of its folder")
    spec = one["spec"]
    entry, _, function = str(spec["entry_point"]).partition("::")
    if entry not in files or not function.isidentifier():
        raise UsageError(
            f"solution {name!r}: entry_point {spec['entry_point']!r} is no file::function of "
            f"{', '.join(files)}"
        )
    languages = [str(x) for x in spec.get("languages") or [spec.get("language", "python")]]
    writes = bool(spec.get("destination_passing_style", True))
    compiled = any(x in _COMPILED for x in languages)
    # SOL-ExecBench, which lists languages, binds to torch; flashinfer-bench to tvm-ffi.
    binding = str(spec.get("binding") or ("torch" if "languages" in spec else "tvm-ffi"))
    text = _CANDIDATE.format(
        name=name, definition=one["definition"], shapes=shapes(definition["axes"]),
        mark="import triton\n" if "triton" in languages else "",
        guard=_guard(languages, binding, compiled, files),
        inputs=made.literal(_specs(definition["inputs"])),
        outputs=made.literal(_specs(definition["outputs"])),
        entry=_built(spec, files, function, binding) if compiled else _imported(entry, function),
        forward=_WRITES if writes else _RETURNS,
    )  # fmt: skip
    return made.folder("flashinfer", name, {"candidate.py": text, **files})


def _guard(
    languages: list[str], binding: str, compiled: bool, files: Mapping[str, str]
) -> str:  # fmt: skip
    """Lines that say what is missing here."""
    if compiled and binding not in _BINDINGS:
        why = f"binding {binding}: solutions in C++ and CUDA bind to {' or '.join(_BINDINGS)}"
        return f"{_UNSUPPORTED}raise UnsupportedError({why!r})\n"
    unknown = [x for x in languages if x not in _COMPILED and x not in _PACKAGES]
    if unknown:
        return f"{_UNSUPPORTED}raise UnsupportedError({f'language {unknown[0]}'!r})\n"
    lines = ""
    if compiled and binding == "tvm-ffi":
        why = "the solution binds to tvm-ffi, which is missing here: pip install apache-tvm-ffi"
        lines += (
            "if importlib.util.find_spec('tvm_ffi') is None:\n"
            f"    raise UnsupportedError({why!r})\n"
        )
    for package in sorted({_PACKAGES.get(x, "") for x in languages} - {""}):
        why = f"the solution is written with {package}, which is not installed here"
        lines += (
            f"try:\n    _there = importlib.util.find_spec({package!r})\n"
            "except ModuleNotFoundError:\n    _there = None\n"
            f"if _there is None:\n    raise UnsupportedError({why!r})\n"
        )
    if compiled and any(x != "cpp" for x in languages) and _for_cuda(files):
        why = "the solution compiles CUDA sources, and torch sees no GPU here"
        lines += f"if not torch.cuda.is_available():\n    raise UnsupportedError({why!r})\n"
    return f"{_UNSUPPORTED}{lines}" if lines else ""


def shapes(axes: Mapping[str, Any]) -> str:
    """Functions that a problem and its candidates share: the axes of a call, the form of an answer.
    Raises UsageError for an axis that is an expression and does not read as one."""
    constants = {name: a["value"] for name, a in axes.items() if a["type"] == "const"}
    lines = ""
    for name, axis in axes.items():
        if axis["type"] == "expr":
            lines += f"    known[{name!r}] = int({_expression(name, str(axis['expression']))})\n"
    return _SHAPES.format(constants=made.literal(constants), expressions=lines)


def _expression(axis: str, text: str) -> str:
    """``text`` over the axes in ``known``."""

    class Known(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return ast.parse(f"known[{node.id!r}]", mode="eval").body

    try:
        return ast.unparse(Known().visit(ast.parse(text, mode="eval")))
    except SyntaxError:
        raise UsageError(f"axis {axis!r}: {text!r} is no expression") from None


def _imported(entry: str, function: str) -> str:
    return _PYTHON_ENTRY.format(file=entry, function=function)


def _for_cuda(files: Mapping[str, str]) -> bool:
    return any(f.endswith(".cu") for f in files)


def _built(
    spec: Mapping[str, Any], files: Mapping[str, str], function: str, binding: str
) -> str:  # fmt: skip
    sources = [f for f in files if f.endswith((".cpp", ".cc", ".cxx", ".cu", ".c"))]
    options = spec.get("compile_options") or {}
    flags = ", ".join(
        f"{argument}={list(options[key])!r}"
        for argument, key in (("extra_cflags", "cflags"), ("extra_cuda_cflags", "cuda_cflags"),
                              ("extra_ldflags", "ld_flags"))
        if options.get(key)
    )  # fmt: skip
    key = "solution_" + content_key(sorted(files.items()), flags)
    if binding == "tvm-ffi":
        hardware = [str(x).lower() for x in spec.get("target_hardware") or ()]
        return _TVM_ENTRY.format(
            cpp=made.literal([f for f in sources if not f.endswith(".cu")]),
            cuda=made.literal([f for f in sources if f.endswith(".cu")]),
            links=_for_cuda(files) or "cuda" in hardware, key=key, function=function, flags=flags,
        )  # fmt: skip
    return _BUILT_ENTRY.format(
        sources_name="cuda_sources" if _for_cuda(files) else "cpp_sources",
        files=made.literal(sources),
        key=key, function=function, flags=flags,
    )  # fmt: skip


def _specs(given: Mapping[str, Any]) -> dict[str, Any]:
    return {n: {"shape": s.get("shape"), "dtype": str(s["dtype"])} for n, s in given.items()}
