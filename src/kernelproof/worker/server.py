"""The fork server: a process with torch imported, which forks workers on request.

A worker that starts from scratch pays 1.5 s for importing torch; a forked one is there in
milliseconds and still has nothing of the parent's memory. The server itself runs no candidate
code, touches no CUDA (a CUDA context does not survive a fork) and opens no thread pool.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import tempfile
import traceback
from typing import Any

from kernelproof.worker import wire


def main(fd: int) -> None:
    """Serve on the socket ``fd`` until it closes; then end every worker."""
    control = socket.socket(fileno=fd)
    import torch  # noqa: F401  the point of this process

    children: set[int] = set()
    # The parent may end at any time; that is this process's end too, and no error.
    with contextlib.suppress(wire.Closed):
        wire.send(control, {"ready": os.getpid()})
        while True:
            request, _ = wire.receive(control)
            if request["do"] == "fork":
                wire.send(control, _fork(control, children))
            elif request["do"] == "wait":
                wire.send(control, {"exit": _reap(int(request["pid"]), children)})
    for pid in children:
        _kill_group(pid)
    os._exit(0)


def _fork(control: socket.socket, children: set[int]) -> Any:
    """Fork a worker on the socket that arrives with the next message."""
    _, fds, _, _ = socket.recv_fds(control, 1, 1)
    log_fd, log_path = tempfile.mkstemp(prefix="kernelproof-worker-", suffix=".log")
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            control.close()
            os.dup2(log_fd, 1)
            os.dup2(log_fd, 2)
            os.close(log_fd)
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            from kernelproof.worker.child import serve

            serve(socket.socket(fileno=fds[0]))
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(70)
        os._exit(0)
    os.close(fds[0])
    os.close(log_fd)
    children.add(pid)
    return {"pid": pid, "log": log_path}


def _reap(pid: int, children: set[int]) -> int | None:
    """Kill what is left of worker ``pid`` and return its exit status (negative: the signal)."""
    if pid not in children:
        return None
    # It may still be on its way out: give it a moment, so that its own status is seen.
    deadline_steps = 50
    status = 0
    for _ in range(deadline_steps):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        signal.sigtimedwait([signal.SIGCHLD], 0.01)
    else:
        _kill_group(pid)
        _, status = os.waitpid(pid, 0)
    _kill_group(pid)
    children.discard(pid)
    return os.waitstatus_to_exitcode(status)


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
