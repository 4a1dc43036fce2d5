"""What a machine without a GPU can tell of the GPU fixtures: that there are enough of them, that
their kernels compile for sm_90, and that the right Triton ones are right in Triton's interpreter
and in the emulator.

`test_gpu.py` runs them all on a GPU.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_candidates import constant, entry, fixtures

from kernelproof import problem
from kernelproof.candidate import load as load_candidate
from kernelproof.cuda import Kernel
from kernelproof.errors import CompileError
from kernelproof.importing import import_file

BY_LANGUAGE: dict[str, list[Path]] = {}
for found in fixtures("gpu"):
    BY_LANGUAGE.setdefault(load_candidate(found).language, []).append(found)
TRITON = BY_LANGUAGE["triton"]
RIGHT_TRITON = [path for path in TRITON if constant(path, "EXPECT") == "pass"]
# One small fp32 case each: the interpreter takes a millisecond per program, and bf16 comes out
# wrong there.
SMALL_CASE = {
    "causal_softmax": "prefix", "cumsum": "odd", "linear_gelu": "one_row", "rms_norm": "odd",
}  # fmt: skip
CODE = """
import json, sys
from pathlib import Path
from kernelproof.pipeline import Options, judge
said = {}
for path, case in json.loads(sys.argv[1]).items():
    options = Options(device="cpu", seeds=1, seed=7, cases=(case,))
    record = judge(Path(path).name.split("__")[0], path, options=options)
    said[path] = [record.status, record.verdict.message, record.verdict.evidence]
print(json.dumps(said))
"""

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="needs triton: pip install 'kernelproof[triton]'",
)


def test_there_are_enough_twins_of_each_kind() -> None:
    languages = Counter({language: len(paths) for language, paths in BY_LANGUAGE.items()})
    statuses = Counter(str(constant(path, "EXPECT")) for path in fixtures("gpu"))
    assert languages.total() >= 42
    assert languages["cuda-nvrtc"] >= 14 and languages["triton"] >= 10
    assert languages["cuda-inline"] >= 2 and languages["cuda-stable"] >= 1
    assert statuses["pass"] >= 10 and statuses["wrong"] >= 16
    assert {"pass", "wrong", "crash", "timeout", "compile_error"} <= set(statuses)
    assert len({path.name.split("__")[0] for path in fixtures("gpu")}) >= 12


@pytest.mark.parametrize("path", BY_LANGUAGE["cuda-nvrtc"], ids=lambda p: p.stem)
def test_cuda_kernels_compile(path: Path) -> None:
    kernels: list[Kernel] = []
    for value in vars(import_file(entry(path), "fixture")).values():
        values = value.values() if isinstance(value, dict) else [value]
        kernels += [kernel for kernel in values if isinstance(kernel, Kernel)]
    assert kernels
    if constant(path, "EXPECT") == "compile_error":
        with pytest.raises(CompileError) as caught:
            kernels[0].compile("sm_90a")
        for words in constant(path, "SAYS") or ():  # type: ignore[attr-defined]
            assert words in caught.value.detail
        return
    for kernel in kernels:
        assert kernel.compile("sm_90a")[:4] == b"\x7fELF"


@needs_triton
@pytest.mark.parametrize("path", TRITON, ids=lambda p: p.stem)
def test_triton_kernels_compile(path: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """As their launches would ask for it, over all cases of the problem."""
    from triton.runtime.jit import JITFunction

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    launches: dict[str, tuple[Any, ...]] = {}

    def note(function: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        signature, constants = signature_of(function, args, kwargs)
        launches.setdefault(json.dumps([function.fn.__name__, signature]), (function, constants))

    monkeypatch.setattr(JITFunction, "run", note)
    reference = problem.load(path.name.split("__")[0])
    module = import_file(path, "fixture")
    for case in reference.problem.cases:
        args, kwargs = reference.init_args(case)
        with torch.no_grad():
            module.ModelNew(*args, **kwargs)(*reference.inputs(case))
    assert launches
    for key, (function, constants) in launches.items():
        assert compiled(function, json.loads(key)[1], constants)[:4] == b"\x7fELF"


def signature_of(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[dict[str, str], dict[str, Any]]:
    """Types and constants of a launch; like Triton, a 1 among the integers is a constant."""
    types = {torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16"}
    types[torch.int64] = "*i64"
    bound = dict(zip(function.arg_names, args, strict=False)) | kwargs
    constexprs = {p.name for p in function.params if p.is_constexpr}
    signature, constants = {}, {}
    for name, value in bound.items():
        if isinstance(value, torch.Tensor):
            signature[name] = types[value.dtype]
        elif name in constexprs or (type(value) is int and value == 1):
            signature[name] = "constexpr"
            constants[name] = value
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
    return signature, constants


def compiled(function: Any, signature: dict[str, str], constants: dict[str, Any]) -> bytes:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(function, signature, constexprs=constants)
    return bytes(triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"])


def said_of(paths: list[Path], **environment: str) -> dict[str, list[str]]:
    """Status, message and evidence of each; in one process: importing torch takes longer than
    judging one of them."""
    asked = {str(path): SMALL_CASE[path.name.split("__")[0]] for path in paths}
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(asked)],
        env=os.environ | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said.keys() == asked.keys()
    return dict(said)


def interpreter_counts_loops() -> bool:
    """Whether Triton's interpreter can take a loop's bound from an argument.

    Up to Triton 3.6 it converts arrays of one element by ``int``, which numpy 2.4 refuses
    (https://github.com/triton-lang/triton/issues/9171).
    """
    text = importlib.util.find_spec("triton.runtime.interpreter")
    assert text is not None and text.origin is not None
    try:
        int(np.ones(1))
    except TypeError:
        return "int(self.handle.data)" not in Path(text.origin).read_text()
    return True


@needs_triton
def test_right_triton_kernels_pass_in_the_interpreter() -> None:
    paths = RIGHT_TRITON
    if not interpreter_counts_loops():
        paths = [path for path in paths if "in range(" not in path.read_text()]
    assert len(paths) >= 2
    said = said_of(paths, TRITON_INTERPRET="1")
    assert {tuple(row[:2]) for row in said.values()} == {("pass", "")}, said


@needs_triton
def test_right_triton_kernels_pass_in_the_emulator() -> None:
    assert len(RIGHT_TRITON) >= 4
    said = said_of(RIGHT_TRITON)
    assert {tuple(row) for row in said.values()} == {("pass", "", "emulated")}, said
