"""Time gated_recurrence on a GPU against flash-linear-attention and the loop over steps.

    python benchmarks/gated_recurrence.py [--rows NAME...] [--output FILE]

flash-linear-attention (the package fla-core) is left out where it is not installed. It has no gates
of values: beside such a row stands its kernel for key gates of the same sizes. Every contender is
captured into a CUDA graph of some calls, and the replays of all of them take turns (the loop over
steps, thousands of launches, by itself). Errors are of
root mean squares, relative to float64. Writes results/<gpu>/gated_recurrence.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from mla_kv import timed

from kernelproof.environment import capture
from kernelproof.ops.gated_recurrence import cuda, reference
from kernelproof.ops.gated_recurrence.explaining import explain

ROOT = Path(__file__).resolve().parents[1]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# Launches of a captured graph that the loop over steps may have.
_EAGER_STEPS = 1024
_LETTERS = "kvh"


@dataclasses.dataclass(frozen=True)
class Row:
    """One problem. ``gates``: letters of the axes that are gated; gates are float32."""

    name: str
    kind: str  # "target", "shape", "steps" or "decode"
    gates: str
    batch: int
    steps: int
    heads: int
    key_dim: int
    value_dim: int
    dtype: str = "bf16"
    key_heads: int = 0  # 0: as many as heads
    sequences: int = 0  # packed ones of equal lengths; 0: a batch
    calls: int = 10
    rounds: int = 9

    @property
    def bytes(self) -> int:
        """Each input read once, y written once; for a step, the state read and written."""
        element, tokens = DTYPES[self.dtype].itemsize, self.batch * self.steps
        key_heads = self.key_heads or self.heads
        widths = {"k": self.key_dim, "v": self.value_dim, "h": 1}
        size = tokens * element * 2 * (key_heads * self.key_dim + self.heads * self.value_dim)
        size += tokens * 4 * self.heads * sum(widths[letter] for letter in self.gates)
        if self.kind == "decode":
            size += self.batch * self.heads * self.key_dim * self.value_dim * 8
        return size


LARGE = {
    "B8 T2048 H16 64x64": (8, 2048, 16, 64, 64),
    "B4 T4096 H8 128x128": (4, 4096, 8, 128, 128),
    "B1 T16384 H16 128x128": (1, 16384, 16, 128, 128),
    "B2 T2048 H4 256x512": (2, 2048, 4, 256, 512),
}
_GATE = {"k": "key gate", "v": "value gate", "h": "head gate"}
ROWS = [
    Row("founding, value gate", "target", "v", 2, 128, 4, 24, 24, "fp32", calls=100),
    *(
        Row(f"{name}, {_GATE[gate]}", "target", gate, *sizes)
        for name, sizes in LARGE.items()
        for gate in "kvh"
    ),
    Row("step, B64 H32 128x128, head gate", "decode", "h", 64, 1, 32, 128, 128, calls=20),
    Row("step, B64 H32 128x128, key gate", "decode", "k", 64, 1, 32, 128, 128, calls=20),
    *(
        Row(f"T {2**i:,}", "steps", "k", 1, 2**i, 16, 128, 128, calls=40 if i < 11 else 10)
        for i in range(6, 17)
    ),
    *(
        Row(f"{d} {g or 'no gate'} B{b} T{t} H{h} {k}x{v}"
            f"{f' of {hq} key heads' if hq else ''}{f', {n} packed' if n else ''}",
            "shape", g, b, t, h, k, v, d, hq, n)
        for g, b, t, h, k, v, d, hq, n in (
            ("k", 1, 64, 4, 64, 64, "bf16", 0, 0),
            ("k", 2, 512, 8, 64, 64, "bf16", 0, 0),
            ("k", 4, 1000, 16, 64, 128, "bf16", 0, 0),
            ("k", 1, 4096, 4, 64, 64, "bf16", 0, 0),
            ("k", 1, 8192, 32, 128, 128, "bf16", 0, 0),
            ("k", 16, 333, 8, 128, 128, "bf16", 0, 0),
            ("k", 2, 1500, 4, 128, 256, "bf16", 4, 0),
            ("k", 1, 2048, 2, 256, 256, "bf16", 0, 0),
            ("k", 1, 8192, 16, 128, 128, "bf16", 0, 8),
            ("k", 1, 16384, 8, 64, 64, "bf16", 0, 64),
            ("k", 2, 777, 5, 72, 40, "bf16", 0, 0),
            ("k", 2, 1024, 8, 64, 64, "fp32", 0, 0),
            ("h", 8, 2048, 16, 64, 64, "bf16", 0, 0),
            ("h", 4, 4096, 8, 128, 128, "bf16", 0, 0),
            ("h", 1, 8192, 16, 128, 128, "bf16", 4, 0),
            ("h", 1, 8192, 16, 64, 64, "bf16", 0, 16),
            ("h", 2, 600, 8, 48, 80, "bf16", 0, 0),
            ("", 4, 2048, 8, 64, 64, "bf16", 0, 0),
            ("kh", 4, 2048, 8, 64, 64, "bf16", 0, 0),
            ("kv", 2, 1024, 4, 64, 64, "bf16", 0, 0),
        )
    ),
]  # fmt: skip


def operands(row: Row) -> tuple[list[torch.Tensor | None], torch.Tensor | None]:
    """q, k, v, the gates, and ``cu_seqlens``."""
    dtype, key_heads = DTYPES[row.dtype], row.key_heads or row.heads
    sizes = (row.batch, row.steps)
    q, k = (torch.randn(*sizes, key_heads, row.key_dim, device="cuda").to(dtype) for _ in range(2))
    q = (q.float() * row.key_dim**-0.5).to(dtype)
    made: list[torch.Tensor | None] = [q, k]
    made.append(torch.randn(*sizes, row.heads, row.value_dim, device="cuda").to(dtype))
    for letter, width in zip(_LETTERS, ((row.key_dim,), (row.value_dim,), ()), strict=True):
        # As models have them: log(sigmoid) over 16.
        gate = torch.randn(*sizes, row.heads, *width, device="cuda")
        gate = torch.exp(torch.nn.functional.logsigmoid(gate) / 16)
        made.append(gate if letter in row.gates else None)
    bounds = None
    if row.sequences:
        length = row.steps // row.sequences
        bounds = torch.arange(0, row.steps + 1, length, device="cuda", dtype=torch.int32)
    return made, bounds


def of_fla(row: Row, given: list[Any], bounds: Any) -> tuple[str, Callable[[], Any]] | None:
    """Its fastest kernel for such gates, which are logarithms there."""
    try:
        from fla.ops.gla import chunk_gla, fused_recurrent_gla
        from fla.ops.simple_gla import chunk_simple_gla, fused_recurrent_simple_gla
    except ImportError:
        return None
    q, k, v, *gates = given
    if row.key_heads:
        q, k = (x.repeat_interleave(row.heads // row.key_heads, 2) for x in (q, k))
    options: dict[str, Any] = {"scale": 1.0}
    if bounds is not None:
        options["cu_seqlens"] = bounds.long()
    logs = [None if gate is None else gate.log() for gate in gates]
    if row.kind == "decode":
        options["initial_state"] = torch.randn(
            row.batch, row.heads, row.key_dim, row.value_dim, device="cuda"
        )
        options["output_final_state"] = True
    elif row.gates in ("k", "v", "kh") and row.steps > 128:
        log = (
            logs[0] if logs[0] is not None else torch.randn(k.shape, device="cuda").abs().neg() / 16
        )
        if row.gates == "kh":
            log = log + logs[2].unsqueeze(-1)
        return "chunk_gla", lambda: chunk_gla(q, k, v, log, **options)
    elif row.gates in ("h", ""):
        log = logs[2] if row.gates else torch.zeros(v.shape[:3], device="cuda")
        return "chunk_simple_gla", lambda: chunk_simple_gla(q, k, v, log, **options)
    if row.gates == "h":
        one = logs[2]
        return "fused_recurrent_simple_gla", lambda: fused_recurrent_simple_gla(
            q, k, v, one, **options
        )
    return "fused_recurrent_gla", lambda: fused_recurrent_gla(
        q, k, v, gk=logs[0], gv=logs[1], **options
    )


def contenders(row: Row, given: list[Any], bounds: Any) -> dict[str, Callable[[], Any]]:
    if row.kind == "decode":
        state = torch.randn(row.batch, row.heads, row.key_dim, row.value_dim, device="cuda")
        found = {"kernelproof": lambda: cuda.launch_step(*given, 1.0, state)}
    else:
        found = {"kernelproof": lambda: cuda.launch(*given, cu_seqlens=bounds)[0]}
    other = of_fla(row, given, bounds)
    if other is not None:
        found[other[0]] = other[1]
    if row.steps <= _EAGER_STEPS and not row.sequences and row.kind in ("target", "steps"):
        found["eager"] = lambda: reference.run(*given)[0]
    return found


def exact(given: list[Any], bounds: Any) -> torch.Tensor:
    """y in float64, by chunks of 32 steps where gates allow it to be divided, else step by step."""
    q, k, v, *gates = (None if x is None else x.double() for x in given)
    if bounds is not None or k.shape[2] != v.shape[2] or sum(g is not None for g in gates) != 1:
        return reference.run(q, k, v, *gates, cu_seqlens=bounds)[0]
    out = torch.empty_like(v)
    shape = (v.shape[0], v.shape[2], k.shape[3], v.shape[3])
    state = torch.zeros(shape, device="cuda", dtype=torch.float64)
    for first in range(0, v.shape[1], 32):
        part = slice(first, min(first + 32, v.shape[1]))
        a, b, c = (x[:, part].transpose(1, 2) for x in (q, k, v))
        rows, columns, heads = (None if g is None else g[:, part].transpose(1, 2) for g in gates)
        rows = heads.unsqueeze(-1) if heads is not None else rows
        if rows is not None:
            p = rows.cumprod(2)
            scores = ((a * p) @ (b / p).mT).tril()
            y = (a * p) @ state + scores @ c
            state = p[:, :, -1:].mT * (state + (b / p).mT @ c)
        else:
            p = columns.cumprod(2)
            y = p * (a @ state + (a @ b.mT).tril() @ (c / p))
            state = p[:, :, -1:] * (state + b.mT @ (c / p))
        out[:, part] = y.transpose(1, 2)
    return out


def errors(row: Row, calls: dict[str, Callable[[], Any]], given: list[Any], bounds: Any) -> Any:
    """Of each contender that computes this very function."""
    if row.kind in ("decode", "steps"):
        return {}
    true = exact(given, bounds)
    found = {}
    for name, call in calls.items():
        if "v" in row.gates and "chunk" in name:
            continue
        y = call()
        y = (y[0] if isinstance(y, tuple) else y).double()
        found[name] = float((y - true).norm() / true.norm())
    return found


def measured(row: Row) -> dict[str, Any]:
    torch.manual_seed(0)
    given, bounds = operands(row)
    calls = contenders(row, given, bounds)
    q, k, v, gate_k, gate_v, gate_head = given
    assert q is not None and k is not None and v is not None
    text = explain(
        q, k, v, gate_k=gate_k, gate_v=gate_v, gate_head=gate_head, cu_seqlens=bounds
    ).splitlines()
    design = "step.cu" if row.kind == "decode" else text[1].strip().split(",")[0].split(" on ")[0]
    alone = {"eager": calls["eager"]} if "eager" in calls else {}
    errors_of = errors(row, calls, given, bounds)
    together = {name: call for name, call in calls.items() if name not in alone}
    few = dataclasses.replace(row, calls=1, rounds=5)
    seconds = timed({n: lambda _, c=c: c() for n, c in together.items()}, row)
    seconds |= timed({n: lambda _, c=c: c() for n, c in alone.items()}, few)
    return {
        **dataclasses.asdict(row),
        "bytes": row.bytes,
        "design": design,
        "errors": errors_of,
        "seconds": seconds,
    }


def told(result: dict[str, Any]) -> str:
    medians = {name: statistics.median(t) for name, t in result["seconds"].items()}
    words = ", ".join(f"{name} {t * 1e6:.2f} us" for name, t in medians.items())
    error = ", ".join(f"{name} {e:.2e}" for name, e in result["errors"].items())
    return f"{result['name']}: {words}; errors {error or '-'} ({result['design']})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", nargs="*", default=None, help="kinds or names; all by default")
    parser.add_argument("--commit", default="", help="of the sources, where git cannot tell")
    output = ROOT / "results" / "h200" / "gated_recurrence.json"
    parser.add_argument("--output", type=Path, default=output)
    given = parser.parse_args()
    environment = capture().model_dump()
    environment["commit"] = environment["commit"] or given.commit
    report = {"date": datetime.date.today().isoformat(), "environment": environment, "rows": []}
    with torch.no_grad():
        for row in ROWS:
            if given.rows and row.name not in given.rows and row.kind not in given.rows:
                continue
            report["rows"].append(measured(row))
            print(told(report["rows"][-1]), flush=True)
            given.output.write_text(json.dumps(report, indent=1) + "\n")
            torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
