"""The emulator beside what an H200 gave for the same inputs, one case per instruction form."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC compiles the kernels")

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import ptx_microtests as micro
from ptx_compare import compare

STORED = json.loads((Path(__file__).parent / "fixtures" / "h200-ptx.json").read_text())


CASES = {case.name: case for case in micro.cases()}


def gpu(name: str) -> Any:
    return micro.decoded(STORED["outputs"][name], CASES[name].dtype)


def test_every_case_was_run_on_the_gpu() -> None:
    assert STORED["outputs"].keys() == CASES.keys()
    assert not STORED["failed"]


@pytest.mark.parametrize("name", CASES)
def test_the_emulator_gives_what_the_gpu_gave(name: str) -> None:
    row = compare(CASES[name], micro.emulated(CASES[name]), gpu(name))
    assert row.right, row
    assert row.elements - row.open >= min(100, row.elements), row
    assert bool(row.why) == bool(row.open)


@pytest.mark.parametrize("name", ["rem.s32", "rem.u32", "fma.rn.f16x2", "cvt.rn.f16.f32"])
def test_what_the_isa_leaves_open_has_the_gpus_bits_too(name: str) -> None:
    row = compare(CASES[name], micro.emulated(CASES[name]), gpu(name))
    assert 0 < row.open == row.open_same


@pytest.mark.parametrize("name", ["shl.b32", "add.rn.f16", "fma.rn.bf16x2", "tanh.approx.f32"])
def test_the_comparison_sees_one_wrong_element(name: str) -> None:
    case, want = CASES[name], gpu(name)
    got = want.copy()
    bits = got.view(np.uint16)
    wrong = 0x7FFF if case.halves else 0x1234
    compared = np.flatnonzero((bits[1::2] & 0x7F80) < 0x7C00) * 2 + 1  # upper halves of numbers
    bits[compared[0]] = bits[compared[0]] ^ wrong if not case.halves else wrong
    row = compare(case, got, want)
    assert row.differ == 1 and not row.right
    assert compare(case, want, want).right


def test_only_division_by_zero_is_masked() -> None:
    masked = {name for name, case in CASES.items() if case.open is not None}
    assert masked == {"div.s32", "div.u32", "rem.s32", "rem.u32"}
    case = dataclasses.replace(CASES["rem.s32"], open=None)
    got = gpu("rem.s32").copy()
    zero = case.arrays()[0][1] == 0
    assert zero.sum() == 1
    got[zero] ^= 1
    assert not compare(case, got, gpu("rem.s32")).right
    assert compare(CASES["rem.s32"], got, gpu("rem.s32")).right
