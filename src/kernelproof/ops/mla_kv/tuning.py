"""Opt-in: which design, and which algorithms of the matrix library, are the fastest on this GPU,
measured once and kept on disk.

Nothing is measured, read or written unless ``KERNELPROOF_TUNE=1`` in the environment asks for it:
then every form of call is measured when it is first met, which takes about a second. A choice is
kept in ``$KERNELPROOF_HOME/tuned/mla_kv``, one file for each GPU, form of call, and version of
the libraries and kernels; remove the folder to forget them all.
"""

from __future__ import annotations

import functools
import json
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from kernelproof.build.cache import content_key
from kernelproof.home import home, tuning_wanted
from kernelproof.ops.mla_kv import cublaslt, cuda_library
from kernelproof.ops.mla_kv.cuda_operands import Operands
from kernelproof.ops.mla_kv.cuda_steps import Library

# Whether calls look for a choice.
on = tuning_wanted()
_CALLS, _ROUNDS = 10, 7
# Designs slower than this many times the best in a first look are not looked at again.
_HOPELESS = 2.0
# Another algorithm than the first proposal has to be this much faster.
_GAIN = 0.97
# Largest difference from the first proposal over the largest value.
_NEAR = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}

Calls = dict[str, Callable[[], Any]]


class Choice(NamedTuple):
    """``seconds``: of a call, by design. ``algorithms``: products, and the configurations of
    `cublaslt.configuration` that are to form them."""

    design: str
    seconds: dict[str, float]
    algorithms: tuple[tuple[cublaslt.Form, tuple[int, ...]], ...] = ()


_known: dict[tuple[Any, ...], Choice] = {}


def folder() -> Path:
    return home() / "tuned" / "mla_kv"


def choice(
    device: int, form: tuple[Any, ...], run: Callable[[str], Any], operands: Operands
) -> Choice | None:
    """The choice for a call, measured if need be; None while a graph is being captured and nothing
    is known yet.

    Args:
        form: all that a choice depends on but the GPU and the versions.
        run: makes the call with a design of that name, or raises ValueError where it does not fit.
    """
    found = known(device, form)
    if found is None:
        if torch.cuda.is_current_stream_capturing():
            return None
        found = _known[device, form] = measured(device, run, operands)
        _write(_path(device, form), device, form, found)
    return found


def known(device: int, form: tuple[Any, ...]) -> Choice | None:
    """The choice that has been made for a call, here or by an earlier process."""
    found = _known.get((device, form))
    if found is None:
        found = _read(_path(device, form))
        if found is not None:
            _known[device, form] = found
            _take_algorithms(device, found)
    return found


def measured(device: int, run: Callable[[str], Any], operands: Operands) -> Choice:
    """Every algorithm of every product by the library, then every design that fits."""
    from kernelproof.ops.mla_kv import cuda_plan

    algorithms = []
    facts = _facts(device)
    steps = cuda_plan.library(operands, facts)
    for step in steps.launches if steps is not None else ():
        form = cuda_library.form_of(step, operands) if isinstance(step, Library) else None
        if form is not None and cublaslt.available():
            best = _best_algorithm(form, device)
            if best is not None:
                algorithms.append((form, best))
    made = Choice("", {}, tuple(algorithms))
    _take_algorithms(device, made)
    calls: Calls = {}
    for design in cuda_plan.DESIGNS:
        try:
            run(design)
        except ValueError:
            continue
        calls[design] = functools.partial(run, design)
    if not calls:
        raise ValueError(f"mla_kv: no design fits {operands}")
    times = seconds(calls)
    return made._replace(design=min(times, key=lambda name: times[name]), seconds=times)


def seconds(calls: Calls) -> dict[str, float]:
    """Device time of each call: medians of replays of graphs of some calls, which take turns."""
    first = {name: _seconds_of(call) for name, call in calls.items()}
    limit = _HOPELESS * min(first.values())
    graphs = {name: _graph(call) for name, call in calls.items() if first[name] <= limit}
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for number in range(_ROUNDS + 1):
        for name, graph in graphs.items():
            spent = _timed(graph.replay) / _CALLS
            if number:  # the first replay warms up
                times[name].append(spent)
    return {name: statistics.median(spent) for name, spent in times.items()}


