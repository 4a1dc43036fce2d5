"""The pictures of made-up records."""

from __future__ import annotations

import math
import re
from typing import Any

from test_report import SCRIPT, output, passing, timing, wrong

from kernelproof.report import errors, pictures, render, speed
from kernelproof.types import Bound, Floors, Limit, Run, SweepPoint, Work

BOUNDS = (
    Bound(kind="memory", name="memory", seconds=1e-6, amount=4e6, rate=4e12),
    Bound(kind="matrix", name="bf16 products as bf16", seconds=5e-7, amount=4e8, rate=8e14),
    Bound(kind="call", name="one call", seconds=4e-7, amount=1, rate=2.5e6),
)
WORK = Work(matrix={"bf16": 4e8}, vector={}, read=3e6, written=1e6)


def limited(suspicious: str = "", **changes: Any) -> Any:
    limit = Limit(bounds=BOUNDS, share=0.361, suspicious=suspicious)
    return timing(work=WORK, limit=limit, **changes)


def test_the_line_of_the_floor() -> None:
    first, others = speed.limit_lines(limited())
    assert first == "floor 1.00 us (4.00 MB at 4.00 TB/s); reached 36 %"
    assert "500 ns (400 MFLOP of bf16 products as bf16 at 800 TFLOP/s)" in others
    assert "400 ns (one empty call)" in others
    assert speed.limit_lines(timing()) == []
    assert speed.limit_lines(limited("faster than memory"))[-1] == "suspicious: faster than memory"


def test_the_floors_of_a_device_as_text() -> None:
    from datetime import datetime, timezone

    floors = Floors(
        device="NVIDIA H200", software="torch 2.11", threads=0, seconds=3.0, call=1.2e-6,
        measured=datetime(2026, 1, 2, 3, 4, tzinfo=timezone.utc), cache=50 << 20,
        bandwidth=({"size": 1 << 30, "read": 4.1e12, "write": 3.9e12, "copied": None},),
        matrix={"bf16": 7.8e14}, vector={"fp32": 5e13}, notes=("int8 products: none",),
    )  # fmt: skip
    text = speed.floors_text(floors)
    for words in ("empty launch  1.20 us", "1.00 GiB  4.10 TB/s  3.90 TB/s     -", "780 TFLOP/s",
                  "50.0 TFLOP/s", "note  int8 products: none"):  # fmt: skip
        assert words in text, text


def test_a_roofline_has_its_limits_and_everyone_timed() -> None:
    page = render([passing().model_copy(update={"timing": limited()})])
    assert page.count('id="picture-1-roofline"') == 1
    drawn = pictures.roofline("x", limited()).replace("\\u002f", "/")
    for words in ("memory 4.00 TB/s", "bf16 products as bf16 800 TFLOP/s", "candidate", "eager"):
        assert words in drawn
    # 4e8 FLOP in 2.77 us by the candidate.
    assert f"{4e8 / 2.77e-6}"[:8] in drawn
    assert pictures.roofline("x", timing()) == ""
    copying = WORK.model_copy(update={"matrix": {}})
    assert pictures.roofline("x", limited().model_copy(update={"work": copying})) == ""


def over(case: str, ratio: float, name: str = "out") -> Run:
    return Run(case=case, seed=1, status="pass", outputs=(output(name, ratio_rows=ratio),))


def verdict(*runs: Run) -> Any:
    return passing().verdict.model_copy(update={"runs": runs, "limit": 10.0})


def marks(markup: str) -> list[tuple[str, float]]:
    found = re.findall(r'<circle class="(\w+)" cx="([\d.]+)"', markup)
    return [(kind, float(x)) for kind, x in found]


def test_errors_stand_left_or_right_of_the_limit() -> None:
    drawn = errors.errors(
        verdict(over("a", 1.0), over("b", 100.0), over("c", math.nan), over("d", 0.0, "out"))
    )
    (limit,) = re.findall(r'class="limit" x1="([\d.]+)"', drawn)
    kinds = [kind for kind, _ in marks(drawn)]
    assert kinds == ["under", "over", "over", "under"]
    for kind, x in marks(drawn):
        assert (x > float(limit)) == (kind == "over")
    assert "a, seed 1: out 1.0/10" in drawn


def test_the_worst_run_of_a_case_counts() -> None:
    drawn = errors.errors(verdict(over("a", 1.0), over("a", 30.0), over("b", 2.0)))
    assert [kind for kind, _ in marks(drawn)] == ["over", "under"]


def test_one_case_has_no_picture() -> None:
    assert errors.errors(verdict(over("a", 1.0))) == ""


def test_outputs_have_shapes_of_their_own_and_names_are_escaped() -> None:
    drawn = errors.errors(verdict(over("a", 1.0), over(SCRIPT, 2.0, SCRIPT), over("c", 3, "z")))
    assert "<rect" in drawn and "<circle" in drawn and "rotate(45" in drawn
    assert SCRIPT not in drawn and "&lt;script&gt;" in drawn


def test_a_failing_candidate_has_its_picture_without_the_plotting_library() -> None:
    bad = wrong()
    runs = (over("a", 1.0), over("b", 100.0))
    page = render(
        [bad.model_copy(update={"verdict": bad.verdict.model_copy(update={"runs": runs})})]
    )
    assert '<svg class="errors"' in page and "plotly.js" not in page


def sweep(name: str = "S") -> list[Any]:
    return [
        passing().model_copy(
            update={"timing": limited(), "sweep": SweepPoint(id="1", name=name, value=value)}
        )
        for value in (256, 64)
    ]


def test_a_sweep_is_sorted_and_drawn_once() -> None:
    page = render(sweep())
    assert page.count('id="sweep-1-time"') == 1 and page.count('id="sweep-1-bandwidth"') == 1
    (group,) = pictures.sweeps(sweep())
    assert [record.sweep.value for record in group] == [64, 256]
    rows = pictures.sweep_view(1, group)["rows"]
    assert rows[0][0] == "S" and [row[0] for row in rows[1:]] == ["64", "256"]
    assert rows[1][3:6] == ["1.44 TB/s", "144 TFLOP/s", "36 %"]
    assert "plotly.js" in page


def test_one_size_is_no_sweep() -> None:
    assert pictures.sweeps(sweep()[:1]) == [] and pictures.sweeps([passing()]) == []


def test_a_sweep_escapes_names() -> None:
    assert SCRIPT not in pictures._sweep_times("x", SCRIPT, sweep(SCRIPT))
