"""`kernelproof inspect`: what a candidate's kernels take, and what holds them back, without a GPU.

The candidate is imported and called in a worker, where launches are noted instead of carried out;
see `inspect.capture`. A bare `.cu`, `.ptx` or `.cubin` is compiled as it is.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelproof import candidate as candidates
from kernelproof import problem as problems
from kernelproof import watching
from kernelproof.ahead import Ahead
from kernelproof.emulate import spec
from kernelproof.errors import CandidateCrash, UnsupportedError, UsageError, no_case
from kernelproof.inspect import assemble, cubin, devices, limits
from kernelproof.inspect import compile as compiling
from kernelproof.inspect.facts import Call, Measured, said
from kernelproof.inspect.text import render
from kernelproof.subject import QUICK_TO_COMPILE, CandidateProcess, payload_of
from kernelproof.types import Candidate, Case, Inspection, KernelFacts, Launch, Timing
from kernelproof.worker import Worker

_FILES = (".cu", ".ptx", ".cubin")
_NO_GPU_CODE = ("pytorch", "cpp-c", "cpp-stable", "cpp-inline")
_LAUNCHES_UNSEEN = "launches are not known: the call makes none that can be seen without a GPU"
_PLAIN_SEED = 0


@dataclasses.dataclass(frozen=True)
class Wish:
    """What to inspect, and how.

    ``gpu``: see `devices.find`; by default the present one, else an H200. ``problem``: whose inputs
    to call the candidate with; by default that of a shipped operator, or the one that the
    candidate's file name or folder names. ``case``: of the problem, the first by default.
    ``launches``: texts such as "scale<<<8, 128>>>(f32[1000], 3)" for files. ``kernels`` and
    ``compiler``: as `compile.source_file`. ``record``: JSON of a `bench` of the candidate.
    ``sanitize``: run the tools of compute-sanitizer; ``ncu``: count with Nsight Compute.
    """

    gpu: str | None = None
    problem: str | None = None
    case: str | None = None
    launches: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    compiler: str = ""
    record: Path | None = None
    sanitize: bool = False
    ncu: bool = False


def told(where: str, wish: Wish, as_json: bool) -> str:
    """`inspect` for the command line: text, or one JSON object."""
    found = inspect(where, wish)
    if not as_json:
        return render(found)
    return json.dumps({"status": "pass", **json.loads(found.model_dump_json())}, indent=1)


def inspect(
    where: str, wish: Wish | None = None, timing: Timing | None = None, run: bool = True
) -> Inspection:
    """Inspect a candidate, a shipped operator's kernel ("mla_kv/cuda") or a file.

    Args:
        timing: of it, instead of that in the wish's record.
        run: also time its kernels, where there is a GPU.

    Raises:
        UsageError: no such candidate, problem, case or GPU, or a broken cubin.
        CompileError: a kernel does not compile.
        UnsupportedError: no GPU code in it, or a compiler is missing.
        CandidateCrash, CandidateTimeout: the candidate does not run.
    """
    wish = wish or Wish()
    path, timing = Path(where), timing or _timing(wish.record)
    if path.suffix in _FILES:
        if wish.sanitize or wish.ncu:
            raise UsageError(
                f"--sanitize and --ncu call a candidate, and {path.name} is a file; for a .cu file "
                f"`kernelproof race {path}` does without a GPU"
            )
        return _file(path, wish, timing)
    device = _device(wish.gpu)
    location, reference = _located(where, wish.problem)
    found = candidates.load(location)
    if found.language in _NO_GPU_CODE:
        raise UnsupportedError(
            f"{found.name} is {found.language} code without kernels of its own for a GPU; "
            "`kernelproof bench` times it"
        )
    if reference is None and found.language == "triton":
        raise UnsupportedError(
            f"{found.name} is Triton code, whose kernels are compiled for the arguments of a call; "
            "give --problem NAME, so that they are known"
        )
    case = _case(reference, wish.case)
    hides = () if reference is None or _shipped(location) else (reference.problem.path,)
    payload = _payload(reference, case)
    kernels, notes = _captured(found, case, device, payload, hides)
    static = _result(kernels, device, timing, case.name if case else "", notes)
    # A GPU that was asked for is not the one of this machine.
    if not run or (wish.gpu is not None and not (wish.sanitize or wish.ncu)):
        return static
    return watching.on_device(static, device, found, payload, hides, wish.sanitize, wish.ncu)


def beside_check(
    candidate: Candidate, reference: problems.Reference, case: Case, ahead: Ahead,
    sanitize: bool = False, ncu: bool = False,
) -> Callable[[Timing], Inspection] | None:  # fmt: skip
    """An inspection of a candidate on a case that will be timed, started by ``ahead``. What is
    returned waits for it, adds what the times tell, runs ``sanitize`` and ``ncu`` where they are
    asked for (see `Wish`), and raises as `inspect` does. None for a candidate that is not for a
    GPU, and unless a tool is asked for, for one that only a slow compiler builds.
    """
    if candidate.language in _NO_GPU_CODE:
        return None
    if candidate.language not in QUICK_TO_COMPILE and not (sanitize or ncu):
        return None
    device = _device(None)
    hides = () if _shipped(Path(candidate.path)) else (reference.problem.path,)
    payload = _payload(reference, case)
    captured = ahead.start(
        lambda: _captured(candidate, case, device, payload, hides, ahead.watched)
    )

    def finished(timing: Timing) -> Inspection:
        found = _result(captured()[0], device, timing, case.name, captured()[1])
        return watching.with_tools(found, candidate, payload, sanitize, ncu)

    return finished


def _captured(
    found: Candidate, case: Case | None, device: devices.Device, payload: Any,
    hides: Sequence[str], watched: Callable[[Worker], None] = lambda _: None,
) -> tuple[list[KernelFacts], list[str]]:  # fmt: skip
    """The kernels of a candidate, called as ``payload`` says where it is given; and notes."""
    from kernelproof.options import Options

    with CandidateProcess(found, "cpu", Options(), hides) as subject:
        watched(subject.worker)
        answer = subject.captured(device.name, device.multiprocessors, payload)
    kernels = [k for module in answer["modules"] for k in _module(module, device)]
    if not kernels:
        raise UnsupportedError(
            f"{found.name} launches no kernel on the case {case.name!r}; choose another with --case"
            if case is not None
            else f"{found.name} makes no kernel when it is imported; give --problem NAME to call it"
        )
    notes = [f"the call ended early: {answer['stopped']}"] if answer["stopped"] else []
    if payload is None:
        notes.append("launches are not known: give --problem NAME to call the candidate")
    elif not notes and not any(k.launch is not None for k in kernels):
        notes.append(_LAUNCHES_UNSEEN)
    return kernels, notes


def _timing(path: Path | None) -> Timing | None:
    """The timing of the last record in a JSON file. Raises UsageError where there is none."""
    if path is None:
        return None
    from kernelproof.store import read_json

    timings = [record.timing for record in read_json(path) if record.timing is not None]
    if not timings:
        raise UsageError(f"{path} holds no timing; make it by `kernelproof bench ... --json`")
    return timings[-1]


def _file(path: Path, wish: Wish, timing: Timing | None) -> Inspection:
    if not path.is_file():
        raise UsageError(f"no file {str(path)!r}; give a .cu, .ptx or .cubin file, or a candidate")
    gpu = wish.gpu
    if path.suffix == ".cubin" and gpu is None:
        gpu = f"sm_{cubin.read(path.read_bytes()).arch}"
    device = _device(gpu)
    texts = list(wish.launches)
    specs = [spec.parse(text) for text in texts]
    if not texts and path.suffix == ".cu":
        specs = spec.find(path.read_text())
    named = [*wish.kernels, *(s.kernel for s in specs if "<" in s.kernel)]
    made = compiling.source_file(path, device.target, wish.compiler, tuple(dict.fromkeys(named)))
    symbols = {k.symbol: assemble.demangled(k.symbol) for k in cubin.read(made.cubin).kernels}
    launches = _given(specs, symbols)
    kernels = assemble.kernels_of(
        made.cubin, device, compiler=made.compiler, spoken=made.said, launches=launches
    )
    if not kernels:
        raise UnsupportedError(
            f"{path.name} has no kernel: one that is a template needs an instance, as in "
            "--kernel 'scale<float, 4>'"
        )
    notes = (
        [] if launches else ["launches are not known: give --launch 'KERNEL<<<GRID, BLOCK>>>()'"]
    )
    return _result(kernels, device, timing, "", notes)


def _result(
    kernels: Sequence[KernelFacts], device: devices.Device, timing: Timing | None, case: str,
    notes: Sequence[str],
) -> Inspection:  # fmt: skip
    call = Call(tuple(kernels), device, _measured(timing))
    return Inspection(
        gpu=device.title,
        arch=device.target,
        multiprocessors=device.multiprocessors,
        kernels=tuple(kernels),
        case=case,
        sentences=said(limits.RULES, call),
        notes=tuple(notes),
    )


def _measured(timing: Timing | None) -> Measured:
    """What a timing tells of a call."""
    if timing is None:
        return Measured()
    device = timing.candidate.device
    floor = timing.floor.device if timing.floor is not None else None
    work, bounds = timing.work, timing.limit.bounds if timing.limit is not None else ()
    memory = next((b for b in bounds if b.kind == "memory"), None)
    arithmetic = [b for b in bounds if b.kind in ("matrix", "vector")]
    longest = max(arithmetic, key=lambda b: b.seconds, default=None)
    flops = work.flops if work is not None else timing.flops
    return Measured(
        seconds=device.median if device is not None else None,
        launch_floor=floor.median if floor is not None else None,
        bytes=work.bytes if work is not None else timing.bytes,
        flops=flops,
        matrix_flops=sum(work.matrix.values()) if work is not None else None,
        bandwidth=memory.rate if memory is not None else None,
        rate=flops / longest.seconds if longest is not None and flops else None,
    )


def _device(name: str | None) -> devices.Device:
    if name is not None:
        return devices.find(name)
    import torch

    if not torch.cuda.is_available():
        return devices.find("h200")
    facts = torch.cuda.get_device_properties()
    return devices.present(facts.name, 10 * facts.major + facts.minor, facts.multi_processor_count)


def _located(where: str, problem: str | None) -> tuple[Path, problems.Reference | None]:
    """The candidate's path and its problem, if that is known."""
    operator, _, kernel = where.partition("/")
    shipped = problems.shipped_operators().get(operator)
    path = Path(where)
    if shipped is not None and kernel and not path.exists():
        return shipped / f"{kernel}.py", problems.load(problem or operator)
    if problem is None:
        known = problems.known_problems()
        guesses = (path.stem.partition("__")[0], path.resolve().parent.name)
        problem = next((name for name in guesses if name in known), None)
    return path, problems.load(problem) if problem is not None else None


