"""The parent's handle on a worker: start, ask, time out, kill, and say how it died."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from kernelproof import openmp
from kernelproof.errors import (
    CandidateCrash,
    CandidateError,
    CandidateTimeout,
    CompileError,
    ContractError,
    KernelproofError,
    UnsupportedError,
)
from kernelproof.worker import wire

_BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[2]); "
    "from kernelproof.worker.server import main; main(int(sys.argv[1]))"
)
_LOG_LIMIT = 200_000  # characters of a worker's own output that the parent reads

_ERRORS: dict[str, type[CandidateError]] = {
    "compile_error": CompileError,
    "wrong": ContractError,
    "crash": CandidateCrash,
    "unsupported": UnsupportedError,
}


class _Server:
    """The fork server of this process, started on first use."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, str(theirs.fileno()), json.dumps(sys.path)],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=openmp.users_environment(),
        )
        theirs.close()
        self.control = ours
        self.lock = threading.Lock()
        self.ready = False

    def _wait_ready(self) -> None:
        if not self.ready:
            try:
                wire.receive(self.control, 120.0)
            except (wire.Closed, TimeoutError) as error:
                raise KernelproofError("the worker server did not start") from error
            self.ready = True

    def fork(self, sock: socket.socket) -> tuple[int, str]:
        with self.lock:
            self._wait_ready()
            wire.send(self.control, {"do": "fork"})
            socket.send_fds(self.control, [b"f"], [sock.fileno()])
            answer, _ = wire.receive(self.control, 60.0)
        return int(answer["pid"]), str(answer["log"])

    def wait(self, pid: int) -> int | None:
        with self.lock:
            wire.send(self.control, {"do": "wait", "pid": pid})
            answer, _ = wire.receive(self.control, 60.0)
        status = answer["exit"]
        return None if status is None else int(status)

    def stop(self) -> None:
        self.control.close()
        try:
            self.process.wait(10.0)
        except subprocess.TimeoutExpired:
            self.process.kill()


_server: _Server | None = None
_server_lock = threading.Lock()


def start_server() -> None:
    """Start the fork server now, so that its import of torch runs beside the caller's own."""
    _get_server()


def _get_server() -> _Server:
    global _server
    with _server_lock:
        if _server is None or _server.process.poll() is not None:
            _server = _Server()
            atexit.register(_server.stop)
        return _server


class Worker:
    """One worker process. Use as a context manager, or call `close`.

    Every request raises CandidateCrash when the process dies, CandidateTimeout when it does not
    answer in time (it is killed), and the candidate's own error when it reports one.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        server = _get_server()
        ours, theirs = socket.socketpair()
        self.pid, self.log_path = server.fork(theirs)
        theirs.close()
        self._sock: socket.socket | None = ours
        self._server = server

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        return self._sock is not None

    def log(self) -> str:
        """The tail of what the worker printed."""
        with contextlib.suppress(OSError), Path(self.log_path).open("rb") as handle:
            size = handle.seek(0, os.SEEK_END)
            handle.seek(max(0, size - _LOG_LIMIT))
            return handle.read().decode(errors="replace")
        return ""

    def ask(self, do: str, *, timeout: float, payload: Any = None, **fields: Any) -> Any:
        """Send one request and return the decoded answer.

        Args:
            do: the request's name (see `child`).
            timeout: seconds until the worker is killed.
            payload: any object that pickles, for the worker alone.
            fields: plain JSON values.
        """
        if self._sock is None:
            raise CandidateCrash(f"the worker of {self.name} has already ended")
        buffers = [] if payload is None else [pickle.dumps(payload, protocol=5)]
        try:
            wire.send(self._sock, {"do": do, **fields}, buffers)
            answer, received = wire.receive(self._sock, timeout)
        except wire.Closed:
            raise self._died(do) from None
        except TimeoutError:
            log = self.log()
            self.kill()
            raise CandidateTimeout(
                f"no answer to {do!r} within {timeout:g} s; the process was killed", log
            ) from None
        except (ValueError, KeyError, OverflowError) as error:
            self.kill()
            raise CandidateCrash(f"the worker sent nonsense in answer to {do!r}: {error}") from None
        if "error" in answer:
            kind = _ERRORS.get(str(answer.get("status")), CandidateCrash)
            told = kind(str(answer["error"]), str(answer.get("detail", "")))
            # After an error inside CUDA the process answers, and yet nothing works in it any more.
            told.clean = "CUDA error" not in told.message
            raise told
        return wire.decode(answer["answer"], received)

    def kill(self) -> None:
        """End the process and everything in its group, at once."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """End the worker and remove its log."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None
            with contextlib.suppress(wire.Closed, TimeoutError, OSError):
                self._server.wait(self.pid)
            with contextlib.suppress(OSError):
                Path(self.log_path).unlink()

    def _died(self, do: str) -> CandidateCrash:
        log = self.log()
        status: int | None = None
        with contextlib.suppress(wire.Closed, TimeoutError, OSError):
            status = self._server.wait(self.pid)
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        with contextlib.suppress(OSError):
            Path(self.log_path).unlink()
        if status is not None and status < 0:
            how = f"was killed by signal {-status} ({signal.Signals(-status).name})"
        else:
            how = f"ended with exit status {status}"
        return CandidateCrash(f"the candidate's process {how} during {do!r}", log)
