"""The machine and the problem, as somebody needs them who is about to write a kernel."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kernelproof import baselines, environment, lease
from kernelproof import floors as limits
from kernelproof import problem as problems
from kernelproof.build.cache import compiler_identity
from kernelproof.build.compiler import nvcc_path
from kernelproof.errors import ProblemError, UsageError
from kernelproof.floors.cache import check_device
from kernelproof.resize import Size, tensor_bytes
from kernelproof.types import (
    Case,
    CaseFacts,
    GpuFacts,
    MachineFacts,
    ProblemFacts,
    Progress,
    Work,
    silent,
)

_SEED = 0
# A look at the reference: so many calls, or as many as fit into so many seconds.
_CALLS = 30
_WARM_CALLS = 3
_LOOK_SECONDS = 1.0


def machine(measure: bool = True, progress: Progress = silent) -> MachineFacts:
    """What this machine is and can do. With ``measure`` its floors are measured, once, where they
    are not known yet, which takes some seconds."""
    device = limits.default_device()
    floors = limits.load(device)
    if floors is None and measure:
        with lease.hold(lease.device_key(device), progress):
            floors = limits.get(device, progress)
    env = environment.capture()
    gpu, notes = _gpu() if device != "cpu" else (None, ())
    if gpu is None and device == "cpu":
        notes = ("no GPU here: CUDA and Triton kernels are emulated, for their values and races",)
    tools = {"g++": env.compiler or "missing", "nvcc": _version(nvcc_path())}
    for name in ("nvidia-cuda-nvrtc", "cuda-core", "triton"):
        tools[name] = env.versions.get(name, "missing")
    return MachineFacts(
        environment=env, gpu=gpu, tools=tools, tf32=_tf32(), floors=floors, notes=notes
    )


def problem(
    where: str | Path,
    *,
    device: str | None = None,
    sizes: Mapping[str, Size] | None = None,
    shrink_to: int | None = None,
    progress: Progress = silent,
) -> ProblemFacts:
    """Source, cases, tolerances, baselines and the reference's time.

    Args:
        sizes, shrink_to: as of `problem.load`.

    Raises:
        ProblemError: no such problem, or a reference that does not run.
    """
    from kernelproof.check import budget

    reference = problems.load(where, sizes, shrink_to)
    found = reference.problem
    place = device or limits.default_device()
    check_device(place)
    first = found.cases[0]
    progress("look at the reference", 0, 1)
    with _excused(found.name, first), lease.hold(lease.device_key(place), progress):
        outputs, times, work = _ran(reference, first, place)
    args, kwargs = reference.init_args(first)
    words = [repr(a) for a in args] + [f"{k}={v!r}" for k, v in kwargs.items()]
    tolerances = []
    import torch

    for name, dtype in (("float32", torch.float32), ("16 bits", torch.bfloat16)):
        atol, rtol = budget.compat_tolerance(dtype, found.atol, found.rtol)
        tolerances.append(f"{name}: atol {atol:g}, rtol {rtol:g}")
    return ProblemFacts(
        name=found.name, path=found.path, digest=found.digest, doc=found.doc,
        source=Path(found.path).read_text(),
        cases=tuple(_case(reference, case) for case in found.cases),
        constructor=f"Model({', '.join(words)})", outputs=outputs, limit=budget.LIMIT,
        tolerance="; ".join(tolerances),
        baselines=tuple(b.name for b in baselines.chosen(reference, first, place, None)),
        device=place, reference_time=times, work=work,
    )  # fmt: skip


def _case(reference: problems.Reference, case: Case) -> CaseFacts:
    with _excused(reference.problem.name, case):
        inputs = reference.drawn(case, _SEED)
    return CaseFacts(case=case, inputs=tuple(map(_word, inputs)), bytes=tensor_bytes(inputs))


def _ran(
    reference: problems.Reference, case: Case, device: str
) -> tuple[tuple[str, ...], tuple[float, float, float], Work | None]:
    """Outputs in words, times, and the work of the reference on ``case``."""
    import torch
    from torch.utils._pytree import tree_leaves

    from kernelproof.check.reference import construct
    from kernelproof.check.values import to_device
    from kernelproof.work import trace

    args, kwargs = reference.init_args(case)
    model = construct(reference.module.Model, args, kwargs, _SEED, device)
    drawn = reference.drawn(case, _SEED)

    def called() -> tuple[Any, float]:
        inputs = to_device(drawn, device)
        _wait(device)
        begun = time.perf_counter()
        output = model(*inputs)
        _wait(device)
        return output, time.perf_counter() - begun

    with torch.no_grad():
        output, _ = called()
        taken = _looked(lambda: called()[1])
        work = None
        with contextlib.suppress(Exception):
            # What cannot be traced has no figures; the times stand.
            work = trace(model, to_device(drawn, device))
    return tuple(_word(leaf) for leaf in tree_leaves(output)), taken, work


def _looked(call: Callable[[], float]) -> tuple[float, float, float]:
    taken: list[float] = []
    started = time.perf_counter()
    for number in range(_WARM_CALLS + _CALLS):
        seconds = call()
        if number >= _WARM_CALLS or not taken:
            taken.append(seconds)
        if time.perf_counter() - started > _LOOK_SECONDS and len(taken) > 1:
            break
    low, middle, high = statistics.quantiles(taken, n=4)
    return middle, low, high


@contextlib.contextmanager
def _excused(name: str, case: Case) -> Iterator[None]:
    """Whatever a reference raises is the problem's fault."""
    try:
        yield
    except (UsageError, KeyboardInterrupt):
        raise
    except Exception as error:
        raise ProblemError(
            f"the reference of {name} fails on case {case.name!r}: {type(error).__name__}: {error}"
        ) from error


def _word(value: Any) -> str:
    """Such as "float32 [30, 200]", or the value itself where it is no tensor."""
    import torch

    if isinstance(value, torch.Tensor):
        strides = "" if value.is_contiguous() else f", strides {list(value.stride())}"
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}{strides}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_word, value))}]"
    return repr(value)


def _gpu() -> tuple[GpuFacts | None, tuple[str, ...]]:
    import torch

    from kernelproof.inspect import devices

    facts = torch.cuda.get_device_properties(torch.cuda.current_device())
    arch = 10 * facts.major + facts.minor
    try:
        device = devices.present(facts.name, arch, facts.multi_processor_count)
    except UsageError as error:
        return None, (str(error),)
    c = device.capability
    found = GpuFacts(
        name=facts.name, target=device.target, multiprocessors=device.multiprocessors,
        threads_multiprocessor=c.threads, threads_block=c.threads_block,
        blocks_multiprocessor=c.blocks, registers_multiprocessor=c.registers,
        shared_multiprocessor=c.shared, shared_block=c.shared_block,
        shared_default=devices.SHARED_DEFAULT, l2=facts.L2_cache_size, memory=facts.total_memory,
    )  # fmt: skip
    return found, ()


def _tf32() -> dict[str, str]:
    import torch

    def word(on: bool) -> str:
        return "TF32 may be used" if on else "full fp32"

    return {
        "matrix products": f"{word(torch.backends.cuda.matmul.allow_tf32)} (matmul precision "
        f"{torch.get_float32_matmul_precision()!r})",
        "convolutions": word(torch.backends.cudnn.allow_tf32),
        "verdict": "an fp32 problem is judged in fp32: TF32 in a candidate is named",
    }


def _version(tool: str | None) -> str:
    return compiler_identity(tool) if tool else "missing"


def _wait(device: str) -> None:
    if device != "cpu":
        import torch

        torch.cuda.synchronize()
