"""The session of agents.md, played at the command line: a kernel for cumsum on a CPU."""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

MODULE = """from pathlib import Path

import torch.nn as nn

from kernelproof.build import torch_op

op = torch_op("my_scan", [Path(__file__).with_name("scan.cpp")])


class ModelNew(nn.Module):
    def forward(self, x):
        return op.scan(x)
"""
FIRST = """#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

using torch::stable::Tensor;

Tensor scan(const Tensor& input) {
  const Tensor x = torch::stable::contiguous(input);
  Tensor y = torch::stable::empty_like(x);
  const int64_t columns = x.size(x.dim() - 1);
  const int64_t rows = columns == 0 ? 0 : x.numel() / columns;
  const auto* px = static_cast<const float*>(x.const_data_ptr());
  auto* py = static_cast<float*>(y.mutable_data_ptr());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      float sum = 0.0f
      for (int64_t i = 0; i <= r; ++i) sum += px[i * columns + c];
      py[r * columns + c] = sum;
    }
  return y;
}

STABLE_TORCH_LIBRARY(my_scan, m) { m.def("scan(Tensor x) -> Tensor"); }

STABLE_TORCH_LIBRARY_IMPL(my_scan, CPU, m) { m.impl("scan", TORCH_BOX(&scan)); }
"""
INNER = """    for (int64_t c = 0; c < columns; ++c) {
      double sum = 0.0;
      for (int64_t i = 0; i <= c; ++i) sum += px[r * columns + i];
      py[r * columns + c] = static_cast<float>(sum);
    }
"""
RUNNING = """  {
    double sum = 0.0;
    for (int64_t c = 0; c < columns; ++c) {
      sum += px[r * columns + c];
      py[r * columns + c] = static_cast<float>(sum);
    }
  }
"""
SERIAL = "  for (int64_t r = 0; r < rows; ++r)\n"
PARALLEL = f"#pragma omp parallel for if (rows * columns > 65536)\n{SERIAL}"
# What is said, the call, and the edits before it (text -> text).
STEPS: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = (
    ("The first draft. `compile` is the cheapest look at it.", "compile", ()),
    (
        "With the semicolon, is it right?", "check",
        (("float sum = 0.0f\n", "float sum = 0.0f;\n"),),
    ),
    (
        "It sums along the wrong axis. The next draft sums along the row, and keeps the sum in 16 "
        "bits, as a kernel does that came from a half-precision one.", "check",
        (
            ("float sum = 0.0f;", "_Float16 sum = 0;"), ("i <= r;", "i <= c;"),
            ("sum += px[i * columns + c];",
             "sum += static_cast<_Float16>(px[r * columns + i]);"),
            ("= sum;", "= static_cast<float>(sum);"),
        ),
    ),
    (
        "The error is that of 16 bits, and it says so. With a sum in double:", "bench",
        (("_Float16 sum = 0;", "double sum = 0.0;"), ("static_cast<_Float16>(px[r * columns + i])",
         "px[r * columns + i]")),
    ),
    ("Each element sums its whole row anew. A running sum does not:", "bench", ((INNER, RUNNING),)),
    ("And rows are independent of each other:", "bench", ((SERIAL, PARALLEL),)),
    ("The budget is nearly used; a submission costs none.", "submit", ()),
)  # fmt: skip
START = "kernelproof session start cumsum --budget 6 --baseline eager --seconds 1"


def played() -> str:
    """Markdown of the whole session: commands, edits and real output. The session's id is written
    as SESSION."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        candidate = place / "scan"
        candidate.mkdir()
        (candidate / "candidate.py").write_text(MODULE)
        text = FIRST
        environment = {**os.environ, "KERNELPROOF_HOME": str(place / "home")}
        parts = [f"`scan/candidate.py`:\n\n```text\n{MODULE}```\n"]
        parts += [f"`scan/scan.cpp`:\n\n```text\n{FIRST}```\n"]
        shown, identity = _run(START, place, environment, "")
        parts.append(shown)
        for words, call, edits in STEPS:
            before = text
            for old, new in edits:
                assert text.count(old) == 1, (call, old)
                text = text.replace(old, new)
            (candidate / "scan.cpp").write_text(text)
            parts += [f"{words}\n", *_changes(before, text)]
            line = f"kernelproof session {call} {identity} scan --short"
            parts.append(_run(line, place, environment, identity)[0])
        parts.append("The ladder:\n")
        line = f"kernelproof session log {identity} --no-diffs"
        parts.append(_run(line, place, environment, identity)[0])
    return "\n".join(parts)


def _changes(before: str, after: str) -> list[str]:
    if before == after:
        return []
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm=""))
    kept = [line for line in lines[2:] if not line.startswith("@@")]
    return ["```diff\n" + "\n".join(kept) + "\n```\n"]


def _run(line: str, place: Path, environment: dict[str, str], identity: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-m", *line.split()], cwd=place, env=environment, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{line}: {done.stderr}")
    found = identity or re.findall(r"session ([0-9a-f]{12})", done.stdout)[0]
    text = f"$ {line}\n{done.stdout.strip()}".replace(found, "SESSION")
    return f"```text\n{text}\n```\n", found
