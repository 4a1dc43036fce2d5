"""Reports of made-up records: nothing is built, run or timed here."""

from __future__ import annotations

import datetime
import html
import importlib
import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser
from typing import Any

import pytest

from kernelproof.report import detail, render, summary, text, units, verdicts
from kernelproof.types import (
    Build,
    Call,
    Candidate,
    Case,
    Check,
    Contestant,
    Environment,
    Figures,
    OutputVerdict,
    Problem,
    Ratio,
    Record,
    Run,
    Series,
    Timing,
    Variant,
    Verdict,
)

NAN, INF = math.nan, math.inf
SCRIPT = "<script>alert('owned')</script>"
PLOTLY_BANNER = "* plotly.js v"


def series(median: float, spread: float = 0.02) -> Series:
    low, high = median * (1 - spread), median * (1 + spread)
    return Series(samples=(low, median, high), rounds=(3,), median=median, low=low, high=high)


def figures(max_abs: float, bits: float) -> Figures:
    return Figures(
        max_abs=max_abs,
        mean_abs=max_abs / 8,
        rms=max_abs / 4,
        max_rel=max_abs * 3,
        max_ulp=max_abs * 2**22,
        effective_bits=bits,
    )


def output(name: str = "out", **changes: Any) -> OutputVerdict:
    values: dict[str, Any] = {
        "name": name,
        "shape": (8, 128),
        "dtype": "torch.float32",
        "passed": True,
        "compat": True,
        "figures": figures(1.25e-4, 21.4),
        "reference": figures(1.5e-4, 21.2),
        "ratio_rows": 0.98,
        "ratio_all": 0.75,
        "looks_like": "fp32",
    }
    return OutputVerdict(**(values | changes))


def timing(**changes: Any) -> Timing:
    values: dict[str, Any] = {
        "case": "large",
        "device": "NVIDIA H200",
        "threads": 1,
        "candidate": Contestant(
            name="02_tiled", device=series(2.77e-6), host=series(9.1e-6), first_call=0.125
        ),
        "baselines": (
            Contestant(name="eager", device=series(14.7e-6), host=series(31e-6), first_call=1e-3),
            Contestant(name="torch.compile", device=series(5.9e-6), host=series(22e-6)),
            Contestant(name="cuda graph", problem="capture failed: the reference synchronises"),
        ),
        "floor": Contestant(name="copy", device=series(2.1e-6), host=series(7e-6)),
        "ratios": (
            Ratio(
                baseline="eager", clock="device", ratio=5.31, low=5.2, high=5.44, answer="FASTER"
            ),
            Ratio(baseline="eager", clock="host", ratio=3.41, low=3.3, high=3.5, answer="FASTER"),
            Ratio(
                baseline="torch.compile",
                clock="device",
                ratio=2.13,
                low=2.05,
                high=2.2,
                answer="FASTER",
            ),
        ),
        "flops": 8.59e9,
        "bytes": 8_388_608,
        "seconds": 12.0,
        "notes": ("the clock rose during the run",),
    }
    return Timing(**(values | changes))


def record(status: str = "pass", name: str = "02_tiled", **changes: Any) -> Record:
    passed = status == "pass"
    verdict = {
        "status": status,
        "proof": passed,
        "compat": passed,
        "evidence": "device",
        "device": "NVIDIA H200",
        "limit": 2.0,
        "seconds": 3.2,
    } | changes.pop("verdict", {})
    build = {"status": "pass", "seconds": 0.8, "weights": "strict"} | changes.pop("build", {})
    values: dict[str, Any] = {
        "id": f"rec-{name}",
        "created": datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc),
        "problem": Problem(
            name="attention", path="problems/attention.py", digest="p0", cases=(Case(name="large"),)
        ),
        "candidate": Candidate(
            name=name,
            path=f"candidates/attention/{name}/candidate.py",
            folder=f"candidates/attention/{name}",
            language="cuda-nvrtc",
            digest="c0",
            sources=("candidate.py", "kernel.cu"),
        ),
        "build": Build(**build),
        "verdict": Verdict(**verdict),
        "environment": Environment(
            kernelproof="0.1.0",
            commit="abc1234",
            python="3.12.1",
            torch="2.9.0",
            platform="Linux x86_64",
            cpu="Some CPU",
            cores=16,
            threads=1,
            compiler="nvcc 12.9",
            gpu="NVIDIA H200",
            gpu_driver="570.1",
            cuda="12.9",
            capability="sm_90",
            sm_clock_mhz=1980,
        ),
        "seeds": (0, 1),
    }
    return Record(**(values | changes))


