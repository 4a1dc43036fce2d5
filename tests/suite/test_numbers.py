"""The numbers of a run, against values worked out by hand."""

from __future__ import annotations

import datetime
import math

import pytest

from kernelproof.suite import numbers
from kernelproof.types import Means, Ratio, SuiteResult, SuiteRun, SuiteState


def run(**fields) -> SuiteRun:
    plain = dict(
        id="r1", created=datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc), suite="s",
        format="folder", path="/s", candidates=None, level=None, timed=True, options={}, count=4,
    )  # fmt: skip
    return SuiteRun(**{**plain, **fields})


def result(item: str, ratio=None, means=None, **fields) -> SuiteResult:
    """``ratio``: (median, low, high, answer); ``means``: of baseline and candidate."""
    plain = dict(item=item, category="", problem="p", sample=0, digest=item, status="pass",
                 proof=True, compat=True, device="gpu")  # fmt: skip
    if ratio is not None:
        value, low, high, answer = ratio
        plain["ratios"] = (
            Ratio(baseline="eager", clock="device", ratio=value, low=low, high=high, answer=answer),
        )
        plain["time"] = (1.0 / value, 1.0 / high, 1.0 / low)
    if means is not None:
        one = Means(clock="device", baseline=means[0], candidate=means[1])
        plain["means"] = {"eager": one}
    return SuiteResult(**{**plain, **fields})


FOUR = [
    result("twice", (2.0, 1.9, 2.1, "FASTER"), (4.0, 2.0)),
    result("even", (1.05, 0.98, 1.2, "SAME"), (1.1, 1.0)),
    result("half", (0.5, 0.4, 0.6, "SLOWER"), (1.0, 2.0)),
    result("bad", status="wrong", proof=False, compat=False),
]


def test_fast_p_is_that_of_kernelbench() -> None:
    """src/kernelbench/score.py: correct and strictly faster than p, over n."""
    correct, speedup = [True, True, False, True], [2.0, 1.0, 9.0, 0.8]
    assert numbers.fast_p(correct, speedup, 4, 0.0) == 3 / 4
    assert numbers.fast_p(correct, speedup, 4, 0.8) == 2 / 4
    assert numbers.fast_p(correct, speedup, 4, 1.0) == 1 / 4
    assert numbers.fast_p(correct, speedup, 4, 2.0) == 0
    assert numbers.fast_p([], [], 0, 1.0) == 0
    assert numbers.fast_p([False], [math.nan], 1, 0.0) == 0


def test_ours_counts_whole_intervals() -> None:
    found = {f.p: f for f in numbers.tally("", FOUR).fast}
    assert {p: (f.theirs, f.ours, f.open) for p, f in found.items()} == {
        0.0: (0.75, 0.75, 0),
        0.5: (0.5, 0.5, 1),   # half: 0.5 is not more than 0.5, and its interval holds it
        0.8: (0.5, 0.5, 0),
        1.0: (0.5, 0.25, 1),  # even: 1.1 by means, and 1 lies in [0.98, 1.2]
        1.5: (0.25, 0.25, 0),
        2.0: (0.0, 0.0, 1),   # twice: 2.0 is not more than 2, and its interval holds it
    }  # fmt: skip


def test_wins_and_geometric_means() -> None:
    (wins,) = numbers.tally("", FOUR).wins
    assert (wins.faster, wins.same, wins.slower, wins.unclear) == (1, 1, 1, 0)
    assert wins.correct == pytest.approx((2.0 * 1.05 * 0.5) ** (1 / 3))
    assert wins.correct_and_faster == pytest.approx((2.0 * 1.05) ** (1 / 2))
    assert wins.kept == pytest.approx((2.0 * 1.05 * 0.5 * 1.0) ** (1 / 4))
    assert numbers.geometric_mean([]) is None
    assert numbers.geometric_mean([2.0, 8.0]) == pytest.approx(4.0)


def test_two_devices_are_never_counted_together() -> None:
    other = result("other", (3.0, 2.9, 3.1, "FASTER"), (3.0, 1.0), device="another gpu")
    lost = result("lost", status="lost", device="", proof=False, compat=False)
    found = numbers.by_device(run(), [*FOUR, other, lost])
    assert [(d.device, d.total.count) for d in found] == [("another gpu", 1), ("gpu", 4), ("", 1)]
    (one,) = numbers.by_device(run(), [*FOUR, lost])
    assert (one.device, one.total.count, one.total.statuses["lost"]) == ("gpu", 5, 1)
    assert one.total.fast[0].theirs == 3 / 5


def test_kernelbench_counts_sample_0_alone() -> None:
    more = result("twice again", (9.0, 8.9, 9.1, "FASTER"), (9.0, 1.0), sample=1)
    (plain,) = numbers.by_device(run(), [*FOUR, more])
    (theirs,) = numbers.by_device(run(format="kernelbench"), [*FOUR, more])
    assert (plain.total.count, theirs.total.count) == (5, 4)


def test_categories_have_their_own_numbers() -> None:
    two = [r.model_copy(update={"category": c}) for r, c in zip(FOUR, "abab", strict=True)]
    (found,) = numbers.by_device(run(), two)
    assert [(t.category, t.count) for t in found.categories] == [("a", 2), ("b", 2)]
    assert found.categories[0].wins[0].correct == pytest.approx((2.0 * 0.5) ** 0.5)
    (one,) = numbers.by_device(run(), FOUR)
    assert one.categories == ()


def test_two_runs_compared() -> None:
    def state(results, **fields):
        return SuiteState(run=run(**fields), results=tuple(results), left=0, devices=())

    faster = result("twice", (4.0, 3.9, 4.1, "FASTER"))
    near = result("even", (1.1, 1.0, 1.25, "SAME"))
    elsewhere = result("half", (5.0, 4.9, 5.1, "FASTER"), device="another gpu")
    mended = result("bad", digest="new")
    a = state(FOUR)
    b = state([faster, near, elsewhere, mended, result("extra")], id="r2")
    found = numbers.compare(a, b)
    assert [(c.item, c.what) for c in found.changes] == [
        ("bad", "candidate"), ("bad", "status"), ("extra", "only in b"), ("twice", "faster"),
    ]  # fmt: skip
    assert (found.same, found.not_timed) == (2, 1)
    assert found.notes == ("judged on other devices: gpu; another gpu, gpu",)
    assert [c.what for c in numbers.compare(b, a).changes if c.item == "twice"] == ["slower"]
    other = numbers.compare(a, state(FOUR[:3], timed=False, options={"seeds": 2}, count=9))
    assert [c.what for c in other.changes] == ["only in a"]
    assert other.notes == ("only a was timed", "judged with other options: seeds")
