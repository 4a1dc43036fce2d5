"""The one place that turns numbers into words: times, ratios, sizes, rates, errors, counts; and,
at the end, the cells and lines that text and HTML make of them alike.

Inside kernelproof a time is in seconds and a size in bytes. Every function here takes such a plain
number, gives text of about three significant digits, and answers ``None`` with ``MISSING``. NaN and
infinity come out as ``nan``, ``inf`` and ``-inf`` without a unit.
"""

from __future__ import annotations

import contextlib
import math
import re
import shlex
import textwrap
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path

from kernelproof.types import Environment, Figures, Ratio, Series

MISSING = "-"
WIDTH = 110
MEANING = {
    "pass": "computes the same function",
    "wrong": "does not compute the same function",
    "cheat": "does not do the work that it is credited for",
    "compile_error": "does not compile",
    "crash": "raised an exception or died",
    "timeout": "did not answer in time",
    "unsupported": "needs something that this machine does not have",
}
ERROR_HEAD = ("max_abs", "mean_abs", "max_rel", "ulp", "bits")

_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_DECIMAL = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_BINARY = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"))
_STUB = 4
# Terminal sequences (colours, cursor moves, window titles) that a compiler or a candidate prints.
_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[@-Z\\-_])")


def seconds(value: float | None) -> str:
    """A time in seconds: ``2.77 us``, ``1.25 ms``."""
    if value is None or not math.isfinite(value):
        return _not_finite(value)
    factor, unit = seconds_scale(value)
    return f"{_digits(value / factor)} {unit}"


def seconds_interval(value: float | None, low: float | None, high: float | None) -> str:
    """A time with its interval, all three in the unit of ``value``: ``2.77 us [2.70, 2.85]``."""
    if value is None or low is None or high is None or not math.isfinite(value):
        return seconds(value)
    factor, _ = seconds_scale(value)
    return f"{seconds(value)} [{_any_digits(low / factor)}, {_any_digits(high / factor)}]"


def seconds_scale(value: float) -> tuple[float, str]:
    """(seconds in the unit, its name) of the unit in which ``value`` seconds reads best."""
    rounded = abs(_round(value))
    for factor, unit in _SECONDS:
        # The slack lets 1e-06, which no float holds exactly, count as one microsecond.
        if rounded >= factor * (1 - 1e-9):
            return factor, unit
    return _SECONDS[-1] if rounded else _SECONDS[0]


def ratio(value: float | None) -> str:
    """How many times: ``5.31x``."""
    if value is None or not math.isfinite(value):
        return _not_finite(value)
    return f"{_digits(value)}x"


def ratio_interval(value: float | None, low: float | None, high: float | None) -> str:
    """A ratio with its interval: ``5.31x [5.20, 5.44]``."""
    if value is None or low is None or high is None:
        return ratio(value)
    return f"{ratio(value)} [{_any_digits(low)}, {_any_digits(high)}]"


def share(value: float | None) -> str:
    """A part of a whole, 0 to 1, in whole percent: ``63 %``."""
    if value is None or not math.isfinite(value):
        return _not_finite(value)
    return f"{100 * value:.0f} %"


def proof(value: float | None, limit: float) -> str:
    """The proof ratio against its limit: ``0.98/12``; how far beyond 999 says nothing more."""
    if value is None or not math.isfinite(value):
        return f"{_not_finite(value)}/{limit:g}" if value is not None else MISSING
    return f"{'>999' if value > 999 else _digits(value, 2)}/{limit:g}"


def size(value: float | None) -> str:
    """Bytes in powers of 1024: ``512 B``, ``16.0 KiB``."""
    if value is None or not math.isfinite(value):
        return _not_finite(value)
    for factor, unit in _BINARY:
        if abs(value) >= factor:
            return f"{_digits(value / factor)} {unit}"
    return f"{value:.0f} B"


def decimal_size(value: float | None) -> str:
    """Bytes in powers of 1000, as beside a bandwidth: ``1.70 MB``."""
    return _decimal(value, "B")


def percent(value: float | None) -> str:
    """A share (1 is all): ``37 %``, ``4.2 %``."""
    if value is None or not math.isfinite(value):
        return _not_finite(value)
    return f"{100 * value:.0f} %" if value >= 0.0995 else f"{_digits(100 * value, 2)} %"


