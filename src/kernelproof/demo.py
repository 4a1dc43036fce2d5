"""`kernelproof demo`: the shipped operators through the same gate as anybody's kernel."""

from __future__ import annotations

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
    """Judge and time every shipped kernel that this machine can run: the CPU kernels, and with a
    GPU the CUDA kernels first.

    Args:
        quick: the declared cases with one seed, few rounds, and the eager baseline and the
            problem's own only.
        device: "cpu" or "cuda" to run only those kernels.
        compile_timeout: seconds that `torch.compile` of a reference may take before it is left out.
    """
    start_server()
    import torch

    kinds = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
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
                    options=_options(quick, name, compile_timeout),
                    progress=step,
                )
            )
    return records


def _options(quick: bool, name: str, compile_timeout: float) -> Options:
    if not quick:
        return Options(compile_timeout=compile_timeout)
    from kernelproof.problem import load

    baselines = ("eager", *load(name).problem.baselines)
    return Options(level="quick", baselines=baselines, rounds=12, seconds=4.0)
