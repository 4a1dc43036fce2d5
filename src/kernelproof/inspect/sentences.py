"""Plain sentences about one kernel: what holds it back, in figures, and the first thing to try.

Each rule looks at `Facts` and answers with a sentence, or "" where it has nothing to say. A rule
that lacks a fact it needs says nothing. Rules stand in the order in which to act on them; those
about a whole call are in `limits`.
"""

from __future__ import annotations

from kernelproof.inspect.devices import SHARED_DEFAULT, WARP
from kernelproof.inspect.facts import Facts, Rule
from kernelproof.report import units

_ENOUGH_OCCUPANCY = 0.5  # from here on more warps rarely hide more latency
_NARROW_SHARE = 0.5  # of the loads
_BARRIER_SPACING = 50  # instructions of a loop per barrier below which barriers are called many
_IDLE_SHARE = 0.15  # of the GPU, from which on idleness is worth a word


def _cannot_launch(f: Facts) -> str:
    k = f.kernel
    if f.threads and k.max_threads is not None and f.threads > k.max_threads:
        return (
            f"cannot launch: {f.threads} threads per block, and the kernel is compiled for at most "
            f"{k.max_threads} (__launch_bounds__)"
        )
    if k.launch is None or k.blocks_per_multiprocessor != 0 or _lacks_opt_in(f):
        return ""
    return (
        f"cannot launch on {f.device.title}: a block of {f.threads} threads with {k.registers} "
        f"registers each and {units.size(k.shared_bytes + k.launch.shared)} of shared memory "
        f"exceeds its {k.limiter}"
    )


def _opt_in(f: Facts) -> str:
    launch = f.kernel.launch
    if launch is None or not _lacks_opt_in(f):
        return ""
    asked = units.size(f.kernel.shared_bytes + launch.shared)
    return (
        f"needs an opt-in: {asked} of shared memory per block is above the "
        f"{units.size(SHARED_DEFAULT)} that a launch gets; call cudaFuncSetAttribute(kernel, "
        "cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) before it"
    )


def _lacks_opt_in(f: Facts) -> bool:
    launch = f.kernel.launch
    if launch is None or launch.opted_in is not False:
        return False
    return f.kernel.shared_bytes + launch.shared > SHARED_DEFAULT


def _spills(f: Facts) -> str:
    stores, loads = f.kernel.spill_stores, f.kernel.spill_loads
    if not stores and not loads:
        return ""
    inside = f.count("LDL", "STL", loops=True)
    where = f", {inside} such instructions in loops" if inside else ""
    return (
        f"spills registers: {stores} bytes stored and {loads} loaded per thread at "
        f"{f.kernel.registers} registers{where}; use fewer live values per thread, or loosen "
        "__launch_bounds__ or -maxrregcount"
    )


def _local_arrays(f: Facts) -> str:
    k = f.kernel
    if not k.local_accesses:
        return ""
    if k.spill_stores is None:
        return (
            f"{k.local_accesses} accesses to local memory ({k.stack_bytes} bytes of stack per "
            "thread): spills, or arrays whose index is not known at compile time"
        )
    return (
        f"arrays in local memory: {k.local_accesses} accesses, {k.stack_bytes} bytes of stack per "
        "thread; index arrays by constants (unroll their loops) so that they live in registers"
    )


def _idle_grid(f: Facts) -> str:
    idle = 1 - f.blocks / f.device.multiprocessors
    if not f.blocks or idle < _IDLE_SHARE:
        return ""
    return (
        f"too few blocks: {f.blocks} for {f.device.multiprocessors} multiprocessors leave "
        f"{units.share(idle)} of the GPU idle; split the work into more blocks"
    )


