"""Candidates for a GPU get their status without one, where they are quick to emulate."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC compiles the kernels")

sys.path.insert(0, str(Path(__file__).parents[1]))
from test_candidates import FOLDER, constant

from kernelproof.pipeline import Options, judge

QUICK = (
    "axpby__cuda_default_stream", "axpby__cuda_freed_memory", "axpby__cuda_launch_refused",
    "axpby__cuda_nvrtc_error", "axpby__cuda_one_block_too_few", "axpby__illegal_access",
    "cross_entropy__cuda_unzeroed_sum", "groupnorm_silu__cuda_first_batch",
    "layernorm_stats__cuda_block_reduction", "layernorm_stats__cuda_stale_sum",
    "masked_mean__cuda_clamped_edge", "mla_kv__cuda_k_tail", "mla_kv__cuda_split_k",
    "rms_norm__cuda_no_barrier", "rms_norm__cuda_warp_shuffle", "softmax_with_lse__cuda_half_warp",
    "softmax_with_lse__cuda_online",
)  # fmt: skip
# A GPU ends the process here; the emulator reports the access and goes on.
FOUND = {"axpby__illegal_access": "out of bounds"}


@pytest.mark.parametrize("name", QUICK)
def test_a_gpu_candidate_gets_its_status(name: str) -> None:
    path = FOLDER / "gpu" / f"{name}.py"
    options = Options(device="cpu", seed=7, seeds=1, level="quick", max_bytes=100_000)
    record = judge(name.split("__")[0], path, options=options)
    expected = "wrong" if name in FOUND else constant(path, "EXPECT")
    told = "\n".join([record.verdict.message, *(c.message for c in record.verdict.checks)])
    assert record.status == expected, told
    if expected != "compile_error":
        assert record.verdict.evidence == "emulated"
    if name in FOUND:
        assert constant(path, "EXPECT") == "crash" and FOUND[name] in told
