"""Suites in the forms of others: what is read, how it is judged, and what is said of the rest. The
problems are our own, written in those forms."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

from kernelproof.errors import ProblemError, UsageError
from kernelproof.pipeline import Options, judge
from kernelproof.suite import compat, exports, formats, rejudge
from kernelproof.suite.formats import flashinfer, kernelbench, made, solution, task_text
from kernelproof.suite.model import Item, Suite
from kernelproof.types import Harness, Record, SuiteResult

HERE = Path(__file__).parent / "formats"


def judged(item: Item, **more: object) -> Record:
    assert item.candidate is not None
    own = {k: v for k, v in item.options.items() if k != "compat"}
    options = Options(device="cpu", level="quick", seeds=2, seed=5, **own, **more)  # type: ignore[arg-type]
    return judge(item.problem, item.candidate, options=options)


def item(suite: Suite, name: str) -> Item:
    return next(one for one in suite.items if one.name == name)


def result(of: Item, record: Record) -> SuiteResult:
    return SuiteResult(
        item=of.name, category=of.category, problem=str(of.problem), sample=of.sample,
        digest=of.digest(), status=record.status, proof=record.verdict.proof,
        message=record.verdict.message, device="a CPU", record_id=record.id,
    )  # fmt: skip


LAYOUTS = {
    "reference_kernels": "gpumode", "flashinfer": "flashinfer", "sol": "flashinfer",
    "kernelbench": "kernelbench", "kernelbench/KernelBench/level1": "kernelbench",
    "kernelbench_com": "kernelbench.com",
}  # fmt: skip


@pytest.mark.parametrize("folder", LAYOUTS)
def test_the_format_is_known_by_its_layout(folder: str) -> None:
    assert formats.load(HERE / folder).format == LAYOUTS[folder]


def test_what_is_no_suite_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no suite"):
        formats.load(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="the layout of none of kernelbench, gpumode"):
        formats.load(tmp_path)
    with pytest.raises(UsageError, match="no format 'swiss'"):
        formats.load(HERE / "flashinfer", "swiss")
    with pytest.raises(UsageError, match="has no levels"):
        formats.load(HERE / "flashinfer", level=1)
    with pytest.raises(UsageError, match="has no level 3; it has 1, 2"):
        formats.load(HERE / "kernelbench", level=3)
    for folder in ("reference_kernels", "flashinfer", "kernelbench", "kernelbench_com"):
        with pytest.raises(UsageError, match="holds no"):
            formats.load(HERE / folder, candidates=tmp_path)


def test_an_unmodified_suite_gives_the_same_items_twice() -> None:
    for folder in LAYOUTS:
        twice = [formats.load(HERE / folder, candidates="reference") for _ in range(2)]
        assert [i.digest() for i in twice[0].items] == [i.digest() for i in twice[1].items]


# --- every reference as its own candidate passes ---

REFERENCES = [
    (folder, one.name)
    for folder in LAYOUTS
    if "level1" not in folder
    for one in formats.load(HERE / folder, candidates="reference").items
    # Those have no one answer, and say so; see below.
    if one.name not in ("draw_v32", "tiny/factors")
]


@pytest.mark.parametrize(("folder", "name"), REFERENCES)
def test_a_reference_passes_as_its_own_candidate(folder: str, name: str) -> None:
    suite = formats.load(HERE / folder, candidates="reference")
    record = judged(item(suite, name))
    assert record.status == "pass", record.verdict.message
    assert record.verdict.runs


# --- reference-kernels ---


def test_tasks_with_their_own_submissions() -> None:
    suite = formats.load(HERE / "reference_kernels")
    names = [i.name.removeprefix("tiny/") for i in suite.items]
    assert names == ["counts", "factors", "prefix_sum", "scaled_add"]
    for name in ("counts", "prefix_sum", "scaled_add"):
        record = judged(item(suite, f"tiny/{name}"))
        assert record.status == "pass" and record.verdict.compat, record.verdict.message


def test_the_ranked_case_is_the_first() -> None:
    suite = formats.load(HERE / "reference_kernels")
    cases = judged(item(suite, "tiny/scaled_add")).problem.cases
    assert [c.name for c in cases] == ["benchmark size=48", "test size=17", "test size=32"]


def test_submissions_that_their_check_accepts_and_we_do_not() -> None:
    suite = formats.load(
        HERE / "reference_kernels", candidates=HERE / "reference_kernels" / "submissions"
    )
    names = {i.name: i for i in suite.items if i.candidate is not None}
    assert set(names) == {"tiny/counts", "tiny/prefix_sum", "tiny/scaled_add/in_bfloat16",
                          "tiny/scaled_add/adds_to_what_is_there"}  # fmt: skip
    rows = {n: rejudge.one(i, judged(i)) for n, i in names.items()}
    lossy = rows["tiny/scaled_add/in_bfloat16"]
    assert (lossy.theirs, lossy.ours, lossy.change) == ("pass", "wrong", "overturned")
    # It adds to memory that nobody has written: here NaN, elsewhere often zero.
    stale = rows["tiny/scaled_add/adds_to_what_is_there"]
    assert stale.ours == "wrong" and "NaN" in stale.reason
    assert (rows["tiny/counts"].theirs, rows["tiny/counts"].ours) == ("fail", "wrong")
    assert rows["tiny/prefix_sum"].change is None and rows["tiny/prefix_sum"].ours == "pass"


def test_a_submission_for_what_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "counts__other.py").write_text("import no_such_language\n")
    suite = formats.load(HERE / "reference_kernels", candidates=tmp_path)
    record = judged(item(suite, "tiny/counts"))
    assert record.status == "unsupported" and "no_such_language" in record.verdict.message
    assert compat.verdict(item(suite, "tiny/counts"), record) == Harness(
        accepted=None, word="not run", reasons=(record.verdict.message,)
    )


def test_a_task_without_one_truth_is_unsupported() -> None:
    suite = formats.load(HERE / "reference_kernels", candidates="reference")
    with pytest.raises(ProblemError, match="unsupported: check_implementation asks for properties"):
        judged(item(suite, "tiny/factors"))


def test_the_device_and_the_buffers_of_a_task() -> None:
    text = 'x = torch.ones(2, device="cuda").cuda()\ny = "cuda words"\n'
    changed = task_text.with_device(text)
    assert changed == (
        "x = torch.ones(2, device=kernelproof_device()).to(kernelproof_device())\n"
        'y = "cuda words"\n'
    )
    made_then_written = """
