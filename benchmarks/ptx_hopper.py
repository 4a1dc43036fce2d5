"""Micro-tests of the instructions of sm_90a, by groups; `ptx_microtests` runs and compares them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from ptx_case import HEAD, Case, random_words
from ptx_tensor import clusters, tiles
from ptx_wgmma import products, sums, warp_sums


def matrices() -> list[Case]:
    made = []
    for count in (1, 2, 4):
        for trans in ("", ".trans"):
            names = ", ".join(f"%{1 + i}" for i in range(count))
            given = ", ".join(f'"r"(a[32 * {i} + t])' for i in range(count))
            source = f"""{HEAD}
extern "C" __global__ void t(const u32* a, u32* out) {{
  __shared__ __align__(16) u32 s[128];
  const int t = threadIdx.x;
  for (int i = t; i < 128; i += 32) s[i] = 0;
  __syncwarp();
  asm volatile("stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%0], {{{names}}};"
               :: "r"(at(s + 4 * t)), {given} : "memory");
  __syncwarp();
  for (int i = t; i < 128; i += 32) out[i] = s[i];
}}
"""
            name = f"stmatrix.x{count}{trans}"
            made.append(Case(name, source, random_words(128), np.uint32, 128, block=32))
    return made


def conversions() -> list[Case]:
    """Pairs of 8-bit floats, and saturated integers."""
    made = []

    def case(name: str, letters: str, text: str, spread: float = 1.0) -> None:
        types = {"f": "float", "r": "unsigned", "h": "unsigned short"}
        params = ", ".join(f"const {types[k]}* a{i}" for i, k in enumerate(letters[1:]))
        given = ", ".join(f'"{k}"(a{i}[t])' for i, k in enumerate(letters[1:]))
        source = (
            f'extern "C" __global__ void t({params}, {types[letters[0]]}* out) {{\n'
            f"  const int t = threadIdx.x;\n  {types[letters[0]]} o;\n"
            f'  asm volatile("{text}" : "={letters[0]}"(o) : {given});\n  out[t] = o;\n}}\n'
        )

        def inputs(random: np.random.Generator) -> list[Any]:
            arrays = []
            for k in letters[1:]:
                if k == "f":
                    x = random.standard_normal(256) * 2.0 ** random.integers(-16, 17, 256) * spread
                    x[:8] = [0.0, -0.0, np.inf, -np.inf, np.nan, 448, 464, 57344]
                    x[8:40] = random.integers(-300, 300, 32) / 32
                    arrays.append(random.permutation(x.astype(np.float32)))
                elif k == "r":
                    arrays.append(random.integers(0, 1 << 32, 256).astype(np.uint32))
                else:
                    arrays.append((np.arange(256) * 257 ^ 0x5500).astype(np.uint16))
            return arrays

        dtype = {"r": np.uint32, "h": np.uint16}[letters[0]]
        made.append(Case(name, source, inputs, dtype, 256))

    for kind in ("e4m3x2", "e5m2x2"):
        case(f"cvt.rn.satfinite.{kind}.f32", "hff", f"cvt.rn.satfinite.{kind}.f32 %0, %1, %2;")
        case(f"cvt.rn.satfinite.relu.{kind}.f32", "hff",
             f"cvt.rn.satfinite.relu.{kind}.f32 %0, %1, %2;")  # fmt: skip
        case(f"cvt.rn.satfinite.{kind}.f16x2", "hr", f"cvt.rn.satfinite.{kind}.f16x2 %0, %1;")
        case(f"cvt.rn.f16x2.{kind}", "rh", f"cvt.rn.f16x2.{kind} %0, %1;")
    for kind in ("s16", "u16"):
        case(f"cvt.pack.sat.{kind}.s32", "rff", f"{{.reg .s32 x, y; cvt.rzi.s32.f32 x, %1; "
             f"cvt.rzi.s32.f32 y, %2; cvt.pack.sat.{kind}.s32 %0, x, y;}}", 4.0)  # fmt: skip
    for kind in ("s8", "u8"):
        case(f"cvt.pack.sat.{kind}.s32.b32", "rffr", f"{{.reg .s32 x, y; cvt.rzi.s32.f32 x, %1; "
             f"cvt.rzi.s32.f32 y, %2; cvt.pack.sat.{kind}.s32.b32 %0, x, y, %3;}}")  # fmt: skip
    return made


GROUPS: dict[str, Callable[[], list[Case]]] = {
    "wgmma: layouts": products,
    "wgmma: sums": sums,
    "mma: sums": warp_sums,
    "tensor copies": tiles,
    "clusters": clusters,
    "stmatrix": matrices,
    "packed conversions": conversions,
}