def _timed(call: Callable[[], Any]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def _seconds_of(call: Callable[[], Any]) -> float:
    call()
    return min(_timed(call) for _ in range(3))


def _graph(call: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_CALLS):
            call()
    return graph


def _best_algorithm(form: cublaslt.Form, device: int) -> tuple[int, ...] | None:
    """The configuration of the fastest proposal, or None where the first is as fast as any."""
    place = torch.device("cuda", device)
    x = torch.randn(form.tokens * form.token_stride, device=place).to(form.dtype)
    lines = form.columns if form.along_depth else form.depth
    weight = torch.randn(form.batches * lines * form.weight_stride, device=place).to(form.dtype)
    out = torch.empty(form.tokens * form.out_stride, device=place, dtype=form.dtype)
    product = cublaslt.Product(form, device)
    workspace = torch.empty(cublaslt.WORKSPACE_BYTES, dtype=torch.uint8, device=place)

    def multiply(number: int) -> None:
        product.choose(number)
        stream = torch.cuda.current_stream(device).cuda_stream
        product(
            x.data_ptr(), weight.data_ptr(), out.data_ptr(), workspace.data_ptr(), stream,
            lines * form.weight_stride,
        )  # fmt: skip

    multiply(0)
    expected = out.clone()
    calls: Calls = {}
    for number in range(len(product.proposals)):
        out.fill_(float("nan"))
        try:
            multiply(number)
        except RuntimeError:
            continue
        error = (out - expected).abs().max() / expected.abs().max()
        if error <= _NEAR[form.dtype]:
            calls[str(number)] = functools.partial(multiply, number)
    times = seconds(calls)
    best = min(times, key=lambda name: times[name])
    if "0" in times and not times[best] < _GAIN * times["0"]:
        return None
    return cublaslt.configuration(product.proposals[int(best)])


def _take_algorithms(device: int, found: Choice) -> None:
    for form, configuration in found.algorithms:
        cuda_library.take(form, device, configuration)


def _facts(device: int) -> Any:
    from kernelproof.ops.mla_kv import cuda

    return cuda.device_facts(device)


# -- on disk ---------------------------------------------------------------------------------------


@functools.cache
def _versions() -> str:
    """Of what decides how fast a design is: kernels and plans of this operator, the libraries."""
    import kernelproof

    files = sorted(p for p in Path(__file__).parent.iterdir() if p.suffix in (".cu", ".cuh", ".py"))
    sources = content_key(*(p.read_bytes() for p in files))
    return f"{kernelproof.__version__} {sources} torch {torch.__version__}"


def _path(device: int, form: tuple[Any, ...]) -> Path:
    key = content_key(torch.cuda.get_device_name(device), _versions(), repr(form))
    return folder() / f"{key}.json"


def _read(path: Path) -> Choice | None:
    """What is kept in a file; None where there is none, or it was damaged."""
    try:
        kept = json.loads(path.read_text())
        algorithms = tuple(
            (
                cublaslt.Form(getattr(torch, dtype), *rest),
                tuple(configuration),
            )
            for (dtype, *rest), configuration in kept["algorithms"]
        )
        return Choice(kept["design"], kept["seconds"], algorithms)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _write(path: Path, device: int, form: tuple[Any, ...], found: Choice) -> None:
    """All at once: another process sees a whole file or none."""
    kept = {
        "gpu": torch.cuda.get_device_name(device),
        "versions": _versions(),
        "call": repr(form),
        "design": found.design,
        "seconds": found.seconds,
        "algorithms": [
            [[str(made.dtype).removeprefix("torch."), *made[1:]], list(configuration)]
            for made, configuration in found.algorithms
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
        file.write(json.dumps(kept, indent=1) + "\n")
    Path(file.name).replace(path)


def described(found: Choice) -> str:
    """In words, for `explain`."""
    times = sorted(found.seconds.items(), key=lambda item: item[1])
    words = ", ".join(f"{name} {spent * 1e6:.3g} us" for name, spent in times)
    return f"tuned on this GPU ({folder()}): {words}"
