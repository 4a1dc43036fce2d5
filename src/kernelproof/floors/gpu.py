"""The floors of a GPU: kernels of our own for launch, bandwidth and multiply-adds, torch's products
for the matrix units. Every figure is the best of several launches, by events."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kernelproof.cuda import Kernel
from kernelproof.errors import CandidateError, KernelproofError
from kernelproof.types import Bandwidth

_SOURCE = Path(__file__).parent / "kernels.cu"
_TIMES = 8
_GRAPH_CALLS = 50
# A launch moves this much, in several passes where the set is small: long beside its own cost.
_MOVED = 1 << 30
_STREAM = 1 << 30
_THREADS = 512
_BLOCKS = (2, 4)  # per multiprocessor
_CHAIN_THREADS = 256
_CHAIN_BLOCKS = 8
_CHAIN_STEPS = 512
# Multiply-adds of a thread in one step, and FLOPs in one instruction.
_CHAIN_WIDTH = 64
_VECTOR = {"fp32": 2, "fp64": 2, "fp16": 4, "bf16": 4}
_CHAIN_TYPES = {"fp64": torch.float64, "fp32": torch.float32}
_ORDERS = {"fp64": (4096,), "fp32": (4096,)}
_TENSOR_ORDERS = (4096, 8192)
_BURST = 8


def measure(device: str) -> dict[str, Any]:
    """Fields of `types.Floors`."""
    index = int(device.partition(":")[2] or 0)
    torch.cuda.set_device(index)
    facts = torch.cuda.get_device_properties(index)
    notes: list[str] = []
    matrix = _rates(notes, "products", _PRODUCTS, _product_rate)
    vector = _rates(notes, "multiply-adds", _VECTOR, _chain_rate, facts)
    try:
        call = _launch()
        bandwidth = tuple(_bandwidth(size, facts) for size in _sizes(facts))
    except CandidateError as error:
        # Without the kernels half of the figures would be torch's, which are no limits.
        raise KernelproofError(f"{error.message}; see `kernelproof doctor`") from error
    return {
        "call": call,
        "cache": int(facts.L2_cache_size),
        "bandwidth": bandwidth,
        "matrix": matrix,
        "vector": vector,
        "notes": tuple(notes),
    }


def _rates(
    notes: list[str], what: str, table: dict[str, Any], rate: Callable[..., float], *more: Any
) -> dict[str, float]:
    """FLOP/s by the dtypes of ``table``; what cannot run here is noted."""
    found = {}
    for name, entry in table.items():
        try:
            found[name] = rate(name, entry, *more)
        except (CandidateError, RuntimeError, AttributeError, TypeError) as error:
            notes.append(f"{name} {what}: {str(error).splitlines()[0]}")
    return found


def _seconds(run: Callable[[], Any], burst: int = 1) -> float:
    """Shortest time of one of ``burst`` runs in a row, after one that is not timed."""
    run()
    best = float("inf")
    for _ in range(_TIMES):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(burst):
            run()
        end.record()
        end.synchronize()
        best = min(best, begin.elapsed_time(end) * 1e-3 / burst)
    return best


def _launch() -> float:
    """Seconds of an empty kernel in the replay of a graph of many, as kernels are timed."""
    kernel, x = Kernel(_SOURCE, "empty"), torch.zeros(1, device="cuda")
    kernel(x, grid=1, block=32)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_GRAPH_CALLS):
            kernel(x, grid=1, block=32)
    return _seconds(graph.replay) / _GRAPH_CALLS


def _sizes(facts: Any) -> list[int]:
    """Working sets in bytes: parts of the L2 cache, around it, and far above it as far as a quarter
    of the free memory allows."""
    cache = int(facts.L2_cache_size)
    free = torch.cuda.mem_get_info()[0]
    largest = min(max(_STREAM, 16 * cache), free // 4)
    return [cache // 8, cache // 4, cache // 2, cache, 2 * cache, 4 * cache, largest]


def _bandwidth(size: int, facts: Any) -> Bandwidth:
    """Best rates over a working set of ``size`` bytes."""
    count = max(1, size // 16)
    half = max(1, count // 2)
    x = torch.zeros(4 * count, device="cuda")
    other = x[4 * half :]
    out = torch.zeros(1, device="cuda")
    passes = max(1, _MOVED // size)
    moved = float(16 * count * passes)
    read, write, copy = (Kernel(_SOURCE, f"stream_{name}") for name in ("read", "write", "copy"))
    rates: dict[str, float] = {"read": 0.0, "write": 0.0, "copied": 0.0}
    for blocks in _BLOCKS:
        shape = {"grid": blocks * facts.multi_processor_count, "block": _THREADS}
        runs = {
            "read": lambda shape=shape: read(x, count, passes, out, **shape),
            "write": lambda shape=shape: write(x, count, passes, 1.0, **shape),
            "copied": lambda shape=shape: copy(x, other, half, passes, **shape),
        }
        for name, run in runs.items():
            rates[name] = max(rates[name], moved / _seconds(run))
    if passes == 1:
        # Far above the cache, torch's own kernels are contenders for the best rate.
        rates["read"] = max(rates["read"], moved / _seconds(x.sum))
        rates["write"] = max(rates["write"], moved / _seconds(x.zero_))
        rates["copied"] = max(
            rates["copied"], moved / _seconds(lambda: x[: 4 * half].copy_(other[: 4 * half]))
        )
    return Bandwidth(size=16 * count, **rates)


def _chain_rate(name: str, flops: int, facts: Any) -> float:
    kernel = Kernel(_SOURCE, f"fma_{name}")
    out = torch.zeros(4, dtype=_CHAIN_TYPES.get(name, torch.int32), device="cuda")
    blocks = _CHAIN_BLOCKS * facts.multi_processor_count
    taken = _seconds(lambda: kernel(out, _CHAIN_STEPS, grid=blocks, block=_CHAIN_THREADS))
    return flops * float(_CHAIN_WIDTH * _CHAIN_STEPS * blocks * _CHAIN_THREADS) / taken


def _product_rate(name: str, make: Callable[[int], Callable[[], Any]]) -> float:
    """FLOP/s of square products, the best of several orders."""
    best = 0.0
    for order in _ORDERS.get(name, _TENSOR_ORDERS):
        best = max(best, 2.0 * order**3 / _seconds(make(order), _BURST))
    return best


def _float_product(dtype: torch.dtype, tf32: bool = False) -> Callable[[int], Callable[[], Any]]:
    def make(order: int) -> Callable[[], Any]:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        a, b = (torch.randn(order, order, device="cuda").to(dtype) for _ in range(2))
        out = torch.empty_like(a)
        return lambda: torch.mm(a, b, out=out)

    return make


def _int8_product(order: int) -> Callable[[], Any]:
    a, b = (
        torch.randint(-127, 128, (order, order), dtype=torch.int8, device="cuda") for _ in range(2)
    )
    return lambda: torch._int_mm(a, b.t())


def _fp8_product(order: int) -> Callable[[], Any]:
    a, b = (torch.randn(order, order, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device="cuda")
    return lambda: torch._scaled_mm(
        a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
    )


_PRODUCTS: dict[str, Callable[[int], Callable[[], Any]]] = {
    "fp64": _float_product(torch.float64),
    "fp32": _float_product(torch.float32),
    "tf32": _float_product(torch.float32, tf32=True),
    "bf16": _float_product(torch.bfloat16),
    "fp16": _float_product(torch.float16),
    "int8": _int8_product,
    "fp8": _fp8_product,
}