def _shipped(path: Path) -> bool:
    return Path(__file__).parent.resolve() in path.resolve().parents


def _case(reference: problems.Reference | None, name: str | None) -> Case | None:
    if reference is None:
        return None
    cases = {case.name: case for case in reference.problem.cases}
    if name is not None and name not in cases:
        raise UsageError(f"{reference.problem.name} {no_case(name, cases)}")
    return cases[name] if name is not None else reference.problem.cases[0]


def _payload(reference: problems.Reference | None, case: Case | None) -> Any:
    if reference is None or case is None:
        return None
    made = payload_of(reference, case, _PLAIN_SEED)
    return made, reference.drawn(case, _PLAIN_SEED), _PLAIN_SEED


def _module(module: Mapping[str, Any], device: devices.Device) -> tuple[KernelFacts, ...]:
    """The kernels of one compilation, as the worker sent it."""
    try:
        code = base64.b64decode(module["cubin"])
        symbols = [str(s) for s in module["symbols"]]
        shapes = [_launch(s, n, module["opted_in"]) for s, n in module["launches"]]
        launch = assemble.chosen(shapes)
        name = str(module["name"])
        compiler, spoken = str(module["compiler"]), str(module["said"])
    except (KeyError, TypeError, ValueError) as error:
        raise CandidateCrash(f"the worker sent nonsense in answer to 'capture': {error}") from None
    return assemble.kernels_of(
        code, device, compiler=compiler, spoken=spoken, names=dict.fromkeys(symbols, name),
        launches=dict.fromkeys(symbols, launch) if launch is not None else None,
    )  # fmt: skip