def flops(value: float | None) -> str:
    """Operations: ``8.59 GFLOP``."""
    return _decimal(value, "FLOP")


def flop_rate(value: float | None) -> str:
    """Operations per second: ``51.2 TFLOP/s``."""
    return _decimal(value, "FLOP/s")


def byte_rate(value: float | None) -> str:
    """Bytes per second, in powers of 1000 as memory bandwidth is quoted: ``3.21 TB/s``."""
    return _decimal(value, "B/s")


def bits(value: float | None) -> str:
    """Effective bits: ``22.4``; ``exact`` where there was no error at all."""
    if value is None:
        return MISSING
    if value == math.inf:
        return "exact"
    # A little below none is none: there is no "-0.0".
    return f"{round(value, 1) + 0.0:.1f}" if math.isfinite(value) else _not_finite(value)


def precision(words: str) -> str:
    """What errors look like, in a few letters: ``fp32+`` for fp32 or better, ``tf32/fp32``."""
    short = {"wrong values": "wrong", "no number": "nan"}
    words = one_line(words)
    return short.get(words, words.replace(" or better", "+").replace(" or ", "/"))


def error(value: float | None) -> str:
    """An error figure, absolute or relative: ``1.0e-04``, ``0``."""
    if value is None or not math.isfinite(value):
        return _not_finite(value)
    return "0" if value == 0 else f"{value:.1e}"


def ulps(value: float | None) -> str:
    """An error in units in the last place: ``0.5``, ``1,024``, ``1.7e+06``."""
    if value is None or not math.isfinite(value):
        return _not_finite(value)
    return _digits(value) if value < 1e6 else f"{value:.1e}"


def number(value: float | None) -> str:
    """One value of a tensor, with the digits that tell fp32 numbers apart: ``0.33333334``."""
    if value is None or not math.isfinite(value):
        return _not_finite(value)
    return f"{value:.9g}"


def count(value: int | None) -> str:
    """A whole number: ``1,048,576``."""
    return MISSING if value is None else f"{value:,}"


def many(value: int, noun: str) -> str:
    """A count with its noun: ``1 run``, ``12 runs``."""
    return f"{count(value)} {noun}" if value == 1 else f"{count(value)} {noun}s"


def megahertz(value: int | None) -> str:
    """A clock rate given in MHz: ``1,980 MHz``."""
    return MISSING if value is None else f"{count(value)} MHz"


def shape(sizes: tuple[int, ...]) -> str:
    """A tensor shape or index: ``[2, 8, 128]``; a scalar is ``[]``."""
    return f"[{', '.join(str(extent) for extent in sizes)}]"


# Values made of numbers


def time_cell(series: Series | None) -> str:
    """Median and interval of one clock."""
    if series is None:
        return MISSING
    return seconds_interval(series.median, series.low, series.high)


def ratio_cells(ratio: Ratio | None) -> list[str]:
    """[ratio with interval, answer] of the candidate beside a baseline."""
    if ratio is None:
        return ["", ""]
    return [ratio_interval(ratio.ratio, ratio.low, ratio.high), ratio.answer]


def error_cells(figures: Figures | None) -> list[str]:
    """The figures under ``ERROR_HEAD``."""
    if figures is None:
        return [MISSING] * len(ERROR_HEAD)
    return [
        error(figures.max_abs),
        error(figures.mean_abs),
        error(figures.max_rel),
        ulps(figures.max_ulp),
        bits(figures.effective_bits),
    ]


def environment_facts(environment: Environment) -> list[str]:
    """The machine and its software, most telling first."""
    env = environment
    clocks = [megahertz(mhz) for mhz in (env.sm_clock_mhz, env.memory_clock_mhz) if mhz]
    gpu = [env.gpu, env.capability, " / ".join(clocks)] if env.gpu else []
    facts = [
        *gpu,
        f"driver {env.gpu_driver}" if env.gpu_driver else "",
        f"CUDA {env.cuda}" if env.cuda else "",
        env.cpu,
        f"{many(env.cores, 'core')}, {many(env.threads, 'thread')}",
        f"torch {env.torch}",
        f"Python {env.python}",
        env.compiler,
        *(f"{name} {version}" for name, version in sorted(env.versions.items())),
        env.platform,
        f"kernelproof {env.kernelproof}" + (f" ({env.commit})" if env.commit else ""),
    ]
    return [one_line(fact) for fact in facts if fact.strip()]


