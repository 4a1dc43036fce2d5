"""Paragraphs on a ladder whose figures come from its results.

A paragraph is text with places such as ``{time 02_fp64}``: a figure of a rung, whose name may be
cut as long as no other begins so. A claim, such as ``{slower 02 01}``, gives a figure too, and
fails where the results do not bear it out: the words around it would be false.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from kernelproof.errors import UsageError
from kernelproof.report import ladder, units
from kernelproof.types import RungResult

PLACE = re.compile(r"\{([^{}]+)\}")
# Differences of less than this are none.
_CLEAR = 1.02


def filled(text: str, rows: Sequence[RungResult]) -> str:
    """``text`` with its figures.

    Raises:
        UsageError: a place that is not understood, a figure that is missing, or a claim that is
            not true of ``rows``.
    """
    return PLACE.sub(lambda match: _figure(match[1], rows), text)


def _figure(place: str, rows: Sequence[RungResult]) -> str:
    name, *rungs = place.split()
    if name in _COUNTS and not rungs:
        return str(sum(map(_COUNTS[name], rows)))
    if name not in _FIGURES:
        names = ", ".join(sorted([*_COUNTS, *_FIGURES]))
        raise UsageError(f"no figure {{{place}}}; there are {names}")
    try:
        return _FIGURES[name](*(_rung(one, rows) for one in rungs))
    except TypeError as error:
        raise UsageError(f"{{{place}}}: wrong number of rungs, or one without it") from error


def _rung(name: str, rows: Sequence[RungResult]) -> RungResult:
    found = [row for row in rows if row.rung.startswith(name)]
    if len(found) != 1:
        names = ", ".join(row.rung for row in found) or "none"
        raise UsageError(f"{name!r} begins the names of {names}; give one that is a single rung's")
    return found[0]


def _known(value: float | None, row: RungResult, what: str) -> float:
    if value is None:
        raise UsageError(f"{row.rung} has no {what}")
    return value


def _device(row: RungResult) -> float:
    return _known(row.device, row, "device time")


def _slower(row: RungResult, other: RungResult) -> str:
    """How many times as long ``row`` takes."""
    times = _device(row) / _device(other)
    _claim(times > _CLEAR, f"{row.rung} is slower than {other.rung}", times)
    return units.ratio(times)


def _slower_than_eager(row: RungResult) -> str:
    """How many times as long as eager it takes."""
    times = 1 / _ratio_over(row, "eager")
    _claim(times > _CLEAR, f"{row.rung} is slower than eager", times)
    return units.ratio(times)


def _below_a_launch(row: RungResult) -> str:
    """The time of ``row``, which is less than that of an empty launch."""
    floor = row.times["floor"].device if "floor" in row.times else None
    share = _device(row) / _known(floor, row, "time of an empty launch")
    _claim(share < 1, f"{row.rung} takes less than an empty launch", share)
    return units.seconds(row.device)


def _like(row: RungResult, other: RungResult) -> str:
    """The time of ``row``, which is within a tenth that of ``other``."""
    times = _device(row) / _device(other)
    _claim(1 / 1.1 < times < 1.1, f"{row.rung} takes as long as {other.rung}", times)
    return units.seconds(row.device)


def _fastest(row: RungResult, *others: RungResult) -> str:
    """The time of ``row``, which is the smallest."""
    least = min(_device(other) for other in others)
    _claim(_device(row) <= least, f"{row.rung} is the fastest of these", _device(row) / least)
    return units.seconds(row.device)


def _within(row: RungResult) -> str:
    """The error of a rung that passes, in allowances."""
    _claim(row.status == "pass", f"{row.rung} passes", row.ratio)
    return ladder.ratio(row)


def _beyond(row: RungResult) -> str:
    """The error of a rung that is wrong, in allowances."""
    _claim(row.status == "wrong", f"{row.rung} is wrong", row.ratio)
    return ladder.ratio(row)


def _claim(true: bool, words: str, figure: float | None) -> None:
    if not true:
        raise UsageError(f"the results do not say that {words} ({figure}): change the paragraph")


def _clock(clock: str, who: str = "rung") -> Callable[[RungResult], str]:
    def figure(row: RungResult) -> str:
        times = row.times.get(who)
        value = getattr(times, clock) if times is not None else None
        return units.seconds(_known(value, row, f"{clock} time of {who}"))

    return figure


def _ratio_over(row: RungResult, baseline: str) -> float:
    found = row.over(baseline)
    return _known(found.ratio if found else None, row, f"ratio to {baseline}")


def _one_kernel(of: Callable[[RungResult], str]) -> Callable[[RungResult], str]:
    def figure(row: RungResult) -> str:
        text = of(row)
        if text == units.MISSING:
            raise UsageError(f"{row.rung} has no such figure of a kernel")
        return text

    return figure


def _behind_eager(row: RungResult) -> bool:
    over = row.over("eager")
    return row.status == "pass" and over is not None and over.answer != "FASTER"


# Over all rungs; these take no name.
_COUNTS: dict[str, Callable[[RungResult], bool]] = {
    "count": lambda row: True,
    "passing": lambda row: row.status == "pass",
    "behind_eager": _behind_eager,
    "refused_by_allclose": lambda row: row.status == "pass" and row.compat is False,
}
_FIGURES: dict[str, Callable[..., str]] = {
    "time": _clock("device"),
    "host": _clock("host"),
    "cold": _clock("cold"),
    "eager_time": _clock("device", "eager"),
    "baseline_time": _clock("device", "baseline"),
    "build": lambda row: units.seconds(_known(row.build, row, "build time")),
    "eager_over": lambda row: units.ratio(_ratio_over(row, "eager")),
    "baseline_over": lambda row: units.ratio(_ratio_over(row, row.baseline)),
    "share": lambda row: units.percent(_known(row.limit_share, row, "share of the floor")),
    "floor": lambda row: units.seconds(
        _known(row.limit.seconds if row.limit else None, row, "floor")
    ),
    "bits": lambda row: units.bits(_known(row.bits, row, "effective bits")),
    "reference_bits": lambda row: units.bits(_known(row.reference_bits, row, "reference's bits")),
    "registers": _one_kernel(lambda row: ladder.resources(row)[0]),
    "shared": _one_kernel(lambda row: ladder.resources(row)[1]),
    "launch": _one_kernel(lambda row: ladder.resources(row)[2]),
    "occupancy": _one_kernel(lambda row: ladder.resources(row)[3].split(" ")[0]),
    "slower": _slower,
    "slower_than_eager": _slower_than_eager,
    "below_a_launch": _below_a_launch,
    "like": _like,
    "fastest": _fastest,
    "within": _within,
    "beyond": _beyond,
}


def paragraphs(text: str, rows: Sequence[RungResult]) -> list[str]:
    """`filled`, by paragraph, each in one line. Raises as it does."""
    return [" ".join(part.split()) for part in filled(text, rows).split("\n\n") if part.strip()]
