"""Micro-tests of wgmma, and of how tensor cores sum. Operands are images of shared memory that are
filled at random as a whole, so a product is right only if each element comes from its place."""

from __future__ import annotations

from typing import Any

import numpy as np
from ptx_case import HEAD, Case

_K = {"f16": 16, "bf16": 16, "tf32": 8, "s8": 32, "u8": 32, "e4m3": 32, "e5m2": 32}
_BITS = {16: 0, 128: 1, 64: 2, 32: 3}  # of a descriptor, by the bytes of a row of the pattern
SWIZZLES = (16, 32, 64, 128)


def _element_bytes(kind: str) -> int:
    return 32 // _K[kind]


def strides(rows: int, span: int, transposed: bool) -> tuple[int, int, int]:
    """(leading, stride, bytes) of an operand whose patterns lie one behind the other."""
    if not transposed:
        if span == 16:  # 8 x 16 byte cores: two along K, then on along the rows
            return 128, 256, rows // 8 * 256
        return 16, 8 * span, rows // 8 * 8 * span
    if span == 16:
        return rows // 8 * 128, 128, rows // 8 * 256
    groups = -(-rows * 2 // span)
    return 8 * span, groups * 8 * span, 2 * groups * 8 * span


def image(kind: str, nbytes: int, random: np.random.Generator, whole: bool, scale: str = "") -> Any:
    """``nbytes`` of elements: small whole numbers, whose sums are exact in every order, or reals.
    ``scale``: "small" for mostly subnormal ones, "wide" for many magnitudes, "special" for some
    infinities, NaN, and the largest."""
    count = nbytes // _element_bytes(kind)
    if scale:
        return _scaled(kind, count, random, scale)
    if kind in ("e4m3", "e5m2"):
        # All finite patterns for reals; whole numbers from -4 to 4 otherwise.
        codes = {"e4m3": [0, 56, 64, 68, 72], "e5m2": [0, 60, 64, 66, 68]}[kind]
        codes = np.array([*codes, *(c | 128 for c in codes[1:])], np.uint8)
        if not whole:
            codes = np.arange(256, dtype=np.uint8)
            top = 120 if kind == "e5m2" else 126
            codes = codes[(codes & 127) <= top]
        return codes[random.integers(0, len(codes), count)].view(np.uint32)
    if kind in ("s8", "u8"):
        return random.integers(0, 256, count).astype(np.uint8).view(np.uint32)
    values = (
        random.integers(-8, 9, count).astype(np.float32)
        if whole
        else random.standard_normal(count).astype(np.float32)
    )
    if kind == "f16":
        return values.astype(np.float16).view(np.uint32)
    if kind == "bf16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint32)
    return values.view(np.uint32)


def _scaled(kind: str, count: int, random: np.random.Generator, scale: str) -> Any:
    if scale == "small" and kind in ("e4m3", "e5m2"):
        low = 8 if kind == "e4m3" else 4
        codes = random.integers(0, 2 * low, count) | random.integers(0, 2, count) << 7
        return codes.astype(np.uint8).view(np.uint32)
    if kind == "e5m2":
        codes = random.integers(0, 256, count)
        return (
            np.where(random.random(count) < 0.98, codes & 0xBF, codes)
            .astype(np.uint8)
            .view(np.uint32)
        )
    x = random.standard_normal(count)
    if scale == "small":
        x *= 2.0 ** random.integers(-16, -12, count) if kind == "f16" else 2.0**-127
    elif scale == "wide":
        x *= 2.0 ** (
            random.integers(-10, 11, count) if kind == "f16" else random.integers(-40, 41, count)
        )
    else:
        x[random.random(count) < 0.01] = np.inf
        x[random.random(count) < 0.005] = np.nan
        x[random.random(count) < 0.1] = 65504.0 if kind == "f16" else 3e38
    with np.errstate(all="ignore"):
        if kind == "f16":
            return x.astype(np.float16).view(np.uint32)
        x = x.astype(np.float32)
    if kind == "bf16":
        return (x.view(np.uint32) >> 16).astype(np.uint16).view(np.uint32)
    return x.view(np.uint32)


def product(
    d: str, a: str, b: str, n: int = 64, span: int = 128, *, registers: bool = False,
    a_span: int = 0, a_transposed: bool = False, b_transposed: bool = False, negate: bool = False,
    carried: bool = False, whole: bool = True, base: int = 0, step: int = 0, repeats: int = 1,
    scale: str = "",
) -> Case:  # fmt: skip
    """One wgmma (``repeats`` of them, on the same operands). ``step``: bytes by which both
    descriptors start later, along K within the pattern. ``base``: 128-byte rows by which the
    patterns are off from their usual alignment. ``carried``: the accumulators start as numbers."""
    k, a_span = _K[a], a_span or span
    count = n // (4 if d == "f16" else 2)
    letter = "f" if d == "f32" else "r"
    kind = {"f32": "float", "s32": "int", "f16": "u32"}[d]
    la, sa, na = strides(64, a_span, a_transposed)
    lb, sb, nb = strides(n, span, b_transposed)
    na, nb = (-(-x // 1024) * 1024 + 1024 for x in (na, nb))
    first = count + (4 if registers else 1)
    outs = ", ".join(f"%{i}" for i in range(count))
    left = "{" + ", ".join(f"%{count + i}" for i in range(4)) + "}" if registers else f"%{count}"
    flags = ""
    if d != "s32":
        flags = f", {-1 if negate else 1}, 1"
        if a in ("f16", "bf16"):
            flags += ("" if registers else f", {int(a_transposed)}") + f", {int(b_transposed)}"
    text = (
        f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{d}.{a}.{b} {{{outs}}}, {left}, %{first}, p"
        f"{flags};"
    )
    bound = ", ".join(f'"+{letter}"(d[{i}])' for i in range(count))
    given = ", ".join(f'"r"(f[{i}])' for i in range(4)) if registers else '"l"(da)'
    initial = "c[i * 128 + t]" if carried else f"({kind})0"
    constant = f"{'const ' + kind}* c, " if carried else ""
    load = "for (int i = 0; i < 4; ++i) f[i] = a[i * 128 + t];" if registers else ""
    source = f"""{HEAD}
extern "C" __global__ void __launch_bounds__(128) t(const u32* a, const u32* b, {constant}{kind}*
    out) {{
  __shared__ __align__(1024) u32 sa[{na // 4}], sb[{nb // 4}];
  const int t = threadIdx.x;
  for (int i = t; i < {na // 4}; i += 128) sa[i] = a[i];
  for (int i = t; i < {nb // 4}; i += 128) sb[i] = b[i];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  {kind} d[{count}];
  u32 f[4];
  for (int i = 0; i < {count}; ++i) d[i] = {initial};
  {load}
  const u64 da = matrix(at(sa) + {base * 128 + step}, {la}, {sa}, {base if a_span > 32 else 0},
      {_BITS[a_span]});
  const u64 db = matrix(at(sb) + {base * 128 + step}, {lb}, {sb}, {base if span > 32 else 0},
      {_BITS[span]});
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  for (int r = 0; r < {repeats}; ++r)
    asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{first + 1}, 0;\\n{text} }}"
                 : {bound} : {given}, "l"(db), "r"({int(carried)} | r) : "memory");
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int i = 0; i < {count}; ++i) out[i * 128 + t] = d[i];
}}
"""

    def inputs(random: np.random.Generator) -> list[Any]:
        arrays = [image(a, na, random, whole, scale), image(b, nb, random, whole, scale)]
        if carried and d == "f16":
            halves = (
                random.integers(-8, 9, 256 * count)
                if whole
                else random.standard_normal(256 * count)
            )
            arrays.append(halves.astype(np.float16).view(np.uint32))
        elif carried:
            c = (
                random.integers(-8, 9, 128 * count)
                if whole
                else random.standard_normal(128 * count)
            )
            arrays.append(c.astype(np.float32 if d == "f32" else np.int32))
        return arrays

    dtype = {"f32": np.float32, "s32": np.int32, "f16": np.uint32}[d]
    name = (
        f"wgmma.n{n}.{d}.{a}.{b}.{'rs' if registers else f'a{a_span}'}{'t' if a_transposed else ''}"
        f".b{span}{'t' if b_transposed else ''}"
        + "".join(f".{word}" for word, on in (
            ("neg", negate), ("carried", carried), (f"base{base}", base), (f"step{step}", step),
            ("reals", not whole), (f"x{repeats}", repeats > 1), (scale, bool(scale))) if on)
    )  # fmt: skip
    halves = "f16" if d == "f16" else ""
    return Case(name, source, inputs, dtype, 128 * count, block=128, halves=halves)


def products() -> list[Case]:
    """Layouts: exact in every order of summing."""
    f16 = ("f32", "f16", "f16")
    types = [f16, ("f16", "f16", "f16"), ("f32", "bf16", "bf16"), ("f32", "tf32", "tf32")]
    types += [("s32", a, b) for a in ("s8", "u8") for b in ("s8", "u8")]
    types += [("f32", a, b) for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")]
    types += [("f16", "e4m3", "e5m2")]
    made = [product(*ty, span=span) for ty in types[:5] for span in SWIZZLES]
    made += [product(*ty) for ty in types[5:]]
    made += [product(*ty, registers=True, carried=True) for ty in types]
    made += [product(*f16, n=n) for n in (8, 16, 24, 72, 128, 136, 256)]
    made += [product("s32", "s8", "s8", n=n) for n in (8, 24, 128, 192, 256)]
    made += [product("f32", ty, ty, n=n, span=span, b_transposed=True)
             for ty, n in (("f16", 64), ("bf16", 128)) for span in SWIZZLES]  # fmt: skip
    made += [product(*f16, n=128, span=128, registers=True, b_transposed=True)]
    made += [product(*f16, span=64, a_span=span, a_transposed=True) for span in SWIZZLES]
    made += [product(*f16, span=128, a_transposed=True, b_transposed=True)]
    made += [product(*f16, a_span=32), product(*f16, span=16, a_span=128)]
    made += [product(*f16, negate=True, carried=True), product(*f16, carried=True)]
    made += [product(*f16, span=span, step=32) for span in (64, 128)]
    made += [product("s32", "s8", "s8", step=96), product(*f16, step=64)]
    made += [product(*f16, span=span, base=base) for span, base in ((128, 1), (128, 5), (64, 1))]
    made += [product(*f16, repeats=3)]
    return made


def sums() -> list[Case]:
    """Real numbers: how the hardware adds. The emulator adds in its own way (docs/emulate.md)."""
    made = [
        product("f32", ty, ty, n=16, whole=False, carried=carried)
        for ty in ("f16", "bf16", "tf32", "e4m3", "e5m2")
        for carried in (False, True)
    ]
    made += [product("f16", "f16", "f16", n=16, whole=False, carried=c) for c in (False, True)]
    made += [product("f32", "f16", "f16", n=16, whole=False, repeats=40)]
    made += [product("f32", ty, ty, n=16, whole=False, carried=True, scale=scale)
             for ty, scale in (("f16", "small"), ("f16", "wide"), ("bf16", "wide"),
                               ("tf32", "small"), ("bf16", "special"), ("f16", "special"),
                               ("e5m2", "small"),
                               ("e4m3", "small"), ("e5m2", "special"))]  # fmt: skip
    made += [product("f16", "e4m3", "e4m3", n=16, whole=False, carried=True)]
    made += [product("f32", "bf16", "bf16", n=16, whole=False, registers=True, carried=True)]
    return made


def warp_product(shape: str, kind: str, na: int, nb: int, carried: bool) -> Case:
    """One mma.sync on reals, into fp32."""
    left = ", ".join(f"%{4 + i}" for i in range(na))
    right = ", ".join(f"%{4 + na + i}" for i in range(nb))
    given = ", ".join([*(f'"r"(a[32 * {i} + t])' for i in range(na)),
                       *(f'"r"(b[32 * {i} + t])' for i in range(nb))])  # fmt: skip
    source = f"""
extern "C" __global__ void t(const unsigned* a, const unsigned* b, const float* c, float* out) {{
  const int t = threadIdx.x;
  float d[4];
  for (int i = 0; i < 4; ++i) d[i] = c[32 * i + t];
  asm volatile("mma.sync.aligned.{shape}.row.col.f32.{kind}.{kind}.f32 "
               "{{%0, %1, %2, %3}}, {{{left}}}, "
               "{{{right}}}, {{%0, %1, %2, %3}};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                   : {given});
  for (int i = 0; i < 4; ++i) out[32 * i + t] = d[i];
}}
"""

    def inputs(random: np.random.Generator) -> list[Any]:
        c = random.standard_normal(128).astype(np.float32) if carried else np.zeros(128, np.float32)
        return [image(kind, 128 * na, random, False), image(kind, 128 * nb, random, False), c]

    name = f"mma.{shape}.f32.{kind}.reals{'.carried' if carried else ''}"
    return Case(name, source, inputs, np.float32, 128, block=32)


def warp_sums() -> list[Case]:
    """Real numbers through mma.sync: how the hardware adds."""
    forms = [
        ("m16n8k16", "f16", 4, 2),
        ("m16n8k8", "f16", 2, 1),
        ("m16n8k16", "bf16", 4, 2),
        ("m16n8k8", "bf16", 2, 1),
        ("m16n8k8", "tf32", 4, 2),
        ("m16n8k4", "tf32", 2, 1),
    ]
    return [warp_product(*form, carried) for form in forms for carried in (False, True)]
