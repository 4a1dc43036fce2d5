"""Compares the emulator with NVIDIA's compute-sanitizer on the planted bugs and the clean kernels.

On a machine with a GPU, nvcc (or NVRTC) and compute-sanitizer, under four minutes:

    python benchmarks/sanitizer_compare.py --out DIR      writes DIR/sanitizer-raw.json

Then anywhere:

    python benchmarks/sanitizer_compare.py --join DIR/sanitizer-raw.json
                                                          writes results/emulator/sanitizer.json

Each kernel runs in processes of its own, one per tool, each ended after `LIMIT` seconds: some of
the bugs never come to an end. The outputs that the results rest on are kept, without the host's
frames, in tests/emulate/fixtures/h200-sanitizer.json. Why the two differ where they do is written
in sanitizer_reasons.py.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import ctypes
import datetime
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from sanitizer_reasons import REASONS

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "emulate")]

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
LIMIT, WHOLE = 25.0, 200.0  # seconds: of one process, of all
# The tool that looks for each kind of the emulator's findings.
TOOL_OF = {
    "race": "racecheck", "copy in flight": "racecheck", "uninitialised": "initcheck",
    "out of bounds": "memcheck", "misaligned": "memcheck", "absent lanes": "synccheck",
    "divergent barrier": "synccheck", "deadlock": "",
}  # fmt: skip


def kernels() -> list[dict[str, Any]]:
    """Name, kernel, source, and the planted bug's kind and lines."""
    import emulate_corpus as corpus

    found = [
        {
            "id": f"{name}-clean",
            "kernel": name,
            "source": corpus.text(name),
            "kind": "",
            "lines": [],
        }
        for name in corpus.CLEAN
    ]
    for number, bug in enumerate(corpus.BUGS):
        source, lines = corpus.planted(bug)
        found.append(
            {"id": f"{bug.kernel}-{number:02d}", "kernel": bug.kernel, "source": source,
             "kind": bug.kind, "lines": lines}
        )  # fmt: skip
    return found


# ---- on the GPU


def cubin(entry: dict[str, Any], folder: Path, arch: str) -> Path:
    """Raises RuntimeError with the compiler's lines."""
    source, made = folder / f"{entry['id']}.cu", folder / f"{entry['id']}.cubin"
    source.write_text(entry["source"])
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if Path(nvcc).is_file():
        command = [nvcc, "-cubin", "-lineinfo", "-std=c++17", f"-arch={arch}", "-o", made, source]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
    else:
        from kernelproof.cuda import Kernel

        made.write_bytes(Kernel(source, entry["kernel"]).compile(arch))
    return made


def driver_arch() -> str:
    cuda = ctypes.CDLL("libcuda.so.1")
    cuda.cuInit(0)
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    cuda.cuDeviceGet(ctypes.byref(device), 0)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, device)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)
    return f"sm_{major.value}{minor.value}"


def launch(path: Path, kernel: str) -> None:
    """Run one kernel by the driver: the process that a tool watches."""
    import emulate_corpus as corpus

    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *args: Any) -> None:
        status = getattr(cuda, name)(*args)
        if status:
            print(f"{name}: error {status}", flush=True)

    how = corpus.CLEAN[kernel]()
    names = _parameters(corpus.text(kernel), kernel)
    call("cuInit", 0)
    device, context = ctypes.c_int(), ctypes.c_void_p()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuModuleLoadData", ctypes.byref(module), path.read_bytes())
    call("cuModuleGetFunction", ctypes.byref(function), module, kernel.encode())
    held: list[Any] = []
    outputs = []
    for number, arg in enumerate(how.args):
        if isinstance(arg, np.ndarray):
            at = ctypes.c_uint64()
            call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(arg.nbytes))
            if names[number] not in how.uninitialised:
                data = np.ascontiguousarray(arg)
                call("cuMemcpyHtoD_v2", at, data.ctypes.data_as(ctypes.c_void_p),
                     ctypes.c_size_t(arg.nbytes))  # fmt: skip
            outputs.append((number, at, arg))
            held.append(at)
        else:
            held.append(ctypes.c_int(arg) if isinstance(arg, int) else ctypes.c_float(arg))
    pointers = (ctypes.c_void_p * len(held))(*(ctypes.addressof(h) for h in held))
    grid, block = _triple(how.grid), _triple(how.block)
    call("cuLaunchKernel", function, *grid, *block, how.shared, None, pointers, None)
    call("cuCtxSynchronize")
    wanted = dict(how.expected)
    for number, at, arg in outputs:
        back = np.zeros_like(np.ascontiguousarray(arg))
        call("cuMemcpyDtoH_v2", back.ctypes.data_as(ctypes.c_void_p), at,
             ctypes.c_size_t(back.nbytes))  # fmt: skip
        if number in wanted:
            right = np.allclose(back, wanted[number], rtol=1e-4, atol=1e-4)
            print(f"values {'right' if right else 'wrong'}", flush=True)


