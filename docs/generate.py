"""Fill the generated parts of the documents: tables from results/, output from real runs.

    python docs/generate.py           write
    python docs/generate.py --tables  write the tables only

A part stands between ``<!-- table: NAME -->`` or ``<!-- output: COMMAND -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import agents_session
import bench_tables
import gated_tables
import int8_tables
import ladder_tables
import mla_kv_tables
import suite_tables
import timing_tables

from kernelproof.inspect import devices, limits, sentences
from kernelproof.report.units import ratio, seconds
from kernelproof.store import read_json
from kernelproof.types import Record

ROOT = Path(__file__).resolve().parents[1]
PART = re.compile(r"<!-- (table|output): (.+?) -->\n(.*?)<!-- end -->", re.DOTALL)


def documents() -> list[Path]:
    rungs = sorted((ROOT / "candidates").glob("**/*.md"))
    operators = sorted((ROOT / "src" / "kernelproof" / "ops").glob("[!_]*/*.md"))
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *operators, *rungs]


def newest_operators(machine: str) -> list[Record]:
    """Records of the newest operators file of ``results/<machine>``."""
    files = sorted((ROOT / "results" / machine).glob("*-operators.json"))
    return read_json(files[-1]) if files else []


def operators() -> str:
    """CUDA kernels on the newest GPU machine."""
    records = [r for r in newest_operators("h200") if r.candidate.name == "cuda"]
    return _table(records)


def operators_all() -> str:
    parts = []
    for folder in sorted((ROOT / "results").iterdir()):
        records = newest_operators(folder.name) if folder.is_dir() else []
        if records:
            env = records[0].environment
            where = env.gpu or f"{env.cpu}, {env.cores} cores"
            date = records[0].created.date().isoformat()
            parts.append(f"**{where}**, torch {env.torch}, {date}\n\n{_table(records)}")
    return "\n".join(parts)


def _table(records: list[Record]) -> str:
    """One row a record: the clock is device time in a CUDA graph, or host time on a CPU."""
    lines = [
        "| operator | kernel | time | eager | faster | torch.compile | best other baseline | "
        "empty launch | effective bits (eager) |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for record in records:
        timing = record.timing
        assert timing is not None
        clock = "device" if timing.device != "cpu" else "host"

        def time_of(contestant, clock=clock) -> str:
            found = getattr(contestant, clock) if contestant is not None else None
            return seconds(found.median) if found is not None else "-"

        others = {b.name: b for b in timing.baselines}
        ratios = {r.baseline: r for r in timing.ratios if r.clock == clock}
        named = [b for n, b in others.items() if n not in ("eager", "torch.compile")]
        named = [b for b in named if getattr(b, clock) is not None]
        best = min(named, key=lambda b: getattr(b, clock).median, default=None)
        figures = record.verdict.runs[0].outputs[0]
        bits = f"{figures.figures.effective_bits:.1f} ({figures.reference.effective_bits:.1f})"
        faster = ratios.get("eager")
        other = f"{time_of(best)} ({best.name})" if best else "-"
        lines.append(
            f"| {record.problem.name} | {record.candidate.name} | {time_of(timing.candidate)} | "
            f"{time_of(others.get('eager'))} | {ratio(faster.ratio) if faster else '-'} | "
            f"{time_of(others.get('torch.compile'))} | "
            f"{other} | {time_of(timing.floor)} | {bits} |"
        )
    return "\n".join(lines) + "\n"


def output(command: str) -> str:
    """What ``command`` prints on stdout, without the line that describes the machine."""
    words = shlex.split(command)
    assert words[0] == "kernelproof"
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{command}: {done.stderr}")
    text = re.sub(r"\nmachine  .*?(?=\n\n|\Z)", "", done.stdout, flags=re.DOTALL)
    return f"```text\n{text.strip()}\n```\n"


def _emulator() -> dict[str, Any]:
    """The newest figures of benchmarks/emulate_tables.py."""
    files = sorted((ROOT / "results" / "emulator").glob("*-emulate.json"))
    return dict(json.loads(files[-1].read_text()))


def emulated_bugs() -> str:
    """Planted bugs by kind."""
    bugs = _emulator()["bugs"]
    lines = ["| kind | planted | found | with the right line | kernels |", "|---|---|---|---|---|"]
    for kind in sorted({bug["kind"] for bug in bugs}):
        mine = [bug for bug in bugs if bug["kind"] == kind]
        counts = [len(mine), sum(b["found"] for b in mine), sum(b["line"] for b in mine)]
        kernels = ", ".join(sorted({bug["kernel"] for bug in mine}))
        lines.append(f"| {kind} | {' | '.join(map(str, counts))} | {kernels} |")
    return "\n".join(lines) + "\n"


def emulated_mutations() -> str:
    """Shipped kernels with one barrier or wait removed."""
    lines = ["| kernel | line | removed | reported |", "|---|---|---|---|"]
    for row in _emulator()["mutations"]:
        line = row["line"] or "-"
        words = row["reported"] or "nothing"
        lines.append(f"| {row['kernel']} | {line} | `{row['removed']}` | {words} |")
    return "\n".join(lines) + "\n"


def emulated_times() -> str:
    """Emulated checks of the founding cases."""
    lines = ["| problem | verdict | wall time of the whole check |", "|---|---|---|"]
    for row in _emulator()["founding"]:
        lines.append(f"| {row['problem']} | {row['status']} | {seconds(row['wall'])} |")
    return "\n".join(lines) + "\n"


def emulated_inline() -> str:
    """Candidates of load_inline, from benchmarks/emulate_inline.py."""
    given = json.loads((ROOT / "results" / "emulator" / "inline.json").read_text())
    lines = ["| candidate | status | finding, on the line that is marked |", "|---|---|---|"]
    for row in given["rows"]:
        found = row["finding"] if row["finding"] and row["line_right"] else "none"
        lines.append(f"| {row['candidate']} | {row['status']} | {found} |")
    return "\n".join(lines) + "\n"


def _sanitizer() -> list[dict[str, Any]]:
    given = json.loads((ROOT / "results" / "emulator" / "sanitizer.json").read_text())
    return [row for row in given["rows"] if "failed" not in row]


def emulated_sanitizer() -> str:
    """The emulator beside compute-sanitizer, from benchmarks/sanitizer_compare.py --join."""
    lines = [
        "| planted | kernels | emulator | compute-sanitizer | kernels with a difference |",
        "|---|---|---|---|---|",
    ]
    rows = _sanitizer()
    for kind in sorted({row["kind"] for row in rows}):
        mine = [row for row in rows if row["kind"] == kind]
        counts = [
            len(mine),
            sum(bool(r["emulator_line"] if kind else r["emulator"]) for r in mine),
            sum(bool(r["sanitizer_line"] if kind else r["tools"]) for r in mine),
            sum(bool(r["differences"]) for r in mine),
        ]
        name = kind or "nothing (any finding counts)"
        lines.append(f"| {name} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines) + "\n"


def emulated_sanitizer_differences() -> str:
    """Differences of the same kind in one line, with the reason."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in _sanitizer():
        for found in row["differences"]:
            if not found["sanitizer"] and not row["tools"].get(found["tool"]):
                who = "emulator"
            else:
                who = "both, other lines" if found["emulator"] else found["tool"]
            groups.setdefault((who, found["right"], found["why"]), []).append(row)
    lines = [
        "| found by | right | why | kernels | with wrong values on the GPU |",
        "|---|---|---|---|---|",
    ]
    for (who, right, why), rows in sorted(groups.items(), key=lambda g: (g[0][0], -len(g[1]))):
        names = ", ".join(row["id"] for row in rows)
        wrong = sum(row["values"]["wrong"] > 0 for row in rows)
        ran = sum(row["values"]["runs"] > 0 for row in rows)
        lines.append(f"| {who} | {right} | {why} | {names} | {wrong} of {ran} |")
    return "\n".join(lines) + "\n"


