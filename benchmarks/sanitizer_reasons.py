"""Why compute-sanitizer and the emulator differ, for each kernel and tool where they do.

`REASONS`: (kernel, tool) -> (which of the two is right, why). The tool is "" where none looks for
that kind of finding. What a tool looks at is said by the manual of Compute Sanitizer (racecheck,
initcheck, synccheck, error actions), what a kernel may do by the PTX ISA (`barrier.cta`,
`shfl.sync`) and the CUDA programming guide.
"""

from __future__ import annotations

GLOBAL = ("emulator", "racecheck looks at shared memory; this race is in global memory")
SHARED = (
    "emulator",
    "initcheck, as it runs by default, looks at global memory; this read is of shared memory",
)
ATOMIC = (
    "emulator",
    "racecheck reported nothing between an `atomicAdd` on shared memory and a plain access to the "
    "same place, though the GPU's values came out wrong in one run of each",
)
SHUFFLE = (
    "emulator",
    "synccheck looks at `__syncthreads` and `__syncwarp`, not at shuffles",
)
MASK = (
    "emulator",
    "synccheck looks at `__syncthreads` and `__syncwarp`, not at shuffles; PTX leaves the result "
    "open for a lane outside its own mask, and the H200 gave the right one",
)
ENDED = (
    "both",
    "memcheck ends the kernel at its first bad access; the emulator goes on to later lines",
)
NEVER = (
    "emulator",
    "the kernel never ends, and a tool reports once the program has ended",
)
NAMED = (
    "emulator",
    "false alarm of racecheck on the clean kernel: `bar.arrive` after the read and `bar.sync` "
    "before the write of the next round, on one named barrier, order the two, in the machine code "
    "as in the source",
)
ORDER = (
    "both",
    "the false alarm of the clean kernel again, though here it is true: in the emulator's order "
    "the deadlock comes first, and other seeds show the race too",
)
ALONE = (
    "emulator",
    "no tool looks for named barriers that never fill: whether this one does depends on whether "
    "a warp arrives twice before the other comes; one of four runs on the GPU never ended",
)
STARVED = (
    "emulator",
    "racecheck's run never ended: without the wait a warp may arrive twice and leave the other "
    "waiting; other runs ended with wrong values",
)
COPIED = (
    "both",
    "the kernel leaves two of three outputs unwritten and the host copies them; the emulator looks "
    "at what kernels read and leaves outputs to the comparison of values",
)
NUMBERED = (
    "both",
    "the same instructions: nvcc gives an `asm` statement of two lines the number of its second "
    "line, NVRTC that of its first",
)

REASONS: dict[tuple[str, str], tuple[str, str]] = {
    ("producer-clean", "racecheck"): NAMED,
    ("scan-06", "initcheck"): SHARED,
    ("histogram-09", "racecheck"): ATOMIC,
    ("histogram-10", "racecheck"): ATOMIC,
    ("last_block-15", "initcheck"): SHARED,
    ("layernorm-17", "initcheck"): SHARED,
    ("tensor_core-21", "racecheck"): NUMBERED,
    ("producer-22", "racecheck"): STARVED,
    ("histogram-23", "racecheck"): GLOBAL,
    ("block_sum-24", "racecheck"): GLOBAL,
    ("block_sum-24", "initcheck"): COPIED,
    ("last_block-25", "racecheck"): GLOBAL,
    ("last_block-26", "racecheck"): GLOBAL,
    ("lock-27", "racecheck"): GLOBAL,
    ("lock-28", "racecheck"): GLOBAL,
    ("flags-29", "racecheck"): GLOBAL,
    ("flags-30", "racecheck"): GLOBAL,
    ("stencil-34", "memcheck"): ENDED,
    ("transpose-35", "racecheck"): GLOBAL,
    ("transpose-35", "initcheck"): SHARED,
    ("transpose-36", "memcheck"): ENDED,
    ("softmax-38", "memcheck"): ENDED,
    ("layernorm-40", "initcheck"): SHARED,
    ("transpose-43", "initcheck"): SHARED,
    ("histogram-44", "initcheck"): SHARED,
    ("scan-46", "initcheck"): SHARED,
    ("softmax-49", "synccheck"): SHUFFLE,
    ("softmax-50", "synccheck"): SHUFFLE,
    ("layernorm-51", "synccheck"): MASK,
    ("producer-53", "racecheck"): ORDER,
    ("producer-53", ""): ALONE,
    ("producer-54", ""): NEVER,
    ("lock-55", ""): NEVER,
}