def passing() -> Record:
    verdict = {
        "runs": (
            Run(case="large", seed=0, status="pass", outputs=(output(ratio_rows=0.5),)),
            Run(case="edge", seed=1, status="pass", outputs=(output(),)),
        ),
        "checks": (
            Check(name="fresh_output", outcome="pass"),
            Check(name="second_device", outcome="skip", message="one device only"),
            Check(name="deterministic", outcome="note", message="two runs differ in the last bit"),
        ),
        "looks_like": "fp32",
        "notes": ("weights matched by name",),
    }
    return record(verdict=verdict, timing=timing())


def wrong() -> Record:
    bad = output(
        passed=False,
        compat=False,
        figures=Figures(
            max_abs=INF, mean_abs=NAN, rms=NAN, max_rel=INF, max_ulp=NAN, effective_bits=NAN
        ),
        ratio_rows=NAN,
        ratio_all=INF,
        looks_like="",
        wrong=17,
        worst_index=(3, 17),
        worst_got=NAN,
        worst_expected=0.25,
        message="the wrong elements are the last column of each row: an edge tile",
    )
    verdict = {
        "message": "output out holds NaN where the reference does not",
        "runs": (
            Run(case="large", seed=0, status="pass", outputs=(output(),)),
            Run(case="edge", seed=1, status="wrong", outputs=(bad,)),
        ),
        "checks": (Check(name="no_mutation", outcome="fail", message="input 0 was changed"),),
    }
    return record("wrong", "03_racy", verdict=verdict)


def compile_error() -> Record:
    lines = [f"kernel.cu({number}): error: identifier undefined" for number in range(1, 41)]
    log = "\n".join([f"\x1b[31m{SCRIPT}\x1b[0m", *lines])
    return record(
        "compile_error",
        "04_broken",
        build={"status": "compile_error", "message": "kernel.cu does not compile", "detail": log},
        verdict={
            "evidence": "none",
            "message": "kernel.cu does not compile",
            "detail": log,
            "seconds": 0.0,
        },
    )


def unsupported() -> Record:
    message = "needs compute capability 10.0, this device has 9.0"
    verdict = {"evidence": "none", "message": message}
    return record("unsupported", "05_future", verdict=verdict)


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return [passing(), wrong(), compile_error(), unsupported()]


@pytest.fixture(scope="module")
def page(records: list[Record]) -> str:
    return render(records)


class Reader(HTMLParser):
    """Checks that tags nest, and keeps the tags with their attributes and the text shown."""

    VOID = frozenset({"meta", "link", "br", "hr", "img", "input"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.shown = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        elif self.open and self.open[-1] != "style":
            self.shown += data


# Units


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (2.77e-6, "2.77 us"),
        (1e-6, "1.00 us"),
        (1.25e-3, "1.25 ms"),
        (999.96e-6, "1.00 ms"),
        (73.04, "73.0 s"),
        (5e-10, "0.500 ns"),
        (0.0, "0 s"),
        (NAN, "nan"),
        (-INF, "-inf"),
        (None, "-"),
    ],
)
def test_seconds(value: float | None, words: str) -> None:
    assert units.seconds(value) == words


