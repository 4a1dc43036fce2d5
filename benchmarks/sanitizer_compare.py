"""Compares the emulator with NVIDIA's compute-sanitizer on the planted bugs and the clean kernels.

On a machine with a GPU, nvcc (or NVRTC) and compute-sanitizer, under four minutes:

    python benchmarks/sanitizer_compare.py --out DIR      writes DIR/sanitizer-raw.json

Then anywhere:

    python benchmarks/sanitizer_compare.py --join DIR/sanitizer-raw.json
                                                          writes results/emulator/sanitizer.json

Each kernel runs in processes of its own, one per tool, each ended after `LIMIT` seconds: some of
the bugs never come to an end.
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

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "emulate")]

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
LIMIT, WHOLE = 25.0, 200.0  # seconds: of one process, of all
# What each kind of finding is looked for by, and what the manual of compute-sanitizer says that
# the tool leaves out.
SCOPE = {
    "race": ("racecheck", "racecheck looks at shared memory, not at global memory"),
    "uninitialised": ("initcheck", "initcheck looks at global memory, not at shared memory"),
    "out of bounds": ("memcheck", ""),
    "misaligned": ("memcheck", ""),
    "absent lanes": ("synccheck", ""),
    "divergent barrier": ("synccheck", ""),
    "deadlock": ("", "a kernel that never ends gives no report"),
}


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
            text = {"version": version, "arch": arch, "rows": rows}
            (out / "sanitizer-raw.json").write_text(json.dumps(text, indent=1) + "\n")
    hung = sum(t["hung"] for r in rows.values() for t in r["tools"].values())
    skipped = sum(bool(t.get("skipped")) for r in rows.values() for t in r["tools"].values())
    print(f"{len(rows)} kernels, {hung} runs ended by the watchdog, {skipped} left out")


# ---- on any machine


def findings(text: str) -> list[dict[str, Any]]:
    """Reports in a tool's output: message and the lines of the source that they name."""
    found: list[dict[str, Any]] = []
    for line in text.splitlines():
        body = line.removeprefix("=========").rstrip()
        if not line.startswith("========="):
            continue
        places = [int(n) for n in re.findall(r"\.cu:(\d+)", body)]
        head = re.match(
            r" (?:Error: |Warning: )?(Invalid|Race reported|Potential|Uninitialized|Barrier error"
            r"|Misaligned|.*hazard|Divergent|.*syncwarp|.*mask|Program hit)", body
        )  # fmt: skip
        if head and not body.startswith((" Program hit", "     and")):
            found.append({"message": body.strip(), "lines": places})
        elif places and found:
            found[-1]["lines"] = sorted({*found[-1]["lines"], *places})
    return found


def join(raw: Path) -> dict[str, Any]:
    """The emulator's findings beside the tools'."""
    import emulate_corpus as corpus

    given = json.loads(raw.read_text())
    rows = []
    for entry in kernels():
        seen = given["rows"].get(entry["id"])
        if seen is None or "failed" in seen:
            rows.append({"id": entry["id"], "kind": entry["kind"], "failed": True})
            continue
        result, _ = corpus.run(entry["kernel"], entry["source"])
        mine = sorted({(f.kind, f.line, f.other_line) for f in result.errors})
        tools = {tool: findings(run["text"]) for tool, run in seen["tools"].items()}
        hung = [tool for tool, run in seen["tools"].items() if run["hung"]]
        named = {n for found in tools.values() for f in found for n in f["lines"]}
        at = set(entry["lines"])
        rows.append(
            {
                "id": entry["id"], "kind": entry["kind"], "lines": entry["lines"],
                "emulator": mine, "emulator_line": any({a, b} & at for _, a, b in mine),
                "tools": {t: f[:5] for t, f in tools.items() if f}, "hung": hung,
                "sanitizer_line": bool(named & at), "why": _why(entry, tools, hung, result),
            }
        )  # fmt: skip
    return {
        "date": str(datetime.date.today()), "version": given["version"].strip().splitlines()[-1:],
        "arch": given["arch"], "rows": rows,
    }  # fmt: skip


def _why(entry: dict[str, Any], tools: dict[str, Any], hung: list[str], result: Any) -> str:
    """A reason for a difference, where the tools' scope gives one."""
    any_found = any(tools.values())
    if not entry["kind"]:
        return "" if not any_found else "to be looked at"
    if any_found:
        return ""
    tool, scope = SCOPE[entry["kind"]]
    if entry["kind"] in ("race", "uninitialised"):
        names = [n for f in result.errors for n in re.findall(r"(?:of|reads) (\w+) at|of (\w+) by",
                                                              f.message)]  # fmt: skip
        shared = any(
            re.search(rf"__shared__[^;]*\b{name}\b", entry["source"])
            for pair in names for name in pair if name
        )  # fmt: skip
        if shared == (entry["kind"] == "uninitialised"):
            return scope
    if hung:
        return "never ended"
    return "deadlock" if not tool else f"{tool} reported nothing"


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
