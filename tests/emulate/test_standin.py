"""Candidates for a GPU on a machine without one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC compiles the kernels")

from kernelproof.cuda import Kernel
from kernelproof.emulate.standin import Recorder, standing_in
from kernelproof.pipeline import Options, judge
from kernelproof.tensor_map import TensorMap

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import ptx_tensor

TRITON = Path(__file__).parents[1] / "candidates" / "gpu"
COPY = """
extern "C" __global__ void copy(const float* x, float* y, int n) {
  if (threadIdx.x < n) y[threadIdx.x] = x[threadIdx.x];
}
"""


def test_torch_answers_as_if_there_were_a_gpu_and_only_inside() -> None:
    before = torch.cuda.is_available()
    x = torch.ones(3)
    with standing_in(Recorder()):
        assert x.is_cuda and torch.cuda.is_available()
        assert torch.cuda.get_device_capability() == (8, 0)
        assert torch.empty(2, device="cuda").device.type == "cpu"
        assert x.to("cuda").cuda().device.type == "cpu"
    assert not x.is_cuda
    assert torch.cuda.is_available() == before


def test_reading_new_memory_is_found_and_what_was_written_is_not() -> None:
    kernel = Kernel(COPY, "copy")
    recorder = Recorder()
    with standing_in(recorder):
        x = torch.empty(8)
        y = torch.empty(8)
        x[:5] = 1
        kernel(x, y, 5, grid=1, block=32)
        kernel(y, x, 5, grid=1, block=32)
        assert not any(r.findings for r in recorder.results)
        kernel(y, x, 8, grid=1, block=32)
    (found,) = recorder.taken()[-1].errors
    assert found.kind == "uninitialised" and "reads x at byte 20" in found.message
    assert recorder.taken() == []


def test_a_tensor_that_was_left_on_the_cpu_is_told() -> None:
    kernel = Kernel(COPY, "copy")
    given = torch.ones(8)
    with standing_in(Recorder(apart=True)):
        made = [
            torch.empty(8), torch.zeros(8), torch.tensor([1.0] * 8),
            torch.full((8,), 2.0, device="cpu"), torch.zeros(16)[4:12],
        ]  # fmt: skip
        for host in made:
            with pytest.raises(TypeError, match="argument 1 of the kernel is a tensor on cpu"):
                kernel(given, host, 8, grid=1, block=32)
            with pytest.raises(TypeError, match="argument 0 of the kernel is a tensor on cpu"):
                kernel(host, given.clone(), 8, grid=1, block=32)
        fine = [
            torch.empty(8, device=given.device), torch.zeros(8, device="cuda:0"),
            torch.zeros(8).cuda(), torch.zeros(8).to("cuda"), torch.zeros(8).to(given.device),
            torch.zeros_like(given), given.new_empty(8),
        ]  # fmt: skip
        with torch.device("cuda"):
            fine.append(torch.empty(8))
        for own in fine:
            kernel(given, own, 8, grid=1, block=32)
            assert bool((own == 1).all())


def test_weights_go_where_their_module_goes() -> None:
    kernel = Kernel(COPY, "copy")
    recorder = Recorder(apart=True)
    with standing_in(recorder):
        module = torch.nn.Linear(8, 1)
        module.register_buffer("kept", torch.ones(8))
        module.loose = torch.ones(8)
        recorder.moved(module.to("cuda"))
        kernel(module.kept, module.weight, 8, grid=1, block=32)
        with pytest.raises(TypeError, match="argument 0"):
            kernel(module.loose, module.weight, 8, grid=1, block=32)


def test_tensor_maps_and_clusters_of_kernels() -> None:
    case = ptx_tensor.tile("load", "f2", (160, 40), (32, 16), (16, 3), 64)
    pairs = next(c for c in ptx_tensor.clusters() if c.name == "ld.shared::cluster")
    x = torch.arange(40 * 160).reshape(40, 160).half()
    recorder = Recorder(hopper=True)
    with standing_in(recorder):
        assert torch.cuda.get_device_capability() == (9, 0)
        rows, out = TensorMap(x, (160, 40), (320,), (32, 16), 64), torch.empty(16, 32).half()
        Kernel(case.source, "t")(x, out, rows, grid=1, block=128)
        numbers, swapped = torch.arange(256, dtype=torch.int32), torch.empty(256).int()
        Kernel(pairs.source, "t")(numbers, swapped, grid=2, block=128, cluster=2)
    assert not any(r.findings for r in recorder.taken())
    assert torch.equal(out[0], x[3, 16:48])  # the first row is not swizzled
    assert torch.equal(swapped.reshape(2, 128), numbers.reshape(2, 128).flip(0))


@pytest.mark.parametrize(
    ("source", "capability"), [('asm volatile("wgmma.fence.sync.aligned;");', 9), ("", 8)]
)
def test_a_candidate_meets_the_gpu_that_it_is_for(
    source: str, capability: int, tmp_path: Path
) -> None:
    (tmp_path / "candidate.py").write_text("")
    (tmp_path / "kernel.cu").write_text(source)
    recorder = Recorder()
    recorder.prepare("cuda", tmp_path / "candidate.py")
    assert recorder.properties.major == capability


@pytest.mark.parametrize(
    ("name", "status"), [("rms_norm__triton.py", "pass"), ("rms_norm__triton_no_mask.py", "wrong")]
)
def test_triton_candidates(name: str, status: str) -> None:
    pytest.importorskip("triton", reason="compiles the candidate")
    options = Options(device="cpu", seed=1, cases=("odd", "fp16"), level="quick")
    record = judge("rms_norm", TRITON / name, options=options)
    assert record.status == status, record.verdict.message
    assert record.verdict.evidence == "emulated"


def test_a_triton_autotuner_takes_one_of_its_configurations_after_another(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="compiles the candidate")
    text = (TRITON / "rms_norm__triton.py").read_text()
    # Imported in one line with others, as some write it.
    text = text.replace("import torch.nn as nn\nimport triton\n", "import torch.nn as nn, triton\n")
    configs = "[triton.Config({}, num_warps=2), triton.Config({}, num_warps=CONFIGURED)]"
    tuned = f'@triton.autotune(configs={configs}, key=["columns"])\n@triton.jit'
    text = text.replace("@triton.jit", tuned)
    options = Options(device="cpu", seed=1, cases=("odd", "fp16"), level="quick")
    (tmp_path / "tuned.py").write_text(text.replace("CONFIGURED", "8"))
    record = judge("rms_norm", tmp_path / "tuned.py", options=options)
    assert record.status == "pass", record.verdict.detail
    assert record.verdict.evidence == "emulated"
    # Its second set of keys meets the second configuration, which cannot be.
    (tmp_path / "untuned.py").write_text(text.replace("CONFIGURED", "3"))
    record = judge("rms_norm", tmp_path / "untuned.py", options=options)
    assert record.status != "pass"
