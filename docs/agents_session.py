"""The session of agents.md, played at the command line: a CUDA kernel for linear_gelu.

    python docs/agents_session.py -o results/h200/agents-session.json

plays it where there is a GPU, and keeps what the page shows. Where there is none the kernels are
emulated, which tells the same of every candidate but has no times; `played` does that in the tests.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import difflib
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kernelproof import cli

KEPT = Path(__file__).resolve().parents[1] / "results" / "h200" / "agents-session.json"
CANDIDATE = """from pathlib import Path

import torch
import torch.nn as nn

from kernelproof.cuda import Kernel

kernel = Kernel(Path(__file__).with_name("gemm.cu"), "linear_gelu")
ROWS, COLUMNS, THREADS = 16, 16, 256  # of a block


class ModelNew(nn.Module):
    def __init__(self, in_features: int, out_features: int, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(out_features, in_features, dtype=dtype))
        self.bias = nn.Parameter(torch.randn(out_features, dtype=dtype))

    def forward(self, x):
        x = x.contiguous()
        rows, depth = x.shape
        columns = self.weight.shape[0]
        y = x.new_empty(rows, columns)
        grid = (-(-columns // COLUMNS), -(-rows // ROWS))
        kernel(x, self.weight, self.bias, y, rows, columns, depth, grid=grid, block=THREADS)
        return y
"""
HEAD = """__device__ float gelu(float z) { return 0.5f * z * (1.0f + erff(z * 0.70710678f)); }

"""
ARGUMENTS = """extern "C" __global__ void linear_gelu(const float* x, const float* weight,
                                       const float* bias, float* y, int rows, int columns,
                                       int depth) {
"""
PLAIN = f"""{HEAD}{ARGUMENTS}  const int row = blockIdx.y * 16 + threadIdx.x / 16;
  const int column = blockIdx.x * 16 + threadIdx.x % 16;
  if (row >= rows || column >= columns) return;
  float sum = bias[column]
  for (int k = 0; k < depth; ++k) sum += x[row * depth + k] * weight[k * columns + column];
  y[row * columns + column] = gelu(sum);
}}
"""
TENSOR_CORES = f"""{HEAD}__device__ unsigned tf32(float x) {{
  unsigned bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
}}

{ARGUMENTS}  const int row = blockIdx.y * 16 + threadIdx.x / 4;
  const int column = blockIdx.x * 8 + threadIdx.x / 4;
  float sum[4] = {{}};
  for (int start = 0; start < depth; start += 8) {{
    unsigned a[4], b[2];
    for (int n = 0; n < 4; ++n) {{
      const int r = row + n % 2 * 8, k = start + threadIdx.x % 4 + n / 2 * 4;
      a[n] = tf32(r < rows && k < depth ? x[r * depth + k] : 0.0f);
    }}
    for (int n = 0; n < 2; ++n) {{
      const int k = start + threadIdx.x % 4 + n * 4;
      b[n] = tf32(column < columns && k < depth ? weight[column * depth + k] : 0.0f);
    }}
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {{%0, %1, %2, %3}}, "
        "{{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }}
  for (int n = 0; n < 4; ++n) {{
    const int r = row + n / 2 * 8, c = blockIdx.x * 8 + threadIdx.x % 4 * 2 + n % 2;
    if (r < rows && c < columns) y[r * columns + c] = gelu(sum[n] + bias[c]);
  }}
}}
"""
TILES = f"""{HEAD}{ARGUMENTS}  __shared__ float xs[16][17], ws[16][17];
  const int i = threadIdx.x / 16, j = threadIdx.x % 16;
  const int row = blockIdx.y * 16 + i, column = blockIdx.x * 16 + i;
  float sum = 0.0f;
  for (int start = 0; start < depth; start += 16) {{
    xs[i][j] = row < rows && start + j < depth ? x[row * depth + start + j] : 0.0f;
    ws[i][j] = column < columns && start + j < depth ? weight[column * depth + start + j] : 0.0f;
    __syncthreads();
    for (int k = 0; k < 16; ++k) sum += xs[i][k] * ws[j][k];
    __syncthreads();
  }}
  const int c = blockIdx.x * 16 + j;
  if (row < rows && c < columns) y[row * columns + c] = gelu(sum + bias[c]);
}}
"""
REGISTERS = f"""{HEAD}{ARGUMENTS}  __shared__ float xs[16][33], ws[16][33];
  const int first_row = blockIdx.y * 32, first_column = blockIdx.x * 32;
  const int i = threadIdx.x / 8 * 4, j = threadIdx.x % 8 * 4;
  float sums[4][4] = {{}};
  for (int start = 0; start < depth; start += 16) {{
    for (int n = threadIdx.x; n < 32 * 16; n += 64) {{
      const int k = start + n % 16, row = first_row + n / 16, column = first_column + n / 16;
      xs[n % 16][n / 16] = row < rows && k < depth ? x[row * depth + k] : 0.0f;
      ws[n % 16][n / 16] = column < columns && k < depth ? weight[column * depth + k] : 0.0f;
    }}
    __syncthreads();
    for (int k = 0; k < 16; ++k)
      for (int n = 0; n < 16; ++n) sums[n / 4][n % 4] += xs[k][i + n / 4] * ws[k][j + n % 4];
    __syncthreads();
  }}
  for (int n = 0; n < 16; ++n) {{
    const int row = first_row + i + n / 4, column = first_column + j + n % 4;
    if (row < rows && column < columns)
      y[row * columns + column] = gelu(sums[n / 4][n % 4] + bias[column]);
  }}
}}
"""
SEMICOLON = PLAIN.replace("bias[column]\n", "bias[column];\n")
RIGHT = SEMICOLON.replace("weight[k * columns + column]", "weight[column * depth + k]")
SHAPE = "ROWS, COLUMNS, THREADS = 16, 16, 256"
# What is said, the call, the kernel, and its block's rows, columns and threads.
STEPS: tuple[tuple[str, str, str, tuple[int, int, int]], ...] = (
    ("The first draft. `compile` is the cheapest look at it.", "compile", PLAIN, (16, 16, 256)),
    ("With the semicolon, is it right?", "check", SEMICOLON, (16, 16, 256)),
    (
        "The weight is stored with the summed axis last; this read it as if it were first. Mended, "
        "how fast is it?", "bench", RIGHT, (16, 16, 256),
    ),
    ("Right, and slow. Tensor cores should be quick:", "bench", TENSOR_CORES, (16, 8, 32)),
    (
        "They are, but in TF32, which keeps 11 of the 24 bits of an fp32 number. That is another "
        "function. So back to fp32, now with tiles of both operands in shared memory:", "bench",
        TILES, (16, 16, 256),
    ),
    (
        "And 16 outputs for each thread, which takes every number from shared memory four times "
        "less often:", "bench", REGISTERS, (32, 32, 64),
    ),
    ("The budget is used; a submission costs none.", "submit", REGISTERS, (32, 32, 64)),
)  # fmt: skip
START = "kernelproof session start linear_gelu --budget 6"
# As the page has it, and as it is emulated: small, and not timed.
ON_GPU = " --case large --case odd --baseline eager --baseline F.linear --seconds 2"
EMULATED = " --case odd --level quick --submit-level quick --seeds 1 --baseline eager"


def kept() -> str:
    """What the page shows: the session as it went on a GPU."""
    body = json.loads(KEPT.read_text())
    return f"On an {body['gpu']}, {body['date']}:\n\n{body['text']}"


def played(options: str = EMULATED) -> str:
    """Markdown of the whole session: commands, edits and real output. The session's id is written
    as SESSION."""
    from kernelproof.worker.client import start_server

    before_here = Path.cwd()
    # It serves later checks of this process too, and would stand in a folder that is gone.
    start_server()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            return "\n".join(_parts(Path(folder) / "gemm", options))
        finally:
            os.chdir(before_here)


def _parts(gemm: Path, options: str) -> Iterator[str]:
    gemm.mkdir()
    yield f"`gemm/candidate.py`:\n\n```text\n{CANDIDATE}```\n"
    yield f"`gemm/gemm.cu`:\n\n```text\n{PLAIN}```\n"
    shown, identity = _run(START + options, "")
    yield shown
    before = {"candidate.py": CANDIDATE, "gemm.cu": PLAIN}
    for words, call, kernel, shape in STEPS:
        module = CANDIDATE.replace(SHAPE, f"ROWS, COLUMNS, THREADS = {str(shape)[1:-1]}")
        texts = {"candidate.py": module, "gemm.cu": kernel}
        for name, text in texts.items():
            (gemm / name).write_text(text)
        yield f"{words}\n"
        yield from _changes(before, texts)
        before = texts
        yield _run(f"kernelproof session {call} {identity} gemm --short", identity)[0]
    yield "The ladder:\n"
    yield _run(f"kernelproof session log {identity} --no-diffs", identity)[0]


def _changes(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """A kernel that is another one is shown whole; an edit of a few lines is a diff."""
    found = []
    for name in before:
        lines = list(
            difflib.unified_diff(
                before[name].splitlines(), after[name].splitlines(), n=0, lineterm=""
            )
        )  # fmt: skip
        kept = [line for line in lines[2:] if not line.startswith("@@")]
        if len(kept) > 4:
            found.append(f"`gemm/{name}`:\n\n```text\n{after[name]}```\n")
        elif kept:
            found.append("```diff\n" + "\n".join(kept) + "\n```\n")
    return found


def _run(line: str, identity: str) -> tuple[str, str]:
    """What the command prints. Not in a process of its own: each would import torch."""
    out, code = io.StringIO(), 0
    with contextlib.redirect_stdout(out):
        try:
            cli.main(line.split()[1:])
        except SystemExit as end:
            code = int(end.code or 0)
    if code not in (0, 1):
        raise RuntimeError(f"{line}: exit code {code}")
    printed = out.getvalue().strip()
    found = identity or re.findall(r"session ([0-9a-f]{12})", printed)[0]
    text = f"$ {line}\n{printed}".replace(found, "SESSION")
    return f"```text\n{text}\n```\n", found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=KEPT)
    given = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        parser.error("no GPU here: the page shows times")
    date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    body = {"gpu": torch.cuda.get_device_name(), "date": date, "text": played(ON_GPU)}
    given.output.write_text(json.dumps(body, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
