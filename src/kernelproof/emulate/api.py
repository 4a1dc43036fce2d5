"""Load a kernel and launch it on the CPU."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelproof import launching
from kernelproof.emulate.checks import Restart
from kernelproof.emulate.clusters import clusters_of
from kernelproof.emulate.frontend import parameter_names, to_ptx
from kernelproof.emulate.image import Buffer, Image, module_image
from kernelproof.emulate.machine import Limits, Machine
from kernelproof.emulate.program import Program, build
from kernelproof.emulate.ptx import Module
from kernelproof.emulate.ptx_parse import parse
from kernelproof.emulate.report import Finding, Report
from kernelproof.emulate.tensor_maps import argument
from kernelproof.emulate.traffic import Traffic
from kernelproof.errors import CompileError

Sizes = int | tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Result:
    """What a launch showed. ``findings``: errors first; ``output``: of printf; ``unwritten``:
    bytes left without a value in buffers given as uninitialised. ``wrote``: the addresses of the
    storages that it wrote to."""

    kernel: str
    findings: tuple[Finding, ...]
    output: str
    unwritten: dict[str, int]
    steps: int
    seconds: float
    wrote: tuple[int, ...] = ()

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.severity == "error")

    @property
    def notes(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.severity == "note")


class Loaded:
    """A kernel that can be launched. Module variables keep their values between launches."""

    def __init__(self, module: Module, entry: str, name: str, parameters: Sequence[str]) -> None:
        self.module = module
        self.entry = entry
        self.name = name
        self.parameters = parameters
        self._data: Any = None
        self._programs: dict[bool, Program] = {}

    def program(self, split: bool = False) -> Program:
        if split not in self._programs:
            self._programs[split] = build(self.module, self.entry, split)
        return self._programs[split]

    def variables(self) -> dict[str, bytes]:
        """The module's variables as the last launch left them, by name."""
        program = self.program()
        if self._data is None:
            self._data = module_image(program, {})
        return {r.name: self._data[r.start : r.stop].tobytes() for r in program.module_regions}

    def launch(
        self,
        grid: Sizes,
        block: Sizes,
        args: Sequence[Any],
        *,
        shared: int = 0,
        uninitialised: Sequence[str] = (),
        constants: Mapping[str, Any] | None = None,
        seed: int | None = None,
        limits: Limits | None = None,
        traffic: bool = False,
        cluster: Sizes | None = None,
    ) -> Result:
        """Run the kernel and write what it wrote into the buffers.

        Args:
            grid, block: in blocks and threads, up to three numbers each.
            args: CPU tensors and numpy arrays as buffers, None for a null pointer, numbers, and
                bytes for structures; `Buffer` gives one a name.
            shared: dynamic shared memory in bytes.
            uninitialised: names of buffers that hold nothing yet; reading what the kernel has not
                written is a finding then.
            constants: values for module variables (cudaMemcpyToSymbol).
            seed: for another order of diverged threads; None runs the smallest address first.
            cluster: blocks per cluster, where the kernel does not declare it.
            traffic: also note bank conflicts and uncoalesced access, with counts per line.

        Raises:
            UnsupportedError: an instruction is not emulated, or the launch is too large.
            CompileError: the kernel declares more shared memory than the assembler takes.
            TypeError: arguments that do not fit the kernel.
            ValueError: a grid that is no multiple of the cluster, more threads or shared memory
                than any GPU grants a block, or a tensor map that the driver would refuse.
        """
        started = time.perf_counter()
        sizes = _triple(grid, "grid"), _triple(block, "block")
        if refused := launching.refused_sizes(*sizes):
            raise ValueError(f"{self.name}: {refused}")
        limits = limits or Limits()
        program = self.program()
        self._check_shared(program.static_shared, shared)
        clusters = clusters_of(
            None if cluster is None else _triple(cluster, "cluster"), sizes[0], program.cluster,
            self.name,
        )  # fmt: skip
        if self._data is None or constants:
            self._data = module_image(program, constants or {})
        image = Image(program, _named(args, self.parameters, uninitialised), self.parameters,
                      self._data)  # fmt: skip
        tracked: set[str] = set()
        together = split = False
        while True:
            program = self.program(split)
            report = Report(self.name, program.operations)
            space = image.space(tracked)
            machine = Machine(
                program, space, *sizes, shared, image.parameters, report, limits, split, seed,
                clusters,
            )  # fmt: skip
            machine.traffic = Traffic(report) if traffic else None
            try:
                machine.run(together)
                break
            except Restart as wish:
                tracked |= {wish.track} if wish.track else set()
                together, split = together or wish.together, split or wish.split
        if machine.traffic is not None:
            machine.traffic.finish()
        wrote = image.write_back(space)
        return Result(
            self.name, report.findings(), "".join(report.output), image.unwritten(space),
            machine.steps, time.perf_counter() - started, wrote,
        )  # fmt: skip

    def _check_shared(self, static: int, dynamic: int) -> None:
        # ptxas 13.0 and 13.5: for targets such as sm_90a it takes all that the GPU has for a block.
        specific = self.module.target.endswith("a")
        most = launching.SHARED_AT_MOST if specific else launching.SHARED_WITHOUT_OPT_IN
        if static > most:
            raise CompileError(
                f"{self.name} declares {static:,} bytes of shared memory; for {self.module.target} "
                f"the assembler takes at most {most:,}: declare it `extern __shared__` and give "
                "the size at the launch"
            )
        if static + dynamic > launching.SHARED_AT_MOST:
            raise ValueError(
                f"{self.name}: {launching.asked(dynamic, static)}; no GPU grants more than "
                f"{launching.SHARED_AT_MOST:,}"
            )


