"""Time mla_kv on a GPU against matrix products of PyTorch, over sizes, dtypes and layouts.

    python benchmarks/mla_kv.py [--rows NAME...] [--output FILE]

Every contender of a row is captured into a CUDA graph of some calls, and the replays of all of them
take turns. A row has the seconds of a call in each replay. "hot": the same operands in every call;
"cold": several sets of weights in turn, together larger than the L2 cache. Writes
results/<gpu>/mla_kv.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kernelproof.environment import capture
from kernelproof.ops.mla_kv import cuda, mla_kv

ROOT = Path(__file__).resolve().parents[1]
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
COLD_SETS = 5


@dataclasses.dataclass(frozen=True)
class Row:
    """One problem. ``form``: how the weights lie, "packed" as DeepSeek's kv_b_proj does."""

    name: str
    kind: str  # "target", "shape" or "tokens"
    tokens: int
    model: int
    rank: int
    heads: int
    dim: int
    dtype: str = "bf16"
    form: str = "in_out"
    rope: int = 0
    norm: bool = False
    cold: bool = False
    gradients: bool = False
    calls: int = 40
    rounds: int = 9

    @property
    def flops(self) -> int:
        return 2 * self.tokens * self.rank * (self.model + 2 * self.heads * self.dim)

    @property
    def bytes(self) -> int:
        """Each operand read once, the result written once."""
        columns = 2 * self.heads * self.dim
        elements = self.tokens * (self.model + columns + self.rope + self.heads * self.rope)
        weights = self.rank * (self.model + columns)
        return (elements + weights) * DTYPES[self.dtype].itemsize


V3 = (7168, 512, 128, 128)
LITE = (2048, 512, 16, 128)
ROWS = [
    Row("founding", "target", 384, 256, 48, 4, 32, "fp32", calls=100),
    Row(
        "founding, forward and backward", "target", 384, 256, 48, 4, 32, "fp32", gradients=True,
        calls=20,
    ),
    Row("V3, 1 token, hot", "target", 1, *V3),
    Row("V3, 1 token, cold", "target", 1, *V3, cold=True),
    Row("V3, 16 tokens, hot", "target", 16, *V3),
    Row("V3, 16 tokens, cold", "target", 16, *V3, cold=True),
    Row("V3, 256 tokens, hot", "target", 256, *V3),
    Row("V3, 256 tokens, cold", "target", 256, *V3, cold=True),
    Row("V3, 4,096 tokens, sustained", "target", 4096, *V3, calls=20, rounds=15),
    Row(
        "V2-Lite, 8,192 tokens, norm and k_pe", "target", 8192, *LITE, form="packed", rope=64,
        norm=True, calls=20,
    ),
    *(
        Row(f"{d} {n} x {m}, R {r}, H {h}, D {dim}", "shape", n, m, r, h, dim, d, calls=calls)
        for n, m, r, h, dim, d, calls in (
            (1, 1024, 256, 8, 64, "fp32", 40),
            (16, 2048, 512, 16, 128, "fp32", 40),
            (333, 1000, 100, 5, 60, "fp32", 40),
            (100, 300, 8, 2, 24, "fp32", 40),
            (4096, 512, 64, 8, 64, "fp32", 40),
            (2048, 2048, 512, 16, 128, "fp32", 20),
            (65536, 256, 48, 4, 32, "fp32", 20),
            (1, 2048, 512, 16, 128, "bf16", 40),
            (8, 5120, 512, 128, 128, "bf16", 40),
            (32, 7168, 512, 128, 128, "bf16", 40),
            (64, 2048, 512, 16, 128, "bf16", 40),
            (512, 4096, 256, 32, 64, "bf16", 40),
            (1000, 777, 200, 7, 40, "bf16", 40),
            (16384, 2048, 512, 16, 128, "bf16", 10),
            (65536, 1024, 128, 8, 64, "bf16", 10),
            (1, 4096, 1024, 32, 128, "fp16", 40),
            (16, 333, 77, 3, 21, "fp16", 40),
            (300, 2560, 1536, 20, 64, "fp16", 40),
            (2048, 1536, 8, 16, 64, "fp16", 40),
            (32768, 512, 64, 8, 64, "fp16", 10),
        )
    ),
    *(
        Row(f"V2-Lite, {n:,} tokens", "tokens", n, *LITE, calls=40 if n < 4096 else 10)
        for n in (2**i for i in range(17))
    ),
]  # fmt: skip


def operands(row: Row, device: str = "cuda") -> tuple[list[torch.Tensor], dict[str, Any]]:
    """What `project_cuda` takes, random."""
    dtype = DTYPES[row.dtype]

    def made(*sizes: int, scale: float = 1.0) -> torch.Tensor:
        if device == "meta":
            return torch.empty(sizes, dtype=dtype, device=device)
        return (scale * torch.randn(*sizes, device=device)).to(dtype)

    a, b, columns = row.model**-0.5, row.rank**-0.5, row.heads * row.dim
    hidden = made(row.tokens, row.model)
    if row.form == "packed":
        both = made(row.heads, 2 * row.dim, row.rank, scale=b).permute(2, 0, 1)
        weights = [made(row.rank, row.model, scale=a).t()]
        weights += [both[..., : row.dim], both[..., row.dim :]]
    else:
        # w_up_v follows w_up_k in memory: the matrix library steps from one to the other.
        weights = [made(row.model, row.rank, scale=a), *made(2, row.rank, columns, scale=b)]
    options = {
        "kv_heads": row.heads,
        "norm_weight": made(row.rank) if row.norm else None,
        "k_pe": made(row.tokens, 1, row.rope) if row.rope else None,
        "layout": "split" if row.rope else "stacked",
    }
    return [hidden, *weights], options


