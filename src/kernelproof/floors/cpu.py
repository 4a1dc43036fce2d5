"""The floors of a CPU, by torch's own operators.

Every thread works on data of its own, and the rates of the threads are added. A parallel loop
waits for its slowest thread, which on a machine with other load measures the scheduler.
"""

from __future__ import annotations

import itertools
import os
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kernelproof.types import Bandwidth

_SECONDS = 0.1  # for one figure
_LARGEST = 1 << 30
_CHUNK = 8 << 20
_LEAST = 3  # steps for one figure
_CALLS = 1000
# No product that takes longer is run: one of a dtype without hardware tells enough when small.
_LONG = 0.05
_ORDERS = (64, 256, 512, 1024)
_BUSY = 0.5  # load average per core


def measure(threads: int) -> dict[str, Any]:
    """Fields of `types.Floors` for ``threads`` threads."""
    notes = []
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    if load > _BUSY:
        notes.append(f"load average {load:.1f} per core while measuring: rates may be too low")
    private, cache = _cache_bytes(2), _cache_bytes(3)
    if not cache:
        notes.append("the size of the last cache is not told")
    cache = cache or (32 << 20)
    sizes = _sizes(threads, private or (1 << 20), cache)
    if sizes[-1] < 4 * cache:
        notes.append(
            f"streaming over {sizes[-1] >> 20} MiB, less than 4 times the last cache of "
            f"{cache >> 20} MiB: partly the cache's rate"
        )
    matrix = {}
    for name, product in _PRODUCTS.items():
        rate = _product_rate(product, threads)
        if isinstance(rate, str):
            notes.append(f"{name} products: {rate}")
        else:
            matrix[name] = rate
    return {
        "call": _empty_call(),
        "cache": cache,
        "bandwidth": tuple(_bandwidth(size, threads) for size in sizes),
        "matrix": matrix,
        # A product in the caches is a stream of multiply-adds: the highest rate of those seen.
        "vector": {name: matrix[name] for name in ("fp32", "fp64") if name in matrix},
        "notes": tuple(notes),
    }


def _sizes(threads: int, private: int, cache: int) -> list[int]:
    """Working sets in bytes: half of the private caches, four times that, a part of the last cache,
    and far above it as far as a quarter of the free memory allows."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    largest = max(16 << 20, min(4 * cache, _LARGEST, free // 4))
    near = private // 2 * threads
    found = [near, 4 * near, min(cache // 4, 32 << 20), largest]
    return sorted({max(64 << 10, size) for size in found})


def _cache_bytes(level: int) -> int:
    """Bytes of the data cache of core 0 at ``level``; 0 where the kernel does not tell."""
    for folder in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            if (folder / "type").read_text().strip() == "Instruction":
                continue
            if int((folder / "level").read_text()) == level:
                text = (folder / "size").read_text().strip()
                return int(text[:-1]) * {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[text[-1]]
        except (OSError, ValueError, KeyError):
            continue
    return 0


class _Nothing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def _empty_call() -> float:
    """Seconds of a call of a module that returns its input."""
    module, x = _Nothing().eval(), torch.zeros(1)
    best = float("inf")
    with torch.no_grad():
        for _ in range(20):
            started = time.perf_counter()
            for _ in range(_CALLS // 10):
                module(x)
            best = min(best, (time.perf_counter() - started) / (_CALLS // 10))
    return best


def _bandwidth(size: int, threads: int) -> Bandwidth:
    """Rates over ``size`` bytes in all, in equal parts for the threads. A part is gone through in
    chunks, each timed by itself, so that a thread that is interrupted loses one of them."""
    count = max(1024, size // threads // 4)
    chunk = min(count, _CHUNK // 4)
    parts = _each(threads, lambda: torch.ones(count).split(chunk))
    whole = [[piece for piece in part if len(piece) == chunk] for part in parts]
    half = chunk // 2

    def rate(step: Callable[[torch.Tensor], Any], touched: int) -> float:
        def steps(number: int) -> Callable[[], Any]:
            turn = itertools.cycle(whole[number])
            return lambda: step(next(turn))

        return _total(threads, steps, 4.0 * touched, chunk < count)

    return Bandwidth(
        size=4 * count * threads,
        read=max(
            rate(torch.sum, chunk),
            rate(lambda x: torch.dot(x[:half], x[half : 2 * half]), 2 * half),
        ),
        write=rate(lambda x: x.fill_(1.0), chunk),
        copied=rate(lambda x: x[:half].copy_(x[half : 2 * half]), 2 * half),
    )


def _float_product(dtype: torch.dtype) -> Callable[[int], Callable[[], Any]]:
    def make(order: int) -> Callable[[], Any]:
        a = torch.randn(order, order).to(dtype)
        return lambda: torch.mm(a, a)

    return make


def _int8_product(order: int) -> Callable[[], Any]:
    a = torch.randint(-127, 128, (order, order), dtype=torch.int8)
    return lambda: torch._int_mm(a, a)


_PRODUCTS: dict[str, Callable[[int], Callable[[], Any]]] = {
    "fp64": _float_product(torch.float64),
    "fp32": _float_product(torch.float32),
    "bf16": _float_product(torch.bfloat16),
    "fp16": _float_product(torch.float16),
    "int8": _int8_product,
}


def _product_rate(make: Callable[[int], Callable[[], Any]], threads: int) -> float | str:
    """FLOP/s of square products, the best of several orders; or why there is none."""
    best = 0.0
    seconds = 0.0
    for order in _ORDERS:
        work = 2.0 * order**3
        if seconds and seconds * (work / (2.0 * (order / 2) ** 3)) > _LONG:
            break
        try:
            steps = _each(threads, lambda order=order: make(order))  # type: ignore[misc]
            rate = _total(threads, lambda i, steps=steps: steps[i], work)  # type: ignore[misc]
        except RuntimeError as error:
            return best or str(error).splitlines()[0]
        best = max(best, rate)
        seconds = work * threads / rate
    return best


def _each(threads: int, make: Callable[[], Any]) -> list[Any]:
    """One value a thread, made by that thread, so that its memory is near it."""
    made: list[Any] = [None] * threads

    def run(number: int) -> None:
        made[number] = make()

    _together(threads, run)
    return made


def _total(
    threads: int, step: Callable[[int], Callable[[], Any]], amount: float, many: bool = False
) -> float:
    """The sum over the threads of ``amount`` over the shortest time of a step; with ``many``
    chunks, of which one may lie in a cache by chance, over the quarter of shorter times."""
    taken: list[list[float]] = [[] for _ in range(threads)]

    def run(number: int) -> None:
        mine = step(number)
        mine()
        end = time.perf_counter() + _SECONDS
        while (started := time.perf_counter()) < end or len(taken[number]) < _LEAST:
            mine()
            taken[number].append(time.perf_counter() - started)

    _together(threads, run)
    return sum(
        amount / (statistics.quantiles(times, n=4)[0] if many else min(times)) for times in taken
    )


def _together(threads: int, run: Callable[[int], None]) -> None:
    """``run(number)`` in as many threads, in each of which torch uses that thread alone. An error
    of one is raised here."""
    start = threading.Barrier(threads)
    errors: list[Exception] = []

    def body(number: int) -> None:
        torch.set_num_threads(1)
        start.wait()
        try:
            run(number)
        except Exception as error:
            errors.append(error)

    running = [threading.Thread(target=body, args=(number,)) for number in range(threads)]
    for one in running:
        one.start()
    for one in running:
        one.join()
    if errors:
        raise errors[0]
