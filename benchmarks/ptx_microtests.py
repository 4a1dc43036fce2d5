"""One small kernel per PTX instruction, on a GPU or in the emulator; writes the outputs as JSON.

    python benchmarks/ptx_microtests.py            # on the GPU -> results/<gpu>/<date>-ptx.json
    python benchmarks/ptx_microtests.py --emulate  # in the emulator
    python benchmarks/ptx_microtests.py --compare FILE   # the emulator beside a file of a GPU;
                                        # with --output, as JSON for docs/emulate.md

Inputs follow from the case's name, so a file of outputs is enough to compare. A case is exact, or
has a bound in units in the last place where the hardware's function is an approximation. Elements
that the PTX ISA leaves open are counted, and not compared.
"""

from __future__ import annotations

import argparse
import base64
import dataclasses
import datetime
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import ptx_hopper
from ptx_case import Case, emulated, on_gpu
from ptx_compare import compare

N = 256  # elements of an elementwise case: 8 warps

_C = {
    "r": "unsigned",
    "l": "unsigned long long",
    "h": "unsigned short",
    "f": "float",
    "d": "double",
}
_DTYPE = {"r": np.uint32, "l": np.uint64, "h": np.uint16, "f": np.float32, "d": np.float64}


BY_ZERO = "division by zero yields an unspecified, machine-specific value (9.7.1.8, 9.7.1.9)"


_EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 1e-40, -1e-40, 1e38, -1e38, 3.4e38, 65504.0,
          65520.0, 6e-8, 3e-8, 1e-5, np.inf, -np.inf, np.nan, 2147483647.0, 4.3e9]  # fmt: skip


def _values(kind: str, random: np.random.Generator, spread: float) -> Any:
    if kind == "f":
        x = (random.standard_normal(N) * spread).astype(np.float32)
        x[: len(_EDGES)] = np.array(_EDGES, np.float32)
        return x[random.permutation(N)]
    if kind == "d":
        x = random.standard_normal(N) * spread
        x[: len(_EDGES)] = _EDGES
        return x[random.permutation(N)]
    if kind == "h":
        return random.integers(0, 1 << 16, N).astype(np.uint16)
    bits = 32 if kind == "r" else 64
    x = random.integers(0, 1 << bits, N, dtype=np.uint64)
    edges = [0, 1, 2, 31, 32, 33, (1 << bits) - 1, 1 << (bits - 1), (1 << (bits - 1)) - 1]
    x[: len(edges)] = edges
    return x[random.permutation(N)].astype(_DTYPE[kind])


def elementwise(
    name: str, kinds: str, ulp: float = 0.0, spread: float = 8.0, ptx: str = ""
) -> Case:
    """``kinds``: asm constraint letters, the result's first. ``ptx``: other text than
    ``name %0, %1, ...;``."""
    out, sources = kinds[0], kinds[1:]
    operands = ", ".join(f"%{i}" for i in range(len(kinds)))
    params = ", ".join(f"const {_C[k]}* a{i}" for i, k in enumerate(sources))
    given = ", ".join(f'"{k}"(a{i}[t])' for i, k in enumerate(sources))
    asm = ptx or f"{name} {operands};"
    source = (
        f'extern "C" __global__ void t({params}, {_C[out]}* out) {{\n'
        f"  const int t = threadIdx.x;\n  {_C[out]} o;\n"
        f'  asm volatile("{asm}" : "={out}"(o) : {given});\n  out[t] = o;\n}}\n'
    )

    def inputs(random: np.random.Generator) -> list[Any]:
        return [_values(kind, random, spread) for kind in sources]

    halves = [part.removesuffix("x2") for part in name.split(".")[1:]]
    halves = [part for part in halves if part in ("f16", "bf16") and out in "hr"]
    case = Case(name, source, inputs, _DTYPE[out], N, ulp, halves=halves[0] if halves else "")
    if name[:3] in ("div", "rem") and out == "r":
        case = dataclasses.replace(case, open=lambda arrays: arrays[1] == 0, why=BY_ZERO)
    return case


