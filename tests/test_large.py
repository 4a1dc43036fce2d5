"""Cases past 2^31 elements: which they are, and that they are judged; the limit is lower here."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernelproof import problem
from kernelproof.pipeline import Options, judge

SIZED = """
import torch
rows = 8
columns = 6
class Model(torch.nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(columns))
    def forward(self, x): return x * self.weight
def get_inputs(): return [torch.randn(rows, columns)]
def get_init_inputs(): return [columns]
"""
# Right as long as an offset has ten bits.
CANDIDATE = """
import torch
class ModelNew(torch.nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(columns))
    def forward(self, x):
        y = x * self.weight
        y.view(-1)[{wrap}:] = 0
        return y
"""


@pytest.fixture
def lower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problem, "_LARGE_ELEMENTS", 1 << 10)


def test_a_size_constant_grows_past_the_limit(tmp_path: Path, lower: None) -> None:
    path = tmp_path / "scale.py"
    path.write_text(SIZED)
    ((case, sizes, reference),) = problem.load(path).large()
    assert sizes == {"rows": 8 * 22}  # not columns, which the weights have too
    (x,) = reference.inputs(case)
    assert 1 << 10 < x.numel() < 1 << 11


def test_declared_large_cases_are_taken(tmp_path: Path) -> None:
    (found, _, reference), *others = problem.load("mla_kv").large()
    assert found.name == "output_past_2_31" and len(others) == 1
    with torch.device("meta"):
        x, _, up, _ = reference.module.get_inputs(**found.sizes)
    assert x.shape[1] * 2 * up.shape[1] > 1 << 31


@pytest.mark.parametrize(("wrap", "status"), [(1 << 20, "pass"), (1 << 10, "wrong")])
def test_an_offset_that_wraps_is_found_there_only(
    tmp_path: Path, lower: None, wrap: int, status: str
) -> None:
    (tmp_path / "scale.py").write_text(SIZED)
    (tmp_path / "fast.py").write_text(CANDIDATE.format(wrap=wrap))
    files = tmp_path / "scale.py", tmp_path / "fast.py"
    options = Options(level="quick", seed=1)
    assert judge(*files, options=options).status == "pass"
    record = judge(*files, options=Options(level="quick", seed=1, large=True))
    assert record.status == status
    assert record.verdict.runs[-1].variant.sizes


@pytest.mark.gpu
def test_shipped_kernel_past_2_31() -> None:
    options = Options(level="quick", seed=1, cases=("founding",), large=True)
    record = judge("mla_kv", "cuda", options=options)
    assert record.status == "pass", record.verdict.message
    assert [run.case for run in record.verdict.runs[-2:]] == [
        "output_past_2_31",
        "hidden_past_2_31",
    ]


WRAPS = '''
import torch
from kernelproof.cuda import Kernel
SOURCE = r"""
#include <cuda_bf16.h>
extern "C" __global__ void axpby(const __nv_bfloat16* x, const __nv_bfloat16* z, __nv_bfloat16* y,
                                 float alpha, float beta, int valid, int columns, long rows) {
    for (long row = blockIdx.x; row < rows; row += gridDim.x)
        for (int c = threadIdx.x; c < columns; c += blockDim.x) {
            OFFSET i = (OFFSET)row * columns + c;
            float v = __bfloat162float(x[i]);
            if (c < valid) v = alpha * v + beta * __bfloat162float(z[i]);
            y[i] = __float2bfloat16(v);
        }
}
"""
kernel = Kernel(SOURCE.replace("OFFSET", "%s"), "axpby")
class ModelNew(torch.nn.Module):
    def forward(self, x, z, alpha, beta, valid):
        y = torch.empty_like(x)
        kernel(x, z, y, alpha, beta, valid, x.shape[1], x.shape[0], grid=4096, block=256)
        return y
'''


@pytest.mark.gpu
@pytest.mark.parametrize(("offset", "passes"), [("long", True), ("int", False)])
def test_int32_offset_past_2_31(tmp_path: Path, offset: str, passes: bool) -> None:
    path = tmp_path / "axpby.py"
    path.write_text(WRAPS % offset)
    options = Options(level="quick", seed=1, cases=("bf16",), large=True)
    record = judge("axpby", path, options=options)
    assert (record.status == "pass") == passes, record.verdict.message
    assert passes or record.verdict.failing.case == "past_2_31"
