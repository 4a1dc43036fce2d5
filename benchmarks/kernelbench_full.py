"""Judge ``ModelNew = Model`` for KernelBench problems at full size on GPUs, and try empty answers.

    python benchmarks/kernelbench_full.py PATH --gpus 0 1 [--levels 1] [--lanes 2] [--seconds 200]
        [--only level1/19 ...] [--output FILE]

PATH is the user's own checkout (the folder that holds ``level1``). Each GPU has ``--lanes``
processes that judge one problem after the other (no kernel is timed, so that they may share it); a
problem that takes longer than ``--limit`` seconds costs its lane, not the run. With ``--forge`` the
reference alone runs, and zeros, ones, the mean and copies of the inputs are held against its output
by the tolerance that KernelBench publishes. Rows are appended as they come to a file of JSON lines;
a second run goes on where the first has ended.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

TOLERANCE = 1e-4  # of KernelBench for float32, absolute and relative


def judged(path: Path, folder: Path, call: float, shrink: int | None) -> dict[str, Any]:
    """The verdict on the reference itself as candidate."""
    from kernelproof.errors import UsageError
    from kernelproof.pipeline import Options, judge
    from kernelproof.suite.formats.kernelbench import trains

    candidate = folder / f"{path.parent.name}_{path.stem}.py"
    candidate.write_text(f"{path.read_text()}\n\nModelNew = Model\n")
    options = Options(
        device="cuda", level="quick", seeds=1, call_timeout=call, build_timeout=call,
        training=trains(path), shrink_to=shrink,
    )  # fmt: skip
    try:
        record = judge(path, candidate, options=options)
    except UsageError as error:
        return {"status": "unsupported", "message": str(error)[:400]}
    verdict = record.verdict
    outputs = [output for run in verdict.runs for output in run.outputs]
    return {
        "sizes": record.problem.sizes, "status": verdict.status, "compat": verdict.compat,
        "message": verdict.message[:400],
        "notes": list(verdict.notes), "gpu": record.environment.gpu,
        "torch": record.environment.torch, "elements": max((_size(o) for o in outputs), default=0),
        "ratio": max((max(o.ratio_rows, o.ratio_all) for o in outputs), default=0.0),
    }  # fmt: skip


def _size(output: Any) -> int:
    total = 1
    for extent in output.shape:
        total *= extent
    return total


def forged(path: Path) -> dict[str, Any]:
    """Which empty answers the published tolerance accepts at full size."""
    import torch

    from kernelproof.problem import load
    from kernelproof.suite.formats.kernelbench import trains

    module = load(path).module
    torch.manual_seed(0)
    with torch.device("cuda"), torch.no_grad():
        model = module.Model(*getattr(module, "get_init_inputs", list)()).train(trains(path))
        inputs = [x.cuda() if isinstance(x, torch.Tensor) else x for x in module.get_inputs()]
        output = model(*inputs)
        del model
        same = [x for x in inputs if isinstance(x, torch.Tensor) and x.shape == output.shape
                and x.dtype == output.dtype]  # fmt: skip
        middle = float(output.double().mean()) if output.numel() < 1 << 28 else float(output.mean())
        tried = {
            "zeros": lambda: torch.zeros_like(output), "ones": lambda: torch.ones_like(output),
            "constant": lambda: torch.full_like(output, middle),
        }  # fmt: skip
        accepted = [name for name, make in tried.items() if _close(output, make())]
        accepted += ["identity"] if any(_close(output, x) for x in same) else []
        return {"status": "ran", "accepts": accepted, "elements": output.numel(),
                "largest": float(output.abs().max())}  # fmt: skip


def _close(output: Any, other: Any) -> bool:
    """`torch.allclose` as KernelBench asks, in parts: it takes three more tensors of that size."""
    import torch

    one, two = output.reshape(-1), other.reshape(-1)
    step = 1 << 28
    return all(
        torch.allclose(one[i : i + step], two[i : i + step], atol=TOLERANCE, rtol=TOLERANCE)
        for i in range(0, one.numel(), step)
    )


def lane(call: float, forge: bool, shrink: int | None) -> None:
    """Answer paths on stdin with rows on stdout."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch

    with tempfile.TemporaryDirectory() as folder:
        for line in sys.stdin:
            path, started = Path(line.strip()), time.perf_counter()
            try:
                row = forged(path) if forge else judged(path, Path(folder), call, shrink)
            except torch.OutOfMemoryError as error:
                row = {"status": "unsupported", "message": str(error).splitlines()[0][:300]}
            except Exception as error:
                row = {"status": "failed", "message": f"{type(error).__name__}: {error}"[:400]}
            torch.cuda.empty_cache()
            row["seconds"] = round(time.perf_counter() - started, 1)
            print(json.dumps(row), file=out, flush=True)