def generate_input(n):
    a = torch.empty(n)
    a.uniform_(0, 1)
    b = torch.zeros(n).contiguous()
    return a, b
"""
    assert task_text.buffers(made_then_written) == ("zeros",)
    assert task_text.buffers("def generate_input(n):\n    return torch.empty(n)\n") == ()


# --- flashinfer-bench and SOL-ExecBench ---


def test_solutions_of_a_dataset() -> None:
    suite = formats.load(HERE / "flashinfer")
    status = {i.name: judged(i) for i in suite.items if i.candidate is not None}
    tvm = status["gather_d16/gather_bound_to_tvm"]
    there = importlib.util.find_spec("tvm_ffi") is not None
    assert {n: r.status for n, r in status.items()} == {
        "gather_d16/gather_bound_to_tvm": "pass" if there else "unsupported",
        "gather_d16/gather_into": "pass",
        "row_norm_n64/norm_in_half": "wrong", "row_norm_n64/norm_into": "pass",
        "scaled_product_k32": "pass",
    }  # fmt: skip
    assert there or "pip install apache-tvm-ffi" in tvm.verdict.message, tvm.verdict.message
    # Two outputs, of which the reference names its own and the solution returns a tuple.
    assert len(status["scaled_product_k32"].verdict.runs[0].outputs) == 2
    wrong = item(suite, "row_norm_n64/norm_in_half")
    row = rejudge.one(wrong, status[wrong.name])
    assert (row.source, row.theirs, row.change) == ("published", "PASSED", "overturned")
    drawn = item(formats.load(HERE / "flashinfer", candidates="reference"), "draw_v32")
    with pytest.raises(
        ProblemError, match="unsupported: op_type 'sampling': its answers are random"
    ):
        judged(drawn)


def test_what_a_solution_needs_and_lacks_is_said(tmp_path: Path) -> None:
    """Where a package or a binding is missing, it is `unsupported`, with the reason."""
    definition = json.loads((HERE / "flashinfer/definitions/gather/gather_d16.json").read_text())
    problem = item(formats.load(HERE / "flashinfer"), "gather_d16/gather_into").problem
    given = HERE / "flashinfer/solutions/us/gather/gather_d16/gather_bound_to_tvm.json"
    for change, words in (
        ({"binding": "pybind13"}, "binding pybind13: .* bind to torch or tvm-ffi"),
        ({"language": "tilelang", "entry_point": "kernel.cpp::gather"}, "written with tilelang"),
        ({"language": "mojo"}, "language mojo"),
    ):
        one = json.loads(given.read_text())
        one["spec"].update(change)
        made_one = Item(problem, solution.candidate(one, definition), "gather")
        record = judged(made_one)
        assert record.status == "unsupported"
        assert re.search(words, record.verdict.message), record.verdict.message


@pytest.mark.parametrize("binding", ["tvm-ffi", "torch"])
def test_a_solution_that_does_not_compile(binding: str) -> None:
    if binding == "tvm-ffi" and importlib.util.find_spec("tvm_ffi") is None:
        pytest.skip("needs tvm-ffi (extra `tvm`)")
    definition = json.loads((HERE / "flashinfer/definitions/gather/gather_d16.json").read_text())
    problem = item(formats.load(HERE / "flashinfer"), "gather_d16/gather_into").problem
    one = json.loads(
        (HERE / "flashinfer/solutions/us/gather/gather_d16/gather_bound_to_tvm.json").read_text()
    )
    one["spec"]["binding"] = binding
    one["sources"][1]["content"] = "int gather(int rows) {\n  return rows\n}\n"
    record = judged(Item(problem, solution.candidate(one, definition), "gather"))
    assert record.status == "compile_error", record.verdict.message
    assert re.match(r"kernel.cpp:2: expected .;. before", record.verdict.message)
    assert "[1/2]" not in record.verdict.detail and "ninja" not in record.verdict.detail


def test_a_share_of_wrong_elements_is_what_their_tolerance_takes() -> None:
    suite = formats.load(HERE / "sol")
    records = {i.name: judged(i) for i in suite.items}
    assert {n: r.status for n, r in records.items()} == {
        "shifted_blocks/shift": "pass", "shifted_blocks/shift_most": "wrong",
    }  # fmt: skip
    most = item(suite, "shifted_blocks/shift_most")
    assert compat.verdict(most, records[most.name]).accepted is True  # 92 % match, 90 % must


def test_traces() -> None:
    suite = formats.load(HERE / "flashinfer")
    chosen = [item(suite, f"row_norm_n64/{n}") for n in ("norm_in_half", "norm_into")]
    records = {r.id: r for r in map(judged, chosen)}
    results = [result(i, r) for i, r in zip(chosen, records.values(), strict=True)]
    lines = list(exports.traces(suite, results, records.__getitem__))
    # What passed was not timed, and a trace that says PASSED must hold a time.
    assert {line["solution"] for line in lines} == {"norm_in_half"}
    evaluation = lines[0]["evaluation"]
    assert evaluation["status"] == "INCORRECT_NUMERICAL" and evaluation["performance"] is None
    assert 0 < evaluation["correctness"]["max_absolute_error"] < 0.1
    assert lines[0]["workload"]["uuid"] == "a1b2c3d4-norm-7"


def test_a_timed_trace_has_the_times_that_were_measured() -> None:
    suite = formats.load(HERE / "flashinfer")
    one = item(suite, "row_norm_n64/norm_into")
    options = Options(
        device="cpu", level="quick", seeds=1, baselines=("eager",), rounds=4, seconds=1
    )
    record = judge(one.problem, one.candidate or "", timed=True, options=options)
    assert record.timing is not None
    (line,) = exports.traces(suite, [result(one, record)], lambda _: record)
    found = line["evaluation"]["performance"]
    assert line["evaluation"]["status"] == "PASSED"
    mine = record.timing.candidate.single or record.timing.candidate.host
    assert mine is not None
    assert found["latency_ms"] == pytest.approx(1e3 * sum(mine.samples) / len(mine.samples))
    assert found["speedup_factor"] == found["reference_latency_ms"] / found["latency_ms"]


MAIN = """
#include "rows.h"
void gather(torch::Tensor t, torch::Tensor i, torch::Tensor o) { rows(t, i, o); }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("gather", &gather); }
"""
ROWS = """
#include <torch/extension.h>
inline void rows(torch::Tensor t, torch::Tensor i, torch::Tensor o) {
  o.copy_(t.index_select(0, i.remainder(t.size(0))));
}
"""


@pytest.mark.slow
def test_a_solution_in_cpp_that_binds_to_torch(tmp_path: Path) -> None:
    given = json.loads(
        (HERE / "flashinfer/solutions/us/gather/gather_d16/gather_into.json").read_text()
    )
    given["spec"] |= {"language": "cpp", "binding": "torch", "entry_point": "main.cpp::gather"}
    given["sources"] = [{"path": "main.cpp", "content": MAIN}, {"path": "rows.h", "content": ROWS}]
    (tmp_path / "rows.json").write_text(json.dumps(given))
    suite = formats.load(HERE / "flashinfer", candidates=tmp_path)
    record = judged(item(suite, "gather_d16"))
    assert record.status == "pass", record.verdict.message
    assert record.candidate.language == "cpp-inline"


def test_bad_solutions_are_named(tmp_path: Path) -> None:
    source = HERE / "flashinfer/solutions/us/gather/gather_d16/gather_into.json"
    given = json.loads(source.read_text())
    for change, words in (
        ({"sources": [{"path": "../x.py", "content": ""}]}, "leads out of its folder"),
        ({"spec": {**given["spec"], "entry_point": "other.py::f"}}, "is no file::function of main"),
    ):
        (tmp_path / "one.json").write_text(json.dumps({**given, **change}))
        with pytest.raises(UsageError, match=words):
            formats.load(HERE / "flashinfer", candidates=tmp_path)


# --- KernelBench ---


def ours() -> Suite:
    return formats.load(HERE / "kernelbench", level=1, candidates=HERE / "kernelbench/runs/ours")


def test_a_run_of_kernelbench() -> None:
    suite = ours()
    assert [i.name for i in suite.items] == ["level1/1", "level1/1/1", "level1/2", "level1/3"]
    assert kernelbench.place("level1/1/1") == (1, 1, 1)
    rows = {i.name: rejudge.one(i, judged(i)) for i in suite.items}
    assert {n: (r.theirs, r.ours, r.change) for n, r in rows.items()} == {
        "level1/1": ("correct", "pass", None),
        "level1/1/1": ("incorrect", "pass", "cleared"),
        "level1/2": ("correct", "wrong", "overturned"),
        "level1/3": ("incorrect", "pass", "cleared"),
    }
    assert "copies no weights" in rows["level1/1/1"].reason
    assert "torch.int64 to float32" in rows["level1/3"].reason
    text = rejudge.text(list(rows.values()))
    assert text.endswith("4 judged again: 1 overturned, 2 cleared")


def test_batch_statistics_are_those_of_training_mode() -> None:
    suite = formats.load(HERE / "kernelbench", level=2, candidates=HERE / "kernelbench/runs/level2")
    norm, drop = suite.items
    assert norm.options["training"] is True and "training" not in drop.options
    assert judged(norm).status == "pass"
    # The same candidate beside a reference in eval mode, which takes stored statistics.
    plain = judge(norm.problem, norm.candidate or "", options=Options(device="cpu", seeds=1))
    assert plain.status == "wrong"
    # Without dropout it is right; what KernelBench says of it hangs on luck.
    record = judged(drop)
    assert record.status == "pass" and compat.verdict(drop, record).accepted is None


def test_eval_results_are_as_kernelbench_reads_them() -> None:
    suite = ours()
    records = [judged(i) for i in suite.items]
    by_id = {r.id: r for r in records}
    results = [result(i, r) for i, r in zip(suite.items, records, strict=True)]
    proof = json.loads(exports.export(suite, results, by_id.__getitem__))
    compatible = exports.eval_results(suite, results, by_id.__getitem__, "compat")
    assert list(proof) == ["1", "2", "3"] and [r["sample_id"] for r in proof["1"]] == [0, 1]
    assert [r["correctness"] for r in (*proof["1"], *proof["2"], *proof["3"])] == [
        True, True, False, True,
    ]  # fmt: skip
    assert [r["correctness"] for rows in compatible.values() for r in rows] == [
        True, False, True, False,
    ]  # fmt: skip
    for row in proof["1"]:
        assert set(row) == {"sample_id", "compiled", "correctness", "metadata", "runtime",
                            "runtime_stats"}  # fmt: skip
        assert row["compiled"] is True and row["runtime"] == -1.0  # nothing was timed
    with pytest.raises(UsageError, match="no file of results is written for the format gpumode"):
        exports.export(formats.load(HERE / "reference_kernels"), [], by_id.__getitem__)


def test_two_levels_are_not_one_file() -> None:
    suite = formats.load(HERE / "kernelbench", candidates="reference")
    results = [
        SuiteResult(item=n, category="", problem="", sample=0, digest="", status="wrong")
        for n in ("level1/1", "level2/10")
    ]
    with pytest.raises(UsageError, match="is of one level"):
        exports.eval_results(suite, results, lambda _: None)  # type: ignore[arg-type,return-value]


# --- kernelbench.com ---


def test_shapes_are_cases_and_formulas_counts() -> None:
    suite = formats.load(HERE / "kernelbench_com")
    (one,) = suite.items
    record = judged(one)
    assert record.status == "pass" and record.problem.atol == 1e-3
    assert [c.name for c in record.problem.cases] == ["rows=3,n=24", "rows=5,n=7"]
    from kernelproof.problem import load

    reference = load(one.problem)
    assert reference.count("FLOPS", record.problem.cases[0]) == 2 * 3 * 24


def test_what_a_problem_forbids_is_what_its_check_refuses(tmp_path: Path) -> None:
    text = (HERE / "kernelbench_com/01_row_max/solution.py").read_text()
    (tmp_path / "01_row_max__amax.py").write_text(
        text.replace("torch.max(x * self.scale, dim=1).values", "torch.amax(x * self.scale, 1)")
    )
    (one,) = formats.load(HERE / "kernelbench_com", candidates=tmp_path).items
    record = judged(one)
    found = compat.verdict(one, record)
    assert record.status == "pass" and found.accepted is False
    assert found.reasons == ("names torch.amax, which the problem forbids",)


def test_made_folders_hold_what_they_were_made_of(tmp_path: Path) -> None:
    one = made.folder("form", "a/b c", {"candidate.py": "x = 1\n"})
    assert one.name == "a_b_c" and (one / "candidate.py").read_text() == "x = 1\n"
    (one / "candidate.py").write_text("changed\n")
    assert made.folder("form", "a/b c", {"candidate.py": "x = 1\n"}) == one
    assert (one / "candidate.py").read_text() == "x = 1\n"
    assert flashinfer.case_name({"axes": {"M": 7}, "uuid": "0123456789"}) == "M=7 01234567"