def _tail(f: Facts) -> str:
    resident = (f.kernel.blocks_per_multiprocessor or 0) * f.device.multiprocessors
    if not resident or f.blocks <= resident:
        return ""
    waves = -(-f.blocks // resident)
    loss = 1 - f.blocks / (waves * resident)
    if loss < _IDLE_SHARE:
        return ""
    return (
        f"a short last wave: {f.blocks} blocks run in {waves} waves of {resident}, and "
        f"{units.share(loss)} of the places stay empty; choose a grid near a multiple of "
        f"{resident}, or loop over the work in a grid of that size"
    )


def _idle_lanes(f: Facts) -> str:
    idle = -f.threads % WARP
    if not idle:
        return ""
    warps = -(-f.threads // WARP)
    return (
        f"idle lanes: {f.threads} threads are no multiple of {WARP}, so {idle} of "
        f"{warps * WARP} lanes do nothing; round the block up"
    )


def _low_occupancy(f: Facts) -> str:
    k = f.kernel
    if k.occupancy is None or not 0 < k.occupancy < _ENOUGH_OCCUPANCY:
        return ""
    have = f"occupancy {units.share(k.occupancy)} ({k.warps_per_multiprocessor} of "
    have += f"{f.device.capability.warps} warps), limited by {_amount(f)}"
    needed = -(-f.blocks // f.device.multiprocessors)
    if f.blocks and needed <= (k.blocks_per_multiprocessor or 0):
        grid = f"the grid has {units.many(needed, 'block')} per multiprocessor"
        return f"{have}; it does not matter here: {grid}"
    return f"{have}; it matters where loads are waited for: {_relief(f)}"


def _amount(f: Facts) -> str:
    k = f.kernel
    amounts = {
        "registers": f"{k.registers} registers per thread",
        "shared memory": f"{units.size(k.shared_bytes + (k.launch.shared if k.launch else 0))} of "
        "shared memory per block",
        "warps": f"{k.threads} threads per block",
        "blocks": f"{f.device.capability.blocks} blocks per multiprocessor",
        "barriers": f"{k.barriers} named barriers per block",
    }
    return " and ".join(amounts[name] for name in k.limiter.split(" and "))


def _relief(f: Facts) -> str:
    advice = {
        "registers": "keep fewer values per thread",
        "shared memory": "stage smaller tiles",
        "warps": "choose a block size that divides the multiprocessor's threads",
        "blocks": "use larger blocks",
        "barriers": "use fewer named barriers",
    }
    return " or ".join(advice[name] for name in f.kernel.limiter.split(" and "))


def _narrow_loads(f: Facts) -> str:
    found = f.widths("LDG", "LD", "LDGSTS")
    total = sum(found.values())
    narrow = sum(n for bits, n in found.items() if bits <= 32)
    if not total or not narrow > _NARROW_SHARE * total:
        return ""
    widest = max(bits for bits in found if bits <= 32) // 8
    return (
        f"narrow loads: {narrow} of {total} loads of global memory take at most "
        f"{units.many(widest, 'byte')} per thread; load 16 bytes at once (float4, or a vector of "
        "the type) where rows are aligned"
    )


def _double(f: Facts) -> str:
    found = f.count("DFMA", "DADD", "DMUL", "DSETP")
    if not found or not f.dtypes or "float64" in f.dtypes:
        return ""
    inside = f.count("DFMA", "DADD", "DMUL", "DSETP", loops=True)
    where = f" ({inside} in loops)" if inside else ""
    return (
        f"double precision: {found} instructions{where}, and no argument is float64; a constant "
        "without the suffix f, or a function of <cmath> without it, does this"
    )


def _barriers(f: Facts) -> str:
    inside = f.count("BAR", loops=True)
    total = f.kernel.instructions.in_loops.get("total", 0) if f.kernel.instructions else 0
    if not inside or f.threads <= WARP or total >= inside * _BARRIER_SPACING:
        return ""
    return (
        f"many barriers: {inside} in loops of {total} instructions, one for every "
        f"{total // inside}; give each step more work (a deeper tile, double buffering) or use "
        "warp shuffles"
    )


RULES = (
    Rule("cannot launch", "the block exceeds what the kernel was compiled for or what a "
         "multiprocessor has", "launch", _cannot_launch),
    Rule("opt-in", "more than 48 KiB of shared memory, and the launch does not ask for it",
         "launch", _opt_in),
    Rule("spills", "registers are moved to the stack", "resources", _spills),
    Rule("local arrays", "local memory is accessed other than by spills", "resources",
         _local_arrays),
    Rule("double precision", "fp64 arithmetic, and no argument is float64", "instructions, launch",
         _double),
    Rule("too few blocks", "fewer blocks than multiprocessors, so that at least 15 % of them "
         "idle", "launch", _idle_grid),
    Rule("short last wave", "more than one wave, and at least 15 % of the places of all waves stay "
         "empty", "launch", _tail),
    Rule("low occupancy", "fewer than half of the warps that a multiprocessor holds; says whether "
         "the grid makes use of more", "launch, or a declared block size", _low_occupancy),
    Rule("narrow loads", "more than half of the loads of global memory (of those in loops, if "
         "there are any) take 4 bytes a thread or less", "instructions", _narrow_loads),
    Rule("many barriers", "a barrier for less than 50 instructions in loops, and blocks of more "
         "than one warp", "instructions, launch", _barriers),
    Rule("idle lanes", "the block is no multiple of 32 threads", "launch", _idle_lanes),
)  # fmt: skip
