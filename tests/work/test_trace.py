"""FLOPs and bytes of a traced call, against torch's own counter and against hand counts."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from kernelproof import problem
from kernelproof.check.reference import construct
from kernelproof.work import multiplies, settled, trace


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


class Attention(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, **self.options)


class Einsum(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bik,bjk->bij", a, b)


class Added(nn.Module):
    def forward(self, c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.baddbmm(c, a, b)


QKV = [normal(2, 3, 9, 8), normal(2, 3, 11, 8), normal(2, 3, 11, 5)]
# (module, inputs): torch's counter knows the matrix products of all of these.
MODULES: dict[str, tuple[nn.Module, list[torch.Tensor]]] = {
    "linear": (nn.Linear(7, 5), [normal(3, 7)]),
    "linear of three axes": (nn.Linear(7, 5, bias=False), [normal(2, 3, 7)]),
    "mlp": (nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), [normal(6, 8)]),
    "einsum": (Einsum(), [normal(2, 3, 5), normal(2, 4, 5)]),
    "baddbmm": (Added(), [normal(2, 3, 4), normal(2, 3, 5), normal(2, 5, 4)]),
    "conv1d": (nn.Conv1d(4, 6, 3, padding=1), [normal(2, 4, 9)]),
    "conv2d in groups": (nn.Conv2d(4, 8, 3, groups=2, stride=2), [normal(2, 4, 9, 11)]),
    "depthwise conv2d": (nn.Conv2d(6, 6, 3, groups=6), [normal(1, 6, 8, 8)]),
    "dilated conv3d": (nn.Conv3d(2, 3, 3, dilation=2), [normal(1, 2, 7, 8, 9)]),
    "transposed conv1d": (nn.ConvTranspose1d(4, 6, 3, stride=2), [normal(2, 4, 9)]),
    "transposed conv2d": (nn.ConvTranspose2d(4, 6, 3), [normal(2, 4, 5, 6)]),
    "attention": (Attention(), QKV),
    "transformer layer": (
        nn.TransformerEncoderLayer(16, 4, 32, batch_first=True),
        [normal(2, 7, 16)],
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_matrix_products_are_those_of_torchs_counter(name: str) -> None:
    module, inputs = MODULES[name]
    module.eval()
    # The CPU's fused kernels of attention and transformer layers hide their products from it.
    plain = sdpa_kernel(SDPBackend.MATH)
    with FlopCounterMode(display=False) as counter, torch.no_grad(), plain:
        torch.backends.mha.set_fastpath_enabled(False)
        module(*inputs)
        torch.backends.mha.set_fastpath_enabled(True)
    work = trace(module, inputs)
    assert counter.get_total_flops() > 0
    assert sum(work.matrix.values()) == counter.get_total_flops()
    assert not work.unknown


def test_lstm_products_by_hand() -> None:
    work = trace(nn.LSTM(6, 5, num_layers=2), [normal(4, 3, 6)])
    gates = 4 * 5
    assert sum(work.matrix.values()) == 2 * 4 * 3 * gates * ((6 + 5) + (5 + 5))
    assert not work.unknown


@pytest.mark.parametrize(
    "name, products, other",
    [
        ("mla_kv", 2 * 384 * 48 * (256 + 256), 0),
        ("gated_recurrence", 0, 5 * 2 * 128 * 4 * 24 * 24),
        # Two products of 32 over 72 * 73 / 2 pairs of 8 heads; scale and softmax are 6 a pair, the
        # three scales of the inputs 1 an element.
        ("int8_attention", 4 * 8 * 32 * 2628, 8 * 2628 * 6 + 3 * 2 * 72 * 4 * 32),
    ],
)
def test_founding_problems_agree_with_hand_counts(name: str, products: int, other: int) -> None:
    reference = problem.load(name)
    case = reference.problem.cases[0]
    args, kwargs = reference.init_args(case)
    torch.manual_seed(0)
    model = construct(reference.module.Model, args, kwargs, 0, "cpu")
    work = trace(model, reference.inputs(case))
    assert sum(work.matrix.values()) == products
    assert sum(work.vector.values()) == other
    assert work.bytes == reference.count("BYTES", case)
    assert not work.unknown
    assert not settled(work, reference.count("FLOPS", case), work.bytes).notes


def test_gru_products_by_hand() -> None:
    work = trace(nn.GRU(6, 5), [normal(4, 3, 6)])
    assert sum(work.matrix.values()) == 2 * 4 * 3 * 3 * 5 * (6 + 5)
    assert not work.unknown


def test_a_bilinear_layer_by_hand() -> None:
    work = trace(nn.Bilinear(3, 4, 5, bias=False), [normal(2, 3), normal(2, 4)])
    assert work.flops == 3 * 2 * 3 * 4 * 5


def test_a_causal_mask_halves_attention() -> None:
    q, k, v = normal(1, 1, 6, 8), normal(1, 1, 6, 8), normal(1, 1, 6, 4)
    work = trace(Attention(is_causal=True), [q, k, v])
    assert work.matrix == {"fp32": 2.0 * 21 * (8 + 4)}
    assert work.vector == {"fp32": 6.0 * 21}


@pytest.mark.parametrize(
    "function, per_element",
    [
        (torch.exp, 1), (torch.sigmoid, 3), (F.silu, 4), (F.gelu, 5),
        (lambda x: F.gelu(x, approximate="tanh"), 9), (lambda x: torch.softmax(x, 1), 5),
        (lambda x: F.layer_norm(x, (8,)), 5), (lambda x: torch.cumsum(x, 1), 1),
        (lambda x: x.sum(1), 1), (lambda x: torch.add(x, x, alpha=2), 2),
        (lambda x: x > 0, 0), (lambda x: x.to(torch.float64), 0), (lambda x: x.sort()[0], 0),
    ],
)  # fmt: skip
def test_flops_of_an_element(function: Any, per_element: int) -> None:
    work = trace(function, [normal(4, 8)])
    assert work.flops == 32 * per_element
    assert not work.unknown


def test_products_go_by_dtype() -> None:
    a, b = torch.ones(32, 32, dtype=torch.int8), torch.ones(32, 32, dtype=torch.bfloat16)
    work = trace(lambda a, b: (torch._int_mm(a, a), b @ b), [a, b])
    assert work.matrix == {"int8": 65536.0, "bf16": 65536.0}
    assert work.narrow == ("bf16", "int8")


def test_an_operator_without_a_formula_is_named() -> None:
    work = trace(torch.linalg.inv, [torch.eye(3)])
    assert work.unknown == ("linalg_inv_ex",)


# Bytes


def moved(function: Any, *inputs: Any) -> tuple[float, float]:
    work = trace(function, list(inputs))
    return work.read, work.written


def test_each_input_once_and_intermediates_never() -> None:
    assert moved(lambda x: (x * 2 + x).exp(), normal(8)) == (32, 32)


def test_weights_and_tables_are_read() -> None:
    module = nn.Linear(4, 3)
    table = normal(3)
    assert moved(lambda x: module(x) + table, normal(2, 4)) == (32 + 48 + 12 + 12, 24)


def test_constants_of_the_call_are_not_read() -> None:
    assert moved(lambda x: x + torch.tensor([1.0, 2.0]), normal(2)) == (8, 8)


def test_only_what_is_gathered_is_read() -> None:
    table, rows = normal(100, 4), torch.tensor([3, 5, 3])
    for function in (
        lambda t, i: F.embedding(i, t), lambda t, i: t[i], lambda t, i: t.index_select(0, i),
        lambda t, i: F.embedding_bag(i, t, torch.tensor([0])).expand(3, 4).contiguous(),
    ):  # fmt: skip
        read, written = moved(function, table, rows)
        assert read - 24 in (2 * 16, 2 * 16 + 8)  # the offsets of the bag are an input as well
        assert written == 48
    assert moved(lambda t, i: t.gather(0, i), table, torch.tensor([[1, 1, 2, 0]]))[0] == 16 + 32


def test_views_count_what_they_show() -> None:
    x = normal(10, 4)
    assert moved(lambda x: x[2:5] * 2, x) == (48, 48)
    assert moved(lambda x: x[:, :1] + x[:, 1:2], x) == (80, 40)
    assert moved(lambda x: x[:5].sum() + x[3:8].sum(), x) == (8 * 16, 4)
    assert moved(lambda x: x.view(torch.int32)[:2] + 1, x) == (32, 32)


def test_an_expanded_input_is_read_as_far_as_it_has_storage() -> None:
    assert moved(lambda x: x * 2, normal(5, 1).expand(5, 7)) == (20, 140)


def test_an_output_that_shows_an_input_is_not_written() -> None:
    assert moved(lambda x: x.view(-1), normal(2, 3)) == (0, 0)


def test_in_place_writes_count_and_written_values_are_not_read_again() -> None:
    assert moved(lambda x: x.mul_(2).add_(1), normal(4)) == (16, 16)
    assert moved(lambda x: x.zero_().add_(1), normal(4)) == (0, 16)

    def append(cache: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        cache[2] = row
        return cache

    assert moved(append, normal(50, 4), normal(4)) == (16, 16)
    put = torch.tensor([1, 7])
    assert moved(lambda c, r, i: c.index_put_((i,), r), normal(50, 4), normal(2, 4), put) == (
        48,
        32,
    )


def test_a_problems_own_figures_win_and_differences_are_noted() -> None:
    work = trace(lambda a, b: (a @ b).exp(), [normal(8, 8), normal(8, 8)])
    assert settled(work, 1024.0, None).flops == work.flops  # the products alone
    other = settled(work, 2 * work.flops, 2 * work.bytes)
    assert (other.flops, other.bytes) == (2 * work.flops, 2 * work.bytes)
    assert other.declared == ("flops", "bytes")
    assert [note.split()[0] for note in other.notes] == ["FLOPS", "BYTES"]
    assert not settled(work, 1.04 * work.flops, work.bytes).notes


def test_modes_do_not_import_the_compiler() -> None:
    """torch wraps a mode's method such that its first call imports torch._dynamo, two seconds."""
    code = (
        "import sys, torch\n"
        "from kernelproof.check.oracle import float64\n"
        "from kernelproof.work import trace\n"
        "x = torch.ones(3, 3)\n"
        "assert trace(lambda a: a @ a, [x]).flops\n"
        "with float64(): assert (x @ x).dtype is torch.float64\n"
        "print('torch._dynamo' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_search_for_products_ends_at_the_first() -> None:
    ran = []

    def function(x: torch.Tensor) -> torch.Tensor:
        try:
            y = x.double() @ x.double()
            ran.append("double")
            y = x @ x
            ran.append("single")
        except Exception:
            ran.append("caught")
        return y

    x = normal(4, 4)
    assert multiplies(function, [x], "fp32") and ran == ["double"]
    assert not multiplies(function, [x], "bf16") and ran[1:] == ["double", "single"]
    assert not multiplies(torch.relu, [x], "fp32")
