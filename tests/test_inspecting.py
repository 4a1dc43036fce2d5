"""`kernelproof inspect` from end to end, on what is shipped and on files, without a GPU."""

from __future__ import annotations

import base64
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from kernelproof import candidate, findings, inspecting, problem, watching
from kernelproof.ahead import Ahead
from kernelproof.build.compiler import nvcc_path
from kernelproof.errors import CandidateCrash, UnsupportedError, UsageError
from kernelproof.inspect import capture, cubin, tools
from kernelproof.inspect import compile as compiling
from kernelproof.inspect.devices import find
from kernelproof.inspecting import Wish, _module, inspect, told
from kernelproof.types import Finding, Inspection
from kernelproof.worker.child import Host

ROOT = Path(__file__).parents[1]
KERNELS = ROOT / "tests" / "emulate" / "kernels"
SHIPPED = {n: f for n, f in problem.shipped_operators().items() if (f / "cuda.py").is_file()}
# Fields of a kernel that outside tools rely on.
CONTRACT = {"name", "registers", "spill_stores", "spill_loads", "shared_bytes", "stack_bytes",
            "occupancy", "limiter"}  # fmt: skip


def nvrtc() -> None:
    try:
        compiling.nvrtc_name()
    except UnsupportedError as error:
        pytest.skip(error.message)


def run(where: str, **wish: Any) -> Inspection:
    nvrtc()
    return inspect(where, Wish(**wish))


@pytest.mark.parametrize("operator", SHIPPED)
def test_shipped_kernels(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nvrtc()
    seen: list[dict[str, Any]] = []
    from kernelproof.subject import CandidateProcess

    answer = CandidateProcess.captured

    def captured(self: Any, *args: Any) -> Any:
        seen.append(answer(self, *args))
        return seen[-1]

    monkeypatch.setattr(CandidateProcess, "captured", captured)
    found = run(f"{operator}/cuda", gpu="h200")
    assert found.kernels and found.notes == ()
    for kernel in found.kernels:
        assert kernel.launch is not None and kernel.occupancy and kernel.limiter
        assert kernel.compiler.startswith("NVRTC")
        assert (kernel.instructions is None) == (tools.find("nvdisasm") is None)
        # A shipped kernel neither spills nor keeps arrays in memory.
        assert (kernel.spill_stores, kernel.spill_loads, kernel.stack_bytes) == (0, 0, 0)
        assert not any("cannot launch" in s or "double" in s for s in kernel.sentences)
    for module in seen[0]["modules"]:
        told = compiling.verbose(module["said"])
        for read in cubin.read(base64.b64decode(module["cubin"])).kernels:
            figures = told[read.symbol]
            assert figures["registers"] == read.registers
            assert (figures["shared"], figures["barriers"]) == (read.shared, read.barriers)
            assert figures["spill_stores"] == read.spill_stores


def test_the_command_prints_one_object_that_tools_rely_on(run_cli: Any) -> None:
    nvrtc()
    done = run_cli("inspect", "mla_kv/cuda", "--gpu", "b200", "--json")
    assert done.returncode == 0, done.stderr
    body = json.loads(done.stdout)
    assert (body["status"], body["gpu"], body["arch"]) == ("pass", "NVIDIA B200", "sm_100a")
    assert set(body["kernels"][0]) >= CONTRACT


def test_text_for_people() -> None:
    nvrtc()
    text = told("mla_kv/cuda", Wish(gpu="a100", case="odd"), as_json=False)
    assert "on NVIDIA A100 (sm_80, 108 multiprocessors), case odd" in text
    assert "registers, spills 0 B stored" in text and "limited by" in text


def test_a_kernel_that_does_not_compile_shows_the_compilers_lines(
    run_cli: Any, tmp_path: Path
) -> None:
    nvrtc()
    broken = str(tmp_path / "broken.cu")
    Path(broken).write_text("__global__ void f() { x = 1; }")
    how = ("inspect", broken, "--gpu", "h200", "--compiler", "nvrtc")
    done = run_cli(*how)
    assert done.returncode == 1 and "error: identifier" in done.stderr
    body = json.loads(run_cli(*how, "--json").stdout)
    assert body["status"] == "compile_error" and "error: identifier" in body["detail"]


CANDIDATE = """
import torch.nn as nn
from kernelproof.cuda import Kernel

twice = Kernel('extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }', "twice")

class ModelNew(nn.Module):
    def forward(self, x):
        y = x.clone()
        for _ in range(3):
            twice(y, grid=2, block=64)
        twice(y, grid=(4, 5), block=(32, 2), shared=60000)
        return y
"""
PROBLEM = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x

def get_inputs():
    return [torch.ones(128)]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "kernels.py").write_text(CANDIDATE)
    (tmp_path / "same.py").write_text(PROBLEM)
    return tmp_path


def test_without_a_problem_kernels_have_no_launch(folder: Path) -> None:
    found = run(str(folder / "kernels.py"), gpu="h200")
    (kernel,) = found.kernels
    assert (kernel.name, kernel.launch, kernel.occupancy) == ("twice", None, None)
    assert "--problem" in found.notes[0]


