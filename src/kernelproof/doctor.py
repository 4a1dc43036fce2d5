"""`kernelproof doctor`: what this machine has, what is missing, and how to get it."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import os
import shutil
from pathlib import Path
from typing import Literal

from kernelproof.build.cache import compiler_identity
from kernelproof.build.compiler import nvcc_path
from kernelproof.errors import UsageError
from kernelproof.home import home
from kernelproof.problem import known_problems
from kernelproof.types import Frozen


class Fact(Frozen):
    """One thing that was looked for; ``remedy`` says how to get what is missing."""

    name: str
    state: Literal["ok", "missing", "info"]
    value: str
    remedy: str = ""


def examine() -> list[Fact]:
    """Look at everything that kernelproof can use."""
    return [
        *_torch_facts(),
        _bytecode(),
        _tool("g++", "C++ candidates and the shipped CPU kernels", "install g++"),
        _nvcc(),
        _package("ninja", "load_inline candidates", "pip install ninja"),
        _package("cuda-core", "kernelproof.cuda kernels", "pip install 'kernelproof[cuda]'"),
        _package("cuda-bindings", "kernelproof.cuda kernels", "pip install 'kernelproof[cuda]'"),
        _package(
            "nvidia-cuda-nvdisasm",
            "instructions in `kernelproof inspect`",
            "pip install 'kernelproof[cuda]', or have nvdisasm on the PATH",
        ),
        _package("triton", "Triton candidates", "pip install 'kernelproof[triton]'"),
        *_in_the_data_folder(),
        Fact(name="problems", state="info", value=", ".join(sorted(known_problems()))),
    ]


def _in_the_data_folder() -> list[Fact]:
    """The folder, and what needs it."""
    try:
        home()
    except UsageError as error:
        why, _, remedy = str(error).rpartition("; ")
        return [Fact(name="data folder", state="missing", value=why, remedy=remedy)]
    return [*_protections(), _floors(), _data_folder()]


def _data_folder() -> Fact:
    folder = home()
    if os.access(folder, os.W_OK):
        return Fact(name="data folder", state="info", value=str(folder))
    return Fact(
        name="data folder", state="missing", value=f"{folder} cannot be written to",
        remedy="set KERNELPROOF_HOME to a folder that can",
    )  # fmt: skip


def _floors() -> Fact:
    from kernelproof import floors

    found = floors.load(floors.default_device())
    if found is not None:
        value = f"of {found.device} measured {found.measured:%Y-%m-%d}"
        return Fact(name="floors", state="ok", value=f"{value}; `kernelproof floors` shows them")
    return Fact(
        name="floors",
        state="info",
        value="not measured yet: the first `kernelproof bench` or `kernelproof floors` does it",
    )


def _torch_facts() -> list[Fact]:
    import torch

    from kernelproof.environment import capture

    env = capture()
    facts = [
        Fact(name="torch", state="ok", value=env.torch),
        Fact(name="processor", state="ok", value=f"{env.cpu}, {env.cores} cores"),
    ]
    if torch.cuda.is_available():
        value = f"{env.gpu} (sm_{env.capability.replace('.', '')}), driver {env.gpu_driver}"
        facts.append(Fact(name="GPU", state="ok", value=value))
    else:
        remedy = "CUDA and Triton kernels are emulated here: values, races and bounds, no times"
        if torch.version.cuda is None:
            remedy += "; this torch is built without CUDA"
        facts.append(
            Fact(name="GPU", state="missing", value="none that torch can use", remedy=remedy)
        )
    return facts


def _bytecode() -> Fact:
    """Whether Python keeps compiled copies of torch's modules; some installers leave them out, and
    in a folder that cannot be written Python does not make up for it."""
    import torch

    name, kept = "bytecode of torch", Path(importlib.util.cache_from_source(torch.__file__))
    if kept.exists():
        return Fact(name=name, state="ok", value="compiled")
    folder = Path(torch.__file__).parents[1]
    return Fact(
        name=name,
        state="missing",
        value="none: every process compiles torch's modules anew, for seconds",
        remedy=f"python -m compileall -q {folder}, or set PYTHONPYCACHEPREFIX to a folder of yours",
    )


_REMEDIES = {
    "files": "needs Linux 5.13 with Landlock on: candidates can read and write all that you can",
    "network": "needs root, or Linux 6.7 with Landlock on: candidates can open connections",
    "rights": "run as a user other than root",
}


def _protections() -> list[Fact]:
    """What a candidate's process is kept from: put on a worker, not guessed."""
    import torch

    from kernelproof.worker import Worker
    from kernelproof.worker.limits import NOT_PROTECTED, confine
    from kernelproof.worker.probe import without_for_cuda

    try:
        limits = confine(None, (), torch.cuda.is_available())
    except OSError as error:
        # The data folder, of which more is said below.
        return [Fact(name="confined", state="missing", value=f"not known: {error}")]
    if limits.gpu:
        limits = dataclasses.replace(limits, without=without_for_cuda())
    with Worker("doctor", limits) as worker:
        lines = worker.protections()
    facts = []
    for line in lines:
        name, _, value = line.partition(": ")
        missing = value.startswith(NOT_PROTECTED)
        facts.append(
            Fact(
                name=f"confined {name}",
                state="missing" if missing else "ok",
                value=value,
                remedy=_REMEDIES.get(name, "") if missing else "",
            )
        )
    return facts


def _tool(name: str, purpose: str, remedy: str) -> Fact:
    found = shutil.which(name)
    if found is None:
        return Fact(name=name, state="missing", value=f"for {purpose}", remedy=remedy)
    return Fact(name=name, state="ok", value=compiler_identity(name).split(" / ")[0])


def _nvcc() -> Fact:
    found = nvcc_path()
    if found is None:
        return Fact(
            name="nvcc",
            state="missing",
            value="for CUDA through load_inline and torch_op",
            remedy="install the CUDA toolkit, or use kernelproof.cuda, which does not need it",
        )
    return Fact(name="nvcc", state="ok", value=compiler_identity(found).split(" / ")[-1])


def _package(name: str, purpose: str, remedy: str) -> Fact:
    try:
        return Fact(name=name, state="ok", value=importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Fact(name=name, state="missing", value=f"for {purpose}", remedy=remedy)


def render(facts: list[Fact]) -> str:
    """The facts as lines of text."""
    width = max(len(fact.name) for fact in facts)
    lines = []
    for fact in facts:
        lines.append(f"{fact.state:8}{fact.name:{width + 2}}{fact.value}")
        if fact.remedy:
            lines.append(f"{'':8}{'':{width + 2}}-> {fact.remedy}")
    return "\n".join(lines)