def achieved(
    taken: Series | None, floor: Series | None, operations: float | None, moved: float | None
) -> list[str]:
    """What the time ``taken`` amounts to: times the floor, FLOP/s, bytes/s, where known."""
    if taken is None or not taken.median > 0:
        return []
    found = []
    if floor is not None and floor.median > 0:
        found.append(f"{ratio(taken.median / floor.median)} the floor of {seconds(floor.median)}")
    if operations is not None:
        found.append(f"{flop_rate(operations / taken.median)} for {flops(operations)}")
    if moved is not None:
        found.append(f"{byte_rate(moved / taken.median)} for {size(moved)}")
    return found


def plain(text: str) -> str:
    """``text`` without terminal sequences and without characters that act instead of show.

    Candidates choose names and messages, and those must not repaint the reader's terminal.
    """
    text = _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return "".join(
        char if char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cf", "Cs") else "\ufffd"
        for char in text
    )


def one_line(text: str) -> str:
    """``plain`` text with all white space as single spaces: a name or a message for a table."""
    return " ".join(plain(text).split())


def wrapped(line: str, indent: str = "", hanging: int = 0) -> list[str]:
    """``line`` in lines of at most ``WIDTH``; all but the first are ``hanging`` deeper."""
    return textwrap.wrap(
        line,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + " " * hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )


def shell_path(path: str) -> str:
    """``path`` quoted for a shell, relative to the working directory where it lies below it."""
    with contextlib.suppress(ValueError):
        path = str(Path(path).relative_to(Path.cwd()))
    return shlex.quote(one_line(path))


def column_widths(rows: Sequence[Sequence[str]], columns: int) -> list[int]:
    """The length of the longest cell of each column."""
    return [max((len(row[column]) for row in rows), default=0) for column in range(columns)]


def table(
    rows: Sequence[Sequence[str]],
    align: str,
    width: int | None = None,
    elastic: Mapping[int, int] | None = None,
    indent: str = "",
) -> list[str]:
    """Aligned lines. ``align`` has ``<`` or ``>`` per column. To keep within ``width``, the columns
    of ``elastic`` are cut in turn, each to the length given for it, and to stubs if need be."""
    widths = column_widths(rows, len(align))
    gap = "  "
    if width is not None and sum(widths) + 2 * (len(widths) - 1) > width:
        # A narrow gap costs the reader less than a cut name.
        gap = " "
        excess = sum(widths) + len(widths) - 1 - width
        aims = list((elastic or {}).items())
        for column, least in [*aims, *((column, _STUB) for column, _ in aims)]:
            taken = max(0, min(excess, widths[column] - least))
            widths[column] -= taken
            excess -= taken
    lines = []
    for row in rows:
        cells = (
            f"{_cut(cell, room):{side}{room}}"
            for cell, room, side in zip(row, widths, align, strict=True)
        )
        lines.append((indent + gap.join(cells)).rstrip())
    return lines


def _decimal(value: float | None, unit: str) -> str:
    if value is None or not math.isfinite(value):
        return _not_finite(value)
    rounded = abs(_round(value))
    factor, prefix = next((pair for pair in _DECIMAL if rounded >= pair[0]), _DECIMAL[-1])
    return f"{_digits(value / factor)} {prefix}{unit}"


def _not_finite(value: float | None) -> str:
    if value is None:
        return MISSING
    if math.isnan(value):
        return "nan"
    return "inf" if value > 0 else "-inf"


def _any_digits(value: float) -> str:
    return _digits(value) if math.isfinite(value) else _not_finite(value)


def _round(value: float, significant: int = 3) -> float:
    return float(f"{value:.{significant}g}")


def _digits(value: float, significant: int = 3) -> str:
    """So many significant digits, without an exponent as long as that stays readable."""
    value = _round(value, significant)
    if value == 0:
        return "0"
    if not 1e-3 <= abs(value) < 1e6:
        return f"{value:.1e}"
    places = max(0, significant - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{places}f}"


def _cut(text: str, room: int) -> str:
    """``text`` without its middle: names of one family differ at the start or at the end."""
    if len(text) <= room:
        return text
    head = (room - 1) // 2
    return f"{text[:head]}..{text[len(text) - (room - head - 2) :]}"
