"""What mla_kv asks of cuBLASLt, and which algorithm it names."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch

from kernelproof.ops.mla_kv import cuda, cuda_library, cuda_plan
from kernelproof.ops.mla_kv.cublaslt import Form
from kernelproof.ops.mla_kv.cuda_operands import Operands
from kernelproof.ops.mla_kv.cuda_steps import Library

F16, F32, F64 = torch.float16, torch.float32, torch.float64


def operands(
    hidden: torch.Tensor, *weights: torch.Tensor, heads: int = 1, **options: Any
) -> Operands:
    return cuda.operands_of(hidden, *weights, kv_heads=heads, **options)


def steps_of(n: Operands) -> list[Library]:
    return [s for s in cuda_plan.plan(n, design="library").launches if isinstance(s, Library)]


def forms(n: Operands) -> list[Form | None]:
    return [cuda_library.form_of(step, n) for step in steps_of(n)]


def made(*sizes: int, dtype: torch.dtype = F16) -> torch.Tensor:
    return torch.empty(sizes, dtype=dtype, device="meta")


def test_keys_and_values_are_two_batches() -> None:
    n = operands(made(40, 64), made(64, 16), made(16, 24), made(16, 24))
    assert forms(n) == [
        Form(F16, 40, 16, 64, 64, 16, False, 16),
        Form(F16, 40, 24, 16, 16, 24, False, 48, batches=2, out_batch=24),
    ]


def test_weights_of_linear_layers_lie_along_their_depth() -> None:
    n = operands(made(40, 64), *(made(*s).t() for s in ((16, 64), (24, 16), (24, 16))))
    down, up = forms(n)
    assert down is not None and (down.along_depth, down.weight_stride) == (True, 64)
    assert up is not None and (up.along_depth, up.weight_stride, up.batches) == (True, 16, 2)


def test_split_outputs_are_products_of_their_own() -> None:
    n = operands(made(40, 64), made(64, 16), made(16, 24), made(16, 8), layout="split")
    assert [f and (f.columns, f.out_stride, f.batches) for f in forms(n)[1:]] == [
        (24, 24, 1), (8, 8, 1)
    ]  # fmt: skip


def test_alignment_is_what_every_access_keeps() -> None:
    wide = operands(made(40, 64), made(64, 16), made(16, 24), made(16, 24))
    narrow = operands(made(40, 63), made(63, 16), made(16, 20), made(16, 20))
    assert [f and f.alignment for f in forms(wide)] == [16, 16]
    assert [f and f.alignment for f in forms(narrow)] == [2, 2]


@pytest.mark.parametrize(
    ("hidden", "down"),
    [
        (made(40, 128)[:, ::2], made(64, 16)),  # every other value
        (made(2, 50, 64)[:, :20], made(64, 16)),  # two strides lead to the tokens
        (made(40, 64), made(64, 32)[:, ::2]),
        (made(1, 64).expand(40, 64), made(64, 16)),
    ],
)
def test_what_the_library_cannot_read_in_place(hidden: torch.Tensor, down: torch.Tensor) -> None:
    n = operands(hidden, down, made(16, 24), made(16, 24))
    assert cuda_library.form_of(Library("hidden", "w_down", "latent"), n) is None


def test_tf32_only_where_it_is_permitted() -> None:
    weights = [made(*s, dtype=F32) for s in ((64, 16), (16, 24), (16, 24))]
    for accuracy, tf32 in (("strict", False), ("tf32", True)):
        n = operands(made(40, 64, dtype=F32), *weights, accuracy=accuracy)
        assert [f and f.tf32 for f in forms(n)] == [tf32, tf32]


def test_the_nearest_measured_product_speaks() -> None:
    form = Form(F16, 1000, 24, 16, 16, 24, False, 48, 2, 24)
    row = {"dtype": "float16", "columns": 24, "depth": 16, "batches": 2, "along_depth": False}
    rows = [
        {**row, "tokens": 1100, "algorithm": [1]},
        {**row, "tokens": 900, "algorithm": [2]},
        {**row, "tokens": 1000, "batches": 1, "algorithm": [3]},
        {**row, "tokens": 1000, "dtype": "bfloat16", "algorithm": [4]},
    ]
    with mock.patch.object(cuda_library, "_table", lambda: {"GPU": rows}):
        assert cuda_library.algorithm(form, "GPU") == (1,)
        assert cuda_library.algorithm(form._replace(tokens=920), "GPU") == (2,)
        assert cuda_library.algorithm(form._replace(tokens=5000), "GPU") is None
        assert cuda_library.algorithm(form._replace(tf32=True), "GPU") is None
        assert cuda_library.algorithm(form, "another") is None


def test_the_shipped_table_has_whole_rows() -> None:
    for gpu, rows in cuda_library._table().items():
        assert gpu and rows
        for row in rows:
            assert row["dtype"] in ("float32", "float16", "bfloat16") and row["tokens"] > 0
            assert len(row["algorithm"]) == 9 and row["best_us"] < row["first_us"]
