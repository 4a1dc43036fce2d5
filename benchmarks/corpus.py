"""Judge the corpus of right and wrong kernels beside allclose; write results/corpus.json.

    python benchmarks/corpus.py [--masters 5] [--only WORD] [--gpu] [--jobs N]

For every fixture of tests/candidates whose status is "pass" or "wrong" (with --gpu: those of
tests/candidates/gpu) and every master seed: kernelproof's verdict, and what allclose says about the
same calls of the declared cases, by itself and as KernelBench does (first case only, 5 draws,
shapes and allclose). A kernel that raises there counts as failed. Interrupted runs go on where
they were.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import json
import multiprocessing
import random
from pathlib import Path
from typing import Any

import torch

from kernelproof import candidate as candidates
from kernelproof import problem as problems
from kernelproof.check.reference import ReferenceModel
from kernelproof.check.values import flatten
from kernelproof.environment import capture
from kernelproof.errors import CandidateError
from kernelproof.pipeline import Options, judge
from kernelproof.subject import CandidateProcess

ROOT = Path(__file__).resolve().parents[1]
FIXTURES = ROOT / "tests" / "candidates"
MASTERS = (11, 22, 33, 44, 55)
# KernelBench's tolerances, absolute and relative, by the dtype of the output.
KERNELBENCH = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 1e-2}


def constant(path: Path, name: str) -> Any:
    """A constant of the fixture, read without running it; None where it has none."""
    text = (path / "candidate.py" if path.is_dir() else path).read_text()
    for line in text.splitlines():
        if line.startswith(f"{name} = "):
            return ast.literal_eval(line.removeprefix(f"{name} = "))
    return None


def expected(path: Path) -> str:
    return str(constant(path, "EXPECT") or "")


def cases_of(path: Path) -> tuple[str, ...]:
    """Names of the cases that the fixture is for; none: all."""
    return tuple(constant(path, "ONLY") or ())


def fixtures(gpu: bool) -> list[Path]:
    folders = ("gpu",) if gpu else ("right", "wrong")
    found = [p for f in folders for p in sorted((FIXTURES / f).iterdir()) if "__" in p.name]
    found = [p for p in found if p.is_file() or (p / "candidate.py").is_file()]
    return [p for p in found if expected(p) in ("pass", "wrong")]


def close(got: Any, want: Any, tolerance: float | None) -> bool:
    """Same structure and shapes, and `torch.allclose` of every tensor; None: KernelBench's."""
    a, b = flatten(got), flatten(want)
    if [name for name, _ in a] != [name for name, _ in b]:
        return False
    for (_, x), (_, y) in zip(a, b, strict=True):
        if not isinstance(y, torch.Tensor):
            continue
        if not isinstance(x, torch.Tensor) or x.shape != y.shape:
            return False
        limit = KERNELBENCH.get(y.dtype, 1e-4) if tolerance is None else tolerance
        if not torch.allclose(x, y.detach().cpu(), atol=limit, rtol=limit):
            return False
    return True


def by_allclose(path: Path, device: str, master: int) -> dict[str, bool]:
    """Whether each way of using allclose accepts the fixture: "kernelbench", "all_1e-4" (and 1e-2
    in 16 bits) and "all_1e-2"."""
    reference = problems.load(path.name.split("__")[0])
    draw = random.Random(master)
    seeds = [draw.getrandbits(31) for _ in range(5)]
    said = {"kernelbench": True, "all_1e-4": True, "all_1e-2": True}
    options = Options(device=device, call_timeout=120.0)
    with CandidateProcess(candidates.load(path), device, options) as subject:
        key = ""
        only = cases_of(path)
        cases = [case for case in reference.problem.cases if not only or case.name in only]
        for number, case in enumerate(cases):
            try:
                args, kwargs = reference.init_args(case)
                if key != repr((args, kwargs)):
                    key = repr((args, kwargs))
                    model = ReferenceModel(reference.module.Model, args, kwargs, seeds[0], device)
                    subject.construct(args, kwargs, seeds[0], model.state())
                for seed in seeds if number == 0 else seeds[:2]:
                    torch.manual_seed(seed)
                    inputs = reference.inputs(case)
                    want = model.run(inputs, seed)[0]
                    got = subject.call(inputs, seed, False, 1)[0]["output"]
                    own, coarse = close(got, want, None), close(got, want, 1e-2)
                    said["kernelbench"] &= own or number > 0
                    said["all_1e-4"] &= own
                    said["all_1e-2"] &= coarse
            except (CandidateError, RuntimeError):
                said = {name: ok and name == "kernelbench" and number > 0
                        for name, ok in said.items()}  # fmt: skip
                break
    return said


def examine(path: Path, device: str, master: int) -> dict[str, Any]:
    options = Options(device=device, seed=master, call_timeout=120.0, cases=cases_of(path))
    verdict = judge(path.name.split("__")[0], path, options=options).verdict
    outputs = [o for run in verdict.runs for o in run.outputs if o.figures is not None]
    return {
        "fixture": path.stem,
        "expected": expected(path),
        "master": master,
        "status": verdict.status,
        "message": verdict.message,
        "rows": max((o.ratio_rows for o in outputs), default=0.0),
        "all": max((o.ratio_all for o in outputs), default=0.0),
        "allclose": by_allclose(path, device, master),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--masters", type=int, default=len(MASTERS))
    parser.add_argument("--only", default="")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--jobs", type=int, default=1, help="fixtures at a time, on a CPU only")
    parser.add_argument("--output", type=Path, default=None)
    parser.add_argument("--commit", default="", help="of the sources, where they are a copy")
    given = parser.parse_args()
    name = "corpus-gpu.json" if given.gpu else "corpus.json"
    output = given.output or ROOT / "results" / name
    environment = capture()
    results: list[dict[str, Any]] = []
    if output.is_file():
        results = json.loads(output.read_text())["results"]
    done = {(r["fixture"], r["master"]) for r in results}
    device = "cuda" if given.gpu else "cpu"
    work = [
        (path, device, master)
        for master in MASTERS[: given.masters]
        for path in fixtures(given.gpu)
        if given.only in path.name and (path.stem, master) not in done
    ]
    about = {
        "date": str(datetime.date.today()),
        "commit": given.commit or environment.commit,
        "torch": environment.torch,
        "machine": environment.gpu or environment.cpu,
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    # Fresh processes, since torch does not survive a fork once it has threads.
    with multiprocessing.get_context("spawn").Pool(given.jobs, initializer=_two_threads) as pool:
        for result in pool.imap_unordered(_examine, work):
            results.append(result)
            ok = "ok   " if result["status"] == result["expected"] else "WRONG"
            words = (result["master"], result["fixture"], result["status"], result["rows"])
            print(ok, *words, flush=True)
            results.sort(key=lambda r: (r["master"], r["fixture"]))
            output.write_text(json.dumps({**about, "results": results}, indent=1) + "\n")


def _examine(work: tuple[Path, str, int]) -> dict[str, Any]:
    try:
        return examine(*work)
    except Exception as error:
        path, _, master = work
        # The judge's own fault: neither accepted nor what was expected.
        return {
            "fixture": path.stem, "expected": expected(path), "master": master,
            "status": "internal error", "message": f"{type(error).__name__}: {error}",
            "rows": 0.0, "all": 0.0,
            "allclose": {"kernelbench": False, "all_1e-4": False, "all_1e-2": False},
        }  # fmt: skip


def _two_threads() -> None:
    # Enough for a race, and little enough for many jobs.
    torch.set_num_threads(2)


if __name__ == "__main__":
    main()