def _launch(shape: Any, count: Any, opted_in: bool | None) -> Launch:
    grid, block, shared, cluster, dtypes = shape
    return Launch(
        grid=grid, block=block, shared=shared, cluster=cluster, dtypes=dtypes, count=count,
        opted_in=opted_in,
    )  # fmt: skip


def _given(specs: Sequence[spec.LaunchSpec], symbols: Mapping[str, str]) -> dict[str, Launch]:
    """Launches that were written down, by symbol."""
    found = {}
    for one in specs:
        plain = one.kernel.replace(" ", "")
        fitting = [
            symbol
            for symbol, name in symbols.items()
            if plain in (symbol, name.replace(" ", ""), name.split("::")[-1].replace(" ", ""))
        ]
        if not fitting:
            raise UsageError(
                f"no kernel {one.kernel!r} to launch; there are {', '.join(symbols.values())}"
            )
        dtypes = dict.fromkeys(re.findall(r"\b([fiu]\d+)\[", ",".join(one.args)))
        launch = Launch(
            grid=_three(one.grid),
            block=_three(one.block),
            shared=one.shared,
            dtypes=tuple(spec.DTYPES[d].__name__ for d in dtypes),
        )
        found[fitting[0]] = launch
    return found


def _three(sizes: Any) -> tuple[int, int, int]:
    given = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    x, y, z = (*given, 1, 1)[:3]
    return x, y, z
