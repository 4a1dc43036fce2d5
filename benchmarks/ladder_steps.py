"""One step of one rung, in a process of its own; see ladder.py."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import os
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from kernelproof import ladder
from kernelproof.environment import capture
from kernelproof.types import Run, Timing, Verdict

# A time is that of all rungs of a problem in one run, kept under this name.
ALL = "all"
SEED = 7


@dataclasses.dataclass(frozen=True)
class Place:
    """Where results go, whether they are of a GPU, and the commit where git cannot tell it."""

    out: Path
    gpu: bool
    commit: str


@dataclasses.dataclass(frozen=True)
class Task:
    """One step of one rung; ``form`` is "candidate" or "load_inline"."""

    step: str
    problem: str
    name: str
    form: str = "candidate"

    def file(self, out: Path) -> Path:
        return out / self.problem / f"{self.name}.{self.form}.{self.step}.json"

    def rung(self) -> ladder.Rung:
        return next(r for r in ladder.rungs(self.problem) if r.name == self.name)

    def candidate(self) -> str:
        rung = self.rung()
        return rung.candidate if self.form == "candidate" else str(rung.folder / "load_inline.py")


def work(step: str, form: str, names: list[str], place: Place) -> None:
    """Do ``step`` for rungs "problem/name" one after the other, each into a file of its own."""
    for name in names:
        task = Task(step, *name.split("/"), form)
        started = time.perf_counter()
        try:
            found = _result(task, place)
        except Exception as error:
            traceback.print_exc()
            found = {"fault": f"{type(error).__name__}: {error}"}
        found["wall"] = time.perf_counter() - started
        found["commit"] = capture().commit or place.commit
        write(task.file(place.out), found)


def write(path: Path, found: dict[str, Any]) -> None:
    """All at once: a file that is there is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(found, indent=1, default=str))
    part.replace(path)


def _result(task: Task, place: Place) -> dict[str, Any]:
    if task.step == "check":
        return check(task, place.gpu)
    if task.step == "inspect":
        return inspected(task, place.out)
    return timed(task, place) if task.step == "time" else built(task)


def check(task: Task, gpu: bool) -> dict[str, Any]:
    from kernelproof.pipeline import Options, judge

    rung = task.rung()
    options = Options(seeds=2, seed=SEED, build_timeout=230.0)
    if not gpu:
        options = Options(level="quick", seeds=1, seed=SEED, cases=rung.small)
    record = judge(task.problem, task.candidate(), options=options)
    verdict = record.verdict
    outputs = [o for run in verdict.runs for o in run.outputs]
    shown = _shown(verdict)
    return {
        "expected": rung.expect,
        "status": record.status,
        "unexpected": ladder.unexpected(rung, record),
        "message": verdict.message,
        "compat": verdict.compat,
        "evidence": verdict.evidence,
        "looks_like": verdict.looks_like,
        "case": shown.name if shown is not None else "",
        "ratio": max((max(o.ratio_rows, o.ratio_all) for o in outputs), default=None),
        "build_seconds": record.build.seconds,
        "notes": [c.message for c in verdict.checks if c.outcome == "note" and c.message],
        **_errors(shown),
    }


def _shown(verdict: Verdict) -> Run | None:
    """The run whose errors are shown: the one that failed; else the founding case where it was run,
    and the largest output where not."""
    runs = [run for run in verdict.runs if run.outputs and run.outputs[0].figures is not None]
    if verdict.status != "pass" or not runs:
        return runs[-1] if runs else None
    founding = [run for run in runs if run.name == "founding"]
    return founding[0] if founding else max(runs, key=lambda r: math.prod(r.outputs[0].shape))


def _errors(run: Run | None) -> dict[str, Any]:
    output = run.outputs[0] if run is not None else None
    if output is None or output.figures is None or output.reference is None:
        return {}
    return {
        "max_abs": output.figures.max_abs,
        "bits": output.figures.effective_bits,
        "reference_max_abs": output.reference.max_abs,
        "reference_bits": output.reference.effective_bits,
    }