def conversions() -> list[Case]:
    made = [elementwise(f"cvt.{m}.{i}.f32", "rf", spread=1e3)
            for m in ("rni", "rzi", "rmi", "rpi") for i in ("s32", "u32")]  # fmt: skip
    made += [elementwise(f"cvt.rzi.{i}.f64", "ld", spread=1e10) for i in ("s64", "u64")]
    made += [elementwise(f"cvt.{m}.f32.{i}", "fr") for m in ("rn", "rz", "rm", "rp")
             for i in ("s32", "u32")]  # fmt: skip
    made += [elementwise(f"cvt.{m}.f32.{i}", "fl") for m in ("rn", "rz") for i in ("s64", "u64")]
    made += [elementwise(f"cvt.{m}.f32.f64", "fd", spread=1e4) for m in ("rn", "rz", "rm", "rp")]
    made += [elementwise(f"cvt.{m}.f16.f32", "hf", spread=1e2) for m in ("rn", "rz")]
    made += [elementwise(f"cvt.{m}.bf16.f32", "hf", spread=1e2) for m in ("rn", "rz")]
    made += [elementwise("cvt.f32.f16", "fh"), elementwise("cvt.rna.tf32.f32", "rf")]
    made += [elementwise(f"cvt.rn.{t}.f32", "rff", spread=1e2) for t in ("f16x2", "bf16x2")]
    made += [elementwise(f"cvt.{m}.f32.f32", "ff") for m in ("rni", "rzi", "rmi", "rpi", "sat")]
    made += [elementwise("cvt.sat.s8.s32", "rr", ptx="{.reg .s8 t; cvt.sat.s8.s32 t, %1; "
                         "cvt.s32.s8 %0, t;}")]  # fmt: skip
    return made


def arithmetic() -> list[Case]:
    made: list[Case] = []
    made += [elementwise(f"{op}.{t}", "rrr") for op in ("div", "rem", "min", "max")
             for t in ("s32", "u32")]  # fmt: skip
    made += [elementwise(f"mul.hi.{t}", "rrr") for t in ("s32", "u32")]
    made += [elementwise(f"mul.hi.{t}", "lll") for t in ("s64", "u64")]
    made += [elementwise(f"mul.wide.{t}", "lrr") for t in ("s32", "u32")]
    made += [elementwise(n, "rrr") for n in ("add.sat.s32", "sub.sat.s32", "shl.b32", "shr.u32",
                                            "shr.s32")]  # fmt: skip
    made += [elementwise(n, "lrr", ptx=f"{{.reg .b64 x; cvt.u64.u32 x, %1; {n} %0, x, %2;}}")
             for n in ("shl.b64", "shr.u64", "shr.s64")]  # fmt: skip
    made += [elementwise(n, "rrrr") for n in ("bfe.u32", "bfe.s32", "sad.u32", "sad.s32",
             "prmt.b32", "prmt.b32.f4e", "prmt.b32.b4e", "prmt.b32.rc8",
             "prmt.b32.ecl", "prmt.b32.ecr",
             "prmt.b32.rc16", "shf.l.wrap.b32", "shf.l.clamp.b32", "shf.r.wrap.b32",
             "shf.r.clamp.b32", "dp4a.s32.s32", "dp4a.u32.s32", "dp4a.u32.u32", "dp2a.lo.s32.s32",
             "dp2a.hi.u32.s32")]  # fmt: skip
    made += [elementwise("bfi.b32", "rrrrr")]
    made += [elementwise(f"lop3.b32.{lut}", "rrrr", ptx=f"lop3.b32 %0, %1, %2, %3, {lut};")
             for lut in (0x96, 0xE8, 0x1B, 0xCA)]  # fmt: skip
    made += [elementwise(n, "rr") for n in ("popc.b32", "clz.b32", "brev.b32", "bfind.u32",
             "bfind.s32", "bfind.shiftamt.u32")]  # fmt: skip
    made += [elementwise(n, "rl") for n in ("popc.b64", "clz.b64", "bfind.u64", "bfind.s64")]
    made += [elementwise("add.cc", "rrrrr", ptx="{.reg .b32 x; add.cc.u32 x, %1, %2; "
                         "addc.u32 %0, %3, %4;}"),
             elementwise("sub.cc", "rrrrr", ptx="{.reg .b32 x; sub.cc.u32 x, %1, %2; "
                         "subc.u32 %0, %3, %4;}")]  # fmt: skip
    return made


