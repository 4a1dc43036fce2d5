"""The problems that benchmarks/gated_recurrence.py times, and their operands."""

from __future__ import annotations

import dataclasses

import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_LETTERS = "kvh"
_GATE = {"k": "key gate", "v": "value gate", "h": "head gate"}


@dataclasses.dataclass(frozen=True)
class Row:
    """One problem. ``gates``: letters of the axes that are gated; gates are float32."""

    name: str
    kind: str  # "target", "fp32", "backward", "shape", "steps" or "decode"
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
        """Each input read once, y written once; for a step, the state read and written; with
        the backward, the inputs and the gradient of y read once more and the gradients written."""
        element, tokens = DTYPES[self.dtype].itemsize, self.batch * self.steps
        key_heads = self.key_heads or self.heads
        widths = {"k": self.key_dim, "v": self.value_dim, "h": 1}
        rows = tokens * element * key_heads * self.key_dim  # of q, and of k
        columns = tokens * element * self.heads * self.value_dim  # of v, and of y
        gates = tokens * 4 * self.heads * sum(widths[letter] for letter in self.gates)
        size = 2 * rows + 2 * columns + gates
        if self.kind == "decode":
            size += self.batch * self.heads * self.key_dim * self.value_dim * 8
        if self.kind == "backward":
            size += 4 * rows + 3 * columns + 2 * gates
        return size


LARGE = {
    "B8 T2048 H16 64x64": (8, 2048, 16, 64, 64),
    "B4 T4096 H8 128x128": (4, 4096, 8, 128, 128),
    "B1 T16384 H16 128x128": (1, 16384, 16, 128, 128),
    "B2 T2048 H4 256x512": (2, 2048, 4, 256, 512),
}
# Sizes of one head are few, because flash-linear-attention tunes its kernels anew for each.
_SHAPES = (
    ("k", 1, 64, 16, 64, 64, "bf16", 0, 0),
    ("k", 2, 512, 16, 64, 64, "bf16", 0, 0),
    ("k", 4, 1001, 16, 64, 64, "bf16", 0, 0),
    ("k", 1, 4096, 16, 64, 64, "bf16", 0, 0),
    ("k", 1, 8192, 16, 128, 128, "bf16", 0, 0),
    ("k", 16, 333, 8, 128, 128, "bf16", 0, 0),
    ("k", 2, 1500, 8, 128, 128, "bf16", 4, 0),
    ("k", 1, 2048, 4, 256, 512, "bf16", 0, 0),
    ("k", 1, 8192, 16, 128, 128, "bf16", 0, 8),
    ("k", 1, 16384, 16, 64, 64, "bf16", 0, 64),
    ("k", 2, 777, 5, 72, 40, "bf16", 0, 0),
    ("k", 2, 1024, 16, 64, 64, "fp32", 0, 0),
    ("k", 2, 1024, 16, 64, 64, "fp16", 0, 0),
    ("h", 2, 4096, 16, 64, 64, "bf16", 0, 0),
    ("h", 1, 8192, 16, 128, 128, "bf16", 4, 0),
    ("h", 1, 8192, 16, 64, 64, "bf16", 0, 16),
    ("h", 2, 600, 8, 48, 80, "bf16", 0, 0),
    ("", 4, 2048, 16, 64, 64, "bf16", 0, 0),
    ("kh", 4, 2048, 16, 64, 64, "bf16", 0, 0),
    ("kv", 2, 1024, 4, 64, 64, "bf16", 0, 0),
)


def _shape_name(g: str, b: int, t: int, h: int, k: int, v: int, d: str, hq: int, n: int) -> str:
    name = f"{d} {g or 'no gate'} B{b} T{t} H{h} {k}x{v}"
    return f"{name}{f' of {hq} key heads' if hq else ''}{f', {n} packed' if n else ''}"


ROWS = [
    Row("founding, value gate", "target", "v", 2, 128, 4, 24, 24, "fp32", calls=100),
    *(
        Row(f"{name}, {_GATE[gate]}", "target", gate, *sizes)
        for name, sizes in LARGE.items()
        for gate in "kvh"
    ),
    *(
        Row(f"fp32 {name}, {_GATE[gate]}", "fp32", gate, *sizes, "fp32")
        for name, sizes in LARGE.items()
        for gate in "kv"
    ),
    *(
        Row(f"backward {name}, {_GATE[gate]}", "backward", gate, *sizes, calls=4, rounds=7)
        for name, sizes in LARGE.items()
        for gate in "kvh"
    ),
    *(
        Row(f"step, B64 H32 128x128, {_GATE[gate]}", "decode", gate, 64, 1, 32, 128, 128, calls=20)
        for gate in "hkv"
    ),
    *(
        Row(f"T {2**i:,}", "steps", "k", 1, 2**i, 16, 128, 128, calls=40 if i < 11 else 10)
        for i in range(6, 17)
    ),
    *(Row(_shape_name(*s), "shape", *s) for s in _SHAPES),
]


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