def test_an_interval_has_one_unit() -> None:
    assert units.seconds_interval(1e-3, 0.9e-3, 1.1e-3) == "1.00 ms [0.900, 1.10]"
    assert units.seconds_interval(1e-3, NAN, 1.1e-3) == "1.00 ms [nan, 1.10]"
    assert units.ratio_interval(5.31, 5.2, INF) == "5.31x [5.20, inf]"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (units.ratio(5.312), "5.31x"),
        (units.ratio(9.999), "10.0x"),
        (units.ratio(1234.0), "1,230x"),
        (units.ratio(2.5e9), "2.5e+09x"),
        (units.size(512), "512 B"),
        (units.size(16384), "16.0 KiB"),
        (units.flop_rate(51.2e12), "51.2 TFLOP/s"),
        (units.byte_rate(3.213e12), "3.21 TB/s"),
        (units.bits(22.43), "22.4"),
        (units.bits(-0.04), "0.0"),
        (units.bits(INF), "exact"),
        (units.bits(NAN), "nan"),
        (units.precision("fp32 or better"), "fp32+"),
        (units.precision("tf32 or bf16"), "tf32/bf16"),
        (units.error(1e-4), "1.0e-04"),
        (units.error(0.0), "0"),
        (units.ulps(0.5), "0.500"),
        (units.count(1048576), "1,048,576"),
        (units.many(1, "run"), "1 run"),
        (units.proof(0.98, 2.0), "0.98/2"),
        (units.proof(1.1e6, 12.0), ">999/12"),
        (units.proof(NAN, 12.0), "nan/12"),
        (units.number(1 / 3), "0.333333333"),
    ],
)
def test_other_units(words: str, expected: str) -> None:
    assert words == expected


def test_plain_drops_what_acts_on_a_terminal() -> None:
    assert units.plain("\x1b[1;31mred\x1b[0m \x1b]0;title\x07end\r\n\u202e!") == "red end\n\ufffd!"
    assert units.one_line("two\n\tlines ") == "two lines"


# The table


def test_summary_is_aligned_and_has_the_figures(records: list[Record]) -> None:
    lines = summary(records).split("\n")
    assert len(lines) == 1 + len(records)
    head, first, second, third, last = lines
    assert all(len(line) <= units.WIDTH for line in lines)
    for name in ("candidate", "verdict", "evidence", "compat", "vs eager"):
        column = head.index(name)
        assert all(line[column - 1] == " " and line[column] != " " for line in lines), name
    for word in ("pass", "device", "21.4", "fp32", "0.98/2", "yes", "2.77 us"):
        assert word in first
    assert "5.31x [5.20, 5.44] FASTER" in first
    assert "2.13x" in first and "2.13x comp" in summary(records[:1])
    assert "wrong" in second and "nan" in second and "no" in second
    assert "compile_error" in third and "unsupported" in last


def test_summary_stays_narrow_with_long_names() -> None:
    long = passing()
    named = long.candidate.model_copy(update={"name": "a_very_long_name_" * 8})
    times = timing(
        ratios=(
            Ratio(baseline="eager", clock="device", ratio=1e3, low=1e3, high=1e3, answer="UNCLEAR"),
            Ratio(baseline="b" * 50, clock="device", ratio=1e3, low=1e3, high=1e3, answer="FASTER"),
        )
    )
    long = long.model_copy(update={"candidate": named, "timing": times})
    interpreted = record("compile_error", "05", verdict={"evidence": "interpreted"})
    lines = summary([long, interpreted]).split("\n")
    assert max(len(line) for line in lines) <= units.WIDTH
    assert "1,000x [1,000, 1,000] UNCLEAR" in lines[1]
    assert " a_ve" in lines[1] and ".." in lines[1]


def test_cut_names_stay_apart() -> None:
    names = ("axpby__last_column_unwritten", "axpby__view_of_input", "axpby__rounded_scalars")
    many = [passing(), compile_error(), *(record("crash", name) for name in names)]
    lines = summary(many).split("\n")
    assert len({line.split()[1] for line in lines}) == len(lines)
    assert max(len(line) for line in lines) <= units.WIDTH


def test_nothing_to_show() -> None:
    assert summary([]) == "no records"
    page = render([])
    assert "No records." in page
    assert PLOTLY_BANNER not in page
    Reader(page)


# One record as text


def test_detail_of_a_pass() -> None:
    lines = detail(passing()).split("\n")
    assert lines[0] == "pass: 02_tiled computes the same function (attention)"
    body = "\n".join(lines)
    assert "proof yes (worst ratio 0.980x, limit 2.00x); compat yes" in body
    assert "checks: 1 passed, 1 skipped" in body
    assert re.search(r"note +deterministic +two runs differ", body)
    assert "the clock rose during the run" in body
    assert re.search(r"candidate +2\.77 us \[2\.71, 2\.83\] +9\.10 us", body)
    assert re.search(r"eager +14\.7 us .* 5\.31x \[5\.20, 5\.44\] +FASTER +3\.41x", body)
    assert "cuda graph: capture failed" in body
    assert "1.32x the floor of 2.10 us" in body
    assert "3,100 TFLOP/s" in body or "3.10 PFLOP/s" in body
    assert "3.03 TB/s for 8.00 MiB" in body
    assert "first call 125 ms" in body
    assert "\nmachine  NVIDIA H200, sm_90, 1,980 MHz" in body
    assert lines[-1].split(maxsplit=1) == ["next", "kernelproof report -o report.html"]


