"""Products by the matrix library: cuBLASLt, with the algorithm that the shipped table names, or
PyTorch's where the operands or the machine are not for that."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kernelproof.ops.mla_kv import cublaslt
from kernelproof.ops.mla_kv.cuda_operands import Operands, Weight, rows_of
from kernelproof.ops.mla_kv.cuda_steps import Library

Run = Callable[[dict[str, Any]], None]


def product(step: Library, n: Operands, device: int) -> Run:
    """What runs ``step``, given the tensors by name."""
    form = form_of(step, n) if cublaslt.available() else None
    if form is None:
        return functools.partial(_by_torch, step)
    return _by_cublaslt(step, form, device)


def form_of(step: Library, n: Operands) -> cublaslt.Form | None:
    """``step`` for cuBLASLt, or None where it cannot read the operands in place."""
    if n.dtype == torch.float64:
        return None
    weight = n.down if step.tokens == "hidden" else n.up[step.weight == "w_up_v"]
    along_depth = weight.along_depth
    stride = weight.column if along_depth else weight.row
    contiguous = weight.row if along_depth else weight.column
    extent = weight.rows if along_depth else weight.columns
    if not weight.merged or contiguous != 1 or stride < extent:
        return None
    if step.tokens == "hidden":
        rows = n.hidden
        if rows.column != 1 or (rows.number != rows.inner and rows.number != 1):
            return None
        token_stride = rows.inner_stride if rows.number > 1 else n.model
        wide = rows.wide(n.size)
        out_stride = n.rank
    else:
        token_stride, wide = n.rank, n.rank * n.size % 16 == 0
        out_stride = weight.columns if step.part is None and not step.both else n.columns
    if token_stride < weight.rows:
        return None
    wide = wide and _starts_and_steps(weight, stride, n.size) and out_stride * n.size % 16 == 0
    if step.part is not None or step.both:
        wide = wide and weight.columns * n.size % 16 == 0
    return cublaslt.Form(
        n.dtype, n.tokens, weight.columns, weight.rows, token_stride, stride, along_depth,
        out_stride, 2 if step.both else 1, weight.columns if step.both else 0,
        n.accuracy == "tf32", 16 if wide else n.size,
    )  # fmt: skip


def _starts_and_steps(weight: Weight, stride: int, size: int) -> bool:
    return weight.aligned and stride * size % 16 == 0


@functools.cache
def _table() -> dict[str, list[dict[str, Any]]]:
    """By the name of a GPU: measured products and their fastest algorithms."""
    read: dict[str, list[dict[str, Any]]] = json.loads(
        Path(__file__).with_name("cublaslt.json").read_text()
    )
    return read


# A measured product speaks for those of up to this many times, or part of, its tokens.
_NEAR = 1.5


def algorithm(form: cublaslt.Form, gpu: str) -> tuple[int, ...] | None:
    """The configuration that was the fastest for the nearest number of tokens, or None."""
    kind = str(form.dtype).removeprefix("torch.")
    near = [
        (abs(math.log(row["tokens"] / form.tokens)), row["algorithm"])
        for row in _table().get(gpu, [])
        if (row["dtype"], row["columns"], row["depth"], row["batches"], row["along_depth"])
        == (kind, form.columns, form.depth, form.batches, form.along_depth)
    ]
    if form.tf32 or not near or min(near)[0] > math.log(_NEAR):
        return None
    return tuple(min(near)[1])


# Configurations that were measured here (tuning.py).
_taken: dict[tuple[cublaslt.Form, int], tuple[int, ...]] = {}


def take(form: cublaslt.Form, device: int, configuration: tuple[int, ...]) -> None:
    """From now on ``form`` is by the algorithm of that configuration on one device."""
    _taken[form, device] = configuration
    _made.cache_clear()


@functools.lru_cache(maxsize=1024)
def _made(form: cublaslt.Form, device: int) -> cublaslt.Product:
    wanted = _taken.get((form, device)) or algorithm(form, torch.cuda.get_device_name(device))
    return cublaslt.Product(form, device, wanted)


def _by_cublaslt(step: Library, form: cublaslt.Form, device: int) -> Run:
    alone = form._replace(batches=1, out_batch=0)
    size, place = form.dtype.itemsize, torch.device("cuda", device)

    def one(made: cublaslt.Product, x: int, w: int, out: int, stream: int, batch: int) -> None:
        if not made.workspace:
            made(x, w, out, 0, stream, batch)
            return
        workspace = torch.empty(made.workspace, dtype=torch.uint8, device=place)
        made(x, w, out, workspace.data_ptr(), stream, batch)

    def run(tensors: dict[str, Any]) -> None:
        x, out = tensors[step.tokens].data_ptr(), tensors[step.out].data_ptr()
        stream = torch._C._cuda_getCurrentRawStream(device)
        if not step.both:
            out += (step.part or 0) * form.columns * size
            one(_made(form, device), x, tensors[step.weight].data_ptr(), out, stream, 0)
            return
        keys, values = tensors["w_up_k"].data_ptr(), tensors["w_up_v"].data_ptr()
        # The library steps forward from one weight to the next, by whole accesses.
        if values > keys and (values - keys) % form.alignment == 0:
            one(_made(form, device), x, keys, out, stream, (values - keys) // size)
            return
        for weight, offset in ((keys, 0), (values, form.columns * size)):
            one(_made(alone, device), x, weight, out + offset, stream, 0)

    def on_its_device(tensors: dict[str, Any]) -> None:
        if torch._C._cuda_getDevice() == device:
            run(tensors)
        else:
            with torch.cuda.device(device):
                run(tensors)

    return on_its_device


def _by_torch(step: Library, tensors: dict[str, Any]) -> None:
    parts = enumerate(("w_up_k", "w_up_v")) if step.both else [(step.part, step.weight)]
    for part, name in parts:
        weight = tensors[name]
        if weight.dim() == 3:  # its heads follow one another as columns do
            rank, heads, width = weight.shape
            weight = weight.as_strided((rank, heads * width), (weight.stride(0), weight.stride(2)))
        depth, columns = weight.shape
        if step.tokens == "hidden":
            _multiply_hidden(tensors["hidden"], weight, tensors[step.out])
            return
        out = tensors[step.out]
        if part is not None:
            out = out.view(-1, 2, columns)[:, part]
        torch.mm(tensors["latent"].view(-1, depth), weight, out=out.view(-1, columns))


def _multiply_hidden(hidden: torch.Tensor, w_down: torch.Tensor, out: torch.Tensor) -> None:
    """hidden @ w_down without a copy of hidden, whose leading axes merge into two."""
    model, rank = w_down.shape
    rows = rows_of(tuple(hidden.shape), tuple(hidden.stride()), True)
    if rows.number == rows.inner:
        flat = hidden.as_strided((rows.number, model), (rows.inner_stride, rows.column))
        torch.mm(flat, w_down, out=out.view(-1, rank))
        return
    outer = rows.number // rows.inner
    batches = hidden.as_strided(
        (outer, rows.inner, model), (rows.outer_stride, rows.inner_stride, rows.column)
    )
    latents = out.view(outer, rows.inner, rank)
    torch.bmm(batches, w_down.expand(outer, model, rank), out=latents)
