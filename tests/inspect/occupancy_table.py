"""Ask NVIDIA's cuda_occupancy.h: one row for each of the launches that tests compare.

    python tests/inspect/occupancy_table.py INCLUDE_FOLDER    writes occupancy.csv beside this file

Columns: architecture, threads, registers, static and dynamic shared memory (bytes), barriers,
opted in; then blocks per multiprocessor, and those that registers, shared memory, warps and
barriers allow.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from pathlib import Path

from kernelproof.inspect.devices import SHARED_DEFAULT, SHARED_SYSTEM, Capability, capabilities

TABLE = Path(__file__).with_name("occupancy.csv")
HEADER = "arch,threads,registers,static,dynamic,barriers,opted_in,blocks,regs,shared,warps,bars"
PROGRAM = r"""
#include <cstdio>
#include <climits>
#include "cuda_occupancy.h"

int main() {
  int arch, threads_sm, regs_block, regs_sm, shared_sm, shared_block, shared_default, reserved;
  int threads, registers, fixed, dynamic, barriers, opted;
  while (std::scanf("%d %d %d %d %d %d %d %d %d %d %d %d %d %d", &arch, &threads_sm, &regs_block,
                    &regs_sm, &shared_sm, &shared_block, &shared_default, &reserved, &threads,
                    &registers, &fixed, &dynamic, &barriers, &opted) == 14) {
    cudaOccDeviceProp device;
    device.computeMajor = arch / 10;
    device.computeMinor = arch % 10;
    device.maxThreadsPerBlock = 1024;
    device.maxThreadsPerMultiprocessor = threads_sm;
    device.regsPerBlock = regs_block;
    device.regsPerMultiprocessor = regs_sm;
    device.warpSize = 32;
    device.sharedMemPerBlock = shared_default;
    device.sharedMemPerMultiprocessor = shared_sm;
    device.sharedMemPerBlockOptin = shared_block;
    device.reservedSharedMemPerBlock = reserved;
    device.numSms = 1;
    cudaOccFuncAttributes kernel;
    kernel.maxThreadsPerBlock = INT_MAX;
    kernel.numRegs = registers;
    kernel.sharedSizeBytes = fixed;
    kernel.shmemLimitConfig = opted ? FUNC_SHMEM_LIMIT_OPTIN : FUNC_SHMEM_LIMIT_DEFAULT;
    kernel.maxDynamicSharedSizeBytes = dynamic;
    kernel.numBlockBarriers = barriers;
    cudaOccDeviceState state;
    cudaOccResult result;
    if (cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, threads,
                                                dynamic))
      return 1;
    std::printf("%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d\n", arch, threads, registers, fixed, dynamic,
                barriers, opted, result.activeBlocksPerMultiprocessor, result.blockLimitRegs,
                result.blockLimitSharedMem, result.blockLimitWarps, result.blockLimitBarriers);
  }
  return 0;
}
"""

Launch = tuple[int, int, int, int, int, int]


def launches(count: int = 500) -> list[Launch]:
    """Threads, registers, static and dynamic shared memory, barriers, opted in: random, with the
    edges of every rule among them."""
    draw = random.Random(20)
    edges = [0, 1, 127, 128, 47 << 10, SHARED_DEFAULT, SHARED_DEFAULT + 1, 99 << 10,
             (99 << 10) + 1, 100 << 10, 163 << 10, 227 << 10, (227 << 10) + 1]  # fmt: skip
    made = []
    for _ in range(count):
        threads = draw.choice([32, 64, 96, 128, 160, 256, 384, 512, 768, 1024, 1025,
                               draw.randint(1, 1024)])  # fmt: skip
        registers = draw.choice([16, 24, 32, 40, 64, 65, 128, 168, 255, draw.randint(1, 255)])
        dynamic = draw.choice([0, 0, draw.choice(edges), draw.randint(0, 228 << 10)])
        fixed = draw.choice([0, 0, draw.randint(0, SHARED_DEFAULT), 16, 1024, SHARED_DEFAULT])
        barriers = draw.choice([0, 1, 1, 2, 5, 16])
        made.append((threads, registers, fixed, dynamic, barriers, draw.choice([0, 1, 1])))
    return made


def answers(include: Path, gpus: tuple[Capability, ...], rows: list[Launch]) -> str:
    """The table's text as the header has it."""
    given = []
    for gpu in gpus:
        limits = (gpu.arch, gpu.threads, gpu.registers_block, gpu.registers, gpu.shared,
                  gpu.shared_block, SHARED_DEFAULT, SHARED_SYSTEM)  # fmt: skip
        given += [" ".join(map(str, (*limits, *row))) for row in rows]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "occupancy.cpp"
        source.write_text(PROGRAM)
        program = str(source.with_suffix(""))
        command = ["g++", "-O1", "-w", f"-I{include}", str(source), "-o", program]
        subprocess.run(command, check=True)
        text = "\n".join(given)
        done = subprocess.run([program], input=text, capture_output=True, text=True, check=True)
    return f"{HEADER}\n{done.stdout}"


if __name__ == "__main__":
    TABLE.write_text(answers(Path(sys.argv[1]), capabilities(), launches()))
    print(f"{TABLE}: {len(TABLE.read_text().splitlines()) - 1} launches")
