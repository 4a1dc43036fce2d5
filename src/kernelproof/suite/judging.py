"""A process that judges one item after another on one device, and the parent's handle on it.

It is started with the one GPU that it may see, keeps torch and CUDA loaded between items, and ends
when its parent does. Frames are those of `worker.wire`, as JSON. Requests: "judge" an order,
"weigh" one, "build" one ahead without a GPU, and "device", which tells what it runs on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelproof import ahead, openmp
from kernelproof.errors import CandidateError, KernelproofError, UsageError
from kernelproof.importing import imports
from kernelproof.standby import standby
from kernelproof.worker import wire
from kernelproof.worker.client import start_server

if TYPE_CHECKING:
    from kernelproof.types import Record

_BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[2]); "
    "from kernelproof.suite.judging import main; main(int(sys.argv[1]), json.loads(sys.argv[3]))"
)
_LOG_BYTES = 4000
_NEEDED = ("torch", "kernelproof.pipeline", "kernelproof.findings")  # by every item
_TOPOLOGY = Path("/sys/devices/system/cpu")


@dataclasses.dataclass(frozen=True)
class Order:
    """What is to be judged: paths on this machine, and options as JSON has them.

    ``arch``: the GPU that a build is for, such as "9.0"; "" for none. ``held``: the run holds the
    device's lease. ``crowded``: others of the run are judged on the same GPU meanwhile.
    """

    problem: str
    candidate: str
    options: dict[str, Any]
    timed: bool
    arch: str = ""
    held: bool = False
    crowded: bool = False


class Lost(Exception):
    """The process ended without an answer."""


class Starved(Lost):
    """It ran out of memory that processes which are not the run's held; the message says how much
    was free."""


class Late(Exception):
    """There was no answer in time; the process was killed."""


class Judge:
    """A judging process. One thread at a time asks; any may end it.

    Args:
        environment: variables that are other than this process's, such as CUDA_VISIBLE_DEVICES.
        processors: those that it may use; all when empty.
        nice: how far it steps back for others.
    """

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        processors: Sequence[int] = (),
        nice: int = 0,
    ) -> None:
        ours, theirs = socket.socketpair()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        command = [sys.executable, "-c", _BOOT, str(theirs.fileno()), json.dumps(sys.path)]
        self.process = subprocess.Popen(
            [*command, json.dumps({"processors": list(processors), "nice": nice})],
            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=self._log,
            stderr=self._log, start_new_session=True,
            env={**openmp.users_environment(), **(environment or {})},
        )  # fmt: skip
        theirs.close()
        self._sock = ours
        self._asking = threading.RLock()

    def ask(self, do: str, order: Order | None = None, timeout: float | None = None) -> Any:
        """The answer to a request; ``timeout`` in seconds counts from when it has the device.

        Raises:
            Lost: the process ended, with the end of what it printed.
            Late: there was no answer in time.
            KernelproofError: it answered with an error of its own; UsageError with that of the
                problem or the options.
        """
        request = {"do": do, "order": None if order is None else dataclasses.asdict(order)}
        with self._asking:
            answer = self._asked(request, timeout)
        if "usage" in answer:
            raise UsageError(answer["usage"])
        if "fault" in answer:
            raise KernelproofError(answer["fault"])
        return answer["answer"]

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def close(self) -> None:
        """End it, with all that it has started: its workers notice by themselves."""
        self.process.kill()
        self.process.wait()
        # Whoever waits for its answer has seen the end by now, or does at once.
        with self._asking:
            self._sock.close()
            self._log.close()

    def _asked(self, request: dict[str, Any], timeout: float | None) -> Any:
        try:
            wire.send(self._sock, request)
            answer, _ = wire.receive(self._sock)
            if "began" in answer:
                answer, _ = wire.receive(self._sock, timeout)
        except wire.Closed:
            self.process.wait()
            raise Lost(f"its process {_how(self.process.returncode)}{self._said()}") from None
        except OSError as error:
            if isinstance(error, TimeoutError):
                self.close()
                raise Late(f"no answer within {timeout:g} s") from None
            # Ended by another thread before it was asked.
            raise Lost("its process has been ended") from None
        return answer

    def _said(self) -> str:
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - _LOG_BYTES))
        text = self._log.read().decode(errors="replace").strip()
        return f":\n{text}" if text else ""


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit status {code}"
    why = ", as where the machine's memory ends" if code == -signal.SIGKILL else ""
    return f"was killed by signal {-code}{why}"


def main(fd: int, how: Mapping[str, Any]) -> None:
    """Answer requests on the socket ``fd`` until it closes."""
    sock = socket.socket(fileno=fd)
    # What this process starts must not keep it open.
    sock.set_inheritable(False)
    if how["processors"]:
        os.sched_setaffinity(0, how["processors"])
    os.nice(int(how["nice"]))
    openmp.wait_passively()
    standby.lasting = True
    threading.Thread(target=_end_with, args=(sock,), daemon=True).start()
    # Its import of torch runs beside this process's own, and so does the driver's start.
    start_server()
    if ahead.has_driver():
        threading.Thread(target=ahead.retain_context, args=("cuda",), daemon=True).start()
    imports(_NEEDED)
    gc.freeze()  # what stays, `_tidy` need not look at
    with contextlib.suppress(wire.Closed):
        while True:
            request, _ = wire.receive(sock)
            wire.send(sock, _answer(sock, request))


def _end_with(sock: socket.socket) -> None:
    """The parent's end is this process's, also in the middle of an item."""
    poll = select.poll()
    poll.register(sock, select.POLLRDHUP | select.POLLHUP)
    poll.poll()
    os._exit(1)


def _answer(sock: socket.socket, request: Mapping[str, Any]) -> dict[str, Any]:
    order = Order(**request["order"]) if request["order"] is not None else None
    try:
        if request["do"] == "device":
            return {"answer": _device()}
        assert order is not None
        if request["do"] == "build":
            return {"answer": _built(order)}
        if request["do"] == "weigh":
            wire.send(sock, {"began": True})
            with contextlib.ExitStack() as stack:
                # A reference may take memory of the GPU even on the meta device. Who was weighed
                # waits beside others that need it.
                stack.callback(_tidy, "cuda")
                return {"answer": _weighed(order)}
        return {"answer": _judged(sock, order)}
    except UsageError as error:
        return {"usage": str(error)}
    except Exception as error:
        import traceback

        # An error of ours, or of CUDA in this process, which nothing in it survives.
        traceback.print_exc()
        return {"fault": f"{type(error).__name__}: {error}"}


def _device() -> dict[str, Any]:
    """What this process runs on: the GPU by name and capability, "" where there is none."""
    from kernelproof import environment

    made = environment.capture()
    return {"gpu": made.gpu, "capability": made.capability}


def _name(device: str) -> str:
    from kernelproof import environment
    from kernelproof.report import units

    made = environment.capture()
    return made.gpu if device != "cpu" else f"{made.cpu}, {units.many(made.threads, 'thread')}"


def _judged(sock: socket.socket, order: Order) -> dict[str, Any]:
    from kernelproof import candidate, lease, pipeline, spare

    options = pipeline.Options(**_fields(order.options))
    device = pipeline.device_for(options.device, candidate.load(order.candidate))
    spare.crowded = order.crowded
    with contextlib.ExitStack() as stack:
        # Whatever it leaves behind is not to be missing to the next candidate.
        stack.callback(_tidy, device)
        if not order.held and (order.timed or device != "cpu"):
            stack.enter_context(lease.hold(lease.device_key(device)))
        wire.send(sock, {"began": True})
        started = time.perf_counter()
        record = pipeline.judge(
            order.problem, order.candidate, timed=order.timed, options=options
        )  # fmt: skip
        taken = time.perf_counter() - started
    return {
        "record": record.model_dump_json(),
        "seconds": taken,
        "device": _name(device),
        "harness": _harness(order, record),
    }


def _harness(order: Order, record: Record) -> dict[str, Any] | None:
    """What the harness of the suite's format would say; None for a format without one. Here and not
    in the driver, since it may run the reference."""
    if not (order.options.get("compat") or {}).get("format"):
        return None
    from kernelproof.suite import compat
    from kernelproof.suite.model import Item

    item = Item(Path(order.problem), Path(order.candidate), "", options=order.options)
    return compat.verdict(item, record).model_dump()


def _tidy(device: str) -> None:
    from kernelproof.spare import spare_memory

    gc.collect()
    spare_memory(device)


def _weighed(order: Order) -> dict[str, Any]:
    """Bytes of inputs and outputs of the largest case that would be judged; and of the GPU its name
    for leases."""
    from kernelproof import lease, pipeline, problem

    options = pipeline.Options(**_fields(order.options))
    reference = problem.load(order.problem, dict(options.sizes), options.shrink_to)
    cases = [c for c in reference.problem.cases if not options.cases or c.name in options.cases]
    most = options.max_bytes
    fitting = [c for c in cases if most is None or reference.input_bytes(c) <= most]
    return {
        "bytes": max((reference.held_bytes(case) for case in fitting), default=0),
        "lease": lease.device_key("cuda"),
    }


def _built(order: Order) -> dict[str, Any]:
    """Import the candidate where that compiles it. What it does wrong is for the judge to say."""
    from kernelproof import candidate, pipeline
    from kernelproof.subject import CandidateProcess

    found = candidate.load(order.candidate)
    started = time.perf_counter()
    options = pipeline.Options(**_fields(order.options))
    hides = (str(Path(order.problem).resolve()),)
    built = CandidateProcess(found, "cpu", options, hides)
    with built as subject, contextlib.suppress(CandidateError):
        subject.build_ahead(order.arch)
    return {"seconds": time.perf_counter() - started}


def _fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options from JSON: its lists are tuples."""
    return {k: _tuple(v) for k, v in options.items() if k != "compat"}


def _tuple(value: Any) -> Any:
    return tuple(_tuple(v) for v in value) if isinstance(value, list) else value


def by_core(processors: Sequence[int], root: Path = _TOPOLOGY) -> list[int]:
    """In the order of their cores, so that a share of consecutive ones has whole cores: hardware
    threads of one core slow each other down, and Linux numbers them half a machine apart. A virtual
    machine may not tell its cores: in order of number there."""

    def place(processor: int) -> tuple[int, int]:
        try:
            told = (root / f"cpu{processor}" / "topology/thread_siblings_list").read_text()
            return int(re.split("[-,]", told.strip())[0]), processor
        except (OSError, ValueError):
            return processor, processor

    return sorted(processors, key=place)


def processors_of(index: int, count: int, among: Sequence[int]) -> list[int]:
    """The share of worker ``index`` of ``count``; all where there are fewer than workers."""
    each = len(among) // count
    return list(among[index * each : (index + 1) * each]) if each else list(among)
