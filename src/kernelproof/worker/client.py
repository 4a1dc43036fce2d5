"""The parent's handle on a worker: start, ask, time out, kill, and say how it died."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import os
import pickle
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

from kernelproof import openmp
from kernelproof.errors import (
    CandidateCrash,
    CandidateError,
    CandidateTimeout,
    CompileError,
    ContractError,
    KernelproofError,
    ProblemError,
    UnsupportedError,
)
from kernelproof.home import STORE_VARIABLE
from kernelproof.timeline import span
from kernelproof.worker import packing, processes, wire
from kernelproof.worker.limits import Confinement, available_memory

_BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[2]); "
    "from kernelproof.worker.server import main; main(int(sys.argv[1]), sys.argv[3] == 'more')"
)
# Killing takes long where a process is inside a driver; the supervisor gives up before this.
_REPORT_SECONDS = 60.0
_GRACE = 0.5  # seconds in which a process that hung up may end by itself

# What reading something that is no answer can raise. Not OSError: what the system refuses is not
# the worker's doing.
_UNREADABLE = (
    ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError, MemoryError,
)  # fmt: skip

_ERRORS: dict[str, type[CandidateError]] = {
    "compile_error": CompileError,
    "wrong": ContractError,
    "crash": CandidateCrash,
    "unsupported": UnsupportedError,
}


class _Nonsense(Exception):
    """What came is not an answer."""


class _Server:
    """The fork server of this process, started on first use. ``more``: see `server.main`."""

    def __init__(self, more: bool) -> None:
        ours, theirs = socket.socketpair()
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                _BOOT,
                str(theirs.fileno()),
                json.dumps(sys.path),
                "more" if more else "",
            ],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=_environment(),
            # An interrupt at the terminal is for the parent, whose end is the server's.
            start_new_session=True,
        )
        theirs.close()
        self.control = ours
        self.lock = threading.Lock()
        self.ready = False

    @span("wait for the server of workers")
    def _wait_ready(self) -> None:
        if not self.ready:
            try:
                wire.receive(self.control, 120.0)
            except (wire.Closed, TimeoutError) as error:
                raise KernelproofError("the worker server did not start") from error
            self.ready = True

    def fork(
        self, sock: socket.socket, channel: socket.socket, confinement: Confinement | None
    ) -> int:
        """Start a worker and its supervisor; returns the process id of the latter."""
        with self.lock:
            self._wait_ready()
            described = None if confinement is None else dataclasses.asdict(confinement)
            wire.send(self.control, {"do": "fork", "confinement": described})
            socket.send_fds(self.control, [b"f"], [sock.fileno(), channel.fileno()])
            answer, _ = wire.receive(self.control, 60.0)
        return int(answer["pid"])

    def forget(self, pid: int, orphans: bool) -> None:
        """Supervisor ``pid`` has ended; ``orphans``: without ending what it watched over."""
        with self.lock, contextlib.suppress(wire.Closed):
            wire.send(self.control, {"do": "forget", "pid": pid, "orphans": orphans})

    def stop(self) -> None:
        self.control.close()
        if not self.ready:
            # It has no workers yet, and would notice only once it has imported torch.
            self.process.kill()
        try:
            self.process.wait(10.0)
        except subprocess.TimeoutExpired:
            self.process.kill()


def _environment() -> dict[str, str]:
    """As the user's, without the way to the records: the URL may have a password."""
    return {k: v for k, v in openmp.users_environment().items() if k != STORE_VARIABLE}


_server: _Server | None = None
_server_lock = threading.Lock()
_more = False


def start_server(more: bool = False) -> None:
    """Start the fork server now, so that its import of torch runs beside the caller's own.
    ``more``: for many workers, see `server.main`."""
    global _more
    _more = more
    _get_server()


def _get_server() -> _Server:
    global _server
    with _server_lock:
        if _server is None or _server.process.poll() is not None:
            _server = _Server(_more)
            atexit.register(_server.stop)
        return _server