def floating() -> list[Case]:
    made = [
        elementwise(f"{op}.{m}.f32", "fff")
        for op in ("add", "mul")
        for m in ("rn", "rz", "rm", "rp")
    ]
    made += [elementwise(n, "ffff") for n in ("fma.rn.f32", "fma.rn.ftz.f32", "fma.rn.sat.f32")]
    made += [elementwise("fma.rn.f64", "dddd"), elementwise("div.rn.f32", "fff"),
             elementwise("sqrt.rn.f32", "ff"), elementwise("rcp.rn.f32", "ff")]  # fmt: skip
    made += [elementwise(n, "fff") for n in ("min.f32", "max.f32", "min.NaN.f32", "max.NaN.f32")]
    made += [
        elementwise(f"{op}.{t}", "hhh")
        for op in ("add.rn", "mul.rn", "min", "max")
        for t in ("f16",)
    ]
    made += [elementwise(f"fma.rn.{t}", "hhhh") for t in ("f16", "bf16")]
    made += [elementwise(f"fma.rn.{t}", "rrrr") for t in ("f16x2", "bf16x2")]
    approximate = {"ex2.approx.f32": 4.0, "ex2.approx.ftz.f32": 4.0, "lg2.approx.f32": 64.0,
                   "rcp.approx.f32": 2.0, "rsqrt.approx.f32": 4.0, "sqrt.approx.f32": 4.0,
                   "tanh.approx.f32": 8192.0}  # fmt: skip
    made += [elementwise(name, "ff", ulp) for name, ulp in approximate.items()]
    made += [elementwise("div.approx.f32", "fff", 4.0), elementwise("div.full.f32", "fff", 4.0)]
    return made


def warps() -> list[Case]:
    made = []
    for mode in ("up", "down", "bfly", "idx"):
        for segment in (0x00, 0x10, 0x18):
            c = (32 - (32 - segment)) << 8 | (0 if mode == "up" else 31)
            made.append(elementwise(f"shfl.{mode}.{segment:#x}", "rr", ptx=(
                f"{{.reg .pred p; .reg .b32 v, q, b; and.b32 b, %1, 7; "
                f"shfl.sync.{mode}.b32 v|p, %1, 5, {c}, 0xffffffff; selp.u32 q, 1, 0, p; "
                f"xor.b32 %0, v, q;}}")))  # fmt: skip
    made += [elementwise(f"redux.sync.{op}", "rr", ptx=f"redux.sync.{op} %0, %1, 0xffffffff;")
             for op in ("add.u32", "min.s32", "max.s32", "min.u32", "max.u32", "and.b32",
                        "or.b32", "xor.b32")]  # fmt: skip
    made += [elementwise("vote.ballot", "rr", ptx="{.reg .pred p; setp.lt.s32 p, %1, 0; "
                         "vote.sync.ballot.b32 %0, p, 0xffffffff;}"),
             elementwise("match.any", "rr", ptx="{.reg .b32 x; and.b32 x, %1, 3; "
                         "match.any.sync.b32 %0, x, 0xffffffff;}")]  # fmt: skip
    return made


_ELEMENT = {"f16": (2, "f16"), "bf16": (2, "bf16"), "tf32": (1, "tf32"), "s8": (4, "s8"),
            "u8": (4, "u8")}  # fmt: skip


def _fragment(kind: str, registers: int, random: np.random.Generator) -> Any:
    """Small whole numbers, whose products and sums are exact in every order."""
    whole = random.integers(-8 if kind != "u8" else 0, 9, 32 * registers * _ELEMENT[kind][0])
    if kind == "f16":
        return whole.astype(np.float16).view(np.uint32)
    if kind == "bf16":
        return (whole.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint32)
    if kind == "tf32":
        return whole.astype(np.float32).view(np.uint32)
    return whole.astype(np.int8).view(np.uint32)