def load(
    source: str | Path,
    name: str = "",
    options: Sequence[str] = (),
    compiler: str = "nvrtc",
    arch: str = "",
) -> Loaded:
    """A kernel of CUDA C++ text, or of a `.cu` or `.ptx` file.

    Args:
        name: as C++ writes it, templates with their arguments; may be left out where there is one.
        arch: the target; by default compute_80, or compute_90a for what has instructions of sm_90.

    Raises:
        CompileError: it does not compile, or has no such kernel.
        UnsupportedError: the compiler is missing.
    """
    # The cache must notice that a file, or a header beside it, has changed.
    path = Path(str(source)) if "\n" not in str(source) else None
    beside: list[Path] = []
    code = str(source)
    if path is not None and path.is_file():
        code, beside = path.read_text(), sorted(path.parent.glob("*.cuh"))
    where = (str(source), code, *(header.read_text() for header in beside))
    templated = [name] if name and ("<" in name or "::" in name) else []
    entry_of: dict[str, str] = {}
    if name and not templated:
        # A kernel that is extern "C" has no other name; others are asked for by name.
        text, entry_of = _compile(where, (), tuple(options), compiler, arch)
        if name not in _parsed(text).functions:
            text, entry_of = _compile(where, (name,), tuple(options), compiler, arch)
    else:
        text, entry_of = _compile(where, tuple(templated), tuple(options), compiler, arch)
    module = _parsed(text)
    entries = module.entries()
    entry = entry_of.get(name, name) or (entries[0] if len(entries) == 1 else "")
    if entry not in entries:
        raise CompileError(
            f"no kernel {name or '(none named)'!r}; there are {', '.join(entries) or 'none'}"
        )
    return Loaded(module, entry, name or entry, parameter_names(code, name or entry))


@functools.lru_cache(maxsize=64)
def _compile(
    source: tuple[str, ...], names: tuple[str, ...], options: tuple[str, ...], compiler: str,
    arch: str,
) -> tuple[str, dict[str, str]]:  # fmt: skip
    return to_ptx(source[0], names, options, compiler, arch)


@functools.lru_cache(maxsize=64)
def _parsed(text: str) -> Module:
    return parse(text)


def launch(
    source: str | Path, name: str, grid: Sizes, block: Sizes, args: Sequence[Any], **how: Any
) -> Result:
    """`load` and `Loaded.launch` in one; keywords as there."""
    compile_keys = {key: how.pop(key) for key in ("options", "compiler", "arch") if key in how}
    return load(source, name, **compile_keys).launch(grid, block, args, **how)


def _named(args: Sequence[Any], names: Sequence[str], uninitialised: Sequence[str]) -> list[Any]:
    out = []
    for number, arg in enumerate(args):
        name = names[number] if number < len(names) else f"argument {number}"
        if hasattr(arg, "box") and hasattr(arg, "swizzle"):
            arg = argument(arg)
        elif name in uninitialised and not isinstance(arg, Buffer):
            arg = Buffer(arg, name, initialised=False)
        out.append(arg)
    return out


def _triple(value: Sizes, what: str) -> tuple[int, int, int]:
    sizes = (value,) if isinstance(value, int) else tuple(int(n) for n in value)
    if not 1 <= len(sizes) <= 3 or any(n < 1 for n in sizes):
        raise ValueError(f"{what} {value!r}: give one to three sizes of at least 1")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z
