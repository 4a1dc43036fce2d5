"""The numbers of a run: fast_p, wins, geometric means, tables by category, and two runs compared.

What is timed on one device is never counted together with what is timed on another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from kernelproof.types import (
    DeviceNumbers,
    FastP,
    ItemChange,
    Means,
    Ratio,
    RunsCompared,
    SuiteResult,
    SuiteRun,
    SuiteState,
    Tally,
    Wins,
)

# Those of KernelBench's scripts/benchmark_eval_analysis.py.
THRESHOLDS = (0.0, 0.5, 0.8, 1.0, 1.5, 2.0)
_SAMPLED = ("kernelbench",)


def fast_p(correct: Sequence[bool], speedup: Sequence[float], n: int, p: float) -> float:
    """KernelBench's fast_p: the share of ``n`` problems whose sample is correct and more than ``p``
    times as fast as its baseline (src/kernelbench/score.py, `fastp`).

    Args:
        speedup: mean time of the baseline over mean time of the sample; where ``correct`` is False
            it does not count and may be NaN.
    """
    fast = sum(ok and s > p for ok, s in zip(correct, speedup, strict=True))
    return fast / n if n > 0 else 0.0


def surely_faster(ratio: Ratio, p: float) -> bool:
    """Whether the whole interval of ``ratio`` lies above ``p``."""
    return ratio.low > p


def is_open(ratio: Ratio, p: float) -> bool:
    """Whether the interval of ``ratio`` holds ``p``."""
    return ratio.low <= p <= ratio.high


def geometric_mean(values: Sequence[float]) -> float | None:
    """The n-th root of the product of n positive values; None for none."""
    if not values:
        return None
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def chosen(run: SuiteRun, results: Sequence[SuiteResult]) -> list[SuiteResult]:
    """Those that are counted: of a suite with several samples a problem sample 0 alone, as
    KernelBench's analysis does; of others all."""
    return [r for r in results if r.sample == 0 or run.format not in _SAMPLED]


def by_device(run: SuiteRun, results: Sequence[SuiteResult]) -> tuple[DeviceNumbers, ...]:
    """The numbers of each device. What was judged on none (a missing candidate, an unsupported
    problem) counts with the others where there is one device, else by itself."""
    counted = chosen(run, results)
    devices = sorted({r.device for r in counted if r.device})
    groups = [(d, [r for r in counted if r.device == d]) for d in devices]
    without = [r for r in counted if not r.device]
    if len(groups) == 1:
        groups = [(devices[0], counted)]
    elif without:
        groups.append(("", without))
    return tuple(_numbers(device, found) for device, found in groups)


def _numbers(device: str, results: Sequence[SuiteResult]) -> DeviceNumbers:
    categories = list(dict.fromkeys(r.category for r in results))
    return DeviceNumbers(
        device=device,
        total=tally("", results),
        categories=tuple(
            tally(name, [r for r in results if r.category == name])
            for name in sorted(categories) if len(categories) > 1
        ),
    )  # fmt: skip


def tally(category: str, results: Sequence[SuiteResult]) -> Tally:
    """The numbers of these results, all of one device."""
    statuses: dict[str, int] = {}
    for result in results:
        statuses[result.status] = statuses.get(result.status, 0) + 1
    baselines = list(dict.fromkeys(q.baseline for r in results for q in r.ratios))
    return Tally(
        category=category,
        count=len(results),
        statuses=dict(sorted(statuses.items(), key=lambda pair: (-pair[1], pair[0]))),
        compat=sum(r.compat for r in results),
        wins=tuple(_wins(name, results) for name in baselines),
        fast=tuple(_fast(name, p, results) for name in baselines for p in THRESHOLDS),
    )