def emulated_public() -> str:
    """Public repositories, from benchmarks/public.py."""
    rows = json.loads((ROOT / "results" / "emulator" / "public.json").read_text())
    lines = [
        "| repository | programs | ran | kernels launched | right | wrong | "
        "without a check | findings |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(row["repository"] for row in rows):
        mine = [row for row in rows if row["repository"] == name]
        ran = [row for row in mine if not row["error"] and row["exit"] == 0]
        counts = [
            len(mine), len(ran), sum(len(r["kernels"]) for r in ran),
            sum(r["right"] is True for r in ran), sum(r["right"] is False for r in ran),
            sum(r["right"] is None for r in ran), sum(len(r["findings"]) for r in ran),
        ]  # fmt: skip
        lines.append(f"| {name} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines) + "\n"


def emulated_instructions() -> str:
    """The emulator beside a GPU, from benchmarks/ptx_microtests.py --compare."""
    newest = sorted((ROOT / "results" / "emulator").glob("*-ptx.json"))[-1]
    stored = json.loads(newest.read_text())
    lines = [
        f"| forms of instructions, {stored['gpu']}, {stored['date']} | all | bit for bit | "
        "within their bound | wrong | elements compared | left open by PTX | of these equal |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for group in [*dict.fromkeys(row["group"] for row in stored["cases"]), "all"]:
        rows = [row for row in stored["cases"] if group in (row["group"], "all")]
        exact = sum(row["differ"] == 0 for row in rows)
        right = sum(row["right"] for row in rows)
        left_open = sum(row["open"] for row in rows)
        counts = [len(rows), exact, right - exact, len(rows) - right]
        counts += [sum(row["elements"] for row in rows) - left_open, left_open]
        counts += [sum(row["open_same"] for row in rows)]
        lines.append(f"| {group} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines) + "\n"


def emulated_bounds() -> str:
    """Approximate instructions: the largest distance to the GPU's result."""
    newest = sorted((ROOT / "results" / "emulator").glob("*-ptx.json"))[-1]
    lines = ["| instruction | units in the last place | bound of the test |", "|---|---|---|"]
    for row in json.loads(newest.read_text())["cases"]:
        if row["bound"]:
            lines.append(f"| `{row['name']}` | {row['distance']:g} | {row['bound']:g} |")
    return "\n".join(lines) + "\n"


def _corpus(name: str) -> list[dict[str, Any]]:
    """Results of results/<name>; none where there is no such file."""
    path = ROOT / "results" / name
    return json.loads(path.read_text())["results"] if path.is_file() else []


def corpus() -> str:
    """Wrong kernels passed and honest kernels failed, ours beside allclose."""
    ways = {
        "kernelproof": lambda r: r["status"] == "pass",
        "KernelBench": lambda r: r["allclose"]["kernelbench"],
        "allclose, 1e-4 / 1e-2": lambda r: r["allclose"]["all_1e-4"],
        "allclose, 1e-2": lambda r: r["allclose"]["all_1e-2"],
    }
    lines = ["| kernels | " + " | ".join(ways) + " |", "|---|" + "---|" * len(ways)]
    for name in ("corpus.json", "corpus-gpu.json"):
        results = _corpus(name)
        where = "GPU" if "gpu" in name else "CPU"
        for expected, words in (("pass", "honest, failed"), ("wrong", "wrong, passed")):
            group = [r for r in results if r["expected"] == expected]
            if not group:
                continue
            kinds = len({r["fixture"] for r in group})
            cells = []
            for accepts in ways.values():
                bad = [r["fixture"] for r in group if accepts(r) != (expected == "pass")]
                cells.append(f"{len(bad)} ({len(set(bad))} kernels)" if bad else "0")
            lines.append(
                f"| {kinds} {words}, {where}, of {len(group)} verdicts | "
                + " | ".join(cells)
                + " |"
            )
    return "\n".join(lines) + "\n"


def corpus_ratios() -> str:
    """The honest kernels with the largest ratios, and the wrong ones with the smallest."""
    results = _corpus("corpus.json")
    largest: dict[tuple[str, str], float] = {}
    for r in results:
        by_value = r["status"] == r["expected"] == "pass" or r["rows"] > 12 or r["all"] > 12
        if by_value:
            key = r["expected"], r["fixture"]
            largest[key] = max(largest.get(key, 0.0), r["rows"], r["all"])
    honest = sorted(((v, n) for (e, n), v in largest.items() if e == "pass"), reverse=True)
    wrong = sorted((v, n) for (e, n), v in largest.items() if e == "wrong")
    lines = ["| honest kernel | largest ratio | wrong kernel | ratio |", "|---|---|---|---|"]
    for (a, b), (c, d) in zip(honest[:10], wrong[:10], strict=False):
        lines.append(f"| `{b}` | {a:.1f} | `{d}` | {c:.3g} |")
    return "\n".join(lines) + "\n"


def floors_h200() -> str:
    """Floors of an H200, measured twice."""
    found = timing_tables.newest("floors")["floors"]
    first, second = found["measured 1"], found["measured 2"]

    def both(key: str, name: str) -> list[float]:
        return [one[key][name] * 1e-12 for one in (first, second)]

    rows = [("empty launch", "us", [one["call"] * 1e6 for one in (first, second)])]
    for n, band in enumerate(first["bandwidth"]):
        if band["size"] in (first["bandwidth"][0]["size"], first["bandwidth"][-1]["size"]):
            size = f"{band['size'] / 2**20:.3g} MiB"
            for what in ("read", "write", "copied"):
                rates = [one["bandwidth"][n][what] * 1e-12 for one in (first, second)]
                rows.append((f"{what}, {size}", "TB/s", rates))
    rows += [(f"{n} products", "TFLOP/s", both("matrix", n)) for n in first["matrix"]]
    rows += [(f"{n} multiply-adds", "TFLOP/s", both("vector", n)) for n in first["vector"]]
    lines = ["| floor | measured | again |", "|---|---|---|"]
    lines += [f"| {n} | {a:.3g} {unit} | {b:.3g} {unit} |" for n, unit, (a, b) in rows]
    return "\n".join(lines) + "\n"


def inspect_rules() -> str:
    """The rules of `kernelproof inspect`, in the order in which they speak."""
    lines = ["| rule | speaks where | needs |", "|---|---|---|"]
    for of, rules in (("kernel", sentences.RULES), ("call", limits.RULES)):
        lines += [f"| {r.name} ({of}) | {r.when} | {r.needs} |" for r in rules]
    return "\n".join(lines) + "\n"


def inspect_devices() -> str:
    """GPUs that `kernelproof inspect` knows by name."""
    lines = ["| GPU | architecture | multiprocessors | source |", "|---|---|---|---|"]
    for name in devices.names():
        d = devices.find(name)
        lines.append(f"| `{name}` | sm_{d.capability.arch} | {d.multiprocessors} | {d.source} |")
    return "\n".join(lines) + "\n"


TABLES: dict[str, Callable[..., str]] = {
    "operators": operators,
    "operators_all": operators_all,
    "emulated_bugs": emulated_bugs,
    "emulated_mutations": emulated_mutations,
    "emulated_times": emulated_times,
    "emulated_instructions": emulated_instructions,
    "emulated_inline": emulated_inline,
    "emulated_sanitizer": emulated_sanitizer,
    "emulated_sanitizer_differences": emulated_sanitizer_differences,
    "emulated_public": emulated_public,
    "emulated_bounds": emulated_bounds,
    "corpus": corpus,
    "corpus_ratios": corpus_ratios,
    "ladder": ladder_tables.table,
    "ladder_inline": ladder_tables.inline,
    "learnt": ladder_tables.learnt,
    "rung": ladder_tables.rung,
    "timing_answers": timing_tables.answers,
    "timing_h200": timing_tables.itself,
    "timing_compared": timing_tables.compared,
    "bench_time": timing_tables.bench_time,
    "gpu_tests": timing_tables.gpu_tests,
    "kept_in_l2": timing_tables.kept_in_l2,
    "worker_cost": timing_tables.worker_cost,
    "floors_h200": floors_h200,
    "suite_level1": suite_tables.level1,
    "suite_two_gpus": suite_tables.two_gpus,
    "suite_one_gpu": suite_tables.one_gpu,
    "inspect_rules": inspect_rules,
    "inspect_devices": inspect_devices,
    "agents_session": agents_session.kept,
    "session_times": bench_tables.session_times,
    "session_judge": bench_tables.session_judge,
    "parallel_sessions": bench_tables.parallel_sessions,
    "proofs": bench_tables.proofs,
    "operator_proofs": bench_tables.operator_proofs,
    "gated_recurrence": gated_tables.table,
    "gated_recurrence_accuracy": gated_tables.accuracy,
    "gated_recurrence_fp32": gated_tables.fp32,
    "int8_attention": int8_tables.table,
    "int8_attention_founding": int8_tables.founding,
    "int8_attention_targets": int8_tables.targets,
    "mla_kv": mla_kv_tables.table,
    "mla_kv_cpu": mla_kv_tables.cpu_table,
}


def fill(text: str, with_output: bool) -> str:
    """``text`` with its generated parts made anew."""

    def replace(match: re.Match[str]) -> str:
        kind, name, old = match.groups()
        if kind == "table":
            first, _, rest = name.partition(" ")
            body = TABLES[first](*([rest] if rest else []))
        else:
            body = output(name) if with_output else old
        return f"<!-- {kind}: {name} -->\n{body}<!-- end -->"

    return PART.sub(replace, text)


if __name__ == "__main__":
    for name, plot in ladder_tables.plots().items():
        (ROOT / "docs" / name).write_text(plot)
    if picture := gated_tables.plot():
        (ROOT / "docs" / "gated_recurrence-steps.svg").write_text(picture)
    if picture := mla_kv_tables.plot():
        (ROOT / "docs" / "mla_kv-tokens.svg").write_text(picture)
    if picture := int8_tables.plot():
        (ROOT / "docs" / "int8_attention-length.svg").write_text(picture)
    for path in documents():
        before = path.read_text()
        after = fill(before, with_output="--tables" not in sys.argv)
        if after != before:
            path.write_text(after)
            print(f"wrote {path.relative_to(ROOT)}")
