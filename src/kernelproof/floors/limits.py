"""The physics floor: the least time that a piece of work takes on a device of known limits."""

from __future__ import annotations

from kernelproof.types import Bound, Floors, Limit, Series, Work

# A time below this part of a bound is suspicious: what is left is more than the measurement of
# rates and times can err. By whether it is a GPU, and by kind of bound. A graph may overlap
# launches. On a CPU, caches hold what was just written, and rates are those of a shared machine.
# Arithmetic is the reference's own: others do with less (Winograd's products of 4 x 4 tiles with a
# quarter: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2016).
_LEAST = {
    (True, "call"): 0.7, (True, "memory"): 0.9, (True, "matrix"): 0.25, (True, "vector"): 0.25,
    (False, "call"): 0.5, (False, "memory"): 0.4, (False, "matrix"): 0.2, (False, "vector"): 0.2,
}  # fmt: skip
_BELOW_FP32 = ("fp16", "bf16", "fp8", "int8", "uint8")


def limit(
    work: Work, floors: Floors, taken: Series, call: float | None, working_set: float, cuda: bool
) -> Limit:
    """The bounds on a call that does ``work``, and how near ``taken`` comes to the largest.

    Args:
        taken: times of the candidate, seconds.
        call: seconds of the empty call timed beside it; that of ``floors`` by default.
        working_set: bytes that the timed calls go round, by which the bandwidth is chosen.
    """
    empty = call if call is not None and call > 0 else floors.call
    bounds = [Bound(kind="call", name="one call", seconds=empty, amount=1.0, rate=1.0 / empty)]
    if work.bytes:
        rate = bandwidth(floors, working_set)
        bounds.append(_bound("memory", "memory", work.bytes, rate))
    for name, amount in work.matrix.items():
        if (best := matrix_rate(floors, name, work.narrow)) is not None:
            bounds.append(_bound("matrix", f"{name} products as {best[0]}", amount, best[1]))
    for name, amount in work.vector.items():
        if (rate_ := vector_rate(floors, name)) is not None:
            bounds.append(_bound("vector", f"{name} arithmetic", amount, rate_))
    bounds.sort(key=lambda bound: -bound.seconds)
    return Limit(
        bounds=tuple(bounds),
        share=bounds[0].seconds / taken.median,
        suspicious=_suspicious(bounds, taken, cuda),
    )


def bandwidth(floors: Floors, working_set: float) -> float:
    """Bytes/s: the highest rate measured over the largest set that is no larger than this one, so
    that part of it lying in a cache is allowed for."""
    fitting = [one for one in floors.bandwidth if one.size <= working_set]
    chosen = max(fitting, key=lambda one: one.size) if fitting else floors.bandwidth[0]
    return chosen.best


def matrix_rate(
    floors: Floors, name: str, narrow: tuple[str, ...] = ()
) -> tuple[str, float] | None:
    """(dtype, FLOP/s) of the fastest honest way to make products of dtype ``name``; None where no
    rate is known. Values of ``narrow`` inputs can be multiplied as they are; fp32 products can be
    made of three in TF32; and every narrower dtype can be widened."""
    rates = floors.matrix
    options = {name: rates[name]} if name in rates else {}
    if name == "fp32" and "tf32" in rates:
        options["3 x tf32"] = rates["tf32"] / 3
    if name == "fp32" or name in _BELOW_FP32:
        options |= {one: rates[one] for one in ("fp32", *narrow) if one in rates}
    best = max(options, key=lambda one: options[one], default=None)
    return None if best is None else (best, options[best])


def vector_rate(floors: Floors, name: str) -> float | None:
    """FLOP/s of arithmetic that is no matrix product; narrower dtypes can be widened to fp32."""
    names = ("fp32", name) if name in _BELOW_FP32 else (name,)
    return max((floors.vector[one] for one in names if one in floors.vector), default=None)


def unknown_rates(work: Work, floors: Floors) -> list[str]:
    """Kinds of arithmetic in ``work`` for which ``floors`` has no rate."""
    found = [f"{n} products" for n in work.matrix if matrix_rate(floors, n, work.narrow) is None]
    return found + [f"{n} arithmetic" for n in work.vector if vector_rate(floors, n) is None]


def _bound(kind: str, name: str, amount: float, rate: float) -> Bound:
    return Bound(
        kind=kind,  # type: ignore[arg-type]
        name=name,
        seconds=amount / rate,
        amount=amount,
        rate=rate,
    )


def _suspicious(bounds: list[Bound], taken: Series, cuda: bool) -> str:
    """Which bounds the time is below, by more than error allows; the upper end of its interval
    counts."""
    below = [b for b in bounds if taken.high < _LEAST[cuda, b.kind] * b.seconds]
    if not below:
        return ""
    names = ", ".join(bound.name for bound in below)
    return (
        f"faster than this device can be for {names}: the candidate does less than the reference "
        "does (an algorithm with less work, or work left out), or the clock is wrong"
    )