def test_launches_are_counted_and_the_largest_is_shown(folder: Path) -> None:
    found = run(str(folder / "kernels.py"), gpu="h200", problem=str(folder / "same.py"))
    (kernel,) = found.kernels
    assert kernel.launch is not None
    assert (kernel.launch.grid, kernel.launch.block) == ((4, 5, 1), (32, 2, 1))
    assert (kernel.launch.shared, kernel.launch.dtypes) == (60000, ("float32",))
    assert kernel.limiter == "shared memory" and kernel.blocks_per_multiprocessor == 3
    assert any("20 for 132 multiprocessors" in s for s in kernel.sentences)


def test_a_name_that_begins_with_a_problems_is_called_with_its_inputs(tmp_path: Path) -> None:
    source = ROOT / "tests" / "candidates" / "right" / "gated_recurrence__cuda_nvrtc"
    shutil.copytree(source, tmp_path / "gated_recurrence__mine")
    found = run(str(tmp_path / "gated_recurrence__mine"), gpu="h200")
    assert found.case == "founding" and found.kernels[0].launch is not None


@pytest.mark.parametrize(
    ("where", "wish", "words"),
    [
        ("mla_kv/cpu", {}, "cpp-c code without kernels of its own for a GPU"),
        ("tests/candidates/gpu/rms_norm__triton.py", {"problem": None}, "triton"),
    ],
)
def test_what_has_no_kernels_here_is_unsupported(where: str, wish: Any, words: str) -> None:
    try:
        import triton  # noqa: F401
    except ImportError:
        with pytest.raises(UnsupportedError, match=words):
            inspect(str(ROOT / where) if "." in where else where, Wish(gpu="h200", **wish))


