"""What a run over all rungs tells of one of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kernelproof.timing.stats import series
from kernelproof.types import Bound, Contestant, LadderResults, Limit, RungResult, Timing

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
import ladder as benchmark
import ladder_steps
import ladder_times

CALL = Bound(kind="call", name="one call", seconds=1e-6, amount=1.0, rate=1e6)


def one(name: str, device: float | None, problem: str = "") -> Contestant:
    if device is None:
        return Contestant(name=name, problem=problem)
    times = [device * (1 + 1e-3 * (n % 3)) for n in range(10)]
    found = {
        "device": series(times, range(10)),
        "host": series([2 * t for t in times], range(10)),
        "cold": series([3 * t for t in times], range(10)),
    }
    return Contestant(name=name, **found)


@pytest.fixture
def timing() -> Timing:
    last = one("cuda", 4e-6)
    assert last.device is not None
    return Timing(
        case="founding", device="cuda", threads=1, candidate=last, floor=one("empty launch", 1e-6),
        baselines=(
            one("eager", 4e-5), one("two matmuls", 1e-5), one("01_plain", 2e-5),
            one("02_slip", 5e-6), one("03_refused", None, "the launch of k was refused"),
        ),
        ratios=(), limit=Limit(bounds=(CALL,), share=0.25),
        notes=(
            "timing ended after 10 rounds: x; not yet narrow: the ratio to eager (+-9%)",
            "02_slip does not compute the same function: off by 3",
        ),
    )  # fmt: skip


def row(timing: Timing, name: str) -> RungResult | None:
    found, right = ladder_times.of_rung(timing, name, "09_last")
    if found is None:
        return None
    return RungResult(problem="p", rung=name, **ladder_times.row(found, right))


def test_a_rung_has_its_times_and_ratios(timing: Timing) -> None:
    plain = row(timing, "01_plain")
    assert plain is not None and plain.device == pytest.approx(2e-5, rel=0.01)
    assert plain.times["rung"].host == pytest.approx(4e-5, rel=0.01)
    assert plain.times["floor"].device == pytest.approx(1e-6, rel=0.01)
    eager, best = plain.over("eager"), plain.over(plain.baseline)
    assert eager is not None and eager.answer == "FASTER"
    assert eager.ratio == pytest.approx(2.0, rel=0.01)
    assert best is not None and best.answer == "SLOWER" and best.baseline == "two matmuls"
    assert plain.limit == CALL and plain.limit_share == pytest.approx(0.05, rel=0.01)
    assert plain.right_when_timed and plain.rounds == 10
    assert plain.time_notes == ("timing ended after 10 rounds: x",)


def test_the_candidate_of_the_run_is_the_last_rung(timing: Timing) -> None:
    last = row(timing, "09_last")
    assert last is not None and last.device == pytest.approx(4e-6, rel=0.01)


def test_what_is_wrong_while_timed_is_said(timing: Timing) -> None:
    slip = row(timing, "02_slip")
    assert slip is not None and slip.right_when_timed is False
    assert slip.time_notes[-1] == "02_slip does not compute the same function: off by 3"


def test_a_rung_without_times_has_no_row(timing: Timing) -> None:
    assert row(timing, "03_refused") is None
    assert row(timing, "04_added_later") is None


EARLIER = LadderResults.model_validate({
    "date": "2026-01-01", "commit": "aaaa111", "torch": "2.11", "machine": "NVIDIA H200",
    "rows": [
        {"problem": "p", "rung": "01", "status": "wrong", "bits": 3.0, "build": 0.5,
         "walls": {"check": 9.0, "build": 1.0}, "faults": {"check": "lost"},
         "commits": {"build": "cccc333"}},
        {"problem": "p", "rung": "02", "status": "pass", "walls": {"check": 8.0}},
    ],
})  # fmt: skip


def joined(tmp_path: Path, **other: str) -> LadderResults:
    task = ladder_steps.Task("check", "p", "01")
    found = {"status": "pass", "max_abs": 1e-6, "wall": 2.0, "commit": "bbbb222"}
    ladder_steps.write(task.file(tmp_path), found)
    earlier = tmp_path / "earlier.json"
    earlier.write_text(EARLIER.model_dump_json())
    facts = {"date": "2026-02-02", "commit": "bbbb222", "torch": "2.11", "machine": "NVIDIA H200"}
    return benchmark.results_of([task], tmp_path, {**facts, **other}, earlier)


def test_a_later_run_replaces_what_it_has_done_and_names_its_commit(tmp_path: Path) -> None:
    found = joined(tmp_path)
    assert (found.date, found.commit) == ("2026-01-01", "aaaa111")
    first, second = found.rows
    assert second == EARLIER.rows[1]
    assert (first.status, first.max_abs, first.bits, first.build) == ("pass", 1e-6, None, 0.5)
    assert first.walls == {"check": 2.0, "build": 1.0} and first.faults == {}
    assert first.commits == {"check": "bbbb222", "build": "cccc333"}


@pytest.mark.parametrize("other", [{"machine": "NVIDIA A100"}, {"torch": "2.12"}])
def test_results_of_another_machine_do_not_join(tmp_path: Path, other: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="is of NVIDIA H200 with torch"):
        joined(tmp_path, **other)