def matrix(shape: str, d: str, a: str, b: str, na: int, nb: int) -> Case:
    count = 2 if d == "f16" else 4
    letter = "f" if d == "f32" else "r"
    kind = _C[letter] if d != "s32" else "int"
    out = ", ".join(f"%{i}" for i in range(count))
    left = ", ".join(f"%{count + i}" for i in range(na))
    right = ", ".join(f"%{count + na + i}" for i in range(nb))
    outs = ", ".join(f'"+{letter}"(d[{i}])' for i in range(count))
    ins = ", ".join([*(f'"r"(a[32 * {i} + t])' for i in range(na)),
                     *(f'"r"(b[32 * {i} + t])' for i in range(nb))])  # fmt: skip
    source = (
        f'extern "C" __global__ void t(const unsigned* a, const unsigned* b, {kind}* out) {{\n'
        f"  const int t = threadIdx.x;\n  {kind} d[{count}] = {{}};\n"
        f'  asm volatile("mma.sync.aligned.{shape}.row.col.{d}.{a}.{b}.{d} {{{out}}}, {{{left}}}, '
        f'{{{right}}}, {{{out}}};" : {outs} : {ins});\n'
        f"  for (int i = 0; i < {count}; ++i) out[32 * i + t] = d[i];\n}}\n"
    )

    def inputs(random: np.random.Generator) -> list[Any]:
        return [_fragment(a, na, random), _fragment(b, nb, random)]

    dtype = {"f32": np.float32, "s32": np.int32, "f16": np.uint32}[d]
    return Case(f"mma.{shape}.{d}.{a}.{b}", source, inputs, dtype, 32 * count, block=32)


def matrices() -> list[Case]:
    made = [matrix("m16n8k16", d, "f16", "f16", 4, 2) for d in ("f32", "f16")]
    made += [matrix("m16n8k8", "f32", "f16", "f16", 2, 1)]
    made += [
        matrix("m16n8k16", "f32", "bf16", "bf16", 4, 2),
        matrix("m16n8k8", "f32", "bf16", "bf16", 2, 1),
    ]
    made += [
        matrix("m16n8k8", "f32", "tf32", "tf32", 4, 2),
        matrix("m16n8k4", "f32", "tf32", "tf32", 2, 1),
    ]
    made += [matrix("m16n8k32", "s32", a, b, 4, 2) for a in ("s8", "u8") for b in ("s8", "u8")]
    made += [matrix("m16n8k16", "s32", "s8", "s8", 2, 1)]
    for count in (1, 2, 4):
        for trans in ("", ".trans"):
            names = ", ".join(f"%{i}" for i in range(count))
            outs = ", ".join(f'"=r"(d[{i}])' for i in range(count))
            source = (
                'extern "C" __global__ void t(const unsigned* a, unsigned* out) {\n'
                "  __shared__ __align__(16) unsigned s[128];\n  const int t = threadIdx.x;\n"
                "  for (int i = t; i < 128; i += 32) s[i] = a[i];\n  __syncwarp();\n"
                "  const unsigned at = (unsigned)__cvta_generic_to_shared(s + 4 * t);\n"
                f"  unsigned d[{count}];\n"
                f'  asm volatile("ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 '
                f"{{{names}}}, "
                f'[%{count}];" : {outs} : "r"(at));\n'
                f"  for (int i = 0; i < {count}; ++i) out[32 * i + t] = d[i];\n}}\n"
            )
            made.append(
                Case(f"ldmatrix.x{count}{trans}", source,
                     lambda random: [random.integers(0, 1 << 32, 128).astype(np.uint32)],
                     np.uint32, 32 * count, block=32)
            )  # fmt: skip
    return made


_BARRIER = """
typedef unsigned long long u64;
extern "C" __global__ void t(const unsigned* a, unsigned* out) {
  __shared__ u64 b;
  __shared__ __align__(128) unsigned s[128];
  const int t = threadIdx.x;
  const unsigned at = (unsigned)__cvta_generic_to_shared(&b);
  const unsigned to = (unsigned)__cvta_generic_to_shared(s);
  if (t == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], INIT;" :: "r"(at) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
  }
  __syncthreads();
  BODY
}
"""
_WAIT = """
  for (unsigned done = 0; !done;)
    asm volatile("{ .reg .pred p; mbarrier.WAIT p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(at), ARG : "memory");
"""


def _barrier(name: str, init: int, body: str, wait: str, argument: str) -> Case:
    waits = _WAIT.replace("WAIT", wait).replace("ARG", argument)
    source = _BARRIER.replace("INIT", str(init)).replace("BODY", body.replace("WAITS", waits))
    return Case(
        name, source, lambda random: [random.integers(0, 1 << 32, 128).astype(np.uint32)],
        np.uint32, 128, block=128,
    )  # fmt: skip


