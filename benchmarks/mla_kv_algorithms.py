"""Measure which algorithm of cuBLASLt is the fastest for the products of mla_kv.

    python benchmarks/mla_kv_algorithms.py [--output FILE]

For every product of the rows of benchmarks/mla_kv.py and of published models, all proposals of the
library's heuristic are checked against float64, captured into CUDA graphs and replayed in turn.
Those that beat the first proposal, which PyTorch takes, by more than 3 % are written to
src/kernelproof/ops/mla_kv/cublaslt.json, under the name of the GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import mla_kv
import torch

from kernelproof.errors import UnsupportedError
from kernelproof.ops.mla_kv import cublaslt
from kernelproof.ops.mla_kv.cublaslt import Form, Product

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "src" / "kernelproof" / "ops" / "mla_kv" / "cublaslt.json"
# Largest error over the largest value: of sums in float32, and with results of 16 bits.
BOUND = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.2e-2}
GAIN, ROUNDS = 0.97, 9
_CHECKED = 4096  # tokens at most


def rows() -> list[mla_kv.Row]:
    tokens = (64, 256, 1024, 2048, 4096, 8192, 16384)
    models = (("V3", mla_kv.V3), ("V2-Lite", mla_kv.LITE))
    more = [
        mla_kv.Row(f"{name} {n} {form}", "model", n, *sizes, form=form)
        for name, sizes in models
        for n in tokens
        for form in ("in_out", "out_in")
    ]
    return mla_kv.ROWS + more


def forms_of(row: mla_kv.Row) -> list[Form]:
    """The products of a row: the down-projection, and unless packed both up-projections."""
    dtype, columns = mla_kv.DTYPES[row.dtype], row.heads * row.dim
    turned = row.form != "in_out"

    def alignment(*sizes: int) -> int:
        return 16 if all(n * dtype.itemsize % 16 == 0 for n in sizes) else dtype.itemsize

    down = Form(
        dtype, row.tokens, row.rank, row.model, row.model, row.model if turned else row.rank,
        turned, row.rank, alignment=alignment(row.model, row.rank),
    )  # fmt: skip
    if row.form == "packed":
        return [down]
    up = Form(
        dtype, row.tokens, columns, row.rank, row.rank, row.rank if turned else columns, turned,
        2 * columns, 2, columns, alignment=alignment(row.rank, columns),
    )  # fmt: skip
    return [down, up]


def times(form: Form) -> tuple[Product, dict[int, float]]:
    """Seconds of a call by the number of the proposal; without those that are wrong."""
    product = Product(form, torch.cuda.current_device())
    x = torch.randn(form.tokens, form.depth, device="cuda").to(form.dtype)
    each = form.columns * form.depth
    w = (torch.randn(form.batches, each, device="cuda") / form.depth**0.5).to(form.dtype)
    out = torch.empty(form.tokens, form.out_stride, dtype=form.dtype, device="cuda")
    workspace = torch.empty(cublaslt.WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
    shape = (form.columns, form.depth) if form.along_depth else (form.depth, form.columns)
    weights = [part.view(shape).t() if form.along_depth else part.view(shape) for part in w]
    exact = torch.cat([x[:_CHECKED].double() @ part.double() for part in weights], 1)
    work = 2.0 * form.tokens * each * form.batches
    calls = max(3, min(40, int(1e12 / work)))

    def call(number: int) -> None:
        product.choose(number)
        stream = torch.cuda.current_stream().cuda_stream
        product(x.data_ptr(), w.data_ptr(), out.data_ptr(), workspace.data_ptr(), stream, each)

    graphs = {}
    for number in range(len(product.proposals)):
        out.fill_(float("nan"))
        call(number)
        error = (out[:_CHECKED].double() - exact).abs().max() / exact.abs().max()
        if not error <= BOUND[form.dtype]:
            print(f"proposal {number} is wrong by {error:.2g}: {form}", file=sys.stderr)
            continue
        graphs[number] = mla_kv.captured(lambda _, number=number: call(number), calls)
    found: dict[int, list[float]] = {number: [] for number in graphs}
    for turn in range(ROUNDS + 2):
        for number, graph in graphs.items():
            start, end = torch.cuda.Event(True), torch.cuda.Event(True)
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            if turn >= 2:  # the first replays warm up
                found[number].append(start.elapsed_time(end) / calls / 1e3)
    return product, {number: statistics.median(t) for number, t in found.items()}


def entry(form: Form) -> dict[str, Any] | None:
    """A row of the table, or None where the first proposal is as fast as any."""
    product, found = times(form)
    best = min(found, key=lambda number: found[number])
    first = found.get(0)
    print(
        f"{form.dtype} {form.tokens} x {form.depth} -> {form.batches} x {form.columns}: "
        f"first {first or 0:.3g} s, best {best} {found[best]:.3g} s",
        flush=True,
    )
    if first is None or not found[best] < GAIN * first:
        return None
    return {
        "dtype": str(form.dtype).removeprefix("torch."),
        "tokens": form.tokens,
        "columns": form.columns,
        "depth": form.depth,
        "batches": form.batches,
        "along_depth": form.along_depth,
        "algorithm": list(cublaslt.configuration(product.proposals[best])),
        "first_us": round(first * 1e6, 2),
        "best_us": round(found[best] * 1e6, 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=TABLE)
    given = parser.parse_args()
    table = json.loads(TABLE.read_text())
    table[torch.cuda.get_device_name()] = kept = []
    for form in dict.fromkeys(form for row in rows() for form in forms_of(row)):
        try:
            made = entry(form)
        except UnsupportedError as error:
            print(error, file=sys.stderr)
            continue
        if made is not None:
            kept.append(made)
            lines = (",\n  ".join(json.dumps(row) for row in part) for part in table.values())
            parts = (f'"{gpu}": [\n  {part}\n]' for gpu, part in zip(table, lines, strict=True))
            given.output.write_text("{" + ",\n".join(parts) + "}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