def _triple(value: Any) -> tuple[int, ...]:
    sizes = (value,) if isinstance(value, int) else tuple(value)
    return (*sizes, 1, 1)[:3]


def _parameters(source: str, kernel: str) -> list[str]:
    from kernelproof.emulate.frontend import parameter_names

    return parameter_names(source, kernel)


def watched(entry: dict[str, Any], tool: str, made: Path, ends: float) -> dict[str, Any]:
    """One tool's output on one kernel; ``hung`` where it had to be ended."""
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    command = [sanitizer, "--tool", tool, "--print-limit", "20"]
    if tool == "racecheck":
        command += ["--racecheck-report", "analysis"]
    command += [sys.executable, __file__, "--launch", str(made), "--kernel", entry["kernel"]]
    limit = min(LIMIT, ends - time.monotonic())
    if limit < 2:
        return {"text": "", "hung": False, "skipped": True, "seconds": 0.0}
    started = time.monotonic()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        text, _ = process.communicate(timeout=limit)
        hung = False
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        text, _ = process.communicate()
        hung = True
    return {"text": text[:12000], "hung": hung, "seconds": round(time.monotonic() - started, 2)}


def on_gpu(out: Path, jobs: int) -> None:
    out.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + WHOLE
    rows: dict[str, Any] = {}
    version = subprocess.run(
        [shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer", "--version"],
        capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    arch = driver_arch()
    entries = kernels()
    with tempfile.TemporaryDirectory() as made, concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        folder = Path(made)
        built = {e["id"]: pool.submit(cubin, e, folder, arch) for e in entries}
        runs = {}
        # Those that may never end come last, so that they delay nobody.
        for entry in sorted(entries, key=lambda e: e["kind"] == "deadlock"):
            rows[entry["id"]] = {"kind": entry["kind"], "tools": {}}
            try:
                path = built[entry["id"]].result()
            except Exception as error:
                rows[entry["id"]]["failed"] = str(error)
                continue
            for tool in TOOLS:
                runs[entry["id"], tool] = pool.submit(watched, entry, tool, path, ends)
        for (name, tool), run in runs.items():
            rows[name]["tools"][tool] = run.result()
            today = str(datetime.date.today())
            text = {"date": today, "version": version, "arch": arch, "rows": rows}
            (out / "sanitizer-raw.json").write_text(json.dumps(text, indent=1) + "\n")
    hung = sum(t["hung"] for r in rows.values() for t in r["tools"].values())
    skipped = sum(bool(t.get("skipped")) for r in rows.values() for t in r["tools"].values())
    print(f"{len(rows)} kernels, {hung} runs ended by the watchdog, {skipped} left out")


# ---- on any machine

# First lines of reports, and lines that only tell that the tool runs or what it has told already.
REPORT = re.compile(
    r"(?:Error: |Warning: )?((?:Race reported between \w+ access|Invalid __\w+__ \w+ of size"
    r"|Uninitialized __\w+__ memory|Host API memory access error|Barrier error detected).*)"
)
OTHER = re.compile(r"COMPUTE-SANITIZER|Program hit |(ERROR|RACECHECK) SUMMARY: (?P<count>\d+) |$")
PLACE = re.compile(r" at .+ in \S+\.cu:(\d+)")


def findings(text: str) -> list[dict[str, Any]]:
    """Reports in a tool's output: message, lines of the source, and how often it came.

    A summary is a finding only where it counts more than 0 of what no report has told.
    Raises ValueError for a first line that is no known one.
    """
    reports: list[tuple[str, set[int]]] = []
    counted = ""
    for line in text.splitlines():
        if not line.startswith("========="):
            continue
        body = line.removeprefix("=========").rstrip()
        lines = {int(n) for n in PLACE.findall(body)}
        if body.startswith("     "):
            if reports:
                message, known = reports[-1]
                more = re.search(r"is (misaligned|out of bounds)$|(and \w+ access) at ", body)
                detail = f" {more[1] or more[2]}" if more else ""
                if not message.endswith(detail):
                    message += detail
                reports[-1] = (message, known | lines)
        elif head := REPORT.match(body.lstrip()):
            message = re.sub(r"0x[0-9a-f]+", "an address", PLACE.sub("", head[1]))
            reports.append((message, lines))
        elif other := OTHER.match(body.lstrip()):
            if int(other["count"] or 0):
                counted = body.strip()
        else:
            raise ValueError(f"unknown line of compute-sanitizer: {line!r}; name it in REPORT")
    if counted and not reports:
        reports.append((counted, set()))
    merged: dict[tuple[str, tuple[int, ...]], int] = {}
    for message, known in reports:
        key = (message, tuple(sorted(known)))
        merged[key] = merged.get(key, 0) + 1
    return [{"message": m, "lines": list(n), "times": times} for (m, n), times in merged.items()]


def differences(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Where one side has a finding at a line for which the other has none, by tool.

    ``tool`` is "" for what no tool looks for. Two findings of one tool's kind are the same if they
    have a line in common; that one side alone names a planted line is a difference too.
    """
    found = []
    for tool in (*TOOLS, ""):
        mine = [{a, b} - {0} for kind, a, b in row["emulator"] if TOOL_OF[kind] == tool]
        theirs = [set(report["lines"]) for report in row["tools"].get(tool, [])]
        here, there = set().union(*mine), set().union(*theirs)
        apart = any(not f & there for f in mine) or any(not f & here for f in theirs)
        at = set(row["lines"])
        one_sided = tool == TOOL_OF.get(row["kind"]) and bool(at & here) != bool(at & there)
        if apart or one_sided:
            found.append({"tool": tool, "emulator": sorted(here), "sanitizer": sorted(there)})
    return found


def join(raw: Path) -> dict[str, Any]:
    """The emulator's findings beside the tools', with the reason of each difference."""
    import emulate_corpus as corpus

    given = json.loads(raw.read_text())
    rows = []
    for entry in kernels():
        seen = given["rows"].get(entry["id"])
        if seen is None or "failed" in seen:
            rows.append({"id": entry["id"], "kind": entry["kind"], "failed": True})
            continue
        result, _ = corpus.run(entry["kernel"], entry["source"])
        rows.append(compared(entry, result.errors, seen["tools"]))
    return {
        "date": given.get("date", str(datetime.date.today())), "arch": given["arch"],
        "version": given["version"].strip().splitlines()[-1], "rows": rows,
    }  # fmt: skip


def compared(entry: dict[str, Any], errors: Any, runs: dict[str, Any]) -> dict[str, Any]:
    """One row. ``runs``: text, hung, skipped of each tool.

    ``values`` counts the runs that ended without a report (those with one are cut short) by
    whether the GPU's values were right.
    """
    found = {tool: findings(run["text"]) for tool, run in runs.items()}
    ended = [run["text"] for tool, run in runs.items() if not run["hung"] and not found[tool]]
    wrong = sum("values wrong" in text for text in ended)
    tools = {tool: reports for tool, reports in found.items() if reports}
    own = TOOL_OF.get(entry["kind"], "")
    at = set(entry["lines"])
    row: dict[str, Any] = {
        "id": entry["id"], "kind": entry["kind"], "lines": entry["lines"],
        "emulator": sorted({(f.kind, f.line, f.other_line) for f in errors}), "tools": tools,
        "hung": [tool for tool, run in runs.items() if run["hung"]],
        "skipped": [tool for tool, run in runs.items() if run.get("skipped")],
        "values": {"runs": len(ended), "wrong": wrong},
    }  # fmt: skip
    row["emulator_line"] = any({a, b} & at for _, a, b in row["emulator"])
    row["sanitizer_line"] = any(set(f["lines"]) & at for f in tools.get(own, []))
    row["differences"] = differences(row)
    for difference in row["differences"]:
        right, why = REASONS.get((entry["id"], difference["tool"]), ("", "to be looked at"))
        difference.update(right=right, why=why)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--join", type=Path)
    parser.add_argument("--launch", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--kernel", default="", help=argparse.SUPPRESS)
    parser.add_argument("--jobs", type=int, default=min(12, os.cpu_count() or 4))
    given = parser.parse_args()
    if given.launch:
        launch(given.launch, given.kernel)
    elif given.join:
        target = ROOT / "results" / "emulator" / "sanitizer.json"
        target.write_text(json.dumps(join(given.join), indent=1) + "\n")
    elif given.out:
        on_gpu(given.out, given.jobs)
    else:
        parser.error("give --out DIR on a GPU machine, or --join FILE")
    return 0


if __name__ == "__main__":
    sys.exit(main())
