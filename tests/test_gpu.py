"""The judge on GPU code: each candidate gets its status, without a GPU `unsupported`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from test_candidates import FOLDER, constant, fixtures

from kernelproof import problem
from kernelproof.candidate import load
from kernelproof.cuda import Kernel
from kernelproof.pipeline import Options, judge
from kernelproof.problem import shipped_operators

NVRTC = FOLDER / "right" / "gated_recurrence__cuda_nvrtc"
ON_GPU = [*fixtures("gpu"), *[p for p in fixtures("wrong") if p.name.endswith("key_gate.py")]]


QUICK = {"level": "quick", "seeds": 1, "baselines": ("eager",), "rounds": 10, "seconds": 1.0}


def judged(path: Path, **options):
    timed = bool(constant(path, "TIMED"))
    given = {"seeds": 2, "seed": 7, **(QUICK if timed else {}), **options}
    return judge(path.name.split("__")[0], path, timed=timed, options=Options(**given))


def needs_a_gpu(path: Path) -> bool:
    """Whether a fixture's launches cannot be emulated here."""
    return load(path).language == "triton" and find_spec("triton") is None


@pytest.mark.parametrize(
    "path", [p for p in fixtures("gpu") if needs_a_gpu(p)], ids=lambda p: p.stem
)
def test_gpu_code_is_unsupported_without_a_gpu(path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    record = judged(path)
    assert record.status == "unsupported"
    assert "triton" in record.verdict.message


@pytest.mark.gpu
@pytest.mark.parametrize("path", ON_GPU, ids=lambda p: p.stem)
def test_gpu_candidate_gets_its_status(path: Path) -> None:
    expected = constant(path, "EXPECT")
    record = judged(path, device="cuda", call_timeout=5.0 if expected == "timeout" else 60.0)
    said = f"{record.verdict.message}\n{record.verdict.detail}"
    assert record.status == expected, said
    assert record.verdict.evidence == "device"
    for words in constant(path, "SAYS") or ():  # type: ignore[attr-defined]
        assert words in said


@pytest.mark.gpu
@pytest.mark.parametrize(
    "path", [p for p in fixtures("gpu") if constant(p, "EXPECT") == "pass"], ids=lambda p: p.stem
)
def test_gpu_candidate_passes_when_it_is_timed(path: Path) -> None:
    """Streams, graphs, new contents at the same addresses: what a timed call meets, a check does
    not."""
    options = Options(device="cuda", **QUICK)
    record = judge(path.name.split("__")[0], path, timed=True, options=options)
    assert record.status == "pass", f"{record.verdict.message}\n{record.verdict.detail}"
    assert record.timing is not None and record.timing.candidate.host is not None


@pytest.mark.gpu
def test_the_nvrtc_candidate_passes_on_a_gpu() -> None:
    # Its state is in shared memory, which the cases with large ones exceed.
    cases = tuple(constant(NVRTC, "ONLY"))  # type: ignore[arg-type]
    record = judge("gated_recurrence", NVRTC, options=Options(cases=cases))
    assert record.status == "pass", record.verdict.message


@pytest.mark.gpu
@pytest.mark.parametrize("name", sorted(shipped_operators()))
def test_shipped_cuda_kernels_pass(name: str) -> None:
    record = judge(name, "cuda", options=Options(seeds=3))
    assert record.status == "pass", record.verdict.message
    assert record.verdict.looks_like.startswith("fp32")


@pytest.mark.gpu
def test_tf32_is_named_on_a_gpu(tmp_path: Path) -> None:
    candidate = tmp_path / "tf32.py"
    candidate.write_text(
        "import torch\nfrom torch import nn\nclass ModelNew(nn.Module):\n"
        "    def __init__(self, kv_heads):\n        super().__init__()\n        self.h = kv_heads\n"
        "    def forward(self, x, d, k, v):\n"
        "        torch.backends.cuda.matmul.allow_tf32 = True\n"
        "        b, s, _ = x.shape\n        l = x.reshape(b * s, -1) @ d\n"
        "        shape = (b, s, self.h, k.shape[1] // self.h)\n"
        "        return torch.stack(((l @ k).view(shape), (l @ v).view(shape)), dim=2)\n"
    )
    record = judge("mla_kv", candidate, options=Options(seeds=1, cases=("founding",)))
    assert record.status == "wrong"
    assert "tf32" in record.verdict.looks_like


@pytest.mark.gpu
def test_timing_on_a_gpu_has_all_clocks_and_a_floor() -> None:
    baselines = ("eager", "eager (tf32)", "CUDA graph of eager")
    options = Options(
        seeds=1, cases=("founding",), baselines=baselines, rounds=10, seconds=4.0, vs=("cuda",)
    )
    timing = judge("mla_kv", "cuda", timed=True, options=options).timing
    assert timing is not None and timing.floor is not None
    assert timing.candidate.device is not None and timing.candidate.host is not None
    assert timing.floor.device is not None
    assert timing.floor.device.median < timing.candidate.device.median
    assert {r.clock for r in timing.ratios} == {"device", "host", "cold"}
    mine = timing.candidate
    assert mine.cold is not None and mine.single is not None and mine.warm is None
    # Neither weights nor inputs are in L2, and a launch takes time.
    assert mine.cold.median > mine.device.median < mine.single.median
    times = {b.name: b for b in timing.baselines}
    assert not any(b.problem for b in timing.baselines), [b.problem for b in timing.baselines]
    assert times["CUDA graph of eager"].host.median < times["eager"].host.median
    assert times["vs cuda"].device is not None
    assert not any("does not compute the same" in note for note in timing.notes)


@pytest.mark.gpu
def test_a_kernel_on_the_default_stream_is_noted() -> None:
    path = FOLDER / "gpu" / "axpby__cuda_default_stream.py"
    checks = {c.name: c for c in judge("axpby", path).verdict.checks}
    assert checks["current stream"].outcome == "note"
    other = judge("axpby", FOLDER / "gpu" / "axpby__cuda_inline.py", options=Options(seeds=1))
    assert {c.name: c.outcome for c in other.verdict.checks}["current stream"] == "pass"


@pytest.mark.gpu
def test_a_launch_may_be_the_first_thing_that_a_thread_does() -> None:
    text = 'extern "C" __global__ void one(float* x) { x[threadIdx.x] = 1.0f; }'
    loaded, fresh = Kernel(text, "one"), Kernel(text, "one")
    x = torch.zeros(3, 32, device="cuda")
    how = (1, 32, 0, None, False, False, True)
    loaded(x[0], grid=1, block=32)
    jobs = [lambda: fresh(x[1], grid=1, block=32), lambda: loaded.again(0, (x[2],), how)]
    for job in jobs:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(job).result()
    assert bool((x == 1).all())


@pytest.mark.gpu
def test_gradients_of_a_shipped_kernel_are_right_on_a_gpu() -> None:
    for name in ("gated_recurrence", "gated_recurrence_forms"):
        case = problem.load(name).problem.cases[0].name
        verdict = judge(name, "cuda", options=Options(seeds=1, cases=(case,))).verdict
        checks = {c.name: c for c in verdict.checks}
        assert checks["gradients"].outcome == "pass", checks["gradients"].message