def _wins(baseline: str, results: Sequence[SuiteResult]) -> Wins:
    ratios = [q for r in results if (q := _ratio(r, baseline)) is not None]
    values = [q.ratio for q in ratios]
    answers = [q.answer for q in ratios]
    unchanged = [1.0] * (len(results) - len(values))
    return Wins(
        baseline=baseline,
        faster=answers.count("FASTER"),
        same=answers.count("SAME"),
        slower=answers.count("SLOWER"),
        unclear=answers.count("UNCLEAR"),
        correct=geometric_mean(values),
        correct_and_faster=geometric_mean([v for v in values if v > 1]),
        kept=geometric_mean([*values, *unchanged]),
    )


def _fast(baseline: str, p: float, results: Sequence[SuiteResult]) -> FastP:
    n = len(results)
    means = [r.means.get(baseline) for r in results]
    correct = [r.compat and m is not None for r, m in zip(results, means, strict=True)]
    speedup = [_speedup(m) for m in means]
    ratios = [q for r in results if r.proof and (q := _ratio(r, baseline)) is not None]
    return FastP(
        baseline=baseline,
        p=p,
        theirs=fast_p(correct, speedup, n, p),
        ours=sum(surely_faster(q, p) for q in ratios) / n if n else 0.0,
        open=sum(is_open(q, p) for q in ratios),
    )


def _speedup(means: Means | None) -> float:
    return math.nan if means is None else means.baseline / means.candidate


def _ratio(result: SuiteResult, baseline: str) -> Ratio | None:
    return next((q for q in result.ratios if q.baseline == baseline), None)


def compare(a: SuiteState, b: SuiteState) -> RunsCompared:
    """What is not the same in two runs. Times are compared where both were taken on one device:
    they differ where their 95 % intervals do not meet."""
    before, after = ({r.item: r for r in state.results} for state in (a, b))
    changes: list[ItemChange] = []
    same = not_timed = 0
    for name in sorted({*before, *after}):
        if name not in after or name not in before:
            found = before.get(name) or after[name]
            words = "only in a" if name in before else "only in b"
            texts = (found.status, "") if name in before else ("", found.status)
            changes.append(ItemChange(item=name, what=words, a=texts[0], b=texts[1]))
            continue
        told = list(_changes(before[name], after[name]))
        changes += told
        if not told:
            same += 1
            not_timed += not _comparable(before[name], after[name])
    return RunsCompared(
        a=a.run, b=b.run, changes=tuple(changes), same=same, not_timed=not_timed,
        notes=tuple(_notes(a, b)),
    )  # fmt: skip


def _comparable(a: SuiteResult, b: SuiteResult) -> bool:
    return a.time is not None and b.time is not None and a.device == b.device


def _changes(a: SuiteResult, b: SuiteResult) -> Iterator[ItemChange]:
    def change(what: str, of: Callable[[SuiteResult], str]) -> ItemChange:
        return ItemChange(item=a.item, what=what, a=of(a), b=of(b))

    if a.digest != b.digest:
        yield change("candidate", lambda r: r.digest[:12])
    if a.status != b.status:
        yield change("status", lambda r: r.status)
    if a.time is not None and b.time is not None and a.device == b.device:
        if b.time[2] < a.time[1]:
            yield change("faster", _seconds)
        elif b.time[1] > a.time[2]:
            yield change("slower", _seconds)


def _seconds(result: SuiteResult) -> str:
    from kernelproof.report import units

    assert result.time is not None
    return units.seconds_interval(*result.time)


def _notes(a: SuiteState, b: SuiteState) -> Iterator[str]:
    for state, name in ((a, "a"), (b, "b")):
        if state.left:
            yield f"{name} ({state.run.id}) is not complete: {state.left} of {state.run.count} left"
    devices = [sorted({r.device for r in s.results if r.device}) for s in (a, b)]
    if devices[0] != devices[1]:
        told = [", ".join(names) or "none" for names in devices]
        yield f"judged on other devices: {told[0]}; {told[1]}"
    if a.run.timed != b.run.timed:
        yield f"only {'a' if a.run.timed else 'b'} was timed"
    options = [s.run.options for s in (a, b)]
    keys = sorted({*options[0], *options[1]})
    differ = [k for k in keys if options[0].get(k) != options[1].get(k)]
    if differ:
        yield f"judged with other options: {', '.join(differ)}"
