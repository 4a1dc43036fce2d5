"""The fork server: a process with torch imported, which forks workers on request.

A worker that starts from scratch pays 1.5 s for importing torch; a forked one is there in
milliseconds and still has nothing of the parent's memory. The server itself runs no candidate
code, touches no CUDA (a CUDA context does not survive a fork) and opens no thread pool. Each worker
has a supervisor of its own (see `supervisor`), which is what the server forks.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import socket

from kernelproof.importing import uncollected
from kernelproof.worker import processes, wire


def main(fd: int, more: bool = False) -> None:
    """Serve on the socket ``fd`` until it closes. ``more``: import also what `torch.autograd.grad`
    does, a quarter of a second, which pays where many workers are to come."""
    control = socket.socket(fileno=fd)
    with uncollected():
        importlib.import_module("torch")  # the point of this process
        if more:
            importlib.import_module("torch.fx.experimental.symbolic_shapes")
    # Nor do the workers look at what stays, and by looking copy the pages that they share.
    gc.freeze()

    # Should a supervisor be killed, what it watched over comes to this process.
    processes.adopt_orphans()
    # Ended children are reaped by the kernel: what they have to say, they say to the parent.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    supervisors: set[int] = set()
    # The parent may end at any time; that is this process's end too, and no error. Supervisors
    # notice it by themselves.
    with contextlib.suppress(wire.Closed):
        wire.send(control, {"ready": os.getpid()})
        while True:
            request, _ = wire.receive(control)
            if request["do"] == "fork":
                wire.send(control, {"pid": _fork(control, request["confinement"], supervisors)})
            elif request["do"] == "forget":
                supervisors.discard(int(request["pid"]))
                if request["orphans"]:
                    _kill_orphans(supervisors)
    os._exit(0)


def _fork(control: socket.socket, confinement: object, supervisors: set[int]) -> int:
    """Fork a supervisor with the two sockets that arrive with the next message."""
    _, fds, _, _ = socket.recv_fds(control, 1, 2)
    pid = os.fork()
    if pid == 0:
        control.close()
        from kernelproof.worker import supervisor

        supervisor.main(fds[0], fds[1], confinement)  # type: ignore[arg-type]
    for fd in fds:
        os.close(fd)
    supervisors.add(pid)
    return pid


def _kill_orphans(supervisors: set[int]) -> None:
    """End children that are no supervisors."""
    below = processes.descendants(os.getpid())
    watched = {pid for root in supervisors for pid in (root, *processes.descendants(root))}
    for pid, started in below.items():
        if pid not in watched:
            processes.kill(pid, started)