def two_matmuls(operands: list[torch.Tensor], options: dict[str, Any]) -> Callable[[], Any]:
    """The up-weights joined beforehand; nothing but the two products."""
    hidden, down, up_k, up_v = operands
    joined = torch.cat((up_k, up_v), 1)
    return lambda: torch.mm(torch.mm(hidden, down), joined)


def model_chain(operands: list[torch.Tensor], options: dict[str, Any]) -> Callable[[], Any]:
    """As a model has it: linear layers with a packed kv_b_proj, rms_norm, split, cat of k_pe."""
    hidden, down, up_k, up_v = operands
    heads, rope, norm = options["kv_heads"], options["k_pe"], options["norm_weight"]
    rank, dim = down.shape[1], up_k.shape[-1]
    a_proj = down.t()
    b_proj = torch.cat((up_k, up_v), 2).permute(1, 2, 0).reshape(2 * heads * dim, rank).contiguous()
    functional = torch.nn.functional

    def run() -> Any:
        latent = functional.rms_norm(functional.linear(hidden, a_proj), (rank,), norm, 1e-6)
        k, v = functional.linear(latent, b_proj).view(-1, heads, 2 * dim).split([dim, dim], -1)
        return torch.cat((k, rope.expand(-1, heads, -1)), -1), v

    return run


def trained(row: Row) -> dict[str, Callable[[int], Any]]:
    """Forward and backward: gradients of every operand."""
    given, options = operands(row)
    leaves = [t.requires_grad_() for t in given]
    heads = options["kv_heads"]
    grad = torch.randn(row.tokens, 2, heads, row.dim, device="cuda").to(given[0].dtype)

    def eager() -> torch.Tensor:
        hidden, down, up_k, up_v = leaves
        latent = hidden @ down
        parts = [(latent @ w).view(row.tokens, heads, row.dim) for w in (up_k, up_v)]
        return torch.stack(parts, 1)

    calls = {"mla_kv": lambda: mla_kv(*leaves, kv_heads=heads), "eager": eager}
    return {
        name: (lambda number, call=call: torch.autograd.grad(call(), leaves, grad))
        for name, call in calls.items()
    }


def contenders(row: Row) -> dict[str, Callable[[int], Any]]:
    """By name, a function of the number of the call."""
    if row.gradients:
        return trained(row)
    sets = [operands(row) for _ in range(COLD_SETS if row.cold else 1)]
    hidden = sets[0][0][0]
    sets = [([hidden, *weights], options) for (_, *weights), options in sets]
    found: dict[str, list[Callable[[], Any]]] = {
        "mla_kv": [lambda s=s: cuda.project_cuda(*s[0], **s[1]) for s in sets]
    }
    if row.norm or row.rope:
        eager = model_chain(*sets[0])
        compiled = torch.compile(eager)
        compiled()
        found |= {"eager chain": [eager], "torch.compile": [compiled]}
    else:
        found["two matmuls"] = [two_matmuls(*s) for s in sets]
    return {
        name: (lambda number, calls=calls: calls[number % len(calls)]())
        for name, calls in found.items()
    }


def captured(call: Callable[[int], Any], calls: int) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for number in range(COLD_SETS):
            call(number)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(calls):
            call(number)
    return graph


def timed(calls: dict[str, Callable[[int], Any]], row: Row) -> dict[str, list[float]]:
    """Seconds of a call in each replay, by contender."""
    graphs = {name: captured(call, row.calls) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for number in range(row.rounds + 2):
        for name, graph in graphs.items():
            start, end = torch.cuda.Event(True), torch.cuda.Event(True)
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            if number >= 2:  # the first replays warm up
                times[name].append(start.elapsed_time(end) / row.calls / 1e3)
    return times


def host_seconds(row: Row, number: int = 200) -> dict[str, float]:
    """Host time of one eager call, by contender: the fastest of some loops, which take turns."""
    given, options = operands(row)
    two = two_matmuls(given, options)
    calls = {"mla_kv": lambda: mla_kv(*given, **options), "two matmuls": two}
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(30):
        for name, call in calls.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(number):
                call()
            best[name] = min(best[name], (time.perf_counter() - start) / number)
    return best


def measured(row: Row) -> dict[str, Any]:
    torch.manual_seed(0)
    calls = contenders(row)
    given, options = operands(row, "meta")
    result = {
        **dataclasses.asdict(row),
        "flops": row.flops,
        "bytes": row.bytes,
        "design": cuda.explain_cuda(*given, **options).splitlines(),
        "seconds": timed(calls, row),
    }
    if row.name == "founding":
        result["host_seconds"] = host_seconds(row)
    return result


def told(result: dict[str, Any]) -> str:
    medians = {name: statistics.median(t) for name, t in result["seconds"].items()}
    best = min(t for name, t in medians.items() if name != "mla_kv")
    words = ", ".join(f"{name} {t * 1e6:.2f} us" for name, t in medians.items())
    design = result["design"][0].split(":")[0]
    return f"{result['name']}: {words}; ratio {medians['mla_kv'] / best:.3f} ({design})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", nargs="*", default=None, help="kinds or names; all by default")
    parser.add_argument("--commit", default="", help="of the sources, where git cannot tell")
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "h200" / "mla_kv.json")
    given = parser.parse_args()
    environment = capture().model_dump()
    environment["commit"] = environment["commit"] or given.commit
    report = {"date": datetime.date.today().isoformat(), "environment": environment, "rows": []}
    for row in ROWS:
        if given.rows and row.name not in given.rows and row.kind not in given.rows:
            continue
        report["rows"].append(measured(row))
        print(told(report["rows"][-1]), flush=True)
        given.output.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
