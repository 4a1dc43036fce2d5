"""Time int8_attention on a GPU against bf16 attention of PyTorch (cuDNN, flash) and SageAttention.

    python benchmarks/int8_attention.py [--rows NAME...] [--output FILE]

Every contender of a row is captured into a CUDA graph of some calls, and the replays of all of them
take turns. Ours get int8 values, so what they need to convert them is in their time; "fp16 V" gets
values that a cache already holds as fp16. The others get bf16 tensors, dequantised beforehand, in
the layout that they prefer; Sage's kernel gets the same int8 queries and keys, and its fp16 values
are converted in the call. A contender that refuses a row is named with its reason. Errors: relative
rms against float64 over some queries of two heads. Writes results/<gpu>/int8_attention.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import inspect
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from mla_kv import timed
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernelproof.environment import capture
from kernelproof.ops.int8_attention import explain, int8_attention
from kernelproof.ops.int8_attention.problem import DequantisedSDPA

ROOT = Path(__file__).resolve().parents[1]
LOG2_E = 1.4426950408889634
SAMPLE = 48  # queries whose errors are looked at
Call = Callable[[], Any]


@dataclasses.dataclass(frozen=True)
class Row:
    """One problem. ``keys`` 0: as many as queries. ``packed``: sequences of 1 to ``seq`` tokens.
    ``page``: slots of a page of the cache."""

    name: str
    kind: str  # "target", "length" or "decode"
    batch: int
    seq: int
    heads: int
    dim: int
    kv_heads: int = 0
    keys: int = 0
    causal: bool = True
    packed: int = 0
    page: int = 0
    scales: str = "head"
    calls: int = 5
    rounds: int = 9

    @property
    def lengths(self) -> list[tuple[int, int]]:
        """(queries, keys) of each sequence."""
        if not self.packed:
            return [(self.seq, self.keys or self.seq)] * self.batch
        some = torch.randint(1, self.seq + 1, (self.packed,), generator=torch.manual_seed(1))
        return [(n, n) for n in some.tolist()]

    @property
    def flops(self) -> int:
        """Multiplies and adds of the two products over the visible pairs."""
        pairs = 0
        for queries, keys in self.lengths:
            pairs += queries * keys
            if self.causal:
                pairs -= queries * (queries - 1) // 2
        return 4 * self.heads * self.dim * pairs

    @property
    def bytes(self) -> int:
        """int8 operands read once, the fp32 result written once."""
        queries, keys = (sum(n) for n in zip(*self.lengths, strict=True))
        cache = 2 * (self.kv_heads or self.heads) * keys * self.dim
        return 5 * queries * self.heads * self.dim + cache


A = dict(batch=2, seq=4096, heads=32)
ROWS = [
    Row("founding", "target", 2, 72, 4, 32, calls=100, rounds=15),
    Row("B2 S4096 H32 D128", "target", **A, dim=128),
    Row("B1 S16384 H32 D128", "target", 1, 16384, 32, 128, calls=2),
    Row("B2 S4096 H32 D64", "target", **A, dim=64),
    Row("B1 S8192 H32 of 8 D128", "target", 1, 8192, 32, 128, 8, calls=3),
    Row("B2 S4096 H32 D80", "target", **A, dim=80),
    Row("B2 S4096 H32 D96", "target", **A, dim=96),
    Row("B2 S4096 H32 D256", "target", **A, dim=256, calls=3),
    Row("B2 S4096 H32 D128, all keys", "target", **A, dim=128, causal=False, calls=3),
    Row("B2 S1000 H16 D128", "target", 2, 1000, 16, 128, calls=20),
    Row("64 sequences of 1 to 4,096, H32 D128", "target", 1, 4096, 32, 128, packed=64, calls=2),
    Row("B16, 1 query, 32,768 keys, H32 of 8 D128", "decode", 16, 1, 32, 128, 8, 32768),
    Row("the same, paged by 64", "decode", 16, 1, 32, 128, 8, 32768, page=64),
    Row("the same, pages of one key", "decode", 16, 1, 32, 128, 8, 32768, page=1),
    Row("the same, scales per token", "decode", 16, 1, 32, 128, 8, 32768, scales="token"),
    Row("B1, 1 query, 32,768 keys, H32 of 8 D128", "decode", 1, 1, 32, 128, 8, 32768, calls=20),
    Row("B1, 1 query, 4,096 keys, H32 of 8 D128", "decode", 1, 1, 32, 128, 8, 4096, calls=40),
    Row("B64, 1 query, 4,096 keys, H32 of 8 D128", "decode", 64, 1, 32, 128, 8, 4096),
    Row("B4, 4 queries, 32,768 keys, H32 of 8 D128", "decode", 4, 4, 32, 128, 8, 32768),
    Row("B4, 8 queries, 32,768 keys, H32 of 8 D128", "decode", 4, 8, 32, 128, 8, 32768),
    Row("B16, 1 query, 32,768 keys, H32 of 8 D64", "decode", 16, 1, 32, 64, 8, 32768),
    Row("B8, 1 query, 8,192 keys, H32 D128", "decode", 8, 1, 32, 128, 0, 8192),
    *(
        Row(f"B{16384 // s} S{s} H32 D128", "length", 16384 // s, s, 32, 128, calls=3, rounds=7)
        for s in (512, 1024, 2048, 4096, 8192, 16384)
    ),
]


@dataclasses.dataclass
class Given:
    """What all contenders compute from: int8 tensors (B, S, H, D), scales per head, places."""

    tensors: list[Tensor]  # q, k, v and their scales
    keywords: dict[str, Any]
    wide: list[Tensor]  # q, k, v (B, S, H, D), dequantised to bf16

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.tensors[0].shape[3])


def given(row: Row) -> Given:
    torch.manual_seed(0)
    kv_heads, keys = row.kv_heads or row.heads, row.keys or row.seq
    batch, queries = row.batch, row.seq
    keywords: dict[str, Any] = {"causal": row.causal}
    if row.packed:
        queries = keys = sum(n for n, _ in row.lengths)
        ends = torch.tensor([0, *(n for n, _ in row.lengths)]).cumsum(0).int().cuda()
        keywords |= {"cu_seqlens_q": ends, "cu_seqlens_k": ends}
    shapes = [(batch, n, h) for n, h in ((queries, row.heads), (keys, kv_heads), (keys, kv_heads))]
    values = [
        torch.randint(-127, 128, (*shape, row.dim), dtype=torch.int8, device="cuda")
        for shape in shapes
    ]
    scales = [torch.rand(shape[-1:], device="cuda") * 0.02 + 0.005 for shape in shapes]
    wide = [(x * s.unsqueeze(-1)).bfloat16() for x, s in zip(values, scales, strict=True)]
    if row.scales == "token":
        scales = [s.expand(n).contiguous() for s, n in zip(scales, shapes, strict=True)]
    if row.page:
        count = keys // row.page
        table = torch.randperm(batch * count, device="cuda").int().view(batch, count)
        keywords["kv_lens"] = torch.full((batch,), keys, dtype=torch.int32, device="cuda")
        keywords["block_table"] = table
        for i in (1, 2):
            pages = torch.empty_like(values[i]).view(batch * count, row.page, kv_heads, row.dim)
            pages[table.long().flatten()] = values[i].view_as(pages)
            values[i] = pages
    return Given([*values, *scales], keywords, wide)


# ---- contenders: functions whose results are (B, S, H, D) ----


def ours(row: Row, g: Given) -> dict[str, Call]:
    half = [*g.tensors[:2], g.tensors[2].half(), *g.tensors[3:]]

    def call(tensors: list[Tensor], accuracy: str) -> Call:
        return lambda: int8_attention(*tensors, accuracy=accuracy, **g.keywords)

    found = {tier: call(g.tensors, tier) for tier in ("strict", "high", "fast")}
    if row.kind == "target" and row.name != "founding":
        found |= {f"{tier}, fp16 V": call(half, tier) for tier in ("strict", "high")}
    return found


def of_torch(row: Row, g: Given) -> dict[str, Call]:
    """bf16 through each backend. Decoding takes no mask: the last query sees all keys, and those
    before it a few more than they should, which costs the same."""
    q, k, v = (t.transpose(1, 2).contiguous() for t in g.wide)
    options = {
        "is_causal": row.causal and not row.keys,
        "enable_gqa": q.shape[1] != k.shape[1],
    }

    def call(backend: SDPBackend) -> Call:
        def run() -> Tensor:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, **options).transpose(1, 2)

        return run

    found = {
        "cuDNN bf16": call(SDPBackend.CUDNN_ATTENTION),
        "flash bf16": call(SDPBackend.FLASH_ATTENTION),
    }
    if row.kind == "length":
        found["SDPA bf16"] = lambda: F.scaled_dot_product_attention(q, k, v, **options).transpose(
            1, 2
        )
    return found


def packed_of_torch(row: Row, g: Given) -> dict[str, Call]:
    from torch.nn.attention.varlen import varlen_attn

    q, k, v = (t[0] for t in g.wide)
    ends, most = g.keywords["cu_seqlens_q"], max(n for n, _ in row.lengths)
    names = inspect.signature(varlen_attn).parameters
    causal = {"is_causal": True} if "is_causal" in names else {"window_size": (-1, 0)}

    jagged = [
        torch.nested.nested_tensor_from_jagged(
            t, ends.long(), min_seqlen=min(n for n, _ in row.lengths), max_seqlen=most
        ).transpose(1, 2)
        for t in (q, k, v)
    ]

    def nested() -> Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            out = F.scaled_dot_product_attention(*jagged, is_causal=True)
        return out.transpose(1, 2).values().unsqueeze(0)

    return {
        "cuDNN bf16": nested,
        "flash bf16": lambda: varlen_attn(q, k, v, ends, ends, most, most, **causal).unsqueeze(0),
    }


def sage(row: Row, g: Given) -> dict[str, Call]:
    """Its causal kernel, with the same integers and scales: exponents of 2 for blocks of 128
    queries and 64 keys. Values become fp16 in the call, as their conversion is in ours."""
    if row.dim not in (64, 128) or row.keys or row.packed or not row.causal:
        return {}
    from sageattention.attn_qk_int8_per_block_causal import forward

    q, k, v, q_scale, k_scale, v_scale = g.tensors

    def blocks(scale: Tensor, size: int) -> Tensor:
        count = -(-row.seq // size)
        return scale.view(1, -1, 1, 1).expand(row.batch, -1, count, 1).contiguous()

    scales = blocks(q_scale * (g.scale * LOG2_E), 128), blocks(k_scale, 64)
    v_scale = v_scale.half().view(1, 1, -1, 1)
    return {"Sage": lambda: forward(q, k, v * v_scale, *scales, tensor_layout="NHD")}


def founding(g: Given) -> dict[str, Call]:
    eager = DequantisedSDPA(True)
    compiled = torch.compile(eager)
    return {
        "dequantise and SDPA": lambda: eager(*g.tensors),
        "torch.compile": lambda: compiled(*g.tensors),
    }


def contenders(row: Row, g: Given) -> dict[str, Call]:
    if row.name == "founding":
        return ours(row, g) | founding(g)
    peers = packed_of_torch(row, g) if row.packed else of_torch(row, g)
    return ours(row, g) | peers | sage(row, g)


# ---- what is measured ----


def error(row: Row, g: Given, out: Tensor) -> float:
    """Relative rms against float64 over the last queries and some others of the first and the last
    head of one sequence."""
    q, k, v, *scales = g.tensors
    count, keys = row.lengths[0]
    if row.page:
        table = g.keywords["block_table"][0].long()
        k, v = (t[table].flatten(0, 1) for t in (k, v))
    else:
        k, v = k[0, :keys], v[0, :keys]
    group, causal = q.shape[2] // k.shape[1], row.causal
    at = torch.cat((torch.randint(0, count, (SAMPLE // 2,)), torch.arange(count)[-SAMPLE // 2 :]))
    wrong, size = 0.0, 0.0
    for head in (0, row.heads - 1):
        of = [head, head // group, head // group]
        three = [q[0, :count, of[0]], k[:, of[1]], v[:, of[2]]]
        factors = [
            s[h] if s.dim() == 1 else s[0, : len(t), h]
            for s, h, t in zip(scales, of, three, strict=True)
        ]
        wide = [
            t.double() * (f.double() if f.dim() == 0 else f.double().unsqueeze(-1))
            for t, f in zip(three, factors, strict=True)
        ]
        scores = wide[0][at] @ wide[1].T * g.scale
        if causal:
            last = at.to(scores.device) + keys - count
            unseen = torch.arange(keys, device=scores.device) > last.unsqueeze(1)
            scores = scores.masked_fill(unseen, -math.inf)
        truth = torch.softmax(scores, -1) @ wide[2]
        wrong += float((out[0, :count, head][at].double() - truth).square().sum())
        size += float(truth.square().sum())
    return math.sqrt(wrong / size)


def host_seconds(call: Call, number: int = 500) -> float:
    """Host time of one eager call: the fastest of six loops."""
    best = math.inf
    for _ in range(6):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(number):
            call()
        best = min(best, (time.perf_counter() - start) / number)
    torch.cuda.synchronize()
    return best


def times(row: Row, calls: dict[str, Call]) -> dict[str, list[float]]:
    """Seconds of a call in each round. cuDNN on jagged tensors cannot be captured: its calls follow
    one another from the host, which is ahead of the GPU at those sizes."""
    graphs = {n: lambda _, c=c: c() for n, c in calls.items() if not (row.packed and "cuDNN" in n)}
    found = timed(graphs, row)
    for name in calls.keys() - graphs.keys():
        found[name] = []
        for number in range(row.rounds + 1):
            start, end = torch.cuda.Event(True), torch.cuda.Event(True)
            start.record()
            for _ in range(row.calls):
                calls[name]()
            end.record()
            end.synchronize()
            if number:
                found[name].append(start.elapsed_time(end) / row.calls / 1e3)
    return found


def measured(row: Row) -> dict[str, Any]:
    g = given(row)
    calls, errors, refused = {}, {}, {}
    for name, call in contenders(row, g).items():
        try:
            errors[name] = error(row, g, call())
            torch.cuda.synchronize()
            calls[name] = call
        except (RuntimeError, ValueError, AssertionError, NotImplementedError) as problem:
            refused[name] = str(problem).strip().splitlines()[0][:200]
    result = {
        **dataclasses.asdict(row),
        "flops": row.flops,
        "bytes": row.bytes,
        "design": {
            tier: explain(*g.tensors, accuracy=tier, **g.keywords).splitlines()[1:]
            for tier in ("strict", "high")
        },
        "errors": errors,
        "refused": refused,
        "seconds": times(row, calls),
    }
    if row.name == "founding":
        result["host_seconds"] = {n: host_seconds(c) for n, c in calls.items()}
    return result


def told(result: dict[str, Any]) -> str:
    words = ", ".join(
        f"{name} {statistics.median(t) * 1e6:.2f} us ({result['errors'][name]:.1e})"
        for name, t in result["seconds"].items()
    )
    return f"{result['name']}: {words} {result['refused'] or ''}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", nargs="*", default=None, help="kinds or names; all by default")
    parser.add_argument("--commit", default="", help="of the sources, where git cannot tell")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "results" / "h200" / "int8_attention.json"
    )
    options = parser.parse_args()
    environment = capture().model_dump()
    environment["commit"] = environment["commit"] or options.commit
    report = {"date": datetime.date.today().isoformat(), "environment": environment, "rows": []}
    for row in ROWS:
        if options.rows and row.name not in options.rows and row.kind not in options.rows:
            continue
        report["rows"].append(measured(row))
        print(told(report["rows"][-1]), flush=True)
        options.output.write_text(json.dumps(report, indent=1) + "\n")
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
