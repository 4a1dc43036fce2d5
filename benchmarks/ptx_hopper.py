"""Micro-tests of the instructions of sm_90a: wgmma, tensor copies, clusters, and what goes with them.

`ptx_microtests` runs them and compares. Operands of wgmma are images of shared memory that are
filled at random as a whole, so a product is right only if each element comes from its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from ptx_case import Case, TensorMapOf

# ---- wgmma

_K = {"f16": 16, "bf16": 16, "tf32": 8, "s8": 32, "u8": 32, "e4m3": 32, "e5m2": 32}
_BITS = {16: 0, 128: 1, 64: 2, 32: 3}  # of a descriptor, by the bytes of a row of the pattern
SWIZZLES = (16, 32, 64, 128)

_HEAD = """
typedef unsigned long long u64;
typedef unsigned u32;
static __device__ u32 at(const void* p) { return (u32)__cvta_generic_to_shared(p); }
static __device__ u64 matrix(u32 start, u32 leading, u32 stride, u64 base, u64 swizzle) {
  return (u64)((start & 0x3FFFF) >> 4) | (u64)(leading >> 4) << 16 | (u64)(stride >> 4) << 32
         | base << 49 | swizzle << 62;
}
"""


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


def image(
    kind: str, nbytes: int, random: np.random.Generator, whole: bool, scale: str = ""
) -> Any:
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
        return np.where(random.random(count) < 0.98, codes & 0xBF, codes).astype(np.uint8).view(np.uint32)
    x = random.standard_normal(count)
    if scale == "small":
        x *= 2.0 ** random.integers(-16, -12, count) if kind == "f16" else 2.0**-127
    elif scale == "wide":
        x *= 2.0 ** (random.integers(-10, 11, count) if kind == "f16" else random.integers(-40, 41, count))
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
    source = f"""{_HEAD}
