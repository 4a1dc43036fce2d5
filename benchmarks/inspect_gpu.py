"""Compare `kernelproof inspect` with what a GPU and its driver say, part by part.

    python benchmarks/inspect_gpu.py --out DIR

attributes  registers, memory and block limits of kernels against cuFuncGetAttribute, occupancy
            against cuOccupancyMaxActiveBlocksPerMultiprocessor
operators   the shipped kernels with their times by profiler
languages   Triton, load_inline and stable-ABI candidates: launches as the profiler sees them
sanitize    findings for candidates with a planted error, none for one without
ncu         counters of a shipped kernel

Each part runs in a process of its own and is killed when its time is over. DIR gets inspect.json
and, of each part, what it printed.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CANDIDATES = ROOT / "tests" / "candidates" / "gpu"
# Part -> seconds that it may take.
PARTS = {"attributes": 25, "operators": 50, "languages": 200, "sanitize": 80, "ncu": 25}
BLOCKS = (32, 64, 96, 128, 256, 384, 512, 1024)
DYNAMIC = (0, 1024, 16 << 10, 48 << 10, 100 << 10, 200 << 10)
# Candidate -> tool that must find something in it, or "" where none may.
PLANTED = {
    "layernorm_stats__cuda_block_reduction.py": "",
    "cross_entropy__cuda_unzeroed_sum.py": "initcheck",
    "rms_norm__cuda_no_barrier.py": "racecheck",
    "axpby__illegal_access.py": "memcheck",
}


def attributes() -> dict[str, Any]:
    import cuda.bindings.driver as driver
    import torch

    from kernelproof.inspect import compile as compiling
    from kernelproof.inspect import cubin, devices
    from kernelproof.inspect.occupancy import occupancy

    def call(result: tuple[Any, ...]) -> Any:
        if int(result[0]) != 0:
            raise RuntimeError(str(result[0]))
        return result[1] if len(result) == 2 else result[1:]

    torch.ones(1, device="cuda")  # makes the context
    facts = torch.cuda.get_device_properties()
    device = devices.present(
        facts.name, 10 * facts.major + facts.minor, facts.multi_processor_count
    )
    kind = driver.CUfunction_attribute
    asked = {
        "registers": kind.CU_FUNC_ATTRIBUTE_NUM_REGS,
        "shared": kind.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
        "local": kind.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
        "threads": kind.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
    }
    rows, differ, compared = [], [], 0
    sources = [ROOT / "tests/inspect/zoo.cu", *(ROOT / "tests/emulate/kernels").glob("*.cu")]
    for source in sources:
        made = compiling.source_file(source, device.target, "nvrtc")
        module = call(driver.cuModuleLoadData(made.cubin))
        for kernel in cubin.read(made.cubin).kernels:
            function = call(driver.cuModuleGetFunction(module, kernel.symbol.encode()))
            told = {n: call(driver.cuFuncGetAttribute(a, function)) for n, a in asked.items()}
            rows.append({"kernel": kernel.symbol, "driver": told, "stack": kernel.stack})
            if (told["registers"], told["shared"]) != (kernel.registers, kernel.shared):
                differ.append({"kernel": kernel.symbol, "driver": told})
            for dynamic in DYNAMIC:
                if kernel.shared + dynamic > device.capability.shared_block:
                    continue
                opted = kind.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                call((*driver.cuFuncSetAttribute(function, opted, dynamic), None))
                for block in BLOCKS:
                    ours = occupancy(
                        device.capability, threads=block, registers=kernel.registers,
                        static_shared=kernel.shared, dynamic_shared=dynamic,
                        barriers=kernel.barriers,
                    ).blocks  # fmt: skip
                    if block > told["threads"]:
                        continue
                    theirs = call(
                        driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, block, dynamic)
                    )
                    compared += 1
                    if ours != theirs:
                        where = {"kernel": kernel.symbol, "block": block, "dynamic": dynamic}
                        differ.append({**where, "ours": ours, "driver": theirs})
    return {"device": facts.name, "kernels": rows, "occupancies": compared, "differ": differ}


def inspected(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "kernelproof", "inspect", *arguments, "--json"]
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    print(" ".join(arguments), done.returncode, done.stderr[-3000:], flush=True)
    body = json.loads(done.stdout) if done.stdout.startswith("{") else {"status": done.stderr}
    return {"seconds": time.perf_counter() - started, **body}


def together(jobs: list[tuple[str, list[str]]]) -> dict[str, Any]:
    """Inspections by name, at the same time: none of what is compared here is a time."""
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        made = [(name, pool.submit(inspected, *arguments)) for name, arguments in jobs]
        return {name: future.result() for name, future in made}


def operators() -> dict[str, Any]:
    return together([(name, [f"{name}/cuda"]) for name in _shipped()])


def languages() -> dict[str, Any]:
    names = ("rms_norm__triton.py", "linear_gelu__triton_ieee.py", "cumsum__cuda_stable",
             "axpby__cuda_inline.py")  # fmt: skip
    return together([(name, [str(CANDIDATES / name)]) for name in names])


def sanitize() -> dict[str, Any]:
    out = {}
    made = together([(name, [str(CANDIDATES / name), "--sanitize"]) for name in PLANTED])
    for name, body in made.items():
        tool = PLANTED[name]
        found = {finding["tool"] for finding in body.get("findings", [])}
        out[name] = {"expected": tool, "found": sorted(found), **body}
    return out


def ncu() -> dict[str, Any]:
    return {name: inspected(f"{name}/cuda", "--ncu") for name in _shipped()[:1]}


def _shipped() -> list[str]:
    from kernelproof.problem import shipped_operators

    return [name for name, folder in shipped_operators().items() if (folder / "cuda.py").is_file()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", choices=PARTS)
    given = parser.parse_args()
    if given.part is not None:
        result = globals()[given.part]()
        (given.out / f"{given.part}.json").write_text(json.dumps(result, indent=1))
        return 0
    given.out.mkdir(parents=True, exist_ok=True)
    summary: dict[str, Any] = {}
    for part, limit in PARTS.items():
        started = time.perf_counter()
        command = [sys.executable, str(Path(__file__)), "--out", str(given.out), "--part", part]
        with (given.out / f"{part}.log").open("w") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                outcome: Any = process.wait(limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                outcome = f"killed after {limit} s"
        made = given.out / f"{part}.json"
        result = json.loads(made.read_text()) if made.is_file() else None
        seconds = time.perf_counter() - started
        summary[part] = {"outcome": outcome, "seconds": seconds, "result": result}
        print(f"{part}: {outcome}, {seconds:.1f} s", flush=True)
    (given.out / "inspect.json").write_text(json.dumps(summary, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
