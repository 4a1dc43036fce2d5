"""Runs CUDA programs of public repositories in the emulator, beside the project.

    python benchmarks/public.py FOLDER [NAME...]

FOLDER holds clones: SGEMM_CUDA, cuda_hgemm, CUDA_Freshman; only programs whose names contain a NAME
are run where one is given. Writes results/emulator/public.json, where others keep their rows.

Programs run as they are, with their own `main` and its check where there is one; sizes are made
smaller, and for kernels without a program one is written here. Each runs in a process of its own,
for at most `LIMIT` seconds.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 240.0

# Text of programs -> smaller sizes: a launch of 2**24 threads tells no more than one of 2**12.
SMALLER = (
    (r"1\s*<<\s*2\d", "1 << 12"), (r"1\s*<<\s*1[68]", "1 << 12"),
    (r"(nx|ny)\s*=\s*1\s*<<\s*1[23]", r"\1 = 1 << 6"), (r"\bint power = \d+", "int power = 10"),
)  # fmt: skip

ORDER = ("siboehm/SGEMM_CUDA", "Bruce-Lee-LY/cuda_hgemm", "Tony-Tan/CUDA_Freshman")

MATRIX = """
#include <cmath>
#include <cstdio>
#include <vector>
int main() {
  const int m = %(m)d, n = %(n)d, k = %(k)d;
  std::vector<%(type)s> a(m * k), b(k * n), c(m * n);
  for (int i = 0; i < m * k; ++i) a[i] = %(type)s(float((i * 7) %% 11 - 5));
  for (int i = 0; i < k * n; ++i) b[i] = %(type)s(float((i * 5) %% 7 - 3));
  for (int i = 0; i < m * n; ++i) c[i] = %(type)s(0.0f);
  %(type)s *x, *y, *z;
  cudaMalloc(&x, a.size() * sizeof(a[0]));
  cudaMalloc(&y, b.size() * sizeof(a[0]));
  cudaMalloc(&z, c.size() * sizeof(a[0]));
  cudaMemcpy(x, a.data(), a.size() * sizeof(a[0]), cudaMemcpyHostToDevice);
  cudaMemcpy(y, b.data(), b.size() * sizeof(a[0]), cudaMemcpyHostToDevice);
  cudaMemcpy(z, c.data(), c.size() * sizeof(a[0]), cudaMemcpyHostToDevice);
  %(call)s;
  cudaMemcpy(c.data(), z, c.size() * sizeof(a[0]), cudaMemcpyDeviceToHost);
  int wrong = 0;
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) {
      float want = 0;
      for (int t = 0; t < k; ++t) want += float(a[i * k + t]) * float(%(right)s);
      wrong += !(std::fabs(want - float(c[i * n + j])) <= 0.002f * std::fabs(want));
    }
  std::printf(wrong ? "public: %%d wrong\\n" : "public: right\\n", wrong);
  return 0;
}
"""


def programs(folder: Path) -> list[dict[str, Any]]:
    """Name, path, folders of headers, text to put in place of matches, text to add."""
    found: list[dict[str, Any]] = []
    freshman = folder / "CUDA_Freshman"
    for path in sorted(freshman.glob("*/*.cu"), key=lambda p: int(p.parent.name.split("_")[0])):
        found.append(
            {"repository": "Tony-Tan/CUDA_Freshman", "path": path, "add": "",
             "includes": [str(freshman / "include")], "change": SMALLER}
        )  # fmt: skip
    hgemm = folder / "cuda_hgemm" / "src"
    for path in sorted([*hgemm.glob("*mma/*.cu"), hgemm / "simt_naive.cu"]):
        names = re.findall(r"^void (\w+)\(half \*A, half \*B, half \*C", path.read_text(), re.M)
        size = dict(m=256, n=256, k=128, type="half", right="b[j * k + t]")
        found.append(
            {"repository": "Bruce-Lee-LY/cuda_hgemm", "path": path,
             "includes": [str(hgemm / "common")], "change": ((r'#include "cublas_v2.h"', ""),),
             "add": MATRIX % dict(size, call=f"{names[-1]}(x, y, z, m, n, k)")}
        )  # fmt: skip
    runner = folder / "SGEMM_CUDA" / "src" / "runner.cu"
    for name in re.findall(r"^void (run_?[sS]gemm\w*)\(int M", runner.read_text(), re.M):
        size = dict(m=256, n=256, k=64, type="float", right="b[t * n + j]")
        call = f"{name}(m, n, k, 1.0f, x, y, 0.0f, z)"
        found.append(
            {"repository": "siboehm/SGEMM_CUDA", "path": runner, "name": name, "includes": [],
             "change": (), "add": MATRIX % dict(size, call=call)}
        )  # fmt: skip
    return sorted(found, key=lambda p: ORDER.index(p["repository"]))


def text_of(program: dict[str, Any]) -> str:
    from kernelproof.emulate.host.taking import expanded

    text = expanded(program["path"], program["includes"])
    for pattern, new in program["change"]:
        text = re.sub(pattern, new, text)
    if program["repository"].startswith("siboehm"):
        text = _without_cublas(text, program["name"])
    return text + program["add"]


def _without_cublas(text: str, name: str) -> str:
    """The kernels and the one function that launches them: others in the file call cuBLAS."""
    from kernelproof.emulate.host.tokens import items, tokens

    code = tokens(text)
    kept, end = ["#include <sys/time.h>\n"], 0
    for item in items(code, 0, len(code)):
        part = text[item.start : item.end]
        host = item.kind == "function" and not item.has("__global__", "__device__")
        others = host and name not in part and "run" in part[:40]
        if others or "cublas" in part.lower().split("//")[0]:
            part = "\n" * part.count("\n")
        kept.append(text[end : item.start] + part)
        end = item.end
    return "".join(kept)


def one(number: int, folder: Path, out: Path) -> None:
    """Run a program here; what it showed goes to ``out`` launch by launch."""
    from kernelproof.emulate.host.session import Session
    from kernelproof.emulate.host.taking import take_program
    from kernelproof.emulate.standin import written

    program = programs(folder)[number]
    told: dict[str, Any] = {"launches": 0, "kernels": [], "findings": [], "error": ""}

    def keep(result: Any) -> None:
        told["launches"] += 1
        told["kernels"] = sorted({*told["kernels"], result.kernel})
        for finding in result.findings:
            if str(finding) not in told["findings"]:
                told["findings"].append(str(finding))
        if result.output:
            told["printed"] = result.output[:200]
        out.write_text(json.dumps(told))

    session = Session(keep, written, lambda tensor: tensor)
    try:
        path = take_program(session, program["path"], text_of(program), program["includes"])
        library = ctypes.CDLL(str(path))
        words = (ctypes.c_char_p * 2)(b"program", None)
        with session.inside():
            library.kernelproof_main(1, words)
            if session.error is not None:
                raise session.error
    except Exception as error:
        told["error"] = f"{type(error).__name__}: {error} {getattr(error, 'detail', '')}"[:900]
    out.write_text(json.dumps(told))


def run_all(folder: Path, wanted: list[str]) -> None:
    target = ROOT / "results" / "emulator" / "public.json"
    rows = json.loads(target.read_text()) if target.is_file() else []
    for number, program in enumerate(programs(folder)):
        name = program.get("name") or str(program["path"].relative_to(folder))
        if wanted and not any(word in name for word in wanted):
            continue
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as made:
            out = Path(made) / "told.json"
            command = [
                sys.executable,
                __file__,
                str(folder),
                "--one",
                str(number),
                "--to",
                str(out),
            ]
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, check=False, timeout=LIMIT,
                    cwd=made, env={**os.environ, "OMP_NUM_THREADS": "1"},
                )  # fmt: skip
                printed, code = done.stdout + done.stderr, done.returncode
            except subprocess.TimeoutExpired as late:
                printed, code = str(late.stdout or ""), "timeout"
            told = json.loads(out.read_text()) if out.is_file() else {"error": "nothing ran"}
        bad = re.search(
            r"(?i)don't match|not match|results? .*fail|mismatch|public: \d+ wrong", printed
        )
        good = re.search(r"(?i)check result success|public: right|are right|success", printed)
        row = {
            "repository": program["repository"], "program": name, **told, "exit": code,
            "right": False if bad else (True if good else None),
            "seconds": round(time.perf_counter() - started, 1), "printed_end": printed[-300:],
        }  # fmt: skip
        rows = [r for r in rows if r["program"] != name] + [row]
        print(name, told.get("launches"), "right" if row["right"] else row["right"], code,
              told.get("findings"), told.get("error"), flush=True)  # fmt: skip
        target.write_text(json.dumps(rows, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--to", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is not None:
        one(given.one, given.folder.resolve(), given.to)
    else:
        run_all(given.folder.resolve(), given.names)


if __name__ == "__main__":
    main()