def test_errors_stand_beside_those_of_the_reference() -> None:
    lines = detail(passing()).split("\n")
    start = next(n for n, line in enumerate(lines) if line.startswith("errors against float64"))
    head, candidate, reference = lines[start + 1 : start + 4]
    assert head.split() == verdicts.ERROR_COLUMNS
    assert candidate.split()[:6] == ["out", "candidate", "1.3e-04", "1.6e-05", "3.8e-04", "524"]
    assert "edge, seed 1" in candidate  # the worse of the two runs
    assert reference.split()[0] == "reference"
    assert candidate.index("21.4") == reference.index("21.2")


def test_detail_of_a_wrong_candidate_says_where_and_how() -> None:
    body = detail(wrong())
    assert body.startswith("wrong: 03_racy does not compute the same function")
    assert "case edge, seed 1: out, float32 [8, 128]: 17 of 1,024 elements wrong" in body
    assert "worst at [3, 17]: got nan, expected 0.25" in body
    assert "an edge tile" in body
    assert "proof no (worst ratio nan, limit 2.00x); compat no" in body
    assert re.search(r"fail +no_mutation +input 0 was changed", body)
    files = "problems/attention.py candidates/attention/03_racy"
    assert body.endswith(f"kernelproof check {files} --case edge --seed 0")


def test_what_the_verdict_says_is_not_said_again() -> None:
    message = "out[3, 17] is nan, expected 0.25; the error is NaN times that of an honest one"
    bad = output(passed=False, wrong=17, worst_index=(3, 17), worst_got=NAN, message=message)
    failing = record(
        "wrong",
        verdict={
            "message": f"case edge: {message}",
            "runs": (
                Run(
                    case="edge",
                    seed=1,
                    status="wrong",
                    outputs=(bad,),
                    message=f"case edge: {message}",
                ),
            ),
        },
    )
    body = detail(failing)
    assert body.count("out[3, 17]") == 1 and "worst at" not in body
    assert "seed 1: out, float32 [8, 128]: 17 of 1,024 elements wrong" in body


def test_an_output_without_figures_has_no_ratio() -> None:
    bad = output(
        passed=False,
        figures=None,
        reference=None,
        ratio_rows=0.0,
        ratio_all=0.0,
        message="out has shape (8, 64), expected (8, 128)",
    )
    run = Run(case="edge", seed=1, status="wrong", outputs=(bad,))
    body = detail(record("wrong", verdict={"runs": (run,)}))
    assert "proof no; compat no; effective bits -" in body
    assert "out has shape (8, 64), expected (8, 128)" in body and "worst at" not in body


def test_compiler_output_is_shown_whole_once_and_without_colour() -> None:
    body = detail(compile_error())
    assert "    kernel.cu(1): error" in body and "    kernel.cu(40): error" in body
    assert body.count("kernel.cu(7): error") == 1
    assert body.count("kernel.cu does not compile") == 1
    assert "\x1b" not in body


def test_a_long_traceback_is_cut() -> None:
    trace = "\n".join(f"frame {number}" for number in range(30))
    body = detail(record("crash", "06", verdict={"detail": trace, "message": "raised"}))
    assert "frame 29" in body and "frame 9\n" not in body
    assert "10 earlier lines in the record" in body
    assert body.endswith("kernelproof check problems/attention.py candidates/attention/06 --seed 0")


def test_next_step() -> None:
    assert text.next_command(unsupported()) == "kernelproof doctor"
    untimed = passing().model_copy(update={"timing": None})
    files = "problems/attention.py candidates/attention/02_tiled"
    assert text.next_command(untimed) == f"kernelproof bench {files}"