extern "C" __global__ void __launch_bounds__(128) t(const u32* a, const u32* b, {constant}{kind}* out) {{
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
  const u64 da = matrix(at(sa) + {base * 128 + step}, {la}, {sa}, {base if a_span > 32 else 0}, {_BITS[a_span]});
  const u64 db = matrix(at(sb) + {base * 128 + step}, {lb}, {sb}, {base if span > 32 else 0}, {_BITS[span]});
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
            halves = random.integers(-8, 9, 256 * count) if whole else random.standard_normal(256 * count)
            arrays.append(halves.astype(np.float16).view(np.uint32))
        elif carried:
            c = random.integers(-8, 9, 128 * count) if whole else random.standard_normal(128 * count)
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
             for ty, scale in (("f16", "small"), ("f16", "wide"), ("bf16", "wide"), ("tf32", "small"),
                               ("bf16", "special"), ("f16", "special"), ("e5m2", "small"),
                               ("e4m3", "small"), ("e5m2", "special"))]  # fmt: skip
    made += [product("f16", "e4m3", "e4m3", n=16, whole=False, carried=True)]
    made += [product("f32", "bf16", "bf16", n=16, whole=False, registers=True, carried=True)]
    return made


# ---- tensor copies

_TILE = (
    _HEAD
    + """
struct alignas(64) Map { u64 words[16]; };
static __device__ void ready(u64* b, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(at(b)), "r"(count) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
static __device__ void expect(u64* b, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :: "r"(at(b)), "r"(bytes) : "memory");
}
static __device__ void wait(u64* b, u32 parity) {
  asm volatile("{ .reg .pred p;\\nL: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\\n"
               "@!p bra L; }" :: "r"(at(b)), "r"(parity) : "memory");
}
static __device__ u32 rank() { u32 r; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
static __device__ u32 peer(u32 a, u32 r) {
  u32 o;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(o) : "r"(a), "r"(r));
  return o;
}
static __device__ void together() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
"""
)
_SIZE = {"u1": 1, "u2": 2, "f2": 2, "b2": 2, "u4": 4, "f4": 4, "f8": 8}


def _words(count: int) -> Callable[[np.random.Generator], list[Any]]:
    return lambda random: [random.integers(0, 1 << 32, count).astype(np.uint32)]


def tile(
    name: str, kind: str, sizes: tuple[int, ...], box: tuple[int, ...], corner: tuple[int, ...],
    swizzle: int = 0, steps: tuple[int, ...] = (), nan: bool = False, padding: int = 0,
    store: bool = False,
) -> Case:  # fmt: skip
    """A box loaded into shared memory (its image is the result), or stored from it."""
    element, pitch = _SIZE[kind], []
    row = -(-sizes[0] * element // 16) * 16 + padding
    for n in sizes[1:]:
        pitch.append(row)
        row *= n
    taken = [-(-n // s) for n, s in zip(box, steps or (1,) * len(box), strict=True)]
    taken[0] = box[0]
    # Rows that are shorter than the swizzle lie as far apart as it spans.
    nbytes = int(np.prod(taken[1:])) * (swizzle or taken[0] * element)
    moved = int(np.prod(taken)) * element
    axes = len(sizes)
    words = -(-row // 4)
    numbers = ", ".join(f"%{3 + i}" for i in range(axes))
    given = ", ".join(f'"r"({n})' for n in corner)
    if store:
        numbers = ", ".join(f"%{2 + i}" for i in range(axes))
        body = f"""
  for (int i = t; i < {nbytes // 4}; i += 128) s[i] = a[i];
  for (int i = t; i < {words}; i += 128) out[i] = 7;
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  if (t == 0) {{
    asm volatile("cp.async.bulk.tensor.{axes}d.global.shared::cta.tile.bulk_group [%0, {{{numbers}}}], [%1];"
                 :: "l"(&map), "r"(at(s)), {given} : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }}"""
        count, spec = words, TensorMapOf(-1, kind, sizes, tuple(pitch), box, swizzle, steps, nan, corner)
        inputs = _words(nbytes // 4)
    else:
        body = f"""
  for (int i = t; i < {nbytes // 4}; i += 128) s[i] = 0xABABABAB;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  if (t == 0) ready(&b, 1);
  __syncthreads();
  if (t == 0) {{
    expect(&b, {moved});
    asm volatile("cp.async.bulk.tensor.{axes}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {{{numbers}}}], [%2];"
                 :: "r"(at(s)), "l"(&map), "r"(at(&b)), {given} : "memory");
  }}
  wait(&b, 0);
  for (int i = t; i < {nbytes // 4}; i += 128) out[i] = s[i];"""
        count, spec = nbytes // 4, TensorMapOf(0, kind, sizes, tuple(pitch), box, swizzle, steps, nan, corner)
        inputs = _words(words)
    source = f"""{_TILE}
extern "C" __global__ void t(const u32* a, u32* out, const __grid_constant__ Map map) {{
  __shared__ __align__(1024) u32 s[{-(-nbytes // 1024) * 256}];
  __shared__ u64 b;
  const int t = threadIdx.x;
{body}
}}
"""
    return Case(name, source, inputs, np.uint32, count, block=128, maps=(spec,))


def tiles() -> list[Case]:
    made = [
        tile(f"tensor.load.2d.{kind}.swizzle{s}", kind, (160, 40), (max(s, 64) // _SIZE[kind], 16),
             (16, 3), s)
        for kind in ("f2", "u1", "f4") for s in (0, 32, 64, 128)
        if max(s, 64) // _SIZE[kind] * _SIZE[kind] <= (s or 128)
    ]  # fmt: skip
    made += [tile("tensor.load.2d.f2.swizzle32", "f2", (160, 40), (16, 16), (16, 3), 32),
             tile("tensor.load.2d.u1.swizzle32", "u1", (160, 40), (32, 16), (16, 3), 32),
             tile("tensor.load.2d.f2.narrow128", "f2", (160, 40), (32, 16), (16, 3), 128),
             tile("tensor.load.2d.f2.narrow64", "f2", (160, 40), (16, 16), (16, 3), 64)]  # fmt: skip
    edges = {"low": (-16, -3), "high": (128, 35), "inside": (16, 0), "outside": (400, 50)}
    made += [tile(f"tensor.load.2d.{kind}.{where}{'.nan' if nan else ''}", kind, (140, 40), (32, 16),
                  corner, nan=nan)
             for kind, nan in (("f2", False), ("f2", True), ("b2", True), ("f4", True), ("u1", False))
             for where, corner in edges.items()]  # fmt: skip
    made += [tile("tensor.load.2d.f8.nan", "f8", (30, 20), (8, 8), (26, 15), nan=True)]
    made += [tile("tensor.load.1d", "f4", (300,), (256,), (100,)),
             tile("tensor.load.3d", "f2", (64, 9, 5), (32, 4, 3), (8, 7, -1), 64),
             tile("tensor.load.4d", "f2", (64, 5, 7, 3), (64, 2, 5, 2), (0, 3, 1, 1), 128),
             tile("tensor.load.5d", "u1", (32, 3, 4, 3, 3), (32, 2, 3, 2, 2), (0, 1, 2, 1, 2), 32),
             tile("tensor.load.steps", "f4", (64, 40), (32, 16), (4, 3), steps=(1, 3)),
             tile("tensor.load.steps3", "f2", (64, 12, 12), (16, 8, 9), (8, 1, 2), steps=(2, 2, 3)),
             tile("tensor.load.padded", "f2", (50, 30), (32, 16), (24, 20), 64, padding=48)]  # fmt: skip
    made += [tile(f"tensor.store.2d.f2.swizzle{s}", "f2", (160, 40), ((s or 64) // 2, 16), (8, 5), s,
                  store=True) for s in (0, 32, 64, 128)]  # fmt: skip
    made += [tile("tensor.store.edge", "f4", (70, 20), (32, 16), (48, 10), store=True),
             tile("tensor.store.low", "f2", (70, 20), (32, 16), (-8, -3), store=True),
             tile("tensor.store.3d", "u1", (64, 9, 5), (64, 4, 3), (0, 7, -1), 64, store=True),
             tile("tensor.store.1d", "f4", (300,), (256,), (100,), store=True),
             tile("tensor.store.steps", "f4", (64, 40), (32, 16), (4, 3), steps=(1, 3), store=True)]  # fmt: skip
    return made


# ---- clusters

_CLUSTER = (
    _TILE
    + """
extern "C" __global__ void t(const u32* a, u32* outPARAMETERS) {
  __shared__ __align__(1024) u32 s[512];
  __shared__ u64 b;
  const int t = threadIdx.x;
  const u32 r = rank(), n = gridDim.x;
  a += 128 * blockIdx.x;
  u32* o = out + 128 * blockIdx.x;
  BODY
}
"""
)


def cluster(
    name: str, body: str, blocks: int = 2, of: int = 2, maps: tuple[TensorMapOf, ...] = ()
) -> Case:
    source = _CLUSTER.replace("BODY", body)
    source = source.replace("PARAMETERS", ", const __grid_constant__ Map map" if maps else "")
    return Case(
        name, source, _words(128 * blocks), np.uint32, 128 * blocks, block=128, grid=blocks,
        cluster=of, maps=maps,
    )  # fmt: skip


_FILL = "s[t] = a[t];\n  together();\n  "
_DONE = "\n  together();"


def clusters() -> list[Case]:
    other = "const u32 p = peer(at(s + t), r ^ 1);\n  "
    wait = "wait(&b, 0);\n  o[t] = s[127 - t];" + _DONE
    begin = "if (t == 0) { ready(&b, COUNT); TX }\n  together();\n  "

    def arriving(name: str, count: int, tx: int, body: str) -> Case:
        first = begin.replace("COUNT", str(count)).replace("TX", f"expect(&b, {tx});" if tx else "")
        return cluster(name, first + body + wait)

    made = [
        cluster("ld.shared::cluster", _FILL + other
                + 'asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(o[t]) : "r"(p) : "memory");'
                + _DONE),
        cluster("ld.generic.mapa", _FILL + """
  u64 g; asm volatile("mapa.u64 %0, %1, %2;" : "=l"(g) : "l"(s + t), "r"((r + 1) % 4));
  o[t] = *(volatile u32*)g;""" + _DONE, 8, 4),
        cluster("st.shared::cluster", other
                + "together();\n  " + 'asm volatile("st.shared::cluster.u32 [%0], %1;" :: "r"(p), "r"(a[t]) : "memory");'
                + _DONE + "\n  o[t] = s[127 - t];"),
        cluster("atom.shared::cluster", "s[t] = 3;\n  together();\n  " + other + """
  u32 old; asm volatile("atom.shared::cluster.add.u32 %0, [%1], %2;" : "=r"(old) : "r"(p), "r"(a[t]) : "memory");
  together();
  o[t] = s[t] + old;"""),
        cluster("registers", """
  u32 v[6]; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(v[0]));
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(v[1]));
  asm volatile("mov.u32 %0, %%cluster_ctaid.x;" : "=r"(v[2]));
  asm volatile("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(v[3]));
  asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(v[4]));
  asm volatile("mov.u32 %0, %%nclusterid.x;" : "=r"(v[5]));
  o[t] = a[t] ^ (v[0] + 8 * v[1] + 64 * v[2] + 512 * v[3] + 4096 * v[4] + 32768 * v[5]);""", 8, 4),
        cluster("getctarank", """
  u32 q; asm volatile("getctarank.shared::cluster.u32 %0, %1;" : "=r"(q) : "r"(peer(at(s), t % 4)));
  o[t] = a[t] ^ q;""", 4, 4),
    ]  # fmt: skip
    remote = 'asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(peer(at(&b), r ^ 1)) : "memory");\n  '
    made += [arriving("mbarrier.arrive.remote", 128, 0, other
             + 'asm volatile("st.shared::cluster.u32 [%0], %1;" :: "r"(p), "r"(a[t]) : "memory");\n  '
             + remote)]  # fmt: skip
    made[-1] = Case(**{**made[-1].__dict__, "source": made[-1].source.replace(
        "wait(&b, 0);", """asm volatile("{ .reg .pred p;\\nL: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], 0;\\n@!p bra L; }" :: "r"(at(&b)) : "memory");""")})  # fmt: skip
    for width, letters in ((1, "%2"), (2, "{%2, %3}"), (4, "{%2, %3, %4, %5}")):
        vector = f".v{width}" if width > 1 else ""
        values = ", ".join(f'"r"(a[{width} * t + {i}])' for i in range(width))
        body = (
            f"if (t < {128 // width}) asm volatile("
            f'"st.async.shared::cluster.mbarrier::complete_tx::bytes{vector}.b32 [%0], {letters}, [%1];"'
            f' :: "r"(peer(at(s + {width} * t), r ^ 1)), "r"(peer(at(&b), r ^ 1)), {values} : "memory");\n  '
        )
        made.append(arriving(f"st.async{vector}", 1, 512, body))
    own = "s[256 + t] = a[t];\n  asm volatile(\"fence.proxy.async;\" ::: \"memory\");\n  __syncthreads();\n  "
    made.append(arriving("cp.async.bulk.shared::cluster.shared::cta", 1, 512, own + """
  if (t == 0) asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 512, [%2];"
    :: "r"(peer(at(s), r ^ 1)), "r"(at(s + 256)), "r"(peer(at(&b), r ^ 1)) : "memory");
  """))  # fmt: skip
    made.append(arriving("cp.async.bulk.multicast", 1, 512, """
  if (t == 0) asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], 256, [%2], %3;"
    :: "r"(at(s + 64 * r)), "l"(a), "r"(at(&b)), "h"((short)3) : "memory");
  """))  # fmt: skip
    made.append(cluster("tensor.load.multicast", begin.replace("COUNT", "1").replace("TX", "expect(&b, 512);") + """
  if (t == 0) asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;"
    :: "r"(at(s + 64 * r)), "l"(&map), "r"(at(&b)), "r"(0), "r"(2 * r), "h"((short)3) : "memory");
  """ + wait, maps=(TensorMapOf(0, "u4", (32, 8), (128,), (32, 2), 0, (), False),)))  # fmt: skip
    bulk = own.replace("s[256 + t]", "s[t]") + """
  if (t == 0) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 512;" :: "l"(o), "r"(at(s)) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  }"""
    made.append(cluster("cp.async.bulk.global.shared::cta", bulk, 1, 1))
    return made


# ---- warps and conversions


def matrices() -> list[Case]:
    made = []
    for count in (1, 2, 4):
        for trans in ("", ".trans"):
            names = ", ".join(f"%{1 + i}" for i in range(count))
            given = ", ".join(f'"r"(a[32 * {i} + t])' for i in range(count))
            source = f"""{_HEAD}
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
            made.append(Case(f"stmatrix.x{count}{trans}", source, _words(128), np.uint32, 128, block=32))
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
  asm volatile("mma.sync.aligned.{shape}.row.col.f32.{kind}.{kind}.f32 {{%0, %1, %2, %3}}, {{{left}}}, "
               "{{{right}}}, {{%0, %1, %2, %3}};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : {given});
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
    forms = [("m16n8k16", "f16", 4, 2), ("m16n8k8", "f16", 2, 1), ("m16n8k16", "bf16", 4, 2),
             ("m16n8k8", "bf16", 2, 1), ("m16n8k8", "tf32", 4, 2), ("m16n8k4", "tf32", 2, 1)]  # fmt: skip
    return [warp_product(*form, carried) for form in forms for carried in (False, True)]


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
