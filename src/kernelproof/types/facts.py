"""What somebody who is about to write a kernel asks: about the machine, and about the problem."""

from __future__ import annotations

from kernelproof.types.base import Frozen
from kernelproof.types.record import Environment
from kernelproof.types.timing import Floors, Work
from kernelproof.types.verdict import Case


class GpuFacts(Frozen):
    """A GPU's limits. Bytes: ``shared_multiprocessor``, ``shared_block`` (opted in; without that a
    block gets ``shared_default``), ``l2``, ``memory``. ``target``: what compilers call it."""

    name: str
    target: str
    multiprocessors: int
    threads_multiprocessor: int
    threads_block: int
    blocks_multiprocessor: int
    registers_multiprocessor: int
    shared_multiprocessor: int
    shared_block: int
    shared_default: int
    l2: int
    memory: int


class MachineFacts(Frozen):
    """``gpu``: None without one; then CUDA and Triton kernels are emulated. ``tools``: compilers
    with their versions, "missing" where they are. ``tf32``: where PyTorch takes TF32 for fp32 by
    default here, in words. ``floors``: None where they are not measured yet."""

    environment: Environment
    gpu: GpuFacts | None
    tools: dict[str, str]
    tf32: dict[str, str]
    floors: Floors | None
    notes: tuple[str, ...] = ()


class CaseFacts(Frozen):
    """A case with the arguments that ``forward`` gets in it, as "float32 [30, 200]", and the bytes
    of its tensors."""

    case: Case
    inputs: tuple[str, ...]
    bytes: int


class ProblemFacts(Frozen):
    """A problem as its solver needs it. ``constructor``: arguments of ``Model`` in the first case,
    ``outputs``: what it returns there. ``limit``: how many times the budget an error may be (see
    docs/verdict.md); ``tolerance``: of the compat verdict. ``reference_time``: seconds per call of
    the first case on ``device``: median, lower and upper quartile of a quick look by the host
    clock; a bench measures it beside the candidate. ``work``: what it computes and must move."""

    name: str
    path: str
    digest: str
    doc: str
    source: str
    cases: tuple[CaseFacts, ...]
    constructor: str
    outputs: tuple[str, ...]
    limit: float
    tolerance: str
    baselines: tuple[str, ...]
    device: str
    reference_time: tuple[float, float, float]
    work: Work | None
    notes: tuple[str, ...] = ()