def test_the_next_step_has_the_options_of_the_problem_that_was_judged() -> None:
    files = "problems/attention.py candidates/attention/02_tiled"
    one = passing().model_copy(update={"timing": None})
    sized = one.problem.model_copy(update={"sizes": {"N": 8, "M": 3}, "training": True})
    one = one.model_copy(update={"problem": sized})
    assert text.next_command(one) == f"kernelproof bench {files} --size N=8 --size M=3 --training"


def test_the_next_step_names_a_case_and_not_its_layout() -> None:
    one, gap = wrong(), Variant(layout="gap")
    bad = next(run for run in one.verdict.runs if run.status == "wrong")
    there = one.verdict.model_copy(update={"runs": (bad.model_copy(update={"variant": gap}),)})
    failed = one.model_copy(update={"verdict": there})
    assert " --case edge --seed" in text.next_command(failed)
    # Where the call gave no run because it broke.
    broken = there.model_copy(
        update={"runs": (), "status": "crash", "failing": Call(case="edge", seed=1, variant=gap)}
    )
    assert " --case edge --seed" in text.next_command(failed.model_copy(update={"verdict": broken}))


def test_no_seed_has_to_do_with_what_does_not_compile() -> None:
    assert "--seed" not in text.next_command(compile_error())
    assert "--seed" in text.next_command(wrong())


def test_a_cpu_has_one_time_column() -> None:
    clock = series(1e-3)
    times = timing(
        candidate=Contestant(name="02_tiled", device=clock, host=clock),
        baselines=(Contestant(name="eager", device=clock, host=clock),),
        floor=None,
        flops=None,
        bytes=None,
        ratios=(Ratio(baseline="eager", clock="host", ratio=1, low=0.9, high=1.1, answer="SAME"),),
    )
    rows = text.contestant_rows(times)
    assert rows[0] == ["", "time", "ratio", "answer"]
    assert rows[1] == ["candidate", "1.00 ms [0.980, 1.02]", "", ""]
    assert rows[2][2:] == ["1.00x [0.900, 1.10]", "SAME"]
    on_cpu = passing().model_copy(update={"timing": times})
    assert "1.00x [0.900, 1.10] SAME" in summary([on_cpu])
    page = render([on_cpu])
    assert '"name":"time"' in page and '"name":"host"' not in page


# The page


