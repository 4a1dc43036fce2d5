"""A ladder in words and as a page, from made-up results."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from ladder_rows import RESULTS

from kernelproof import ladder as ladders
from kernelproof.errors import UsageError
from kernelproof.report import ladder, ladder_page, ladder_words
from kernelproof.types import RungResult

ROWS = RESULTS.of("gated_recurrence")


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("case a: the launch of k was refused, so it did not run: it asks for 9 bytes; more: raise "
         "the limit", "the launch of k was refused, so it did not run: it asks for 9 bytes; more"),
        ("case a: y is 1; the error is 9 times that of an honest computation (limit 12). The error "
         "is as large as that of tf32: look", "the error is as large as that of tf32"),
        ("case a: y is 1; the error is 9 times that of an honest computation (limit 12). The "
         "expected ones times a factor (0 to 1). First look at", "the expected values times a "
         "factor (0 to 1)"),
        ("case a: y is 1; the error is 9 times that of an honest computation (limit 12)",
         "the error is 9 times the allowance (case a)"),
    ],
)  # fmt: skip
def test_messages_in_short(message: str, words: str) -> None:
    row = RungResult(problem="p", rung="r", status="wrong", message=message)
    assert ladder.words(row) == ladder.said(row) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It takes {time 05}, {slower 03 05} less.", "It takes 12.0 us, 2.50x less."),
        ("{fastest 05 03} {like 05 05} {host 05} {cold 05}", "12.0 us 12.0 us 20.0 us 15.0 us"),
        ("{eager_over 05} {baseline_over 05} {eager_time 05}", "100x 10.0x 1.20 ms"),
        ("{within 05} {beyond 12} {bits 12} {share 05} {floor 05}", "1.96 4e+06 1.4 7.5 % 900 ns"),
        ("{count} {passing} {behind_eager} {refused_by_allclose}", "3 1 0 0"),
        ("{registers 05} {shared 05} {launch 05} {occupancy 05}", "40 2.25 KiB 8 x 32 50%"),
    ],
)
def test_a_paragraph_is_filled(text: str, words: str) -> None:
    assert ladder_words.filled(text, ROWS) == words


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{slower 05 03}", "do not say that 05_thread_per_column is slower than 03_fixed_32_by_32"),
        ("{like 05 03}", "takes as long as"),
        ("{fastest 03 05}", "is the fastest of these"),
        ("{slower_than_eager 05}", "05_thread_per_column is slower than eager"),
        ("{below_a_launch 05}", "takes less than an empty launch"),
        ("{within 12}", "12_gate_on_rows passes"),
        ("{beyond 05}", "05_thread_per_column is wrong"),
        ("{time 12}", "12_gate_on_rows has no device time"),
        ("{registers 12}", "no such figure"),
        ("{time 0}", "'0' begins the names of 03_fixed_32_by_32, 05_thread_per_column"),
        ("{time 99}", "'99' begins the names of none"),
        ("{speed 05}", "no figure {speed 05}; there are baseline_over"),
        ("{count 05}", "no figure {count 05}"),
        ("{time}", "wrong number of rungs"),
    ],
)
def test_a_false_claim_is_refused(text: str, error: str) -> None:
    with pytest.raises(UsageError, match=re.escape(error)):
        ladder_words.filled(text, ROWS)


def test_a_page_has_all_of_a_rung() -> None:
    page = ladder_page.render(RESULTS, {"gated_recurrence": "One\n`line`: {time 05}.\n\nTwo."})
    assert '<p class="prose">One <code>line</code>: 12.0 us.</p>' in page
    for words in (
        "a GPU, torch 2, today",
        "0123abc (check at 4567def)",
        "3 designs, 1 pass",
        "7.5 % (one call)",
    ):
        assert words in page
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', page)
    assert [name for name, _ in rows] == 2 * [row.rung for row in ROWS]
    assert "right at the timed sizes" in rows[0][1] and "12.0 us" in rows[1][1]
    assert "the gate acts on the key axis" in rows[5][1]
    assert "split &lt;the&gt; work" in page and "<the>" not in page


def test_a_page_has_bars_by_verdict() -> None:
    page = ladder_page.render(RESULTS, {})
    (found,) = re.findall(r'Plotly\.newPlot\(\s*"ladder-1",\s*(\[.*?\]),\s*\{"height', page, re.S)
    traces = {trace["name"]: trace for trace in json.loads(found)}
    assert list(traces) == [*ladder.KINDS.values(), "eager, 1.20 ms"]
    right, holds, wrong = (traces[name] for name in ladder.KINDS.values())
    assert (right["y"], right["x"], right["text"]) == ([1], [1.2e-5], ["12.0 us"])
    assert (holds["y"], holds["text"]) == ([0], ["30.0 us"])
    assert (wrong["y"], wrong["text"]) == ([2], ["wrong, not timed"])


def test_a_page_without_times_has_no_chart() -> None:
    bare = [row.model_copy(update={"times": {}}) for row in ROWS]
    page = ladder_page.render(RESULTS.model_copy(update={"rows": tuple(bare)}), {})
    assert "newPlot" not in page and "05_thread_per_column" in page


def test_a_page_says_where_a_paragraph_is_not_true() -> None:
    page = ladder_page.render(RESULTS, {"gated_recurrence": "{slower 05 03} times"})
    assert "What was learnt elsewhere does not hold here" in page


def test_results_are_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "ladder.json"
    path.write_text(RESULTS.model_dump_json(exclude_defaults=True))
    again = ladders.read_results(path)
    assert again.model_dump_json() == RESULTS.model_dump_json()


@pytest.mark.parametrize(
    ("text", "words"),
    [("[]", "no results of a ladder"), ("{", "no results"), (None, "cannot read")],
)
def test_other_files_are_refused(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "x.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=words):
        ladders.read_results(path)


def test_report_writes_the_page(
    tmp_path: Path, run_cli: Callable[..., CompletedProcess[str]]
) -> None:
    source, page = tmp_path / "ladder.json", tmp_path / "page.html"
    source.write_text(RESULTS.model_dump_json())
    done = run_cli("report", "--ladder", str(source), "-o", str(page))
    assert done.returncode == 0, done.stderr
    assert "gated_recurrence  3 designs, 1 pass, 2 timed" in done.stdout
    assert "05_thread_per_column" in page.read_text()
    done = run_cli("report", str(source), "--ladder", str(source))
    assert done.returncode == 2 and "makes a page of its own" in done.stderr