def timed(task: Task, place: Place) -> dict[str, Any]:
    """All rungs of the problem in one run: the timing, with every sample."""
    from ladder_times import race

    def keep(timing: Timing) -> None:
        found = {"timing": json.loads(timing.model_dump_json()), "commit": place.commit}
        write(unjudged(task).file(place.out), found)

    timing = race(ladder.rungs(task.problem), SEED, keep)
    return {"timing": json.loads(timing.model_dump_json())}


def unjudged(task: Task) -> Task:
    """Under which a timing is kept until the outputs of its calls were looked at."""
    return dataclasses.replace(task, name=f"{ALL}-unjudged")


def kept(task: Task, out: Path) -> dict[str, Any]:
    """What an earlier step left in DIR; nothing where there is none."""
    path = task.file(out)
    return dict(json.loads(path.read_text())) if path.exists() else {}


def times_of(out: Path, problem: str, name: str) -> tuple[Timing | None, bool | None, str]:
    """See `ladder_times.of_rung`, no timing where DIR has none, and None for one whose outputs were
    not looked at; and the commit of the timing."""
    from ladder_times import of_rung

    task = Task("time", problem, ALL)
    found = kept(task, out)
    done = "timing" in found
    if not done:
        found = kept(unjudged(task), out)
    if "timing" not in found:
        return None, None, ""
    last = ladder.rungs(problem)[-1].name
    timing, right = of_rung(Timing.model_validate(found["timing"]), name, last)
    return timing, right if done else None, found.get("commit", "")


def inspected(task: Task, out: Path) -> dict[str, Any]:
    """Resources and occupancy of the kernels of the founding case on an H200, compiled here, and
    what holds them back, also by their time where there is one."""
    from kernelproof.errors import UnsupportedError
    from kernelproof.inspecting import Wish, inspect

    where = f"{task.problem}/cuda" if task.candidate() == "cuda" else task.candidate()
    timing, *_ = times_of(out, task.problem, task.name)
    try:
        found = inspect(where, Wish(gpu="h200", problem=task.problem, case="founding"), timing)
    except UnsupportedError as error:
        return {"kernels": [], "sentences": [error.message]}
    return {
        "sentences": found.sentences,
        "kernels": [
            {
                "name": k.name,
                "registers": k.registers,
                "spilled_bytes": k.spill_stores,
                "shared_bytes": k.shared_bytes + (k.launch.shared if k.launch else 0),
                "blocks": math.prod(k.launch.grid) if k.launch else None,
                "threads": k.threads,
                "occupancy": k.occupancy,
                "limiter": k.limiter,
                "blocks_per_sm": k.blocks_per_multiprocessor,
                "sentences": k.sentences,
            }
            for k in found.kernels
        ],
    }


def built(task: Task) -> dict[str, Any]:
    """Seconds from import to the first result with nothing compiled before."""
    import torch

    from kernelproof import candidate as candidates
    from kernelproof import cuda
    from kernelproof import problem as problems
    from kernelproof.importing import import_file

    torch.ones(8, device="cuda").sum().item()
    reference = problems.load(task.problem)
    case = next(c for c in reference.problem.cases if c.name == "founding")
    torch.manual_seed(SEED)
    inputs = [x.cuda() if isinstance(x, torch.Tensor) else x for x in reference.inputs(case)]
    args, kwargs = reference.init_args(case)
    # What every first call pays once is not the rung's: libraries, the compiler, lazy loading.
    with torch.no_grad():
        reference.module.Model(*args, **kwargs)(*inputs)
    cuda.Kernel('extern "C" __global__ void nothing() {}', "nothing")(grid=1, block=1)
    torch.cuda.synchronize()
    where = task.candidate()
    with torch.no_grad(), tempfile.TemporaryDirectory() as empty:
        os.environ["KERNELPROOF_HOME"] = empty
        started = time.perf_counter()
        if where == "cuda":
            module = importlib.import_module(f"kernelproof.ops.{task.problem}.cuda")
        else:
            module = import_file(Path(candidates.load(where).path), "candidate")
        module.ModelNew(*args, **kwargs)(*inputs)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - started
    return {"build": seconds}
