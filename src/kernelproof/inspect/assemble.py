"""From cubins and launches to `KernelFacts` with their sentences."""

from __future__ import annotations

import ctypes
import functools
import math
import re
from collections.abc import Mapping, Sequence

from kernelproof.errors import UsageError
from kernelproof.inspect import cubin, sass, sentences, tools
from kernelproof.inspect.compile import verbose
from kernelproof.inspect.devices import Device
from kernelproof.inspect.facts import Facts, said
from kernelproof.inspect.occupancy import occupancy
from kernelproof.types import InstructionMix, KernelFacts, Launch

_NO_DISASSEMBLER = f"not told: no disassembler; {tools.REMEDIES['nvdisasm']}"
_UNTOLD = "not told: compilers before CUDA 12.8 do not mark spills in the cubin"


def kernels_of(
    code: bytes, device: Device, *, compiler: str = "", spoken: str = "",
    names: Mapping[str, str] | None = None, launches: Mapping[str, Launch] | None = None,
) -> tuple[KernelFacts, ...]:  # fmt: skip
    """The kernels of a cubin.

    Args:
        compiler: that made it, with its version.
        spoken: what ``ptxas -v`` said; used for spills that the cubin does not tell.
        names: symbol -> name as the source has it; other kernels are left out where it is given.
        launches: by symbol.

    Raises:
        UsageError: no cubin, or one of another architecture than ``device``.
    """
    read = cubin.read(code)
    if read.arch != device.capability.arch:
        raise UsageError(
            f"a cubin for sm_{read.arch}, and {device.title} is sm_{device.capability.arch}; "
            f"give --gpu sm_{read.arch}"
        )
    told = verbose(spoken)
    mixes, source = _mixes(code)
    made = []
    for found in read.kernels:
        if names and found.symbol not in names:
            continue
        name = (names or {}).get(found.symbol) or demangled(found.symbol)
        facts = _facts(found, name, told.get(found.symbol))
        mix = mixes.get(found.symbol)
        update = {"compiler": compiler, "instructions": mix, "instructions_from": source}
        launch = (launches or {}).get(found.symbol)
        facts = with_launch(facts.model_copy(update=update), device, launch)
        made.append(with_sentences(facts, device))
    return tuple(made)


def with_sentences(kernel: KernelFacts, device: Device) -> KernelFacts:
    """The kernel with what the rules say of it."""
    spoken = said(sentences.RULES, Facts(kernel, device))
    return kernel.model_copy(update={"sentences": spoken})


def with_launch(kernel: KernelFacts, device: Device, launch: Launch | None) -> KernelFacts:
    """The kernel with its occupancy at ``launch``, or without one at its declared block size."""
    threads = math.prod(launch.block) if launch is not None else kernel.max_threads
    kernel = kernel.model_copy(update={"launch": launch, "threads": threads})
    if not threads:
        return kernel
    held = occupancy(
        device.capability,
        threads=threads,
        registers=kernel.registers,
        static_shared=kernel.shared_bytes,
        dynamic_shared=launch.shared if launch is not None else 0,
        barriers=kernel.barriers,
        opted_in=launch is None or launch.opted_in is not False,
    )
    update = {
        "occupancy": held.share, "limiter": held.limiter, "limits": held.limits,
        "blocks_per_multiprocessor": held.blocks, "warps_per_multiprocessor": held.warps,
    }  # fmt: skip
    return kernel.model_copy(update=update)


def _facts(found: cubin.Resources, name: str, told: dict[str, int] | None) -> KernelFacts:
    stores, loads, source = found.spill_stores, found.spill_loads, "cubin"
    if stores is None or loads is None:
        source = _UNTOLD
        if told is not None:
            stores, loads, source = told["spill_stores"], told["spill_loads"], "ptxas -v"
    return KernelFacts(
        name=name,
        symbol=found.symbol,
        registers=found.registers,
        spill_stores=stores,
        spill_loads=loads,
        spills_from=source,
        local_accesses=found.local_accesses,
        shared_bytes=found.shared,
        stack_bytes=found.stack,
        constant_bytes=sum(found.constants.values()),
        barriers=found.barriers,
        max_threads=found.block_limit,
        code_bytes=found.code,
    )


def _mixes(code: bytes) -> tuple[dict[str, InstructionMix], str]:
    """Mixes by symbol, and where they are from, or why there are none."""
    found = tools.find("nvdisasm")
    if found is None:
        return {}, _NO_DISASSEMBLER
    try:
        return sass.mixes(sass.disassemble(code)), tools.version(found)
    except RuntimeError as error:
        # Older than the compiler, as a rule; the other figures stand without it.
        return {}, f"not told: {error}; pip install -U nvidia-cuda-nvdisasm"


def chosen(shapes: Sequence[Launch]) -> Launch | None:
    """The launch that stands for a kernel: the one with the most threads."""
    sizes = [math.prod(s.grid) * math.prod(s.block) for s in shapes]
    return shapes[sizes.index(max(sizes))] if shapes else None


@functools.cache
def demangled(symbol: str) -> str:
    """A C++ name without its parameters, such as "scale<float, 4>"; others as they are."""
    try:
        library = ctypes.CDLL("libstdc++.so.6")
    except OSError:
        return symbol
    function = library.__cxa_demangle
    function.restype = ctypes.c_void_p
    status = ctypes.c_int()
    text = function(symbol.encode(), None, None, ctypes.byref(status))
    if status.value != 0 or not text:
        return symbol
    whole = ctypes.string_at(text).decode()
    return plain_name(whole)


def plain_name(text: str) -> str:
    """``void scale<float, (int)4>(float*)`` -> ``scale<float, 4>``."""
    text = re.sub(r"\((?:unsigned |signed )?(?:int|bool|long|char|short)\)(?=[-\w])", "", text)
    depth, end = 0, len(text)
    for at, char in enumerate(text):
        depth += (char == "<") - (char == ">")
        if char == "(" and depth == 0 and not text.startswith("(anonymous namespace)", at):
            end = at
            break
    head = text[:end]
    depth = start = 0
    for at, char in enumerate(head):
        depth += (char == "<") - (char == ">")
        if char == " " and depth == 0 and head[at - 9 : at] != "anonymous":
            start = at + 1
    return head[start:]
