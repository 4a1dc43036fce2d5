"""Results in the files that other harnesses' scripts read: KernelBench's `eval_results.json`, and
Trace lines of flashinfer-bench.

Times are those that were measured, in milliseconds as there; what was not timed has none.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from kernelproof.errors import UsageError
from kernelproof.report.text import main_series
from kernelproof.suite import compat
from kernelproof.suite.formats import flashinfer, kernelbench
from kernelproof.suite.model import Item, Suite
from kernelproof.types import Contestant, Record, Run, Series, SuiteResult, Timing

# Whose verdict the exported one is: that of the proof, or of the harness's own rule.
By = Literal["proof", "compat"]
RecordOf = Callable[[str], Record]

_STATUS = {
    "compile_error": "COMPILE_ERROR", "crash": "RUNTIME_ERROR", "timeout": "TIMEOUT",
    "cheat": "RUNTIME_ERROR", "wrong": "INCORRECT_NUMERICAL",
}  # fmt: skip


def export(
    suite: Suite, results: Sequence[SuiteResult], record_of: RecordOf, by: By = "proof"
) -> str:
    """The text of the file that the suite's own format has for results.

    Args:
        record_of: a record by its id.
        by: "proof", or "compat" for what the harness's own rule says of the same runs.

    Raises:
        UsageError: the format has no such file, or results are of several levels.
    """
    if suite.format == kernelbench.NAME:
        return json.dumps(eval_results(suite, results, record_of, by), indent=4) + "\n"
    if suite.format == flashinfer.NAME:
        return "".join(json.dumps(t) + "\n" for t in traces(suite, results, record_of, by))
    raise UsageError(
        f"no file of results is written for the format {suite.format}, but for "
        f"{kernelbench.NAME} and {flashinfer.NAME}"
    )


def eval_results(
    suite: Suite, results: Sequence[SuiteResult], record_of: RecordOf, by: By = "proof"
) -> dict[str, list[dict[str, Any]]]:
    """Id of the problem -> a row for each sample, as KernelBench's scripts/eval_from_generations.py
    writes them (at 423217d)."""
    named = {result.item: result for result in results}
    levels = {kernelbench.place(item.name)[0] for item in suite.items if item.name in named}
    if len(levels) > 1:
        raise UsageError(
            f"{kernelbench.RESULTS} is of one level, and these are results of "
            f"{', '.join(map(str, sorted(levels)))}: run or name one by --level"
        )
    found: dict[str, list[dict[str, Any]]] = {}
    for item in sorted(suite.items, key=lambda i: kernelbench.place(i.name)):
        result = named.get(item.name)
        if result is None or item.candidate is None:
            continue
        record = record_of(result.record_id) if result.record_id else None
        identity = str(kernelbench.place(item.name)[1])
        found.setdefault(identity, []).append(_eval_row(item, result, record, by))
    return found


def _eval_row(item: Item, result: SuiteResult, record: Record | None, by: By) -> dict[str, Any]:
    theirs = compat.verdict(item, record) if record is not None else None
    correct = result.proof if by == "proof" else bool(theirs and theirs.accepted)
    metadata: dict[str, Any] = {
        "hardware": result.device,
        "kernelproof": {
            "status": result.status, "proof": result.proof, "message": result.message,
            "record": result.record_id, "correctness_by": by,
            "compat": theirs.word if theirs else "",
        },
    }  # fmt: skip
    stats = _stats(record.timing, result.device) if record is not None and record.timing else {}
    return {
        "sample_id": item.sample,
        "compiled": record is not None and record.build.status == "pass",
        "correctness": correct,
        "metadata": metadata,
        "runtime": stats["mean"] if correct and stats else -1.0,
        "runtime_stats": stats if correct else {},
    }


def _stats(timing: Timing, hardware: str) -> dict[str, Any]:
    """Of single calls, which KernelBench times, where there are any; in ms, to three digits."""
    series = _single(timing.candidate, timing)
    if series is None:
        return {}
    ms = [1e3 * x for x in series.samples]
    spread = statistics.stdev(ms) if len(ms) > 1 else 0.0
    figures = {"mean": statistics.fmean(ms), "std": spread, "min": min(ms), "max": max(ms)}
    return {
        **{name: float(f"{value:.3g}") for name, value in figures.items()},
        "num_trials": len(ms), "hardware": hardware, "device": timing.device,
    }  # fmt: skip


def traces(
    suite: Suite, results: Sequence[SuiteResult], record_of: RecordOf, by: By = "proof"
) -> Iterator[dict[str, Any]]:
    """A Trace for each workload that was run (flashinfer_bench/data/trace.py at 40e6ca7). One that
    passed but was not timed has none: a Trace that says PASSED must hold a time."""
    named = {result.item: result for result in results if result.record_id}
    for item in suite.items:
        if item.name not in named:
            continue
        record = record_of(named[item.name].record_id)
        about = item.options["compat"]
        runs: dict[str, list[Run]] = {}
        for run in record.verdict.runs:
            if not run.variant.label:
                runs.setdefault(run.case, []).append(run)
        for workload in about["workloads"]:
            mine = runs.get(flashinfer.case_name(workload), [])
            found = _evaluation(item, record, workload, mine, by)
            if found is not None:
                yield {
                    "definition": about["definition"], "workload": workload,
                    "solution": about.get("solution"), "evaluation": found,
                }  # fmt: skip


def _evaluation(
    item: Item, record: Record, workload: Mapping[str, Any], runs: list[Run], by: By
) -> dict[str, Any] | None:
    status = record.verdict.status
    early = status in ("compile_error", "crash", "timeout") and not runs
    if not runs and not early:
        return None
    made = record.environment
    figures = [o.figures for run in runs for o in run.outputs if o.figures is not None]
    word = _STATUS[status] if early else _word(item, record, runs, by)
    found: dict[str, Any] = {
        "status": word, "log": record.verdict.message, "correctness": None, "performance": None,
        "environment": {
            "hardware": made.gpu or made.cpu,
            "libs": {"torch": made.torch, "kernelproof": made.kernelproof},
        },
        "timestamp": record.created.isoformat(),
    }  # fmt: skip
    if word in ("PASSED", "INCORRECT_NUMERICAL"):
        found["correctness"] = {
            "max_relative_error": _most(f.max_rel for f in figures),
            "max_absolute_error": _most(f.max_abs for f in figures),
            "extra": {"against": "float64", "kernelproof": record.id, "status_by": by},
        }
    if word == "PASSED":
        found["performance"] = _performance(record, workload)
        if found["performance"] is None:
            return None
    return found


def _word(item: Item, record: Record, runs: list[Run], by: By) -> str:
    if by == "compat":
        return compat.verdict(item, record).word
    wrong = record.verdict.status == "wrong" and any(run.status != "pass" for run in runs)
    if record.verdict.status == "pass" or not (wrong or record.verdict.status == "cheat"):
        return "PASSED"
    return _STATUS[record.verdict.status]


def _most(values: Iterator[float]) -> float | str:
    """The largest; "NaN" where one is, and "Infinity", which is how that harness writes them."""
    listed = list(values)
    if any(math.isnan(v) for v in listed):
        return "NaN"
    most = max(listed, default=0.0)
    return most if math.isfinite(most) else "Infinity"


def _performance(record: Record, workload: Mapping[str, Any]) -> dict[str, float] | None:
    timing = record.timing
    if timing is None or timing.case != flashinfer.case_name(workload):
        return None
    eager = next((b for b in timing.baselines if b.name == "eager"), None)
    mine = _single(timing.candidate, timing)
    theirs = _single(eager, timing) if eager is not None else None
    if mine is None or theirs is None:
        return None
    own, other = (1e3 * statistics.fmean(s.samples) for s in (mine, theirs))
    return {"latency_ms": own, "reference_latency_ms": other, "speedup_factor": other / own}


def _single(one: Contestant, timing: Timing) -> Series | None:
    for series in (one.single, main_series(one, timing)):
        if series is not None and series.samples:
            return series
    return None