@pytest.mark.parametrize(
    ("where", "wish", "words"),
    [
        ("nowhere.cu", {}, "no file 'nowhere.cu'"),
        ("mla_kv/cuda", {"gpu": "v100"}, "no GPU 'v100'"),
        ("mla_kv/cuda", {"case": "huge"}, "no case 'huge'; it has founding"),
        ("mla_kv/nothing", {}, "no candidate"),
        ("README.md", {"record": Path("README.md")}, "no kernelproof records"),
        (str(KERNELS / "scan.cu"), {"sanitize": True}, "race"),
        (str(KERNELS / "scan.cu"), {"compiler": "icc"}, "no compiler 'icc'"),
    ],
)
def test_bad_requests(where: str, wish: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(UsageError, match=words):
        inspect(where, Wish(**wish))


def test_tools_without_a_gpu() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(UnsupportedError, match="--sanitize runs the candidate on an NVIDIA GPU"):
        run("mla_kv/cuda", sanitize=True)


def test_a_file_with_its_launch(tmp_path: Path) -> None:
    source = tmp_path / "block_sum.cu"
    text = (KERNELS / "block_sum.cu").read_text()
    source.write_text("// launch: block_sum<<<3, 128>>>(f32[300], out f32[3], 300)\n" + text)
    found = run(str(source), gpu="h200", compiler="nvrtc")
    (kernel,) = found.kernels
    assert kernel.launch is not None and kernel.launch.block == (128, 1, 1)
    assert kernel.launch.dtypes == ("float32",) and found.notes == ()
    given = run(str(source), gpu="h200", compiler="nvrtc", launches=("block_sum<<<500, 64>>>()",))
    assert given.kernels[0].launch is not None and given.kernels[0].launch.grid == (500, 1, 1)
    code = compiling.source_file(source, "sm_80", "nvrtc").cubin
    (tmp_path / "block_sum.cubin").write_bytes(code)
    read = run(str(tmp_path / "block_sum.cubin"))
    assert (read.arch, read.kernels[0].symbol) == ("sm_80", "block_sum")
    with pytest.raises(UsageError, match="no kernel 'other' to launch; there are block_sum"):
        run(str(source), compiler="nvrtc", launches=("other<<<1, 32>>>()",))


def test_templates_need_an_instance(tmp_path: Path) -> None:
    path = tmp_path / "scale.cu"
    path.write_text("template <class T, int N> __global__ void scale(T* x) { *x *= N; }\n")
    with pytest.raises(UnsupportedError, match="--kernel 'scale<float, 4>'"):
        run(str(path), gpu="h200", compiler="nvrtc")
    found = run(str(path), gpu="h200", kernels=("scale<float, 3>",))
    assert found.kernels[0].name == "scale<float, 3>"
    launched = run(str(path), gpu="h200", launches=("scale<double, 2><<<9, 64>>>(f64[1])",))
    assert launched.kernels[0].launch is not None
    assert launched.kernels[0].launch.dtypes == ("float64",)


def test_ptx_needs_ptxas() -> None:
    path = str(ROOT / "tests" / "emulate" / "triton_ptx" / "matmul.ptx")
    if tools.find("ptxas") is None:
        with pytest.raises(UnsupportedError, match="needs ptxas"):
            inspect(path, Wish(gpu="h200"))
    else:
        (kernel,) = inspect(path, Wish(gpu="h200")).kernels
        assert kernel.name == "matmul" and kernel.max_threads == 128 and kernel.occupancy


INLINE = """
from torch.utils.cpp_extension import load_inline

made = load_inline("ext", "void f();", cuda_sources=["__global__ void k() {}"], functions=["f"],
                   extra_cuda_cflags=["-O1"])
"""


def test_sources_of_load_inline_are_taken_without_building(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inline.py").write_text(INLINE)
    asked = []

    def inline(sources: Any, arch: str, options: Any) -> Any:
        asked.append((sources, arch, options))
        return compiling.Compiled(b"code", "nvcc 13.0", "")

    monkeypatch.setattr(compiling, "inline", inline)
    found = candidate.load(tmp_path / "inline.py")
    request = {"gpu": "h200", "multiprocessors": 132, "path": found.path, "language": "pytorch"}
    answer = capture.capture(Host(), request, None)
    assert asked == [(["__global__ void k() {}"], "sm_90a", ["-O1"])]
    assert base64.b64decode(answer["modules"][0]["cubin"]) == b"code"


@pytest.mark.slow
def test_a_stable_abi_candidate_is_compiled_by_nvcc() -> None:
    if nvcc_path() is None:
        pytest.skip("no nvcc")
    found = run(str(ROOT / "tests/candidates/gpu/cumsum__cuda_stable"), gpu="h200")
    (kernel,) = found.kernels
    assert kernel.name == "scan_rows" and kernel.compiler.startswith("nvcc")
    assert "launches its kernels in C++" in found.notes[0]


@pytest.mark.parametrize("module", [{}, {"cubin": 3}, {"cubin": "", "symbols": None}])
def test_a_workers_nonsense_is_a_crash(module: Any) -> None:
    with pytest.raises(CandidateCrash, match="nonsense"):
        _module(module, find("h200"))


def test_what_a_profiler_saw_is_merged(folder: Path) -> None:
    found = run(str(folder / "kernels.py"), gpu="h200")
    shape = {"grid": [300, 1, 1], "block": [64, 1, 1], "shared": 128}
    ran = [
        {"name": "twice(float*)", "seconds": 2e-6, "count": 3, **shape},
        {"name": "void at::native::copy<4>(int)", "seconds": 1e-6, "count": 1, **shape},
    ]
    merged = watching.merged(found, find("h200"), ran)
    (kernel,) = merged.kernels
    assert kernel.seconds == pytest.approx(6e-6)
    assert kernel.launch is not None and kernel.launch.grid == (300, 1, 1) and kernel.occupancy
    assert merged.notes[-1] == "also ran: at::native::copy<4>, 1.00 us of a call"


def test_what_a_tool_finds_is_part_of_the_inspection_in_a_record(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvrtc()
    found = Finding(tool="memcheck", kind="Invalid __global__ read of size 4 bytes", count=3)

    def sanitize(request: Path, tool: str, timeout: float) -> tuple[list[Finding], str]:
        path, language, payload = pickle.loads(request.read_bytes())
        assert Path(path).is_relative_to(folder) and language == "cuda-nvrtc" and len(payload) == 3
        return [found] if tool == "memcheck" else [], "1 error" if tool == "memcheck" else "0"

    monkeypatch.setattr(watching.watch, "sanitize", sanitize)
    monkeypatch.setattr(watching.watch, "count", lambda *_: {"other": {"dram": 1.0}})
    judged = candidate.load(folder / "kernels.py")
    reference = problem.load(folder / "same.py")
    with Ahead("cpu", many=False) as ahead:
        wanted = inspecting.beside_check(
            judged, reference, reference.problem.cases[0], ahead, sanitize=True, ncu=True
        )
        assert wanted is not None
        inspection = wanted(None)
    assert inspection.findings == (found,)
    assert inspection.tools["memcheck"] == "1 error"
    assert inspection.tools["ncu"] == "1 kernel counted, 0 of them the candidate's"
    check = findings._sanitized(inspection)
    assert check.outcome == "note" and "Invalid __global__ read" in check.message
    clean = inspection.model_copy(update={"findings": ()})
    assert findings._sanitized(clean).outcome == "pass"


def test_counters_join_their_kernel_by_its_symbol(monkeypatch: pytest.MonkeyPatch) -> None:
    nvrtc()
    static = run("mla_kv/cuda", gpu="h200")
    symbol = static.kernels[0].symbol
    counters = {symbol: {"dram__bytes_read.sum": 4096.0}, "of torch": {}}
    monkeypatch.setattr(watching.watch, "count", lambda *_: dict(counters))
    counted = watching._counted(static, Path("request"))
    assert counted.kernels[0].counters == counters[symbol]
    assert not any(kernel.counters for kernel in counted.kernels[1:])
    assert counted.tools["ncu"] == "2 kernels counted, 1 of them the candidate's"
