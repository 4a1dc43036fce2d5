"""Notes of bank conflicts and uncoalesced access: one kernel with each, one without."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC compiles the kernels")

from kernelproof import emulate
from kernelproof.emulate import commands, traffic
from kernelproof.emulate.api import Result

TRANSPOSE = """
extern "C" __global__ void t(const float* x, float* y) {
  __shared__ float tile[32][WIDTH];
  tile[threadIdx.y][threadIdx.x] = x[32 * threadIdx.y + threadIdx.x];
  __syncthreads();
  y[32 * threadIdx.y + threadIdx.x] = tile[threadIdx.x][threadIdx.y];
}
"""

COPY = """
extern "C" __global__ void t(const float* x, float* y) {
  y[threadIdx.x] = x[STEP * threadIdx.x];
}
"""


def transposed(width: int, wanted: bool = True) -> Result:
    x = np.arange(1024, dtype=np.float32)
    y = np.zeros_like(x)
    source = TRANSPOSE.replace("WIDTH", str(width))
    result = emulate.launch(source, "t", 1, (32, 32), [x, y], traffic=wanted)
    assert (y.reshape(32, 32) == x.reshape(32, 32).T).all()
    return result


def test_a_column_of_a_tile_of_32_lies_in_one_bank() -> None:
    (note,) = transposed(32).findings
    assert (note.kind, note.severity, note.line, note.count) == ("bank conflict", "note", 6, 32)
    assert "loads of 32 warps take 1024 passes" in note.message
    assert "where 32 would do, at most 32 in one" in note.message


def test_a_padded_tile_has_no_conflict() -> None:
    assert transposed(33).findings == ()


def test_nothing_is_noted_unless_asked_for() -> None:
    assert transposed(32, wanted=False).findings == ()


def copied(step: int) -> Result:
    x, y = np.arange(64 * step, dtype=np.float32), np.zeros(64, np.float32)
    result = emulate.launch(COPY.replace("STEP", str(step)), "t", 1, 64, [x, y], traffic=True)
    assert (y == x[::step]).all()
    return result


def test_a_stride_of_eight_floats_moves_a_sector_for_each() -> None:
    (note,) = copied(8).findings
    assert (note.kind, note.severity, note.line, note.count) == ("uncoalesced", "note", 3, 2)
    assert "loads of 2 warps take 64 sectors of 32 bytes where 8 would do" in note.message
    assert "at most 32 in one" in note.message


@pytest.mark.parametrize("step", [1, 2])  # every second float: half of the bytes are of use
def test_neighbours_are_coalesced(step: int) -> None:
    assert copied(step).findings == ()


def test_one_word_for_all_lanes_is_one_pass_and_one_sector() -> None:
    lanes, address = np.arange(32), np.full(32, 64)
    for made in (traffic._passes, traffic._sectors):
        warps, moved, fewest = made(address, lanes, 4)
        assert (warps, moved.tolist(), fewest.tolist()) == (1, [1], [1])


def test_sixteen_bytes_a_lane_go_by_quarter_warps() -> None:
    lanes = np.arange(64)
    warps, moved, fewest = traffic._passes(16 * lanes, lanes, 16)
    assert (warps, moved.tolist(), fewest.tolist()) == (2, [4, 4], [4, 4])
    # Rows of 128 bytes, read by ldmatrix without swizzle: eight lanes meet in four banks.
    _, moved, fewest = traffic._passes(128 * lanes[:32], lanes[:32], 16)
    assert (moved.tolist(), fewest.tolist()) == ([32], [4])


def test_bytes_of_one_word_are_no_conflict() -> None:
    lanes = np.arange(32)
    _, moved, _ = traffic._passes(lanes, lanes, 1)
    assert moved.tolist() == [1]


def test_the_command_takes_it(tmp_path: Path) -> None:
    file = tmp_path / "copy.cu"
    file.write_text("// launch: t<<<1, 64>>>(f32[512], out f32[64])\n" + COPY.replace("STEP", "8"))
    (plain,) = commands.race(file, ())
    (noted,) = commands.race(file, (), traffic=True)
    assert plain.findings == ()
    assert [f.kind for f in noted.findings] == ["uncoalesced"]
    assert "copy.cu:4: uncoalesced: loads of 2 warps" in commands.text(file, [noted])