def barriers() -> list[Case]:
    """mbarrier objects and the copies that complete on them: what arrives, and which phase a wait
    sees. Bulk copies need sm_90."""
    read = "  WAITS\n  out[t] = s[127 - t];"
    state = '"l"(state)'
    arrive = (
        "  s[t] = a[t];\n  u64 state;\n"
        '  asm volatile("mbarrier.ARRIVE" : "=l"(state) : "r"(at) : "memory");\n' + read
    )
    made = [
        _barrier(f"mbarrier.{name}.{wait}", init, arrive.replace("ARRIVE", text), wait, state)
        for name, init, text in (
            ("arrive", 128, "arrive.shared.b64 %0, [%1];"),
            ("arrive.count", 256, "arrive.release.cta.shared::cta.b64 %0, [%1], 2;"),
        )
        for wait in ("test_wait.shared.b64", "try_wait.shared.b64")
    ]
    parity = '"r"(0)'
    copy = (
        '  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"'
        ' :: "r"(to + 4 * t), "l"(a + t));\n'
        '  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];"'
        ' :: "r"(at) : "memory");\n' + read
    )
    made.append(
        _barrier("cp.async.mbarrier.arrive.noinc", 128, copy, "test_wait.parity.shared.b64", parity)
    )
    bulk = (
        "  if (t == 0) {\n"
        '    asm volatile("mbarrier.EXPECT" :: "r"(at) : "memory");\n'
        '    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes '
        '[%0], [%1], 512, [%2];" :: "r"(to), "l"(a), "r"(at) : "memory");\n  MORE}\n' + read
    )
    expects = {
        "arrive.expect_tx": ("arrive.expect_tx.shared::cta.b64 _, [%0], 512;", ""),
        "expect_tx": (
            "expect_tx.relaxed.cta.shared::cta.b64 [%0], 512;",
            '  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" :: "r"(at) : "memory");\n',
        ),
    }
    for name, (text, more) in expects.items():
        body = bulk.replace("EXPECT", text).replace("MORE", more)
        made.append(
            _barrier(f"cp.async.bulk.{name}", 1, body, "try_wait.parity.shared::cta.b64", parity)
        )
    return made


# Not yet run on a GPU: `--new` runs these alone, and their outputs then join the others.
NEW_GROUPS: dict[str, Callable[[], list[Case]]] = {}

GROUPS = {
    "conversions": conversions,
    "integers and bits": arithmetic,
    "floating point": floating,
    "shuffles, votes, matches": warps,
    "matrices": matrices,
    "barriers and bulk copies": barriers,
    **ptx_hopper.GROUPS,
}


def cases() -> list[Case]:
    return [case for group in GROUPS.values() for case in group()]


def encoded(x: Any) -> str:
    return base64.b64encode(zlib.compress(x.tobytes(), 9)).decode()


def decoded(text: str, dtype: Any) -> Any:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype)


def compare_all(stored: dict[str, Any], output: Path | None) -> None:
    rows = []
    for group, made in GROUPS.items():
        for case in made():
            row = compare(case, emulated(case), decoded(stored["outputs"][case.name], case.dtype))
            rows.append({"group": group, "right": row.right, **dataclasses.asdict(row)})
            mark = "" if row.right else "  DIFFERS"
            open_ = f"  {row.open} open, {row.open_same} of them equal" if row.open else ""
            print(f"{row.name:32} {row.distance:12g} of {row.bound:g}{open_}{mark}")
    if output:
        output.write_text(
            json.dumps({"gpu": stored["gpu"], "date": stored["date"], "cases": rows}, indent=1)
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--emulate", action="store_true")
    parser.add_argument("--compare", type=Path)
    parser.add_argument("--new", action="store_true", help="only groups without stored outputs")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    if given.compare:
        return compare_all(json.loads(given.compare.read_text()), given.output)
    outputs, failed = {}, {}
    chosen = [c for made in NEW_GROUPS.values() for c in made()] if given.new else cases()
    for case in chosen:
        try:
            outputs[case.name] = encoded(emulated(case) if given.emulate else on_gpu(case))
        except Exception as error:
            failed[case.name] = f"{type(error).__name__}: {error}"
            print(case.name, failed[case.name])
    if given.emulate:
        gpu = "emulator"
    else:
        import torch

        gpu = torch.cuda.get_device_name()
    day = datetime.date.today().isoformat()
    folder = gpu.removeprefix("NVIDIA ").lower().replace(" ", "-")
    path = given.output or Path(f"results/{folder}/{day}-ptx.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps({"gpu": gpu, "date": day, "outputs": outputs, "failed": failed}, indent=1)
    )
    print(f"{len(outputs)} cases, {len(failed)} failed: {path}")


if __name__ == "__main__":
    main()
