"""Micro-tests of tensor copies, and of what the blocks of a cluster do together."""

from __future__ import annotations

import dataclasses

import numpy as np
from ptx_case import HEAD, SIZES, Case, TensorMapOf, random_words

# ---- tensor copies

_TILE = (
    HEAD
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
static __device__ u32 rank() { u32 r; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r; }
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


def tile(
    name: str, kind: str, sizes: tuple[int, ...], box: tuple[int, ...], corner: tuple[int, ...],
    swizzle: int = 0, steps: tuple[int, ...] = (), nan: bool = False, padding: int = 0,
    store: bool = False,
) -> Case:  # fmt: skip
    """A box loaded into shared memory (its image is the result), or stored from it."""
    element, pitch = SIZES[kind], []
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
    asm volatile("cp.async.bulk.tensor.{axes}d.global.shared::cta.tile.bulk_group "
                 "[%0, {{{numbers}}}], [%1];"
                 :: "l"(&map), "r"(at(s)), {given} : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }}"""
        count, spec = (
            words,
            TensorMapOf(-1, kind, sizes, tuple(pitch), box, swizzle, steps, nan, corner),
        )
        inputs = random_words(nbytes // 4)
    else:
        body = f"""
  for (int i = t; i < {nbytes // 4}; i += 128) s[i] = 0xABABABAB;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  if (t == 0) ready(&b, 1);
  __syncthreads();
  if (t == 0) {{
    expect(&b, {moved});
    asm volatile("cp.async.bulk.tensor.{axes}d.shared::cluster.global.tile"
                 ".mbarrier::complete_tx::bytes "
                 "[%0], [%1, {{{numbers}}}], [%2];"
                 :: "r"(at(s)), "l"(&map), "r"(at(&b)), {given} : "memory");
  }}
  wait(&b, 0);
  for (int i = t; i < {nbytes // 4}; i += 128) out[i] = s[i];"""
        count, spec = (
            nbytes // 4,
            TensorMapOf(0, kind, sizes, tuple(pitch), box, swizzle, steps, nan, corner),
        )
        inputs = random_words(words)
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
        tile(f"tensor.load.2d.{kind}.swizzle{s}", kind, (160, 40), (max(s, 64) // SIZES[kind], 16),
             (16, 3), s)
        for kind in ("f2", "u1", "f4") for s in (0, 32, 64, 128)
        if max(s, 64) // SIZES[kind] * SIZES[kind] <= (s or 128)
    ]  # fmt: skip
    made += [
        tile("tensor.load.2d.f2.swizzle32", "f2", (160, 40), (16, 16), (16, 3), 32),
        tile("tensor.load.2d.u1.swizzle32", "u1", (160, 40), (32, 16), (16, 3), 32),
        tile("tensor.load.2d.f2.narrow128", "f2", (160, 40), (32, 16), (16, 3), 128),
        tile("tensor.load.2d.f2.narrow64", "f2", (160, 40), (16, 16), (16, 3), 64),
    ]
    edges = {"low": (-16, -3), "high": (128, 35), "inside": (16, 0), "outside": (400, 50)}
    made += [tile(f"tensor.load.2d.{kind}.{where}{'.nan' * nan}", kind, (140, 40), (32, 16),
                  corner, nan=nan)
             for kind, nan in (("f2", False), ("f2", True), ("b2", True), ("f4", True),
                               ("u1", False))
             for where, corner in edges.items()]  # fmt: skip
    made += [tile("tensor.load.2d.f8.nan", "f8", (30, 20), (8, 8), (26, 15), nan=True)]
    made += [
        tile("tensor.load.1d", "f4", (300,), (256,), (100,)),
        tile("tensor.load.3d", "f2", (64, 9, 5), (32, 4, 3), (8, 7, -1), 64),
        tile("tensor.load.4d", "f2", (64, 5, 7, 3), (64, 2, 5, 2), (0, 3, 1, 1), 128),
        tile("tensor.load.5d", "u1", (32, 3, 4, 3, 3), (32, 2, 3, 2, 2), (0, 1, 2, 1, 2), 32),
        tile("tensor.load.steps", "f4", (64, 40), (32, 16), (4, 3), steps=(1, 3)),
        tile("tensor.load.steps3", "f2", (64, 12, 12), (16, 8, 9), (8, 1, 2), steps=(2, 2, 3)),
        tile("tensor.load.padded", "f2", (50, 30), (32, 16), (24, 20), 64, padding=48),
    ]
    made += [tile(f"tensor.store.2d.f2.swizzle{s}", "f2", (160, 40), ((s or 64) // 2, 16), (8, 5),
                  s,
                  store=True) for s in (0, 32, 64, 128)]  # fmt: skip
    made += [tile("tensor.store.edge", "f4", (70, 20), (32, 16), (48, 10), store=True),
             tile("tensor.store.beyond", "u1", (70, 20), (64, 16), (16, 12), store=True),
             tile("tensor.store.3d", "u1", (64, 9, 5), (64, 4, 3), (0, 7, 3), 64, store=True),
             tile("tensor.store.1d", "f4", (300,), (256,), (100,), store=True),
             tile("tensor.store.steps", "f4", (64, 40), (32, 16), (4, 3), steps=(1, 3),
                  store=True)]  # fmt: skip
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
        name, source, random_words(128 * blocks), np.uint32, 128 * blocks, block=128, grid=blocks,
        cluster=of, maps=maps,
    )  # fmt: skip


_FILL = "s[t] = a[t];\n  together();\n  "
_DONE = "\n  together();"


def _asm(text: str, *operands: str) -> str:
    """An asm statement with a memory clobber; operands as CUDA C++ writes them, outputs first."""
    outs = ", ".join(o for o in operands if o.startswith('"='))
    ins = ", ".join(o for o in operands if not o.startswith('"='))
    return f'asm volatile("{text}" : {outs} : {ins} : "memory");'


_PUT = _asm("st.shared::cluster.u32 [%0], %1;", '"r"(p)', '"r"(a[t])')
_TX = "mbarrier::complete_tx::bytes"
_WAIT_CLUSTER = _asm(
    "{ .reg .pred p;\\nL: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], 0;\\n"
    "@!p bra L; }",
    '"r"(at(&b))',
)


def clusters() -> list[Case]:
    other = "const u32 p = peer(at(s + t), r ^ 1);\n  "
    wait = "wait(&b, 0);\n  o[t] = s[127 - t];" + _DONE
    begin = "if (t == 0) { ready(&b, COUNT); TX }\n  together();\n  "

    def arriving(name: str, count: int, tx: int, body: str) -> Case:
        first = begin.replace("COUNT", str(count)).replace("TX", f"expect(&b, {tx});" if tx else "")
        return cluster(name, first + body + wait)

    made = [
        cluster("ld.shared::cluster", _FILL + other
                + _asm("ld.shared::cluster.u32 %0, [%1];", '"=r"(o[t])', '"r"(p)')
                + _DONE),
        cluster("ld.generic.mapa", _FILL + """
  u64 g; asm volatile("mapa.u64 %0, %1, %2;" : "=l"(g) : "l"(s + t), "r"((r + 1) % 4));
  o[t] = *(volatile u32*)g;""" + _DONE, 8, 4),
        cluster("st.shared::cluster", other
                + "together();\n  " + _PUT
                + _DONE + "\n  o[t] = s[127 - t];"),
        cluster("atom.shared::cluster", "s[t] = 3;\n  together();\n  " + other + """
  u32 old; asm volatile("atom.shared::cluster.add.u32 %0, [%1], %2;" : "=r"(old) : "r"(p),
      "r"(a[t]) : "memory");
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
    word, own_word = '"r"(peer(at(&b), r ^ 1))', '"r"(at(&b))'
    remote = _asm("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];", word) + "\n  "
    made += [arriving("mbarrier.arrive.remote", 128, 0, other
             + f"{_PUT}\n  "
             + remote)]  # fmt: skip
    text = made[-1].source.replace("wait(&b, 0);", _WAIT_CLUSTER)
    made[-1] = dataclasses.replace(made[-1], source=text)
    for width, letters in ((1, "%2"), (2, "{%2, %3}"), (4, "{%2, %3, %4, %5}")):
        vector = f".v{width}" if width > 1 else ""
        values = ", ".join(f'"r"(a[{width} * t + {i}])' for i in range(width))
        put = _asm(
            f"st.async.shared::cluster.{_TX}{vector}.b32 [%0], {letters}, [%1];",
            f'"r"(peer(at(s + {width} * t), r ^ 1))', word, values,
        )  # fmt: skip
        body = f"if (t < {128 // width}) {put}\n  "
        made.append(arriving(f"st.async{vector}", 1, 512, body))
    own = f"s[256 + t] = a[t];\n  {_asm('fence.proxy.async;')}\n  __syncthreads();\n  "
    copy = _asm(
        f"cp.async.bulk.shared::cluster.shared::cta.{_TX} [%0], [%1], 512, [%2];",
        '"r"(peer(at(s), r ^ 1))', '"r"(at(s + 256))', word,
    )  # fmt: skip
    name = "cp.async.bulk.shared::cluster.shared::cta"
    made.append(arriving(name, 1, 512, f"{own}if (t == 0) {copy}\n  "))
    both = '"h"((short)3)'
    copy = _asm(
        f"cp.async.bulk.shared::cluster.global.{_TX}.multicast::cluster [%0], [%1], 256, [%2], %3;",
        '"r"(at(s + 64 * r))', '"l"(a)', own_word, both,
    )  # fmt: skip
    made.append(arriving("cp.async.bulk.multicast", 1, 512, f"if (t == 0) {copy}\n  "))
    copy = _asm(
        f"cp.async.bulk.tensor.2d.shared::cluster.global.{_TX}.multicast::cluster "
        "[%0], [%1, {%3, %4}], [%2], %5;",
        '"r"(at(s + 64 * r))', '"l"(&map)', own_word, '"r"(0)', '"r"(2 * r)', both,
    )  # fmt: skip
    first = begin.replace("COUNT", "1").replace("TX", "expect(&b, 512);")
    rows = TensorMapOf(0, "u4", (32, 8), (128,), (32, 2))
    text = f"{first}if (t == 0) {copy}\n  {wait}"
    made.append(cluster("tensor.load.multicast", text, maps=(rows,)))
    bulk = (
        own.replace("s[256 + t]", "s[t]")
        + """
  if (t == 0) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 512;" :: "l"(o),
        "r"(at(s)) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  }"""
    )
    made.append(cluster("cp.async.bulk.global.shared::cta", bulk, 1, 1))
    return made