class Worker:
    """One worker process. Use as a context manager, or call `close`.

    Every request raises CandidateCrash when the process dies, CandidateTimeout when it does not
    answer in time (it is killed), and the candidate's own error when it reports one.

    ``confinement``: limits for code that nobody trusts; None for the problem's own.
    """

    @span("start a worker")
    def __init__(self, name: str, confinement: Confinement | None = None) -> None:
        self.name = name
        # Whether it had another module before.
        self.again = False
        ours, theirs = wire.pair()
        self._channel, channel = socket.socketpair()
        self._server, self._supervisor = _fork(theirs, channel, confinement)
        theirs.close()
        channel.close()
        started, _ = wire.receive(self._channel, 60.0)
        self.pid, self.folder = int(started["pid"]), str(started["folder"])
        self._image, self._scheduled = processes.image(self.pid), processes.scheduling(self.pid)
        self._sock: socket.socket | None = ours
        # One request at a time; a thread may have started CUDA in it when another loads a module.
        self._lock = threading.RLock()
        self._protections: tuple[str, ...] | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        return self._sock is not None

    def protections(self) -> tuple[str, ...]:
        """One line for each limit that is on this worker, or that is not there to be had."""
        if self._protections is None:
            if self._sock is None:
                return ()
            # Sent before any of the candidate's code runs.
            try:
                greeting, _ = wire.receive(self._sock, 60.0)
            except (wire.Closed, TimeoutError):
                log = self._end(_GRACE)["log"]
                raise KernelproofError(f"a worker did not start:\n{log}") from None
            self._protections = tuple(str(line) for line in greeting["protections"])
        return self._protections

    def ask(self, do: str, *, timeout: float, payload: Any = None, **fields: Any) -> Any:
        """Send one request and return the decoded answer.

        Args:
            do: the request's name (see `child`).
            timeout: seconds until the worker is killed.
            payload: any object that pickles, for the worker alone.
            fields: plain JSON values.
        """
        with self._lock, span(f"{self.name}: {do}"):
            return self._asked(do, timeout, payload, fields)

    def _asked(self, do: str, timeout: float, payload: Any, fields: dict[str, Any]) -> Any:
        if self._sock is None:
            raise CandidateCrash(f"the worker of {self.name} has already ended")
        self.protections()
        buffers = [] if payload is None else _sendable(payload)
        try:
            wire.send(self._sock, {"do": do, **fields}, buffers)
            return self._answer(self._sock, timeout)
        except wire.Closed:
            raise self._died(do) from None
        except TimeoutError:
            log = wire.plain_text(self._end(0.0)["log"])
            raise CandidateTimeout(
                f"no answer to {do!r} within {timeout:g} s; the process was killed", log
            ) from None
        except _Nonsense as error:
            self.close()
            raise CandidateCrash(f"the worker sent nonsense in answer to {do!r}: {error}") from None
        finally:
            # An error that is kept has this frame, and must not hold what may be gigabytes.
            buffers.clear()

    def _answer(self, sock: socket.socket, timeout: float) -> Any:
        """What comes within ``timeout`` seconds, or the candidate's own error raised. A worker can
        send anything: whatever it is that cannot be read is `_Nonsense`, and no fault of this
        process."""
        left = self._answering(sock, timeout)
        try:
            answer, received = wire.receive(sock, left, most=available_memory())
            if "error" not in answer:
                return wire.decode(answer["answer"], received)
            kind = _ERRORS.get(str(answer.get("status")), CandidateCrash)
            told = kind(*(wire.plain_text(answer.get(part, "")) for part in ("error", "detail")))
        except _UNREADABLE as error:
            words = str(error).partition("\n")[0][:200]
            raise _Nonsense(words or type(error).__name__) from None
        # After an error inside CUDA the process answers, and yet nothing works in it any more.
        told.clean = "CUDA error" not in told.message
        try:
            raise told
        finally:
            # Else the error holds this frame, which holds it, and with it buffers of tensors that
            # the collector cannot take apart: it has crashed over them.
            del told

    def _answering(self, sock: socket.socket, timeout: float) -> float:
        """Wait until something comes; returns what is left of ``timeout``.

        The supervisor speaks only when all is over. Should it be killed, a process that the
        candidate has started may still hold the worker's end of the socket.
        """
        started = time.monotonic()
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        poll.register(self._channel, select.POLLIN)
        ready = [fd for fd, _ in poll.poll(timeout * 1000)]
        if not ready:
            raise TimeoutError
        if sock.fileno() not in ready:
            raise wire.Closed
        return max(0.0, timeout - (time.monotonic() - started))

    @property
    def replaced(self) -> bool:
        """Whether its process runs another program than it was started with."""
        now = processes.image(self.pid) if self.alive else ()
        return bool(now) and bool(self._image) and now != self._image

    @property
    def rescheduled(self) -> bool:
        """Whether its niceness, policy or processors are others than at its start."""
        now = processes.scheduling(self.pid) if self.alive else ()
        return bool(now) and bool(self._scheduled) and now != self._scheduled

    def processor_seconds(self) -> float:
        """What it and all that it has started have taken so far, as this process sees it."""
        return processes.processor_seconds(self._supervisor)

    @span("end a worker")
    def close(self) -> None:
        """End the worker and all that it has started, and remove its folder."""
        if not self._lock.acquire(blocking=False):
            # Another thread waits for an answer; it sees the end.
            self.kill()
            self._lock.acquire()
        try:
            if self._sock is not None:
                self._end(0.0)
        finally:
            self._lock.release()

    def kill(self) -> None:
        """End the process at once; whoever waits for its answer sees that it died."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def _end(self, grace: float) -> dict[str, Any]:
        """Let the supervisor end everything within ``grace`` seconds; returns its report."""
        report: dict[str, Any] = {"exit": None, "reason": "", "left": 0, "others": 0, "log": ""}
        if self._sock is not None:
            self._sock.close()
            self._sock = None
            # Where the worker has ended by itself, the report is already under way.
            with contextlib.suppress(wire.Closed):
                wire.send(self._channel, {"grace": grace})
            told = False
            with contextlib.suppress(wire.Closed, TimeoutError):
                report, _ = wire.receive(self._channel, _REPORT_SECONDS)
                told = True
            self._channel.close()
            self._server.forget(self._supervisor, orphans=not told)
            if not told:
                shutil.rmtree(self.folder, ignore_errors=True)
        return report

    def _died(self, do: str) -> CandidateCrash:
        report = self._end(_GRACE)
        status = report["exit"]
        if report["reason"]:
            how = f"was killed: {report['reason']},"
        elif status is not None and status < 0:
            how = f"was killed by signal {-status} ({_signal_name(-status)})"
        else:
            how = f"ended with exit status {status}"
        return CandidateCrash(
            f"the candidate's process {how} during {do!r}",
            _OURS.sub("", wire.plain_text(report["log"])).rstrip(),
        )


def _fork(
    sock: socket.socket, channel: socket.socket, confinement: Confinement | None
) -> tuple[_Server, int]:
    server = _get_server()
    try:
        return server, server.fork(sock, channel, confinement)
    except (wire.Closed, TimeoutError):
        # It was there and is no longer: something has killed it. A new one does as well.
        server.process.kill()
        server.process.wait()
        server = _get_server()
        return server, server.fork(sock, channel, confinement)


# Lines of what Python prints of a process that dies which are not about the candidate.
_OURS = re.compile(
    r'^ *File "(?:[^"\n]*/kernelproof/worker/[^"\n]*|<string>)", line \d+ in .*\n?'
    r'|^ *File "[^"\n]*/torch/nn/modules/module\.py", line \d+ in _\w*call_impl\n?'
    r"|^Extension modules: .*\n?",
    re.MULTILINE,
)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "a real-time signal"


def _sendable(payload: Any) -> list[wire.Buffer]:
    try:
        return packing.parts(payload)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ProblemError(
            "what get_inputs or get_init_inputs returns cannot go to the candidate's process: "
            f"{error}; it takes tensors, plain values, and lists, tuples and dicts of them"
        ) from None