def test_page_loads_nothing_from_outside(page: str) -> None:
    reader = Reader(page)
    for tag, attributes in reader.tags:
        assert "src" not in attributes, tag
        if "href" in attributes:
            assert str(attributes["href"]).startswith(("#", "data:")), tag
        assert not any(name.startswith("on") for name in attributes), tag
    style = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in style and "@import" not in style
    policies = [a for _, a in reader.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert "default-src 'none'" in str(policies[0]["content"])


def test_page_holds_the_plotting_library_once(page: str, records: list[Record]) -> None:
    assert page.count(PLOTLY_BANNER) == 1
    assert render([records[0], records[0]]).count(PLOTLY_BANNER) == 1
    assert PLOTLY_BANNER not in render(records[1:])


def test_page_says_first_what_matters() -> None:
    order = {
        passing: ["computes the same function", "Time per call", "What to do", "Errors against"],
        wrong: ["not compute the same function", "<h3>Why</h3>", "What to do", "Errors against"],
        compile_error: ["does not compile", "<h3>Why</h3>", "What to do", "<h3>Machine</h3>"],
    }
    for record, headings in order.items():
        page = render([record()])
        places = [page.index(heading) for heading in headings]
        assert places == sorted(places), record


def test_page_says_what_to_do() -> None:
    assert "kernelproof prove" in render([passing()])
    assert "kernelproof check" in render([wrong()]) and "--case" in render([wrong()])
    assert "kernelproof doctor" in render([unsupported()])
    script = wrong().model_copy(update={"reproducer": f"print({SCRIPT!r})"})
    page = render([script])
    assert "A script in plain PyTorch that shows it" in page and SCRIPT not in page


def test_page_escapes_what_candidates_say(page: str) -> None:
    assert SCRIPT not in page
    assert "&lt;script&gt;alert" in page
    reader = Reader(page)
    assert SCRIPT in reader.shown
    assert not any("alert('owned')" in script for script in reader.scripts)
    names = {"name": f"x{SCRIPT}"}
    hostile = passing()
    hostile = hostile.model_copy(
        update={
            "candidate": hostile.candidate.model_copy(update=names),
            "timing": timing(baselines=(Contestant(name=f"b{SCRIPT}", host=series(1e-3)),)),
        }
    )
    assert SCRIPT not in render([hostile])
    assert len(Reader(render([hostile])).scripts) == 2


def test_page_shows_the_same_figures_as_the_text(page: str) -> None:
    shown = Reader(page).shown
    for words in (
        "5.31x [5.20, 5.44]",
        "2.13x compile",
        "worst at [3, 17]: got nan, expected 0.25",
        "input 0 was changed",
        "kernel.cu(40): error",
        "needs compute capability 10.0",
        "All runs (2 runs)",
    ):
        assert words in shown
    assert page.index("<table>") < page.index('id="record-1"')


def test_record_on_the_page_reads_back(page: str) -> None:
    blocks = re.findall(r"as JSON</summary>\s*<pre[^>]*>(.*?)</pre>", page, re.DOTALL)
    assert len(blocks) == 4
    again = Record.model_validate_json(html.unescape(blocks[1]))
    assert math.isnan(again.verdict.runs[1].outputs[0].ratio_rows)


def chart_parts(page: str) -> list[Any]:
    """[traces, layout] of the first chart, read with a parser that refuses NaN and Infinity."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    decoder = json.JSONDecoder(parse_constant=refuse)
    script = Reader(page).scripts[1]
    rest, parts = script[script.index('"chart-1",') + len('"chart-1",') :], []
    for _ in range(2):
        part, end = decoder.raw_decode(rest.lstrip())
        parts.append(part)
        rest = rest.lstrip()[end:].lstrip().removeprefix(",")
    return parts


def test_chart_has_both_clocks_and_intervals(page: str) -> None:
    (device, host), layout = chart_parts(page)
    # Plotly's own classes refuse attributes that the library does not know.
    importlib.import_module("plotly.graph_objects").Figure([device, host], layout)
    assert (device["name"], host["name"]) == ("device", "host")
    assert device["x"][0] == pytest.approx(2.77)
    assert device["error_x"]["array"][0] == pytest.approx(2.77 * 0.02)
    assert device["y"] == [0, 1, 2, 4]  # the one without a time has a row, but no bar
    assert layout["yaxis"]["ticktext"][:2] == ["candidate", "eager"]
    assert layout["xaxis"]["title"]["text"] == "us per call"
    assert "type" not in layout["xaxis"]


def test_wide_span_gets_a_log_axis() -> None:
    slow = (Contestant(name="eager", device=series(1e-3), host=series(1e-3)),)
    _, layout = chart_parts(
        render([passing().model_copy(update={"timing": timing(baselines=slow)})])
    )
    assert layout["xaxis"]["type"] == "log"
    assert layout["xaxis"]["range"][0] < math.log10(2.1e-3 * 0.98)


def test_times_that_are_no_numbers_do_not_break_the_chart() -> None:
    odd = Series(samples=(NAN,), rounds=(1,), median=NAN, low=NAN, high=INF)
    open_end = Series(samples=(1e-6,), rounds=(1,), median=1e-6, low=NAN, high=INF)
    times = timing(
        baselines=(
            Contestant(name="eager", device=odd, host=odd),
            Contestant(name="compile", device=open_end, host=open_end),
        )
    )
    odd_record = passing().model_copy(update={"timing": times})
    (device, _), _ = chart_parts(render([odd_record]))
    assert device["y"] == [0, 2, 3]
    assert device["error_x"]["array"][1] == 0
    assert "nan" in detail(odd_record)
    nothing = timing(candidate=Contestant(name="c", host=odd), baselines=(), floor=None)
    assert PLOTLY_BANNER not in render([passing().model_copy(update={"timing": nothing})])


def test_reports_are_deterministic(page: str, records: list[Record]) -> None:
    assert render(records) == page
    assert summary(records) == summary(records)
    assert [detail(each) for each in records] == [detail(each) for each in records]


def test_text_needs_neither_torch_nor_the_plotting_library() -> None:
    code = (
        "import sys, kernelproof.report as r; r.summary([]); "
        "print([m for m in ('torch', 'plotly', 'jinja2') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
