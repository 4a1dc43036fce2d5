"""Removes one barrier, warp barrier or wait at a time from the shipped CUDA kernels, and shows what
the emulator reports: a Markdown table on stdout.

python benchmarks/emulate_mutations.py [OPERATOR]
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from kernelproof.emulate.standin import Recorder, standing_in
from kernelproof.ops.gated_recurrence import cuda as gated
from kernelproof.ops.int8_attention import cuda as attention
from kernelproof.ops.int8_attention.contract import Form
from kernelproof.ops.mla_kv import cuda as mla

OPS = Path(gated.__file__).parents[1]
STATEMENT = re.compile(
    r"__syncthreads\(\);|__syncwarp\(\);|__syncthreads_or\(marked\)|wait_copies<\d>\(\);"
    r"|wait_copies_but_last\(\);|asm volatile\(\"cp\.async\.wait_(all|group [^;]*);\"[^;]*\);"
)


class Swapped(Recorder):
    """Launches the source of the same name in another folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def launch(self, source: Any, *rest: Any) -> None:  # type: ignore[override]
        super().launch(self.folder / Path(source).name, *rest)


def _gated(
    steps: int, rows: int, columns: int, gate: float | None = None, heads: int = 1
) -> Callable[[], Any]:
    def run() -> Any:
        torch.manual_seed(0)
        q, k = (torch.randn(1, steps, heads, rows) for _ in range(2))
        v, gates = torch.randn(1, steps, heads, columns), torch.rand(1, steps, heads, columns)
        if gate is not None:
            gates[:, :9] = gate
        return gated.launch(q, k, v, None, gates, None, 1.0, torch.randn(1, heads, rows, columns))

    return run


def _attention(tokens: int, heads: int, dim: int) -> Callable[[], Any]:
    def run() -> Any:
        torch.manual_seed(0)
        q, k, v = (
            torch.randint(-127, 128, (2, tokens, heads, dim), dtype=torch.int8) for _ in range(3)
        )
        scales = [torch.rand(heads) * 0.01 + 0.005 for _ in range(3)]
        return attention.launch(q, k, v, *scales, True, dim**-0.5)

    return run


def _cache(tokens: int, dim: int) -> Callable[[], Any]:
    """Decoding, with scales per token."""

    def run() -> Any:
        torch.manual_seed(0)
        q, k, v = (
            torch.randint(-127, 128, (1, n, 2, dim), dtype=torch.int8) for n in (1, tokens, tokens)
        )
        scales = [torch.rand(1, n, 2) * 0.01 for n in (1, tokens, tokens)]
        lens = torch.tensor([tokens], dtype=torch.int32)
        return attention.launch_form(q, k, v, *scales, True, 0.1, Form(kv_lens=lens))

    return run


def _mla(
    tokens: int, model: int, rank: int, columns: int, design: str,
    dtype: torch.dtype = torch.float32,
) -> Callable[[], Any]:  # fmt: skip
    def run() -> Any:
        torch.manual_seed(0)
        operands = [
            torch.randn(*s).to(dtype)
            for s in ((1, tokens, model), (model, rank), *[(rank, columns)] * 2)
        ]
        return mla.mla_kv_cuda(*operands, 4, design)

    return run


# Together they reach every barrier: one span and several, one warp per segment and two, gates that
# make segments take turns; each attention kernel over several tiles; each design of mla_kv.
WORK: dict[str, list[Callable[[], Any]]] = {
    "gated_recurrence": [
        _gated(20, 32, 8), _gated(300, 64, 16), _gated(40, 520, 8), _gated(4, 520, 8),
        _gated(4, 32, 8), _gated(40, 32, 8, 1e30), _gated(3000, 4, 4), _gated(6, 1024, 4),
    ],
    "int8_attention": [
        _attention(40, 2, 64), _attention(195, 54, 32), _attention(70, 1, 300), _cache(200, 64),
    ],
    "mla_kv": [
        _mla(5, 128, 32, 64, "registers"), _mla(20, 70, 70, 80, "fused"),
        _mla(20, 70, 40, 48, "product"), _mla(40, 320, 128, 64, "mma", torch.bfloat16),
        _mla(40, 320, 128, 64, "mma"),
    ],
}  # fmt: skip


# Sources of which `WORK` launches nothing.
NOT_REACHED: tuple[str, ...] = ("backward", "step")


def mutants(text: str) -> Iterator[tuple[int, str, str]]:
    """(line, what was removed, the changed source)."""
    for found in STATEMENT.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        new = "marked" if "_or" in found[0] else ";"
        yield line, found[0], text[: found.start()] + new + text[found.end() :]


def report(folder: Path, work: list[Callable[[], Any]]) -> str:
    """The first error that any of the launches shows."""
    for run in work:
        recorder = Swapped(folder)
        with standing_in(recorder):
            run()
        for result in recorder.taken():
            for finding in result.errors:
                return f"{finding.kind} at line {finding.line}" + (
                    f", with line {finding.other_line}" if finding.other_line else ""
                )
    return ""


def rows(only: str = "") -> Iterator[dict[str, Any]]:
    """One per mutant; line 0 is the kernel as it is."""
    for name, work in WORK.items():
        if only not in name:
            continue
        for source in sorted((OPS / name).glob("*.cu")):
            if source.stem in NOT_REACHED:
                continue
            label = name if source.stem == "kernel" else f"{name}/{source.stem}"
            for line, removed, found in _reports(source, work):
                yield {"kernel": label, "line": line, "removed": removed, "reported": found}


def _reports(source: Path, work: list[Callable[[], Any]]) -> Iterator[tuple[int, str, str]]:
    """(line, what was removed, the first error) of each mutant of one source."""
    text = source.read_text()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for file in (*source.parent.glob("*.cu"), *source.parent.glob("*.cuh")):
            shutil.copy(file, folder)
        for line, removed, changed in [(0, "nothing", text), *mutants(text)]:
            (folder / source.name).write_text(changed)
            removed = removed.removesuffix(";").replace('asm volatile("', "").split(';"')[0]
            yield line, removed, report(folder, work)


def main() -> None:
    only = sys.argv[1] if len(sys.argv) > 1 else ""
    print("| kernel | line | removed | reported |\n|---|---|---|---|", flush=True)
    missed = 0
    for row in rows(only):
        missed += not row["reported"] and row["line"] > 0
        words = row["reported"] or "no"
        print(
            f"| {row['kernel']} | {row['line'] or '-'} | `{row['removed']}` | {words} |", flush=True
        )
    print(f"\n{missed} not reported")


if __name__ == "__main__":
    main()
