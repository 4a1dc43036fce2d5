"""What an inspection finds: kernels, their resources, what to make of them."""

from __future__ import annotations

from kernelproof.types.base import (
    Frozen,
)


class Launch(Frozen):
    """How a kernel was launched, ``count`` times alike. ``grid`` in blocks, ``block`` in threads,
    ``shared`` bytes of dynamic shared memory; ``dtypes`` of the tensors it was given. ``opted_in``:
    whether the launch asks for more than 48 KiB where it needs it; None where that is not known."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int = 0
    cluster: tuple[int, int, int] | None = None
    count: int = 1
    dtypes: tuple[str, ...] = ()
    opted_in: bool | None = None


class InstructionMix(Frozen):
    """Instructions of a kernel by class, as written and ``in_loops`` only; see docs/inspect.md."""

    total: int
    counts: dict[str, int]
    loops: int
    in_loops: dict[str, int]


class KernelFacts(Frozen):
    """One kernel: its resources, and with a launch its occupancy on the GPU of the inspection.

    Bytes throughout. ``spill_stores``, ``spill_loads``: None where the cubin does not tell (see
    ``spills_from``; likewise ``instructions_from``). ``local_accesses``: instructions on local
    memory that are not spills. ``max_threads``: of a block, as declared. ``occupancy``: resident
    warps over the most that a multiprocessor holds, at ``threads`` per block (of the launch, else
    ``max_threads``); ``limits``: blocks per multiprocessor that each resource allows.
    ``seconds``: device time of the launches of one call, where a profiler has run; ``counters``: of
    one launch, by the name that NVIDIA's profiler gives them, in its base units.
    """

    name: str
    symbol: str
    registers: int
    spill_stores: int | None
    spill_loads: int | None
    shared_bytes: int
    stack_bytes: int
    occupancy: float | None = None
    limiter: str = ""
    limits: dict[str, int] = {}
    threads: int | None = None
    blocks_per_multiprocessor: int | None = None
    warps_per_multiprocessor: int | None = None
    spills_from: str = ""
    instructions_from: str = ""
    local_accesses: int | None = None
    constant_bytes: int = 0
    barriers: int = 0
    max_threads: int | None = None
    code_bytes: int = 0
    compiler: str = ""
    launch: Launch | None = None
    instructions: InstructionMix | None = None
    seconds: float | None = None
    counters: dict[str, float] = {}
    sentences: tuple[str, ...] = ()


class Finding(Frozen):
    """What a tool said: of ``tool`` (such as "memcheck"), ``kind`` of error, how often, where."""

    tool: str
    kind: str
    count: int
    kernel: str = ""
    where: str = ""
    message: str = ""

    @property
    def words(self) -> str:
        """All of it as one sentence."""
        place = f" in {self.kernel}" if self.kernel else ""
        place += f" at {self.where}" if self.where else ""
        often = f", {self.count:,} times" if self.count > 1 else ""
        said = f": {self.message}" if self.message else ""
        return f"{self.tool}: {self.kind}{place}{often}{said}"


class Inspection(Frozen):
    """What holds the kernels of a candidate back on ``gpu``. ``tools``: those of NVIDIA that ran,
    with their outcome. ``sentences``: about the call."""

    gpu: str
    arch: str
    multiprocessors: int
    kernels: tuple[KernelFacts, ...]
    case: str = ""
    sentences: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    tools: dict[str, str] = {}
    notes: tuple[str, ...] = ()
