"""Which calls of the gated recurrence go in chunks on tensor cores, and what they give on a GPU."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelproof.ops.gated_recurrence import chunk_choice, explain, gated_recurrence
from kernelproof.ops.gated_recurrence.chunk_config import Wide

GATES = {"k": 1, "v": 2, "h": 4}
SIZES = list(itertools.product((64, 128, 256), (64, 128, 512)))
TAILS = [(40, 64), (72, 40), (200, 136)]


DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@pytest.mark.parametrize("gates", ["", "k", "v", "h", "kh", "vh", "kv"])
@pytest.mark.parametrize("gate_bytes", [2, 4])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_choice_fits_a_block(gates: str, gate_bytes: int, dtype: torch.dtype) -> None:
    bits = sum(GATES[letter] for letter in gates)
    sizes = SIZES + TAILS
    for (key_dim, value_dim), steps, precise in itertools.product(sizes, (64, 5000), (False, True)):
        chosen = chunk_choice.choose(
            "float", gate_bytes, bits, key_dim, value_dim, steps, dtype, precise
        )
        key_dim, value_dim = chunk_choice.whole(key_dim, value_dim)
        if gates == "kv" and key_dim == 256:
            assert chosen is None
            continue
        assert chosen is not None and value_dim % chosen.config.columns == 0
        for config in (chosen.config, chosen.ends):
            if config is not None:
                assert config.halves == 1 or config.states // config.halves >= 4
                assert 0 < config.shared <= 227 * 1024 and config.threads <= 512
                under_way = config.ahead * config.groups
                assert config.slots > under_way and config.slots >= config.groups > 0


@pytest.mark.parametrize(
    "sizes",
    [(1, 63, 64), (1, 64, 36), (3, 256, 64), (3, 192, 64), (1, 264, 64), (4, 32, 64)],
    ids=str,
)
def test_other_sizes_and_gates_are_left_to_the_general_kernel(sizes: tuple[int, int, int]) -> None:
    gates, key_dim, value_dim = sizes
    assert chunk_choice.choose("float", 4, gates, key_dim, value_dim, 1000) is None


@pytest.mark.parametrize("steps", [64, 777, 1023, 1024, 1025, 2050, 4096, 8193, 70_001, 999_999])
@pytest.mark.parametrize("about", [128, 1024])
@pytest.mark.parametrize("chunk", [16, 32, 64])
def test_segments_cover_the_sequence(steps: int, about: int, chunk: int) -> None:
    count, lead, length = chunk_choice.divided(steps, about, chunk)
    starts = [0, *(lead + i * length for i in range(count - 1)), steps]
    assert all(a < b for a, b in itertools.pairwise(starts))
    assert all(start % chunk == 0 for start in starts[:-1])
    assert lead >= (chunk if chunk > 16 else (steps - starts[-2]) // 2)


@pytest.mark.parametrize("chunk", [16, 32, 64])
def test_every_segment_has_steps(chunk: int) -> None:
    for steps, about in itertools.product(range(300, 2100, 20), range(128, 400, 12)):
        count, lead, length = chunk_choice.divided(steps, about, chunk)
        assert lead > 0 and lead + (count - 2) * length < steps <= lead + (count - 1) * length


@pytest.mark.parametrize(
    ("gates", "key_dim", "dtype", "precise", "steps", "chunk"),
    [
        ("h", 64, torch.bfloat16, False, 600, 64), ("", 128, torch.bfloat16, False, None, 64),
        ("h", 64, torch.bfloat16, True, 600, 16), ("h", 64, torch.float16, False, 600, 16),
        ("h", 64, torch.float32, False, 600, 16), ("vh", 64, torch.bfloat16, False, 600, 16),
        ("k", 256, torch.bfloat16, False, 600, 64), ("k", 128, torch.bfloat16, False, 600, 16),
        ("kh", 256, torch.bfloat16, True, 600, 16), ("k", 256, torch.float16, False, 600, 16),
        ("k", 256, torch.float32, True, 600, 32), ("kh", 128, torch.float32, False, 600, 32),
        ("k", 128, torch.float32, False, None, 16), ("k", 64, torch.float32, False, 600, 16),
    ],
    ids=str,
)  # fmt: skip
def test_what_goes_in_longer_chunks(
    gates: str, key_dim: int, dtype: torch.dtype, precise: bool, steps: int | None, chunk: int
) -> None:
    """Operands in one part, or gates of keys that a launch before has worked on."""
    bits = sum(GATES[letter] for letter in gates)
    chosen = chunk_choice.choose("float", 4, bits, key_dim, 128, steps, dtype, precise)
    assert chosen is not None
    kernels = [chosen.config] + ([] if chosen.ends is None else [chosen.ends])
    assert {config.steps for config in kernels} == {chunk}
    assert {isinstance(config, Wide) for config in kernels} == {chunk > 16}


@pytest.mark.parametrize("gates", ["", "k", "v", "h"])
def test_segments_do_not_depend_on_the_batch(gates: str) -> None:
    """But on the heads, which are those of the model."""
    bits = sum(GATES[letter] for letter in gates)
    one, many = (chunk_choice.choose("float", 4, bits, 128, 128, 640, heads=n) for n in (4, 64))
    assert one is not None and many is not None
    assert one.segments > 1 and many.segments == 1 and many.ends is None


@pytest.mark.parametrize("gates", ["", "h"])
@pytest.mark.parametrize("steps", [769, 2048])
def test_one_segment_where_many_sequences_would_fill_the_gpu(gates: str, steps: int) -> None:
    """Two are faster for few sequences and slower for many, which the choice does not know."""
    bits = sum(GATES[letter] for letter in gates)
    chosen = chunk_choice.choose("float", 4, bits, 64, 64, steps, heads=16)
    assert chosen is not None
    assert (chosen.segments, chosen.lead, chosen.ends) == (1, steps, None)


def in_chunks(given: dict[str, Any]) -> bool:
    told = explain(**given)
    return "chunked.cu on tensor cores" in told or "wide.cu on tensor cores" in told


# ---- on a GPU

pytestmark_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0),
        reason="needs an NVIDIA GPU of compute capability 9.0 or later",
    ),
]


def gpu(test: Any) -> Any:
    for mark in pytestmark_gpu:
        test = mark(test)
    return test


def call(
    steps: int,
    gates: str,
    key_dim: int,
    value_dim: int,
    batch: int = 2,
    dtype: torch.dtype = torch.bfloat16,
) -> dict[str, Any]:
    def made(*sizes: int) -> Tensor:
        return torch.randn(batch, steps, *sizes, device="cuda")

    given: dict[str, Any] = {name: made(2, key_dim).to(dtype) for name in "qk"}
    given["v"] = made(4, value_dim).to(dtype)
    widths = {"k": ("gate_k", key_dim), "v": ("gate_v", value_dim), "h": ("gate_head",)}
    for letter in gates:
        name, *width = widths[letter]
        given[name] = torch.tanh(made(4, *width))
    given["initial_state"] = torch.randn(batch, 4, key_dim, value_dim, device="cuda")
    return given


def of(given: dict[str, Any], act: Any) -> dict[str, Any]:
    return {name: act(name, x) for name, x in given.items()}


@gpu
@pytest.mark.parametrize("gates", ["", "k", "v", "h", "kh", "vh"])
@pytest.mark.parametrize("sizes", SIZES + TAILS, ids=str)
@pytest.mark.parametrize("steps", [64, 131, 2100])
def test_gpu_values(gates: str, sizes: tuple[int, int], steps: int) -> None:
    torch.manual_seed(steps)
    given = call(steps, gates, *sizes)
    assert in_chunks(given)
    got = gated_recurrence(**given, scale=0.3, return_state=True)
    wide = of(given, lambda _, x: x.double())
    want = gated_recurrence(**wide, scale=0.3, return_state=True, impl="reference")
    for mine, true in zip(got, want, strict=True):
        assert (mine.double() - true).norm() <= 4e-3 * true.norm()


@pytest.fixture
def no_reduced_precision() -> Iterator[None]:
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_bf16_reduced_precision_reduction
    matmul.allow_bf16_reduced_precision_reduction = False
    yield
    matmul.allow_bf16_reduced_precision_reduction = before


@gpu
@pytest.mark.usefixtures("no_reduced_precision")
@pytest.mark.parametrize("key_dim", [64, 128, 256])
@pytest.mark.parametrize("gates", ["k", "kh", "h", "v"])
def test_gpu_without_reduced_precision(gates: str, key_dim: int) -> None:
    """Where torch may not reduce the precision of bfloat16, q and k with gates have two parts: less
    than 1.6 roundings of y."""
    torch.manual_seed(4)
    given = call(500, gates, key_dim, 128)
    got = gated_recurrence(**given)
    true = gated_recurrence(**of(given, lambda _, x: x.double()), impl="reference")
    rounding = (true.bfloat16().double() - true).norm()
    assert (got.double() - true).norm() <= 1.6 * rounding


@gpu
@pytest.mark.parametrize("gates", ["k", "v", "kv", "kh"])
@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 8e-7), (torch.float16, 5e-4)], ids=str
)
@pytest.mark.parametrize("sizes", [(64, 64), (128, 128), (256, 64), *TAILS], ids=str)
def test_gpu_finer_elements(
    gates: str, dtype: torch.dtype, bound: float, sizes: tuple[int, int]
) -> None:
    torch.manual_seed(3)
    given = call(2100, gates, *sizes, dtype=dtype)
    if gates == "kv" and sizes[0] > 128:
        assert not in_chunks(given)
        return
    assert in_chunks(given)
    got = gated_recurrence(**given, scale=0.3, return_state=True)
    wide = of(given, lambda _, x: x.double())
    want = gated_recurrence(**wide, scale=0.3, return_state=True, impl="reference")
    for mine, true in zip(got, want, strict=True):
        assert (mine.double() - true).norm() <= bound * true.norm()


@gpu
@pytest.mark.parametrize("gates", ["k", "v", "h"])
@pytest.mark.parametrize("key_dim", [64, 128, 256])
def test_gpu_contracts(gates: str, key_dim: int) -> None:
    """Causal, batch-invariant and deterministic over several segments, and in a graph."""
    torch.manual_seed(key_dim)
    given = call(2300, gates, key_dim, 128, batch=3)
    y = gated_recurrence(**given)
    for later in (1e9, float("nan")):
        changed = of(given, lambda _, x: x.clone())
        for name, x in changed.items():
            if name != "initial_state":
                x[:, 1501:] = later
        assert torch.equal(gated_recurrence(**changed)[:, :1501], y[:, :1501])
    assert torch.equal(gated_recurrence(**of(given, lambda _, x: x[1:2])), y[1:2])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = gated_recurrence(**given)
    for _ in range(3):
        captured.fill_(float("nan"))
        graph.replay()
        assert torch.equal(captured, y)


@gpu
def test_gpu_packed_sequences() -> None:
    given = call(700, "h", 128, 128, batch=1)
    bounds = torch.tensor([0, 0, 333, 350, 700], device="cuda")
    given["initial_state"] = torch.randn(4, 4, 128, 128, device="cuda")
    y, state = gated_recurrence(**given, cu_seqlens=bounds, return_state=True)
    wide = of(given, lambda _, x: x.double())
    want = gated_recurrence(**wide, cu_seqlens=bounds, return_state=True, impl="reference")
    for mine, true in zip((y, state), want, strict=True):
        assert (mine.double() - true).norm() <= 4e-3 * true.norm()
    alone = of(given, lambda name, x: x[2:3] if name == "initial_state" else x[:, 333:350])
    one = torch.tensor([0, 17], device="cuda")
    mine, last = gated_recurrence(**alone, cu_seqlens=one, return_state=True)
    assert torch.equal(mine, y[:, 333:350]) and torch.equal(last, state[2:3])
