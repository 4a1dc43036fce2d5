"""The physics floor of made-up work on a made-up device."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from kernelproof.floors.limits import bandwidth, limit, matrix_rate, unknown_rates, vector_rate
from kernelproof.types import Bandwidth, Floors, Series, Work


def floors(**changes: Any) -> Floors:
    values: dict[str, Any] = {
        "device": "a GPU",
        "software": "torch",
        "threads": 0,
        "measured": datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc),
        "seconds": 1.0,
        "call": 1e-6,
        "cache": 50 << 20,
        "bandwidth": (
            Bandwidth(size=10 << 20, read=10e12, write=6e12, copied=5e12),
            Bandwidth(size=1 << 30, read=4e12, write=3e12, copied=None),
        ),
        "matrix": {"fp32": 50e12, "tf32": 400e12, "bf16": 800e12, "int8": 1600e12},
        "vector": {"fp32": 60e12, "fp64": 30e12, "fp16": 120e12},
    }
    return Floors(**(values | changes))


def work(**changes: Any) -> Work:
    values: dict[str, Any] = {"matrix": {}, "vector": {}, "read": 3e9, "written": 1e9}
    return Work(**(values | changes))


def series(median: float, spread: float = 0.0) -> Series:
    low, high = median * (1 - spread), median * (1 + spread)
    return Series(samples=(median,), rounds=(0,), median=median, low=low, high=high)


def at(
    seconds: float, what: Work, cuda: bool = True, call: float | None = None, **more: Any
) -> Any:
    return limit(what, floors(), series(seconds, **more), call, what.bytes, cuda)


def test_the_bandwidth_is_that_of_the_working_set() -> None:
    assert bandwidth(floors(), 2 << 30) == 4e12
    # Between two sizes a part may lie in the cache: the faster one is the safe floor.
    assert bandwidth(floors(), 100 << 20) == 10e12
    assert bandwidth(floors(), 1000) == 10e12


def test_products_go_at_the_fastest_honest_rate() -> None:
    assert matrix_rate(floors(), "fp32") == ("3 x tf32", 400e12 / 3)
    assert matrix_rate(floors(), "fp32", ("int8",)) == ("int8", 1600e12)
    assert matrix_rate(floors(), "bf16") == ("bf16", 800e12)
    # A dtype that the device has no unit for, or a slow one, can be widened.
    assert matrix_rate(floors(), "fp16") == ("fp32", 50e12)
    assert matrix_rate(floors(matrix={"fp32": 5.0, "fp16": 1.0}), "fp16") == ("fp32", 5.0)
    assert matrix_rate(floors(), "fp64") is None
    assert vector_rate(floors(), "fp16") == 120e12
    assert vector_rate(floors(), "bf16") == 60e12
    assert vector_rate(floors(), "fp64") == 30e12
    assert unknown_rates(work(matrix={"fp64": 1.0}, vector={"int64": 1.0}), floors()) == [
        "fp64 products", "int64 arithmetic",
    ]  # fmt: skip


def test_the_largest_bound_is_the_floor() -> None:
    found = at(2e-3, work(matrix={"bf16": 8e10}, vector={"fp32": 6e9}))
    assert [b.kind for b in found.bounds] == ["memory", "matrix", "vector", "call"]
    assert [b.seconds for b in found.bounds] == pytest.approx([1e-3, 1e-4, 1e-4, 1e-6])
    assert found.seconds == found.bounds[0].seconds
    assert found.share == pytest.approx(0.5)
    small = at(4e-6, work(read=100.0, written=0.0), call=2e-6)
    assert (small.bounds[0].kind, small.share) == ("call", 0.5)


@pytest.mark.parametrize(
    "share, cuda, spread, suspicious",
    [
        (1.05, True, 0.0, False),  # within what rates and times can err
        (1.3, True, 0.0, True),
        (1.3, True, 0.4, False),  # the interval reaches up to the floor
        (1.3, False, 0.0, False),  # on a CPU the inputs were just written
        (4.0, False, 0.0, True),
    ],
)
def test_a_time_below_the_floor_is_suspicious(
    share: float, cuda: bool, spread: float, suspicious: bool
) -> None:
    found = at(1e-3 / share, work(), cuda, spread=spread)
    assert bool(found.suspicious) == suspicious
    assert not suspicious or "memory" in found.suspicious


def test_less_arithmetic_than_the_references_is_no_crime() -> None:
    products = work(matrix={"bf16": 8e11}, read=1.0, written=0.0)
    assert not at(1e-3 / 2.3, products).suspicious
    assert "bf16 products" in at(1e-3 / 5, products).suspicious


def test_a_kernel_quicker_than_an_empty_launch_is_suspicious() -> None:
    assert at(0.5e-6, work(read=1.0, written=0.0)).suspicious
