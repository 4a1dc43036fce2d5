"""`kernelproof demo`: the shipped operators through the same gate as anybody's kernel."""

from __future__ import annotations

from kernelproof.errors import UnsupportedError
from kernelproof.pipeline import Options, judge
from kernelproof.problem import shipped_operators
from kernelproof.types import Progress, Record, silent
from kernelproof.worker.client import start_server


def run(
    quick: bool = False,
    device: str | None = None,
    progress: Progress = silent,
    compile_timeout: float = 60.0,
) -> list[Record]:
    """Judge and time every shipped kernel that this machine can run: the CPU kernels, and the CUDA
    kernels first. Without a GPU those are emulated on their first case, and have no times.

    Args:
        quick: the declared cases with one seed, few rounds, and the eager baseline and the
            problem's own only.
        device: "cpu" or "cuda" to run only those kernels.
        compile_timeout: seconds that `torch.compile` of a reference may take before it is left out.
    """
    start_server()
    import torch

    gpu = torch.cuda.is_available()
    kinds = ["cuda", "cpu"] if gpu or _can_emulate() else ["cpu"]
    if device is not None:
        kinds = [device.split(":")[0]]
    records = []
    for kind in kinds:
        for name in shipped_operators():

            def step(what: str, done: int, total: int, where: str = f"{name} {kind}") -> None:
                progress(f"{where}: {what}", done, total)

            records.append(
                judge(
                    name,
                    kind,
                    timed=True,
                    options=_options(quick, name, compile_timeout)
                    if kind == "cpu" or gpu
                    else _emulated(name),
                    progress=step,
                )
            )
    return records


def _can_emulate() -> bool:
    """Whether CUDA sources can be compiled here at all."""
    from kernelproof.cuda import nvrtc_bindings

    try:
        nvrtc_bindings()
    except UnsupportedError:
        return False
    return True


def _emulated(name: str) -> Options:
    from kernelproof.problem import load

    return Options(level="quick", cases=(load(name).problem.cases[0].name,))


def _options(quick: bool, name: str, compile_timeout: float) -> Options:
    from kernelproof.problem import load

    own = load(name).problem.baselines
    if not quick:
        # Without max-autotune, which takes minutes.
        return Options(baselines=("eager", "torch.compile", *own), compile_timeout=compile_timeout)
    return Options(level="quick", baselines=("eager", *own), rounds=12, seconds=4.0)