class Lane:
    """A process that judges, on one GPU; begun anew when a problem takes too long."""

    def __init__(self, gpu: str, given: argparse.Namespace) -> None:
        self.gpu, self.given = gpu, given
        self.process: subprocess.Popen[str] | None = None

    def ask(self, path: Path, limit: float) -> dict[str, Any]:
        if self.process is None or self.process.poll() is not None:
            command = [sys.executable, __file__, str(path), "--lane", "--limit", str(limit)]
            if self.given.shrink is not None:
                command += ["--shrink", str(self.given.shrink)]
            self.process = subprocess.Popen(
                [*command, *(["--forge"] if self.given.forge else [])], text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": self.gpu},
            )  # fmt: skip
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{path}\n")
        self.process.stdin.flush()
        overdue = threading.Event()

        def give_up() -> None:
            overdue.set()
            self.end()

        late = threading.Timer(limit, give_up)
        late.start()
        line = self.process.stdout.readline()
        late.cancel()
        if line:
            row: dict[str, Any] = json.loads(line)
            return row
        self.end()
        why = f"not done in {limit:.0f} s" if overdue.is_set() else "the process died"
        return {"status": "unsupported", "message": why, "seconds": limit}

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.process = None


class Room:
    """How many bytes of inputs are judged on one GPU at a time; what is larger runs alone."""

    def __init__(self, most: int) -> None:
        self.most, self.taken, self.changed = most, 0, threading.Condition()

    def take(self, size: int) -> int:
        size = min(size, self.most)
        with self.changed:
            self.changed.wait_for(lambda: self.taken + size <= self.most)
            self.taken += size
        return size

    def give(self, size: int) -> None:
        with self.changed:
            self.taken -= size
            self.changed.notify_all()


def serve(
    gpu: str, room: Room, waiting: queue.Queue[tuple[int, Path]], end: float,
    given: argparse.Namespace,
) -> None:  # fmt: skip
    worker = Lane(gpu, given)
    while True:
        try:
            size, path = waiting.get_nowait()
        except queue.Empty:
            break
        held = room.take(size)
        left = end - time.perf_counter()
        if left < 5:
            room.give(held)
            break
        row = worker.ask(path, min(given.limit, left))
        room.give(held)
        cut = row["status"] == "unsupported" and left < given.limit and "not done" in row["message"]
        row = {"problem": f"{path.parent.name}/{path.stem}", "bytes": size, "device": gpu, **row}
        print(json.dumps(row), flush=True)
        if not cut:  # what only the end of this run cut short is left to the next
            with given.output.open("a") as file:
                file.write(json.dumps(row) + "\n")
    worker.end()


def weighed(path: Path) -> int:
    """Bytes of a problem's inputs."""
    from kernelproof.problem import load

    reference = load(path)
    return reference.input_bytes(reference.problem.cases[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--levels", nargs="+", default=["1"])
    parser.add_argument("--gpus", nargs="+", default=["0"])
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument(
        "--room", type=float, default=7e9, help="bytes of inputs at a time on a GPU"
    )
    parser.add_argument(
        "--shrink", type=int, default=None, help="bytes of inputs, if not full size"
    )
    parser.add_argument("--limit", type=float, default=60.0)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--forge", action="store_true")
    parser.add_argument("--lane", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, default=Path("kernelbench-full.jsonl"))
    given = parser.parse_args()
    if given.lane:
        lane(given.limit, given.forge, given.shrink)
        return 0
    done = set()
    if given.output.is_file():
        done = {json.loads(x)["problem"] for x in given.output.read_text().splitlines()}
    files = [p for n in given.levels for p in (given.path / f"level{n}").glob("*.py")]
    files.sort(key=lambda p: (p.parent.name, int(p.name.split("_")[0])))
    if given.only:
        short = {f"{p.parent.name}/{p.name.split('_')[0]}": p for p in files}
        files = [short[name] for name in given.only]
    end = time.perf_counter() + given.seconds
    left = [p.resolve() for p in files if f"{p.parent.name}/{p.stem}" not in done]
    # The small ones first: as many as the time allows.
    waiting: queue.Queue[tuple[int, Path]] = queue.Queue()
    for one in sorted((weighed(p), p) for p in left):
        waiting.put(one)
    rooms = {gpu: Room(given.room) for gpu in given.gpus}
    threads = [
        threading.Thread(target=serve, args=(gpu, rooms[gpu], waiting, end, given))
        for gpu in given.gpus
        for _ in range(given.lanes)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 0


if __name__ == "__main__":
    sys.exit(main())
