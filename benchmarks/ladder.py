"""Judge every rung of candidates/ on this machine; write the rows of docs/ladder.md.

    python benchmarks/ladder.py --out DIR [--only mla_kv/0] [--jobs 8] [--seconds 330] [--inline]
                                [--steps time build check inspect] [--onto FILE]

On a GPU the rungs of a problem are timed together (see ladder_times.py), each is built from
scratch, checked at the default level (``--jobs`` at a time), and inspected for an H200 with its
time. Without a GPU: the check, emulated, at the cases of `kernelproof.ladder.SMALL`, and the
inspection. Each result is a file of its own in DIR, so that an interrupted run goes on where it
was, the inspection also on another machine; all go to DIR/ladder.json (ladder-cpu.json without a
GPU), to be kept as results/<gpu>/ladder.json or results/ladder-cpu.json.
``--inline``: also the load_inline forms, which take a minute each to compile.
``--onto``: an earlier result of the same machine; what this run has not done stays as it is there,
and a step that was done at another commit names it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ladder_steps import ALL, Place, Task, kept, times_of, work
from ladder_times import row as times_row

from kernelproof import ladder
from kernelproof.environment import capture
from kernelproof.types import LadderResults

PROBLEMS = ("mla_kv", "int8_attention", "gated_recurrence")
STEPS = ("time", "build", "check", "inspect")
_FIGURES = ("max_abs", "bits", "reference_max_abs", "reference_bits")
# Seconds without a result after which the process at work is ended, and its rung left out.
PATIENCE = {"check": 150.0, "time": 150.0, "build": 40.0, "inspect": 60.0, "inline": 240.0}


def lead(tasks: list[Task], place: Place, jobs: int, until: float) -> None:
    """Run ``tasks`` in up to ``jobs`` processes, and end those that no longer give results."""
    out = place.out
    todo = [task for task in tasks if not task.file(out).exists()]
    running: list[tuple[subprocess.Popen[bytes], list[Task], float]] = []
    # Each process takes a share, as starting one costs seconds.
    shares = [todo[n::jobs] for n in range(jobs)] if todo else []
    queue = [share for share in shares if share]
    while queue or running:
        if time.monotonic() > until:
            for process, *_ in running:
                process.kill()
            print("out of time; run again to go on", flush=True)
            return
        while queue and len(running) < jobs:
            share = queue.pop()
            running.append((_start(share, place), share, time.monotonic()))
        time.sleep(0.2)
        for entry in list(running):
            process, share, since = entry
            ended = process.poll() is not None
            left = [task for task in share if not task.file(out).exists()]
            since = time.monotonic() if len(left) < len(share) else since
            running.remove(entry)
            patience = PATIENCE["inline" if share[0].form == "load_inline" else share[0].step]
            if left and not ended and time.monotonic() - since < patience:
                running.append((process, left, since))
                continue
            if left:
                process.kill()
            process.wait()
            if left:
                words = f"exit {process.returncode}" if ended else f"no result in {patience:g} s"
                left[0].file(out).parent.mkdir(parents=True, exist_ok=True)
                left[0].file(out).write_text(json.dumps({"fault": words}))
                if left[1:]:
                    queue.append(left[1:])


def _start(share: list[Task], place: Place) -> subprocess.Popen[bytes]:
    names = [f"{task.problem}/{task.name}" for task in share]
    log = (place.out / f"{share[0].step}.log").open("ab")
    command = [sys.executable, __file__, "--out", str(place.out), "--work", share[0].step]
    command += ["--form", share[0].form, *([] if place.gpu else ["--cpu"])]
    command += ["--commit", place.commit, "--names", *names]
    environment = dict(os.environ)
    if share[0].step == "check":
        # Several at a time: threads of one would only stand in the way of another.
        environment |= {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=log, stderr=log, env=environment)


def merged(tasks: Sequence[Task], out: Path, commit: str) -> list[dict[str, Any]]:
    """A row for each rung and form, from the files of its steps; ``commit``: of most of them."""
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}

    def row_of(*key: str) -> dict[str, Any]:
        names = zip(("problem", "rung", "form"), key, strict=True)
        return rows.setdefault(key, {**dict(names), "walls": {}})  # type: ignore[index]

    for task in tasks:
        found = kept(task, out)
        if task.step == "time" or not found:
            continue
        row = row_of(task.problem, task.name, task.form)
        row["walls"][task.step] = round(found.pop("wall", 0.0), 2)
        _dated(row, task.step, found.pop("commit", ""), commit)
        if "fault" in found:
            row.setdefault("faults", {})[task.step] = found.pop("fault")
        row.update(found)
    for problem in {task.problem for task in tasks if task.step == "time"}:
        for rung in ladder.rungs(problem):
            timing, right, own = times_of(out, problem, rung.name)
            if timing is not None:
                row = row_of(problem, rung.name, "candidate")
                row.update(times_row(timing, right))
                _dated(row, "time", own, commit)
    return [rows[key] for key in sorted(rows)]


def _dated(row: dict[str, Any], step: str, own: str, commit: str) -> None:
    """Note the commit of a step where it is another one; either may be shortened."""
    if not own.startswith(commit) and not commit.startswith(own):
        row.setdefault("commits", {})[step] = own


def joined(earlier: LadderResults, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """``earlier`` with what ``rows`` have done anew; both as `merged` with the commit of it."""
    kept: dict[tuple[str, str, str], dict[str, Any]] = {
        (r.problem, r.rung, r.form): r.model_dump(exclude_defaults=True) for r in earlier.rows
    }
    for row in rows:
        key = (row["problem"], row["rung"], row["form"])
        done = {*row["walls"], *(["time"] if "times" in row else [])}
        old = kept.get(key, {})
        steps = {
            field: {s: x for s, x in old.get(field, {}).items() if s not in done}
            | row.get(field, {})
            for field in ("walls", "commits", "faults")
        }
        if "check" in done:  # a run without figures has none of these
            old = {name: x for name, x in old.items() if name not in _FIGURES}
        kept[key] = {**old, **row, **steps}
    return [kept[key] for key in sorted(kept)]


def results_of(
    tasks: Sequence[Task], out: Path, facts: dict[str, Any], onto: Path | None
) -> LadderResults:
    """What the steps in DIR found, joined to the results in ``onto`` where it is given.

    Raises:
        ValueError: those are of another machine or another torch.
    """
    if onto is None:
        rows = merged(tasks, out, facts["commit"])
        return LadderResults.model_validate({**facts, "rows": rows})
    earlier = LadderResults.model_validate_json(onto.read_text())
    if (earlier.machine, earlier.torch) != (facts["machine"], facts["torch"]):
        raise ValueError(
            f"--onto {onto} is of {earlier.machine} with torch {earlier.torch}, this run of "
            f"{facts['machine']} with {facts['torch']}; leave --onto out"
        )
    rows = joined(earlier, merged(tasks, out, earlier.commit))
    return LadderResults.model_validate({**earlier.model_dump(), "rows": rows})


def about(out: Path, gpu: bool, commit: str) -> dict[str, Any]:
    """On what the results in DIR were made; that of the first run in it."""
    path = out / "about.json"
    if not path.exists():
        environment = capture()
        found = {
            "date": str(datetime.date.today()),
            "commit": environment.commit or commit,
            "torch": environment.torch,
            "cuda": environment.cuda if gpu else "",
            "driver": environment.gpu_driver if gpu else "",
            "versions": environment.versions,
            "machine": (environment.gpu if gpu else "") or environment.cpu,
            "gpu": gpu,
        }
        path.write_text(json.dumps(found))
    return dict(json.loads(path.read_text()))


def tasks_of(step: str, rungs: list[ladder.Rung]) -> list[Task]:
    """Those of one step; a problem is timed where all of its rungs are wanted."""
    if step != "time":
        return [Task(step, r.problem, r.name) for r in rungs]
    return [
        Task(step, problem, ALL) for problem in PROBLEMS if set(ladder.rungs(problem)) <= set(rungs)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="rungs whose problem/name begins so")
    parser.add_argument("--steps", nargs="*", choices=STEPS, default=STEPS)
    parser.add_argument("--jobs", type=int, default=0, help="checks at a time")
    parser.add_argument("--seconds", type=float, default=330.0, help="then the rest is left")
    parser.add_argument("--inline", action="store_true")
    parser.add_argument("--cpu", action="store_true", help="as on a machine without a GPU")
    parser.add_argument("--commit", default="", help="of the sources, where git cannot tell")
    parser.add_argument("--onto", type=Path, help="an earlier ladder.json")
    parser.add_argument("--work", default="", help=argparse.SUPPRESS)
    parser.add_argument("--form", default="candidate", help=argparse.SUPPRESS)
    parser.add_argument("--names", nargs="*", default=[], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given.work, given.form, given.names, Place(given.out, not given.cpu, given.commit))
        return 0
    import torch

    here = torch.cuda.is_available() and not given.cpu
    until = time.monotonic() + given.seconds
    given.out.mkdir(parents=True, exist_ok=True)
    facts = about(given.out, here, given.commit)
    gpu, place = facts.pop("gpu"), Place(given.out, here, given.commit)
    jobs = given.jobs or (min(12, os.cpu_count() or 1) if here else 2)
    rungs = [r for problem in PROBLEMS for r in ladder.rungs(problem)]
    rungs = [r for r in rungs if f"{r.problem}/{r.name}".startswith(given.only)]
    steps = {step: tasks_of(step, rungs) for step in STEPS if gpu or step in ("check", "inspect")}
    for step, tasks in steps.items():
        # Only what needs no GPU can go on elsewhere.
        if step in given.steps and (here == gpu or step == "inspect"):
            lead(tasks, place, jobs if step in ("check", "inspect") else 1, until)
    inline: list[Task] = []
    if gpu and given.inline:
        twins = [r for r in rungs if (r.folder / "load_inline.py").is_file()]
        inline = [Task("check", r.problem, r.name, "load_inline") for r in twins]
        lead(inline, place, 4, until)
    everything = [task for tasks in steps.values() for task in tasks] + inline
    output = given.out / ("ladder.json" if gpu else "ladder-cpu.json")
    results = results_of(everything, given.out, facts, given.onto)
    output.write_text(results.model_dump_json(indent=1, exclude_defaults=True) + "\n")
    for row in results.rows:
        words = row.unexpected or row.faults or ""
        print(row.problem, row.rung, row.form, row.status, row.device, words)
    print(f"{output}: {len(results.rows)} rows")
    return int(any(row.unexpected or row.faults for row in results.rows))


if __name__ == "__main__":
    sys.exit(main())
